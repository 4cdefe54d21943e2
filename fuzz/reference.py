"""The answers by definition, from the oracle's windows, for any axes and quickly enough for many calls.

A table lists, for every output, the flat positions of its window; a reduction is one gather and one
reduction in NumPy. `tests/test_fuzz.py` compares this file with the oracle itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import ml_dtypes
import numpy as np

from oracle import Array, Plan, counts, extremum_of_nothing, is_float, outs

CHUNK = 1 << 21  # elements gathered at once


@dataclass
class Table:
    """Per output: the flat positions of its window, the valid ones first; how many; where it begins."""

    flat: Array  # (outputs, taps)
    valid: Array
    start: Array
    plan: Plan

    @property
    def taps(self) -> int:
        """The most elements that a window holds."""
        return int(self.valid.sum(1).max(initial=0))


def table(plan: Plan, sizes: Sequence[int]) -> Table:
    """The windows of all outputs in row-major order."""
    flat, valid, start = np.zeros((1, 1), np.int64), np.ones((1, 1), bool), np.zeros(1, np.int64)
    for axis, windows in enumerate(plan):
        pitch = prod(sizes[axis + 1 :])
        width = max((len(w.positions) for w in windows), default=0)
        at = np.zeros((len(windows), width), np.int64)
        inside = np.zeros(at.shape, bool)
        for o, window in enumerate(windows):
            at[o, : len(window.positions)] = window.positions
            inside[o, : len(window.positions)] = True
        shape = (len(flat) * len(at), flat.shape[1] * width)
        flat = (flat[:, None, :, None] + at[None, :, None, :] * pitch).reshape(shape)
        valid = (valid[:, None, :, None] & inside[None, :, None, :]).reshape(shape)
        first = np.array([w.start for w in windows], np.int64)
        start = (start[:, None] + first * pitch).ravel()
    if not valid.all():
        order = np.argsort(~valid, axis=1, kind="stable")
        flat, valid = np.take_along_axis(flat, order, 1), np.take_along_axis(valid, order, 1)
    return Table(np.where(valid, flat, 0), valid, start, plan)


def chunks(flat_x: Array, windows: Table) -> Iterator[tuple[slice, Array]]:
    """The elements of all windows, some planes at a time."""
    step = max(1, CHUNK // max(1, windows.flat.size))
    for begin in range(0, len(flat_x), step):
        part = slice(begin, begin + step)
        yield part, flat_x[part][:, windows.flat]


def planes(x: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """The pooled axes flattened into the last, the others into the first; and the shape of the others."""
    n = len(axes)
    moved = np.moveaxis(x, axes, range(-n, 0))
    lead = moved.shape[: x.ndim - n]
    return moved.reshape(prod(lead), prod(moved.shape[x.ndim - n :])), lead


def unplanes(flat: Array, lead: Sequence[int], sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """The inverse of `planes`."""
    return np.moveaxis(flat.reshape(*lead, *sizes), range(-len(axes), 0), axes)


def wide(x: Array) -> Array:
    """Floats in a type that NumPy compares quickly."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and is_float(x.dtype) else x


def select(flat_x: Array, windows: Table, least: bool) -> tuple[Array, Array]:
    """Extremum and flat position per window: the first among equals, the last NaN where there is one."""
    shape = len(flat_x), len(windows.flat)
    indices = np.empty(shape, np.int64)
    nothing = extremum_of_nothing(flat_x.dtype, least)
    empty = ~windows.valid.any(1) if windows.valid.size else np.ones(shape[1], bool)
    if windows.flat.shape[1] == 0:
        indices[...] = windows.start
        return np.full(shape, nothing, flat_x.dtype), indices
    some_nan = is_float(flat_x.dtype) and bool(np.isnan(flat_x).any())
    for part, found in chunks(wide(flat_x), windows):
        if not windows.valid.all():
            found = np.where(windows.valid, found, np.array(nothing).astype(found.dtype))
        best = found.argmin(-1) if least else found.argmax(-1)
        if some_nan:
            nan = np.isnan(found)
            best = np.where(nan.any(-1), found.shape[-1] - 1 - nan[..., ::-1].argmax(-1), best)
        indices[part] = np.take_along_axis(windows.flat[None], best[..., None], 2)[..., 0]
    values = np.take_along_axis(flat_x, indices, 1)
    values[:, empty], indices[:, empty] = nothing, windows.start[empty]
    return values, indices


def total(flat_x: Array, windows: Table) -> Array:
    """Sum per window: floats in float64, the others as `np.sum` promotes them."""
    x = flat_x.astype(np.float64) if is_float(flat_x.dtype) else flat_x
    dtype = x[:0].sum().dtype
    sums = np.empty((len(x), len(windows.flat)), dtype)
    with np.errstate(invalid="ignore"):
        for part, found in chunks(x, windows):
            if not windows.valid.all():
                found = np.where(windows.valid, found, np.zeros((), found.dtype))
            sums[part] = found.sum(-1, dtype=dtype)
    return sums


