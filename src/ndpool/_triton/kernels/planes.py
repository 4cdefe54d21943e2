"""Kernels for windows that are whole contiguous planes: many planes at once, whatever their size.

A lane merges a few elements, then the lanes of a plane are brought together; backward, planes are written as
the flat memory they are.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.reducers import MIN, SUM, even_quotient, merge, widen

NOWHERE = tl.constexpr(2**31 - 1)
_SIZES = ["planes", "n_1", "size", "x_1", "x_2", "y_1", "y_2", "divisor", "inverse"]


@triton.jit
def _better(a, at_a, b, at_b, wins):
    wins = wins | ((b == a) & (at_b < at_a))
    if b.dtype.is_floating():
        wins = wins | ((b != b) & ((a == a) | (at_b > at_a)))
    return tl.where(wins, b, a), tl.where(wins, at_b, at_a)


@triton.jit
def _larger(a, at_a, b, at_b):
    return _better(a, at_a, b, at_b, b > a)


@triton.jit
def _smaller(a, at_a, b, at_b):
    return _better(a, at_a, b, at_b, b < a)


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
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One output for each of PLANES planes, by LANES lanes of EACH elements, in as many parts as it takes."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    plane = pid * PLANES + tl.arange(0, PLANES)
    live = plane < planes
    l1 = plane % n_1
    l2 = plane // n_1
    base = (l1 * x_1 + l2 * x_2)[:, None]
    at = tl.arange(0, LANES)[None, :]
    best = tl.full([PLANES, LANES], LOW, COMPUTE)
    where = tl.zeros([PLANES, LANES], tl.int32) + at
    for start in range(0, size, LANES * EACH):
        for j in tl.static_range(EACH):
            i = start + j * LANES + at
            v = widen(tl.load(x + base + i, mask=live[:, None] & (i < size), other=LOW), COMPUTE)
            best, where = merge(best, where, v, i, OP, OP != SUM)
    to = l1 * y_1 + l2 * y_2
    if OP == SUM:
        value = tl.sum(best, 1)
        if DIVIDE == 1:
            value = even_quotient(value, divisor, inverse)
    else:
        # Lanes without an element lose every tie.
        where = tl.where(at < size, where, NOWHERE)
        if OP == MIN:
            value, where = tl.reduce((best, where), 1, _smaller)
        else:
            value, where = tl.reduce((best, where), 1, _larger)
        if KIND != 0:
            tl.store(extra + to, where.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["lanes", "y_1", "divisor", "inverse"])
def plane_backward_kernel(
    grad,
    offsets,
    result,
    lanes,
    y_1,
    divisor,
    inverse,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    VEC: tl.constexpr,
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The gradient of planes of SIZE elements that follow each other in memory, as one flat array."""
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    lane = pid * LANES + tl.arange(0, LANES)
    live = (lane < lanes)[:, None]
    i = lane[:, None] * VEC + tl.arange(0, VEC)[None, :]
    plane = i // SIZE
    g = widen(tl.load(grad + plane * y_1, mask=live, other=0), COMPUTE)
    if DIVIDE == 1:
        g = even_quotient(g, divisor, inverse)
    if PICKS:
        tap = tl.load(offsets + plane * y_1, mask=live, other=0).to(tl.int32)
        g = tl.where(tap == (i - plane * SIZE).to(tl.int32), g, 0)
    tl.store(result + i, g.to(result.dtype.element_ty), mask=live)
