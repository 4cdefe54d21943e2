"""Backward of max pooling with overlapping windows: a lane walks down one column of the result.

Windows of one row of outputs that take their value from the same column of inputs take the same element of
it: each of them contains every element of that column that the others contain. So a lane adds up the
gradients of a row of outputs that belong to its column, and any of them tells the row that the sum goes to.
The cost grows with the sum of a window's sides, not with their product. Stays for max pooling 5x5 with stride
1, 1.8 to 2.6 times as fast as `block_backward` and `walk_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    base_of,
    lanes_of,
    program_number,
    split,
    wait_for_previous,
    within,
)
from ndpool._triton.kernels.reducers import columns_of, tile_of, widen


class Block(NamedTuple):
    """VEC neighbouring columns per lane, or one column for each of VEC channels.

    Every row of outputs takes LOADS loads: of vectors of columns from FIRST on, counted from the first
    column, the first BEGIN elements of which are not needed, or of all outputs that contain a column. In
    volumes a lane takes PLANES planes, a multiple of the stride: outputs that contain several are read once.
    """

    INVERSE: Any  # of the odd part of a window's width, modulo 2**32
    SHIFT: Any  # the power of 2 in it
    COLUMNS: Any
    FIRST: Any
    BEGIN: Any
    LOADS: Any
    PLANES: Any
    VEC: Any
    LANES: Any


@triton.jit
def _quotient(n, BLOCK):
    """n / divisor where that leaves no rest, and elsewhere a number far larger than any quotient of offsets.

    The divisor is an odd number, whose inverse modulo 2**32 is INVERSE, times 2**SHIFT.
    """
    found = (n * BLOCK.INVERSE).to(tl.uint32)
    if BLOCK.SHIFT > 0:
        found = (found >> BLOCK.SHIFT) | (found << (32 - BLOCK.SHIFT))
    return found


@triton.jit
def _outputs(grad, offsets, at, step, oks, N: tl.constexpr):
    """Gradients and offsets of N outputs, or vectors of them, `step` apart."""
    g = ()
    taps = ()
    for m in tl.static_range(N):
        g = g + (tl.load(grad + at + m * step, mask=oks[m]),)
        taps = taps + (tl.load(offsets + at + m * step, mask=oks[m]),)
    return g, taps


@triton.jit
def _sum_of_column(g, taps, oks, last_tap, limit, BEGIN: tl.constexpr, WINDOW, BLOCK):
    """Sum of the gradients of a row's outputs that take their value from a column, and their tap's row.

    The column is tap `last_tap` of the last of these outputs, which follow BEGIN in their tuples. Rows of
    taps are counted through all planes of the window, and only those below `limit` count. Where there is no
    such output, the sum is 0 and the row is arbitrary.
    """
    N: tl.constexpr = (WINDOW.KW + WINDOW.SW - 1) // WINDOW.SW
    VECTOR: tl.constexpr = BLOCK.VEC if BLOCK.COLUMNS else 1
    for m in tl.static_range(N):
        row = _quotient(taps[BEGIN + m] - (last_tap + (N - 1 - m) * WINDOW.SW), BLOCK)
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
def _column_sums(given, given_taps, BEGIN: tl.constexpr, oks, last_tap, limit, WINDOW, BLOCK, GATHER):
    """`_sum_of_column` for VEC channels of one column, or for VEC neighbouring columns, as a tile.

    The row's outputs follow BEGIN in their tuples.
    """
    g = ()
    taps = ()
    each_ok = ()
    for m in tl.static_range(BLOCK.LOADS):
        wide = widen(given[BEGIN + m], GATHER.COMPUTE)
        tap = given_taps[BEGIN + m].to(tl.int32)
        if BLOCK.COLUMNS:
            g = g + columns_of(wide, BLOCK.LANES, BLOCK.VEC)
            taps = taps + columns_of(tap, BLOCK.LANES, BLOCK.VEC)
            each_ok = each_ok + (tl.reshape(oks[m], [BLOCK.LANES]),)
        else:
            g, taps, each_ok = g + (wide,), taps + (tap,), each_ok + (oks[m],)
    if BLOCK.COLUMNS:
        totals = ()
        rows = ()
        for q in tl.static_range(BLOCK.VEC):
            total, taken = _sum_of_column(g, taps, each_ok, last_tap, limit, BLOCK.BEGIN + q, WINDOW, BLOCK)
            totals, rows = totals + (total,), rows + (taken,)
        return tile_of(totals, 0, 1, BLOCK.LANES, BLOCK.VEC), tile_of(rows, 0, 1, BLOCK.LANES, BLOCK.VEC)
    else:
        return _sum_of_column(g, taps, each_ok, last_tap, limit, 0, WINDOW, BLOCK)


@triton.jit
def _lines(totals, rows, total, taken, FIRST: tl.constexpr, WINDOW, BLOCK):
    """Add the sum of a row of outputs to that of the line of inputs that it is taken from, if a lane has it.

    A lane has one line in each of its planes, along the walk; the first plane is tap FIRST, which may lie
    outside the window. Windows of several planes of outputs that take their value from one line take the same
    element of it, for the same reason as those of a row.
    """
    found = ()
    found_rows = ()
    for p in tl.static_range(BLOCK.PLANES):
        if FIRST + p < 0 or FIRST + p >= WINDOW.KD:
            found, found_rows = found + (totals[p],), found_rows + (rows[p],)
        elif WINDOW.KD == 1:
            found, found_rows = found + (total,), found_rows + (taken,)
        else:
            row = taken - (FIRST + p) * WINDOW.KH
            hit = row < WINDOW.KH
            found = found + (tl.where(hit, totals[p] + total, totals[p]),)
            found_rows = found_rows + (tl.where(hit, row, rows[p]),)
    return found, found_rows


@triton.jit
def _added(sums, totals, rows, WINDOW, BLOCK):
    """The sums of the rows of planes, with each plane's total added to the row that it is taken from."""
    found = ()
    for p in tl.static_range(BLOCK.PLANES):
        for r in tl.static_range(WINDOW.KH):
            old = sums[p * WINDOW.KH + r]
            found = found + (tl.where(rows[p] == r, old + totals[p], old),)
    return found


