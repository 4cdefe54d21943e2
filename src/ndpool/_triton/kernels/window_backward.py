"""Backward for any plan: every input sums the outputs that contain it, in increasing order.

Tables have one row per input: the first output that contains it, how many do, and its tap there
(`launch.input_table`). Along a regular axis each next output contains it at `fewer` taps less; along an
irregular one its tap follows from the window (`launch.window_table`). Windows without padding that overlap
little are gathered by runs of rows that are contained in the same windows: a gradient is read once and
written to many rows. Runs stay for adaptive max pooling of 61x53 to 6 in channels-last arrays, 1.4 to 1.8
times as fast.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    base_of,
    lanes_of,
    program_number,
    split,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import scaled, shared_gradient, widen


class Block(NamedTuple):
    """VEC inputs per lane: neighbours along the last axis, or channels."""

    COLUMNS: Any
    X_UNIT: Any
    Y_UNIT: Any
    VEC: Any
    LANES: Any
    IRREGULAR: Any
    DILATED: Any
    RUNS: Any
    OVERLAP_D: Any  # windows that contain an input, of runs
    OVERLAP_W: Any
    ONE_WINDOW: Any  # whether all neighbours are in the same, single window


class Axis(NamedTuple):
    """How the taps of inputs along an axis follow from windows."""

    step: Any
    spacing: Any
    fewer: Any


class Rows(NamedTuple):
    """Rows, or runs of rows, `each` of them per program; and outputs of a row to visit at most."""

    n: Any
    each: Any
    most_w: Any


@triton.jit
def outputs_of_input(i, inputs):
    """First output that contains each input, how many do, and its tap in the first."""
    row = table_row(inputs, i)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2)


@triton.jit
def tap_in(i, o, m, first_tap, windows, axis, BLOCK):
    """The tap of inputs in output o, the m-th that contains them."""
    if not BLOCK.IRREGULAR:
        return first_tap - m * axis.fewer
    elif BLOCK.DILATED:
        return tl.load(table_row(windows, o) + 2) + (i - tl.load(table_row(windows, o))) // axis.step
    else:
        return i - tl.load(table_row(windows, o))


@triton.jit
def _of_run(oh, outs, grad, offsets, row, live, tables, strides, kernel, division, BLOCK, GATHER):
    """Gradients of one row of outputs that contain the inputs, and their offsets relative to row 0."""
    windows_d, windows_h, windows_w = tables
    d, i, within, first_d, end_d, first_w, end_w = outs
    found = ()
    taps = ()
    for md in tl.static_range(BLOCK.OVERLAP_D):
        od = first_d + md
        inside = od < end_d
        od = tl.where(inside, od, 0)
        for mw in tl.static_range(BLOCK.OVERLAP_W):
            ow = first_w + mw
            ok = live & (ow < end_w) & (ow * 0 + inside.to(tl.int32) > 0)
            ow = tl.where(ok, ow, 0)
            at = row + (od * strides.d + oh * strides.h + ow * strides.w) * BLOCK.Y_UNIT
            g = widen(tl.load(grad + at, mask=ok, other=0), GATHER.COMPUTE)
            by = division.by
            if GATHER.DIVIDE == 2:
                by = tl.load(table_row(windows_d, od) + 1) * tl.load(table_row(windows_h, oh) + 1)
                by = by * tl.load(table_row(windows_w, ow) + 1)
            g = shared_gradient(g, by, division.inverse, GATHER)
            tap = g
            if GATHER.HAS_INDEX:
                first = (d - tl.load(table_row(windows_d, od))) * kernel.h - tl.load(table_row(windows_h, oh))
                first = first * kernel.w + i - tl.load(table_row(windows_w, ow))
                tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32) - (first + within)
            found, taps = found + (g,), taps + (tap,)
    return found, taps


@triton.jit
def window_backward_kernel(
    grad,
    offsets,
    result,
    inputs_d,
    inputs_h,
    inputs_w,
    windows_d,
    windows_h,
    windows_w,
    runs_h,
    lanes,
    programs,
    x_strides,
    y_strides,
    rows,
    kernel,
    axis_d,
    axis_h,
    axis_w,
    division,
    BLOCK,
    MEMORY,
    GATHER,
):
    """VEC inputs per lane and row, for some rows or runs of rows."""
    X_UNIT: tl.constexpr = BLOCK.X_UNIT
    Y_UNIT: tl.constexpr = BLOCK.Y_UNIT
    pid = program_number(MEMORY)
    wait_for_previous()
    strip, d, block = split(pid, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64)
    live, c, w, row, l1, l2 = lanes_of(block, lanes, BLOCK.LANES, MEMORY)
    along = tl.arange(0, BLOCK.VEC)[None, :]
    w = tl.where(live, w, 0)
    live = live[:, None]
    x_at = base_of(c, l1, l2, x_strides, MEMORY) * X_UNIT + d * x_strides.d * X_UNIT
    y_at = (base_of(c, l1, l2, y_strides, MEMORY) * Y_UNIT)[:, None]
    i = w[:, None]
    among = along * 0  # the inputs of a single window
    if BLOCK.COLUMNS:
        # Neighbours along the last axis, each in its own windows unless all are in one.
        x_at = (x_at + w * BLOCK.VEC)[:, None] + along
        if BLOCK.ONE_WINDOW:
            i = i * BLOCK.VEC
            among = along
        else:
            i = i * BLOCK.VEC + along
    else:
        x_at = (x_at + w * x_strides.w * X_UNIT)[:, None] + along
        y_at = y_at + along
    first_d, count_d, tap_d = outputs_of_input(d, inputs_d)
    first_w, count_w, tap_w = outputs_of_input(i, inputs_w)
    begin_row = strip * rows.each
    end_row = tl.minimum(begin_row + rows.each, rows.n)
    if BLOCK.RUNS:
        tables = (windows_d, windows_h, windows_w)
        end_d = first_d + count_d
        end_w = first_w + count_w
        outs = (d, i, among, first_d, end_d, first_w, end_w)
        given = (outs, grad, offsets, y_at, live, tables, y_strides, kernel, division)
        for run in range(begin_row, end_row):
            # Loaded in each iteration: Triton 3.6 treats a number carried from run to run as constant.
            begin = tl.load(runs_h + run)
            end = tl.load(runs_h + run + 1)
            first_h = tl.load(table_row(inputs_h, begin))
            end_h = first_h + tl.load(table_row(inputs_h, begin) + 1)
            total = tl.zeros([BLOCK.LANES, BLOCK.VEC], GATHER.COMPUTE)
            if GATHER.HAS_INDEX:
                if end_h - first_h == 1:
                    found, taps = _of_run(first_h, *given, BLOCK, GATHER)
                    for h in tl.range(begin, end, loop_unroll_factor=4):
                        total = tl.zeros([BLOCK.LANES, BLOCK.VEC], GATHER.COMPUTE)
                        for m in tl.static_range(BLOCK.OVERLAP_D * BLOCK.OVERLAP_W):
                            total += tl.where(taps[m] == h * kernel.w, found[m], 0)
                        value = total.to(result.dtype.element_ty)
                        tl.store(result + x_at + h * x_strides.h * X_UNIT, value, mask=live)
                else:
                    for h in range(begin, end):
                        total = tl.zeros([BLOCK.LANES, BLOCK.VEC], GATHER.COMPUTE)
                        for oh in range(first_h, end_h):
                            found, taps = _of_run(oh, *given, BLOCK, GATHER)
                            for m in tl.static_range(BLOCK.OVERLAP_D * BLOCK.OVERLAP_W):
                                total += tl.where(taps[m] == h * kernel.w, found[m], 0)
                        value = total.to(result.dtype.element_ty)
                        tl.store(result + x_at + h * x_strides.h * X_UNIT, value, mask=live)
            else:
                for oh in range(first_h, end_h):
                    found, _ = _of_run(oh, *given, BLOCK, GATHER)
                    for m in tl.static_range(BLOCK.OVERLAP_D * BLOCK.OVERLAP_W):
                        total += found[m]
                for h in tl.range(begin, end, loop_unroll_factor=4):
                    to = x_at + h * x_strides.h * X_UNIT
                    value = scaled(total, offsets + to, live, GATHER.SCALED)
                    tl.store(result + to, value.to(result.dtype.element_ty), mask=live)
    else:
        y_at += first_w * y_strides.w * Y_UNIT
        n_rows = end_row - begin_row
        if lanes.strips is not None:
            n_rows = 1
            begin_row = row[:, None]
        for number in range(0, n_rows):
            h = begin_row + number
            first_h, count_h, tap_h = outputs_of_input(h, inputs_h)
            most_h = count_h
            if lanes.strips is not None:
                most_h = tl.max(count_h)
            total = tl.zeros([BLOCK.LANES, BLOCK.VEC], GATHER.COMPUTE)
            md = 0
            mh = 0
            mw = 0
            # One loop for all axes, so that several loads are in flight however few outputs a row has.
            for _ in tl.range(0, count_d * most_h * rows.most_w, loop_unroll_factor=4):
                od = first_d + md * axis_d.spacing
                oh = first_h + mh * axis_h.spacing
                ok = live & (mw < count_w)
                if lanes.strips is not None:
                    ok = ok & (mh < count_h)
                    oh = tl.where(mh < count_h, oh, 0)
                column = mw * axis_w.spacing * y_strides.w
                at = y_at + (od * y_strides.d + oh * y_strides.h + column) * Y_UNIT
                g = widen(tl.load(grad + at, mask=ok, other=0), GATHER.COMPUTE)
                ow = first_w
                if BLOCK.IRREGULAR or GATHER.DIVIDE == 2:
                    ow = tl.where(mw < count_w, first_w + mw * axis_w.spacing, 0)
                if GATHER.HAS_INDEX:
                    td = tap_in(d, od, md, tap_d, windows_d, axis_d, BLOCK)
                    th = tap_in(h, oh, mh, tap_h, windows_h, axis_h, BLOCK)
                    tw = tap_in(i, ow, mw, tap_w, windows_w, axis_w, BLOCK)
                    tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
                    g = tl.where(ok & (tap == ((td * kernel.h + th) * kernel.w + tw).to(tl.int32)), g, 0)
                by = division.by
                if GATHER.DIVIDE == 2:
                    by = tl.load(table_row(windows_d, od) + 3) * tl.load(table_row(windows_h, oh) + 3)
                    by = by * tl.load(table_row(windows_w, ow) + 3)
                total += shared_gradient(g, by, division.inverse, GATHER)
                ends = (mw + 1 == rows.most_w).to(tl.int32)
                mw = (mw + 1) * (1 - ends)
                mh += ends
                depth = (mh == most_h).to(tl.int32)
                mh = mh * (1 - depth)
                md += depth
            to = x_at + h * x_strides.h * X_UNIT
            value = scaled(total, offsets + to, live, GATHER.SCALED)
            tl.store(result + to, value.to(result.dtype.element_ty), mask=live)
