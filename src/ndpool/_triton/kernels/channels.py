"""Kernels for windows that are whole planes with the channels inside: rows of channels, many at once.

Forward, a program has a block of channels and a piece of the rows; where planes are few, a second run of the
same kernel puts the pieces together. What the first run leaves are values and, for picks, the bits of codes.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import over, split, wait_for_memory
from ndpool._triton.kernels.reducers import (
    NOWHERE,
    SUM,
    best_along,
    even_quotient,
    merge,
    unsigned_zero,
    widen,
)

_SIZES = ["blocks", "channels", "n_1", "rows", "each", "pieces", "half", "m_p", "m_b", "m_1"]
_SIZES += ["x_1", "x_2", "x_r", "y_c", "y_1", "y_2", "y_p", "divisor", "inverse"]


@triton.jit
def _load(
    x, at, half, row, there, OP: tl.constexpr, CODES: tl.constexpr, LOW: tl.constexpr, COMPUTE: tl.constexpr
):
    """The elements and their codes: the numbers of rows, or what the first run found."""
    v = widen(tl.load(x + at, mask=there, other=LOW), COMPUTE)
    code = row + tl.zeros(v.shape, tl.int32)
    if CODES:
        BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
        code = tl.load(x + half + at, mask=there, other=0).to(BITS, bitcast=True).to(tl.int32)
    if OP != SUM:
        code = tl.where(there, code, NOWHERE)
    return v, code


@triton.jit(do_not_specialize=_SIZES)
def channel_forward_kernel(
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
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """WIDTH channels of one piece of `each` rows, ROWS at a time. PARTS: 1 writes pieces, 2 reads them."""
    CODED: tl.constexpr = OP != SUM and (KIND != 0 or PARTS > 0)
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    piece, block, lead = split(pid, pieces, blocks, m_p, m_b, WIDE)
    l1 = lead
    l2 = lead * 0
    if LEADS > 1:
        l2 = over(lead, n_1, m_1, WIDE)
        l1 = lead - l2 * n_1
    c = block * WIDTH + tl.arange(0, WIDTH)
    inside = (c // UNIT * UNIT < channels)[None, :]
    r = tl.arange(0, ROWS)[:, None]
    begin = piece * each
    end = tl.minimum(begin + each, rows)
    wait_for_memory()
    at = (l1 * x_1 + l2 * x_2 + begin * x_r) * UNIT + r * x_r * UNIT + c[None, :]
    best, code = _load(
        x, at, half, begin + r, inside & (begin + r < end), OP, PARTS == 2 and CODED, LOW, COMPUTE
    )
    if not ONCE:
        for start in range(begin + ROWS, end, ROWS):
            at += ROWS * x_r * UNIT
            there = inside & (start + r < end)
            v, more = _load(x, at, half, start + r, there, OP, PARTS == 2 and CODED, LOW, COMPUTE)
            best, code = merge(best, code, v, more, OP, CODED)
    to = l1 * y_1 + l2 * y_2 + piece * y_p + c * y_c
    live = c < channels
    if OP == SUM:
        value = tl.sum(best, 0)
        if DIVIDE == 1:
            value = even_quotient(value, divisor, inverse)
        else:
            value = unsigned_zero(value)
    else:
        value, code = best_along(best, code, 0, OP, CODED)
        if PARTS == 1:
            BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
            tl.store(y + half + to, code.to(BITS).to(COMPUTE, bitcast=True), mask=live)
        elif KIND != 0:
            tl.store(extra + to, code.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=_SIZES)
def channel_backward_kernel(
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
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """WIDTH channels of `each` rows: all the same, or one of them what was picked."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    piece, block, lead = split(pid, pieces, blocks, m_p, m_b, WIDE)
    l1 = lead
    l2 = lead * 0
    if LEADS > 1:
        l2 = over(lead, n_1, m_1, WIDE)
        l1 = lead - l2 * n_1
    c = block * WIDTH + tl.arange(0, WIDTH)
    live = c < channels
    at = l1 * y_1 + l2 * y_2 + c * y_c
    wait_for_memory()
    g = widen(tl.load(grad + at, mask=live, other=0), COMPUTE)
    if DIVIDE == 1:
        g = even_quotient(g, divisor, inverse)
    g = g.to(result.dtype.element_ty)[None, :]
    r = tl.arange(0, ROWS)[:, None]
    inside = (c // UNIT * UNIT < channels)[None, :]
    begin = piece * each
    end = tl.minimum(begin + each, rows)
    to = (l1 * x_1 + l2 * x_2 + begin * x_r) * UNIT + r * x_r * UNIT + c[None, :]
    taken = r
    if PICKS:
        taken = tl.load(offsets + at, mask=live, other=0).to(tl.int32)[None, :]
    for start in range(begin, end, ROWS):
        value = tl.broadcast_to(g, [ROWS, WIDTH])
        if PICKS:
            value = tl.where(start + r == taken, value, tl.zeros_like(value))
        tl.store(result + to, value, mask=inside & (start + r < end))
        to += ROWS * x_r * UNIT
