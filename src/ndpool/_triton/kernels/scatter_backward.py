"""Backward of max pooling with windows so large that most gradients are zero: zeros, then a scatter.

If planes are contiguous and not too large, a program first writes the zeros of its own planes. Stays for
adaptive max pooling of 61x53 to 6, 1.8 to 2 times as fast as `row_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    SIZES,
    base_of,
    coordinates_of,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import widen
from ndpool._triton.kernels.window_backward import outputs_of_input, tap_in


@triton.jit
def _position(tap, o, axis):
    tables, numbers = axis
    windows, _ = tables
    _, _, _, step, _, _ = numbers
    row = table_row(windows, o)
    return tl.load(row) + (tap - tl.load(row + 2)) * step


@triton.jit
def _containing(i, axis):
    """First output along an axis that contains each input, how many do, and its tap in the first."""
    tables, _ = axis
    _, inputs = tables
    return outputs_of_input(i, inputs)


@triton.jit
def _nth(i, first, m, tap, ok, axis, IRREGULAR: tl.constexpr, DILATED: tl.constexpr):
    """The m-th output along an axis, 0 where there is none, and the tap of the input there."""
    tables, numbers = axis
    windows, _ = tables
    _, _, _, step, spacing, fewer = numbers
    o = tl.where(ok, first + m * spacing, 0)
    return o, tap_in(i, o, m, tap, windows, step, fewer, IRREGULAR, DILATED)


@triton.jit
def _gradient_of_input(
    start,
    pid,
    grad,
    offsets,
    lanes,
    x_strides,
    y_strides,
    axis_d,
    axis_h,
    axis_w,
    OVERLAP_D: tl.constexpr,
    OVERLAP_H: tl.constexpr,
    OVERLAP_W: tl.constexpr,
    IRREGULAR: tl.constexpr,
    DILATED: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """Inputs that LANES outputs took their values from, and the complete gradient of these inputs.

    An axis is two tuples: tables of windows and inputs; size, outputs, taps, and the numbers of
    `launch.input_table`.
    """
    lanes_each, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1 = lanes
    x_c, x_1, x_2, x_d, x_h, x_w = x_strides
    y_c, y_1, y_2, y_d, y_h, y_w = y_strides
    _, numbers_d = axis_d
    _, numbers_h = axis_h
    _, numbers_w = axis_w
    size_d, _, _, _, _, _ = numbers_d
    size_h, out_h, kernel_h, _, _, _ = numbers_h
    size_w, out_w, kernel_w, _, _, _ = numbers_w
    lane = start + tl.arange(0, LANES)
    live = lane < lanes_each
    lane = pid * lanes_each + lane
    live = live & (lane < n_lanes)
    c, w, l1, l2 = coordinates_of(lane, n_c, n_w, n_1, m_c, m_w, m_1, CHANNELS, LEADS, INT64)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS)
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS)
    w = tl.where(live, w, 0)
    ow = w % out_w
    oh = w // out_w % out_h
    od = w // out_w // out_h
    offset = tl.load(offsets + y_base + od * y_d + oh * y_h + ow * y_w, mask=live, other=0).to(tl.int32)
    i = _position(offset % kernel_w, ow, axis_w)
    h = _position(offset // kernel_w % kernel_h, oh, axis_h)
    d = _position(offset // kernel_w // kernel_h, od, axis_d)
    # The offset of a window without elements lies outside.
    live = live & (i >= 0) & (i < size_w) & (h >= 0) & (h < size_h) & (d >= 0) & (d < size_d)
    i = tl.where(live, i, 0)
    h = tl.where(live, h, 0)
    d = tl.where(live, d, 0)
    first_d, count_d, tap_d = _containing(d, axis_d)
    first_h, count_h, tap_h = _containing(h, axis_h)
    first_w, count_w, tap_w = _containing(i, axis_w)
    total = tl.zeros([LANES], COMPUTE)
    for md in tl.static_range(OVERLAP_D):
        for mh in tl.static_range(OVERLAP_H):
            for mw in tl.static_range(OVERLAP_W):
                ok = live & (md < count_d) & (mh < count_h) & (mw < count_w)
                other_d, td = _nth(d, first_d, md, tap_d, ok, axis_d, IRREGULAR, DILATED)
                other_h, th = _nth(h, first_h, mh, tap_h, ok, axis_h, IRREGULAR, DILATED)
                other_w, tw = _nth(i, first_w, mw, tap_w, ok, axis_w, IRREGULAR, DILATED)
                at = y_base + other_d * y_d + other_h * y_h + other_w * y_w
                tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
                hit = ok & (tap == (td * kernel_h + th) * kernel_w + tw)
                total += widen(tl.load(grad + at, mask=hit, other=0), COMPUTE)
    return x_base + d * x_d + h * x_h + i * x_w, total, live


@triton.jit
def _zeros(result, begin, end, VEC: tl.constexpr, LANES: tl.constexpr):
    """Write zeros from begin to end: full vectors, then the partial vectors at both ends."""
    first = (begin + (VEC - 1)) // VEC
    last = end // VEC
    along = tl.arange(0, 4 * LANES * VEC)
    for start in range(first, last, 4 * LANES):
        there = start + along // VEC < last
        tl.store(
            result + start * VEC + along, tl.zeros([4 * LANES * VEC], result.dtype.element_ty), mask=there
        )
    edge = tl.arange(0, 2 * VEC)
    front = edge < VEC
    at = tl.where(front, begin + edge, last * VEC + (edge - VEC))
    there = (at < end) & (front | (at >= first * VEC)) & ((at < first * VEC) | (edge >= VEC))
    tl.store(result + at, tl.zeros([2 * VEC], result.dtype.element_ty), mask=there)


_NAMES = ("size", "out", "kernel", "step", "spacing", "fewer")
_SIZES = [
    *SIZES,
    "lanes_each",
    "zeros_each",
    "zeros",
    *(f"{name}_{axis}" for name in _NAMES for axis in "dhw"),
]


@triton.jit(do_not_specialize=_SIZES)
def scatter_backward_kernel(
    grad,
    offsets,
    result,
    windows_d,
    inputs_d,
    windows_h,
    inputs_h,
    windows_w,
    inputs_w,
    lanes_each,
    zeros_each,
    zeros,
    n_lanes,
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
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
    out_d,
    kernel_d,
    step_d,
    spacing_d,
    fewer_d,
    size_h,
    out_h,
    kernel_h,
    step_h,
    spacing_h,
    fewer_h,
    size_w,
    out_w,
    kernel_w,
    step_w,
    spacing_w,
    fewer_w,
    OVERLAP_D: tl.constexpr,
    OVERLAP_H: tl.constexpr,
    OVERLAP_W: tl.constexpr,
    IRREGULAR: tl.constexpr,
    DILATED: tl.constexpr,
    VEC: tl.constexpr,
    ONCE: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """One output per lane: write the complete gradient of the input it took its value from into zeros.

    All outputs that took the same input write the same sum, so their order does not matter.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    lanes = (lanes_each, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1)
    x_strides = (x_c, x_1, x_2, x_d, x_h, x_w)
    y_strides = (y_c, y_1, y_2, y_d, y_h, y_w)
    axis_d = (
        (windows_d, inputs_d),
        (size_d, out_d, kernel_d, step_d, spacing_d, fewer_d),
    )
    axis_h = (
        (windows_h, inputs_h),
        (size_h, out_h, kernel_h, step_h, spacing_h, fewer_h),
    )
    axis_w = (
        (windows_w, inputs_w),
        (size_w, out_w, kernel_w, step_w, spacing_w, fewer_w),
    )
    given = (pid, grad, offsets, lanes, x_strides, y_strides, axis_d, axis_h, axis_w)
    if ONCE:
        # All loads come before the zeros, which would delay them.
        to, total, live = _gradient_of_input(
            0,
            *given,
            OVERLAP_D,
            OVERLAP_H,
            OVERLAP_W,
            IRREGULAR,
            DILATED,
            LANES,
            CHANNELS,
            LEADS,
            COMPUTE,
            INT64,
        )
    if VEC > 0:
        _zeros(result, pid * zeros_each, tl.minimum(pid * zeros_each + zeros_each, zeros), VEC, LANES)
        # No other program writes to these planes.
        tl.debug_barrier()
    if ONCE:
        tl.store(result + to, total.to(result.dtype.element_ty), mask=live)
    else:
        for start in range(0, lanes_each, LANES):
            to, total, live = _gradient_of_input(
                start,
                *given,
                OVERLAP_D,
                OVERLAP_H,
                OVERLAP_W,
                IRREGULAR,
                DILATED,
                LANES,
                CHANNELS,
                LEADS,
                COMPUTE,
                INT64,
            )
            tl.store(result + to, total.to(result.dtype.element_ty), mask=live)
