"""Backward of max pooling with windows so large that most gradients are zero: zeros, then a scatter.

If planes are contiguous and not too large, a program first writes the zeros of its own planes.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    AXES,
    SIZES,
    TRANSPOSED,
    base_of,
    coordinates_of,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import widen
from ndpool._triton.kernels.window_backward import nth_output, outputs_containing, tap_of


@triton.jit
def _position(tap, o, axis):
    tables, numbers, _ = axis
    starts, _, _ = tables
    _, _, _, stride, step, origin = numbers
    if starts is not None:
        return tl.load(starts + o) + tap
    else:
        return o * stride + origin + tap * step


@triton.jit
def _containing(i, axis):
    """First output along an axis that contains each input, and how many do."""
    tables, numbers, phases = axis
    _, firsts, counts = tables
    period, spacing = phases
    _, out, _, _, _, _ = numbers
    return outputs_containing(i, firsts, counts, period, spacing, out)


@triton.jit
def _nth(first, m, ok, axis):
    """The m-th output along an axis, 0 where there is none."""
    _, _, phases = axis
    _, spacing = phases
    return tl.where(ok, nth_output(first, m, spacing), 0)


@triton.jit
def _tap(i, o, axis, DILATED: tl.constexpr):
    tables, numbers, _ = axis
    starts, _, _ = tables
    _, _, _, stride, step, origin = numbers
    return tap_of(i, o, starts, stride, step, origin, DILATED)


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
    DILATED: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """Inputs that LANES outputs took their values from, and the complete gradient of these inputs.

    An axis is three tuples: tables of starts, first outputs and how many; size, outputs, taps, stride, step
    and origin; period and spacing of the outputs.
    """
    lanes_each, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1 = lanes
    x_c, x_1, x_2, x_d, x_h, x_w = x_strides
    y_c, y_1, y_2, y_d, y_h, y_w = y_strides
    _, numbers_d, _ = axis_d
    _, numbers_h, _ = axis_h
    _, numbers_w, _ = axis_w
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
    first_d, count_d = _containing(d, axis_d)
    first_h, count_h = _containing(h, axis_h)
    first_w, count_w = _containing(i, axis_w)
    total = tl.zeros([LANES], COMPUTE)
    for md in tl.static_range(OVERLAP_D):
        for mh in tl.static_range(OVERLAP_H):
            for mw in tl.static_range(OVERLAP_W):
                ok = live & (md < count_d) & (mh < count_h) & (mw < count_w)
                other_d = _nth(first_d, md, ok, axis_d)
                other_h = _nth(first_h, mh, ok, axis_h)
                other_w = _nth(first_w, mw, ok, axis_w)
                td = _tap(d, other_d, axis_d, DILATED)
                th = _tap(h, other_h, axis_h, DILATED)
                tw = _tap(i, other_w, axis_w, DILATED)
                at = y_base + other_d * y_d + other_h * y_h + other_w * y_w
                tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
                hit = ok & (tap == (td * kernel_h + th) * kernel_w + tw)
                total += widen(tl.load(grad + at, mask=hit, other=0), COMPUTE)
    return x_base + d * x_d + h * x_h + i * x_w, total, live


@triton.jit
def _zeros(result, begin, end, VEC: tl.constexpr, EDGES: tl.constexpr, LANES: tl.constexpr):
    """Write zeros from begin to end: full vectors, then the partial vectors at both ends."""
    first = (begin + (VEC - 1)) // VEC
    last = end // VEC
    along = tl.arange(0, 4 * LANES * VEC)
    for start in range(first, last, 4 * LANES):
        there = start + along // VEC < last
        tl.store(
            result + start * VEC + along, tl.zeros([4 * LANES * VEC], result.dtype.element_ty), mask=there
        )
    if EDGES:
        edge = tl.arange(0, 2 * VEC)
        front = edge < VEC
        at = tl.where(front, begin + edge, last * VEC + (edge - VEC))
        there = (at < end) & (front | (at >= first * VEC)) & ((at < first * VEC) | (edge >= VEC))
        tl.store(result + at, tl.zeros([2 * VEC], result.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=[*SIZES, *AXES, *TRANSPOSED, "lanes_each", "zeros_each", "zeros"])
def scatter_backward_kernel(
    grad,
    offsets,
    result,
    starts_d,
    firsts_d,
    outs_d,
    starts_h,
    firsts_h,
    outs_h,
    starts_w,
    firsts_w,
    outs_w,
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
    stride_d,
    step_d,
    origin_d,
    period_d,
    spacing_d,
    size_h,
    out_h,
    kernel_h,
    stride_h,
    step_h,
    origin_h,
    period_h,
    spacing_h,
    size_w,
    out_w,
    kernel_w,
    stride_w,
    step_w,
    origin_w,
    period_w,
    spacing_w,
    OVERLAP_D: tl.constexpr,
    OVERLAP_H: tl.constexpr,
    OVERLAP_W: tl.constexpr,
    DILATED: tl.constexpr,
    VEC: tl.constexpr,
    EDGES: tl.constexpr,
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
        (starts_d, firsts_d, outs_d),
        (size_d, out_d, kernel_d, stride_d, step_d, origin_d),
        (period_d, spacing_d),
    )
    axis_h = (
        (starts_h, firsts_h, outs_h),
        (size_h, out_h, kernel_h, stride_h, step_h, origin_h),
        (period_h, spacing_h),
    )
    axis_w = (
        (starts_w, firsts_w, outs_w),
        (size_w, out_w, kernel_w, stride_w, step_w, origin_w),
        (period_w, spacing_w),
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
            DILATED,
            LANES,
            CHANNELS,
            LEADS,
            COMPUTE,
            INT64,
        )
    if VEC > 0:
        _zeros(result, pid * zeros_each, tl.minimum(pid * zeros_each + zeros_each, zeros), VEC, EDGES, LANES)
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
                DILATED,
                LANES,
                CHANNELS,
                LEADS,
                COMPUTE,
                INT64,
            )
            tl.store(result + to, total.to(result.dtype.element_ty), mask=live)
