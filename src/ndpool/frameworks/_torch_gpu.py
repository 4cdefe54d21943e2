"""The Triton kernels on plain CUDA tensors: the same functions as `_torch_kernels`, which calls them.

Loaded with the first CUDA tensor. Inputs are read where they lie: contiguous, channels-last and most strided
memory as it is, the rest as a packed copy. Everything gathers, or keeps the last of what meets: the same bits
on every run.
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from ndpool import _explain
from ndpool._arguments import wrong_index
from ndpool._native import INDEX64, NO_EXTRA, OFFSET32
from ndpool._triton import scatter
from ndpool._triton.backward import backward
from ndpool._triton.decompose import passes, pieces, steps
from ndpool._triton.forward import forward
from ndpool._triton.launch import MAX, all_of, merged, tables
from ndpool._triton.planes import by_channels
from ndpool.frameworks._torch_kernels import _EXTRA_DTYPES, FORMATS, empty, is_channels_last, real, with_sizes
from ndpool.geometry import Plan, round_bfloat16
from ndpool.geometry import fractional as fractional_plan
from ndpool.reductions import REDUCTIONS, Reduction

SHORT = 2**20  # elements whose windows of medium size are sooner added up than a second kernel is started


def pool(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int = 0,
    norm: float = 0.0,
    kind: int = NO_EXTRA,
    channels_last: bool | None = None,
    into: tuple[Tensor, ...] = (),
) -> Any:
    """Values, and with a `kind` also where in its window or its plane each was found.

    Memory to write `into` is taken where it is laid out as a result would be.
    """
    if reduction.norm:
        if norm != 2 or not x.is_floating_point() or plan.taps > 24:
            return _norm(x, axes, plan, dtype, divisor, norm, channels_last)
        divisor = divisor or plan.norm_divisor
    elif plan.taps > 24:
        if channels_last is None:
            channels_last = is_channels_last(x.shape, x.stride(), len(axes))
        found = _in_passes(x, axes, plan, reduction, dtype, divisor, kind, channels_last)
        if found is not None:
            return found
    aligned = x.data_ptr() % 16 == 0
    memory = (x.shape, x.stride(), x.dtype, dtype, x.device)
    # Windows of single planes serve one call alone.
    shared = plan.axes[0].starts is None or plan.axes[0].starts.ndim == 1
    found = forward_of if shared else forward_of.__wrapped__
    outs, channels_last, run = found(plan, axes, *memory, reduction, kind, divisor, channels_last, aligned)
    if not all(_laid_out(target, channels_last, len(axes)) for target in into):
        into = ()
    y = into[0] if into else empty(x, outs, dtype, channels_last, len(axes))
    extra = y
    if kind != NO_EXTRA:
        extra = into[1] if into else empty(x, outs, _EXTRA_DTYPES[kind], channels_last, len(axes))
    if run is not None:
        _run(run, *map(_plain, (real(x), y, extra)))
    elif y.numel():
        # Too many axes that do not follow each other in memory: a copy where they do, the pooled ones last.
        order, last = _pooled_last(x.dim(), axes)
        how = (divisor, norm, kind, False)
        if _explain.recording:
            _explain.note_copy("input: packed, pooled axes last; result: copied to its layout")
        found = pool(x.permute(order).contiguous(), last, plan, reduction, dtype, *how)
        for to, values in zip((y, extra), found if kind != NO_EXTRA else (found,), strict=False):
            to.permute(order).copy_(values)
    return y if kind == NO_EXTRA else (y, extra)


def _pooled_last(ndim: int, axes: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """The axes with the pooled ones behind all others, and the places of these."""
    order = [a for a in range(ndim) if a not in axes] + list(axes)
    return order, tuple(range(ndim - len(axes), ndim))


def _laid_out(target: Tensor, channels_last: bool, n_axes: int) -> bool:
    """Whether the memory is as that of a new result."""
    if channels_last and n_axes == target.dim() - 1:
        target = target.unsqueeze(0)
    form = FORMATS.get(target.dim()) if channels_last else torch.contiguous_format
    return form is not None and target.is_contiguous(memory_format=form) and target.data_ptr() % 16 == 0


def _in_passes(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    kind: int,
    channels_last: bool,
) -> Any:
    """The same by several kernels, where one would take longer; None where it would not."""
    if two := _passes(x, axes, plan, reduction, dtype, divisor, kind, channels_last):
        for over, part, values in two:
            x = pool(x, over, part, reduction, values, channels_last=channels_last)
        return x
    if x.is_floating_point() and (cut := _pieces(x, axes, plan, channels_last)):
        n_axes = len(axes)
        x, axes, plan = _rows_of_planes(x, axes, plan)
        found = _in_pieces(x, axes, plan, *cut, reduction, dtype, divisor, kind, channels_last)
        if len(axes) == n_axes:
            return found
        one = (1,) * n_axes
        if kind == NO_EXTRA:
            return found.unflatten(axes[0], one)
        return tuple(t.unflatten(axes[0], one) for t in found)
    return None


def _rows_of_planes(x: Tensor, axes: tuple[int, ...], plan: Plan) -> tuple[Tensor, tuple[int, ...], Plan]:
    """The same with one pooled axis where windows are whole planes of contiguous memory."""
    ordered = x.stride(axes[-1]) == 1 and all(b == a + 1 for a, b in pairwise(axes))
    one, merged_axes, *_ = merged(plan, axes, x.shape, x.stride(), x.shape, x.stride())
    if not ordered or len(merged_axes) == len(axes):
        return x, axes, plan
    return x.flatten(axes[0], axes[-1]), merged_axes, one


def _passes(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    kind: int,
    channels_last: bool,
) -> Any:
    """Axes, plan and dtype of the values of two passes that replace one, if any."""
    if kind != NO_EXTRA or not (reduction.picks or (x.is_floating_point() and not divisor)):
        return None
    parts = _parts(x, axes, plan, reduction)
    if parts is None:
        return None
    wide = dtype if reduction.picks or dtype.itemsize > 2 else torch.float32
    if len(plan.axes) == 1:
        return (axes, parts[0], wide), (axes, parts[1], dtype)
    # Rows first: what is first along a row and then among rows is first of all.
    return (axes[-1:], parts[1], wide), (axes[:-1], parts[0], dtype)


def _parts(x: Tensor, axes: tuple[int, ...], plan: Plan, reduction: Reduction) -> tuple[Plan, Plan] | None:
    """Two passes that replace one, if any."""
    if not reduction.picks and x.numel() <= SHORT and max(a.kernel for a in plan.axes) <= 16:
        return None
    return passes(plan, _long(x, axes, plan, reduction)) or (steps(plan) if reduction.picks else None)


def _long(x: Tensor, axes: tuple[int, ...], plan: Plan, reduction: Reduction) -> int:
    """The length of windows from which two passes pay: the later, the less a thread does for each element."""
    narrow, rows = x.itemsize < 4, x.stride(axes[-1]) == 1
    even = x.shape[axes[-1]] % 4 == 0  # or rows begin anywhere
    if prod(a.kernel for a in plan.axes[:-2]) > 1:
        return (6 if even else 5) if rows else 4  # longer ones are too much for a strip
    if not reduction.picks:
        return 9
    if reduction.op != MAX or not x.is_floating_point() or x.itemsize > 4:
        return (7 if narrow else 9) if rows else 5 if narrow else 7
    if not rows:
        return 6 if narrow else 8
    return 9 if not even else 10 if narrow else 12


def kernels_of(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    kind: int,
    channels_last: bool,
    device: torch.device,
) -> list[tuple[Any, torch.dtype, Any]] | None:
    """The kernels that make a call, if they only follow each other; what each writes comes first."""
    if plan.taps > 24:
        made: list[Any] = []
        for over, part, values in _passes(x, axes, plan, reduction, dtype, 0, kind, channels_last) or ():
            found = kernels_of(x, over, part, reduction, values, kind, channels_last, device)
            if found is None:
                return None
            made += found
            x = empty(torch.empty(0, device="meta"), found[-1][0], values, channels_last, len(axes))
        if made or (x.is_floating_point() and _pieces(x, axes, plan, channels_last)):
            return made or None
    memory = (x.shape, x.stride(), x.dtype, dtype, device)
    outs, _, run = forward_of(plan, axes, *memory, reduction, kind, 0, channels_last, True)
    return None if run is None else [(outs, dtype, run)]


def _pieces(x: Tensor, axes: tuple[int, ...], plan: Plan, channels_last: bool) -> tuple[Plan, int] | None:
    """How windows are cut that are too few for a device, if they are; a block of channels is one program."""
    if channels_last and by_channels(plan, axes, tuple(x.shape), x.stride()):
        return None
    n_planes = x.numel() // max(1, prod(plan.sizes))
    _, _, plan = _rows_of_planes(x, axes, plan)
    return pieces(plan, -(-n_planes // 128) if channels_last else n_planes, channels_last)


def _in_pieces(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    cut: Plan,
    n: int,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    kind: int,
    channels_last: bool,
) -> Any:
    """Windows too few for a device: pieces of them first, then each window from its pieces."""
    a, whole = axes[0], all_of(n)
    y = empty(x, with_sizes(x.shape, axes, plan.out), dtype, channels_last, len(axes))
    if not reduction.picks:
        wide = torch.promote_types(dtype, torch.float32)
        parts = pool(x, axes, cut, REDUCTIONS["sum"], wide, channels_last=channels_last)
        parts = parts.unflatten(a, (-1, n))
        sums = pool(parts, (a + 1,), whole, REDUCTIONS["sum"], wide, channels_last=False).squeeze(a + 1)
        return y.copy_(sums / (divisor or _shares(plan, axes, x)) if reduction.divides else sums)
    parts, places = pool(x, axes, cut, reduction, dtype, kind=INDEX64, channels_last=channels_last)
    parts = parts.unflatten(a, (-1, n))
    best, which = pool(parts, (a + 1,), whole, reduction, dtype, kind=OFFSET32, channels_last=False)
    y.copy_(best.squeeze(a + 1))
    if kind == NO_EXTRA:
        return y
    index = places.unflatten(a, (-1, n)).gather(a + 1, which.long()).squeeze(a + 1)
    extra = empty(x, y.shape, _EXTRA_DTYPES[kind], channels_last, len(axes))
    return y, extra.copy_(index if kind == INDEX64 else _offsets(plan, index, axes))


def _along(values: Tensor, axis: int, n: int) -> Tensor:
    return values.view([-1 if i == axis else 1 for i in range(n)])


def _shares(plan: Plan, axes: tuple[int, ...], x: Tensor) -> Tensor:
    """How many elements each window has; none is padding."""
    found = torch.ones((), dtype=torch.int64, device=x.device)
    for axis, a in zip(plan.axes, axes, strict=True):
        found = found * _along(tables(axis, x.device)[1].long(), a, x.dim())
    return found


def _offsets(plan: Plan, index: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Places in the window from places in the plane."""
    rest, found, pitch = index, torch.zeros_like(index), 1
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        first = _along(tables(axis, index.device)[0].long(), a, index.dim())
        found = found + (rest % axis.size - first) * pitch
        rest, pitch = rest // axis.size, pitch * axis.kernel
    return found


