"""Backward of max pooling with overlapping windows: a lane walks down one column of the result.

Windows of one row of outputs that take their value from the same column of inputs take the same element of
it: each of them contains every element of that column that the others contain. So a lane adds up the
gradients of a row of outputs that belong to its column, and any of them tells the row that the sum goes to.
The cost grows with the sum of a window's sides, not with their product. Stays for max pooling 5x5 with stride
1, 1.8 to 2.6 times as fast as `block_backward` and `walk_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import SIZES, base_of, lanes_of, split, wait_for_previous, within
from ndpool._triton.kernels.reducers import columns_of, tile_of, widen

_SIZES = [*SIZES, "size_d", "size_h", "out_d", "out_h", "out_w", "chunks", "height"]


@triton.jit
def _quotient(n, INVERSE: tl.constexpr, SHIFT: tl.constexpr):
    """n / divisor where that leaves no rest, and elsewhere a number far larger than any quotient of offsets.

    The divisor is an odd number, whose inverse modulo 2**32 is INVERSE, times 2**SHIFT.
    """
    found = (n * INVERSE).to(tl.uint32)
    if SHIFT > 0:
        found = (found >> SHIFT) | (found << (32 - SHIFT))
    return found


@triton.jit
def _outputs(grad, offsets, at, step, oks, N: tl.constexpr, COMPUTE: tl.constexpr):
    """Gradients and offsets of N outputs, or vectors of them, `step` apart; all loads come first."""
    g = ()
    taps = ()
    for m in tl.static_range(N):
        g = g + (tl.load(grad + at + m * step, mask=oks[m]),)
        taps = taps + (tl.load(offsets + at + m * step, mask=oks[m]),)
    wide = ()
    wide_taps = ()
    for m in tl.static_range(N):
        wide, wide_taps = wide + (widen(g[m], COMPUTE),), wide_taps + (taps[m].to(tl.int32),)
    return wide, wide_taps


@triton.jit
def _sum_of_column(
    g,
    taps,
    oks,
    last_tap,
    first,
    limit,
    BEGIN: tl.constexpr,
    VECTOR: tl.constexpr,
    N: tl.constexpr,
    STRIDE: tl.constexpr,
    INVERSE: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Sum of the gradients of N outputs of a row that take their value from a column, and their tap's row.

    The column is tap `last_tap` of the last of these outputs, which follow BEGIN in their tuples; oks has an
    element per VECTOR of them. Rows of taps are counted from `first`, and only those below `limit` count.
    Where there is no such output, the sum is 0 and the row is arbitrary.
    """
    for m in tl.static_range(N):
        row = _quotient(taps[BEGIN + m] - (last_tap + (N - 1 - m) * STRIDE), INVERSE, SHIFT) - first
        # What is masked is never a hit.
        hit = oks[(BEGIN + m) // VECTOR] & (row < limit)
        if m == 0:
            total = tl.where(hit, g[BEGIN + m], 0)
            taken = row
        else:
            total = tl.where(hit, total + g[BEGIN + m], total)
            taken = tl.where(hit, row, taken)
    return total, taken


@triton.jit
def _column_sums(
    grad,
    offsets,
    at,
    step,
    oks,
    last_tap,
    first,
    limit,
    COLUMNS: tl.constexpr,
    KW: tl.constexpr,
    SW: tl.constexpr,
    BEGIN: tl.constexpr,
    LOADS: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    INVERSE: tl.constexpr,
    SHIFT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """`_sum_of_column` for VEC channels of one column, or for VEC neighbouring columns, as a tile."""
    N: tl.constexpr = (KW + SW - 1) // SW
    g, taps = _outputs(grad, offsets, at, step, oks, LOADS, COMPUTE)
    if COLUMNS:
        each = ()
        each_tap = ()
        each_ok = ()
        for m in tl.static_range(LOADS):
            each, each_tap = each + columns_of(g[m], LANES, VEC), each_tap + columns_of(taps[m], LANES, VEC)
            each_ok = each_ok + (tl.reshape(oks[m], [LANES]),)
        totals = ()
        rows = ()
        for q in tl.static_range(VEC):
            total, taken = _sum_of_column(
                each, each_tap, each_ok, last_tap, first, limit, BEGIN + q, VEC, N, SW, INVERSE, SHIFT
            )
            totals, rows = totals + (total,), rows + (taken,)
        return tile_of(totals, 0, 1, LANES, VEC), tile_of(rows, 0, 1, LANES, VEC)
    else:
        return _sum_of_column(g, taps, oks, last_tap, first, limit, 0, 1, N, SW, INVERSE, SHIFT)


@triton.jit
def _added(sums, total, taken, N: tl.constexpr):
    """The sums of N rows, plus the total in the row where it is taken from."""
    found = ()
    for r in tl.static_range(N):
        found = found + (tl.where(taken == r, sums[r] + total, sums[r]),)
    return found


@triton.jit(do_not_specialize=_SIZES)
def column_backward_kernel(
    grad,
    offsets,
    result,
    n_lanes,
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
    m_s,
    m_d,
    x_c,
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
    out_d,
    out_h,
    out_w,
    chunks,
    height,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PD: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    INVERSE: tl.constexpr,
    SHIFT: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIRST: tl.constexpr,
    BEGIN: tl.constexpr,
    LOADS: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """`height` inputs of VEC neighbouring columns per lane, or of one column for each of VEC channels.

    Every row of outputs takes LOADS loads: of vectors from FIRST on, counted from the first column, the first
    BEGIN elements of which are not needed, or of all outputs that contain a column. A step along rows of None
    is 1. Strides are counted in vectors.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    chunk, d, block = split(pid, chunks, size_d, m_s, m_d, INT64)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64)
    along = tl.arange(0, VEC)[None, :]
    live = live[:, None]
    w = w[:, None]
    zero = w * 0
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS)[:, None] * VEC + d * x_d * VEC
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS)[:, None] * VEC
    oks = ()
    last_tap = 0
    if COLUMNS:
        # Vectors of outputs that contain a vector of columns; each lies entirely inside or outside.
        step = VEC
        first_w = w * VEC + FIRST
        for m in tl.static_range(LOADS):
            oks = oks + (within(live, first_w + m * VEC, out_w),)
        x_at = x_base + w * VEC + along
        y_at = y_base + first_w + along
    else:
        # All outputs of a row that contain the column, which is tap `last_tap` of the last of them.
        step = 1
        x_step = 1
        if y_w is not None:
            step = y_w * VEC
            x_step = x_w * VEC
        first_w = (w + PW) // SW - (LOADS - 1)
        if SW > 1:
            last_tap = (w + PW - (first_w + (LOADS - 1)) * SW).to(tl.int32)
        for m in tl.static_range(LOADS):
            ok = within(live, first_w + m, out_w)
            if KW % SW > 0 and m == 0:
                ok = ok & (w + PW - first_w * SW < KW)
            oks = oks + (ok,)
        x_at = x_base + w * x_step + along
        y_at = y_base + first_w * step + along
    begin = chunk * height
    end = tl.minimum(begin + height, size_h)
    sums = ()
    for _r in tl.static_range(KH):
        sums = sums + (tl.zeros([LANES, VEC], COMPUTE),)
    for oh in range(tl.maximum(0, begin + PH - KH + SH) // SH, (end - 1 + PH) // SH + 1):
        # Past the last row of outputs no tap counts.
        row_at = y_at + tl.minimum(oh, out_h - 1) * y_h * VEC
        for m in tl.static_range((KD + SD - 1) // SD):
            limit = tl.where(oh < out_h, KH, 0)
            at = row_at
            first = tl.zeros([], tl.uint32)
            if KD > 1:
                od = (d + PD) // SD - m
                inside = tl.maximum(0, tl.minimum(od, out_d - 1))
                at = row_at + inside * y_d * VEC
                limit = tl.where(od == inside, limit, 0)
                limit = tl.where(d + PD - od * SD < KD, limit, 0)
                first = ((d + PD - od * SD) * KH).to(tl.uint32)
            limit = limit.to(tl.uint32)
            total, taken = _column_sums(
                grad,
                offsets,
                at,
                step,
                oks,
                last_tap,
                first,
                limit,
                COLUMNS,
                KW,
                SW,
                BEGIN,
                LOADS,
                VEC,
                LANES,
                INVERSE,
                SHIFT,
                COMPUTE,
            )
            sums = _added(sums, total, taken, KH)
        h = oh * SH - PH
        to = x_at + h * x_h * VEC
        for r in tl.static_range(SH):
            done = within(live, zero + (h + r - begin), end - begin)
            tl.store(result + to + r * x_h * VEC, sums[r].to(result.dtype.element_ty), mask=done)
        left = ()
        for r in tl.static_range(KH):
            if r + SH < KH:
                left = left + (sums[r + SH],)
            else:
                left = left + (tl.zeros([LANES, VEC], COMPUTE),)
        sums = left
