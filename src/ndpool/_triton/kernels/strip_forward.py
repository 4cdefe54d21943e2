"""The strip kernel: regular windows without dilation.

A lane computes a short vector of outputs: neighbours along the last pooled axis if that is contiguous,
channels if those are, or a single output. Each input row is reduced once along the last axis; the results
stay in registers and are then reduced down the window.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    AXES,
    INDEX64,
    SIZES,
    base_of,
    lanes_of,
    launch_dependents,
    outputs_of,
    split,
    wait_for_previous,
    within,
)
from ndpool._triton.kernels.reducers import (
    SUM,
    around_core,
    columns_of,
    element,
    load_or_identity,
    merge,
    positive_zero,
    quotient,
    quotient_by_inverse,
    reduce_windows,
    root,
    scaled,
    share_of,
    tile_of,
)

# The kernel size is known, but a loop with an unknown bound is not unrolled.
_SIZES = [*SIZES, *AXES, "strips", "taps", "launch_next", "height"]
_SIZES = [name for name in _SIZES if not name.startswith("origin") and name != "kernel_d"]


@triton.jit
def _part(
    line,
    first,
    column,
    size_w,
    ok,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    VECTOR: tl.constexpr,
    LANES: tl.constexpr,
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The columns of a vector, of which those from BEGIN to END are needed; others may be anything."""
    NEEDED: tl.constexpr = END - BEGIN if BEGIN == 0 or END == VECTOR else VECTOR
    WIDTH: tl.constexpr = 1 if NEEDED == 1 else 2 if NEEDED == 2 else 4 if NEEDED <= 4 else VECTOR
    AT: tl.constexpr = VECTOR - WIDTH if BEGIN > 0 else 0
    # Vectors lie entirely inside or outside the input.
    there = within(ok, first + column, size_w)
    if WIDTH == 1:
        at = line + (column + AT)
        found = (element(load_or_identity(at, there, IDENTITY, COMPUTE, EVICT), OP, COMPUTE),)
    else:
        at = line[:, None] + (column + AT + tl.arange(0, WIDTH))[None, :]
        tile = element(load_or_identity(at, there[:, None], IDENTITY, COMPUTE, EVICT), OP, COMPUTE)
        found = columns_of(tile, LANES, WIDTH)
    columns = ()
    for j in tl.static_range(VECTOR):
        if j >= AT and j < AT + WIDTH:
            columns = columns + (found[j - AT],)
        else:
            columns = columns + (found[0],)
    return columns


