"""Backward of max pooling with windows so large that most gradients are zero: zeros, then a scatter.

If planes are contiguous and not too large, a program first writes the zeros of its own planes. Stays for
adaptive max pooling of 61x53 to 6, 1.8 to 2 times as fast as `window_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    base_of,
    coordinates_of,
    program_number,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import widen
from ndpool._triton.kernels.window_backward import outputs_of_input, tap_in


class Block(NamedTuple):
    """LANES outputs at a time, ONCE if those are all; zeros by vectors of VEC, unless 0."""

    OVERLAP_D: Any  # windows that contain an input
    OVERLAP_H: Any
    OVERLAP_W: Any
    IRREGULAR: Any
    DILATED: Any
    VEC: Any
    ONCE: Any
    LANES: Any


class Part(NamedTuple):
    """Outputs and elements of a program, and elements of all."""

    outs: Any
    zeros: Any
    total: Any


class Axis(NamedTuple):
    """Inputs, outputs and taps along an axis, and the numbers of `launch.input_table`."""

    size: Any
    out: Any
    kernel: Any
    step: Any
    spacing: Any
    fewer: Any


@triton.jit
def _position(tap, o, windows, axis):
    row = table_row(windows, o)
    return tl.load(row) + (tap - tl.load(row + 2)) * axis.step


@triton.jit
def _containing(i, windows, inputs, pitch, stride, axis, OVERLAP: tl.constexpr, BLOCK):
    """Outputs along an axis that contain inputs i: whether each exists, its address, its part of a tap."""
    first, count, first_tap = outputs_of_input(i, inputs)
    oks = ()
    ats = ()
    taps = ()
    for m in tl.static_range(OVERLAP):
        ok = m < count
        o = tl.where(ok, first + m * axis.spacing, 0)
        tap = tap_in(i, o, m, first_tap, windows, axis, BLOCK)
        oks, ats, taps = oks + (ok,), ats + (o * stride,), taps + (tap * pitch,)
    return oks, ats, taps


@triton.jit
def _gradient_of_input(
    start,
    pid,
    grad,
    offsets,
    windows,
    inputs,
    part,
    lanes,
    x_strides,
    y_strides,
    axis_d,
    axis_h,
    axis_w,
    BLOCK,
    MEMORY,
    GATHER,
):
    """Inputs that LANES outputs took their values from, and the complete gradient of these inputs."""
    windows_d, windows_h, windows_w = windows
    inputs_d, inputs_h, inputs_w = inputs
    lane = start + tl.arange(0, BLOCK.LANES)
    live = lane < part.outs
    lane = pid * part.outs + lane
    live = live & (lane < lanes.n)
    c, w, _strip, l1, l2 = coordinates_of(lane, lanes, MEMORY)
    x_base = base_of(c, l1, l2, x_strides, MEMORY)
    y_base = base_of(c, l1, l2, y_strides, MEMORY)
    w = tl.where(live, w, 0)
    ow = w % axis_w.out
    oh = w // axis_w.out % axis_h.out
    od = w // axis_w.out // axis_h.out
    at = y_base + od * y_strides.d + oh * y_strides.h + ow * y_strides.w
    offset = tl.load(offsets + at, mask=live, other=0).to(tl.int32)
    i = _position(offset % axis_w.kernel, ow, windows_w, axis_w)
    h = _position(offset // axis_w.kernel % axis_h.kernel, oh, windows_h, axis_h)
    d = _position(offset // axis_w.kernel // axis_h.kernel, od, windows_d, axis_d)
    # The offset of a window without elements lies outside.
    live = live & (i >= 0) & (i < axis_w.size) & (h >= 0) & (h < axis_h.size) & (d >= 0) & (d < axis_d.size)
    i = tl.where(live, i, 0)
    h = tl.where(live, h, 0)
    d = tl.where(live, d, 0)
    # Once per axis: windows of a volume that overlap contain an input many times.
    in_d, at_d, tap_d = _containing(
        d, windows_d, inputs_d, axis_h.kernel * axis_w.kernel, y_strides.d, axis_d, BLOCK.OVERLAP_D, BLOCK
    )
    in_h, at_h, tap_h = _containing(
        h, windows_h, inputs_h, axis_w.kernel, y_strides.h, axis_h, BLOCK.OVERLAP_H, BLOCK
    )
    in_w, at_w, tap_w = _containing(i, windows_w, inputs_w, 1, y_strides.w, axis_w, BLOCK.OVERLAP_W, BLOCK)
    total = tl.zeros([BLOCK.LANES], GATHER.COMPUTE)
    for md in tl.static_range(BLOCK.OVERLAP_D):
        for mh in tl.static_range(BLOCK.OVERLAP_H):
            in_row = live & in_d[md] & in_h[mh]
            row = y_base + at_d[md] + at_h[mh]
            row_tap = tap_d[md] + tap_h[mh]
            for mw in tl.static_range(BLOCK.OVERLAP_W):
                ok = in_row & in_w[mw]
                tap = tl.load(offsets + (row + at_w[mw]), mask=ok, other=0).to(tl.int32)
                hit = ok & (tap == row_tap + tap_w[mw])
                total += widen(tl.load(grad + (row + at_w[mw]), mask=hit, other=0), GATHER.COMPUTE)
    return x_base + d * x_strides.d + h * x_strides.h + i * x_strides.w, total, live


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


@triton.jit
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
    part,
    lanes,
    x_strides,
    y_strides,
    axis_d,
    axis_h,
    axis_w,
    BLOCK,
    MEMORY,
    GATHER,
):
    """One output per lane: write the complete gradient of the input it took its value from into zeros.

    All outputs that took the same input write the same sum, so their order does not matter.
    """
    pid = program_number(MEMORY)
    wait_for_previous()
    windows = (windows_d, windows_h, windows_w)
    inputs = (inputs_d, inputs_h, inputs_w)
    given = (pid, grad, offsets, windows, inputs, part, lanes, x_strides, y_strides, axis_d, axis_h, axis_w)
    if BLOCK.ONCE:
        # All loads come before the zeros, which would delay them.
        to, total, live = _gradient_of_input(0, *given, BLOCK, MEMORY, GATHER)
    if BLOCK.VEC > 0:
        begin = pid * part.zeros
        _zeros(result, begin, tl.minimum(begin + part.zeros, part.total), BLOCK.VEC, BLOCK.LANES)
        # No other program writes to these planes.
        tl.debug_barrier()
    if BLOCK.ONCE:
        tl.store(result + to, total.to(result.dtype.element_ty), mask=live)
    else:
        for start in range(0, part.outs, BLOCK.LANES):
            to, total, live = _gradient_of_input(start, *given, BLOCK, MEMORY, GATHER)
            tl.store(result + to, total.to(result.dtype.element_ty), mask=live)
