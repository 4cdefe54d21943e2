"""Backward of max pooling with overlapping windows, axis by axis, at a cost that hardly depends on the window.

Windows that differ along one axis only and take their value from the same position along it take the same
element: each of them contains every other element there that the others contain. Such windows follow each
other. So a lane walks along one axis of the outputs, sums the gradients of every run of windows with the same
position, and stores the sum there, with the rest of the offset as a tag; the next axis continues with these.
Stays for max pooling with stride 1 and large windows, which gathers take several times as long for.
"""

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import divide, wait_for_previous
from ndpool._triton.kernels.reducers import columns_of, widen

VECTOR = tl.constexpr(4)  # neighbours along a contiguous axis that a lane loads or stores at once


@triton.jit
def _below(i, n):
    """0 <= i < n, by one comparison."""
    return i.to(tl.uint32) < n.to(tl.uint32)


@triton.jit
def _tags(pointer, at, o, outs, step, UNIT: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr):
    """Tags of STEP outputs of each lane; 0 past the last of `outs`."""
    found = ()
    if UNIT > 0:
        for k in tl.static_range(0, STEP, VECTOR):
            along = o + k + tl.arange(0, VECTOR)[None, :]
            ok = along // UNIT * UNIT < outs[:, None]
            tile = tl.load(pointer + at[:, None] + along, mask=ok, other=0)
            found = found + columns_of(tile.to(tl.int32), LANES, VECTOR)
    else:
        for k in tl.static_range(STEP):
            tag = tl.load(pointer + (at + (o + k) * step), mask=o + k < outs, other=0)
            found = found + (tag.to(tl.int32),)
    return found


