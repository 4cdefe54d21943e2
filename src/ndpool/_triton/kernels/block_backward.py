"""Backward by blocks: each lane owns one block of `stride` inputs per axis and reads each output once.

For regular windows without dilation, so that the outputs that contain an input are known at compile time.
Every input sums its outputs in increasing order, so the result is deterministic. Stays for max pooling 3x3
with stride 2, 5 to 8 times as fast as `window_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import AXES, SIZES, base_of, lanes_of, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    columns_of,
    quotient,
    quotient_by_inverse,
    scaled,
    share_of,
    tile_of,
    widen,
)

_SIZES = [*SIZES, *AXES, "strips", "blocks_d", "more_h"]


@triton.jit
def _load(
    grad,
    offsets,
    at,
    ok,
    by,
    inverse,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients of a tile of outputs, divided, and their offsets."""
    g = widen(tl.load(grad + at, mask=ok, other=0), COMPUTE)
    if DIVIDE == 1:
        g = quotient_by_inverse(g, by, inverse)
    if DIVIDE == 2:
        g = quotient(g, by)
    tap = g
    if HAS_INDEX:
        tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
    return g, tap


@triton.jit
def _outputs(
    od,
    oh,
    grad,
    offsets,
    y_base,
    w,
    live,
    y_d,
    y_h,
    y_w,
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
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PD: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    LOW_W: tl.constexpr,
    MORE_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIRST_VECTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    VECTORS: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """One row of outputs that contain inputs of the lanes: gradients and offsets, column by column."""
    OUTS: tl.constexpr = VEC if COLUMNS else 1
    zero = w * 0
    along = tl.arange(0, VEC)[None, :]
    ok = live & (od + zero >= 0) & (od + zero < out_d) & (oh + zero >= 0) & (oh + zero < out_h)
    row = y_base + (od * y_d + oh * y_h) * Y_UNIT
    by = divisor
    if DIVIDE == 2:
        by = share_of(od * SD - PD, KD, 1, lo_d, hi_d) * share_of(oh * SH - PH, KH, 1, lo_h, hi_h)
    g = ()
    taps = ()
    if COLUMNS:
        for i in tl.static_range(VECTORS):
            if (i == 0 and SHIFT > 0 and SHIFT == VEC - 1) or i * VEC + 1 == SHIFT + OUTS + MORE_W:
                # Only the last or only the first element of this vector is needed.
                column = w * VEC + ((FIRST_VECTOR + i) * VEC + (SHIFT if i == 0 else 0))
                there = ok & (column >= 0) & (column < out_w)
                by_w = by
                if DIVIDE == 2:
                    by_w = by * share_of(column * SW - PW, KW, 1, lo_w, hi_w)
                v, tap = _load(grad, offsets, row + column, there, by_w, inverse, HAS_INDEX, DIVIDE, COMPUTE)
                for _j in tl.static_range(VEC):
                    g, taps = g + (v,), taps + (tap,)
            else:
                columns = (w * VEC + (FIRST_VECTOR + i) * VEC)[:, None] + along
                there = ok[:, None] & (columns >= 0) & (columns < out_w)
                if Y_UNIT > 1:
                    # Vectors lie entirely inside or outside.
                    first = w * VEC + (FIRST_VECTOR + i) * VEC
                    there = (ok & (first >= 0) & (first < out_w))[:, None]
                by_v = by
                if DIVIDE == 2:
                    by_v = by * share_of(columns * SW - PW, KW, 1, lo_w, hi_w)
                tile, tile_taps = _load(
                    grad, offsets, row[:, None] + columns, there, by_v, inverse, HAS_INDEX, DIVIDE, COMPUTE
                )
                g = g + columns_of(tile, LANES, VEC)
                taps = taps + columns_of(tile_taps, LANES, VEC)
    else:
        for i in tl.static_range(1 + MORE_W):
            column = w + (LOW_W + i)
            there = (ok & (column >= 0) & (column < out_w))[:, None]
            by_c = by
            if DIVIDE == 2:
                by_c = by * share_of(column * SW - PW, KW, 1, lo_w, hi_w)[:, None]
            at = (row + column * y_w * Y_UNIT)[:, None] + along
            v, tap = _load(grad, offsets, at, there, by_c, inverse, HAS_INDEX, DIVIDE, COMPUTE)
            g, taps = g + (v,), taps + (tap,)
    return g, taps


@triton.jit(do_not_specialize=_SIZES)
def block_backward_kernel(
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
    blocks_d,
    more_h,
    KD: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SD: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PD: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    LOW_D: tl.constexpr,
    LOW_H: tl.constexpr,
    LOW_W: tl.constexpr,
    MORE_D: tl.constexpr,
    MORE_H: tl.constexpr,
    MORE_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIRST_VECTOR: tl.constexpr,
    SHIFT: tl.constexpr,
    VECTORS: tl.constexpr,
    CHUNK: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    LOOP_H: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    SCALED: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """SD x (ROWS * SH) x (VEC * SW) inputs per lane, or SW for each of VEC channels.

    Block b of an axis is the inputs b*S to b*S + S - 1; the outputs b + LOW to b + LOW + MORE contain them.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    strip, bd, block = split(pid, strips, blocks_d, m_s, m_d, INT64)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT
    zero = w * 0
    OUTS: tl.constexpr = VEC if COLUMNS else 1  # blocks of a lane along the last axis
    HEIGHT: tl.constexpr = 1 if LOOP_H else ROWS + MORE_H  # rows of outputs in registers
    PER_ROW: tl.constexpr = VECTORS * VEC if COLUMNS else 1 + MORE_W  # outputs per row
    given = (
        grad,
        offsets,
        y_base,
        w,
        live,
        y_d,
        y_h,
        y_w,
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
    )
    g = ()
    taps = ()
    if not LOOP_H:
        for md in tl.static_range(MORE_D + 1):
            for mh in tl.static_range(HEIGHT):
                v, tap = _outputs(
                    bd + (LOW_D + md),
                    strip * ROWS + (LOW_H + mh),
                    *given,
                    KD,
                    KH,
                    KW,
                    SD,
                    SH,
                    SW,
                    PD,
                    PH,
                    PW,
                    LOW_W,
                    MORE_W,
                    COLUMNS,
                    FIRST_VECTOR,
                    SHIFT,
                    VECTORS,
                    Y_UNIT,
                    VEC,
                    LANES,
                    HAS_INDEX,
                    DIVIDE,
                    COMPUTE,
                )
                g, taps = g + v, taps + tap

    for rd in tl.static_range(SD):
        depth = bd * SD + rd
        for i in tl.static_range(ROWS):
            for rh in tl.static_range(SH):
                height = (strip * ROWS + i) * SH + rh
                ok = live & (depth + zero < size_d) & (height + zero < size_h)
                line = x_base + (depth * x_d + height * x_h) * X_UNIT
                sums = ()
                for _q in tl.static_range(OUTS * SW):
                    if COLUMNS:
                        sums = sums + (tl.zeros([LANES], COMPUTE),)
                    else:
                        sums = sums + (tl.zeros([LANES, VEC], COMPUTE),)
                for md in tl.static_range(MORE_D + 1):
                    if rd + PD - (LOW_D + md) * SD >= 0 and rd + PD - (LOW_D + md) * SD < KD:
                        if LOOP_H:
                            # Too many rows of outputs for the registers: load them one by one. A variable
                            # assigned in this loop must have the same type in the entire kernel.
                            for mh in range(more_h + 1):
                                v, tap = _outputs(
                                    bd + (LOW_D + md),
                                    strip + (LOW_H + mh),
                                    *given,
                                    KD,
                                    KH,
                                    KW,
                                    SD,
                                    SH,
                                    SW,
                                    PD,
                                    PH,
                                    PW,
                                    LOW_W,
                                    MORE_W,
                                    COLUMNS,
                                    FIRST_VECTOR,
                                    SHIFT,
                                    VECTORS,
                                    Y_UNIT,
                                    VEC,
                                    LANES,
                                    HAS_INDEX,
                                    DIVIDE,
                                    COMPUTE,
                                )
                                th = rh + PH - (LOW_H + mh) * SH
                                offset = ((rd + PD - (LOW_D + md) * SD) * KH + th) * KW
                                part = _gathered(
                                    sums, v, tap, offset, OUTS, KW, SW, PW, LOW_W, MORE_W, SHIFT, HAS_INDEX
                                )
                                sums = _chosen(sums, part, zero + th, KH, OUTS * SW, COLUMNS)
                        else:
                            for mh in tl.static_range(MORE_H + 1):
                                if rh + PH - (LOW_H + mh) * SH >= 0 and rh + PH - (LOW_H + mh) * SH < KH:
                                    v = ()
                                    tap = ()
                                    for k in tl.static_range(PER_ROW):
                                        v = v + (g[(md * HEIGHT + i + mh) * PER_ROW + k],)
                                        tap = tap + (taps[(md * HEIGHT + i + mh) * PER_ROW + k],)
                                    offset = (rd + PD - (LOW_D + md) * SD) * KH + rh + PH - (LOW_H + mh) * SH
                                    sums = _gathered(
                                        sums,
                                        v,
                                        tap,
                                        offset * KW,
                                        OUTS,
                                        KW,
                                        SW,
                                        PW,
                                        LOW_W,
                                        MORE_W,
                                        SHIFT,
                                        HAS_INDEX,
                                    )
                if COLUMNS:
                    for k in tl.static_range(OUTS * SW // CHUNK):
                        tile = tile_of(sums, k * CHUNK, 1, LANES, CHUNK)
                        column = (w * (OUTS * SW) + k * CHUNK)[:, None] + tl.arange(0, CHUNK)[None, :]
                        there = ok[:, None]
                        if X_UNIT == 1:
                            there = there & (column < size_w)
                        at = line[:, None] + column
                        tile = scaled(tile, offsets + at, there, SCALED)
                        tl.store(result + at, tile.to(result.dtype.element_ty), mask=there)
                else:
                    for rw in tl.static_range(SW):
                        column = w * SW + rw
                        there = (ok & (column < size_w))[:, None]
                        at = (line + column * x_w * X_UNIT)[:, None] + tl.arange(0, VEC)[None, :]
                        total = scaled(sums[rw], offsets + at, there, SCALED)
                        tl.store(result + at, total.to(result.dtype.element_ty), mask=there)


@triton.jit
def _gathered(
    sums,
    g,
    taps,
    offset,
    OUTS: tl.constexpr,
    KW: tl.constexpr,
    SW: tl.constexpr,
    PW: tl.constexpr,
    LOW_W: tl.constexpr,
    MORE_W: tl.constexpr,
    SHIFT: tl.constexpr,
    HAS_INDEX: tl.constexpr,
):
    """Add one row of outputs to the sums: output b + m contains input r at its tap r + P - m*S."""
    found = ()
    for q in tl.static_range(OUTS):
        for rw in tl.static_range(SW):
            total = sums[q * SW + rw]
            for mw in tl.static_range(MORE_W + 1):
                if rw + PW - (LOW_W + mw) * SW >= 0 and rw + PW - (LOW_W + mw) * SW < KW:
                    if HAS_INDEX:
                        hit = taps[SHIFT + q + mw] == offset + (rw + PW - (LOW_W + mw) * SW)
                        total += tl.where(hit, g[SHIFT + q + mw], 0)
                    else:
                        total += g[SHIFT + q + mw]
            found = found + (total,)
    return found


@triton.jit
def _chosen(a, b, tap, KERNEL: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr):
    """The tuple `b` where `tap` is a tap of the window, else `a`."""
    is_tap = (tap >= 0) & (tap < KERNEL)
    if not COLUMNS:
        is_tap = is_tap[:, None]
    found = ()
    for i in tl.static_range(N):
        found = found + (tl.where(is_tap, b[i], a[i]),)
    return found
