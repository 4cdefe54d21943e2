"""Backward of max pooling with large overlapping windows in contiguous planes.

Windows of one row that take their value from the same column of inputs are neighbours and take the same
element of it: each of them contains every element of that column that the others contain. So a row of outputs
falls into runs, one for each column it takes from. Sums of runs are handed to the columns, and a walk down
each column adds those of all rows that take the same element; these rows follow each other, too. In volumes
the same holds along the first axis: `depth_backward_kernel` walks along it. The cost hardly depends on the
window. Stays for max pooling 13x13 with stride 1, 5 to 6 times as fast as `block_backward`.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import wait_for_previous
from ndpool._triton.kernels.reducers import USE_PTX, widen

_SIZES = ["items", "n_planes", "n_1", "blocks_w", "chunks", "width", "height"]
_SIZES += ["home_tags", "depths"]
_SIZES += ["x_1", "x_2", "x_h", "y_1", "y_2", "y_h", "size_h", "size_w", "out_h", "out_w"]


@triton.jit
def _scattered(pointer, value, ok):
    """Store to any addresses; Triton's own store first exchanges all operands between threads."""
    if not USE_PTX:
        tl.store(pointer, value, mask=ok)
    elif value.dtype.primitive_bitwidth == 8:
        _put(pointer, value.to(tl.int16), ok, "@p st.global.b8 [$1], $2;", "=r,l,h,r")
    elif value.dtype.primitive_bitwidth == 32:
        _put(pointer, value.to(tl.int32, bitcast=True), ok, "@p st.global.b32 [$1], $2;", "=r,l,r,r")
    else:
        _put(pointer, value.to(tl.int16, bitcast=True), ok, "@p st.global.b16 [$1], $2;", "=r,l,h,r")


