"""Regular windows as chains over strided slices: elementwise operations, which XLA fuses into one kernel.

For devices other than the CPU, where `windows` would need several kernels and larger intermediate results.
Small windows are one chain over all of their taps; larger ones go axis by axis. Ties and NaN follow PyTorch's
rules as in `windows`, which has every other plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from ndpool._plan import AxisPlan, Plan
from ndpool.frameworks.jax import windows

_AT_ONCE = 27  # slices of one chain over all axes
_ALONG_ONE = 16  # slices of a chain along one axis

Pairs = Sequence[tuple[AxisPlan, int]]  # axes of a plan, and which axes of the array they are


def fits_forward(plan: Plan) -> bool:
    """Whether windows are few enough slices."""
    return all(_compact(axis) and axis.tap_range()[1] <= _ALONG_ONE for axis in plan.axes)


def fits_backward(plan: Plan) -> bool:
    """Whether each input is in few enough windows, which have no dilation."""
    return all(
        _compact(axis) and (axis.step == 1 or axis.kernel == 1) and _overlap(axis) <= _ALONG_ONE
        for axis in plan.axes
    )


def _compact(axis: AxisPlan) -> bool:
    """Whether all taps, padding included, take little more memory than the input."""
    return axis.regular and axis.end - axis.origin <= 2 * axis.size + 64


def reduces_as_well(plan: Plan) -> bool:
    """Whether sums of gradients are one regular reduction of few taps, for which XLA has a kernel."""
    small = prod(axis.kernel for axis in plan.axes) <= windows.AT_ONCE
    return small and all(axis.stride == 1 for axis in plan.axes)


def extremes_with_offsets(
    x: Array, plan: Plan, axes: Sequence[int], nothing: Any, least: bool
) -> tuple[Array, Array]:
    """The maximum or minimum of each window and its offset; `nothing` is the extreme of no element."""
    pairs = list(zip(plan.axes, axes, strict=True))
    taps = prod(axis.tap_range()[1] for axis in plan.axes)
    # The last axis first: the first along a row and then among rows is the first of all.
    groups = [pairs] if taps <= _AT_ONCE else [[pair] for pair in reversed(pairs)]
    code, width = None, 1
    for group in groups:
        if code is not None:
            x, code = lax.optimization_barrier((x, code))  # otherwise each tap would compute its row again
        x, code = _best(x, code, width, group, nothing, least)
        width *= prod(axis.tap_range()[1] for axis, _ in group)
    assert code is not None
    return x, code


def _best(x: Array, code: Any, width: int, group: Pairs, nothing: Any, least: bool) -> tuple[Array, Array]:
    kernels = [axis.tap_range()[1] for axis, _ in group]
    leads = [_leads(axis) for axis, _ in group]
    padded = _padded(x, group, nothing)
    codes = None if code is None else _padded(code, group, np.zeros((), code.dtype)[()])
    best: Any = None
    found: Any = None
    for number, tap in enumerate(product(*map(range, kernels))):
        element = _tap(padded, group, tap)
        mine: Any = np.int32(number * width)
        mine = jnp.full(element.shape, mine) if codes is None else _tap(codes, group, tap) + mine
        first = _where_first(leads, tap, group, x.ndim)
        if best is None:
            best = element
            none = np.int32(prod(kernels) * width)
            found = mine if first is True else _select(first, mine, none, element.shape)
            continue
        better = lax.lt(element, best) if least else lax.gt(element, best)
        if jnp.issubdtype(x.dtype, jnp.floating):
            better = lax.bitwise_or(better, lax.ne(element, element))
        if first is not False:  # whatever padding was before it
            better = lax.bitwise_or(better, jnp.broadcast_to(first, better.shape))
        best, found = lax.select(better, element, best), lax.select(better, mine, found)
    return best, found


def _select(mask: Any, yes: Any, no: Any, shape: Sequence[int]) -> Array:
    """One of two arrays or numbers, by `lax` alone: `jnp.where` would be a program of its own."""
    return lax.select(*(jnp.broadcast_to(value, shape) for value in (mask, yes, no)))


def _leads(axis: AxisPlan) -> NDArray[np.int64]:
    """The first tap of each window inside the input; of a window without an element none."""
    front, kernel = axis.tap_range()
    starts, counts = axis.windows()
    first = axis.origin + axis.stride * np.arange(axis.out, dtype=np.int64)
    return np.where(counts > 0, (starts - first) // axis.step - front, kernel)


def _where_first(leads: Sequence[NDArray[np.int64]], tap: tuple[int, ...], group: Pairs, ndim: int) -> Any:
    """The windows whose first tap inside the input this is; True or False for all or none."""
    found: Any = True
    for lead, t, (_, a) in zip(leads, tap, group, strict=True):
        own = lead == t
        if own.all():
            continue
        if not own.any():
            return False
        shape = [lead.size if i == a else 1 for i in range(ndim)]
        begin, end = int(own.argmax()), own.size - int(own[::-1].argmax())
        if own[begin:end].all():
            place = lax.broadcasted_iota(np.int32, shape, a)
            mask = (place >= begin) & (place < end)
        else:
            mask = jnp.asarray(own.reshape(shape))
        found = mask if found is True else found & mask
    return found


def _padded(x: Array, group: Pairs, fill: Any) -> Array:
    """The input from the first tap of the first window to the last tap of the last one."""
    pads = [(0, 0, 0)] * x.ndim
    for axis, a in group:
        front, kernel = axis.tap_range()
        origin = axis.origin + front * axis.step
        end = origin + (axis.out - 1) * axis.stride + (kernel - 1) * axis.step + 1
        pads[a] = (-origin, end - axis.size, 0)
    return lax.pad(x, fill, pads) if any(pad != (0, 0, 0) for pad in pads) else x


def _tap(padded: Array, group: Pairs, tap: tuple[int, ...]) -> Array:
    """One tap of all windows."""
    starts, ends, strides = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
    for (axis, a), t in zip(group, tap, strict=True):
        starts[a], strides[a] = t * axis.step, axis.stride
        ends[a] = starts[a] + (axis.out - 1) * axis.stride + 1
    return lax.slice(padded, starts, ends, strides)


def max_backward(wide: Array, offsets: Array, plan: Plan, axes: Sequence[int]) -> Array:
    """Each gradient at the element that its offset stands for, summed in a fixed order."""
    pairs = list(zip(plan.axes, axes, strict=True))
    width = prod(axis.tap_range()[1] for axis in plan.axes)
    code = offsets.astype(np.int32)
    groups = [pairs] if prod(_overlap(axis) for axis in plan.axes) <= _AT_ONCE else [[p] for p in pairs]
    for group in groups:
        width //= prod(axis.tap_range()[1] for axis, _ in group)
        by = np.int32(width)
        tap, rest = (code, None) if width == 1 else (lax.div(code, by), lax.rem(code, by))
        wide, code = _gathered(wide, tap, rest, group)
        if rest is not None:
            wide, code = lax.optimization_barrier((wide, code))
    return wide


def sum_backward(wide: Array, plan: Plan, axes: Sequence[int]) -> Array:
    """The sum of the gradients of the windows that contain each input."""
    pairs = list(zip(plan.axes, axes, strict=True))
    groups = [pairs] if prod(_overlap(axis) for axis in plan.axes) <= _AT_ONCE else [[p] for p in pairs]
    for i, group in enumerate(groups):
        if i:
            wide = lax.optimization_barrier(wide)
        wide, _ = _gathered(wide, None, None, group)
    return wide


def _overlap(axis: AxisPlan) -> int:
    """In how many windows an input is at most."""
    return -(-axis.tap_range()[1] // _block(axis))


def _block(axis: AxisPlan) -> int:
    """Inputs from one window to the next; a single window has no next one."""
    return axis.tap_range()[1] if axis.out == 1 else axis.stride


def _gathered(wide: Array, tap: Any, rest: Any, group: Pairs) -> tuple[Array, Any]:
    """Sums of gradients, along the axes of a group from outputs to inputs, and codes along the other axes.

    Inputs lie in blocks of one stride. All inputs of a block are in the same few windows: the k-th one before
    the last contains the r-th input of its block as tap r + k*stride, if it has such a tap. Windows whose
    `tap` is another one do not count; without `tap` all do.
    """
    blocks = [_block(axis) for axis, _ in group]
    kernels = [axis.tap_range()[1] for axis, _ in group]
    total: Any = None
    code: Any = None
    for before in product(*(range(_overlap(axis)) for axis, _ in group)):
        own, inside = _taps_of_blocks(before, blocks, kernels, group, wide.ndim)
        grad = _shifted(wide, before, blocks, group, 0)
        shape = np.broadcast_shapes(grad.shape, own.shape)
        hit: Any = inside
        if tap is not None:
            taken = _shifted(tap, before, blocks, group, -1)  # -1 is no tap
            hit = lax.eq(jnp.broadcast_to(taken, shape), jnp.broadcast_to(own, shape))
            hit = hit if inside is True else lax.bitwise_and(hit, jnp.broadcast_to(inside, shape))
        share = grad if hit is True else _select(hit, grad, np.zeros((), wide.dtype), shape)
        total = share if total is None else lax.add(*jnp.broadcast_arrays(total, share))
        if rest is not None:
            left = _select(hit, _shifted(rest, before, blocks, group, 0), np.int32(-1), shape)
            code = left if code is None else lax.max(code, left)
    return _from_blocks(total, blocks, group), None if code is None else _from_blocks(code, blocks, group)


def _first_block(axis: AxisPlan, block: int) -> tuple[int, int]:
    """The first block that an input is in, and the place of that input in it."""
    origin = axis.origin + axis.tap_range()[0] * axis.step
    return -origin // block, -origin % block


def _shifted(x: Array, before: tuple[int, ...], blocks: Sequence[int], group: Pairs, fill: Any) -> Array:
    """For each block the output of the k-th window before the last; a new axis for the block's inputs."""
    pads = [(0, 0, 0)] * x.ndim
    for (axis, a), k, block in zip(group, before, blocks, strict=True):
        first, place = _first_block(axis, block)
        count = -(-(place + axis.size) // block)
        pads[a] = (k - first, first - k + count - axis.out, 0)
    x = lax.pad(x, np.asarray(fill, x.dtype)[()], pads)
    return lax.expand_dims(x, sorted(_new_axes(group)))


def _new_axes(group: Pairs) -> list[int]:
    """For each axis of a group, where the axis for the inputs of its blocks goes: after its own."""
    order = sorted(a for _, a in group)
    return [a + 1 + order.index(a) for _, a in group]


def _taps_of_blocks(
    before: tuple[int, ...], blocks: Sequence[int], kernels: Sequence[int], group: Pairs, ndim: int
) -> tuple[Array, Any]:
    """The tap that each input of a block is in a window, and whether there is such a tap; True: always."""
    found: Any = jnp.zeros((1,) * (ndim + len(group)), np.int32)
    inside: Any = True
    for at, k, block, kernel in zip(_new_axes(group), before, blocks, kernels, strict=True):
        shape = [block if i == at else 1 for i in range(ndim + len(group))]
        own = lax.broadcasted_iota(np.int32, shape, at) + np.int32(k * block)
        if (k + 1) * block > kernel:
            inside = own < kernel if inside is True else inside & (own < kernel)
        found = found * np.int32(kernel) + own
    return found, inside


def _from_blocks(x: Array, blocks: Sequence[int], group: Pairs) -> Array:
    """Blocks and their inputs as one axis again, without those outside the input."""
    new = dict(zip(_new_axes(group), blocks, strict=True))
    x = jnp.broadcast_to(x, [new.get(i, n) for i, n in enumerate(x.shape)])
    shape = [n for i, n in enumerate(x.shape) if i not in new]
    starts, sizes = [0] * len(shape), list(shape)
    for (axis, a), block in zip(group, blocks, strict=True):
        shape[a] *= block
        starts[a], sizes[a] = _first_block(axis, block)[1], axis.size
    return lax.slice(x.reshape(shape), starts, [s + n for s, n in zip(starts, sizes, strict=True)])
