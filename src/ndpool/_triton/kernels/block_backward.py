"""Backward by blocks: each lane owns one block of `stride` inputs per axis and reads each output once.

For regular windows without dilation, so that the outputs that contain an input are known at compile time.
Every input sums its outputs in increasing order, so the result is deterministic. Stays for max pooling 3x3
with stride 2, 5 to 8 times as fast as `window_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    as_column,
    base_of,
    lanes_of,
    program_number,
    split,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import (
    columns_of,
    quotient,
    quotient_by_inverse,
    scaled,
    share_of,
    tile_of,
    widen,
)


class Block(NamedTuple):
    """SD x (ROWS * SH) x (VEC * SW) inputs per lane, or SW for each of VEC channels.

    Block b of an axis is the inputs b*S to b*S + S - 1; the outputs b + LOW to b + LOW + MORE contain them.
    """

    LOW_D: Any
    LOW_H: Any
    LOW_W: Any
    MORE_D: Any
    MORE_H: Any
    MORE_W: Any
    COLUMNS: Any
    FIRST: Any  # the first vector of outputs, and the first output in it that is needed
    SHIFT: Any
    VECTORS: Any
    CHUNK: Any  # elements per store
    X_UNIT: Any
    Y_UNIT: Any
    VEC: Any
    ROWS: Any
    LANES: Any
    LOOP_H: Any


@triton.jit
def _load(grad, offsets, at, ok, by, inverse, GATHER):
    """Gradients of a tile of outputs, divided, and their offsets."""
    g = widen(tl.load(grad + at, mask=ok, other=0), GATHER.COMPUTE)
    if GATHER.DIVIDE == 1:
        g = quotient_by_inverse(g, by, inverse)
    if GATHER.DIVIDE == 2:
        g = quotient(g, by)
    tap = g
    if GATHER.HAS_INDEX:
        tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
    return g, tap


@triton.jit
def _share_w(by, column, bounds, WINDOW, GATHER):
    """The divisors of columns, given the taps of their rows."""
    if GATHER.DIVIDE == 2:
        by = by * share_of(column * WINDOW.SW + WINDOW.W, WINDOW.KW, 1, bounds.lo_w, bounds.hi_w)
    return by


@triton.jit
def _outputs(
    od, oh, grad, offsets, y_base, w, lanes, live, strides, outs, bounds, division, WINDOW, BLOCK, GATHER
):
    """One row of outputs that contain inputs of the lanes: gradients and offsets, column by column."""
    VEC: tl.constexpr = BLOCK.VEC
    SHIFT: tl.constexpr = BLOCK.SHIFT
    zero = w * 0
    along = tl.arange(0, VEC)[None, :]
    ok = live & (od + zero >= 0) & (od + zero < outs.d) & (oh + zero >= 0) & (oh + zero < outs.h)
    row = y_base + (od * strides.d + oh * strides.h) * BLOCK.Y_UNIT
    by = division.by
    if GATHER.DIVIDE == 2:
        by = share_of(od * WINDOW.SD + WINDOW.D, WINDOW.KD, 1, bounds.lo_d, bounds.hi_d)
        by = by * share_of(oh * WINDOW.SH + WINDOW.H, WINDOW.KH, 1, bounds.lo_h, bounds.hi_h)
    g = ()
    taps = ()
    if BLOCK.COLUMNS:
        for i in tl.static_range(BLOCK.VECTORS):
            first = w * VEC + (BLOCK.FIRST + i) * VEC
            if (i == 0 and SHIFT > 0 and SHIFT == VEC - 1) or i * VEC + 1 == SHIFT + VEC + BLOCK.MORE_W:
                # Only the last or only the first element of this vector is needed.
                column = first + (SHIFT if i == 0 else 0)
                there = ok & (column >= 0) & (column < outs.w)
                by_w = _share_w(by, column, bounds, WINDOW, GATHER)
                v, tap = _load(grad, offsets, row + column, there, by_w, division.inverse, GATHER)
                for _j in tl.static_range(VEC):
                    g, taps = g + (v,), taps + (tap,)
            else:
                columns = first[:, None] + along
                there = ok[:, None] & (columns >= 0) & (columns < outs.w)
                if BLOCK.Y_UNIT > 1:
                    # Vectors lie entirely inside or outside.
                    there = (ok & (first >= 0) & (first < outs.w))[:, None]
                by_v = by
                if GATHER.DIVIDE == 2:
                    by_v = _share_w(as_column(by, lanes), columns, bounds, WINDOW, GATHER)
                at = row[:, None] + columns
                tile, tile_taps = _load(grad, offsets, at, there, by_v, division.inverse, GATHER)
                g = g + columns_of(tile, BLOCK.LANES, VEC)
                taps = taps + columns_of(tile_taps, BLOCK.LANES, VEC)
    else:
        for i in tl.static_range(1 + BLOCK.MORE_W):
            column = w + (BLOCK.LOW_W + i)
            there = (ok & (column >= 0) & (column < outs.w))[:, None]
            by_c = by
            if GATHER.DIVIDE == 2:
                by_c = _share_w(by, column, bounds, WINDOW, GATHER)[:, None]
            at = (row + column * strides.w * BLOCK.Y_UNIT)[:, None] + along
            v, tap = _load(grad, offsets, at, there, by_c, division.inverse, GATHER)
            g, taps = g + (v,), taps + (tap,)
    return g, taps


@triton.jit
def _gathered(sums, g, taps, offset, BEGIN: tl.constexpr, WINDOW, BLOCK, GATHER):
    """Add one row of outputs, from BEGIN on, to the sums: output b + m has input r at its tap r + P - m*S."""
    SW: tl.constexpr = WINDOW.SW
    found = ()
    for q in tl.static_range(BLOCK.VEC if BLOCK.COLUMNS else 1):
        for rw in tl.static_range(SW):
            total = sums[q * SW + rw]
            for mw in tl.static_range(BLOCK.MORE_W + 1):
                if (
                    rw - WINDOW.W - (BLOCK.LOW_W + mw) * SW >= 0
                    and rw - WINDOW.W - (BLOCK.LOW_W + mw) * SW < WINDOW.KW
                ):
                    if GATHER.HAS_INDEX:
                        tap = offset + (rw - WINDOW.W - (BLOCK.LOW_W + mw) * SW)
                        hit = taps[BEGIN + BLOCK.SHIFT + q + mw] == tap
                        total += tl.where(hit, g[BEGIN + BLOCK.SHIFT + q + mw], 0)
                    else:
                        total += g[BEGIN + BLOCK.SHIFT + q + mw]
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


@triton.jit
def _store_row(sums, line, w, ok, offsets, result, strides, size_w, WINDOW, BLOCK, GATHER):
    """One row of gradients, by vectors of columns or of channels."""
    SW: tl.constexpr = WINDOW.SW
    if BLOCK.COLUMNS:
        for k in tl.static_range(BLOCK.VEC * SW // BLOCK.CHUNK):
            tile = tile_of(sums, k * BLOCK.CHUNK, 1, BLOCK.LANES, BLOCK.CHUNK)
            column = (w * (BLOCK.VEC * SW) + k * BLOCK.CHUNK)[:, None] + tl.arange(0, BLOCK.CHUNK)[None, :]
            there = ok[:, None]
            if BLOCK.X_UNIT == 1:
                there = there & (column < size_w)
            at = line[:, None] + column
            tile = scaled(tile, offsets + at, there, GATHER.SCALED)
            tl.store(result + at, tile.to(result.dtype.element_ty), mask=there)
    else:
        for rw in tl.static_range(SW):
            column = w * SW + rw
            there = (ok & (column < size_w))[:, None]
            at = (line + column * strides.w * BLOCK.X_UNIT)[:, None] + tl.arange(0, BLOCK.VEC)[None, :]
            total = scaled(sums[rw], offsets + at, there, GATHER.SCALED)
            tl.store(result + at, total.to(result.dtype.element_ty), mask=there)


@triton.jit
def block_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    programs,
    x_strides,
    y_strides,
    sizes,
    outs,
    bounds,
    division,
    more_h,
    WINDOW,
    BLOCK,
    MEMORY,
    GATHER,
):
    """One block of inputs per lane."""
    KD: tl.constexpr = WINDOW.KD
    KH: tl.constexpr = WINDOW.KH
    SD: tl.constexpr = WINDOW.SD
    SH: tl.constexpr = WINDOW.SH
    ROWS: tl.constexpr = BLOCK.ROWS
    OUTS: tl.constexpr = BLOCK.VEC if BLOCK.COLUMNS else 1  # blocks of a lane along the last axis
    HEIGHT: tl.constexpr = 1 if BLOCK.LOOP_H else ROWS + BLOCK.MORE_H  # rows of outputs in registers
    PER_ROW: tl.constexpr = BLOCK.VECTORS * BLOCK.VEC if BLOCK.COLUMNS else 1 + BLOCK.MORE_W
    pid = program_number(MEMORY)
    wait_for_previous()
    strip, bd, block = split(
        pid, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64
    )
    live, c, w, row, l1, l2 = lanes_of(block, lanes, BLOCK.LANES, MEMORY)
    if lanes.strips is not None:
        strip = row
    x_base = base_of(c, l1, l2, x_strides, MEMORY) * BLOCK.X_UNIT
    y_base = base_of(c, l1, l2, y_strides, MEMORY) * BLOCK.Y_UNIT
    zero = w * 0
    given = (grad, offsets, y_base, w, lanes, live, y_strides, outs, bounds, division)
    g = ()
    taps = ()
    if not BLOCK.LOOP_H:
        for md in tl.static_range(BLOCK.MORE_D + 1):
            for mh in tl.static_range(HEIGHT):
                od = bd + (BLOCK.LOW_D + md)
                oh = strip * ROWS + (BLOCK.LOW_H + mh)
                v, tap = _outputs(od, oh, *given, WINDOW, BLOCK, GATHER)
                g, taps = g + v, taps + tap
    for rd in tl.static_range(SD):
        depth = bd * SD + rd
        for i in tl.static_range(ROWS):
            for rh in tl.static_range(SH):
                height = (strip * ROWS + i) * SH + rh
                ok = live & (depth + zero < sizes.d) & (height + zero < sizes.h)
                line = x_base + (depth * x_strides.d + height * x_strides.h) * BLOCK.X_UNIT
                sums = ()
                for _q in tl.static_range(OUTS * WINDOW.SW):
                    if BLOCK.COLUMNS:
                        sums = sums + (tl.zeros([BLOCK.LANES], GATHER.COMPUTE),)
                    else:
                        sums = sums + (tl.zeros([BLOCK.LANES, BLOCK.VEC], GATHER.COMPUTE),)
                for md in tl.static_range(BLOCK.MORE_D + 1):
                    if (
                        rd - WINDOW.D - (BLOCK.LOW_D + md) * SD >= 0
                        and rd - WINDOW.D - (BLOCK.LOW_D + md) * SD < KD
                    ):
                        if BLOCK.LOOP_H:
                            # Too many rows of outputs for the registers: load them one by one. A variable
                            # assigned in this loop must have the same type in the entire kernel.
                            for mh in range(more_h + 1):
                                v, tap = _outputs(
                                    bd + (BLOCK.LOW_D + md),
                                    strip + (BLOCK.LOW_H + mh),
                                    *given,
                                    WINDOW,
                                    BLOCK,
                                    GATHER,
                                )
                                th = rh - WINDOW.H - (BLOCK.LOW_H + mh) * SH
                                offset = ((rd - WINDOW.D - (BLOCK.LOW_D + md) * SD) * KH + th) * WINDOW.KW
                                part = _gathered(sums, v, tap, offset, 0, WINDOW, BLOCK, GATHER)
                                sums = _chosen(sums, part, zero + th, KH, OUTS * WINDOW.SW, BLOCK.COLUMNS)
                        else:
                            for mh in tl.static_range(BLOCK.MORE_H + 1):
                                if (
                                    rh - WINDOW.H - (BLOCK.LOW_H + mh) * SH >= 0
                                    and rh - WINDOW.H - (BLOCK.LOW_H + mh) * SH < KH
                                ):
                                    sums = _gathered(
                                        sums,
                                        g,
                                        taps,
                                        (
                                            (rd - WINDOW.D - (BLOCK.LOW_D + md) * SD) * KH
                                            + rh
                                            - WINDOW.H
                                            - (BLOCK.LOW_H + mh) * SH
                                        )
                                        * WINDOW.KW,
                                        (md * HEIGHT + i + mh) * PER_ROW,
                                        WINDOW,
                                        BLOCK,
                                        GATHER,
                                    )
                _store_row(sums, line, w, ok, offsets, result, x_strides, sizes.w, WINDOW, BLOCK, GATHER)
