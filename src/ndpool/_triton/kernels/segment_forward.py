"""Windows of medium size in contiguous planes: each row of a window is a contiguous segment.

Segments are read by full vectors; elements before and after the segment are masked. All axes have tables; no
tap is padding.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import INDEX64, divide, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    merge,
    positive_zero,
    quotient,
    quotient_by_inverse,
    widen,
)

_SIZES = ["n_lanes", "m_w", "m_s", "m_d", "plane", "y_1", "y_d", "y_h", "y_w", "size_h", "size_w"]
_SIZES += ["out_d", "out_h", "out_w", "kernel_h", "kernel_w", "divisor", "inverse"]


@triton.jit(do_not_specialize=_SIZES)
def segment_forward_kernel(
    x,
    y,
    extra,
    starts_d,
    counts_d,
    starts_h,
    counts_h,
    starts_w,
    counts_w,
    n_lanes,
    m_w,
    m_s,
    m_d,
    plane,
    y_1,
    y_d,
    y_h,
    y_w,
    size_h,
    size_w,
    out_d,
    out_h,
    out_w,
    kernel_h,
    kernel_w,
    divisor,
    inverse,
    UNIT: tl.constexpr,
    VECTORS: tl.constexpr,
    FULL: tl.constexpr,
    REACHED: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """One output per lane: VECTORS vectors of UNIT elements per row of its window.

    Every segment covers the first FULL vectors entirely and reaches at least the first REACHED.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    oh, od, block = split(pid, out_h, out_d, m_s, m_d, INT64)
    lane = block * LANES + tl.arange(0, LANES)
    live = lane < n_lanes
    lane = tl.where(live, lane, 0)
    l1 = divide(lane, out_w, m_w, INT64)
    ow = lane - l1 * out_w
    first_d = tl.load(starts_d + od)
    taps_d = tl.load(counts_d + od)
    first_h = tl.load(starts_h + oh)
    taps_h = tl.load(counts_h + oh)
    first_w = tl.load(starts_w + ow)
    taps_w = tl.load(counts_w + ow)
    base = l1 * plane + (first_d * size_h + first_h) * size_w + first_w
    along = tl.arange(0, UNIT)[None, :]
    best = tl.full([LANES, UNIT], IDENTITY, COMPUTE)
    offset = tl.full([LANES, UNIT], NO_OFFSET, tl.int32)
    for d in range(taps_d):
        for h in tl.range(0, taps_h, loop_unroll_factor=UNROLL):
            at = base + (d * size_h + h) * size_w
            before = (at & (UNIT - 1)).to(tl.int32)
            at = (at // UNIT * UNIT)[:, None] + along
            number = ((d * kernel_h + h) * kernel_w - before)[:, None]
            found = ()
            for k in tl.static_range(VECTORS):
                there = live
                if k >= REACHED:
                    there = there & (k * UNIT < before + taps_w)
                found = found + (tl.load(x + at + k * UNIT, mask=there[:, None], other=IDENTITY),)
            for k in tl.static_range(VECTORS):
                v = widen(found[k], COMPUTE)
                if k == 0:
                    v = tl.where(along >= before[:, None], v, IDENTITY)
                if k >= FULL:
                    v = tl.where(along < (before + taps_w - k * UNIT)[:, None], v, IDENTITY)
                best, offset = merge(best, offset, v, number + (along + k * UNIT), OP, OP != SUM)
    to = l1 * y_1 + od * y_d + oh * y_h + ow * y_w
    if OP == SUM:
        value = positive_zero(tl.sum(best, 1))
        if DIVIDE == 1:
            value = quotient_by_inverse(value, divisor, inverse)
        if DIVIDE == 2:
            value = quotient(value, taps_d * taps_h * taps_w)
    else:
        value, offset = best_along(best, offset, 1, OP, KIND != 0)
        # If no element beats the identity, the first is taken.
        offset = tl.where(offset == NO_OFFSET, 0, offset)
        if KIND == INDEX64:
            offset = offset.to(tl.int64)
            d = first_d + offset // kernel_w // kernel_h
            h = first_h + offset // kernel_w % kernel_h
            tl.store(extra + to, (d * size_h + h) * size_w + first_w + offset % kernel_w, mask=live)
        elif KIND != 0:
            tl.store(extra + to, offset.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)