def _plain(x: Tensor) -> Tensor:
    """The tensor as Triton takes it: truth values are bytes."""
    return x.view(torch.uint8) if x.dtype is torch.bool else x


@lru_cache(1024)
def forward_of(
    plan: Plan,
    axes: tuple[int, ...],
    shape: torch.Size,
    stride: tuple[int, ...],
    dtype: torch.dtype,
    result: torch.dtype,
    device: torch.device,
    reduction: Reduction,
    kind: int,
    divisor: int,
    channels_last: bool | None,
    aligned: bool,
) -> Any:
    """Shape and format of the result, and what writes it: None where it is empty or needs a packed input."""
    if channels_last is None:
        channels_last = is_channels_last(shape, stride, len(axes))
    outs = with_sizes(shape, axes, plan.out)
    if prod(outs) == 0:
        return outs, channels_last, None
    like = empty(torch.empty(0, device="meta"), outs, result, channels_last, len(axes))
    own, written = (torch.uint8 if t is torch.bool else t for t in (dtype, result))
    memory = (tuple(shape), stride, outs, like.stride(), own, written, device)
    how = (reduction.op, kind, reduction.divides, divisor, aligned)
    return outs, channels_last, forward(plan, axes, *memory, *how)


def _run(run: Any, x: Tensor, *others: Tensor) -> None:
    """The kernel on the tensors' device, which need not be the current one."""
    if x.is_cpu or x.device.index == torch._C._cuda_getDevice():
        run(x, *others)
    else:
        with torch.cuda.device(x.device):
            run(x, *others)


