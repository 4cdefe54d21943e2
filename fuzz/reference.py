"""Reference results from the oracle's windows, for any axes and fast enough for many calls.

A table lists the flat indices of every window; a reduction is a gather and a NumPy reduction.
`tests/test_fuzz.py` compares this module with the oracle.
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
    """For every output: the flat indices of its window (valid ones first), which are valid, its start."""

    flat: Array  # (outputs, taps)
    valid: Array
    start: Array
    plan: Plan

    @property
    def taps(self) -> int:
        """The maximum number of elements in a window."""
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
    """The elements of all windows, a few planes at a time."""
    step = max(1, CHUNK // max(1, windows.flat.size))
    for begin in range(0, len(flat_x), step):
        part = slice(begin, begin + step)
        yield part, flat_x[part][:, windows.flat]


def planes(x: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """The array as (planes, elements), and the shape of the leading axes."""
    n = len(axes)
    moved = np.moveaxis(x, axes, range(-n, 0))
    lead = moved.shape[: x.ndim - n]
    return moved.reshape(prod(lead), prod(moved.shape[x.ndim - n :])), lead


def unplanes(flat: Array, lead: Sequence[int], sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """The inverse of `planes`."""
    return np.moveaxis(flat.reshape(*lead, *sizes), range(-len(axes), 0), axes)


def wide(x: Array) -> Array:
    """Half-precision floats converted to float32, which NumPy compares faster."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and is_float(x.dtype) else x


def select(flat_x: Array, windows: Table, least: bool) -> tuple[Array, Array]:
    """The extremum and flat index of each window: the first of ties, the last of several NaNs."""
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
    """The sum of each window: floats in float64, other dtypes promoted as by `np.sum`."""
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
    """The quotient; integers truncate toward zero."""
    divisor = np.asarray(divisor).astype(sums.dtype)
    if is_float(sums.dtype):
        return sums / divisor
    return sums // divisor + ((sums % divisor != 0) & ((sums < 0) != (divisor < 0)))


def divisors(plan: Plan, padded: bool, override: int | None) -> Any:
    """The divisor of each window."""
    if override is not None:
        return override
    return np.maximum(counts(plan, padded), 1).ravel()


def lp_norm(flat_x: Array, windows: Table, norm: float, taps: int, share: Array | None) -> Array:
    """The root of the sum of powers, scaled by `taps / share` if given, in float64."""
    x = flat_x
    if is_float(x.dtype) or isinstance(norm, float):
        x = x.astype(np.float64)
    elif x.dtype != np.uint64:
        x = x.astype(np.int64)
    with np.errstate(all="ignore"):
        sums = total(x**norm, windows)
        means = sums if share is None else divided(sums, np.maximum(share, 1)) * taps
        return means.astype(np.float64) ** (1 / norm)


def max_backward(flat_grad: Array, indices: Array, windows: Table, size: int) -> Array:
    """The gradient of each output added at its index; empty windows have none."""
    nonempty = windows.valid.any(1) if windows.valid.size else np.zeros(len(windows.flat), bool)
    result = np.zeros((len(flat_grad), size))
    rows = np.repeat(np.arange(len(flat_grad)), int(nonempty.sum()))
    values = flat_grad[:, nonempty].ravel().astype(np.float64)
    np.add.at(result, (rows, indices[:, nonempty].ravel()), values)
    return result


def sum_backward(shares: Array, windows: Table, size: int) -> Array:
    """The share of each output added to all elements of its window."""
    result = np.zeros((size, len(shares)))
    o, t = np.nonzero(windows.valid)
    np.add.at(result, windows.flat[o, t], shares.T[o])
    return result.T


def unpool(values: Array, indices: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Zeros with each value at its index; for repeated indices the last value wins."""
    flat, lead = planes(values, axes)
    at, _ = planes(indices, axes)
    result = np.zeros((len(flat), prod(sizes)), values.dtype)
    rows = np.repeat(np.arange(len(flat)), flat.shape[1])
    result[rows, at.ravel()] = flat.ravel()  # NumPy assigns in order, so the last value wins
    return unplanes(result, lead, sizes, axes)


def limits(dtype: Any) -> tuple[float, float, float]:
    """The epsilon, smallest subnormal and largest number of a floating dtype."""
    info = ml_dtypes.finfo(dtype)
    return float(info.eps), float(info.smallest_subnormal), float(info.max)


def sum_slack(want: Array, magnitude: Array, taps: int, dtype: Any, exact: bool) -> Array:
    """The allowed error of a sum: one rounding of the sum of magnitudes per tap, and one of the result.

    It is infinite where a partial sum may overflow.
    """
    eps, tiny, most = limits(dtype)
    added = np.float64 if exact else np.float32
    rounding = (taps + 4) * float(np.finfo(added).eps)
    slack = rounding * magnitude + eps * np.abs(want) + tiny
    with np.errstate(over="ignore"):
        overflows = (magnitude > 0.49 * float(np.finfo(added).max)) | (np.abs(want) > 0.99 * most)
    return np.where(overflows & np.isfinite(magnitude), inf, slack)


def norm_slack(want: Array, magnitude: Array, taps: int, dtype: Any, norm: float) -> Array:
    """The allowed error of an Lp norm; `magnitude` is the norm of the absolute values."""
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
    """The shape of the result."""
    result = list(shape)
    for axis, size in zip(axes, outs(plan), strict=True):
        result[axis] = size
    return tuple(result)