def divided(sums: Array, divisor: Any) -> Array:
    """Floats divided, integers truncated toward zero."""
    divisor = np.asarray(divisor).astype(sums.dtype)
    if is_float(sums.dtype):
        return sums / divisor
    return sums // divisor + ((sums % divisor != 0) & ((sums < 0) != (divisor < 0)))


def averaged_over(plan: Plan, padded: bool, override: int | None) -> Any:
    """What the sum of each window is divided by."""
    if override is not None:
        return override
    return np.maximum(counts(plan, padded), 1).ravel()


def power_mean(flat_x: Array, windows: Table, norm: float, taps: int, share: Array | None) -> Array:
    """The root of `taps` times the mean of powers over `share`, or of their sum without it; not narrowed."""
    x = flat_x
    if is_float(x.dtype) or isinstance(norm, float):
        x = x.astype(np.float64)
    elif x.dtype != np.uint64:
        x = x.astype(np.int64)
    with np.errstate(all="ignore"):
        sums = total(x**norm, windows)
        means = sums if share is None else divided(sums, np.maximum(share, 1)) * taps
        return means.astype(np.float64) ** (1 / norm)


def picked_gradient(flat_grad: Array, indices: Array, windows: Table, size: int) -> Array:
    """Each output's gradient added at its index; of windows that hold nothing there is none."""
    held = windows.valid.any(1) if windows.valid.size else np.zeros(len(windows.flat), bool)
    result = np.zeros((len(flat_grad), size))
    rows = np.repeat(np.arange(len(flat_grad)), int(held.sum()))
    np.add.at(result, (rows, indices[:, held].ravel()), flat_grad[:, held].ravel().astype(np.float64))
    return result


def spread_gradient(shares: Array, windows: Table, size: int) -> Array:
    """Each output's share added at every position of its window."""
    result = np.zeros((size, len(shares)))
    o, t = np.nonzero(windows.valid)
    np.add.at(result, windows.flat[o, t], shares.T[o])
    return result.T


def unpool(values: Array, indices: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Zeros with every value at its index; of repeated indices the last stays."""
    flat, lead = planes(values, axes)
    at, _ = planes(indices, axes)
    result = np.zeros((len(flat), prod(sizes)), values.dtype)
    rows = np.repeat(np.arange(len(flat)), flat.shape[1])
    result[rows, at.ravel()] = flat.ravel()  # NumPy assigns in order: the last one stays
    return unplanes(result, lead, sizes, axes)


def limits(dtype: Any) -> tuple[float, float, float]:
    """Distance from 1 to the next number, smallest and largest number of a floating type."""
    info = ml_dtypes.finfo(dtype)
    return float(info.eps), float(info.smallest_subnormal), float(info.max)


def sum_slack(want: Array, magnitude: Array, taps: int, dtype: Any, exact: bool) -> Array:
    """How far a sum may lie from `want`: a rounding per tap of the sum of magnitudes, one of the result.

    Where the additions may overflow on their way, anything may come out.
    """
    eps, tiny, most = limits(dtype)
    added = np.float64 if exact else np.float32
    rounding = (taps + 4) * float(np.finfo(added).eps)
    slack = rounding * magnitude + eps * np.abs(want) + tiny
    with np.errstate(over="ignore"):
        overflows = (magnitude > 0.49 * float(np.finfo(added).max)) | (np.abs(want) > 0.99 * most)
    return np.where(overflows & np.isfinite(magnitude), inf, slack)


def norm_slack(want: Array, magnitude: Array, taps: int, dtype: Any, norm: float) -> Array:
    """How far a power mean may lie from `want`; `magnitude` is that of the absolute values."""
    eps, tiny, most = limits(dtype)
    rounding = (taps + 4) * float(np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32).eps)
    with np.errstate(all="ignore"):
        sums = want**norm
        slip = (rounding + 4 * eps) * magnitude**norm + 4 * taps * tiny
        ends = np.where(sums < 0, sums - slip, np.maximum(sums - slip, 0)), sums + slip
        spans = [np.nan_to_num(np.abs(end ** (1 / norm) - want), posinf=0) for end in ends]
        exponent = np.nan_to_num(np.log(np.abs(sums)) / norm, posinf=0, neginf=0)
        slack = np.maximum(*spans) + (4 + np.abs(exponent)) * eps * np.abs(want) + tiny
        return np.where(np.abs(want) > 0.99 * most, inf, slack)


def out_shape(shape: Sequence[int], axes: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """The shape with the outputs along the pooled axes."""
    result = list(shape)
    for axis, size in zip(axes, outs(plan), strict=True):
        result[axis] = size
    return tuple(result)
