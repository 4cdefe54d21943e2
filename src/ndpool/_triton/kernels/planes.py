"""Whole-plane windows in contiguous arrays, many planes per program.

Forward, each lane reduces a few elements, then the lanes of a plane are merged; of few large planes each
program takes a piece, and `channels_last_forward` merges the pieces. Backward, all planes are
written as one flat array. Stays for adaptive pooling of 7x7 to 1: 2 to 3 times as fast as `strip_forward`,
backward 1.1 to 4 times as fast as `row_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import divide, launch_dependents, wait_for_previous
from ndpool._triton.kernels.reducers import (
    MIN,
    NO_OFFSET,
    SUM,
    best_along,
    best_of,
    better,
    load_or_identity,
    merge,
    positive_zero,
    quotient_by_inverse,
    sign_bit,
    signed_zero,
    widen,
)

_SIZES = ["planes", "n_1", "size", "whole", "x_1", "x_2", "y_1", "y_2", "divisor", "inverse"]


@triton.jit(do_not_specialize=_SIZES)
def plane_forward_kernel(
    x,
    y,
    extra,
    planes,
    n_1,
    size,
    whole,
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
    FULL: tl.constexpr,
    PIECES: tl.constexpr,
    LEADS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """One output for each of PLANES planes, from WIDTH elements of each at a time.

    Loads are vectors of UNIT elements, all inside the input, whose length is a multiple of UNIT. If planes
    are SHIFTED against the vectors, elements of the first and last vector outside the plane are masked. Small
    planes take PARTS loads, the first FULL of them without a mask; large planes take a loop, and PARTS is 0.
    With PIECES, `planes` counts pieces of planes of `whole` elements, the last of which may be shorter; the
    outputs of the first pieces of all planes come first, then those of the second ones.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    plane = pid * PLANES + tl.arange(0, PLANES)
    live = plane < planes
    first = plane * 0  # element of a plane at which its piece begins
    pieces = 1
    if PIECES:
        pieces = (whole + size - 1) // size
        first = plane % pieces * size
    l1 = plane // pieces
    l2 = plane * 0
    if LEADS > 1:
        l2 = l1 // n_1
        l1 = l1 % n_1
    base = l1 * x_1 + l2 * x_2 + first
    to = l1 * y_1 + l2 * y_2
    if PIECES:
        to = first // size * (planes // pieces) + plane // pieces
    before = tl.zeros([PLANES, 1], tl.int32)
    if SHIFTED:
        before = (base & (UNIT - 1)).to(tl.int32)[:, None]
        base = base // UNIT * UNIT
    elif UNIT > 1:
        base = tl.multiple_of(base, UNIT)
    slot = tl.arange(0, WIDTH)[None, :]
    at = x + base[:, None] + slot
    wait_for_previous()
    if PARTS > 0:
        found = ()
        for k in tl.static_range(PARTS):
            there = live[:, None]
            if k >= FULL:
                there = there & (slot // UNIT * UNIT < size + before - k * WIDTH)
            found = found + (load_or_identity(at + k * WIDTH, there, IDENTITY, COMPUTE),)
        value, where = _together(
            found, slot, before, size, WIDTH, UNIT, SHIFTED, PARTS, FULL, OP, KIND, IDENTITY, COMPUTE
        )
    else:
        best = tl.full([PLANES, WIDTH], IDENTITY, COMPUTE)
        length = tl.zeros([PLANES, 1], tl.int32) + size
        if PIECES:
            length = tl.minimum(length, (whole - first).to(tl.int32)[:, None])
        where = slot - before
        where = tl.where(where >= 0, where, where + WIDTH)
        where = tl.where(where < length, where, NO_OFFSET)
        for start in range(0, size + UNIT - 1, WIDTH):
            there = live[:, None] & (start + slot // UNIT * UNIT < length + before)
            v = widen(load_or_identity(at + start, there, IDENTITY, COMPUTE), COMPUTE)
            # One comparison: as an unsigned number, an element before the plane is huge.
            i = start + slot - before
            v = tl.where(i.to(tl.uint32) < length.to(tl.uint32), v, IDENTITY)
            if KIND == 0:
                best = better(best, v, OP)
            else:
                best, where = merge(best, where, v, i, OP, True)
        if OP == SUM:
            value, where = tl.sum(best, 1), tl.zeros([PLANES], tl.int32)
        elif KIND == 0:
            value, where = best_of(best, 1, OP), tl.zeros([PLANES], tl.int32)
        else:
            value, where = best_along(best, where, 1, OP)
    if OP == SUM:
        if DIVIDE == 1:
            value = quotient_by_inverse(value, divisor, inverse)
        else:
            value = positive_zero(value)
    if KIND != 0:
        if PIECES:
            where += first.to(tl.int32)
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
    FULL: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Value and offset of each plane from its parts."""
    vector = slot // UNIT * UNIT
    step = slot % UNIT
    parts = ()
    for k in tl.static_range(PARTS):
        v = widen(found[k], COMPUTE)
        # `step` is known at compile time, so the comparison is made once per vector.
        if SHIFTED and k == 0:
            v = tl.where(step >= before - vector, v, IDENTITY)
        if k >= FULL and SHIFTED:
            v = tl.where(step < size + before - vector - k * WIDTH, v, IDENTITY)
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
        offset = tl.zeros(top.shape, tl.int32)
        if KIND != 0:
            every = top[:, None]
            offset = tl.min(tl.where(best == every, slot + part, NO_OFFSET), 1) - tl.reshape(
                before, top.shape
            )
            rare = top == IDENTITY  # equal to the masked elements outside the plane
            if COMPUTE.is_floating():
                rare = rare | (top != top) | (top == 0)
            if tl.max(rare.to(tl.int32)) > 0:
                first = tl.full(best.shape, NO_OFFSET, tl.int32)
                last = tl.full(best.shape, -1, tl.int32)
                for k in tl.static_range(PARTS):
                    i = slot + k * WIDTH - before
                    inside = i.to(tl.uint32) < size.to(tl.uint32)
                    first = tl.minimum(first, tl.where(inside & (parts[k] == every), i, NO_OFFSET))
                    last = tl.maximum(last, tl.where(inside & (parts[k] != parts[k]), i, -1))
                offset = tl.min(first, 1)
                if COMPUTE.is_floating():
                    # Of NaNs the last counts; a zero has the sign of the element at its offset.
                    offset = tl.where(top != top, tl.max(last, 1), offset)
                    sign = tl.zeros(best.shape, tl.int32)
                    for k in tl.static_range(PARTS):
                        here = slot + k * WIDTH - before == offset[:, None]
                        sign = tl.maximum(sign, tl.where(here, sign_bit(parts[k]), 0))
                    top = signed_zero(top, tl.max(sign, 1))
        return top, offset


@triton.jit(
    do_not_specialize=["lanes", "total", "size", "m_size", "y_1", "launch_next", "divisor", "inverse"]
)
def plane_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    total,
    size,
    m_size,
    y_1,
    launch_next,
    divisor,
    inverse,
    LANES: tl.constexpr,
    VEC: tl.constexpr,
    EDGES: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """Gradient of adjacent planes of `size` elements, flat: full vectors and, with EDGES, the rest."""
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    lane = pid * LANES + tl.arange(0, LANES)
    live = lane < lanes
    # A vector spans at most two planes.
    plane = divide(lane * VEC, size, m_size, INT64)
    end = (plane + 1) * size - lane * VEC  # of the first plane, relative to the vector
    next_plane = plane + (end < VEC).to(plane.dtype)
    if launch_next > 0:
        launch_dependents()
    wait_for_previous()
    a = widen(tl.load(grad + plane * y_1, mask=live, other=0), COMPUTE)
    b = widen(tl.load(grad + next_plane * y_1, mask=live, other=0), COMPUTE)
    if DIVIDE == 1:
        a = quotient_by_inverse(a, divisor, inverse)
        b = quotient_by_inverse(b, divisor, inverse)
    along = tl.arange(0, VEC)[None, :]
    g = tl.where(along < end[:, None], a[:, None], b[:, None])
    if HAS_INDEX:
        # Positions of the maxima relative to the vector.
        at_a = plane * size + tl.load(offsets + plane * y_1, mask=live, other=0) - lane * VEC
        at_b = next_plane * size + tl.load(offsets + next_plane * y_1, mask=live, other=0) - lane * VEC
        g = tl.where(along == at_a[:, None], a[:, None], tl.where(along == at_b[:, None], b[:, None], 0))
    to = (lane * VEC)[:, None] + along
    tl.store(result + to, g.to(result.dtype.element_ty), mask=live[:, None])
    if EDGES:
        if pid == 0:
            # Fewer elements than a vector, all in the last plane.
            i = total // VEC * VEC + tl.arange(0, VEC)
            last = total // size - 1
            rest = widen(tl.load(grad + last * y_1), COMPUTE)
            if DIVIDE == 1:
                rest = quotient_by_inverse(rest, divisor, inverse)
            if HAS_INDEX:
                rest = tl.where(i == last * size + tl.load(offsets + last * y_1), rest, 0)
            rest = tl.broadcast_to(rest, [VEC]).to(result.dtype.element_ty)
            tl.store(result + i, rest, mask=i < total)
