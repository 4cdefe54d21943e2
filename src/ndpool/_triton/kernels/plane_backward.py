"""Backward of whole-plane windows: contiguous planes as one flat array, and planes of channels.

Stays for adaptive pooling of 7x7 to 1, contiguous 1.1 to 4 times and channels-last, max pooling in bfloat16,
twice as fast as `window_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    base_of,
    divide,
    lanes_of,
    launch_dependents,
    program_number,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import shared_gradient, widen


class Block(NamedTuple):
    """Vectors of VEC elements; of channels, each in ROWS rows. EDGES: planes do not fill the last vector."""

    LANES: Any
    VEC: Any
    ROWS: Any
    EDGES: Any


@triton.jit
def _gradients(grad, offsets, at, ok, division, GATHER):
    """Gradients of planes, divided, and the positions that they belong to."""
    g = widen(tl.load(grad + at, mask=ok, other=0), GATHER.COMPUTE)
    if GATHER.DIVIDE == 1:
        g = shared_gradient(g, division.by, division.inverse, GATHER)
    taken = g
    if GATHER.HAS_INDEX:
        taken = tl.load(offsets + at, mask=ok, other=0)
    return g, taken


@triton.jit
def plane_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    x_strides,
    y_strides,
    size,
    by_size,
    total,
    division,
    launch_next,
    BLOCK,
    MEMORY,
    GATHER,
):
    """Planes of `size` elements: VEC neighbours per lane, or VEC channels in rows that are lanes.w apart."""
    VEC: tl.constexpr = BLOCK.VEC
    pid = program_number(MEMORY)
    along = tl.arange(0, VEC)[None, :]
    if launch_next > 0:
        launch_dependents()
    if MEMORY.CHANNELS:
        live, c, w, l1, l2 = lanes_of(pid, lanes, BLOCK.LANES, MEMORY)
        at = base_of(c, l1, l2, y_strides, MEMORY)[:, None] + along * (y_strides.c // VEC)
        wait_for_previous()
        g, taken = _gradients(grad, offsets, at, live[:, None], division, GATHER)
        g = g.to(result.dtype.element_ty)
        to = (base_of(c, l1, l2, x_strides, MEMORY) * VEC)[:, None] + along
        for r in tl.static_range(BLOCK.ROWS):
            row = w + r * lanes.w
            value = g
            if GATHER.HAS_INDEX:
                value = tl.where(row[:, None] == taken, g, tl.zeros_like(g))
            there = (live & (row < size))[:, None]
            tl.store(result + to + (row * x_strides.w)[:, None] * VEC, value, mask=there)
    else:
        lane = pid * BLOCK.LANES + tl.arange(0, BLOCK.LANES)
        live = lane < lanes.n
        # A vector spans at most two planes.
        plane = divide(lane * VEC, size, by_size, MEMORY.INT64)
        end = (plane + 1) * size - lane * VEC  # of the first plane, relative to the vector
        next_plane = plane + (end < VEC).to(plane.dtype)
        wait_for_previous()
        a, at_a = _gradients(grad, offsets, plane * y_strides.lead, live, division, GATHER)
        b, at_b = _gradients(grad, offsets, next_plane * y_strides.lead, live, division, GATHER)
        g = tl.where(along < end[:, None], a[:, None], b[:, None])
        if GATHER.HAS_INDEX:
            # Positions of the maxima relative to the vector.
            at_a = plane * size + at_a - lane * VEC
            at_b = next_plane * size + at_b - lane * VEC
            g = tl.where(along == at_a[:, None], a[:, None], tl.where(along == at_b[:, None], b[:, None], 0))
        to = (lane * VEC)[:, None] + along
        tl.store(result + to, g.to(result.dtype.element_ty), mask=live[:, None])
        if BLOCK.EDGES:
            if pid == 0:
                # Fewer elements than a vector, all in the last plane.
                i = total // VEC * VEC + tl.arange(0, VEC)
                last = total // size - 1
                rest, taken = _gradients(
                    grad, offsets, i * 0 + last * y_strides.lead, i < total, division, GATHER
                )
                if GATHER.HAS_INDEX:
                    rest = tl.where(i - last * size == taken, rest, 0)
                tl.store(result + i, rest.to(result.dtype.element_ty), mask=i < total)