@triton.jit
def _sums(
    pointer,
    tags,
    at,
    o,
    outs,
    step,
    UNIT: tl.constexpr,
    STEP: tl.constexpr,
    LANES: tl.constexpr,
    FIRST: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Gradients or sums of STEP outputs of each lane; 0 where there is none."""
    found = ()
    if UNIT > 0 and FIRST:
        for k in tl.static_range(0, STEP, VECTOR):
            along = o + k + tl.arange(0, VECTOR)[None, :]
            ok = along // UNIT * UNIT < outs[:, None]
            tile = tl.load(pointer + at[:, None] + along, mask=ok, other=0)
            found = found + columns_of(widen(tile, COMPUTE), LANES, VECTOR)
    else:
        for k in tl.static_range(STEP):
            if FIRST:
                ok = o + k < outs
            else:
                ok = tags[k] > 0
            found = found + (widen(tl.load(pointer + (at + (o + k) * step), mask=ok, other=0), COMPUTE),)
    return found


@triton.jit
def _zeros(pointer, at, i, inputs, step, UNIT: tl.constexpr, N: tl.constexpr, LANES: tl.constexpr):
    """Zeros for N inputs of each lane from i on, as far as they lie below `inputs`; i may be negative."""
    if UNIT > 0:
        for k in tl.static_range(0, N, VECTOR):
            along = i + k + tl.arange(0, VECTOR)[None, :]
            zero = tl.zeros([LANES, VECTOR], pointer.dtype.element_ty)
            # Vectors lie entirely inside or outside.
            end = tl.where(inputs * 0 + (i + k) >= 0, inputs, -(2**30))
            tl.store(pointer + at[:, None] + along, zero, mask=along // UNIT * UNIT < end[:, None])
    else:
        for k in tl.static_range(N):
            zero = tl.zeros([LANES], pointer.dtype.element_ty)
            tl.store(pointer + (at + (i + k) * step), zero, mask=_below(inputs * 0 + (i + k), inputs))


@triton.jit(
    do_not_specialize=["lanes", "inner", "m_inner", "out", "size", "chunk", "chunks", "src_lead", "dst_lead"]
)
def walk_backward_kernel(
    src,
    src_tags,
    dst,
    dst_tags,
    lanes,
    inner,
    m_inner,
    out,
    size,
    chunk,
    chunks,
    src_lead,
    dst_lead,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    REST: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    X_UNIT: tl.constexpr,
    Y_UNIT: tl.constexpr,
    STEP: tl.constexpr,
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
    INT64: tl.constexpr,
):
    """From arrays (leads, out, inner) to (leads, size, inner): a lane takes `chunk` inputs of one column.

    REST is the number of taps along the axes that follow. The FIRST pass reads gradients and offsets, the
    LAST writes gradients. Where `inner` is 1, lanes read and write vectors of units along the axis; the units
    are 0 elsewhere. Leads are counted from `src_lead` and `dst_lead`, inputs from the first of the chunk.
    """
    # How far zeros are written ahead of the windows: beyond their end, in full vectors.
    AHEAD: tl.constexpr = (KERNEL - STRIDE - PAD + VECTOR - 1) // VECTOR * VECTOR
    BLOCK: tl.constexpr = STEP * STRIDE
    pid = tl.program_id(0)
    block = pid // chunks
    begin = (pid - block * chunks) * chunk // VECTOR * VECTOR  # a multiple already, as the compiler learns
    n = tl.minimum(chunk, size - begin)
    if INT64:
        block = block.to(tl.int64)
    lane = block * LANES + tl.arange(0, LANES)
    # Lanes past the last one have no outputs and no inputs.
    outs = tl.where(lane < lanes, out, 0)
    inputs = tl.where(lane < lanes, n, 0)
    if Y_UNIT > 0:
        step = 1
        x = (lane + src_lead) * (out // X_UNIT) * X_UNIT
        y = (lane + dst_lead) * (size // Y_UNIT) * Y_UNIT + begin
    else:
        step = inner
        lead = divide(lane, inner, m_inner, INT64)
        column = lane - lead * inner
        x = (lead + src_lead) * (out * inner) + column
        y = (lead + dst_lead) * (size * inner) + (column + begin * inner)
    wait_for_previous()
    filled = dst if LAST else dst_tags
    # Blocks of STEP outputs that may have taken their value from these inputs.
    first = tl.maximum(0, begin + PAD - KERNEL + STRIDE) // BLOCK
    last = (tl.minimum(out, (begin + n - 1 + PAD) // STRIDE + 1) + STEP - 1) // STEP
    for z in range(0, (first * BLOCK + AHEAD - begin) // VECTOR):
        _zeros(filled, y, z * VECTOR, inputs, step, Y_UNIT, VECTOR, LANES)
    current = tl.full([LANES], -1, tl.int32)  # the input whose run is being summed
    rest = tl.zeros([LANES], tl.int32)
    total = tl.zeros([LANES], COMPUTE)
    tags = _tags(src_tags, x, first * STEP, outs, step, X_UNIT, STEP, LANES)
    sums = _sums(src, tags, x, first * STEP, outs, step, X_UNIT, STEP, LANES, FIRST, COMPUTE)
    next_tags = _tags(src_tags, x, first * STEP + STEP, outs, step, X_UNIT, STEP, LANES)
    for m in range(first, last):
        o = m * STEP
        # What the next iterations need is loaded before this one waits.
        next_sums = _sums(src, next_tags, x, o + STEP, outs, step, X_UNIT, STEP, LANES, FIRST, COMPUTE)
        later_tags = _tags(src_tags, x, o + 2 * STEP, outs, step, X_UNIT, STEP, LANES)
        _zeros(filled, y, m * BLOCK + AHEAD - begin, inputs, step, Y_UNIT, BLOCK, LANES)
        if Y_UNIT > 0:
            tl.debug_barrier()  # vectors may belong to other threads than single elements
        for k in tl.static_range(STEP):
            if FIRST:
                here = o + k < outs
                offset = tags[k]
            else:
                here = tags[k] > 0
                offset = tags[k] - 1
            tap = (offset.to(tl.uint32) // REST).to(tl.int32)
            i = tap + ((o + k) * STRIDE - PAD - begin)
            new = here & (i != current)
            done = new & _below(current, inputs)
            to = y + current * step
            tl.store(dst + to, total.to(dst.dtype.element_ty), mask=done)
            if not LAST:
                tl.store(dst_tags + to, (rest + 1).to(dst_tags.dtype.element_ty), mask=done)
                rest = tl.where(new, offset - tap * REST, rest)
            total = tl.where(new, sums[k], total + sums[k])
            current = tl.where(new, i, current)
        tags = next_tags
        sums = next_sums
        next_tags = later_tags
    reached = tl.maximum(0, tl.maximum(first, last) * BLOCK + AHEAD - begin)
    for z in range(reached // VECTOR, (n + VECTOR - 1) // VECTOR):
        _zeros(filled, y, z * VECTOR, inputs, step, Y_UNIT, VECTOR, LANES)
    if Y_UNIT > 0:
        tl.debug_barrier()
    done = _below(current, inputs)
    to = y + current * step
    tl.store(dst + to, total.to(dst.dtype.element_ty), mask=done)
    if not LAST:
        tl.store(dst_tags + to, (rest + 1).to(dst_tags.dtype.element_ty), mask=done)
