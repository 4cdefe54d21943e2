"""CUDA tensors: the Triton kernels, with the same functions as `cpu`. No derivatives.

Loaded with the first CUDA tensor. Contiguous, channels-last and most strided tensors are read in place, the
rest through a packed copy. Every result is the same on every run: kernels gather, or keep the last of several
values for one index.
"""

from __future__ import annotations

import os
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ndpool import _record
from ndpool._call import INDEX64, NO_EXTRA, OFFSET32, Call, Unpool
from ndpool._plan import AxisPlan, Plan, positions, with_sizes
from ndpool._policy import wrong_index
from ndpool._triton import tuning
from ndpool._triton import unpool as unpooling
from ndpool._triton.backward import backward
from ndpool._triton.decompose import passes, pieces, steps
from ndpool._triton.forward import forward
from ndpool._triton.launch import MAX, SUM, all_of, tables
from ndpool._triton.memory import Arrays
from ndpool._triton.planes import kind_of_planes
from ndpool.frameworks.torch.tensors import (
    EXTRA_DTYPES,
    FORMATS,
    channels_last,
    empty,
    is_channels_last,
    materialized,
    pooled_last,
)
from ndpool.reductions import REDUCTIONS, Reduction

_ROW = 64  # elements of a row as which flat memory is read: of longer ones a thread reads two vectors


def pool(call: Call, x: Tensor, last: bool | None = None, targets: tuple[Tensor, ...] = ()) -> Any:
    """Values of `call.dtype`, and the extra tensor where one is asked for; `last`: channels-last or not.

    Targets are written to where they are laid out as a new result would be.
    """
    axes, plan = call.axes, call.plan
    if call.reduction.norm:
        if not x.is_floating_point() or not _fuses_norm(call):
            return _norm(call, x, last)
        if two := _norm_passes(call):
            last = channels_last(x, axes) if last is None else last
            return pool(two[1], pool(two[0], x, last), last)
    elif plan.taps > tuning.FUSED_TAPS:
        if last is None:
            last = channels_last(x, axes)
        found = _in_passes(call, x, last)
        if found is not None:
            return found
    launch = _launch(call, x, last)
    last = launch.last
    if not all(_laid_out(target, last, len(axes)) for target in targets):
        targets = ()
    y = targets[0] if targets else empty(x, launch.outs, call.dtype, last, len(axes))
    extra = y
    if call.extra != NO_EXTRA:
        extra = targets[1] if targets else empty(x, launch.outs, EXTRA_DTYPES[call.extra], last, len(axes))
    if launch.run is not None:
        _on_device(launch.run, *map(_bytes, (materialized(x), y, extra)))
    elif y.numel():
        # Too many axes that are not adjacent in memory: a packed copy, the pooled ones last.
        order, at = pooled_last(x.dim(), axes)
        if _record.recording:
            _record.note_copy("input: packed, pooled axes last; result: copied to its layout")
        found = pool(call._replace(axes=at), x.permute(order).contiguous(), False)
        for target, values in zip((y, extra), found if call.extra != NO_EXTRA else (found,), strict=False):
            target.permute(order).copy_(values)
    return y if call.extra == NO_EXTRA else (y, extra)


def _laid_out(target: Tensor, last: bool, n_axes: int) -> bool:
    """Whether memory is laid out as that of a new result."""
    if last and n_axes == target.dim() - 1:
        target = target.unsqueeze(0)
    form = FORMATS.get(target.dim()) if last else torch.contiguous_format
    return form is not None and target.is_contiguous(memory_format=form) and target.data_ptr() % 16 == 0


class Launched:
    """Shape and format of a result, and its kernel; None where it is empty or needs a packed input."""

    __slots__ = ("last", "outs", "run")

    def __init__(self, outs: tuple[int, ...], last: bool, run: Any) -> None:
        self.outs, self.last, self.run = outs, last, run


def _launch(call: Call, x: Tensor, last: bool | None) -> Launched:
    memory = (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16 == 0)
    starts = call.plan.axes[0].starts
    if starts is not None and starts.ndim > 1:  # the windows of every plane: a plan for one call alone
        return _launched.__wrapped__(call, *memory, last)
    return _launched(call, *memory, last)


