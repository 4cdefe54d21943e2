"""Any plan, tap by tap: irregular, dilated, or too large to unroll.

Windows come in tables with one row per output: first input, number of taps, number of the first tap, and
divisor (`launch.window_table`).
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    INDEX64,
    SIZES,
    base_of,
    lanes_of,
    split,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import (
    element,
    load_or_identity,
    merge,
    quotient,
    quotient_by_inverse,
    root,
)

_SIZES = [*SIZES, "p_c", "p_1", "p_2", "out_d", "out_h", "taps_w", "taps"]
_SIZES += ["size_h", "size_w", *(f"{name}_{axis}" for name in ("rows", "t", "mark") for axis in "dhw")]


@triton.jit
def _window(table, o):
    """First inputs of windows, their numbers of taps, numbers of the first taps, and divisors."""
    row = table_row(table, o)
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)


@triton.jit(do_not_specialize=_SIZES)
def window_forward_kernel(
    x,
    y,
    extra,
    table_d,
    table_h,
    table_w,
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
    out_d,
    out_h,
    rows_d,
    rows_h,
    rows_w,
    t_d,
    t_h,
    t_w,
    taps_w,
    mark_d,
    mark_h,
    mark_w,
    size_h,
    size_w,
    divisor,
    inverse,
    taps,
    UNIT: tl.constexpr,
    VEC: tl.constexpr,
    LANES: tl.constexpr,
    UNROLL: tl.constexpr,
    FLAT: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
    PER_PLANE: tl.constexpr,
    OP: tl.constexpr,
    KIND: tl.constexpr,
    DIVIDE: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
    WIDE: tl.constexpr,
):
    """VEC outputs per lane, tap by tap.

    From one tap to the next along an axis, addresses grow by `t` and marks, which are offsets or indices, by
    `mark`. Where planes have windows of their own, `rows` is the number of rows per plane in a table, or 0.
    """
    WITH_OFFSETS: tl.constexpr = KIND != 0
    MARK: tl.constexpr = tl.int64 if WIDE else tl.int32
    pid = tl.program_id(0)
    if INT64:
        pid = pid.to(tl.int64)
    wait_for_previous()
    oh, od, block = split(pid, out_h, out_d, m_s, m_d, INT64)
    live, c, ow, l1, l2 = lanes_of(
        block, n_lanes, n_c, n_w, n_1, m_c, m_w, m_1, LANES, CHANNELS, LEADS, INT64
    )
    x_base = base_of(c, l1, l2, x_c, x_1, x_2, CHANNELS, LEADS)
    y_base = base_of(c, l1, l2, y_c, y_1, y_2, CHANNELS, LEADS)
    # Lanes past the last one read the table entries of the first.
    ow = tl.where(live, ow, 0)
    plane = 0
    if PER_PLANE:
        plane = tl.where(live, base_of(c, l1, l2, p_c, p_1, p_2, CHANNELS, LEADS), 0)
    start_d, count_d, lead_d, share_d = _window(table_d, plane * rows_d + od)
    start_h, count_h, lead_h, share_h = _window(table_h, plane * rows_h + oh)
    start_w, count_w, lead_w, share_w = _window(table_w, plane * rows_w + ow)
    x_base += start_d * x_d + start_h * x_h + start_w * x_w
    n_d = count_d
    n_h = count_h
    if PER_PLANE:
        n_d = tl.max(count_d)
        n_h = tl.max(count_h)
    along = tl.arange(0, VEC)[None, :]
    at = x + (x_base * UNIT)[:, None] + along
    # A window without elements has the mark of its first tap.
    best = tl.full([LANES, VEC], IDENTITY, COMPUTE)
    offset = tl.zeros([LANES, VEC], MARK)
    td = 0
    th = 0
    tw = 0
    # Short rows: one loop for all axes, so that several loads are in flight.
    for _ in tl.range(0, n_d * n_h * (taps_w if FLAT else 1), loop_unroll_factor=UNROLL if FLAT else 1):
        inside = live
        if PER_PLANE:
            inside = live & (td < count_d) & (th < count_h)
        row = at + (td * t_d + th * t_h) * UNIT
        line = td * mark_d + th * mark_h
        if FLAT:
            ok = (inside & (tw < count_w))[:, None]
            v = element(load_or_identity(row + tw * t_w * UNIT, ok, IDENTITY, COMPUTE), OP, COMPUTE)
            best, offset = merge(best, offset, v, (line + tw * mark_w).to(MARK), OP, WITH_OFFSETS)
            ends = (tw + 1 == taps_w).to(tl.int32)
            tw = (tw + 1) * (1 - ends)
            th += ends
        else:
            for k in tl.range(0, taps_w, loop_unroll_factor=UNROLL):
                ok = (inside & (k < count_w))[:, None]
                v = element(load_or_identity(row + k * t_w * UNIT, ok, IDENTITY, COMPUTE), OP, COMPUTE)
                best, offset = merge(best, offset, v, (line + k * mark_w).to(MARK), OP, WITH_OFFSETS)
            th += 1
        depth = (th == n_h).to(tl.int32)
        th = th * (1 - depth)
        td += depth
    ok = live[:, None]
    to = ((y_base + od * y_d + oh * y_h + ow * y_w) * UNIT)[:, None] + along
    if DIVIDE == 1:
        best = quotient_by_inverse(best, divisor, inverse)
    if DIVIDE == 2:
        best = quotient(best, (share_w.to(tl.int64) * share_d * share_h)[:, None])
    best = root(best, taps, OP)
    tl.store(y + to, best.to(y.dtype.element_ty), mask=ok)
    if WITH_OFFSETS:
        if KIND == INDEX64:
            begin = start_w.to(MARK) + start_h.to(MARK) * size_w + start_d.to(MARK) * size_h * size_w
        else:
            begin = lead_w * mark_w + lead_h * mark_h + lead_d * mark_d
        tl.store(extra + to, (offset + begin[:, None]).to(extra.dtype.element_ty), mask=ok)
