"""Windows without padding or dilation in channels-last arrays, and the backward of whole planes.

Forward, a program reduces a block of channels over one window, many positions at a time. Where there are too
few windows, these are cut, and a second launch of the same kernel merges the pieces; the first one stores
values and, for max, offsets. All sizes are run-time arguments. The backward kernel stays for adaptive max
pooling of 7x7 to 1 in bfloat16, twice as fast as `row_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import INDEX64, divide, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    best_of,
    better,
    load_or_identity,
    merge,
    positive_zero,
    quotient,
    quotient_by_inverse,
    widen,
)

_FORWARD = ["blocks", "channels", "n_1", "half", "m_b", "m_w", "m_h", "m_d", "m_1", "x_1", "x_2", "x_d"]
_FORWARD += ["x_h", "x_w", "y_c", "y_1", "y_2", "y_d", "y_h", "y_w", "size_d", "size_h", "size_w"]
_FORWARD += ["out_d", "out_h", "out_w", "kernel_h", "kernel_w", "divisor", "inverse"]
_BACKWARD = ["blocks", "channels", "n_1", "rows", "each", "pieces", "m_p", "m_b", "m_1"]
_BACKWARD += ["x_1", "x_2", "x_r", "y_c", "y_1", "y_2", "divisor", "inverse"]


@triton.jit
def _window(o, starts, counts, size):
    """First input and number of taps of a window; without tables it is the whole axis."""
    if starts is None:
        return o * 0, o * 0 + size
    else:
        return tl.load(starts + o), tl.load(counts + o)


@triton.jit
def _part(
    best,
    offset,
    d,
    h,
    start,
    x,
    base,
    half,
    c,
    inside,
    column,
    taps_h,
    taps_w,
    x_d,
    x_h,
    x_w,
    kernel_h,
    kernel_w,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    PARTS: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
    OP: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`best` and `offset` after ROWS times COLUMNS positions from row h and column `start` of the window on.

    A function of its own: Triton translates the body of a loop twice, that of three nested loops eight times.
    """
    BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
    found = ()
    for r in tl.static_range(ROWS):
        row = h + r % DOWN
        w = start + r * ACROSS + column
        at = base + (d * x_d + row * x_h + w * x_w) * UNIT + c[None, :]
        there = inside & (w < taps_w)
        if DOWN > 1:
            there = there & (row + column * 0 < taps_h)
        found = found + (load_or_identity(x + at, there, IDENTITY, COMPUTE),)
    for r in tl.static_range(ROWS):
        v = widen(found[r], COMPUTE)
        if WITH_OFFSETS:
            number = (d * kernel_h + h + r % DOWN) * kernel_w + start + r * ACROSS + column
            number = number + tl.zeros([COLUMNS, WIDTH], tl.int32)
            if PARTS == 2:
                at = base + (start + column) * x_w * UNIT + c[None, :]
                there = inside & (start + column < taps_w)
                number = tl.load(x + half + at, mask=there, other=0).to(BITS, bitcast=True)
            best, offset = merge(best, offset, v, number.to(tl.int32), OP, True)
        else:
            best = better(best, v, OP)
    return best, offset


@triton.jit(do_not_specialize=_FORWARD)
def channels_last_forward_kernel(
    x,
    y,
    extra,
    starts_d,
    counts_d,
    starts_h,
    counts_h,
    starts_w,
    counts_w,
    blocks,
    channels,
    n_1,
    half,
    m_b,
    m_w,
    m_h,
    m_d,
    m_1,
    x_1,
    x_2,
    x_d,
    x_h,
    x_w,
    y_c,
    y_1,
    y_2,
    y_d,
    y_h,
    y_w,
    size_d,
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
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ALONG: tl.constexpr,
    LEADS: tl.constexpr,
    PARTS: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """WIDTH channels of one window: COLUMNS columns of ROWS rows, or of ROWS parts of a row if ALONG.

    Each lane visits its elements in order, so that the first of several maxima is found. PARTS: 1 writes
    pieces of windows, 2 merges them.
    """
    DOWN: tl.constexpr = 1 if ALONG else ROWS
    ACROSS: tl.constexpr = COLUMNS if ALONG else 0
    STEP: tl.constexpr = ROWS * COLUMNS if ALONG else COLUMNS
    BITS: tl.constexpr = tl.int64 if COMPUTE == tl.float64 else tl.int32
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    block, ow, rest = split(pid, blocks, out_w, m_b, m_w, INT64)
    oh, od, lead = split(rest, out_h, out_d, m_h, m_d, INT64)
    l1 = lead
    l2 = lead * 0
    if LEADS > 1:
        l2 = divide(lead, n_1, m_1, INT64)
        l1 = lead - l2 * n_1
    first_d, taps_d = _window(od, starts_d, counts_d, size_d)
    first_h, taps_h = _window(oh, starts_h, counts_h, size_h)
    first_w, taps_w = _window(ow, starts_w, counts_w, size_w)
    c = block * WIDTH + tl.arange(0, WIDTH)
    inside = (c // UNIT * UNIT < channels)[None, :]
    column = tl.arange(0, COLUMNS)[:, None]
    base = (l1 * x_1 + l2 * x_2 + first_d * x_d + first_h * x_h + first_w * x_w) * UNIT
    wait_for_previous()
    best = tl.full([COLUMNS, WIDTH], IDENTITY, COMPUTE)
    offset = tl.full([COLUMNS, WIDTH], NO_OFFSET, tl.int32)
    given = (x, base, half, c, inside, column, taps_h, taps_w, x_d, x_h, x_w, kernel_h, kernel_w)
    for d in range(taps_d):
        for h in range(0, taps_h, DOWN):
            for start in range(0, taps_w, STEP):
                best, offset = _part(
                    best,
                    offset,
                    d,
                    h,
                    start,
                    *given,
                    UNIT,
                    WIDTH,
                    COLUMNS,
                    ROWS,
                    DOWN,
                    ACROSS,
                    PARTS,
                    WITH_OFFSETS,
                    OP,
                    IDENTITY,
                    COMPUTE,
                )
    to = l1 * y_1 + l2 * y_2 + od * y_d + oh * y_h + ow * y_w + c * y_c
    live = c < channels
    if OP == SUM:
        value = positive_zero(tl.sum(best, 0))
        if DIVIDE == 1:
            value = quotient_by_inverse(value, divisor, inverse)
        if DIVIDE == 2:
            value = quotient(value, taps_d * taps_h * taps_w + c * 0)
    elif not WITH_OFFSETS:
        value = best_of(best, 0, OP)
    else:
        value, offset = best_along(best, offset, 0, OP)
        # If no element beats the identity, the first is taken.
        offset = tl.where(offset == NO_OFFSET, 0, offset)
        if PARTS == 1:
            tl.store(y + half + to, (offset + first_w).to(BITS).to(COMPUTE, bitcast=True), mask=live)
        elif KIND == INDEX64:
            offset = offset.to(tl.int64)
            d = first_d + offset // kernel_w // kernel_h
            h = first_h + offset // kernel_w % kernel_h
            tl.store(extra + to, (d * size_h + h) * size_w + first_w + offset % kernel_w, mask=live)
        else:
            tl.store(extra + to, offset.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=_BACKWARD)
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
