"""Windows with many taps that overlap little, along contiguous rows.

Full rows are loaded, reduced down the window, and split into windows at the end. An axis has tables or
adjacent windows; no tap is padding.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import INDEX64, divide, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    merge,
    quotient,
    quotient_by_inverse,
    widen,
)

_SIZES = ["n_1", "m_1", "m_h", "m_d", "planes", "x_1", "x_2", "x_d", "x_h", "y_1", "y_2", "y_d", "y_h", "y_w"]
_SIZES += ["size_h", "size_w", "out_d", "out_h", "out_w", "kernel_h", "kernel_w", "divisor", "inverse"]


@triton.jit
def _window(o, starts, counts, kernel):
    """First input and number of taps of a window; without tables windows are adjacent."""
    if starts is None:
        return o * kernel, o * 0 + kernel
    else:
        return tl.load(starts + o), tl.load(counts + o)


@triton.jit(do_not_specialize=_SIZES)
def row_forward_kernel(
    x,
    y,
    extra,
    starts_d,
    counts_d,
    starts_h,
    counts_h,
    starts_w,
    counts_w,
    n_1,
    m_1,
    m_h,
    m_d,
    planes,
    x_1,
    x_2,
    x_d,
    x_h,
    y_1,
    y_2,
    y_d,
    y_h,
    y_w,
    size_h,
    size_w,
    out_d,
    out_h,
    out_w,
    kernel_h,
    kernel_w,
    divisor,
    inverse,
    UNIT: tl.constexpr,
    PLANES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTS: tl.constexpr,
    TAPS: tl.constexpr,
    GATHERED: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """One row of windows in each of PLANES planes: ROWS rows of input at a time, WIDTH is a full row."""
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    oh, od, block = split(pid, out_h, out_d, m_h, m_d, INT64)
    plane = block * PLANES + tl.arange(0, PLANES)
    live = (plane < planes)[:, None]
    l2 = divide(plane, n_1, m_1, INT64)
    l1 = plane - l2 * n_1
    wait_for_previous()
    first_d, taps_d = _window(od, starts_d, counts_d, 1)
    first_h, taps_h = _window(oh, starts_h, counts_h, kernel_h)
    o = tl.arange(0, OUTS)
    first_w, taps_w = _window(tl.minimum(o, out_w - 1), starts_w, counts_w, kernel_w)
    column = tl.arange(0, WIDTH)[None, :]
    base = ((l1 * x_1 + l2 * x_2 + first_d * x_d + first_h * x_h) * UNIT)[:, None] + column
    live_row = live & (column // UNIT * UNIT < size_w)
    best = tl.full([PLANES, WIDTH], IDENTITY, COMPUTE)
    row = tl.zeros([PLANES, WIDTH], tl.int32)
    for d in range(taps_d):
        for start in range(0, taps_h, ROWS):
            found = ()
            for r in tl.static_range(ROWS):
                ok = live_row & (start + r + column * 0 < taps_h)
                at = base + (d * x_d + (start + r) * x_h) * UNIT
                found = found + (widen(tl.load(x + at, mask=ok, other=IDENTITY), COMPUTE),)
            for r in tl.static_range(ROWS):
                best, row = merge(best, row, found[r], d * kernel_h + (start + r), OP, True)
    tap = tl.arange(0, TAPS)[None, :]
    value = tl.full([PLANES, OUTS], IDENTITY, COMPUTE)
    offset = tl.zeros([PLANES, OUTS], tl.int32)
    if GATHERED:
        places = tl.minimum(first_w[:, None] + tap, size_w - 1).to(tl.int32)
        places = tl.broadcast_to(tl.reshape(places, [1, OUTS * TAPS]), [PLANES, OUTS * TAPS])
        inside = (tap < taps_w[:, None])[None, :, :]
        v = tl.where(inside, tl.reshape(tl.gather(best, places, 1), [PLANES, OUTS, TAPS]), IDENTITY)
        if OP == SUM:
            value = tl.sum(v, 2)
        else:
            rows = tl.reshape(tl.gather(row, places, 1), [PLANES, OUTS, TAPS])
            offsets = tl.where(inside, rows * kernel_w + tap[None, :, :], NO_OFFSET)
            value, offset = best_along(v, offsets, 2, OP, KIND != 0)
    else:
        # Rows too long for one warp: window by window, each from the full row.
        for ow in range(out_w):
            first, taps = _window(ow, starts_w, counts_w, kernel_w)
            inside = (column >= first) & (column < first + taps)
            v = tl.where(inside, best, IDENTITY)
            mine = o[None, :] == ow
            if OP == SUM:
                value = tl.where(mine, tl.sum(v, 1)[:, None], value)
            else:
                offsets = tl.where(inside, row * kernel_w + (column - first), NO_OFFSET)
                v, c = best_along(v, offsets, 1, OP, KIND != 0)
                value, offset = tl.where(mine, v[:, None], value), tl.where(mine, c[:, None], offset)
    at = ((l1 * y_1 + l2 * y_2)[:, None] + od * y_d + oh * y_h) + (o * y_w)[None, :]
    ok = live & (o < out_w)[None, :]
    if DIVIDE == 1:
        value = quotient_by_inverse(value, divisor, inverse)
    if DIVIDE == 2:
        value = quotient(value, (taps_d * taps_h * taps_w)[None, :] + tl.zeros([PLANES, OUTS], tl.int32))
    tl.store(y + at, value.to(y.dtype.element_ty), mask=ok)
    if KIND == INDEX64:
        offset = offset.to(tl.int64)
        d = first_d + offset // kernel_w // kernel_h
        h = first_h + offset // kernel_w % kernel_h
        tl.store(extra + at, (d * size_h + h) * size_w + first_w[None, :] + offset % kernel_w, mask=ok)
    elif KIND != 0:
        tl.store(extra + at, offset.to(extra.dtype.element_ty), mask=ok)