@triton.jit
def _put(pointer, value, ok, STORE: tl.constexpr, CONSTRAINTS: tl.constexpr):
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.b32 p, $3, 0; " + STORE + " mov.b32 $0, 0; }",
        CONSTRAINTS,
        [pointer.to(tl.int64), value, ok.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _add_to_run(key, total, next_key, value):
    return next_key, tl.where(key == next_key, total + value, value)


@triton.jit
def _outputs(grad, offsets, at, oh, end, end_next, y_h, UNIT: tl.constexpr):
    """Gradients and offsets of a tile of outputs, and the offsets of their right neighbours."""
    at = at + oh * y_h * UNIT
    g = tl.load(grad + at, mask=oh < end, other=0)
    tap = tl.load(offsets + at, mask=oh < end, other=0)
    return g, tap, tl.load(offsets + 1 + at, mask=oh < end_next, other=0)


@triton.jit
def _row_of(tap, KD: tl.constexpr, KH: tl.constexpr):
    """Row of a tap in its plane, from its row in the window."""
    if KD > 1:
        return tap % KH
    else:
        return tap


@triton.jit
def _within(i, n):
    return i.to(tl.uint32) < n.to(tl.uint32)


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
    home_tags,
    depths,
    items,
    n_planes,
    n_1,
    blocks_w,
    chunks,
    width,
    height,
    x_1,
    x_2,
    x_h,
    y_1,
    y_2,
    y_h,
    size_h,
    size_w,
    out_h,
    out_w,
    KD: tl.constexpr,
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
    UNIT: tl.constexpr,
    LEADS: tl.constexpr,
):
    """Gradients of `height` rows and `width` columns of PLANES planes at a time.

    Sums of runs go to the columns of their inputs through scratch memory, which each program has to itself:
    two pages of sums, and from `home_tags` on of tags, the row of the tap plus 1, or 0 where there is no run.
    Rows and columns of inputs are counted from the first one of the program. In volumes (KD > 1) the planes
    are planes of outputs, and the result is one array of sums and, from `depths` on, one of bytes, the first
    index of the tap plus 1 or 0, for `depth_backward_kernel`.
    """
    HEIGHT: tl.constexpr = PLANES * ROWS
    PAGE: tl.constexpr = HEIGHT * INPUTS
    FIRST_ROW: tl.constexpr = 0 if KD == 1 else -1  # a sum of 0 may be stored, but no depth
    pid = tl.program_id(0)
    wait_for_previous()
    q = tl.arange(0, PLANES)[:, None]
    j = tl.arange(0, INPUTS)[None, :]
    s = tl.arange(0, HEIGHT)[:, None]
    home = scratch + pid.to(tl.int64) * (2 * PAGE)
    tags_home = (scratch + home_tags).to(tl.pointer_type(tl.uint8)) + pid.to(tl.int64) * (2 * PAGE)
    for item in range(pid, items, tl.num_programs(0)):
        rest = item // chunks
        first_h = (item - rest * chunks) * height
        group = rest // blocks_w
        first_w = (rest - group * blocks_w) * width
        n_h = tl.minimum(height, size_h - first_h)
        n_w = tl.minimum(width, size_w - first_w)
        # Outputs that may have taken their value from these inputs.
        first_oh = tl.maximum(0, first_h + PH - KH + SH) // SH
        end_oh = tl.minimum(out_h, (first_h + n_h - 1 + PH) // SH + 1)
        first_ow = tl.maximum(0, first_w + PW - KW + SW) // (SW * UNIT) * UNIT
        left = n_planes - group * PLANES
        own = (q < left) & (j < n_w)
        end_i = tl.where(own, n_h, 0)  # rows of inputs; 0 beside the planes
        plane = group * PLANES
        y_base = _base(plane, n_1, y_1, y_2, LEADS) * UNIT
        x_base = _base(plane, n_1, x_1, x_2, LEADS) + first_w + first_h.to(tl.int64) * x_h
        x_at = q * x_1 + j
        target = result + x_base
        if KD > 1:
            target = (result + depths).to(tl.pointer_type(tl.uint8)) + x_base
        zero = tl.zeros(own.shape, target.dtype.element_ty)
        depth = tl.zeros(own.shape, tl.int32)
        row = tl.full(own.shape, FIRST_ROW, tl.int32)  # whose gradient is being summed
        total = tl.zeros(own.shape, tl.float32)
        # Zeros first, as far as the first windows reach; later ones reach ROWS * SH rows further.
        reach = first_oh * SH + KH - SH - PH - first_h
        for above in range(0, reach):
            tl.store(target + (x_at + above * x_h), zero, mask=above < end_i)
        ow = first_ow + tl.arange(0, OUTS)[None, :]
        end = tl.where((s // ROWS < left) & (ow < out_w), end_oh, 0)
        end_next = tl.where((s // ROWS < left) & (ow + 1 < out_w), end_oh, 0)
        given = (grad + y_base, offsets + y_base, (s // ROWS) * y_1 * UNIT + ow)
        g, taps, after = _outputs(*given, first_oh + s % ROWS, end, end_next, y_h, UNIT)
        for start in range(first_oh, end_oh, ROWS):
            page = (start - first_oh) // ROWS % 2 * PAGE
            tags = tags_home + page
            sums = home + page
            tl.store(tags + (s * INPUTS + j), tl.zeros([HEIGHT, INPUTS], tl.uint8))
            begin = start * SH + KH - SH - PH - first_h
            for k in tl.static_range(ROWS * SH):
                there = (begin + k < end_i) & (begin + k + j * 0 >= 0)
                tl.store(target + (x_at + (begin + k) * x_h), zero, mask=there)
            oh = start + s % ROWS
            tap = taps.to(tl.int32)
            th = (tap.to(tl.uint32) // KW).to(tl.int32)
            tw = tap - th * KW
            to = tw + (ow * SW - (PW + first_w))
            # The next window takes the same element at an offset that is smaller by the stride.
            ends = (after.to(tl.int32) != tap - SW) | (tw < SW) | (oh >= end_next)
            ends = (
                ends
                & (oh < end)
                & _within(_row_of(th, KD, KH) + (oh * SH - (PH + first_h)), n_h)
                & _within(to, n_w)
            )
            _, found = tl.associative_scan((to, widen(g, tl.float32)), 1, _add_to_run)
            tl.debug_barrier()
            _scattered(tags + (s * INPUTS + to), (th + 1).to(tl.uint8), ends)
            _scattered(sums + (s * INPUTS + to), found, ends)
            # What the next iteration reads, before this one waits.
            g, taps, after = _outputs(*given, oh + ROWS, end, end_next, y_h, UNIT)
            tl.debug_barrier()
            for k in tl.static_range(ROWS):
                at = (q * ROWS + k) * INPUTS + j
                tag = tl.load(tags + at).to(tl.int32)
                v = tl.load(sums + at)
                h = _row_of(tag - 1, KD, KH) + ((start + k) * SH - (PH + first_h))
                new = (tag > 0) & (h != row)
                if KD > 1:
                    _scattered(target + (x_at + row * x_h), depth.to(tl.uint8), new & (row >= 0))
                    depth = tl.where(new, (tag - 1) // KH + 1, depth)
                done = new
                if KD > 1:
                    done = new & (row >= 0)
                _scattered(result + x_base + (x_at + row * x_h), total.to(result.dtype.element_ty), done)
                total = tl.where(new, v, total + tl.where(tag > 0, v, 0))
                row = tl.where(new, h, row)
        last = tl.maximum(0, end_oh * SH + KH - SH - PH - first_h)
        for below in range(tl.where(end_oh > first_oh, last, 0), n_h):
            tl.store(target + (x_at + below * x_h), zero, mask=own)
        tl.debug_barrier()
        if KD > 1:
            own = own & (row >= 0)
            _scattered(target + (x_at + row * x_h), depth.to(tl.uint8), own)
        _scattered(result + x_base + (x_at + row * x_h), total.to(result.dtype.element_ty), own)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["depths", "n", "blocks", "x_lead", "x_d", "size_d", "out_d"])
def depth_backward_kernel(
    sums,
    same,
    result,
    depths,
    n,
    blocks,
    x_lead,
    x_d,
    size_d,
    out_d,
    KD: tl.constexpr,
    SD: tl.constexpr,
    PD: tl.constexpr,
    LANES: tl.constexpr,
    STEP: tl.constexpr,
):
    """The gradient of a volume from the gradients of the planes of its outputs, `n` elements a plane."""
    pid = tl.program_id(0)
    wait_for_previous()
    lead = (pid // blocks).to(tl.int64)
    plane = lead * 0 + n  # in 64 bits
    step = lead * 0 + x_d
    lane = pid % blocks * LANES + tl.arange(0, LANES)
    ok = lane < n
    sums += lead * out_d * n
    tags = (same + depths).to(tl.pointer_type(tl.uint8)) + lead * out_d * n
    result += lead * x_lead
    zero = tl.zeros([LANES], result.dtype.element_ty)
    row = tl.zeros([LANES], tl.int32)
    total = tl.zeros([LANES], tl.float32)
    for above in range(0, tl.minimum(size_d, KD - SD - PD)):
        tl.store(result + above * step + lane, zero, mask=ok)
    for start in range(0, out_d, STEP):
        found = ()
        v = ()
        for k in tl.static_range(STEP):
            there = ok & (start + k + lane * 0 < out_d)
            at = (start + k) * plane + lane
            found = found + (tl.load(tags + at, mask=there, other=0).to(tl.int32),)
            v = v + (tl.load(sums + at, mask=there, other=0),)
        begin = start * SD + KD - SD - PD
        for k in tl.static_range(STEP * SD):
            there = ok & (begin + k + lane * 0 >= 0) & (begin + k + lane * 0 < size_d)
            tl.store(result + (begin + k) * step + lane, zero, mask=there)
        tl.debug_barrier()
        for k in tl.static_range(STEP):
            d = (start + k) * SD - PD - 1 + found[k]
            new = (found[k] > 0) & (d != row) & (d >= 0) & (d < size_d)
            tl.store(result + row * step + lane, total.to(result.dtype.element_ty), mask=new)
            total = tl.where(new, v[k], total + tl.where(found[k] > 0, v[k], 0))
            row = tl.where(new, d, row)
    for below in range(tl.maximum(0, out_d * SD + KD - SD - PD), size_d):
        tl.store(result + below * step + lane, zero, mask=ok)
    tl.debug_barrier()
    tl.store(result + row * step + lane, total.to(result.dtype.element_ty), mask=ok)