def _norm(
    x: Tensor,
    axes: Any,
    plan: Plan,
    dtype: torch.dtype,
    divisor: int,
    norm: float,
    channels_last: bool | None,
) -> Tensor:
    """Power means other than small windows' of 2: PyTorch's powers around a sum, in float32 or better."""
    whole = not x.dtype.is_floating_point or torch.float64 in (x.dtype, dtype)
    wide = torch.float64 if whole else torch.float32
    divisor = divisor or plan.norm_divisor
    powers = _power(real(x).to(wide), norm)
    means = pool(powers, axes, plan, REDUCTIONS["avg"], wide, divisor, channels_last=channels_last)
    return _power(means * plan.taps, 1 / norm).to(dtype)


def _power(x: Tensor, norm: float) -> Tensor:
    return x * x if norm == 2 else x.sqrt() if norm == 0.5 else x.pow(norm)


def spread(
    grad: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    channels_last: bool,
) -> Tensor:
    """The adjoint of sums and averages."""
    return _spread(grad, None, axes, plan, reduction, divisor, channels_last)


def spread_picks(
    grad: Tensor,
    offsets: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    channels_last: bool,
) -> Tensor:
    """The gradient of what was picked: each output's, where its value came from."""
    if grad.stride() != offsets.stride():
        if _explain.recording:
            _explain.note_copy("gradient: laid out as the offsets")
        grad = torch.empty_like(offsets, dtype=grad.dtype).copy_(grad)
        if grad.stride() != offsets.stride():
            grad, offsets = grad.contiguous(), offsets.contiguous()
    return _spread(grad, offsets, axes, plan, reduction, 0, channels_last)


