"""Any plan, tap by tap: irregular, dilated, or too large to unroll."""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import AXES, INDEX64, SIZES, base_of, lanes_of, split, wait_for_previous
from ndpool._triton.kernels.reducers import (
    element,
    load_or_identity,
    merge,
    quotient,
    quotient_by_inverse,
    root,
    share_of,
)


@triton.jit
def window_of(o, plane, starts, counts, out, size, kernel, stride, step, origin):
    """First inputs of windows, the end of their input, and their number of taps."""
    if starts is not None:
        at = plane * out + o
        first = tl.load(starts + at)
        taps = tl.load(counts + at)
        return first, first + taps, taps
    else:
        return o * stride + origin, o * 0 + size, o * 0 + kernel


@triton.jit
def _lead(first, step, kernel):
    return tl.minimum(tl.maximum(0, step - 1 - first) // step, kernel - 1)


@triton.jit(do_not_specialize=[*SIZES, *AXES, "p_c", "p_1", "p_2", "taps"])
def window_forward_kernel(
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
    n_c,
    n_w,
    n_1,
    m_c,
    m_w,
    m_1,
    m_s,
    m_d,
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
    p_c,
    p_1,
    p_2,
    size_d,
    out_d,
    kernel_d,
    stride_d,
    step_d,
    origin_d,
    full_d,
    front_d,
    lo_d,
    hi_d,
    size_h,
    out_h,
    kernel_h,
    stride_h,
    step_h,
    origin_h,
    full_h,
    front_h,
    lo_h,
    hi_h,
    size_w,
    out_w,
    kernel_w,
    stride_w,
    step_w,
    origin_w,
    full_w,
    front_w,
    lo_w,
    hi_w,
    divisor,
    inverse,
    taps,
    UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    UNROLL: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
    WIDE: tl.constexpr,
):
    """VEC outputs per lane, tap by tap."""
    WITH_OFFSETS: tl.constexpr = KIND != 0
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    oh, od, block = split(pid, out_h, out_d, m_s, m_d, INT64)
    live, c, ow, l1, l2 = lanes_of(
        block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64
    )
    plane = base_of(c, l1, l2, p_c, p_1, p_2, CHANNELS, LEADS)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * UNIT
    # Lanes past the last one read the table entries of the first.
    plane = tl.where(live, plane, 0)
    ow = tl.where(live, ow, 0)
    first_d, end_d, taps_d = window_of(
        ow * 0 + od, plane, starts_d, counts_d, out_d, size_d, kernel_d, stride_d, step_d, origin_d
    )
    first_h, end_h, taps_h = window_of(
        ow * 0 + oh, plane, starts_h, counts_h, out_h, size_h, kernel_h, stride_h, step_h, origin_h
    )
    first_w, end_w, taps_w = window_of(
        ow, plane, starts_w, counts_w, out_w, size_w, kernel_w, stride_w, step_w, origin_w
    )
    along = tl.arange(0, VEC)[None, :]
    best = tl.full([LANES, VEC], IDENTITY, COMPUTE)
    # Offsets in the window, or indices in the plane; a window without elements has that of its first tap.
    MARK: tl.constexpr = tl.int64 if WIDE else tl.int32
    offset = tl.zeros([LANES, VEC], MARK)
    if WITH_OFFSETS:
        lead_d = _lead(first_d, step_d, kernel_d)
        lead_h = _lead(first_h, step_h, kernel_h)
        lead_w = _lead(first_w, step_w, kernel_w)
        if KIND == INDEX64:
            begin = (first_d + lead_d * step_d).to(MARK) * size_h + (first_h + lead_h * step_h)
            offset += (begin * size_w + (first_w + lead_w * step_w)).to(MARK)[:, None]
        else:
            offset += ((lead_d * kernel_h + lead_h) * kernel_w + lead_w).to(MARK)[:, None]
    for td in range(kernel_d):
        d = first_d + td * step_d
        ok_d = live & (d >= 0) & (d < end_d)
        for th in range(kernel_h):
            h = first_h + th * step_h
            ok_h = ok_d & (h >= 0) & (h < end_h)
            row = x_base + (d * x_d + h * x_h) * UNIT
            line = (td * kernel_h + th) * kernel_w
            if KIND == INDEX64:
                line = (d.to(MARK) * size_h + h) * size_w + first_w
            for tw in tl.range(0, kernel_w, loop_unroll_factor=UNROLL):
                column = first_w + tw * step_w
                ok = ok_h & (column >= 0) & (column < end_w)
                at = row + column * x_w * UNIT
                loaded = load_or_identity(x + at[:, None] + along, ok[:, None], IDENTITY, COMPUTE)
                v = element(loaded, OP, COMPUTE)
                mark = line + tw
                if KIND == INDEX64:
                    mark = (line + tw * step_w).to(MARK)[:, None]
                best, offset = merge(best, offset, v, mark, OP, WITH_OFFSETS)
    ok = live[:, None]
    at = (y_base + (od * y_d + oh * y_h + ow * y_w) * UNIT)[:, None] + along
    if DIVIDE == 1:
        best = quotient_by_inverse(best, divisor, inverse)
    if DIVIDE == 2:
        by = taps_d.to(tl.int64)
        if starts_d is None:
            by = share_of(first_d - front_d * step_d, full_d, step_d, lo_d, hi_d).to(tl.int64)
        if starts_h is not None:
            by *= taps_h
        else:
            by *= share_of(first_h - front_h * step_h, full_h, step_h, lo_h, hi_h)
        if starts_w is not None:
            by *= taps_w
        else:
            by *= share_of(first_w - front_w * step_w, full_w, step_w, lo_w, hi_w)
        best = quotient(best, by[:, None])
    best = root(best, taps, OP)
    tl.store(y + at, best.to(y.dtype.element_ty), mask=ok)
    if WITH_OFFSETS:
        tl.store(extra + at, offset.to(extra.dtype.element_ty), mask=ok)
