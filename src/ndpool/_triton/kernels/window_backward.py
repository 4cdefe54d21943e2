"""Backward for any plan: every input sums the outputs that contain it, in increasing order."""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    AXES,
    SIZES,
    TRANSPOSED,
    base_of,
    lanes_of,
    split,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import quotient, quotient_by_inverse, scaled, share_of, widen


@triton.jit
def _candidate(
    m,
    i,
    first,
    count,
    first_tap,
    fewer,
    starts,
    shares,
    out,
    stride,
    step,
    origin,
    full,
    front,
    lo,
    hi,
    spacing,
    DILATED: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
):
    """The m-th output along the last axis that contains the inputs, or -1; its tap there, and its share.

    Dilated windows contain them at `fewer` taps less each.
    """
    o = nth_output(first, m, spacing)
    known = tl.minimum(o, out - 1)
    place = tl.where(m < count, o, -1)
    tap = place
    if HAS_INDEX:
        if DILATED:
            tap = (first_tap - m * fewer).to(tl.int32)
        else:
            tap = tap_of(i, known, starts, stride, step, origin, DILATED).to(tl.int32)
    share = place
    if DIVIDE == 2:
        share = _share(known, shares, full, front, stride, step, origin, lo, hi, DILATED)
    return place, tap, share


@triton.jit
def _part(
    grad,
    offsets,
    row,
    place,
    tap_w,
    share_w,
    offset,
    by,
    inverse,
    live,
    y_w,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Contribution of one output to the inputs."""
    ok = live[:, None] & (place >= 0)
    at = row + place * y_w * Y_UNIT
    g = widen(tl.load(grad + at, mask=ok, other=0), COMPUTE)
    if HAS_INDEX:
        tap = tl.load(offsets + at, mask=ok, other=0).to(tl.int32)
        g = tl.where((tap == (offset + tap_w).to(tl.int32)) & ok, g, 0)
    if DIVIDE == 1:
        g = quotient_by_inverse(g, by, inverse)
    if DIVIDE == 2:
        by = by * share_w
        if VEC > 1 and by.shape[1] == 1 and COMPUTE == tl.float32:
            # All channels have the same divisor: compute its inverse once.
            inverse = tl.div_rn(tl.full(by.shape, 1.0, COMPUTE), by.to(COMPUTE))
            g = quotient_by_inverse(g, tl.broadcast_to(by, g.shape), tl.broadcast_to(inverse, g.shape))
        else:
            g = quotient(g, by)
    return g


@triton.jit
def nth_output(first, m, spacing):
    """The m-th output from the first one on."""
    if spacing is None:
        return first + m
    else:
        return first + m * spacing


@triton.jit
def outputs_containing(i, firsts, counts, period, spacing, out):
    """First output that contains each input, and how many do, clipped to the outputs that exist.

    With a period the tables cover the first inputs only and are not clipped (`launch.containing`).
    """
    if period is None:
        return tl.load(firsts + i), tl.load(counts + i)
    else:
        n = i // period
        phase = i - n * period
        first = tl.load(firsts + phase) + n
        count = tl.load(counts + phase)
        if spacing is None:
            before = tl.maximum(0, -first)
            return first + before, tl.minimum(count, out - first) - before
        else:
            before = tl.maximum(0, spacing - 1 - first) // spacing
            count = tl.minimum(count, tl.maximum(0, out - first + spacing - 1) // spacing)
            return first + before * spacing, count - before


@triton.jit
def tap_of(i, o, starts, stride, step, origin, DILATED: tl.constexpr):
    """The taps at which outputs contain inputs."""
    if starts is not None:
        return i - tl.load(starts + o)
    elif not DILATED:
        return i - origin - o * stride
    else:
        return tl.maximum(0, i - origin - o * stride) // step


@triton.jit
def _share(o, shares, full, front, stride, step, origin, lo, hi, DILATED: tl.constexpr):
    if shares is not None:
        return tl.load(shares + o)
    elif not DILATED:
        return share_of(o * stride + origin - front, full, 1, lo, hi)
    else:
        return share_of(o * stride + origin - front * step, full, step, lo, hi)


@triton.jit(do_not_specialize=[*SIZES, *AXES, *TRANSPOSED, "most_w", "fewer_w", "strips"])
def window_backward_kernel(
    grad,
    offsets,
    result,
    starts_d,
    shares_d,
    firsts_d,
    outs_d,
    starts_h,
    shares_h,
    firsts_h,
    outs_h,
    starts_w,
    shares_w,
    firsts_w,
    outs_w,
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
    full_d,
    front_d,
    lo_d,
    hi_d,
    period_d,
    spacing_d,
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
    period_h,
    spacing_h,
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
    period_w,
    spacing_w,
    most_w,
    fewer_w,
    strips,
    divisor,
    inverse,
    OVERLAP: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE_WINDOW: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    DILATED: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    SCALED: tl.constexpr,
    DIVIDE: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """VEC inputs per lane and row, for a run of rows.

    Rows of one run are contained in the same windows, so their sums are equal.
    """
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    strip, d, block = split(pid, strips, size_d, m_s, m_d, INT64)
    live, c, w, l1, l2 = lanes_of(block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64)
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS) * X_UNIT
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS) * Y_UNIT
    along = tl.arange(0, VEC)[None, :]
    i = tl.where(live, w, 0)[:, None]  # inputs along the last axis, shared by all channels
    inner = along
    within = along * 0  # position within a vector that lies in one window
    if COLUMNS:
        inner = along * 0
        if ONE_WINDOW:
            i = i * VEC
            within = along
        else:
            i = tl.minimum(i * VEC + along, size_w - 1)
    first_d, count_d = outputs_containing(d, firsts_d, outs_d, period_d, spacing_d, out_d)
    first_w, count_w = outputs_containing(i, firsts_w, outs_w, period_w, spacing_w, out_w)
    first_tap = first_w
    if HAS_INDEX and DILATED:
        first_tap = tap_of(i, first_w, starts_w, stride_w, step_w, origin_w, DILATED)
    # The contribution of the last axis is the same for every row.
    places = ()
    taps_w = ()
    divisors_w = ()
    for m in tl.static_range(OVERLAP):
        place, tap_w, share_w = _candidate(
            m,
            i,
            first_w,
            count_w,
            first_tap,
            fewer_w,
            starts_w,
            shares_w,
            out_w,
            stride_w,
            step_w,
            origin_w,
            full_w,
            front_w,
            lo_w,
            hi_w,
            spacing_w,
            DILATED,
            HAS_INDEX,
            DIVIDE,
        )
        places, taps_w, divisors_w = places + (place,), taps_w + (tap_w,), divisors_w + (share_w,)
    total = tl.zeros([LANES, VEC], COMPUTE)
    begin = tl.load(runs_h + strip)
    for h in range(begin, tl.load(runs_h + strip + 1)):
        if HAS_INDEX or h == begin:
            first_h, count_h = outputs_containing(h, firsts_h, outs_h, period_h, spacing_h, out_h)
            total = tl.zeros([LANES, VEC], COMPUTE)
            for md in range(count_d):
                od = nth_output(first_d, md, spacing_d)
                td = tap_of(d, od, starts_d, stride_d, step_d, origin_d, DILATED)
                for mh in range(count_h):
                    oh = nth_output(first_h, mh, spacing_h)
                    th = tap_of(h, oh, starts_h, stride_h, step_h, origin_h, DILATED)
                    row = (y_base + (od * y_d + oh * y_h) * Y_UNIT)[:, None] + inner
                    offset = (td * kernel_h + th) * kernel_w
                    by = divisor
                    if DIVIDE == 2:
                        by = _share(
                            *(od, shares_d, full_d, front_d, stride_d, step_d, origin_d, lo_d, hi_d), DILATED
                        )
                        by *= _share(
                            *(oh, shares_h, full_h, front_h, stride_h, step_h, origin_h, lo_h, hi_h), DILATED
                        )
                    for m in tl.static_range(OVERLAP):
                        total += _part(
                            grad,
                            offsets,
                            row,
                            places[m],
                            taps_w[m] + within,
                            divisors_w[m],
                            offset,
                            by,
                            inverse,
                            live,
                            y_w,
                            Y_UNIT,
                            VEC,
                            HAS_INDEX,
                            DIVIDE,
                            COMPUTE,
                        )
                    for more in range(OVERLAP, most_w):
                        place, tap_w, share_w = _candidate(
                            more,
                            i,
                            first_w,
                            count_w,
                            first_tap,
                            fewer_w,
                            starts_w,
                            shares_w,
                            out_w,
                            stride_w,
                            step_w,
                            origin_w,
                            full_w,
                            front_w,
                            lo_w,
                            hi_w,
                            spacing_w,
                            DILATED,
                            HAS_INDEX,
                            DIVIDE,
                        )
                        total += _part(
                            grad,
                            offsets,
                            row,
                            place,
                            tap_w + within,
                            share_w,
                            offset,
                            by,
                            inverse,
                            live,
                            y_w,
                            Y_UNIT,
                            VEC,
                            HAS_INDEX,
                            DIVIDE,
                            COMPUTE,
                        )
        line = x_base + (d * x_d + h * x_h) * X_UNIT
        if COLUMNS:
            at = (line + tl.where(live, w, 0) * VEC)[:, None] + along
        else:
            at = (line + w * x_w * X_UNIT)[:, None] + along
        value = scaled(total, offsets + at, live[:, None], SCALED)
        tl.store(result + at, value.to(result.dtype.element_ty), mask=live[:, None])
