"""Any plan, tap by tap: irregular, dilated, or too large to unroll.

Windows come in tables with one row per output: first input, number of taps, number of the first tap, and
divisor (`launch.window_table`).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    INDEX64,
    base_of,
    lanes_of,
    program_number,
    split,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import divided, element, load_or_identity, merge, root


class Block(NamedTuple):
    """VEC outputs per lane; short rows are FLAT, one loop for all axes."""

    UNIT: Any
    VEC: Any
    LANES: Any
    UNROLL: Any
    FLAT: Any
    PER_PLANE: Any  # whether planes have windows of their own
    WIDE: Any  # whether indices need 64 bits


@triton.jit
def _window(table, o):
    """First inputs of windows, their numbers of taps, numbers of the first taps, and divisors."""
    row = table_row(table, o)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)


@triton.jit
def window_forward_kernel(
    x,
    y,
    extra,
    table_d,
    table_h,
    table_w,
    lanes,
    programs,
    x_strides,
    y_strides,
    planes,
    steps,
    marks,
    sizes,
    taps_w,
    taps,
    division,
    BLOCK,
    MEMORY,
    REDUCE,
):
    """VEC outputs per lane, tap by tap.

    From one tap to the next along an axis, addresses grow by `steps` and marks, which are offsets or indices,
    by `marks`. Where planes have windows of their own, `planes` has the numbers of planes and of rows per
    plane in each table, or 0.
    """
    UNIT: tl.constexpr = BLOCK.UNIT
    FLAT: tl.constexpr = BLOCK.FLAT
    UNROLL: tl.constexpr = BLOCK.UNROLL
    MARK: tl.constexpr = tl.int64 if BLOCK.WIDE else tl.int32
    pid = program_number(MEMORY)
    wait_for_previous()
    oh, od, block = split(pid, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64)
    live, c, ow, own_row, l1, l2 = lanes_of(block, lanes, BLOCK.LANES, MEMORY)
    if lanes.strips is not None:
        oh = own_row
    x_base = base_of(c, l1, l2, x_strides, MEMORY)
    y_base = base_of(c, l1, l2, y_strides, MEMORY)
    # Lanes past the last one read the table entries of the first.
    ow = tl.where(live, ow, 0)
    plane = 0
    if BLOCK.PER_PLANE:
        plane = tl.where(live, base_of(c, l1, l2, planes, MEMORY), 0)
    start_d, count_d, lead_d, share_d = _window(table_d, plane * planes.d + od)
    start_h, count_h, lead_h, share_h = _window(table_h, plane * planes.h + oh)
    start_w, count_w, lead_w, share_w = _window(table_w, plane * planes.w + ow)
    x_base += start_d * x_strides.d + start_h * x_strides.h + start_w * x_strides.w
    n_d = count_d
    n_h = count_h
    if BLOCK.PER_PLANE:
        n_d = tl.max(count_d)
    if BLOCK.PER_PLANE or lanes.strips is not None:
        n_h = tl.max(count_h)
    along = tl.arange(0, BLOCK.VEC)[None, :]
    at = x + (x_base * UNIT)[:, None] + along
    # A window without elements has the mark of its first tap.
    best = tl.full([BLOCK.LANES, BLOCK.VEC], REDUCE.IDENTITY, REDUCE.COMPUTE)
    offset = tl.zeros([BLOCK.LANES, BLOCK.VEC], MARK)
    td = 0
    th = 0
    tw = 0
    # Short rows: one loop for all axes, so that several loads are in flight.
    for _ in tl.range(0, n_d * n_h * (taps_w if FLAT else 1), loop_unroll_factor=UNROLL if FLAT else 1):
        inside = live
        if BLOCK.PER_PLANE:
            inside = live & (td < count_d) & (th < count_h)
        elif lanes.strips is not None:
            inside = live & (th < count_h)
        row = at + (td * steps.d + th * steps.h) * UNIT
        line = td * marks.d + th * marks.h
        if FLAT:
            ok = (inside & (tw < count_w))[:, None]
            v = element(load_or_identity(row + tw * steps.w * UNIT, ok, REDUCE), REDUCE)
            best, offset = merge(best, offset, v, (line + tw * marks.w).to(MARK), REDUCE)
            ends = (tw + 1 == taps_w).to(tl.int32)
            tw = (tw + 1) * (1 - ends)
            th += ends
        else:
            for k in tl.range(0, taps_w, loop_unroll_factor=UNROLL):
                ok = (inside & (k < count_w))[:, None]
                v = element(load_or_identity(row + k * steps.w * UNIT, ok, REDUCE), REDUCE)
                best, offset = merge(best, offset, v, (line + k * marks.w).to(MARK), REDUCE)
            th += 1
        depth = (th == n_h).to(tl.int32)
        th = th * (1 - depth)
        td += depth
    ok = live[:, None]
    to = ((y_base + od * y_strides.d + oh * y_strides.h + ow * y_strides.w) * UNIT)[:, None] + along
    by = division.by
    if REDUCE.DIVIDE == 2:
        by = (share_w.to(tl.int64) * share_d * share_h)[:, None]
    best = root(divided(best, by, division.inverse, REDUCE), taps, REDUCE)
    tl.store(y + to, best.to(y.dtype.element_ty), mask=ok)
    if REDUCE.KIND != 0:
        if REDUCE.KIND == INDEX64:
            begin = start_w.to(MARK) + start_h.to(MARK) * sizes.w + start_d.to(MARK) * sizes.h * sizes.w
        else:
            begin = lead_w * marks.w + lead_h * marks.h + lead_d * marks.d
        tl.store(extra + to, (offset + begin[:, None]).to(extra.dtype.element_ty), mask=ok)
