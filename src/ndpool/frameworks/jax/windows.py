"""Pooling in `jax.lax`: right on every device, for every plan, without the compiled core.

Windows are static: the tables below are constants of the compiled program, whose length does not depend on
the number of outputs. Axes are reduced one after another; a maximum carries the number of its tap, so that
ties and NaN follow PyTorch's rules. Called while a primitive is lowered, with 64-bit types enabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from ndpool._plan import AxisPlan, Plan, positions

AT_ONCE = 16  # taps of a window that is reduced along all of its axes in one step
_SLICES = 16  # taps of windows that are slices of the input; with more they are gathered


def accumulator(own: Any, result: Any) -> Any:
    """The dtype that sums of dtype `own` are added in."""
    if not jnp.issubdtype(result, jnp.floating):
        return np.dtype("uint64" if jnp.issubdtype(result, jnp.unsignedinteger) else "int64")
    if not jnp.issubdtype(own, jnp.floating):
        return np.dtype("float64")
    return np.dtype("float64" if np.dtype(own) == np.float64 else "float32")


def extremes(x: Array, plan: Plan, axes: Sequence[int], least: bool, ordered: bool) -> Array:
    """The maximum or minimum of each window; `ordered`: by integers, where XLA's maxima may lose a NaN."""
    combine: Any = lax.min if least else lax.max
    if x.dtype == np.bool_ or (ordered and jnp.issubdtype(x.dtype, jnp.floating)):
        identity = _key(_bits(nothing(x.dtype, least)), x.dtype, least)[()]
        keys = _reduced(_key(_bits(x), x.dtype, least), plan, axes, combine, identity)
        return _from_bits(_turned(keys, x.dtype), x.dtype)
    return _reduced(x, plan, axes, combine, nothing(x.dtype, least))


def sums(x: Array, plan: Plan, axes: Sequence[int]) -> Array:
    """The sum of each window, in the dtype of `x`."""
    return _reduced(x, plan, axes, lax.add, np.zeros((), x.dtype)[()])


def divided(total: Array, plan: Plan, axes: Sequence[int], divisor: int) -> Array:
    """Sums over their divisor, the window's own if it is 0; integers truncate toward zero."""
    by: Any = divisor or _divisors(plan, axes, total.ndim)
    by = lax.convert_element_type(jnp.asarray(by), total.dtype)
    if jnp.issubdtype(total.dtype, jnp.integer):
        return lax.div(total, jnp.broadcast_to(by, total.shape))
    return total / by


def _divisors(plan: Plan, axes: Sequence[int], ndim: int) -> Any:
    """The divisor of each window; a table along each axis whose windows differ, never one of all windows."""
    common, tables = 1, []
    for axis, a in zip(plan.axes, axes, strict=True):
        shares = _shares(axis)
        if (shares == shares[0]).all():
            common *= int(shares[0])
        else:
            tables.append(_along(shares, a, ndim))
    wide = np.float64 if prod(a.kernel for a in plan.axes) >= 2**63 else np.int64
    by: Any = np.asarray(common, wide)
    for table in tables:
        by = jnp.asarray(table.astype(wide)) * by
    return jnp.maximum(by, 1)


def extremes_with_offsets(
    x: Array, plan: Plan, axes: Sequence[int], least: bool, dtype: Any
) -> tuple[Array, Array]:
    """The maximum or minimum of each window and its offset: the first of ties, the last of several NaNs."""
    bits, width = _bits(x), 1
    code: Any = None
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        taken, inside = _windows(bits, axis, a)
        kernel = taken.shape[a + 1]
        tap: Any = _along(np.arange(kernel, dtype=np.int32) * width, a + 1, taken.ndim)
        tap = jnp.asarray(tap) if code is None else _windows(code, axis, a)[0] + tap
        bits, code = _chosen(taken, tap, inside, a + 1, x.dtype, least, kernel * width)
        width *= kernel
    return _from_bits(bits, x.dtype), lax.convert_element_type(code, dtype)


