"""Backward of max pooling with overlapping windows in channels-last arrays and volumes, axis by axis.

Windows that differ along one axis only and take their value from the same position along it take the same
element: each of them contains every other element there that the others contain. Such windows follow each
other. So a lane walks along one axis of the outputs, sums the gradients of every run of windows with the same
position, and stores the sum there, with the rest of the offset as a tag; the next axis continues with these.
The cost hardly depends on the window. Stays for max pooling 13x13 with stride 1, 10 times as fast as
`block_backward`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import divide, wait_for_previous
from ndpool._triton.kernels.reducers import widen


class Block(NamedTuple):
    """REST is the number of taps along the axes that follow. The FIRST pass reads gradients and offsets, the
    LAST one writes gradients."""

    KERNEL: Any
    STRIDE: Any
    PAD: Any
    REST: Any
    FIRST: Any
    LAST: Any
    STEP: Any  # outputs at a time
    LANES: Any


@triton.jit
def _below(i, n):
    """0 <= i < n, by one comparison."""
    return i.to(tl.uint32) < n.to(tl.uint32)


@triton.jit
def _load(pointer, at, tags, o, outs, inner, STEP: tl.constexpr, ALL: tl.constexpr):
    """STEP elements of each lane along the axis: ALL, or those with a tag."""
    found = ()
    for k in tl.static_range(STEP):
        ok = o + k < outs
        if not ALL:
            ok = tags[k] > 0
        found = found + (tl.load(pointer + (at + (o + k) * inner), mask=ok, other=0),)
    return found


@triton.jit
def _zeros(pointer, at, i, inputs, inner, N: tl.constexpr, LANES: tl.constexpr):
    """Zeros for N inputs of each lane from i on, as far as they lie below `inputs`; i may be negative."""
    for k in tl.static_range(N):
        zero = tl.zeros([LANES], pointer.dtype.element_ty)
        tl.store(pointer + (at + (i + k) * inner), zero, mask=_below(inputs * 0 + (i + k), inputs))


@triton.jit
def walk_backward_kernel(
    src,
    src_tags,
    dst,
    dst_tags,
    lanes,
    inner,
    by_inner,
    out,
    size,
    chunk,
    chunks,
    src_lead,
    dst_lead,
    BLOCK,
    MEMORY,
    GATHER,
):
    """From arrays (leads, out, inner) to (leads, size, inner): a lane takes `chunk` inputs of one column.

    Leads are counted from `src_lead` and `dst_lead`, inputs from the first of the
    chunk.
    """
    KERNEL: tl.constexpr = BLOCK.KERNEL
    STRIDE: tl.constexpr = BLOCK.STRIDE
    PAD: tl.constexpr = BLOCK.PAD
    STEP: tl.constexpr = BLOCK.STEP
    LANES: tl.constexpr = BLOCK.LANES
    FIRST: tl.constexpr = BLOCK.FIRST
    AHEAD: tl.constexpr = KERNEL - STRIDE - PAD  # the end of the window before a block of outputs
    INPUTS: tl.constexpr = STEP * STRIDE
    pid = tl.program_id(0)
    block = pid // chunks
    begin = (pid - block * chunks) * chunk
    n = tl.minimum(chunk, size - begin)
    if MEMORY.INT64:
        block = block.to(tl.int64)
    lane = block * LANES + tl.arange(0, LANES)
    # Lanes past the last one have no outputs and no inputs.
    outs = tl.where(lane < lanes, out, 0)
    inputs = tl.where(lane < lanes, n, 0)
    lead = divide(lane, inner, by_inner, MEMORY.INT64)
    column = lane - lead * inner
    x = (lead + src_lead) * (out * inner) + column
    y = (lead + dst_lead) * (size * inner) + (column + begin * inner)
    wait_for_previous()
    filled = dst if BLOCK.LAST else dst_tags
    # Blocks of STEP outputs that may have taken their value from these inputs.
    first = tl.maximum(0, begin + PAD - KERNEL + STRIDE) // INPUTS
    last = (tl.minimum(out, (begin + n - 1 + PAD) // STRIDE + 1) + STEP - 1) // STEP
    for z in range(0, first * INPUTS + AHEAD - begin):
        _zeros(filled, y, z, inputs, inner, 1, LANES)
    current = tl.full([LANES], -1, tl.int32)  # the input whose run is being summed
    rest = tl.zeros([LANES], tl.int32)
    total = tl.zeros([LANES], GATHER.COMPUTE)
    tags = _load(src_tags, x, x, first * STEP, outs, inner, STEP, True)
    sums = _load(src, x, tags, first * STEP, outs, inner, STEP, FIRST)
    next_tags = _load(src_tags, x, x, first * STEP + STEP, outs, inner, STEP, True)
    for m in range(first, last):
        o = m * STEP
        # What the next iterations need is loaded before this one waits.
        next_sums = _load(src, x, next_tags, o + STEP, outs, inner, STEP, FIRST)
        later_tags = _load(src_tags, x, x, o + 2 * STEP, outs, inner, STEP, True)
        _zeros(filled, y, m * INPUTS + AHEAD - begin, inputs, inner, INPUTS, LANES)
        for k in tl.static_range(STEP):
            here = o + k < outs
            offset = tags[k].to(tl.int32)
            if not FIRST:
                here = offset > 0
                offset -= 1
            tap = (offset.to(tl.uint32) // BLOCK.REST).to(tl.int32)
            i = tap + ((o + k) * STRIDE - PAD - begin)
            new = here & (i != current)
            done = new & _below(current, inputs)
            to = y + current * inner
            tl.store(dst + to, total.to(dst.dtype.element_ty), mask=done)
            if not BLOCK.LAST:
                tl.store(dst_tags + to, (rest + 1).to(dst_tags.dtype.element_ty), mask=done)
                rest = tl.where(new, offset - tap * BLOCK.REST, rest)
            v = widen(sums[k], GATHER.COMPUTE)
            total = tl.where(new, v, total + v)
            current = tl.where(new, i, current)
        tags = next_tags
        sums = next_sums
        next_tags = later_tags
    for z in range(tl.maximum(0, tl.maximum(first, last) * INPUTS + AHEAD - begin), n):
        _zeros(filled, y, z, inputs, inner, 1, LANES)
    done = _below(current, inputs)
    to = y + current * inner
    tl.store(dst + to, total.to(dst.dtype.element_ty), mask=done)
    if not BLOCK.LAST:
        tl.store(dst_tags + to, (rest + 1).to(dst_tags.dtype.element_ty), mask=done)
