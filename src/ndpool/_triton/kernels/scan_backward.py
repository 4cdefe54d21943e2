"""Backward of max pooling with large overlapping windows, at a cost that does not depend on the window.

Neighbouring windows that take their value from one input are a run: along a row of outputs, windows that take
from the same column are neighbours and take the same element of it, because each of them contains all
elements of that column that the others contain. So a segmented scan along a row sums what each column of
inputs gets from this row, and a walk down the rows sums what each input gets.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import wait_for_previous
from ndpool._triton.kernels.reducers import widen

_SIZES = ["items", "n_planes", "n_1", "n_c", "blocks_c", "blocks_w", "chunks", "width", "height"]
_SIZES += ["x_1", "x_2", "x_h", "x_w", "y_1", "y_2", "y_h", "y_w", "size_h", "size_w", "out_h", "out_w"]
_NONE = tl.constexpr(-(2**32))  # row -1, sum 0


@triton.jit
def _add_to_run(key, total, next_key, value):
    return next_key, tl.where(key == next_key, total + value, value)


@triton.jit
def _tile(N: tl.constexpr, P: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr):
    """Row, column and channel of the elements of a tile; contiguous rows have no channels."""
    if CHANNELS:
        rows = tl.arange(0, N)[:, None, None]
        columns = tl.arange(0, P)[None, :, None]
        return rows, columns, tl.arange(0, C)[None, None, :]
    else:
        return tl.arange(0, N)[:, None], tl.arange(0, P)[None, :], 0


@triton.jit
def _base(plane, n_1, s_1, s_2, LEADS: tl.constexpr):
    """Address of a plane, in 64 bits."""
    if LEADS > 1:
        outer = plane // n_1
        return (plane - outer * n_1).to(tl.int64) * s_1 + outer.to(tl.int64) * s_2
    else:
        return plane.to(tl.int64) * s_1


@triton.jit(do_not_specialize=_SIZES)
def scan_backward_kernel(
    grad,
    offsets,
    result,
    scratch,
    items,
    n_planes,
    n_1,
    n_c,
    blocks_c,
    blocks_w,
    chunks,
    width,
    height,
    x_1,
    x_2,
    x_h,
    x_w,
    y_1,
    y_2,
    y_h,
    y_w,
    size_h,
    size_w,
    out_h,
    out_w,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    PLANES: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    C: tl.constexpr,
    CHANNELS: tl.constexpr,
    LEADS: tl.constexpr,
):
    """Gradients of `height` rows and `width` columns of PLANES planes and C channels at a time.

    Sums of runs go to the columns of their inputs through scratch memory, which each program has to itself.
    Rows and columns of inputs are counted from the first one of the program.
    """
    HEIGHT: tl.constexpr = PLANES * ROWS
    PAGE: tl.constexpr = HEIGHT * INPUTS * C
    pid = tl.program_id(0)
    wait_for_previous()
    s, p, c = _tile(HEIGHT, OUTS, C, CHANNELS)
    q, j, cj = _tile(PLANES, INPUTS, C, CHANNELS)
    sz, jz, cz = _tile(HEIGHT, INPUTS, C, CHANNELS)
    home = scratch + pid.to(tl.int64) * (2 * PAGE)
    for item in range(pid, items, tl.num_programs(0)):
        rest = item // chunks
        first_h = (item - rest * chunks) * height
        group = rest // blocks_w
        first_w = (rest - group * blocks_w) * width
        channel = 0
        if CHANNELS:
            rest = group
            group = rest // blocks_c
            channel = (rest - group * blocks_c) * C
        n_h = tl.minimum(height, size_h - first_h)
        n_w = tl.minimum(width, size_w - first_w)
        # Outputs that may have taken their value from these inputs.
        first_oh = tl.maximum(0, first_h + PH - KH + SH) // SH
        end_oh = tl.minimum(out_h, (first_h + n_h - 1 + PH) // SH + 1)
        first_ow = tl.maximum(0, first_w + PW - KW + SW) // SW
        left = n_planes - group * PLANES
        # Rows of outputs that exist in a column, in the next one, and rows of inputs; 0 beside the planes.
        ok = (s // ROWS < left) & (first_ow + p < out_w)
        more = (s // ROWS < left) & (first_ow + p + 1 < out_w)
        own = (q < left) & (j < n_w)
        if CHANNELS:
            ok = ok & (channel + c < n_c)
            more = more & (channel + c < n_c)
            own = own & (channel + cj < n_c)
        end = tl.where(ok, end_oh, 0)
        end_next = tl.where(more, end_oh, 0)
        end_i = tl.where(own, n_h, 0)
        plane = group * PLANES
        y_base = _base(plane, n_1, y_1, y_2, LEADS) + first_ow * y_w + channel
        x_base = _base(plane, n_1, x_1, x_2, LEADS) + first_w * x_w + channel + first_h.to(tl.int64) * x_h
        y_at = (s // ROWS) * y_1 + p * y_w + c
        x_at = q * x_1 + j * x_w + cj
        column = (first_ow + p) * SW - (PW + first_w)
        zero = tl.zeros(own.shape, result.dtype.element_ty)
        row = tl.zeros(own.shape, tl.int32)  # whose gradient is being summed
        total = tl.zeros(own.shape, tl.float32)
        # Zeros first, as far as the first windows reach; later ones reach ROWS * SH rows further.
        reach = first_oh * SH + KH - SH - PH - first_h
        for above in range(0, reach):
            tl.store(result + x_base + (x_at + above * x_h), zero, mask=above < end_i)
        for start in range(first_oh, end_oh, ROWS):
            oh = start + s % ROWS
            there = oh < end
            at = y_at + oh * y_h
            g = widen(tl.load(grad + y_base + at, mask=there, other=0), tl.float32)
            tap = tl.load(offsets + y_base + at, mask=there, other=0).to(tl.int32)
            after = tl.load(offsets + y_base + (at + y_w), mask=oh < end_next, other=0).to(tl.int32)
            th = (tap.to(tl.uint32) // KW).to(tl.int32)
            tw = tap - th * KW
            i = th + (oh * SH - (PH + first_h))
            to = tw + column
            # The next window takes the same element at an offset that is smaller by the stride.
            ends = (after != tap - SW) | (tw < SW) | (oh >= end_next)
            ends = ends & there & (i.to(tl.uint32) < n_h.to(tl.uint32)) & (to.to(tl.uint32) < n_w.to(tl.uint32))
            _, sums = tl.associative_scan((to, g), 1, _add_to_run)
            page = home + (start - first_oh) // ROWS % 2 * PAGE
            bits = sums.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
            tl.store(page + ((sz * INPUTS + jz) * C + cz), tl.full((sz + jz + cz).shape, _NONE, tl.int64))
            begin = start * SH + KH - SH - PH - first_h
            for k in tl.static_range(ROWS * SH):
                tl.store(
                    result + x_base + (x_at + (begin + k) * x_h),
                    zero,
                    mask=(begin + k < end_i) & (begin + k + j * 0 >= 0),
                )
            tl.debug_barrier()
            tl.store(page + ((s * INPUTS + to) * C + c), (i.to(tl.int64) << 32) | bits, mask=ends)
            tl.debug_barrier()
            for k in tl.static_range(ROWS):
                found = tl.load(page + (((q * ROWS + k) * INPUTS + j) * C + cj))
                h = (found >> 32).to(tl.int32)
                v = found.to(tl.int32).to(tl.float32, bitcast=True)
                new = (h >= 0) & (h != row)
                tl.store(
                    result + x_base + (x_at + row * x_h), total.to(result.dtype.element_ty), mask=new
                )
                total = tl.where(new, v, total + v)
                row = tl.where(new, h, row)
        last = tl.maximum(0, end_oh * SH + KH - SH - PH - first_h)
        for below in range(tl.where(end_oh > first_oh, last, 0), n_h):
            tl.store(result + x_base + (x_at + below * x_h), zero, mask=own)
        tl.debug_barrier()
        tl.store(result + x_base + (x_at + row * x_h), total.to(result.dtype.element_ty), mask=own)
        tl.debug_barrier()
