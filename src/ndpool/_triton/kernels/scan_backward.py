"""Backward of max pooling with large overlapping windows in contiguous planes.

Windows of one row that take their value from the same column of inputs are neighbours and take the same
element of it: each of them contains every element of that column that the others contain. So a row of outputs
falls into runs, one for each column it takes from. Sums of runs are handed to the columns, and a walk down
each column adds those of all rows that take the same element; these rows follow each other, too. In volumes
the same holds along the first axis: `walk_backward` walks along it. The cost hardly depends on the
window. Stays for max pooling 13x13 with stride 1, 5 to 6 times as fast as `block_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import wait_for_previous
from ndpool._triton.kernels.reducers import USE_PTX, widen


class Work(NamedTuple):
    """Pieces of work: planes, blocks of `width` columns, chunks of `height` rows; and where tags begin."""

    items: Any
    planes: Any
    lead: Any
    blocks_w: Any
    chunks: Any
    width: Any
    height: Any
    home_tags: Any
    depths: Any


class Block(NamedTuple):
    """OUTS outputs of ROWS rows of PLANES planes at a time, and INPUTS inputs; loads of UNIT outputs."""

    PLANES: Any
    ROWS: Any
    OUTS: Any
    INPUTS: Any
    UNIT: Any


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
def _base(plane, lead, strides, MEMORY):
    """Address of a plane, in 64 bits."""
    if MEMORY.LEADS > 1:
        outer = plane // lead
        return (plane - outer * lead).to(tl.int64) * strides.lead + outer.to(tl.int64) * strides.outer
    else:
        return plane.to(tl.int64) * strides.lead


@triton.jit
def scan_backward_kernel(
    grad, offsets, result, scratch, work, x_strides, y_strides, sizes, outs, WINDOW, BLOCK, MEMORY
):
    """Gradients of `height` rows and `width` columns of PLANES planes at a time.

    Sums of runs go to the columns of their inputs through scratch memory, which each program has to itself:
    two pages of sums, and from `home_tags` on of tags, the row of the tap plus 1, or 0 where there is no run.
    Rows and columns of inputs are counted from the first one of the program. In volumes (KD > 1) the planes
    are planes of outputs, and the result is one array of sums and, from `depths` on, one of bytes, the first
    index of the tap plus 1 or 0, for `walk_backward`.
    """
    PAD_H: tl.constexpr = -WINDOW.H
    PAD_W: tl.constexpr = -WINDOW.W
    KD: tl.constexpr = WINDOW.KD
    KH: tl.constexpr = WINDOW.KH
    KW: tl.constexpr = WINDOW.KW
    SH: tl.constexpr = WINDOW.SH
    SW: tl.constexpr = WINDOW.SW
    PLANES: tl.constexpr = BLOCK.PLANES
    ROWS: tl.constexpr = BLOCK.ROWS
    OUTS: tl.constexpr = BLOCK.OUTS
    INPUTS: tl.constexpr = BLOCK.INPUTS
    UNIT: tl.constexpr = BLOCK.UNIT
    HEIGHT: tl.constexpr = PLANES * ROWS
    PAGE: tl.constexpr = HEIGHT * INPUTS
    FIRST_ROW: tl.constexpr = 0 if KD == 1 else -1  # a sum of 0 may be stored, but no depth
    pid = tl.program_id(0)
    wait_for_previous()
    q = tl.arange(0, PLANES)[:, None]
    j = tl.arange(0, INPUTS)[None, :]
    s = tl.arange(0, HEIGHT)[:, None]
    home = scratch + pid.to(tl.int64) * (2 * PAGE)
    tags_home = (scratch + work.home_tags).to(tl.pointer_type(tl.uint8)) + pid.to(tl.int64) * (2 * PAGE)
    for item in range(pid, work.items, tl.num_programs(0)):
        rest = item // work.chunks
        first_h = (item - rest * work.chunks) * work.height
        group = rest // work.blocks_w
        first_w = (rest - group * work.blocks_w) * work.width
        n_h = tl.minimum(work.height, sizes.h - first_h)
        n_w = tl.minimum(work.width, sizes.w - first_w)
        # Outputs that may have taken their value from these inputs.
        first_oh = tl.maximum(0, first_h + PAD_H - KH + SH) // SH
        end_oh = tl.minimum(outs.h, (first_h + n_h - 1 + PAD_H) // SH + 1)
        first_ow = tl.maximum(0, first_w + PAD_W - KW + SW) // (SW * UNIT) * UNIT
        left = work.planes - group * PLANES
        own = (q < left) & (j < n_w)
        end_i = tl.where(own, n_h, 0)  # rows of inputs; 0 beside the planes
        plane = group * PLANES
        y_base = _base(plane, work.lead, y_strides, MEMORY) * UNIT
        x_base = _base(plane, work.lead, x_strides, MEMORY) + first_w + first_h.to(tl.int64) * x_strides.h
        x_at = q * x_strides.lead + j
        target = result + x_base
        if KD > 1:
            target = (result + work.depths).to(tl.pointer_type(tl.uint8)) + x_base
        zero = tl.zeros(own.shape, target.dtype.element_ty)
        depth = tl.zeros(own.shape, tl.int32)
        row = tl.full(own.shape, FIRST_ROW, tl.int32)  # whose gradient is being summed
        total = tl.zeros(own.shape, tl.float32)
        # Zeros first, as far as the first windows reach; later ones reach ROWS * SH rows further.
        reach = first_oh * SH + KH - SH - PAD_H - first_h
        for above in range(0, reach):
            tl.store(target + (x_at + above * x_strides.h), zero, mask=above < end_i)
        ow = first_ow + tl.arange(0, OUTS)[None, :]
        end = tl.where((s // ROWS < left) & (ow < outs.w), end_oh, 0)
        end_next = tl.where((s // ROWS < left) & (ow + 1 < outs.w), end_oh, 0)
        given = (grad + y_base, offsets + y_base, (s // ROWS) * y_strides.lead * UNIT + ow)
        g, taps, after = _outputs(*given, first_oh + s % ROWS, end, end_next, y_strides.h, UNIT)
        for start in range(first_oh, end_oh, ROWS):
            page = (start - first_oh) // ROWS % 2 * PAGE
            tags = tags_home + page
            sums = home + page
            tl.store(tags + (s * INPUTS + j), tl.zeros([HEIGHT, INPUTS], tl.uint8))
            begin = start * SH + KH - SH - PAD_H - first_h
            for k in tl.static_range(ROWS * SH):
                there = (begin + k < end_i) & (begin + k + j * 0 >= 0)
                tl.store(target + (x_at + (begin + k) * x_strides.h), zero, mask=there)
            oh = start + s % ROWS
            tap = taps.to(tl.int32)
            th = (tap.to(tl.uint32) // KW).to(tl.int32)
            tw = tap - th * KW
            to = tw + (ow * SW - (PAD_W + first_w))
            # The next window takes the same element at an offset that is smaller by the stride.
            ends = (after.to(tl.int32) != tap - SW) | (tw < SW) | (oh >= end_next)
            ends = (
                ends
                & (oh < end)
                & _within(_row_of(th, KD, KH) + (oh * SH - (PAD_H + first_h)), n_h)
                & _within(to, n_w)
            )
            _, found = tl.associative_scan((to, widen(g, tl.float32)), 1, _add_to_run)
            tl.debug_barrier()
            _scattered(tags + (s * INPUTS + to), (th + 1).to(tl.uint8), ends)
            _scattered(sums + (s * INPUTS + to), found, ends)
            # What the next iteration reads, before this one waits.
            g, taps, after = _outputs(*given, oh + ROWS, end, end_next, y_strides.h, UNIT)
            tl.debug_barrier()
            for k in tl.static_range(ROWS):
                at = (q * ROWS + k) * INPUTS + j
                tag = tl.load(tags + at).to(tl.int32)
                v = tl.load(sums + at)
                h = _row_of(tag - 1, KD, KH) + ((start + k) * SH - (PAD_H + first_h))
                new = (tag > 0) & (h != row)
                if KD > 1:
                    _scattered(target + (x_at + row * x_strides.h), depth.to(tl.uint8), new & (row >= 0))
                    depth = tl.where(new, (tag - 1) // KH + 1, depth)
                done = new
                if KD > 1:
                    done = new & (row >= 0)
                _scattered(
                    result + x_base + (x_at + row * x_strides.h), total.to(result.dtype.element_ty), done
                )
                total = tl.where(new, v, total + tl.where(tag > 0, v, 0))
                row = tl.where(new, h, row)
        last = tl.maximum(0, end_oh * SH + KH - SH - PAD_H - first_h)
        for below in range(tl.where(end_oh > first_oh, last, 0), n_h):
            tl.store(target + (x_at + below * x_strides.h), zero, mask=own)
        tl.debug_barrier()
        if KD > 1:
            own = own & (row >= 0)
            _scattered(target + (x_at + row * x_strides.h), depth.to(tl.uint8), own)
        _scattered(result + x_base + (x_at + row * x_strides.h), total.to(result.dtype.element_ty), own)
        tl.debug_barrier()
