"""Backward for windows of any kind: every input gathers output after output, in rising order."""

import triton
import triton.language as tl

from ndpool._triton.kernels.lanes import AXES, SIZES, base_of, lanes_of, split, wait_for_memory
from ndpool._triton.kernels.reducers import even_quotient, quotient, share_of, widen


@triton.jit
def _candidate(
    i,
    o,
    end,
    starts,
    counts,
    out,
    kernel,
    stride,
    step,
    origin,
    whole,
    front,
    lo,
    hi,
    TABLE: tl.constexpr,
    DILATED: tl.constexpr,
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
):
    """An output of the last axis that may hold the inputs, or -1; the tap and the share it has for them."""
    known = tl.minimum(o, out - 1)
    place = tl.where(o < end, o, -1)
    tap = place
    if PICKS or DILATED:
        tap = tap_of(i, known, starts, kernel, stride, step, origin, TABLE, DILATED).to(tl.int32)
        place = tl.where(tap < 0, -1, place)
    share = place
    if DIVIDE == 2:
        share = _share(known, counts, whole, front, stride, step, origin, lo, hi, TABLE, DILATED)
    return place, tap, share


@triton.jit
def _part(
    grad,
    offsets,
    row,
    place,
    tap_w,
    share_w,
    code,
    by,
    inverse,
    live,
    y_w,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    DILATED: tl.constexpr,
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """What one output gives to the inputs."""
    ok = live[:, None] & (place >= 0)
    if DILATED:
        ok = ok & (code + place * 0 >= 0)
    at = row + place * y_w * Y_UNIT
    g = widen(tl.load(grad + at, mask=ok, other=0), COMPUTE)
    if PICKS:
        tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
        g = tl.where((tap == (code + tap_w).to(tl.int32)) & ok, g, 0)
    if DIVIDE == 1:
        g = even_quotient(g, by, inverse)
    if DIVIDE == 2:
        by = by * share_w
        if VEC > 1 and by.shape[1] == 1 and COMPUTE == tl.float32:
            # All channels have the same divisor: its inverse is found once.
            inverse = tl.div_rn(tl.full(by.shape, 1.0, COMPUTE), by.to(COMPUTE))
            g = even_quotient(g, tl.broadcast_to(by, g.shape), tl.broadcast_to(inverse, g.shape))
        else:
            g = quotient(g, by)
    return g


@triton.jit
def holding(i, firsts, ends, out, kernel, stride, step, origin, TABLE: tl.constexpr):
    """Which outputs may hold the inputs: the first, and the one behind the last."""
    if TABLE:
        return tl.load(firsts + i), tl.load(ends + i)
    else:
        behind = i - origin
        first = tl.maximum(0, behind - (kernel - 1) * step + stride - 1) // stride
        end = tl.minimum(out, tl.maximum(0, behind + stride) // stride)
        return first, end


@triton.jit
def tap_of(i, o, starts, kernel, stride, step, origin, TABLE: tl.constexpr, DILATED: tl.constexpr):
    """The tap with which outputs hold inputs; -1 where dilation steps over them."""
    if TABLE:
        return i - tl.load(starts + o)
    elif not DILATED:
        return i - origin - o * stride
    else:
        behind = tl.maximum(0, i - origin - o * stride)
        tap = behind // step
        return tl.where((behind - tap * step == 0) & (tap < kernel), tap, -1)


@triton.jit
def _share(o, counts, whole, front, stride, step, origin, lo, hi, TABLE: tl.constexpr, DILATED: tl.constexpr):
    if TABLE:
        return tl.load(counts + o)
    elif not DILATED:
        return share_of(o * stride + origin - front, whole, 1, lo, hi)
    else:
        return share_of(o * stride + origin - front * step, whole, step, lo, hi)


@triton.jit(do_not_specialize=[*SIZES, *AXES, "most_w", "strips"])
def any_backward_kernel(
    grad,
    offsets,
    result,
    starts_d,
    counts_d,
    firsts_d,
    ends_d,
    starts_h,
    counts_h,
    firsts_h,
    ends_h,
    starts_w,
    counts_w,
    firsts_w,
    ends_w,
    runs_h,
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
    size_d,
    out_d,
    kernel_d,
    stride_d,
    step_d,
    origin_d,
    whole_d,
    front_d,
    lo_d,
    hi_d,
    size_h,
    out_h,
    kernel_h,
    stride_h,
    step_h,
    origin_h,
    whole_h,
    front_h,
    lo_h,
    hi_h,
    size_w,
    out_w,
    kernel_w,
    stride_w,
    step_w,
    origin_w,
    whole_w,
    front_w,
    lo_w,
    hi_w,
    most_w,
    strips,
    divisor,
    inverse,
    TABLE_D: tl.constexpr,
    TABLE_H: tl.constexpr,
    TABLE_W: tl.constexpr,
    MOST: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    DILATED: tl.constexpr,
    PICKS: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """VEC inputs per lane and row, of windows of any kind: output after output, for a run of rows.

    Rows of one run are in the same windows; their sums are the same.
    """
    pid = tl.program_id(0)
    if WIDE:
        pid = pid.to(tl.int64)
    wait_for_memory()
    strip, d, block = split(pid, strips, size_d, m_s, m_d, WIDE)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, WIDE)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT
    along = tl.arange(0, VEC)[None, :]
    i = tl.where(live, w, 0)[:, None]  # the inputs along the last axis, one of them for all channels
    inner = along
    within = along * 0  # where in a vector that lies in one window its elements are
    if COLUMNS:
        inner = along * 0
        if SHARED:
            i = i * VEC
            within = along
        else:
            i = tl.minimum(i * VEC + along, size_w - 1)
    first_d, end_d = holding(d, firsts_d, ends_d, out_d, kernel_d, stride_d, step_d, origin_d, TABLE_D)
    first_w, end_w = holding(i, firsts_w, ends_w, out_w, kernel_w, stride_w, step_w, origin_w, TABLE_W)
    # What the last axis contributes is the same for every row.
    places = ()
    taps_w = ()
    shares_w = ()
    for m in tl.static_range(MOST):
        place, tap_w, share_w = _candidate(
            i,
            first_w + m,
            end_w,
            starts_w,
            counts_w,
            out_w,
            kernel_w,
            stride_w,
            step_w,
            origin_w,
            whole_w,
            front_w,
            lo_w,
            hi_w,
            TABLE_W,
            DILATED,
            PICKS,
            DIVIDE,
        )
        places, taps_w, shares_w = places + (place,), taps_w + (tap_w,), shares_w + (share_w,)
    total = tl.zeros([LANES, VEC], COMPUTE)
    begin = tl.load(runs_h + strip)
    for h in range(begin, tl.load(runs_h + strip + 1)):
        if PICKS or h == begin:
            first_h, end_h = holding(
                h, firsts_h, ends_h, out_h, kernel_h, stride_h, step_h, origin_h, TABLE_H
            )
            total = tl.zeros([LANES, VEC], COMPUTE)
            for od in range(first_d, end_d):
                td = tap_of(d, od, starts_d, kernel_d, stride_d, step_d, origin_d, TABLE_D, DILATED)
                for oh in range(first_h, end_h):
                    th = tap_of(h, oh, starts_h, kernel_h, stride_h, step_h, origin_h, TABLE_H, DILATED)
                    row = (y_base + (od * y_d + oh * y_h) * Y_UNIT)[:, None] + inner
                    code = (td * kernel_h + th) * kernel_w
                    if DILATED:
                        code = tl.where((td < 0) | (th < 0), -1 - kernel_w * 2, code)
                    by = divisor
                    if DIVIDE == 2:
                        by = _share(
                            od,
                            counts_d,
                            whole_d,
                            front_d,
                            stride_d,
                            step_d,
                            origin_d,
                            lo_d,
                            hi_d,
                            TABLE_D,
                            DILATED,
                        )
                        by *= _share(
                            oh,
                            counts_h,
                            whole_h,
                            front_h,
                            stride_h,
                            step_h,
                            origin_h,
                            lo_h,
                            hi_h,
                            TABLE_H,
                            DILATED,
                        )
                    for m in tl.static_range(MOST):
                        total += _part(
                            grad,
                            offsets,
                            row,
                            places[m],
                            taps_w[m] + within,
                            shares_w[m],
                            code,
                            by,
                            inverse,
                            live,
                            y_w,
                            Y_UNIT,
                            VEC,
                            DILATED,
                            PICKS,
                            DIVIDE,
                            COMPUTE,
                        )
                    for more in range(MOST, most_w):
                        place, tap_w, share_w = _candidate(
                            i,
                            first_w + more,
                            end_w,
                            starts_w,
                            counts_w,
                            out_w,
                            kernel_w,
                            stride_w,
                            step_w,
                            origin_w,
                            whole_w,
                            front_w,
                            lo_w,
                            hi_w,
                            TABLE_W,
                            DILATED,
                            PICKS,
                            DIVIDE,
                        )
                        total += _part(
                            grad,
                            offsets,
                            row,
                            place,
                            tap_w + within,
                            share_w,
                            code,
                            by,
                            inverse,
                            live,
                            y_w,
                            Y_UNIT,
                            VEC,
                            DILATED,
                            PICKS,
                            DIVIDE,
                            COMPUTE,
                        )
        line = x_base + (d * x_d + h * x_h) * X_UNIT
        if COLUMNS:
            at = (line + tl.where(live, w, 0) * VEC)[:, None] + along
        else:
            at = (line + w * x_w * X_UNIT)[:, None] + along
        tl.store(result + at, total.to(result.dtype.element_ty), mask=live[:, None])
