"""Pooling as PyTorch's own operators, for exporters that do not know ndpool's.

`operators` registers these functions as decompositions, which the ONNX exporter of `torch.export` programs
applies, and calls them where the TorchScript exporter traces. The arithmetic is in `_lowering`; here is the
graph it is written over: tensors. Eager and compiled calls never come here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_tracing as is_tracing
from torch.compiler import is_dynamo_compiling
from torch.onnx import is_in_onnx_export

from ndpool import _lowering
from ndpool._arguments import symbols
from ndpool._call import INDEX64, Call
from ndpool._lowering import OPSETS, Job, Planes, Window
from ndpool.frameworks.torch.tensors import NAMES

aten = torch.ops.aten  # `patch` replaces the functions of torch.nn.functional
_MAX = (aten.max_pool1d, aten.max_pool2d, aten.max_pool3d)
_INDICES = (aten.max_pool1d_with_indices, aten.max_pool2d_with_indices, aten.max_pool3d_with_indices)
_AVG = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)


def scripted() -> bool:
    """Whether the TorchScript exporter traces for ONNX."""
    return not is_dynamo_compiling() and is_tracing() and is_in_onnx_export()


symbols.append(lambda value: isinstance(value, Tensor) and scripted())


class Tensors:
    """The graph that a tracer records: see `_lowering.Graph`."""

    def __init__(self, fn: str, device: torch.device) -> None:
        self.fn, self.device = fn, device

    def require(self, operator: str) -> None:
        opset = _opset() if scripted() else None
        if opset is not None and opset < OPSETS[operator]:
            raise ValueError(
                f"{self.fn}: export to ONNX needs opset {OPSETS[operator]} or newer; "
                f"got opset_version={opset} (limit {OPSETS[operator]})"
            )

    def dtype(self, x: Tensor) -> str:
        return NAMES[x.dtype]

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.to(getattr(torch, dtype))

    def arange(self, n: Any) -> Tensor:
        return torch.arange(n, device=self.device)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return x.permute(*order)

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        return x.unsqueeze(axis)

    def squeeze(self, x: Tensor, axis: int) -> Tensor:
        return x.squeeze(axis)

    def merge(self, x: Tensor, n_axes: int) -> Tensor:
        return x.reshape(prod(x.shape[:n_axes]), *x.shape[n_axes:])

    def split(self, x: Tensor, like: Tensor, n_axes: int) -> Tensor:
        return x.reshape(*like.shape[:n_axes], *x.shape[1:])

    def pad(self, x: Tensor, pairs: Sequence[tuple[int, int]], value: float) -> Tensor:
        return torch.nn.functional.pad(x, [width for pair in reversed(pairs) for width in pair], value=value)

    def slice(self, x: Tensor, axis: int, start: int, stop: Any, step: int = 1) -> Tensor:
        return x[(slice(None),) * axis + (slice(start, stop, step),)]

    def take(self, x: Tensor, axis: int, table: Tensor) -> Tensor:
        shape = x.shape
        taken = x.index_select(axis, table.reshape(-1))
        return taken.reshape(*shape[:axis], *table.shape, *shape[axis + 1 :])

    def pick(self, x: Tensor, axis: int, index: Tensor) -> Tensor:
        return x.gather(axis, index.unsqueeze(axis)).squeeze(axis)

    def where(self, condition: Tensor, x: Tensor, y: float) -> Tensor:
        return x.masked_fill(~condition, y)

    def minimum(self, x: Tensor, y: Tensor | int) -> Tensor:
        return x.clamp(max=y) if isinstance(y, int) else torch.minimum(x, y)

    def reduce(self, kind: str, x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
        function: Any = {"max": torch.amax, "min": torch.amin, "sum": torch.sum, "mean": torch.mean}[kind]
        return function(x, tuple(axes), keep)  # type: ignore[no-any-return]

    def arg(self, kind: str, x: Tensor, axis: int) -> Tensor:
        return torch.argmax(x, axis) if kind == "max" else torch.argmin(x, axis)

    def max_pool(self, x: Tensor, windows: Sequence[Window]) -> Any:
        return _pooled(_MAX, x, windows)

    def max_pool_indices(self, x: Tensor, windows: Sequence[Window], sizes: Sequence[Any]) -> Any:
        return _pooled(_INDICES, x, windows)

    def avg_pool(self, x: Tensor, windows: Sequence[Window], include: bool) -> Tensor:
        kernel, stride, pad, *_ = map(list, zip(*windows, strict=True))
        return _AVG[len(windows) - 1](x, kernel, stride, pad, False, include)  # type: ignore[no-any-return]


def _pooled(functions: Any, x: Tensor, windows: Sequence[Window]) -> Any:
    kernel, stride, pad, _, dilation = map(list, zip(*windows, strict=True))
    return functions[len(windows) - 1](x, kernel, stride, pad, dilation)


def _opset() -> int | None:
    """The opset that the TorchScript exporter writes; PyTorch keeps it in a private module, which moves."""
    try:
        from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    except ImportError:
        try:
            from torch.onnx._globals import GLOBALS  # type: ignore[import-not-found, no-redef]
        except ImportError:
            return None
    return int(GLOBALS.export_onnx_opset_version)


def _job(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any, **more: Any) -> Job:
    sizes = tuple(x.shape[a] for a in axes)
    return Job(fn, reduce, tuple(axes), sizes, tuple(windows), NAMES[more.pop("dtype", x.dtype)], **more)


def run(call: Call, x: Tensor) -> Any:
    """A call that the TorchScript exporter traces."""
    job = _job(
        x,
        call.axes,
        call.function,
        call.reduction.name,
        call.windows,
        dtype=call.dtype,
        divisor=call.divisor,
        norm=call.norm,
        indices=call.extra == INDEX64,
    )
    return _lowering.pool(Tensors(call.function, x.device), x, job)


def pool(
    x: Tensor, axes: Any, fn: str, reduce: str, windows: Any, dtype: Any, divisor: int, norm: float
) -> Any:
    """The decomposition of `ndpool::pool`."""
    job = _job(x, axes, fn, reduce, windows, dtype=dtype, divisor=divisor, norm=norm)
    return _lowering.pool(Tensors(fn, x.device), x, job)


def pool_indices(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """The decomposition of `ndpool::pool_indices`."""
    return _lowering.pool(Tensors(fn, x.device), x, _job(x, axes, fn, reduce, windows, indices=True))


def unpool(values: Tensor, indices: Tensor, axes: Any, fn: str, sizes: Any) -> Any:
    """The decomposition of `ndpool::unpool`."""
    g = Tensors(fn, values.device)
    g.require("scatter")
    planes = Planes(g, values, tuple(axes))
    values, indices = planes.enter(values), planes.enter(indices)
    lead = values.shape[:2]
    zeros = torch.zeros((*lead, prod(sizes)), dtype=values.dtype, device=values.device)
    flat = zeros.scatter(2, indices.flatten(2), values.flatten(2))
    return planes.leave(flat.reshape(*lead, *sizes))


def pool_offsets(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """The decomposition of `ndpool::pool_offsets`; its offsets are for a backward pass, which has none."""
    values = _lowering.pool(Tensors(fn, x.device), x, _job(x, axes, fn, reduce, windows))
    return values, torch.zeros_like(values, dtype=torch.uint8)


def fractional(x: Tensor, samples: Any, axes: Any, fn: str, kernel: Any, outs: Any) -> Any:
    """The decomposition of `ndpool::fractional`: none."""
    raise TypeError(f"{fn}: fractional pooling has random windows and is not exported to ONNX")


def register(op: Any, decomposition: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Let exporters decompose an operator.

    Fake tensors with symbolic sizes look for decompositions too, before an operator's own shape function; the
    difference is that nothing records them.
    """
    try:
        from torch._decomp import register_decomposition
        from torch.fx.experimental.proxy_tensor import get_proxy_mode
    except ImportError:  # pragma: no cover
        return

    def decompose(*args: Any) -> Any:
        return fake(*args) if get_proxy_mode() is None else decomposition(*args)

    register_decomposition(getattr(torch.ops.ndpool, op._name).default)(decompose)


def allow_fallback(op: Any) -> None:
    """Let Inductor call an operator that has a decomposition: where CI is set, it refuses to.

    Called while an operator is traced: Inductor is imported by then, if it is to compile it.
    """
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    overload = getattr(torch.ops.ndpool, op._name).default
    if lowering is None or not os.environ.get("CI") or overload in lowering.lowerings:
        return
    try:
        from torch._library.utils import get_layout_constraint_tag

        constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(overload))
    except (ImportError, AttributeError):  # an older PyTorch
        constraint = None
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False)
