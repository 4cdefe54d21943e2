"""The strip kernel: regular windows without dilation.

A lane computes a short vector of outputs: neighbours along the last pooled axis if that is contiguous,
channels if those are, or a single output. Each input row is reduced once along the last axis; the results
stay in registers and are then reduced down the window.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    INDEX64,
    as_column,
    base_of,
    lanes_of,
    launch_dependents,
    program_number,
    split,
    wait_for_previous,
    within,
)
from ndpool._triton.kernels.reducers import (
    around_core,
    columns_of,
    divided,
    element,
    load_or_identity,
    merge,
    reduce_windows,
    root,
    scaled,
    share_of,
    tile_of,
)


class Block(NamedTuple):
    """What a lane computes: ROWS x VEC outputs from vectors of columns, or ROWS x OUTS for VEC channels."""

    COLUMNS: Any
    FIRST: Any  # the first vector of columns, and the first tap in it
    SHIFT: Any
    VECTORS: Any  # per row, of VECTOR columns
    VECTOR: Any
    X_UNIT: Any  # elements that strides count
    Y_UNIT: Any
    VEC: Any
    OUTS: Any
    ROWS: Any  # at a time, if lanes walk
    LANES: Any
    EDGES: Any  # whether columns may lie beside the input
    PADDED: Any
    LOOP_H: Any  # whether taps are looped over instead of unrolled
    LOOP_W: Any
    WALK: Any  # whether lanes walk down the rows and keep what later windows need
    EVICT: Any


class Loops(NamedTuple):
    """Numbers of taps that loops must not know when compiled, and what else depends on sizes."""

    kernel_h: Any
    kernel_w: Any
    taps: Any  # of a norm
    launch_next: Any
    height: Any  # rows of outputs of a walk


@triton.jit
def _part(line, first, column, size_w, ok, BEGIN: tl.constexpr, END: tl.constexpr, BLOCK, REDUCE):
    """The columns of a vector, of which those from BEGIN to END are needed; others may be anything."""
    VECTOR: tl.constexpr = BLOCK.VECTOR
    NEEDED: tl.constexpr = END - BEGIN if BEGIN == 0 or END == VECTOR else VECTOR
    WIDTH: tl.constexpr = 1 if NEEDED == 1 else 2 if NEEDED == 2 else 4 if NEEDED <= 4 else VECTOR
    AT: tl.constexpr = VECTOR - WIDTH if BEGIN > 0 else 0
    # Vectors lie entirely inside or outside the input.
    there = within(ok, first + column, size_w)
    if WIDTH == 1:
        at = line + (column + AT)
        found = (element(load_or_identity(at, there, REDUCE, BLOCK.EVICT), REDUCE),)
    else:
        at = line[:, None] + (column + AT + tl.arange(0, WIDTH))[None, :]
        tile = element(load_or_identity(at, there[:, None], REDUCE, BLOCK.EVICT), REDUCE)
        found = columns_of(tile, BLOCK.LANES, WIDTH)
    columns = ()
    for j in tl.static_range(VECTOR):
        if j >= AT and j < AT + WIDTH:
            columns = columns + (found[j - AT],)
        else:
            columns = columns + (found[0],)
    return columns


@triton.jit
def _columns(x, base, w, size_w, ok, kernel_w, WINDOW, BLOCK, REDUCE):
    """VEC windows of one row from vectors of neighbouring columns, as a tile (lanes, VEC); see `_row`."""
    WITH_OFFSETS: tl.constexpr = REDUCE.KIND != 0
    KW: tl.constexpr = WINDOW.KW
    SHIFT: tl.constexpr = BLOCK.SHIFT
    VEC: tl.constexpr = BLOCK.VEC
    VECTOR: tl.constexpr = BLOCK.VECTOR
    LAST: tl.constexpr = SHIFT + (VEC - 1) * WINDOW.SW + KW
    # Vectors that all windows contain are looped over if there are many.
    CORE: tl.constexpr = (SHIFT + VEC - 1) // VECTOR + 1 if BLOCK.LOOP_W else BLOCK.VECTORS
    CORE_END: tl.constexpr = (SHIFT + KW) // VECTOR if BLOCK.LOOP_W else BLOCK.VECTORS
    zero = tl.zeros([BLOCK.LANES], tl.int32)
    first = w * (VEC * WINDOW.SW)
    line = x + base + first  # the rest is constant: immediate offsets of the loads
    v = ()
    offsets = ()
    for i in tl.static_range(BLOCK.VECTORS):
        if i < CORE or i >= CORE_END:
            v = v + _part(
                line,
                first,
                (BLOCK.FIRST + i) * VECTOR,
                size_w,
                ok,
                SHIFT if i == 0 else 0,
                min(VECTOR, LAST - i * VECTOR),
                BLOCK,
                REDUCE,
            )
        else:
            for _j in tl.static_range(VECTOR):
                v = v + (v[0],)
        for j in tl.static_range(VECTOR):
            offsets = offsets + (zero + (i * VECTOR + j - SHIFT),)
    if BLOCK.LOOP_W:
        core, core_offset = v[SHIFT + VEC - 1], offsets[SHIFT + VEC - 1]
        for i in tl.static_range(SHIFT + VEC, CORE * VECTOR):
            core, core_offset = merge(core, core_offset, v[i], offsets[i], REDUCE)
        for i in range(CORE, (SHIFT + kernel_w) // VECTOR):
            found = _part(line, first, (BLOCK.FIRST + i) * VECTOR, size_w, ok, 0, VECTOR, BLOCK, REDUCE)
            for j in tl.static_range(VECTOR):
                offset = zero + (i * VECTOR + (j - SHIFT))
                core, core_offset = merge(core, core_offset, found[j], offset, REDUCE)
        for i in tl.static_range(CORE_END * VECTOR, SHIFT + KW):
            core, core_offset = merge(core, core_offset, v[i], offsets[i], REDUCE)
        left = ()
        left_offsets = ()
        right = ()
        right_offsets = ()
        for i in tl.static_range(VEC - 1):
            left, left_offsets = left + (v[SHIFT + i],), left_offsets + (offsets[SHIFT + i],)
            right, right_offsets = right + (v[SHIFT + KW + i],), right_offsets + (offsets[SHIFT + KW + i],)
        v, offsets = around_core(left, left_offsets, core, core_offset, right, right_offsets, VEC, REDUCE)
    else:
        v, offsets = reduce_windows(v, offsets, VEC, SHIFT, KW, WINDOW.SW, REDUCE)
    best = tile_of(v, 0, 1, BLOCK.LANES, VEC)
    offset = best
    if WITH_OFFSETS:
        offset = tile_of(offsets, 0, 1, BLOCK.LANES, VEC) - tl.arange(0, VEC)[None, :] * WINDOW.SW
    return (best,), (offset,)


@triton.jit
def _channel(x, base, column, step, size_w, ok, BLOCK, REDUCE):
    """One column of VEC channels."""
    there = ok
    if BLOCK.EDGES:
        there = within(ok, column, size_w)
    at = (base + column * step)[:, None] + tl.arange(0, BLOCK.VEC)[None, :]
    return element(load_or_identity(x + at, there[:, None], REDUCE), REDUCE)


@triton.jit
def _channels(x, base, w, x_w, size_w, ok, kernel_w, WINDOW, BLOCK, REDUCE):
    """OUTS windows of one row, each as a tile (lanes, VEC) of channels."""
    KW: tl.constexpr = WINDOW.KW
    SW: tl.constexpr = WINDOW.SW
    OUTS: tl.constexpr = BLOCK.OUTS
    zero = tl.zeros([BLOCK.LANES, BLOCK.VEC], tl.int32)
    first = w * (OUTS * SW) + WINDOW.W
    step = x_w * BLOCK.X_UNIT
    if BLOCK.LOOP_W:
        left = ()
        left_offsets = ()
        right = ()
        right_offsets = ()
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + t, step, size_w, ok, BLOCK, REDUCE)
            left, left_offsets = left + (v,), left_offsets + (zero + t,)
        core = _channel(x, base, first + (OUTS - 1), step, size_w, ok, BLOCK, REDUCE)
        core_offset = zero + (OUTS - 1)
        for t in tl.range(OUTS, kernel_w, loop_unroll_factor=4):
            v = _channel(x, base, first + t, step, size_w, ok, BLOCK, REDUCE)
            core, core_offset = merge(core, core_offset, v, zero + t, REDUCE)
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + (KW + t), step, size_w, ok, BLOCK, REDUCE)
            right, right_offsets = right + (v,), right_offsets + (zero + (KW + t),)
        if OUTS == 1:
            v, offsets = (core,), (core_offset,)
        else:
            v, offsets = around_core(
                left, left_offsets, core, core_offset, right, right_offsets, OUTS, REDUCE
            )
    else:
        v = ()
        offsets = ()
        for t in tl.static_range((OUTS - 1) * SW + KW):
            if t % SW < KW:
                one = _channel(x, base, first + t, step, size_w, ok, BLOCK, REDUCE)
            v, offsets = v + (one,), offsets + (zero + t,)
        v, offsets = reduce_windows(v, offsets, OUTS, 0, KW, SW, REDUCE)
    if REDUCE.KIND != 0:
        taps = ()
        for q in tl.static_range(OUTS):
            taps = taps + (offsets[q] - q * SW,)
        offsets = taps
    return v, offsets


@triton.jit
def _row(height, number, x, plane, w, strides, sizes, inside, kernel_w, WINDOW, BLOCK, REDUCE):
    """Windows of one input row: a tuple of OUTS tiles, and their offsets, or again the tiles."""
    ok = within(inside, height + w * 0, sizes.h)
    base = plane + height * strides.h * BLOCK.X_UNIT
    if BLOCK.COLUMNS:
        v, offsets = _columns(x, base, w, sizes.w, ok, kernel_w, WINDOW, BLOCK, REDUCE)
    else:
        v, offsets = _channels(x, base, w, strides.w, sizes.w, ok, kernel_w, WINDOW, BLOCK, REDUCE)
    if REDUCE.KIND != 0:
        taps = ()
        for q in tl.static_range(BLOCK.OUTS):
            taps = taps + ((offsets[q] + number * WINDOW.KW).to(tl.int32),)
        offsets = taps
    else:
        offsets = v
    return v, offsets


@triton.jit
def _down(rows, row_offsets, N: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, BLOCK, REDUCE):
    """N windows down the rows of each output: of output q of row r at r * OUTS + q, to q * N + o."""
    OUTS: tl.constexpr = BLOCK.OUTS
    values = ()
    offsets = ()
    for q in tl.static_range(OUTS):
        mine = ()
        my_offsets = ()
        for r in tl.static_range((N - 1) * STRIDE + KERNEL):
            mine, my_offsets = mine + (rows[r * OUTS + q],), my_offsets + (row_offsets[r * OUTS + q],)
        mine, my_offsets = reduce_windows(mine, my_offsets, N, 0, KERNEL, STRIDE, REDUCE)
        values, offsets = values + mine, offsets + my_offsets
    return values, offsets


@triton.jit
def _merge_all(a, a_offsets, b, b_offsets, N: tl.constexpr, REDUCE):
    values = ()
    offsets = ()
    for i in tl.static_range(N):
        v, offset = merge(a[i], a_offsets[i], b[i], b_offsets[i], REDUCE)
        if REDUCE.KIND == 0:
            offset = v
        values, offsets = values + (v,), offsets + (offset,)
    return values, offsets


@triton.jit
def _rows_of_strip(first_h, first_tap, given, kernel_h, WINDOW, BLOCK, REDUCE):
    """Windows of the ROWS rows of a strip in one plane, whose first tap has the given number."""
    KH: tl.constexpr = WINDOW.KH
    ROWS: tl.constexpr = BLOCK.ROWS
    rows = ()  # row r of output q at r * OUTS + q
    row_offsets = ()
    # Rows that all windows contain are looped over if there are many; they are merged at ROWS - 1.
    for r in tl.static_range(2 * ROWS - 1 if BLOCK.LOOP_H else (ROWS - 1) * WINDOW.SH + KH):
        if r % WINDOW.SH < KH or BLOCK.LOOP_H:
            row = r + (KH - ROWS) * (r >= ROWS) if BLOCK.LOOP_H else r
            v, offset = _row(first_h + row, first_tap + row, *given, WINDOW, BLOCK, REDUCE)
            if BLOCK.LOOP_H and r == ROWS - 1:
                for more in range(ROWS, kernel_h):
                    later, later_offset = _row(
                        first_h + more, first_tap + more, *given, WINDOW, BLOCK, REDUCE
                    )
                    v, offset = _merge_all(v, offset, later, later_offset, BLOCK.OUTS, REDUCE)
        rows, row_offsets = rows + v, row_offsets + offset
    if BLOCK.LOOP_H:
        return _down(rows, row_offsets, ROWS, ROWS, 1, BLOCK, REDUCE)
    else:
        return _down(rows, row_offsets, ROWS, KH, WINDOW.SH, BLOCK, REDUCE)


@triton.jit
def _store_rows(
    values,
    offsets,
    number,
    begin,
    live,
    n_rows,
    to,
    strides,
    sizes,
    outs,
    division,
    bounds,
    taps,
    WINDOW,
    BLOCK,
    REDUCE,
):
    """ROWS rows of outputs, from row `number` of the strip that starts at `begin` on.

    Offsets are counted from the first input row of the strip. Only rows from 0 to `n_rows` are written.
    """
    y, extra, base, od, w, lanes = to
    VEC: tl.constexpr = BLOCK.VEC
    zero = w * 0
    along = tl.arange(0, VEC)[None, :]
    first_d = od * WINDOW.SD + WINDOW.D
    for o in tl.static_range(BLOCK.ROWS):
        oh = begin + number + o
        lead = tl.maximum(0, zero - first_d) * WINDOW.KH
        lead += tl.maximum(0, zero - (oh * WINDOW.SH + WINDOW.H))
        oh = as_column(oh, lanes)
        first_h = oh * WINDOW.SH + WINDOW.H
        there = within(live, number + o + zero, n_rows)
        for q in tl.static_range(BLOCK.OUTS):
            ok = there[:, None]
            if BLOCK.COLUMNS:
                ow = w[:, None] * VEC + along
                at = base[:, None] + ow
            else:
                column = w * BLOCK.OUTS + q
                ow = column[:, None] + along * 0
                at = (base + column * strides.w * BLOCK.Y_UNIT)[:, None] + along
            if (BLOCK.COLUMNS and BLOCK.Y_UNIT < VEC) or BLOCK.OUTS > 1:
                ok = ok & (ow < outs.w)
            at = at + (od * strides.d + oh * strides.h) * BLOCK.Y_UNIT
            first_w = ow * WINDOW.SW + WINDOW.W
            v = values[q * BLOCK.ROWS + o]
            by = division.by
            if REDUCE.DIVIDE == 2:
                by = share_of(first_d, WINDOW.KD, 1, bounds.lo_d, bounds.hi_d)
                by = by * share_of(first_h, WINDOW.KH, 1, bounds.lo_h, bounds.hi_h)
                by = by * share_of(first_w, WINDOW.KW, 1, bounds.lo_w, bounds.hi_w)
            v = root(divided(v, by, division.inverse, REDUCE), taps, REDUCE)
            v = scaled(v, extra + at, ok, REDUCE.SCALED)
            tl.store(y + at, v.to(y.dtype.element_ty), mask=ok)
            if REDUCE.KIND != 0:
                offset = offsets[q * BLOCK.ROWS + o] - (number + o) * (WINDOW.SH * WINDOW.KW)
                if BLOCK.PADDED:
                    # If no element beats the padding, the first element is taken.
                    least = lead[:, None] * WINDOW.KW + tl.maximum(0, -first_w)
                    offset = tl.maximum(offset, least.to(tl.int32))
                if REDUCE.KIND == INDEX64:
                    place = offset.to(tl.int64)
                    d = place // (WINDOW.KH * WINDOW.KW) + first_d
                    h = place // WINDOW.KW % WINDOW.KH + first_h
                    index = (d * sizes.h + h) * sizes.w + (first_w + place % WINDOW.KW)
                    tl.store(extra + at, index, mask=ok)
                else:
                    tl.store(extra + at, offset.to(extra.dtype.element_ty), mask=ok)


@triton.jit
def _nothing(N: tl.constexpr, STEP: tl.constexpr, BLOCK, REDUCE):
    """N tiles without elements; their offsets are those of the first taps, which rows have STEP apart."""
    values = ()
    offsets = ()
    for i in tl.static_range(N):
        v = tl.full([BLOCK.LANES, BLOCK.VEC], REDUCE.IDENTITY, REDUCE.COMPUTE)
        offset = v
        if REDUCE.KIND != 0:
            offset = tl.full([BLOCK.LANES, BLOCK.VEC], i % BLOCK.ROWS * STEP, tl.int32)
        values, offsets = values + (v,), offsets + (offset,)
    return values, offsets


@triton.jit
def strip_forward_kernel(
    x,
    y,
    extra,
    lanes,
    programs,
    x_strides,
    y_strides,
    sizes,
    outs,
    bounds,
    division,
    loops,
    WINDOW,
    BLOCK,
    MEMORY,
    REDUCE,
):
    """ROWS x VEC outputs per lane, or ROWS x OUTS for each of VEC channels; or a walk over more rows."""
    KD: tl.constexpr = WINDOW.KD
    KH: tl.constexpr = WINDOW.KH
    SH: tl.constexpr = WINDOW.SH
    ROWS: tl.constexpr = BLOCK.ROWS
    OUTS: tl.constexpr = BLOCK.OUTS
    pid = program_number(MEMORY)
    strip, od, block = split(
        pid, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64
    )
    live, c, w, row, l1, l2 = lanes_of(block, lanes, BLOCK.LANES, MEMORY)
    if lanes.strips is not None:
        strip = row
    x_base = base_of(c, l1, l2, x_strides, MEMORY) * BLOCK.X_UNIT
    y_base = base_of(c, l1, l2, y_strides, MEMORY) * BLOCK.Y_UNIT
    zero = w * 0  # makes masks vectors: the interpreter takes a scalar bool for an integer
    if loops.launch_next is not None:
        if loops.launch_next > 0:
            launch_dependents()
    wait_for_previous()
    to = (y, extra, y_base, od, w, lanes)
    target = (to, y_strides, sizes, outs, division, bounds, loops.taps)
    depth = od * WINDOW.SD + WINDOW.D
    inside = within(live, depth + zero, sizes.d)
    plane = x_base + depth * x_strides.d * BLOCK.X_UNIT
    if BLOCK.WALK:
        AHEAD: tl.constexpr = (KH + SH - 1) // SH - 1  # outputs whose windows are not complete
        begin = strip * loops.height
        n_rows = tl.minimum(loops.height, outs.h - begin)
        first_h = begin * SH + WINDOW.H
        given = (x, plane, w, x_strides, sizes, inside, loops.kernel_w)
        kept, kept_offsets = _nothing(OUTS * AHEAD * SH, 0, BLOCK, REDUCE)
        for start in range(0, n_rows + AHEAD, ROWS):
            rows = kept
            row_offsets = kept_offsets
            for r in tl.static_range(ROWS * SH):
                number = start * SH + r
                v, offset = _row(first_h + number, number, *given, WINDOW, BLOCK, REDUCE)
                rows, row_offsets = rows + v, row_offsets + offset
            if start + ROWS > AHEAD:  # the first window is complete
                values, offsets = _down(rows, row_offsets, ROWS, KH, SH, BLOCK, REDUCE)
                _store_rows(
                    values, offsets, start - AHEAD, begin, live, n_rows, *target, WINDOW, BLOCK, REDUCE
                )
            kept = ()
            kept_offsets = ()
            for k in tl.static_range(OUTS * AHEAD * SH):
                kept = kept + (rows[OUTS * ROWS * SH + k],)
                kept_offsets = kept_offsets + (row_offsets[OUTS * ROWS * SH + k],)
    else:
        first_h = strip * (ROWS * SH) + WINDOW.H
        if KD == 1:
            given = (x, plane, w, x_strides, sizes, inside, loops.kernel_w)
            values, offsets = _rows_of_strip(first_h, 0, given, loops.kernel_h, WINDOW, BLOCK, REDUCE)
        else:
            values, offsets = _nothing(ROWS * OUTS, SH * WINDOW.KW, BLOCK, REDUCE)
            for td in range(KD):
                inside = within(live, depth + td + zero, sizes.d)
                here = plane + td * x_strides.d * BLOCK.X_UNIT
                given = (x, here, w, x_strides, sizes, inside, loops.kernel_w)
                found, found_offsets = _rows_of_strip(
                    first_h, td * KH, given, loops.kernel_h, WINDOW, BLOCK, REDUCE
                )
                values, offsets = _merge_all(values, offsets, found, found_offsets, ROWS * OUTS, REDUCE)
        n_rows = outs.h
        if outs.h is not None:
            n_rows = outs.h - strip * ROWS
        _store_rows(values, offsets, 0, strip * ROWS, live, n_rows, *target, WINDOW, BLOCK, REDUCE)