def first_maxima(x: Array, code: Array, a: int, none: int) -> tuple[Array, Array]:
    """The maxima along axis `a` and their codes, which grow along it and stay below `none`."""
    bits, found = _chosen(_bits(x), code, None, a, x.dtype, False, none)
    return _from_bits(bits, x.dtype), found


def _chosen(
    bits: Array, code: Array, inside: Any, a: int, dtype: Any, least: bool, none: int
) -> tuple[Array, Array]:
    """The best along axis `a`, as bits of `dtype`, and its code; `none` is the code of no tap at all."""
    fill = _bits(nothing(dtype, least))
    bits = bits if inside is None else jnp.where(inside, bits, fill)
    keys = _key(bits, dtype, least)
    top = keys.min(a) if least else keys.max(a)
    best = keys == jnp.expand_dims(top, a)
    best = best if inside is None else best & inside
    code = jnp.broadcast_to(code, bits.shape)
    found = jnp.where(best, code, none).min(a)
    if jnp.issubdtype(dtype, jnp.floating):
        last = jnp.where(best, code, -1).max(a)
        found = jnp.where((top == _nan_key(keys.dtype, least)) & (last >= 0), last, found)
    # The element at the code itself: zeros of both signs are ties.
    lowest = np.iinfo(bits.dtype).min
    element = jnp.where(code == jnp.expand_dims(found, a), bits, lowest).max(a)
    return jnp.where(found == none, fill, element), found


# Numbers as integers that are ordered like them. XLA on the CPU takes subnormal numbers for zero, and its
# maxima lose a NaN now and then.


def _bits(x: Any) -> Any:
    """The bits of floats as integers, bool as a byte; other integers as they are."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return lax.bitcast_convert_type(x, np.dtype(f"int{8 * x.dtype.itemsize}"))
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def _from_bits(bits: Array, dtype: Any) -> Array:
    if jnp.issubdtype(dtype, jnp.floating):
        return lax.bitcast_convert_type(bits, dtype)
    return bits.astype(dtype)


def _turned(bits: Any, dtype: Any) -> Any:
    """Bits of floats as integers in their order, and back."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return bits
    return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def _nan_key(dtype: Any, least: bool) -> Any:
    return np.iinfo(dtype).min if least else np.iinfo(dtype).max


