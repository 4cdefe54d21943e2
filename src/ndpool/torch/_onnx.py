"""Average pooling with `divisor_override` for export to ONNX.

During an export, `modules` and `_patch` use PyTorch's pooling, but PyTorch's exporters silently drop
`divisor_override`. For those averages they call this module, which uses operators that export correctly.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from ndpool import geometry
from ndpool._policy import check_divisor

F = torch.nn.functional
AVERAGES = {F.avg_pool2d: 2, F.avg_pool3d: 3}  # PyTorch's functions with a divisor


def average(
    original: Callable[..., Any],
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """PyTorch's average pooling `original`; a divisor becomes a multiplication by a constant."""
    if divisor_override is None:
        return original(input, kernel_size, stride, padding, ceil_mode, count_include_pad)
    n = AVERAGES[original]
    fn = f"avg_pool{n}d"
    divisor = check_divisor(fn, divisor_override)
    kernel, stride, padding = geometry.check_window(fn, n, kernel_size, stride, padding, 1)
    if ceil_mode:
        # Pad enough for a partial last window, which must start inside the input for every input size.
        for k, s, (p, _) in zip(kernel, stride, padding, strict=True):
            if s > k - p:
                raise ValueError(
                    f"{fn}: divisor_override with ceil_mode is exported to ONNX for a stride of at most "
                    f"kernel_size - padding; got stride={s} with kernel_size={k}, padding={p} (limit {k - p})"
                )
        widths = [(p, p + s - 1) for (p, _), s in zip(padding, stride, strict=True)]
        input = F.pad(input, [width for pair in reversed(widths) for width in pair])
        means = original(input, kernel, stride)
    else:
        means = original(input, kernel, stride, [p for p, _ in padding])
    return means * (prod(kernel) / divisor)