@triton.jit
def _columns(
    x,
    base,
    w,
    size_w,
    ok,
    kernel_w,
    KW: tl.constexpr,
    SW: tl.constexpr,
    FIRST_VECTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    LOOP: tl.constexpr,
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """VEC windows of one row from vectors of neighbouring columns, as a tile (lanes, VEC); see `_row`."""
    LAST: tl.constexpr = SHIFT + (VEC - 1) * SW + KW
    # Vectors that all windows contain are looped over if there are many.
    CORE: tl.constexpr = (SHIFT + VEC - 1) // VECTOR + 1 if LOOP else VECTORS
    CORE_END: tl.constexpr = (SHIFT + KW) // VECTOR if LOOP else VECTORS
    zero = tl.zeros([LANES], tl.int32)
    first = w * (VEC * SW)
    line = x + base + first  # the rest is constant: immediate offsets of the loads
    v = ()
    offsets = ()
    for i in tl.static_range(VECTORS):
        if i < CORE or i >= CORE_END:
            found = _part(
                line,
                first,
                (FIRST_VECTOR + i) * VECTOR,
                size_w,
                ok,
                SHIFT if i == 0 else 0,
                min(VECTOR, LAST - i * VECTOR),
                VECTOR,
                LANES,
                EVICT,
                OP,
                IDENTITY,
                COMPUTE,
            )
            v = v + found
        else:
            for _j in tl.static_range(VECTOR):
                v = v + (v[0],)
        for j in tl.static_range(VECTOR):
            offsets = offsets + (zero + (i * VECTOR + j - SHIFT),)
    if LOOP:
        core, core_offset = v[SHIFT + VEC - 1], offsets[SHIFT + VEC - 1]
        for i in tl.static_range(SHIFT + VEC, CORE * VECTOR):
            core, core_offset = merge(core, core_offset, v[i], offsets[i], OP, WITH_OFFSETS)
        for i in range(CORE, (SHIFT + kernel_w) // VECTOR):
            column = (FIRST_VECTOR + i) * VECTOR
            found = _part(
                line,
                first,
                column,
                size_w,
                ok,
                0,
                VECTOR,
                VECTOR,
                LANES,
                EVICT,
                OP,
                IDENTITY,
                COMPUTE,
            )
            for j in tl.static_range(VECTOR):
                core, core_offset = merge(
                    core, core_offset, found[j], zero + (i * VECTOR + (j - SHIFT)), OP, WITH_OFFSETS
                )
        for i in tl.static_range(CORE_END * VECTOR, SHIFT + KW):
            core, core_offset = merge(core, core_offset, v[i], offsets[i], OP, WITH_OFFSETS)
        left = ()
        left_offsets = ()
        right = ()
        right_offsets = ()
        for i in tl.static_range(VEC - 1):
            left, left_offsets = left + (v[SHIFT + i],), left_offsets + (offsets[SHIFT + i],)
            right, right_offsets = right + (v[SHIFT + KW + i],), right_offsets + (offsets[SHIFT + KW + i],)
        v, offsets = around_core(
            left, left_offsets, core, core_offset, right, right_offsets, VEC, OP, WITH_OFFSETS
        )
    else:
        v, offsets = reduce_windows(v, offsets, VEC, SHIFT, KW, SW, OP, WITH_OFFSETS)
    best = tile_of(v, 0, 1, LANES, VEC)
    offset = best
    if WITH_OFFSETS:
        offset = tile_of(offsets, 0, 1, LANES, VEC) - tl.arange(0, VEC)[None, :] * SW
    return (best,), (offset,)


@triton.jit
def _channel(
    x,
    base,
    column,
    step,
    size_w,
    ok,
    VEC: tl.constexpr,
    EDGES: tl.constexpr,
    OP: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One column of VEC channels."""
    there = ok
    if EDGES:
        there = within(ok, column, size_w)
    at = (base + column * step)[:, None] + tl.arange(0, VEC)[None, :]
    return element(load_or_identity(x + at, there[:, None], IDENTITY, COMPUTE), OP, COMPUTE)


@triton.jit
def _channels(
    x,
    base,
    w,
    x_w,
    size_w,
    ok,
    kernel_w,
    KW: tl.constexpr,
    SW: tl.constexpr,
    ORIGIN_W: tl.constexpr,
    UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
    LANES: tl.constexpr,
    EDGES: tl.constexpr,
    LOOP: tl.constexpr,
    OP: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """OUTS windows of one row, each as a tile (lanes, VEC) of channels."""
    zero = tl.zeros([LANES, VEC], tl.int32)
    first = w * (OUTS * SW) + ORIGIN_W
    step = x_w * UNIT
    if LOOP:
        left = ()
        left_offsets = ()
        right = ()
        right_offsets = ()
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, IDENTITY, COMPUTE)
            left, left_offsets = left + (v,), left_offsets + (zero + t,)
        core = _channel(x, base, first + (OUTS - 1), step, size_w, ok, VEC, EDGES, OP, IDENTITY, COMPUTE)
        core_offset = zero + (OUTS - 1)
        for t in tl.range(OUTS, kernel_w, loop_unroll_factor=4):
            v = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, IDENTITY, COMPUTE)
            core, core_offset = merge(core, core_offset, v, zero + t, OP, WITH_OFFSETS)
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + (KW + t), step, size_w, ok, VEC, EDGES, OP, IDENTITY, COMPUTE)
            right, right_offsets = right + (v,), right_offsets + (zero + (KW + t),)
        if OUTS == 1:
            v, offsets = (core,), (core_offset,)
        else:
            v, offsets = around_core(
                left, left_offsets, core, core_offset, right, right_offsets, OUTS, OP, WITH_OFFSETS
            )
    else:
        v = ()
        offsets = ()
        for t in tl.static_range((OUTS - 1) * SW + KW):
            if t % SW < KW:
                one = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, IDENTITY, COMPUTE)
            v, offsets = v + (one,), offsets + (zero + t,)
        v, offsets = reduce_windows(v, offsets, OUTS, 0, KW, SW, OP, WITH_OFFSETS)
    if WITH_OFFSETS:
        taps = ()
        for q in tl.static_range(OUTS):
            taps = taps + (offsets[q] - q * SW,)
        offsets = taps
    return v, offsets


@triton.jit(do_not_specialize=_SIZES)
def strip_forward_kernel(
    x,
    y,
    extra,
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
    size_w,
    out_d,
    out_h,
    out_w,
    lo_d,
    hi_d,
    lo_h,
    hi_h,
    lo_w,
    hi_w,
    divisor,
    inverse,
    strips,
    kernel_h,
    kernel_w,
    taps,
    launch_next,
    height,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    ORIGIN_D: tl.constexpr,
    ORIGIN_H: tl.constexpr,
    ORIGIN_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIRST_VECTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    EDGES: tl.constexpr,
    PADDED: tl.constexpr,
    LOOP_H: tl.constexpr,
    LOOP_W: tl.constexpr,
    WALK: tl.constexpr,
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    SCALED: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """ROWS x VEC outputs per lane, or ROWS x OUTS for each of VEC channels."""
    WITH_OFFSETS: tl.constexpr = KIND != 0
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    strip, od, block = split(pid, strips, out_d, m_s, m_d, INT64)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT
    zero = w * 0  # makes masks vectors: the interpreter takes a scalar bool for an integer
    if launch_next is not None:
        if launch_next > 0:
            launch_dependents()
    wait_for_previous()
    target = (
        y,
        extra,
        od,
        w,
        y_base,
        y_d,
        y_h,
        y_w,
        size_h,
        size_w,
        out_w,
        lo_d,
        hi_d,
        lo_h,
        hi_h,
        lo_w,
        hi_w,
        divisor,
        inverse,
        taps,
    )
    if WALK:
        begin = strip * height
        n_rows = tl.minimum(height, out_h - begin)
        depth = od * SD + ORIGIN_D
        inside = within(live, depth + zero, size_d)
        plane = x_base + depth * x_d * X_UNIT
        kept = ()  # the last KH - 1 rows
        kept_offsets = ()
        for _k in tl.static_range(OUTS * (KH - 1)):
            kept = kept + (tl.full([LANES, VEC], IDENTITY, COMPUTE),)
            if WITH_OFFSETS:
                kept_offsets = kept_offsets + (tl.zeros([LANES, VEC], tl.int32),)
            else:
                kept_offsets = kept
        for start in range(0, n_rows + (KH - 1), ROWS):
            rows = kept
            row_offsets = kept_offsets
            for r in tl.static_range(ROWS):
                v, offset = _row(
                    begin + ORIGIN_H + start + r,
                    start + r,
                    x,
                    plane,
                    w,
                    x_h,
                    x_w,
                    size_h,
                    size_w,
                    inside,
                    kernel_w,
                    KW,
                    SW,
                    ORIGIN_W,
                    COLUMNS,
                    FIRST_VECTOR,
                    SHIFT,
                    VECTORS,
                    VECTOR,
                    X_UNIT,
                    VEC,
                    OUTS,
                    LANES,
                    EDGES,
                    LOOP_W,
                    EVICT,
                    OP,
                    WITH_OFFSETS,
                    IDENTITY,
                    COMPUTE,
                )
                if not WITH_OFFSETS:
                    offset = v  # of the same type in all iterations
                rows, row_offsets = rows + v, row_offsets + offset
            if start + ROWS >= KH:  # the first window is complete
                values, offsets = _down(rows, row_offsets, ROWS, ROWS + KH - 1, KH, 1, OUTS, OP, WITH_OFFSETS)
                for o in tl.static_range(ROWS):
                    number = start + (o - (KH - 1))
                    _store_row(
                        _row_of(values, o, ROWS, OUTS),
                        _row_of(offsets, o, ROWS, OUTS),
                        number,
                        begin + number,
                        within(live, number + zero, n_rows),
                        *target,
                        KD,
                        KH,
                        KW,
                        SD,
                        SH,
                        SW,
                        ORIGIN_D,
                        ORIGIN_H,
                        ORIGIN_W,
                        COLUMNS,
                        Y_UNIT,
                        VEC,
                        OUTS,
                        PADDED,
                        OP,
                        KIND,
                        SCALED,
                        DIVIDE,
                    )
            kept = ()
            kept_offsets = ()
            for k in tl.static_range(OUTS * (KH - 1)):
                kept = kept + (rows[OUTS * ROWS + k],)
                kept_offsets = kept_offsets + (row_offsets[OUTS * ROWS + k],)
    else:
        first_h = strip * (ROWS * SH) + ORIGIN_H
        values = ()  # output q of row o at q * ROWS + o
        offsets = ()
        for td in tl.static_range(KD):
            depth = od * SD + ORIGIN_D + td
            inside = within(live, depth + zero, size_d)
            plane = x_base + depth * x_d * X_UNIT
            given = (x, plane, w, x_h, x_w, size_h, size_w, inside, kernel_w)
            rows = ()  # row r of output q at r * OUTS + q
            row_offsets = ()
            # Rows that all windows contain are looped over if there are many; they are merged at ROWS - 1.
            for r in tl.static_range(2 * ROWS - 1 if LOOP_H else (ROWS - 1) * SH + KH):
                if r % SH < KH or LOOP_H:
                    row = r + (KH - ROWS) * (r >= ROWS) if LOOP_H else r
                    v, offset = _row(
                        first_h + row,
                        td * KH + row,
                        *given,
                        KW,
                        SW,
                        ORIGIN_W,
                        COLUMNS,
                        FIRST_VECTOR,
                        SHIFT,
                        VECTORS,
                        VECTOR,
                        X_UNIT,
                        VEC,
                        OUTS,
                        LANES,
                        EDGES,
                        LOOP_W,
                        EVICT,
                        OP,
                        WITH_OFFSETS,
                        IDENTITY,
                        COMPUTE,
                    )
                    if LOOP_H and r == ROWS - 1:
                        for more in range(ROWS, kernel_h):
                            later, later_offset = _row(
                                first_h + more,
                                td * KH + more,
                                *given,
                                KW,
                                SW,
                                ORIGIN_W,
                                COLUMNS,
                                FIRST_VECTOR,
                                SHIFT,
                                VECTORS,
                                VECTOR,
                                X_UNIT,
                                VEC,
                                OUTS,
                                LANES,
                                EDGES,
                                LOOP_W,
                                EVICT,
                                OP,
                                WITH_OFFSETS,
                                IDENTITY,
                                COMPUTE,
                            )
                            v, offset = _merge_all(v, offset, later, later_offset, OUTS, OP, WITH_OFFSETS)
                rows, row_offsets = rows + v, row_offsets + offset
            found, found_offsets = _down(
                rows,
                row_offsets,
                ROWS,
                2 * ROWS - 1 if LOOP_H else (ROWS - 1) * SH + KH,
                ROWS if LOOP_H else KH,
                1 if LOOP_H else SH,
                OUTS,
                OP,
                WITH_OFFSETS,
            )
            if td == 0:
                values, offsets = found, found_offsets
            else:
                values, offsets = _merge_all(
                    values, offsets, found, found_offsets, ROWS * OUTS, OP, WITH_OFFSETS
                )

        for o in tl.static_range(ROWS):
            _store_row(
                _row_of(values, o, ROWS, OUTS),
                _row_of(offsets, o, ROWS, OUTS),
                o,
                strip * ROWS + o,
                within(live, strip * ROWS + o + zero, out_h),
                *target,
                KD,
                KH,
                KW,
                SD,
                SH,
                SW,
                ORIGIN_D,
                ORIGIN_H,
                ORIGIN_W,
                COLUMNS,
                Y_UNIT,
                VEC,
                OUTS,
                PADDED,
                OP,
                KIND,
                SCALED,
                DIVIDE,
            )


@triton.jit
def _down(
    rows,
    row_offsets,
    N: tl.constexpr,
    ALL: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    OUTS: tl.constexpr,
    OP: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
):
    """N windows down the rows of each output: of output q of row r at r * OUTS + q, to q * N + o."""
    values = ()
    offsets = ()
    for q in tl.static_range(OUTS):
        mine = ()
        my_offsets = ()
        for r in tl.static_range(ALL):
            mine, my_offsets = mine + (rows[r * OUTS + q],), my_offsets + (row_offsets[r * OUTS + q],)
        mine, my_offsets = reduce_windows(mine, my_offsets, N, 0, KERNEL, STRIDE, OP, WITH_OFFSETS)
        values, offsets = values + mine, offsets + my_offsets
    return values, offsets


@triton.jit
def _row_of(values, ROW: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr):
    """The outputs of one row."""
    found = ()
    for q in tl.static_range(OUTS):
        found = found + (values[q * ROWS + ROW],)
    return found


@triton.jit
def _store_row(
    values,
    offsets,
    number,
    oh,
    live,
    y,
    extra,
    od,
    w,
    y_base,
    y_d,
    y_h,
    y_w,
    size_h,
    size_w,
    out_w,
    lo_d,
    hi_d,
    lo_h,
    hi_h,
    lo_w,
    hi_w,
    divisor,
    inverse,
    taps,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    ORIGIN_D: tl.constexpr,
    ORIGIN_H: tl.constexpr,
    ORIGIN_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
    PADDED: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    SCALED: tl.constexpr,
    DIVIDE: tl.constexpr,
):
    """One row of outputs, row `number` of its strip, from whose first input row offsets are counted."""
    zero = w * 0
    first_d = od * SD + ORIGIN_D
    first_h = oh * SH + ORIGIN_H
    for q in tl.static_range(OUTS):
        ow, y_at = outputs_of(w, q, y_base, y_w, COLUMNS, Y_UNIT, VEC, OUTS)
        first_w = ow * SW + ORIGIN_W
        ok = live[:, None]
        if (COLUMNS and Y_UNIT < VEC) or OUTS > 1:
            ok = ok & (ow < out_w)
        at = y_at + (od * y_d + oh * y_h) * Y_UNIT
        v = values[q]
        if OP == SUM and DIVIDE != 1:
            v = positive_zero(v)
        if DIVIDE == 1:
            v = quotient_by_inverse(v, divisor, inverse)
        if DIVIDE == 2:
            by = share_of(first_d, KD, 1, lo_d, hi_d) * share_of(first_h, KH, 1, lo_h, hi_h)
            v = quotient(v, by * share_of(first_w, KW, 1, lo_w, hi_w))
        v = scaled(root(v, taps, OP), extra + at, ok, SCALED)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=ok)
        if KIND != 0:
            offset = offsets[q] - number * (SH * KW)
            if PADDED:
                # If no element beats the padding, the first element is taken.
                lead = tl.maximum(0, zero - first_d) * KH + tl.maximum(0, zero - first_h)
                offset = tl.maximum(offset, (lead[:, None] * KW + tl.maximum(0, -first_w)).to(tl.int32))
            if KIND == INDEX64:
                place = offset.to(tl.int64)
                d = place // (KH * KW) + first_d
                h = place // KW % KH + first_h
                tl.store(extra + at, (d * size_h + h) * size_w + (first_w + place % KW), mask=ok)
            else:
                tl.store(extra + at, offset.to(extra.dtype.element_ty), mask=ok)


@triton.jit
def _merge_all(a, a_offsets, b, b_offsets, N: tl.constexpr, OP: tl.constexpr, WITH_OFFSETS: tl.constexpr):
    values = ()
    offsets = ()
    for i in tl.static_range(N):
        v, offset = merge(a[i], a_offsets[i], b[i], b_offsets[i], OP, WITH_OFFSETS)
        values, offsets = values + (v,), offsets + (offset,)
    return values, offsets


@triton.jit
def _row(
    height,
    number,
    x,
    plane,
    w,
    x_h,
    x_w,
    size_h,
    size_w,
    inside,
    kernel_w,
    KW: tl.constexpr,
    SW: tl.constexpr,
    ORIGIN_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIRST_VECTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
    LANES: tl.constexpr,
    EDGES: tl.constexpr,
    LOOP: tl.constexpr,
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    WITH_OFFSETS: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Windows of one input row: a tuple of OUTS tiles, and their offsets."""
    zero = w * 0
    ok = within(inside, height + zero, size_h)
    base = plane + height * x_h * UNIT
    if COLUMNS:
        v, offsets = _columns(
            x,
            base,
            w,
            size_w,
            ok,
            kernel_w,
            KW,
            SW,
            FIRST_VECTOR,
            SHIFT,
            VECTORS,
            VECTOR,
            VEC,
            LANES,
            LOOP,
            EVICT,
            OP,
            WITH_OFFSETS,
            IDENTITY,
            COMPUTE,
        )
    else:
        v, offsets = _channels(
            x,
            base,
            w,
            x_w,
            size_w,
            ok,
            kernel_w,
            KW,
            SW,
            ORIGIN_W,
            UNIT,
            VEC,
            OUTS,
            LANES,
            EDGES,
            LOOP,
            OP,
            WITH_OFFSETS,
            IDENTITY,
            COMPUTE,
        )
    if WITH_OFFSETS:
        taps = ()
        for q in tl.static_range(OUTS):
            taps = taps + (offsets[q] + number * KW,)
        offsets = taps
    return v, offsets