def _spread(
    grad: Tensor,
    offsets: Tensor | None,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    divisor: int,
    channels_last: bool,
) -> Tensor:
    grad = real(grad)
    result = empty(grad, with_sizes(grad.shape, axes, plan.sizes), grad.dtype, channels_last, len(axes))
    if grad.numel() == 0 or result.numel() == 0:
        return result.zero_()

    def done(grad: Tensor, offsets: Tensor | None) -> bool:
        aligned = (grad.data_ptr() | result.data_ptr()) % 16 == 0
        if offsets is not None:
            aligned = aligned and offsets.data_ptr() % 16 == 0
        memory = (result.shape, result.stride(), grad.shape, grad.stride(), grad.dtype, grad.device)
        how = (offsets is not None, reduction.divides, divisor, aligned)
        run = backward(plan, axes, *memory, *how)
        if run is not None:
            _run(run, grad, grad if offsets is None else offsets, result)
        return run is not None

    if done(grad, offsets):
        return result
    if not grad.is_contiguous():
        if _explain.recording:
            _explain.note_copy("gradient: packed")
        if done(grad.contiguous(), None if offsets is None else offsets.contiguous()):
            return result
    # Too many leading axes between the pooled ones, in the result itself: a packed one, the pooled axes last.
    if _explain.recording:
        _explain.note_copy("gradient: packed, pooled axes last; result: copied to its layout")
    order, last = _pooled_last(grad.dim(), axes)
    taken = grad.permute(order).contiguous(), None if offsets is None else offsets.permute(order).contiguous()
    result.permute(order).copy_(_spread(*taken, last, plan, reduction, divisor, False))
    return result


