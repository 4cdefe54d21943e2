"""The column strip: windows that are alike and have no dilation.

A lane is a short vector of outputs: neighbours along the last pooled axis where that is contiguous in memory,
channels where those are, or a single one. Each input row is reduced once along the last axis; from the
results, which stay in registers, the windows along the axis before it are put together.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import (
    AXES,
    INDEX64,
    SIZES,
    base_of,
    call_next,
    lanes_of,
    outputs_of,
    split,
    wait_for_memory,
    within,
)
from ndpool._triton.kernels.reducers import (
    LARGEST,
    SUM,
    around_core,
    columns_of,
    element,
    even_quotient,
    least_bits,
    merge,
    quotient,
    reduce_windows,
    root,
    share_of,
    tile_of,
    unsigned_zero,
)
from ndpool._triton.kernels.zeros import sign_zeros

# The kernel's sizes are known, but a loop to an unknown end is not unrolled.
_SIZES = [*SIZES, *AXES, "strips", "taps", "early"]
_SIZES = [name for name in _SIZES if not name.startswith("origin") and name != "kernel_d"]


@triton.jit
def _vector(
    line,
    first,
    column,
    size_w,
    ok,
    WIDTH: tl.constexpr,
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Neighbouring columns from `column` on, seen from where `line` points: inside the input or not one."""
    there = within(ok, first + column, size_w)
    at = line[:, None] + (column + tl.arange(0, WIDTH))[None, :]
    return element(tl.load(at, mask=there[:, None], other=LOW, eviction_policy=EVICT), OP, COMPUTE)


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
    CODED: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """VEC windows of one row from vectors of neighbouring columns, as a tile (lanes, VEC); see `_row`."""
    LAST: tl.constexpr = SHIFT + (VEC - 1) * SW + KW
    # Vectors that lie in all windows are looped over where there are many.
    CORE: tl.constexpr = (SHIFT + VEC - 1) // VECTOR + 1 if LOOP else VECTORS
    CORE_END: tl.constexpr = (SHIFT + KW) // VECTOR if LOOP else VECTORS
    zero = tl.zeros([LANES], tl.int32)
    first = w * (VEC * SW)
    line = x + base + first  # the rest is known: distances that loads have in themselves
    v = ()
    codes = ()
    least = zero
    for i in tl.static_range(VECTORS):
        if i < CORE or i >= CORE_END:
            column = (FIRST_VECTOR + i) * VECTOR
            if i == 0 and SHIFT == VECTOR - 1:
                # Of this vector only the last element is needed, of the next case only the first.
                there = within(ok, first + column, size_w)
                one = element(tl.load(line + (column + SHIFT), mask=there, other=LOW), OP, COMPUTE)
                least = least_bits(least, one, OP)
                for _j in tl.static_range(VECTOR):
                    v = v + (one,)
            elif i * VECTOR + 1 == LAST:
                there = within(ok, first + column, size_w)
                one = element(tl.load(line + column, mask=there, other=LOW), OP, COMPUTE)
                least = least_bits(least, one, OP)
                for _j in tl.static_range(VECTOR):
                    v = v + (one,)
            else:
                tile = _vector(line, first, column, size_w, ok, VECTOR, EVICT, OP, LOW, COMPUTE)
                found = columns_of(tile, LANES, VECTOR)
                for j in tl.static_range(VECTOR):
                    if SHIFT <= i * VECTOR + j and i * VECTOR + j < LAST:
                        least = least_bits(least, found[j], OP)
                v = v + found
        else:
            for _j in tl.static_range(VECTOR):
                v = v + (v[0],)
        for j in tl.static_range(VECTOR):
            codes = codes + (zero + (i * VECTOR + j - SHIFT),)
    if LOOP:
        core, core_code = v[SHIFT + VEC - 1], codes[SHIFT + VEC - 1]
        for i in tl.static_range(SHIFT + VEC, CORE * VECTOR):
            core, core_code = merge(core, core_code, v[i], codes[i], OP, CODED)
        for i in range(CORE, (SHIFT + kernel_w) // VECTOR):
            column = (FIRST_VECTOR + i) * VECTOR
            tile = _vector(line, first, column, size_w, ok, VECTOR, EVICT, OP, LOW, COMPUTE)
            found = columns_of(tile, LANES, VECTOR)
            for j in tl.static_range(VECTOR):
                least = least_bits(least, found[j], OP)
                core, core_code = merge(
                    core, core_code, found[j], zero + (i * VECTOR + (j - SHIFT)), OP, CODED
                )
        for i in tl.static_range(CORE_END * VECTOR, SHIFT + KW):
            core, core_code = merge(core, core_code, v[i], codes[i], OP, CODED)
        left = ()
        left_codes = ()
        right = ()
        right_codes = ()
        for i in tl.static_range(VEC - 1):
            left, left_codes = left + (v[SHIFT + i],), left_codes + (codes[SHIFT + i],)
            right, right_codes = right + (v[SHIFT + KW + i],), right_codes + (codes[SHIFT + KW + i],)
        v, codes = around_core(left, left_codes, core, core_code, right, right_codes, VEC, OP, CODED)
    else:
        v, codes = reduce_windows(v, codes, VEC, SHIFT, KW, SW, OP, CODED)
    best = tile_of(v, 0, 1, LANES, VEC)
    code = best
    if CODED:
        taps = ()
        for q in tl.static_range(VEC):
            taps = taps + (codes[q] - q * SW,)
        code = tile_of(taps, 0, 1, LANES, VEC)
    return (best,), (code,), least


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
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One column, of VEC channels."""
    there = ok
    if EDGES:
        there = within(ok, column, size_w)
    at = (base + column * step)[:, None] + tl.arange(0, VEC)[None, :]
    return element(tl.load(x + at, mask=there[:, None], other=LOW), OP, COMPUTE)


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
    CODED: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """OUTS windows of one row, each as a tile (lanes, VEC) of channels."""
    zero = tl.zeros([LANES, VEC], tl.int32)
    first = w * (OUTS * SW) + ORIGIN_W
    step = x_w * UNIT
    least = zero
    if LOOP:
        left = ()
        left_codes = ()
        right = ()
        right_codes = ()
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, LOW, COMPUTE)
            least = least_bits(least, v, OP)
            left, left_codes = left + (v,), left_codes + (zero + t,)
        core = _channel(x, base, first + (OUTS - 1), step, size_w, ok, VEC, EDGES, OP, LOW, COMPUTE)
        least = least_bits(least, core, OP)
        core_code = zero + (OUTS - 1)
        for t in tl.range(OUTS, kernel_w, loop_unroll_factor=4):
            v = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, LOW, COMPUTE)
            least = least_bits(least, v, OP)
            core, core_code = merge(core, core_code, v, zero + t, OP, CODED)
        for t in tl.static_range(OUTS - 1):
            v = _channel(x, base, first + (KW + t), step, size_w, ok, VEC, EDGES, OP, LOW, COMPUTE)
            least = least_bits(least, v, OP)
            right, right_codes = right + (v,), right_codes + (zero + (KW + t),)
        if OUTS == 1:
            v, codes = (core,), (core_code,)
        else:
            v, codes = around_core(left, left_codes, core, core_code, right, right_codes, OUTS, OP, CODED)
    else:
        v = ()
        codes = ()
        for t in tl.static_range((OUTS - 1) * SW + KW):
            if t % SW < KW:
                one = _channel(x, base, first + t, step, size_w, ok, VEC, EDGES, OP, LOW, COMPUTE)
                least = least_bits(least, one, OP)
            v, codes = v + (one,), codes + (zero + t,)
        v, codes = reduce_windows(v, codes, OUTS, 0, KW, SW, OP, CODED)
    if CODED:
        taps = ()
        for q in tl.static_range(OUTS):
            taps = taps + (codes[q] - q * SW,)
        codes = taps
    return v, codes, least


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
    early,
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
    EVICT: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """ROWS x VEC outputs per lane, or ROWS x OUTS for each of VEC channels, of windows without dilation."""
    CODED: tl.constexpr = KIND != 0
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    strip, od, block = split(pid, strips, out_d, m_s, m_d, WIDE)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, WIDE)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT
    zero = w * 0  # masks are vectors from the start: the interpreter takes a scalar truth for an integer
    if early is not None:
        if early > 0:
            call_next()
    wait_for_memory()
    first_h = strip * (ROWS * SH) + ORIGIN_H
    values = ()  # of output q and row o at q * ROWS + o
    codes = ()
    least = tl.zeros([LANES] if COLUMNS else [LANES, VEC], tl.int32)
    for td in tl.static_range(KD):
        depth = od * SD + ORIGIN_D + td
        inside = within(live, depth + zero, size_d)
        plane = x_base + depth * x_d * X_UNIT
        given = (x, plane, w, x_h, x_w, size_h, size_w, inside, kernel_w)
        rows = ()  # of row r and output q at r * OUTS + q
        row_codes = ()
        # Rows that lie in all windows are looped over where there are many; they stand at ROWS - 1.
        for r in tl.static_range(2 * ROWS - 1 if LOOP_H else (ROWS - 1) * SH + KH):
            if r % SH < KH or LOOP_H:
                row = r + (KH - ROWS) * (r >= ROWS) if LOOP_H else r
                v, code, bits = _row(
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
                    CODED,
                    LOW,
                    COMPUTE,
                )
                if LOOP_H and r == ROWS - 1:
                    for more in range(ROWS, kernel_h):
                        later, later_code, more_bits = _row(
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
                            CODED,
                            LOW,
                            COMPUTE,
                        )
                        v, code = _merge_all(v, code, later, later_code, OUTS, OP, CODED)
                        if OP == LARGEST:
                            bits = tl.minimum(bits, more_bits)
                if OP == LARGEST:
                    least = tl.minimum(least, bits)
            rows, row_codes = rows + v, row_codes + code
        found = ()
        found_codes = ()
        for q in tl.static_range(OUTS):
            mine = ()
            my_codes = ()
            for r in tl.static_range(2 * ROWS - 1 if LOOP_H else (ROWS - 1) * SH + KH):
                mine, my_codes = mine + (rows[r * OUTS + q],), my_codes + (row_codes[r * OUTS + q],)
            mine, my_codes = reduce_windows(
                mine, my_codes, ROWS, 0, ROWS if LOOP_H else KH, 1 if LOOP_H else SH, OP, CODED
            )
            found, found_codes = found + mine, found_codes + my_codes
        if td == 0:
            values, codes = found, found_codes
        else:
            values, codes = _merge_all(values, codes, found, found_codes, ROWS * OUTS, OP, CODED)

    first_d = od * SD + ORIGIN_D
    for q in tl.static_range(OUTS):
        ow, y_at = outputs_of(w, q, y_base, y_w, COLUMNS, Y_UNIT, VEC, OUTS)
        first_w = ow * SW + ORIGIN_W
        for o in tl.static_range(ROWS):
            oh = strip * ROWS + o
            ok = within(live, oh + zero, out_h)[:, None]
            if (COLUMNS and Y_UNIT < VEC) or OUTS > 1:
                ok = ok & (ow < out_w)
            at = y_at + (od * y_d + oh * y_h) * Y_UNIT
            v = values[q * ROWS + o]
            if OP == SUM and DIVIDE != 1:
                v = unsigned_zero(v)
            if DIVIDE == 1:
                v = even_quotient(v, divisor, inverse)
            if DIVIDE == 2:
                by = share_of(first_d, KD, 1, lo_d, hi_d) * share_of(first_h + o * SH, KH, 1, lo_h, hi_h)
                v = quotient(v, by * share_of(first_w, KW, 1, lo_w, hi_w))
            v = root(v, taps, OP)
            tl.store(y + at, v.to(y.dtype.element_ty), mask=ok)
            if CODED:
                code = codes[q * ROWS + o] - o * SH * KW
                if PADDED:
                    # Of elements that do not beat padding the first one is taken.
                    lead = tl.maximum(0, zero - first_d) * KH + tl.maximum(0, zero - first_h - o * SH)
                    code = tl.maximum(code, (lead[:, None] * KW + tl.maximum(0, -first_w)).to(tl.int32))
                if KIND == INDEX64:
                    place = code.to(tl.int64)
                    d = place // (KH * KW) + first_d
                    h = place // KW % KH + (first_h + o * SH)
                    tl.store(extra + at, (d * size_h + h) * size_w + (first_w + place % KW), mask=ok)
                else:
                    tl.store(extra + at, code.to(extra.dtype.element_ty), mask=ok)
    if OP == LARGEST:
        zeros = values[0] == 0
        for i in tl.static_range(1, ROWS * OUTS):
            zeros |= values[i] == 0
        signed = least == -(2**31)
        if tl.max((zeros & (signed[:, None] if COLUMNS else signed)).to(tl.int32)) > 0:
            sign_zeros(
                *(x, y, x_base, y_base, w, live, strip, first_d, od, x_d, x_h, x_w, y_d, y_h, y_w),
                *(size_d, size_h, size_w, out_h, out_w, taps),
                *(KH, KW, SH, SW, ORIGIN_H, ORIGIN_W, COLUMNS, X_UNIT, Y_UNIT, VEC, OUTS, ROWS, COMPUTE),
            )


@triton.jit
def _merge_all(a, a_codes, b, b_codes, N: tl.constexpr, OP: tl.constexpr, CODED: tl.constexpr):
    values = ()
    codes = ()
    for i in tl.static_range(N):
        v, code = merge(a[i], a_codes[i], b[i], b_codes[i], OP, CODED)
        values, codes = values + (v,), codes + (code,)
    return values, codes


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
    CODED: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The windows of one input row: a tuple of OUTS tiles, their codes, and the `least_bits` of lanes."""
    zero = w * 0
    ok = within(inside, height + zero, size_h)
    base = plane + height * x_h * UNIT
    if COLUMNS:
        v, codes, least = _columns(
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
            CODED,
            LOW,
            COMPUTE,
        )
    else:
        v, codes, least = _channels(
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
            CODED,
            LOW,
            COMPUTE,
        )
    if CODED:
        taps = ()
        for q in tl.static_range(OUTS):
            taps = taps + (codes[q] + number * KW,)
        codes = taps
    return v, codes, least