def _key(bits: Any, dtype: Any, least: bool) -> Any:
    """Integers in the order of the numbers: both zeros are one, NaN is beyond everything."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return bits
    infinity = int(np.asarray(np.inf, dtype).view(bits.dtype))
    keys = _turned(bits, dtype)
    keys = jnp.where(keys == -1, np.zeros((), keys.dtype), keys)  # -0.0
    nan = (bits & np.iinfo(bits.dtype).max) > infinity
    return jnp.where(nan, np.asarray(_nan_key(bits.dtype, least), keys.dtype), keys)


def flat_indices(plan: Plan, offsets: Array, axes: Sequence[int]) -> Array:
    """Indices in the flattened plane of offsets; -1 for a window without an element."""
    dtype = np.int64 if prod(plan.sizes) >= 2**31 else np.int32
    return positions(  # type: ignore[no-any-return]
        plan, offsets.astype(dtype), tuple(axes), lambda table: jnp.asarray(table.astype(dtype))
    )


def take(x: Array, indices: Array, axes: Sequence[int]) -> Array:
    """The elements of each plane at these indices; 0 at indices outside it."""
    n, last = len(axes), range(-len(axes), 0)
    moved = jnp.moveaxis(x, axes, last)
    at = jnp.moveaxis(indices, axes, last)
    flat = moved.reshape(*moved.shape[: moved.ndim - n], -1)
    places = at.reshape(*at.shape[: at.ndim - n], -1)
    inside = (places >= 0) & (places < flat.shape[-1])
    got = jnp.take_along_axis(flat, jnp.where(inside, places, 0), -1, mode="clip")
    return jnp.moveaxis(jnp.where(inside, got, np.zeros((), x.dtype)).reshape(at.shape), last, axes)


def put(values: Array, indices: Array, axes: Sequence[int], sizes: Sequence[int]) -> Array:
    """Zeros with each value at its index; the last of repeated indices wins, indices outside are dropped."""
    n, last = len(axes), range(-len(axes), 0)
    moved, at = (jnp.moveaxis(t, axes, last) for t in (values, indices))
    lead = moved.shape[: moved.ndim - n]
    planes = prod(lead)
    flat, places = moved.reshape(planes, -1), at.reshape(planes, -1)
    size = prod(sizes)
    places = jnp.where((places >= 0) & (places < size), places, size)
    numbers = jnp.broadcast_to(jnp.arange(flat.shape[1], dtype=np.int32), places.shape)
    rows = jnp.arange(planes, dtype=np.int32)[:, None]
    # Scattering whole numbers gives the same result in any order.
    winner = jnp.full((planes, size), -1, np.int32).at[rows, places].max(numbers, mode="drop")
    got = jnp.take_along_axis(flat, jnp.maximum(winner, 0), 1, mode="clip")
    result = jnp.where(winner >= 0, got, np.zeros((), values.dtype)).reshape(*lead, *sizes)
    return jnp.moveaxis(result, last, axes)


def max_backward(wide: Array, offsets: Array, plan: Plan, axes: Sequence[int]) -> Array:
    """Each gradient at the element that its offset stands for, summed in a fixed order.

    Axis by axis over the transposed plan: all outputs that chose one row chose the same element of it.
    """
    ranges = [axis.tap_range() for axis in plan.axes]
    width = prod(kernel for _, kernel in ranges)
    code = offsets.astype(np.int32)
    code = jnp.where(code < width, code, -1)
    for axis, a, (front, kernel) in zip(plan.axes, axes, ranges, strict=True):
        width //= kernel
        first = axis.origin + np.arange(axis.out) * axis.stride if axis.starts is None else axis.starts
        place = jnp.asarray(_along(first + front * axis.step, a, code.ndim).astype(np.int32))
        place = jnp.where(code < 0, -1, place + code // width * axis.step)
        back = axis.transposed()
        own = _along(np.arange(axis.size, dtype=np.int32), a, code.ndim + 1)
        taken, inside = _windows(place, back, a)
        hit = (taken == own) if inside is None else (taken == own) & inside
        wide = jnp.where(hit, _windows(wide, back, a)[0], 0).sum(a + 1)
        code = jnp.where(hit, _windows(code % width, back, a)[0], -1).max(a + 1)
    return wide


def nothing(dtype: Any, least: bool) -> Any:
    """The maximum or minimum of nothing."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(np.inf if least else -np.inf, dtype)[()]
    if dtype == np.bool_:
        return np.asarray(least)[()]
    return np.asarray(jnp.iinfo(dtype).max if least else jnp.iinfo(dtype).min, dtype)[()]


def _along(table: NDArray[Any], a: int, ndim: int) -> NDArray[Any]:
    """A table that varies along one axis only."""
    return table.reshape([-1 if i == a else 1 for i in range(ndim)])


