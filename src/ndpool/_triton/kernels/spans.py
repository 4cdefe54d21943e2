"""Windows of any size in planes that are packed in memory, whatever their rows: a row of a window is a span.

Spans are read by whole vectors that may begin before them and end behind them; what is beside a span is left
out. Every axis has tables; no tap is padding.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import INDEX64, over, split, wait_for_memory
from ndpool._triton.kernels.reducers import (
    NOWHERE,
    SUM,
    best_along,
    even_quotient,
    merge,
    quotient,
    unsigned_zero,
    widen,
)

_SIZES = ["n_lanes", "m_w", "m_s", "m_d", "plane", "y_1", "y_d", "y_h", "y_w", "size_h", "size_w"]
_SIZES += ["out_d", "out_h", "out_w", "kernel_h", "kernel_w", "divisor", "inverse"]


@triton.jit(do_not_specialize=_SIZES)
def span_forward_kernel(
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
    FILLED: tl.constexpr,
    MET: tl.constexpr,
    UNROLL: tl.constexpr,
    LANES: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    LOW: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One output per lane: of each row of its window, VECTORS vectors of UNIT elements.

    Every span ends behind the first FILLED of them, and reaches the first MET.
    """
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    wait_for_memory()
    oh, od, block = split(pid, out_h, out_d, m_s, m_d, WIDE)
    lane = block * LANES + tl.arange(0, LANES)
    live = lane < n_lanes
    lane = tl.where(live, lane, 0)
    l1 = over(lane, out_w, m_w, WIDE)
    ow = lane - l1 * out_w
    first_d = tl.load(starts_d + od)
    taps_d = tl.load(counts_d + od)
    first_h = tl.load(starts_h + oh)
    taps_h = tl.load(counts_h + oh)
    first_w = tl.load(starts_w + ow)
    taps_w = tl.load(counts_w + ow)
    base = l1 * plane + (first_d * size_h + first_h) * size_w + first_w
    along = tl.arange(0, UNIT)[None, :]
    best = tl.full([LANES, UNIT], LOW, COMPUTE)
    code = tl.full([LANES, UNIT], NOWHERE, tl.int32)
    for d in range(taps_d):
        for h in tl.range(0, taps_h, loop_unroll_factor=UNROLL):
            at = base + (d * size_h + h) * size_w
            before = (at & (UNIT - 1)).to(tl.int32)
            at = (at // UNIT * UNIT)[:, None] + along
            number = ((d * kernel_h + h) * kernel_w - before)[:, None]
            found = ()
            for k in tl.static_range(VECTORS):
                there = live
                if k >= MET:
                    there = there & (k * UNIT < before + taps_w)
                found = found + (tl.load(x + at + k * UNIT, mask=there[:, None], other=LOW),)
            for k in tl.static_range(VECTORS):
                v = widen(found[k], COMPUTE)
                if k == 0:
                    v = tl.where(along >= before[:, None], v, LOW)
                if k >= FILLED:
                    v = tl.where(along < (before + taps_w - k * UNIT)[:, None], v, LOW)
                best, code = merge(best, code, v, number + (along + k * UNIT), OP, OP != SUM)
    to = l1 * y_1 + od * y_d + oh * y_h + ow * y_w
    if OP == SUM:
        value = unsigned_zero(tl.sum(best, 1))
        if DIVIDE == 1:
            value = even_quotient(value, divisor, inverse)
        if DIVIDE == 2:
            value = quotient(value, taps_d * taps_h * taps_w)
    else:
        value, code = best_along(best, code, 1, OP, KIND != 0)
        # Of elements that beat nothing the first is taken.
        code = tl.where(code == NOWHERE, 0, code)
        if KIND == INDEX64:
            code = code.to(tl.int64)
            d = first_d + code // kernel_w // kernel_h
            h = first_h + code // kernel_w % kernel_h
            tl.store(extra + to, (d * size_h + h) * size_w + first_w + code % kernel_w, mask=live)
        elif KIND != 0:
            tl.store(extra + to, code.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)
