"""Whole-plane windows in channels-last arrays: a plane is a list of rows of channels.

Forward, a program reduces a block of channels over a piece of the rows. Where there are too few planes, a
second launch of the same kernel merges the pieces; the first one stores values and, for max, offsets.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import divide, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    best_of,
    merge,
    positive_zero,
    quotient_by_inverse,
    widen,
)

_SIZES = ["blocks", "channels", "n_1", "rows", "each", "pieces", "half", "m_p", "m_b", "m_1"]
_SIZES += ["x_1", "x_2", "x_r", "y_c", "y_1", "y_2", "y_p", "divisor", "inverse"]


@triton.jit
def _load(
    x,
    at,
    half,
    row,
    there,
    OP: tl.constexpr,
    STORED_OFFSETS: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Elements and their offsets: the row numbers, or the offsets that the first pass stored."""
    v = widen(tl.load(x + at, mask=there, other=IDENTITY), COMPUTE)
    offset = row + tl.zeros(v.shape, tl.int32)
    if STORED_OFFSETS:
        BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
        offset = tl.load(x + half + at, mask=there, other=0).to(BITS, bitcast=True).to(tl.int32)
    if OP != SUM:
        offset = tl.where(there, offset, NO_OFFSET)
    return v, offset


@triton.jit(do_not_specialize=_SIZES)
def channels_last_forward_kernel(
    x,
    y,
    extra,
    blocks,
    channels,
    n_1,
    rows,
    each,
    pieces,
    half,
    m_p,
    m_b,
    m_1,
    x_1,
    x_2,
    x_r,
    y_c,
    y_1,
    y_2,
    y_p,
    divisor,
    inverse,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ONCE: tl.constexpr,
    LEADS: tl.constexpr,
    PARTS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """WIDTH channels of one piece of `each` rows, ROWS at a time. PARTS: 1 writes pieces, 2 reads them."""
    WITH_OFFSETS: tl.constexpr = OP != SUM and (KIND != 0 or PARTS > 0)
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    piece, block, lead = split(pid, pieces, blocks, m_p, m_b, INT64)
    l1 = lead
    l2 = lead * 0
    if LEADS > 1:
        l2 = divide(lead, n_1, m_1, INT64)
        l1 = lead - l2 * n_1
    c = block * WIDTH + tl.arange(0, WIDTH)
    inside = (c // UNIT * UNIT < channels)[None, :]
    r = tl.arange(0, ROWS)[:, None]
    begin = piece * each
    end = tl.minimum(begin + each, rows)
    wait_for_previous()
    at = (l1 * x_1 + l2 * x_2 + begin * x_r) * UNIT + r * x_r * UNIT + c[None, :]
    best, offset = _load(
        x, at, half, begin + r, inside & (begin + r < end), OP, PARTS == 2 and WITH_OFFSETS, IDENTITY, COMPUTE
    )
    if not ONCE:
        for start in range(begin + ROWS, end, ROWS):
            at += ROWS * x_r * UNIT
            there = inside & (start + r < end)
            v, more = _load(x, at, half, start + r, there, OP, PARTS == 2 and WITH_OFFSETS, IDENTITY, COMPUTE)
            best, offset = merge(best, offset, v, more, OP, WITH_OFFSETS)
    to = l1 * y_1 + l2 * y_2 + piece * y_p + c * y_c
    live = c < channels
    if OP == SUM:
        value = tl.sum(best, 0)
        if DIVIDE == 1:
            value = quotient_by_inverse(value, divisor, inverse)
        else:
            value = positive_zero(value)
    elif not WITH_OFFSETS:
        value = best_of(best, 0, OP)
    else:
        value, offset = best_along(best, offset, 0, OP)
        if PARTS == 1:
            BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
            tl.store(y + half + to, offset.to(BITS).to(COMPUTE, bitcast=True), mask=live)
        elif KIND != 0:
            tl.store(extra + to, offset.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=_SIZES)
def channels_last_backward_kernel(
    grad,
    offsets,
    result,
    blocks,
    channels,
    n_1,
    rows,
    each,
    pieces,
    m_p,
    m_b,
    m_1,
    x_1,
    x_2,
    x_r,
    y_c,
    y_1,
    y_2,
    divisor,
    inverse,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LEADS: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """WIDTH channels of `each` rows: the same gradient in all rows, or only in the row of the offset."""
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    piece, block, lead = split(pid, pieces, blocks, m_p, m_b, INT64)
    l1 = lead
    l2 = lead * 0
    if LEADS > 1:
        l2 = divide(lead, n_1, m_1, INT64)
        l1 = lead - l2 * n_1
    c = block * WIDTH + tl.arange(0, WIDTH)
    live = c < channels
    at = l1 * y_1 + l2 * y_2 + c * y_c
    wait_for_previous()
    g = widen(tl.load(grad + at, mask=live, other=0), COMPUTE)
    if DIVIDE == 1:
        g = quotient_by_inverse(g, divisor, inverse)
    g = g.to(result.dtype.element_ty)[None, :]
    r = tl.arange(0, ROWS)[:, None]
    inside = (c // UNIT * UNIT < channels)[None, :]
    begin = piece * each
    end = tl.minimum(begin + each, rows)
    to = (l1 * x_1 + l2 * x_2 + begin * x_r) * UNIT + r * x_r * UNIT + c[None, :]
    taken = r
    if HAS_INDEX:
        taken = tl.load(offsets + at, mask=live, other=0).to(tl.int32)[None, :]
    for start in range(begin, end, ROWS):
        value = tl.broadcast_to(g, [ROWS, WIDTH])
        if HAS_INDEX:
            value = tl.where(start + r == taken, value, tl.zeros_like(value))
        tl.store(result + to, value, mask=inside & (start + r < end))
        to += ROWS * x_r * UNIT