def _shares(axis: AxisPlan) -> NDArray[np.int64]:
    """What each window contributes to its divisor."""
    if axis.counts is not None:
        return axis.counts
    lo, hi = axis.bounds
    first = axis.origin + axis.stride * np.arange(axis.out, dtype=np.int64)
    lead = np.maximum(0, -((first - lo) // axis.step))
    return np.maximum(0, np.minimum(axis.kernel - lead, -((first + lead * axis.step - hi) // axis.step)))


def _reduced(x: Array, plan: Plan, axes: Sequence[int], combine: Any, identity: Any) -> Array:
    """An associative operation over each window: slices first, tables after them."""
    regular: list[tuple[AxisPlan, int]] = []
    tables: list[tuple[AxisPlan, int]] = []
    for axis, a in zip(plan.axes, axes, strict=True):
        (regular if axis.regular else tables).append((axis, a))
    if prod(axis.tap_range()[1] for axis, _ in regular) <= AT_ONCE:
        x = _sliding(x, regular, combine, identity)
    else:
        for pair in regular:
            x = _sliding(x, [pair], combine, identity)
    for axis, a in tables:
        taken, inside = _windows(x, axis, a)
        taken = taken if inside is None else jnp.where(inside, taken, identity)
        x = lax.reduce(taken, identity, combine, (a + 1,))
    return x


def _sliding(x: Array, pairs: Sequence[tuple[AxisPlan, int]], combine: Any, identity: Any) -> Array:
    if not pairs:
        return x
    window, strides, dilation = [1] * x.ndim, [1] * x.ndim, [1] * x.ndim
    pads = [(0, 0)] * x.ndim
    for axis, a in pairs:
        front, window[a] = axis.tap_range()
        strides[a], dilation[a] = axis.stride, axis.step
        origin = axis.origin + front * axis.step
        end = origin + (axis.out - 1) * axis.stride + (window[a] - 1) * axis.step + 1
        # What no window contains is cut off: padding is never negative.
        x = lax.slice_in_dim(x, max(0, min(origin, axis.size)), max(0, min(end, axis.size)), axis=a)
        pads[a] = (max(0, -origin), max(0, end - axis.size))
    if all(axis.out == 1 and window[a] == x.shape[a] and pads[a] == (0, 0) for axis, a in pairs):
        whole = tuple(a for _, a in pairs)
        return lax.expand_dims(lax.reduce(x, identity, combine, whole), whole)
    return lax.reduce_window(x, identity, combine, window, strides, pads, window_dilation=dilation)


def _windows(x: Array, axis: AxisPlan, a: int) -> tuple[Array, Any]:
    """The taps of each window as a new axis after axis `a`, and which are inside; None if all are."""
    front, kernel = axis.tap_range()
    kernel = max(kernel, 1)  # a transposed plan may have no taps at all
    if axis.regular and front == 0 and axis.origin == 0 and axis.step == 1 and axis.stride == kernel:
        whole = axis.out * kernel
        if whole <= x.shape[a]:
            x = lax.slice_in_dim(x, 0, whole, axis=a)
            return x.reshape(*x.shape[:a], axis.out, kernel, *x.shape[a + 1 :]), None
    o, t = np.arange(axis.out)[:, None], np.arange(kernel)
    if axis.starts is not None and axis.counts is not None:
        places, inside = axis.starts[:, None] + t * axis.step, t < axis.counts[:, None]
    else:
        places = axis.origin + o * axis.stride + (front + t) * axis.step
        inside = (places >= 0) & (places < axis.size)
    mask = None
    if not inside.all():
        mask = jnp.asarray(inside.reshape([*inside.shape, *[1] * (x.ndim - a - 1)]))
    if axis.regular and kernel <= _SLICES:
        low, high = int(min(places.min(), 0)), int(max(places.max() + 1, axis.size))
        pads = [(0, 0, 0)] * x.ndim
        pads[a] = (-low, high - axis.size, 0)
        padded = lax.pad(x, np.zeros((), x.dtype), pads)
        pieces = [
            lax.slice_in_dim(padded, int(places[0, i]) - low, int(places[-1, i]) - low + 1, axis.stride, a)
            for i in range(kernel)
        ]
        return jnp.stack(pieces, a + 1), mask
    clipped = np.clip(places, 0, axis.size - 1).astype(np.int32 if axis.size < 2**31 else np.int64)
    return jnp.take(x, jnp.asarray(clipped), a, mode="clip"), mask
