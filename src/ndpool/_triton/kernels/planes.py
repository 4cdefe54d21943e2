"""Kernels for windows that are whole contiguous planes: many planes at once, whatever their size.

A lane merges a few elements, then the lanes of a plane are brought together; backward, planes are written as
the flat memory they are.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import call_next, over, wait_for_memory
from ndpool._triton.kernels.reducers import (
    NOWHERE,
    SUM,
    best_along,
    even_quotient,
    merge,
    unsigned_zero,
    widen,
)

_SIZES = ["planes", "n_1", "size", "x_1", "x_2", "y_1", "y_2", "divisor", "inverse"]


@triton.jit(do_not_specialize=_SIZES)
def plane_forward_kernel(
    x,
    y,
    extra,
    planes,
    n_1,
    size,
    x_1,
    x_2,
    y_1,
    y_2,
    divisor,
    inverse,
    PLANES: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    ONCE: tl.constexpr,
    LEADS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One output for each of PLANES planes, from WIDTH elements of each at a time.

    UNIT elements are read at once, wherever planes begin: what a plane's first and last vector hold beside it
    is left out. All vectors lie inside the input, whose length is a multiple of UNIT.
    """
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    plane = pid * PLANES + tl.arange(0, PLANES)
    live = plane < planes
    l1 = plane
    l2 = plane * 0
    if LEADS > 1:
        l1 = plane % n_1
        l2 = plane // n_1
    base = l1 * x_1 + l2 * x_2
    before = (base & (UNIT - 1)).to(tl.int32)[:, None]
    base = (base // UNIT * UNIT)[:, None]
    slot = tl.arange(0, WIDTH)[None, :]
    vector = slot // UNIT * UNIT
    first = slot - before
    best = tl.full([PLANES, WIDTH], LOW, COMPUTE)
    where = tl.where(first >= 0, first, first + WIDTH)
    where = tl.where(where < size, where, NOWHERE)
    to = l1 * y_1 + l2 * y_2
    wait_for_memory()
    if ONCE:
        there = live[:, None] & (vector < size + before)
        v = widen(tl.load(x + base + slot, mask=there, other=LOW), COMPUTE)
        # One comparison: what is before the first is huge without its sign.
        inside = first.to(tl.uint32) < size.to(tl.uint32)
        best = tl.where(inside, v, LOW)
        if KIND != 0:
            where = tl.where(inside, first, NOWHERE)
    else:
        for start in range(0, size + UNIT - 1, WIDTH):
            there = live[:, None] & (start + vector < size + before)
            v = widen(tl.load(x + base + (start + slot), mask=there, other=LOW), COMPUTE)
            i = start + first
            v = tl.where(i.to(tl.uint32) < size.to(tl.uint32), v, LOW)
            best, where = merge(best, where, v, i, OP, True)
    if OP == SUM:
        value = tl.sum(best, 1)
        if DIVIDE == 1:
            value = even_quotient(value, divisor, inverse)
        else:
            value = unsigned_zero(value)
    else:
        value, where = best_along(best, where, 1, OP, KIND != 0)
    if KIND != 0:
        tl.store(extra + to, where.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["lanes", "size", "m_size", "y_1", "divisor", "inverse"])
def plane_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    size,
    m_size,
    y_1,
    divisor,
    inverse,
    LANES: tl.constexpr,
    VEC: tl.constexpr,
    NEXT: tl.constexpr,
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient of planes of `size` elements that follow each other in memory, as one flat array."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    lane = pid * LANES + tl.arange(0, LANES)
    live = lane < lanes
    # A vector is in two planes at most.
    plane = over(lane * VEC, size, m_size, WIDE)
    end = (plane + 1) * size - lane * VEC  # of the first plane, seen from the vector's first element
    next_plane = plane + (end < VEC).to(plane.dtype)
    if NEXT:
        call_next()
    wait_for_memory()
    a = widen(tl.load(grad + plane * y_1, mask=live, other=0), COMPUTE)
    b = widen(tl.load(grad + next_plane * y_1, mask=live, other=0), COMPUTE)
    if DIVIDE == 1:
        a = even_quotient(a, divisor, inverse)
        b = even_quotient(b, divisor, inverse)
    along = tl.arange(0, VEC)[None, :]
    g = tl.where(along < end[:, None], a[:, None], b[:, None])
    if PICKS:
        # Where the picked elements are, seen from the vector's first.
        at_a = plane * size + tl.load(offsets + plane * y_1, mask=live, other=0) - lane * VEC
        at_b = next_plane * size + tl.load(offsets + next_plane * y_1, mask=live, other=0) - lane * VEC
        g = tl.where(along == at_a[:, None], a[:, None], tl.where(along == at_b[:, None], b[:, None], 0))
    to = (lane * VEC)[:, None] + along
    tl.store(result + to, g.to(result.dtype.element_ty), mask=live[:, None])