@lru_cache(1024)
def _launched(
    call: Call,
    shape: torch.Size,
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    aligned: bool,
    last: bool | None,
) -> Launched:
    axes, plan, result = call.axes, call.plan, call.dtype
    if last is None:
        last = is_channels_last(shape, stride, len(axes))
    outs = with_sizes(shape, axes, plan.out)
    if prod(outs) == 0:
        return Launched(outs, last, None)
    like = empty(torch.empty(0, device="meta"), outs, result, last, len(axes))
    own, written = (torch.uint8 if t is torch.bool else t for t in (dtype, result))
    arrays = Arrays(tuple(shape), stride, outs, like.stride(), own, written, device, aligned)
    how = (call.reduction.op, call.extra, call.reduction.divides, call.divisor)
    return Launched(outs, last, forward(plan, axes, arrays, *how))


def _in_passes(call: Call, x: Tensor, last: bool) -> Any:
    """The same by several kernels, where one would take longer; None where it would not."""
    if two := _passes(call, x):
        for part in two:
            x = pool(part, x, last)
        return x
    if x.is_floating_point() and (cut := _pieces(call, x, last)):
        return _in_pieces(call, x, *cut, last)
    return None


def _passes(call: Call, x: Tensor) -> tuple[Call, Call] | None:
    """Two calls that replace one, if any."""
    reduction, axes, dtype = call.reduction, call.axes, call.dtype
    one_divisor = x.is_floating_point() and not call.divisor
    if call.extra != NO_EXTRA or not (reduction.has_index or one_divisor):
        return None
    parts = _parts(call, x)
    if parts is None:
        return None
    wide = dtype if reduction.has_index or dtype.itemsize > 2 else torch.float32
    if len(call.plan.axes) == 1:
        return call._replace(plan=parts[0], dtype=wide), call._replace(plan=parts[1])
    # Rows first: the first along a row and then among rows is the first of all.
    return call._replace(axes=axes[-1:], plan=parts[1], dtype=wide), call._replace(
        axes=axes[:-1], plan=parts[0]
    )


def _parts(call: Call, x: Tensor) -> tuple[Plan, Plan] | None:
    """The plans of two passes that replace one, if any."""
    plan, has_index = call.plan, call.reduction.has_index
    if not has_index and x.numel() <= tuning.SHORT and max(a.kernel for a in plan.axes) <= 16:
        return None
    return passes(plan, _long(call, x)) or (steps(plan) if has_index else None)


def _long(call: Call, x: Tensor) -> int:
    """The window length from which two passes pay: longer, the less work a thread has per element."""
    reduction: Reduction = call.reduction
    narrow, rows = x.itemsize < 4, x.stride(call.axes[-1]) == 1
    even = x.shape[call.axes[-1]] % 4 == 0  # otherwise rows begin unaligned
    if prod(a.kernel for a in call.plan.axes[:-2]) > 1:
        return (6 if even else 5) if rows else 4  # longer ones exceed a strip
    if not reduction.has_index:
        return 9
    if reduction.op != MAX or not x.is_floating_point() or x.itemsize > 4:
        return (7 if narrow else 9) if rows else 5 if narrow else 7
    if not rows:
        return 6 if narrow else 8
    return 9 if not even else 10 if narrow else 12


def launches(call: Call, x: Tensor, last: bool, device: torch.device) -> list[Any] | None:
    """(shape, dtype, kernel) of each kernel of a call, if they simply follow one another."""
    if call.reduction.norm and not _fuses_norm(call):
        return None
    if call.plan.taps > tuning.FUSED_TAPS:
        made: list[Any] = []
        for part in (_norm_passes(call) if call.reduction.norm else _passes(call, x)) or ():
            found = launches(part, x, last, device)
            if found is None:
                return None
            made += found
            x = empty(torch.empty(0, device="meta"), found[-1][0], part.dtype, last, len(call.axes))
        if made or (x.is_floating_point() and not call.reduction.norm and _pieces(call, x, last)):
            return made or None
    launch = _launched(call, x.shape, x.stride(), x.dtype, device, True, last)
    return None if launch.run is None else [(launch.outs, call.dtype, launch.run)]


