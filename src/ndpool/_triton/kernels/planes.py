"""Kernels for windows that are whole contiguous planes: many planes at once, whatever their size.

A lane merges a few elements, then the lanes of a plane are brought together; backward, planes are written as
the flat memory they are.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import call_next, over, wait_for_memory
from ndpool._triton.kernels.reducers import (
    MIN,
    NOWHERE,
    SUM,
    best_along,
    best_of,
    better,
    even_quotient,
    merge,
    order_of,
    settled,
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
    SHIFTED: tl.constexpr,
    PARTS: tl.constexpr,
    FILLED: tl.constexpr,
    LEADS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One output for each of PLANES planes, from WIDTH elements of each at a time.

    UNIT elements are read at once, wherever planes begin: where these are SHIFTED, what a plane's first and
    last vector hold beside it is left out. All vectors lie inside the input, whose length is a multiple of
    UNIT. Planes of few PARTS are read at once, and fill the first FILLED of them for certain; others take a
    loop, and PARTS is 0.
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
    to = l1 * y_1 + l2 * y_2
    before = tl.zeros([PLANES, 1], tl.int32)
    if SHIFTED:
        before = (base & (UNIT - 1)).to(tl.int32)[:, None]
        base = base // UNIT * UNIT
    slot = tl.arange(0, WIDTH)[None, :]
    at = x + base[:, None] + slot
    wait_for_memory()
    if PARTS > 0:
        found = ()
        for k in tl.static_range(PARTS):
            there = live[:, None]
            if k >= FILLED:
                there = there & (slot // UNIT * UNIT < size + before - k * WIDTH)
            found = found + (tl.load(at + k * WIDTH, mask=there, other=LOW),)
        value, where = _together(
            found, slot, before, size, WIDTH, UNIT, SHIFTED, PARTS, FILLED, OP, KIND, LOW, COMPUTE
        )
    else:
        best = tl.full([PLANES, WIDTH], LOW, COMPUTE)
        where = slot - before
        where = tl.where(where >= 0, where, where + WIDTH)
        where = tl.where(where < size, where, NOWHERE)
        for start in range(0, size + UNIT - 1, WIDTH):
            there = live[:, None] & (start + slot // UNIT * UNIT < size + before)
            v = widen(tl.load(at + start, mask=there, other=LOW), COMPUTE)
            # One comparison: what is before the first is huge without its sign.
            i = start + slot - before
            v = tl.where(i.to(tl.uint32) < size.to(tl.uint32), v, LOW)
            best, where = merge(best, where, v, i, OP, True)
        if OP == SUM:
            value, where = tl.sum(best, 1), tl.zeros([PLANES], tl.int32)
        else:
            value, where = best_along(best, where, 1, OP, KIND != 0)
    if OP == SUM:
        if DIVIDE == 1:
            value = even_quotient(value, divisor, inverse)
        else:
            value = unsigned_zero(value)
    if KIND != 0:
        tl.store(extra + to, where.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit
def _together(
    found,
    slot,
    before,
    size,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    SHIFTED: tl.constexpr,
    PARTS: tl.constexpr,
    FILLED: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The value of each plane from its parts, and where it was found."""
    vector = slot // UNIT * UNIT
    step = slot % UNIT
    parts = ()
    for k in tl.static_range(PARTS):
        v = widen(found[k], COMPUTE)
        # What is compared with a known step is the same for a whole vector.
        if SHIFTED and k == 0:
            v = tl.where(step >= before - vector, v, LOW)
        if k >= FILLED and SHIFTED:
            v = tl.where(step < size + before - vector - k * WIDTH, v, LOW)
        parts = parts + (v,)
    best = parts[0]
    part = tl.zeros(best.shape, tl.int32)
    for k in tl.static_range(1, PARTS):
        if KIND != 0:
            if OP == MIN:
                wins = parts[k] < best
            else:
                wins = parts[k] > best
            part = tl.where(wins, k * WIDTH, part)
        best = better(best, parts[k], OP)
    if OP == SUM:
        return tl.sum(best, 1), before
    else:
        top = best_of(best, 1, OP)
        every = top[:, None]
        code = tl.zeros(top.shape, tl.int32)
        rare = top == LOW  # as is what lies beside a plane
        if COMPUTE.is_floating():
            rare = rare | (top != top) | (top == 0)
        if KIND != 0:
            code = tl.min(tl.where(best == every, slot + part, NOWHERE), 1) - tl.reshape(before, top.shape)
        if COMPUTE.is_floating() or KIND != 0:
            if tl.max(rare.to(tl.int32)) > 0:
                # The last NaN is the one that counts, and of zeros the sign of the first.
                order = tl.full(best.shape, 2 * NOWHERE + 1, tl.int32)
                for k in tl.static_range(PARTS):
                    i = slot + k * WIDTH - before
                    inside = i.to(tl.uint32) < size.to(tl.uint32)
                    order = tl.minimum(
                        order, tl.where(inside, order_of(parts[k], every, i, OP), 2 * NOWHERE + 1)
                    )
                top, code = settled(top, tl.min(order, 1))
        return top, code


@triton.jit(do_not_specialize=["lanes", "size", "m_size", "y_1", "early", "divisor", "inverse"])
def plane_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    size,
    m_size,
    y_1,
    early,
    divisor,
    inverse,
    LANES: tl.constexpr,
    VEC: tl.constexpr,
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
    if early > 0:
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
