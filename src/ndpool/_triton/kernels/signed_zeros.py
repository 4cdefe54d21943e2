"""Signs of zeros: FAST_MAX returns +0 where the first zero of a window may be -0."""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import outputs_of, within
from ndpool._triton.kernels.reducers import widen


@triton.jit
def sign_zeros(
    x,
    y,
    x_base,
    y_base,
    w,
    live,
    strip,
    first_d,
    od,
    x_d,
    x_h,
    x_w,
    y_d,
    y_h,
    y_w,
    size_d,
    size_h,
    size_w,
    out_h,
    out_w,
    taps,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    ORIGIN_H: tl.constexpr,
    ORIGIN_W: tl.constexpr,
    COLUMNS: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    VEC: tl.constexpr,
    OUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Revisit a strip: every zero among its results takes the sign of the first zero in its window."""
    tl.debug_barrier()  # other threads may have written what is read here
    along = tl.arange(0, VEC)[None, :]
    for i in range(ROWS * OUTS):
        oh = strip * ROWS + i % ROWS
        ow, y_at = outputs_of(w, i // ROWS, y_base, y_w, COLUMNS, Y_UNIT, VEC, OUTS)
        if COLUMNS:
            first, step = x_base[:, None] + along * 0, 1
        else:
            first, step = x_base[:, None] + along, x_w * X_UNIT
        y_at += (od * y_d + oh * y_h) * Y_UNIT
        ok = within(live, oh + w * 0, out_h)[:, None]
        if (COLUMNS and Y_UNIT < VEC) or OUTS > 1:
            ok = ok & (ow < out_w)
        v = widen(tl.load(y + y_at, mask=ok, other=1), COMPUTE)
        left = v == 0
        for t in range(taps):
            d = first_d + t // (KH * KW) + ow * 0
            h = oh * SH + ORIGIN_H + t // KW % KH + ow * 0
            column = ow * SW + ORIGIN_W + t % KW
            there = within(within(within(left, d, size_d), h, size_h), column, size_w)
            at = first + (d * x_d + h * x_h) * X_UNIT + column * step
            one = widen(tl.load(x + at, mask=there, other=1), COMPUTE)
            hit = there & (one == 0)
            v = tl.where(hit, one, v)
            left = left & (one != 0)
        tl.store(y + y_at, v.to(y.dtype.element_ty), mask=ok)
