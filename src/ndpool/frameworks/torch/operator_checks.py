"""Checks of the registered operators' arguments: anybody can call `torch.ops.ndpool`, with anything.

Called by `operators` before a kernel runs. The public functions check their own arguments, in their own
names; windows are checked by `geometry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from ndpool._arguments import check_sizes, normalize_axes
from ndpool._plan import Plan
from ndpool._policy import arithmetic
from ndpool.frameworks.torch.tensors import CODES, FLOATS, NAMES
from ndpool.reductions import Reduction, find


def check_tensor(op: str, name: str, x: Tensor, floating: bool = False) -> None:
    """A strided tensor of a supported dtype."""
    if x.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be a strided tensor; got layout={x.layout}")
    if x.dtype not in (FLOATS if floating else CODES):
        kind = "floating point" if floating else "of a supported dtype"
        raise TypeError(f"{op}: {name} must be {kind}; got dtype={x.dtype}")


def check_axes(op: str, x: Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    """The pooled axes, which must exist and differ."""
    if axes and min(axes) < 0:
        raise ValueError(f"{op}: axes must be from 0 to {x.dim() - 1}; got axes={list(axes)}")
    return normalize_axes(op, tuple(axes), x.dim(), len(axes))


def check_windows(op: str, axes: Sequence[int], windows: Sequence[int]) -> None:
    """One output size per axis, or five integers per axis and two flags."""
    n = len(axes)
    if len(windows) not in (n, 5 * n + 2):
        raise ValueError(f"{op}: windows must be {n} or {5 * n + 2} integers; got {len(windows)}")


def check_reduce(op: str, reduce: str, names: Sequence[str]) -> Reduction:
    """A reduction that this operator has."""
    reduction = find(op, reduce)
    if reduce not in names:
        raise ValueError(f"{op}: reduce must be one of {', '.join(names)}; got reduce={reduce!r}")
    return reduction


def check_result(
    op: str, x: Tensor, reduction: Reduction, dtype: torch.dtype, divisor: int, norm: float
) -> None:
    """The result of max pooling and of floating point has the input's dtype; integers may change theirs."""
    kept = reduction.has_index or x.dtype in FLOATS
    wrong = dtype != x.dtype if kept else dtype not in CODES or dtype is torch.bool
    if wrong or (reduction.norm and dtype not in FLOATS):
        raise TypeError(f"{op}: dtype must fit reduce={reduction.name!r} of {x.dtype}; got dtype={dtype}")
    if reduction.norm and (isnan(norm) or norm in (0, inf, -inf)):
        raise ValueError(f"{op}: norm must be a finite number other than 0; got norm={norm}")
    arithmetic(op, reduction, NAMES[x.dtype], NAMES[dtype], divisor, float(norm))


def check_grad(op: str, grad: Tensor, axes: Sequence[int], plan: Plan) -> None:
    """A gradient of the plan's outputs."""
    check_tensor(op, "grad", grad, floating=True)
    got = tuple(grad.shape[a] for a in axes)
    if got != plan.out:
        raise ValueError(f"{op}: grad must have sizes {plan.out} along axes {list(axes)}; got {got}")


def check_offsets(op: str, offsets: Tensor, like: Tensor, shape: Sequence[int], plan: Plan) -> None:
    """One offset per output: in one byte if that can number the taps of a window, or in four."""
    wanted = (torch.uint8, torch.int32) if plan.taps <= 256 else (torch.int32,)
    if offsets.dtype not in wanted or offsets.layout is not torch.strided:
        raise TypeError(
            f"{op}: offsets must be {' or '.join(map(str, wanted))}, for windows of {plan.taps} elements; "
            f"got dtype={offsets.dtype}, layout={offsets.layout}"
        )
    if tuple(offsets.shape) != tuple(shape):
        raise ValueError(f"{op}: offsets must have shape {tuple(shape)}; got shape {tuple(offsets.shape)}")
    check_device(op, "offsets", offsets, like)
    # Reading the values would wait for a GPU; there an offset outside the window has no effect.
    if offsets.is_cpu and offsets.numel() and not (offsets.dtype is torch.uint8 and plan.taps >= 256):
        least, most = (int(end) for end in offsets.aminmax())
        if least < 0 or most >= plan.taps:
            raise ValueError(
                f"{op}: offsets must number the taps of a window; got {least if least < 0 else most} "
                f"(limit {plan.taps - 1})"
            )


def check_unpool(op: str, values: Tensor, indices: Tensor, axes: Any, sizes: Sequence[int]) -> None:
    """Values with an int64 index each; the indices themselves are checked as they are read."""
    check_tensor(op, "values", values)
    check_sizes(op, "sizes", tuple(sizes), len(axes))
    if indices.dtype is not torch.int64 or indices.layout is not torch.strided:
        raise TypeError(f"{op}: indices must be torch.int64; got dtype={indices.dtype}")
    if indices.shape != values.shape:
        raise ValueError(
            f"{op}: indices must have shape {tuple(values.shape)}; got shape {tuple(indices.shape)}"
        )
    check_device(op, "indices", indices, values)


def check_samples(op: str, x: Tensor, samples: Tensor, axes: tuple[int, ...]) -> None:
    """One sample per plane and pooled axis."""
    check_tensor(op, "samples", samples, floating=True)
    lead = tuple(size for a, size in enumerate(x.shape) if a not in axes)
    if tuple(samples.shape) != (*lead, len(axes)):
        raise ValueError(
            f"{op}: samples must have shape {(*lead, len(axes))}; got shape {tuple(samples.shape)}"
        )
    check_device(op, "samples", samples, x)


def check_device(op: str, name: str, tensor: Tensor, like: Tensor) -> None:
    """All tensors of a call must be on one device."""
    if tensor.device != like.device:
        raise ValueError(f"{op}: {name} must be on device {like.device}; got device={tensor.device}")