def _pieces(call: Call, x: Tensor, last: bool) -> tuple[Plan, int] | None:
    """The plan of windows cut into pieces, and their number, where windows are too few for a device."""
    kind = kind_of_planes(call.plan, call.axes, tuple(x.shape), x.stride())
    if kind == "contiguous" or (last and kind):
        return None
    n_planes = x.numel() // max(1, prod(call.plan.sizes))
    return pieces(call.plan, -(-n_planes // 128) if last else n_planes, last)


def _in_pieces(call: Call, x: Tensor, cut: Plan, n: int, last: bool) -> Any:
    """Windows too few for a device: pieces of them first, then each window from its pieces."""
    axes, plan, dtype, reduction = call.axes, call.plan, call.dtype, call.reduction
    a = axes[0]
    y = empty(x, with_sizes(x.shape, axes, plan.out), dtype, last, len(axes))
    again = call._replace(axes=(a + 1,), plan=all_of(n), divisor=0)
    if not reduction.has_index:
        wide = torch.promote_types(dtype, torch.float32)
        sums = call._replace(reduction=REDUCTIONS["sum"], dtype=wide, divisor=0)
        parts = pool(sums._replace(plan=cut), x, last).unflatten(a, (-1, n))
        total = pool(sums._replace(axes=again.axes, plan=again.plan), parts, False).squeeze(a + 1)
        return y.copy_(total / (call.divisor or _shares(plan, axes, x)) if reduction.divides else total)
    parts, places = pool(call._replace(plan=cut, extra=INDEX64), x, last)
    parts = parts.unflatten(a, (-1, n))
    best, which = pool(again._replace(extra=OFFSET32), parts, False)
    y.copy_(best.squeeze(a + 1))
    if call.extra == NO_EXTRA:
        return y
    index = places.unflatten(a, (-1, n)).gather(a + 1, which.long()).squeeze(a + 1)
    extra = empty(x, y.shape, EXTRA_DTYPES[call.extra], last, len(axes))
    return y, extra.copy_(index if call.extra == INDEX64 else _offsets(plan, index, axes))


def _along(values: Tensor, axis: int, n: int) -> Tensor:
    return values.view([-1 if i == axis else 1 for i in range(n)])


def _shares(plan: Plan, axes: tuple[int, ...], x: Tensor) -> Tensor:
    """The number of elements of each window, none of which is padding."""
    found = torch.ones((), dtype=torch.int64, device=x.device)
    for axis, a in zip(plan.axes, axes, strict=True):
        found = found * _along(tables(axis, x.device)[1].long(), a, x.dim())
    return found


def _offsets(plan: Plan, index: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Offsets in the window from indices in the plane."""
    rest, found, pitch = index, torch.zeros_like(index), 1
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        first = _along(tables(axis, index.device)[0].long(), a, index.dim())
        found = found + (rest % axis.size - first) * pitch
        rest, pitch = rest // axis.size, pitch * axis.kernel
    return found


def _bytes(x: Tensor) -> Tensor:
    """The tensor as Triton takes it: bool as bytes."""
    return x.view(torch.uint8) if x.dtype is torch.bool else x


def _on_device(run: Any, x: Tensor, *others: Tensor) -> None:
    """Run a kernel on the device of its tensors, which need not be the current one."""
    if x.is_cpu or x.device.index == torch._C._cuda_getDevice():
        run(x, *others)
    else:
        with torch.cuda.device(x.device):
            run(x, *others)


def _norm(call: Call, x: Tensor, last: bool | None) -> Tensor:
    """Lp pooling that no kernel fuses: PyTorch's powers around an average, in float32 or better."""
    plan, norm = call.plan, call.norm
    double = not x.dtype.is_floating_point or torch.float64 in (x.dtype, call.dtype)
    wide = torch.float64 if double else torch.float32
    powers = _power(materialized(x).to(wide), norm)
    mean = call._replace(reduction=REDUCTIONS["avg"], dtype=wide, norm=0.0)
    return _power(pool(mean, powers, last) * plan.taps, 1 / norm).to(call.dtype)


def _fuses_norm(call: Call) -> bool:
    """Whether kernels of their own compute Lp pooling: not other norms than 2, nor few huge windows."""
    return call.norm == 2 and (call.plan.taps <= tuning.NORM_TAPS or _norm_passes(call) is not None)


def _norm_passes(call: Call) -> tuple[Call, Call] | None:
    """Two calls that replace one, if any: the norm of the norms along the last axis."""
    parts = passes(call.plan, tuning.NORM_PASSES) if call.plan.taps > tuning.FUSED_TAPS else None
    if parts is None:
        return None
    rows, columns = (call._replace(plan=p, divisor=p.taps if call.divisor else 0) for p in parts[::-1])
    wide = torch.promote_types(call.dtype, torch.float32)
    return rows._replace(axes=call.axes[-1:], dtype=wide), columns._replace(axes=call.axes[:-1])


def _power(x: Tensor, norm: float) -> Tensor:
    return x * x if norm == 2 else x.sqrt() if norm == 0.5 else x.pow(norm)


def sum_backward(call: Call, grad: Tensor, last: bool) -> Tensor:
    """The adjoint of sums and averages."""
    return _backward(call, grad, None, last)


def max_backward(call: Call, grad: Tensor, offsets: Tensor, last: bool) -> Tensor:
    """The gradient of max and min pooling, gathered by offsets."""
    if grad.stride() != offsets.stride():
        if _record.recording:
            _record.note_copy("gradient: laid out as the offsets")
        grad = torch.empty_like(offsets, dtype=grad.dtype).copy_(grad)
        if grad.stride() != offsets.stride():
            grad, offsets = grad.contiguous(), offsets.contiguous()
    return _backward(call, grad, offsets, last)


def backward_launch(
    call: Call, grad: Tensor, result: Tensor, has_index: bool, aligned: bool, scaled: int = 0
) -> Any:
    """The kernel that writes the gradient `result` of the input, or None if `grad` must be packed first."""
    memory = (result.shape, result.stride(), grad.shape, grad.stride())
    arrays = Arrays(*memory, grad.dtype, grad.dtype, grad.device, aligned)
    divisor = 0 if has_index else call.divisor
    return backward(call.plan, call.axes, arrays, has_index, call.reduction.divides, divisor, scaled)


def _backward(call: Call, grad: Tensor, offsets: Tensor | None, last: bool) -> Tensor:
    axes, plan = call.axes, call.plan
    has_index = offsets is not None
    grad = materialized(grad)
    result = empty(grad, with_sizes(grad.shape, axes, plan.sizes), grad.dtype, last, len(axes))
    if grad.numel() == 0 or result.numel() == 0:
        return result.zero_()

    def done(grad: Tensor, offsets: Tensor | None) -> bool:
        aligned = (grad.data_ptr() | result.data_ptr()) % 16 == 0
        if offsets is not None:
            aligned = aligned and offsets.data_ptr() % 16 == 0
        run = backward_launch(call, grad, result, has_index, aligned)
        if run is not None:
            _on_device(run, grad, grad if offsets is None else offsets, result)
        return run is not None

    if done(grad, offsets):
        return result
    if not grad.is_contiguous():
        if _record.recording:
            _record.note_copy("gradient: packed")
        if done(grad.contiguous(), None if offsets is None else offsets.contiguous()):
            return result
    # Too many leading axes between the pooled ones, in the result itself: a packed one, the pooled axes last.
    if _record.recording:
        _record.note_copy("gradient: packed, pooled axes last; result: copied to its layout")
    order, at = pooled_last(grad.dim(), axes)
    packed = (
        grad.permute(order).contiguous(),
        None if offsets is None else offsets.permute(order).contiguous(),
    )
    result.permute(order).copy_(_backward(call._replace(axes=at), *packed, False))
    return result


def norm_backward(call: Call, grad: Tensor, x: Tensor, y: Tensor, taps: int, last: bool) -> Tensor | None:
    """The gradient of an L2 norm: the input times the sum of grad / y over the windows that contain it.

    `call` is the sum or average inside the norm. None for other norms.
    """
    if call.norm != 2:
        return None
    call = call._replace(norm=0.0)
    grad, x = materialized(grad), materialized(x)
    shares = _quotient(grad * taps if taps > 1 else grad, y)
    result = empty(x, x.shape, shares.dtype, last, len(call.axes))
    fits = result.numel() and x.stride() == result.stride() and x.dtype is result.dtype
    if fits and (x.data_ptr() | shares.data_ptr() | result.data_ptr()) % 16 == 0:
        run = backward_launch(call, shares, result, has_index=False, aligned=True, scaled=1)
        if run is not None:
            _on_device(run, shares, x, result)
            return result
    return _backward(call, shares, None, last).mul_(x)


def _quotient(grad: Tensor, y: Tensor) -> Tensor:
    """grad / y, and 0 where y is 0, laid out as y."""
    result, n = torch.empty_like(y), y.numel()
    gapless = sum((size - 1) * step for size, step in zip(y.shape, y.stride(), strict=True)) + 1 == n
    if not n or not gapless or result.stride() != y.stride():
        zero = y == 0
        return torch.where(zero, 0, grad / torch.where(zero, 1, y))
    if grad.stride() != y.stride():
        grad = torch.empty_like(y).copy_(grad)
    aligned = (grad.data_ptr() | y.data_ptr() | result.data_ptr()) % 16 == 0
    _on_device(_quotient_launch(n, y.dtype, y.device, aligned), grad, result, y)
    return result


@lru_cache(1024)
def _quotient_launch(n: int, dtype: torch.dtype, device: torch.device, aligned: bool) -> Any:
    """Sums over windows of one element, divided by an array."""
    row = _ROW if n % _ROW == 0 else n
    memory = ((n // row, row), (row, 1))
    arrays = Arrays(*memory, *memory, dtype, dtype, device, aligned)
    single = Plan([AxisPlan(row, row, 1, 1, 1, 0, (0, row))])
    run: Any = forward(single, (1,), arrays, SUM, NO_EXTRA, divides=False, divisor=0, scaled=2)
    run.direction = "backward"
    return run


def gather(call: Call, x: Tensor, offsets: Tensor, last: bool) -> Tensor:
    """The elements that offsets stand for, of any tensor of the input's shape; 0 for an empty window."""
    result = empty(x, offsets.shape, x.dtype, last, len(call.axes))
    if result.numel():
        order, (n_lead, *_) = pooled_last(x.dim(), call.axes)
        flat = materialized(x).permute(order).flatten(n_lead)
        found = positions(call.plan, offsets.long(), call.axes, lambda t: torch.tensor(t, device=x.device))
        at = found.permute(order).flatten(n_lead)
        taken = flat.gather(-1, at.clamp(min=0)).masked_fill_(at < 0, 0)
        result.permute(order).copy_(taken.view(*flat.shape[:-1], *call.plan.out))
    return result


def unpool(call: Unpool, values: Tensor, indices: Tensor) -> Tensor:
    """Values at their indices in planes of zeros; of repeated indices the last in row-major order wins.

    Looking for an index out of range waits for the device. It is left out while a graph is captured and with
    NDPOOL_TRUST_INDICES=1 in the environment; values with such an index are then dropped.
    """
    axes, sizes = call.axes, call.sizes
    limit = prod(sizes)
    captured = values.is_cuda and torch.cuda.is_current_stream_capturing()
    if values.numel() and not captured and os.environ.get("NDPOOL_TRUST_INDICES") != "1":
        wrong = (indices < 0) | (indices >= limit)
        if wrong.any():
            raise wrong_index(call.function, int(indices[wrong][0]), sizes)
    shape = with_sizes(values.shape, axes, sizes)
    result = empty(values, shape, values.dtype, channels_last(values, axes), len(axes))
    order, (n_lead, *_) = pooled_last(values.dim(), axes)
    narrow, places = (t.permute(order).flatten(n_lead) for t in (materialized(values), indices))
    lead = narrow.shape[:-1]
    found = unpooling.unpool(
        narrow.reshape(-1, narrow.shape[-1]), places.reshape(-1, narrow.shape[-1]), limit
    )
    result.permute(order).copy_(found.view(*lead, *sizes))
    return result