def _positions(plan: Plan, offsets: Tensor, axes: tuple[int, ...]) -> Tensor:
    """`geometry.positions` on the device: -1 where a window holds nothing."""
    rest = offsets.to(torch.int64)
    found, inside, pitch = torch.zeros_like(rest), None, 1
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        front, kernel = axis.tap_range()
        tap, rest = rest % kernel, rest // kernel
        if axis.regular:
            first = torch.arange(axis.out, device=rest.device) * axis.stride + axis.origin
        else:
            first = tables(axis, rest.device)[0].to(torch.int64)
        place = _along(first, a, rest.dim()) + (front + tap) * axis.step
        ok = (place >= 0) & (place < axis.size)
        inside = ok if inside is None else inside & ok
        found, pitch = found + place * pitch, pitch * axis.size
    return torch.where(inside & (rest == 0), found, -1)  # type: ignore[operator]


def gather(
    x: Tensor,
    offsets: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    channels_last: bool,
) -> Tensor:
    """The elements that were picked, from another array of the same shape; 0 where a window held nothing."""
    result = empty(x, offsets.shape, x.dtype, channels_last, len(axes))
    if result.numel():
        order, (n_lead, *_) = _pooled_last(x.dim(), axes)
        flat = real(x).permute(order).flatten(n_lead)
        at = _positions(plan, offsets, axes).permute(order).flatten(n_lead)
        taken = flat.gather(-1, at.clamp(min=0)).masked_fill_(at < 0, 0)
        result.permute(order).copy_(taken.view(*flat.shape[:-1], *plan.out))
    return result


def unpool(values: Tensor, indices: Tensor, axes: tuple[int, ...], fn: str, sizes: tuple[int, ...]) -> Tensor:
    """Zeros with every value at its index; of repeated indices the last in row-major order stays.

    Looking for an index out of range waits for the device. It is left out while a graph is captured and where
    the environment says NDPOOL_TRUST_INDICES=1; then values with such an index go nowhere.
    """
    shape = with_sizes(values.shape, axes, sizes)
    channels_last = is_channels_last(values.shape, values.stride(), len(axes))
    limit = prod(sizes)
    captured = values.is_cuda and torch.cuda.is_current_stream_capturing()
    if values.numel() and not captured and os.environ.get("NDPOOL_TRUST_INDICES") != "1":
        wrong = (indices < 0) | (indices >= limit)
        if wrong.any():
            raise wrong_index(fn, int(indices[wrong][0]), sizes)
    result = empty(values, shape, values.dtype, channels_last, len(axes))
    order, (n_lead, *_) = _pooled_last(values.dim(), axes)
    narrow, places = (t.permute(order).flatten(n_lead) for t in (real(values), indices))
    lead = narrow.shape[:-1]
    found = scatter.unpool(narrow.reshape(-1, narrow.shape[-1]), places.reshape(-1, narrow.shape[-1]), limit)
    result.permute(order).copy_(found.view(*lead, *sizes))
    return result


def fractional(
    x: Tensor,
    samples: Tensor,
    axes: tuple[int, ...],
    fn: str,
    kernel: tuple[int, ...],
    outs: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Maxima over windows at the places that samples give, one set per plane, and where they were found."""
    flat = samples.reshape(-1, len(axes)).cpu()
    narrow = round_bfloat16 if flat.dtype is torch.bfloat16 else None
    places = (flat.float() if narrow else flat).numpy()
    plan = fractional_plan(fn, tuple(x.shape[a] for a in axes), places, kernel, outs, None, narrow)
    return pool(x, axes, plan, REDUCTIONS["max"], x.dtype, kind=INDEX64)  # type: ignore[no-any-return]