@triton.jit
def column_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    programs,
    x_strides,
    y_strides,
    sizes,
    outs,
    height,
    WINDOW,
    BLOCK,
    MEMORY,
    GATHER,
):
    """`height` rows of PLANES planes of neighbouring columns per lane. A step along rows of None is 1."""
    KD: tl.constexpr = WINDOW.KD
    KH: tl.constexpr = WINDOW.KH
    KW: tl.constexpr = WINDOW.KW
    SD: tl.constexpr = WINDOW.SD
    SH: tl.constexpr = WINDOW.SH
    SW: tl.constexpr = WINDOW.SW
    VEC: tl.constexpr = BLOCK.VEC
    PLANES: tl.constexpr = BLOCK.PLANES
    AFTER: tl.constexpr = PLANES // SD - 1  # more planes of outputs than contain the first planes
    DEEP: tl.constexpr = (KD + SD - 1) // SD + AFTER
    pid = program_number(MEMORY)
    wait_for_previous()
    chunk, d, block = split(pid, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64)
    live, c, w, _strip, l1, l2 = lanes_of(block, lanes, BLOCK.LANES, MEMORY)
    along = tl.arange(0, VEC)[None, :]
    live = live[:, None]
    w = w[:, None]
    zero = w * 0
    x_base = base_of(c, l1, l2, x_strides, MEMORY)[:, None] * VEC
    y_base = base_of(c, l1, l2, y_strides, MEMORY)[:, None] * VEC
    oks = ()
    last_tap = 0
    x_step = 1
    if BLOCK.COLUMNS:
        # Vectors of outputs that contain a vector of columns; each lies entirely inside or outside.
        step = VEC
        first_w = w * VEC + BLOCK.FIRST
        for m in tl.static_range(BLOCK.LOADS):
            oks = oks + (within(live, first_w + m * VEC, outs.w),)
        x_at = x_base + w * VEC + along
        y_at = y_base + first_w + along
    else:
        # All outputs of a row that contain the column, which is tap `last_tap` of the last of them.
        step = 1
        if y_strides.w is not None:
            step = y_strides.w * VEC
            x_step = x_strides.w * VEC
        first_w = (w - WINDOW.W) // SW - (BLOCK.LOADS - 1)
        if SW > 1:
            last_tap = (w - WINDOW.W - (first_w + (BLOCK.LOADS - 1)) * SW).to(tl.int32)
        for m in tl.static_range(BLOCK.LOADS):
            ok = within(live, first_w + m, outs.w)
            if KW % SW > 0 and m == 0:
                ok = ok & (w - WINDOW.W - first_w * SW < KW)
            oks = oks + (ok,)
        x_at = x_base + w * x_step + along
        y_at = y_base + first_w * step + along
    begin = chunk * height
    end = tl.minimum(begin + height, sizes.h)
    sums = ()
    for _r in tl.static_range(PLANES * KH):
        sums = sums + (tl.zeros([BLOCK.LANES, VEC], GATHER.COMPUTE),)
    # The planes begin where a window does; then the last plane of outputs that contains any of them.
    first_d = d * PLANES - (-WINDOW.D) % SD
    last_od = d * (AFTER + 1) + (-WINDOW.D) // SD + AFTER
    for oh in range(tl.maximum(0, begin - WINDOW.H - KH + SH) // SH, (end - 1 - WINDOW.H) // SH + 1):
        # Past the last row of outputs no tap counts.
        row_at = y_at + tl.minimum(oh, outs.h - 1) * y_strides.h * VEC
        # All loads come first.
        g = ()
        taps = ()
        for m in tl.static_range(DEEP):
            at = row_at
            if programs.d is not None:
                at = row_at + tl.maximum(0, tl.minimum(last_od - m, outs.d - 1)) * y_strides.d * VEC
            found, found_taps = _outputs(grad, offsets, at, step, oks, BLOCK.LOADS)
            g, taps = g + found, taps + found_taps
        totals = ()
        rows = ()
        for _p in tl.static_range(PLANES):
            totals = totals + (tl.zeros([BLOCK.LANES, VEC], GATHER.COMPUTE),)
            rows = rows + (tl.zeros([BLOCK.LANES, VEC], tl.uint32),)
        for m in tl.static_range(DEEP):
            limit = tl.where(oh < outs.h, KD * KH, 0)
            if programs.d is not None:
                limit = tl.where((last_od >= m) & (last_od - m < outs.d), limit, 0)
            limit = limit.to(tl.uint32)
            total, taken = _column_sums(g, taps, m * BLOCK.LOADS, oks, last_tap, limit, WINDOW, BLOCK, GATHER)
            totals, rows = _lines(totals, rows, total, taken, (m - AFTER) * SD, WINDOW, BLOCK)
        sums = _added(sums, totals, rows, WINDOW, BLOCK)
        h = oh * SH + WINDOW.H
        for p in tl.static_range(PLANES):
            n = end - begin
            if PLANES > 1:
                n = tl.where((first_d + p >= 0) & (first_d + p < sizes.d), n, 0)
            to = x_at + (first_d + p) * x_strides.d * VEC + h * x_strides.h * VEC
            for r in tl.static_range(SH):
                done = within(live, zero + (h + r - begin), n)
                value = sums[p * KH + r].to(result.dtype.element_ty)
                tl.store(result + to + r * x_strides.h * VEC, value, mask=done)
        left = ()
        for p in tl.static_range(PLANES):
            for r in tl.static_range(KH):
                if r + SH < KH:
                    left = left + (sums[p * KH + r + SH],)
                else:
                    left = left + (tl.zeros([BLOCK.LANES, VEC], GATHER.COMPUTE),)
        sums = left
