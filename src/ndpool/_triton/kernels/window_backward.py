"""Backward for any plan: every input sums the outputs that contain it, in increasing order.

Tables have one row per input: the first output that contains it, how many do, and its tap there
(`launch.input_table`). Along a regular axis each next output contains it at `fewer` taps less; along an
irregular one its tap follows from the window (`launch.window_table`).
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import SIZES, base_of, lanes_of, split, table_row, wait_for_previous
from ndpool._triton.kernels.reducers import quotient_by_inverse, quotient_of_channels, scaled, widen

_SIZES = [*SIZES, "size_d", "size_h", "kernel_h", "kernel_w", "most_w", "strips", "each"]
_SIZES += [f"{name}_{axis}" for name in ("step", "spacing", "fewer") for axis in "dhw"]


@triton.jit
def outputs_of_input(i, inputs):
    """First output that contains each input, how many do, and its tap in the first."""
    row = table_row(inputs, i)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2)


@triton.jit
def tap_in(i, o, m, first_tap, windows, step, fewer, IRREGULAR: tl.constexpr, DILATED: tl.constexpr):
    """The tap of inputs in output o, the m-th that contains them."""
    if not IRREGULAR:
        return first_tap - m * fewer
    elif DILATED:
        return tl.load(table_row(windows, o) + 2) + (i - tl.load(table_row(windows, o))) // step
    else:
        return i - tl.load(table_row(windows, o))


@triton.jit(do_not_specialize=_SIZES)
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
    kernel_h,
    kernel_w,
    step_d,
    step_h,
    step_w,
    spacing_d,
    spacing_h,
    spacing_w,
    fewer_d,
    fewer_h,
    fewer_w,
    most_w,
    strips,
    each,
    divisor,
    inverse,
    COLUMNS: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    IRREGULAR: tl.constexpr,
    DILATED: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    SCALED: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """VEC inputs per lane and row, for `each` rows; up to `most_w` outputs of a row contain an input."""
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    strip, d, block = split(pid, strips, size_d, m_s, m_d, INT64)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64)
    along = tl.arange(0, VEC)[None, :]
    w = tl.where(live, w, 0)
    live = live[:, None]
    x_at = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT + d * x_d * X_UNIT
    y_at = (base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT)[:, None]
    if COLUMNS:
        # Neighbours along the last axis, each in its own windows.
        i = w[:, None] * VEC + along
        x_at = (x_at + w * VEC)[:, None] + along
    else:
        i = w[:, None]
        x_at = (x_at + w * x_w * X_UNIT)[:, None] + along
        y_at = y_at + along
    first_d, count_d, tap_d = outputs_of_input(d, inputs_d)
    first_w, count_w, tap_w = outputs_of_input(i, inputs_w)
    y_at += first_w * y_w * Y_UNIT
    for h in range(strip * each, tl.minimum(strip * each + each, size_h)):
        first_h, count_h, tap_h = outputs_of_input(h, inputs_h)
        total = tl.zeros([LANES, VEC], COMPUTE)
        md = 0
        mh = 0
        mw = 0
        # One loop for all axes, so that several loads are in flight however few outputs a row has.
        for _ in tl.range(0, count_d * count_h * most_w, loop_unroll_factor=4):
            od = first_d + md * spacing_d
            oh = first_h + mh * spacing_h
            ok = live & (mw < count_w)
            at = y_at + (od * y_d + oh * y_h + mw * spacing_w * y_w) * Y_UNIT
            g = widen(tl.load(grad + at, mask=ok, other=0), COMPUTE)
            ow = first_w
            if IRREGULAR or DIVIDE == 2:
                ow = tl.where(mw < count_w, first_w + mw * spacing_w, 0)
            if HAS_INDEX:
                td = tap_in(d, od, md, tap_d, windows_d, step_d, fewer_d, IRREGULAR, DILATED)
                th = tap_in(h, oh, mh, tap_h, windows_h, step_h, fewer_h, IRREGULAR, DILATED)
                tw = tap_in(i, ow, mw, tap_w, windows_w, step_w, fewer_w, IRREGULAR, DILATED)
                tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
                g = tl.where(ok & (tap == ((td * kernel_h + th) * kernel_w + tw).to(tl.int32)), g, 0)
            if DIVIDE == 1:
                g = quotient_by_inverse(g, divisor, inverse)
            if DIVIDE == 2:
                by = tl.load(table_row(windows_d, od) + 3) * tl.load(table_row(windows_h, oh) + 3)
                g = quotient_of_channels(g, by * tl.load(table_row(windows_w, ow) + 3))
            total += g
            row = (mw + 1 == most_w).to(tl.int32)
            mw = (mw + 1) * (1 - row)
            mh += row
            depth = (mh == count_h).to(tl.int32)
            mh = mh * (1 - depth)
            md += depth
        to = x_at + h * x_h * X_UNIT
        tl.store(
            result + to, scaled(total, offsets + to, live, SCALED).to(result.dtype.element_ty), mask=live
        )
