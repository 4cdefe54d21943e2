"""Windows without padding or dilation along contiguous rows: each row of a window is a contiguous segment.

All sizes are run-time arguments. Segments are read by full vectors, wherever rows begin; elements before and
after a segment are masked. A window belongs to one thread if its segments are short, else to several threads
that read side by side. All axes have tables.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import INDEX64, divide, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    best_of,
    better,
    merge,
    positive_zero,
    quotient,
    quotient_by_inverse,
    widen,
)

_SIZES = ["n_windows", "n_1", "m_w", "m_1", "m_h", "m_d", "x_1", "x_2", "x_d", "x_h"]
_SIZES += ["y_1", "y_2", "y_d", "y_h", "y_w", "size_h", "size_w", "out_d", "out_h", "out_w"]
_SIZES += ["kernel_h", "kernel_w", "divisor", "inverse"]


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
    n_windows,
    n_1,
    m_w,
    m_1,
    m_h,
    m_d,
    x_1,
    x_2,
    x_d,
    x_h,
    y_1,
    y_2,
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
    WIDTH: tl.constexpr,
    VECTORS: tl.constexpr,
    FULL: tl.constexpr,
    ROWS: tl.constexpr,
    LOOP: tl.constexpr,
    WINDOWS: tl.constexpr,
    LEADS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """WINDOWS windows of one row of outputs: WIDTH elements of a segment at a time, VECTORS times.

    Loads are vectors of UNIT elements, ROWS rows at a time. Every segment covers the first FULL times WIDTH
    elements entirely. Segments longer than VECTORS times WIDTH LOOP.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    oh, od, block = split(pid, out_h, out_d, m_h, m_d, INT64)
    window = block * WINDOWS + tl.arange(0, WINDOWS)
    live = window < n_windows
    window = tl.where(live, window, 0)
    l1 = divide(window, out_w, m_w, INT64)
    ow = window - l1 * out_w
    l2 = l1 * 0
    if LEADS > 1:
        l2 = divide(l1, n_1, m_1, INT64)
        l1 = l1 - l2 * n_1
    first_d = tl.load(starts_d + od)
    taps_d = tl.load(counts_d + od)
    first_h = tl.load(starts_h + oh)
    taps_h = tl.load(counts_h + oh)
    first_w = tl.load(starts_w + ow)
    taps_w = tl.load(counts_w + ow)
    base = l1 * x_1 + l2 * x_2 + first_d * x_d + first_h * x_h + first_w
    slot = tl.arange(0, WIDTH)[None, :]
    vector = slot // UNIT * UNIT
    wait_for_previous()
    best = tl.full([WINDOWS, WIDTH], IDENTITY, COMPUTE)
    offset = tl.full([WINDOWS, WIDTH], NO_OFFSET, tl.int32)
    for d in range(taps_d):
        for h in range(0, taps_h, ROWS):
            # Without a loop this is one iteration.
            for column in range(0, kernel_w + (UNIT - 1) if LOOP else 1, VECTORS * WIDTH):
                found = ()
                befores = ()
                for r in tl.static_range(ROWS):
                    at = base + d * x_d + (h + r) * x_h
                    before = (at & (UNIT - 1)).to(tl.int32)
                    at = tl.multiple_of(at - before, UNIT)[:, None] + (column + slot)
                    befores = befores + (before[:, None],)
                    there = live
                    if ROWS > 1:
                        there = live & (h + r + window * 0 < taps_h)
                    there = there[:, None]
                    for k in tl.static_range(VECTORS):
                        ok = there
                        if k >= FULL:
                            ok = ok & (vector < (before + taps_w - (column + k * WIDTH))[:, None])
                        found = found + (tl.load(x + at + k * WIDTH, mask=ok, other=IDENTITY),)
                for r in tl.static_range(ROWS):
                    for k in tl.static_range(VECTORS):
                        v = widen(found[r * VECTORS + k], COMPUTE)
                        tap = column + k * WIDTH + slot - befores[r]
                        if UNIT > 1 and k == 0:
                            v = tl.where(tap >= 0, v, IDENTITY)
                        if UNIT > 1 and k >= FULL:
                            v = tl.where(tap < taps_w[:, None], v, IDENTITY)
                        if KIND == 0:
                            best = better(best, v, OP)
                        else:
                            number = (d * kernel_h + h + r) * kernel_w + tap
                            best, offset = merge(best, offset, v, number, OP, True)
    to = l1 * y_1 + l2 * y_2 + od * y_d + oh * y_h + ow * y_w
    if OP == SUM:
        value = positive_zero(tl.sum(best, 1))
        if DIVIDE == 1:
            value = quotient_by_inverse(value, divisor, inverse)
        if DIVIDE == 2:
            value = quotient(value, taps_d * taps_h * taps_w)
    elif KIND == 0:
        value = best_of(best, 1, OP)
    else:
        value, offset = best_along(best, offset, 1, OP)
        # If no element beats the identity, the first is taken.
        offset = tl.where(offset == NO_OFFSET, 0, offset)
        if KIND == INDEX64:
            offset = offset.to(tl.int64)
            d = first_d + offset // kernel_w // kernel_h
            h = first_h + offset // kernel_w % kernel_h
            tl.store(extra + to, (d * size_h + h) * size_w + first_w + offset % kernel_w, mask=live)
        else:
            tl.store(extra + to, offset.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)
