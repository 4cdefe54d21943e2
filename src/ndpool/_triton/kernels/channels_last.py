"""Windows without padding or dilation in channels-last arrays.

A program reduces a block of channels over one window, many positions at a time. Where there are too few
windows, these are cut, and a second launch of the same kernel merges the pieces; the first one stores values
and, for max, offsets. All sizes are run-time arguments.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ndpool._triton.kernels.indexing import (
    INDEX64,
    divide,
    program_number,
    split,
    table_row,
    wait_for_previous,
)
from ndpool._triton.kernels.reducers import (
    NO_OFFSET,
    SUM,
    best_along,
    best_of,
    better,
    divided,
    load_or_identity,
    merge,
    widen,
)


class Block(NamedTuple):
    """WIDTH channels of one window: COLUMNS columns of ROWS rows, or of ROWS parts of a row if ALONG."""

    UNIT: Any
    WIDTH: Any
    COLUMNS: Any
    ROWS: Any
    ALONG: Any
    PARTS: Any  # 1 writes pieces of windows, 2 merges them


class Channels(NamedTuple):
    """Blocks of channels, channels, images along one leading axis; and where offsets of pieces begin."""

    blocks: Any
    n: Any
    lead: Any
    half: Any
    by_blocks: Any  # magic numbers
    by_lead: Any
    by_w: Any  # of the last axis of outputs


@triton.jit
def _window(o, table, size):
    """First input and number of taps of a window; without a table it is the whole axis."""
    if table is None:
        return o * 0, o * 0 + size
    else:
        return tl.load(table_row(table, o)), tl.load(table_row(table, o) + 1)


@triton.jit
def _part(best, offset, d, h, start, x, base, half, c, inside, taps, strides, kernel, BLOCK, REDUCE):
    """`best` and `offset` after ROWS times COLUMNS positions from row h and column `start` of the window on.

    A function of its own: Triton translates the body of a loop twice, that of three nested loops eight times.
    """
    DOWN: tl.constexpr = 1 if BLOCK.ALONG else BLOCK.ROWS
    ACROSS: tl.constexpr = BLOCK.COLUMNS if BLOCK.ALONG else 0
    BITS: tl.constexpr = tl.int64 if REDUCE.COMPUTE == tl.float64 else tl.int32
    taps_h, taps_w = taps
    column = tl.arange(0, BLOCK.COLUMNS)[:, None]
    found = ()
    for r in tl.static_range(BLOCK.ROWS):
        row = h + r % DOWN
        w = start + r * ACROSS + column
        at = base + (d * strides.d + row * strides.h + w * strides.w) * BLOCK.UNIT + c[None, :]
        there = inside & (w < taps_w)
        if DOWN > 1:
            there = there & (row + column * 0 < taps_h)
        found = found + (load_or_identity(x + at, there, REDUCE),)
    for r in tl.static_range(BLOCK.ROWS):
        v = widen(found[r], REDUCE.COMPUTE)
        if REDUCE.KIND != 0:
            number = (d * kernel.h + h + r % DOWN) * kernel.w + start + r * ACROSS + column
            number = number + tl.zeros([BLOCK.COLUMNS, BLOCK.WIDTH], tl.int32)
            if BLOCK.PARTS == 2:
                at = base + (start + column) * strides.w * BLOCK.UNIT + c[None, :]
                there = inside & (start + column < taps_w)
                number = tl.load(x + half + at, mask=there, other=0).to(BITS, bitcast=True)
            best, offset = merge(best, offset, v, number.to(tl.int32), REDUCE)
        else:
            best = better(best, v, REDUCE.OP)
    return best, offset


@triton.jit
def channels_last_forward_kernel(
    x,
    y,
    extra,
    table_d,
    table_h,
    table_w,
    channels,
    programs,
    x_strides,
    y_strides,
    sizes,
    outs,
    kernel,
    division,
    BLOCK,
    MEMORY,
    REDUCE,
):
    """WIDTH channels of one window. Each lane visits its elements in order: the first of several maxima."""
    DOWN: tl.constexpr = 1 if BLOCK.ALONG else BLOCK.ROWS
    STEP: tl.constexpr = BLOCK.ROWS * BLOCK.COLUMNS if BLOCK.ALONG else BLOCK.COLUMNS
    BITS: tl.constexpr = tl.int64 if REDUCE.COMPUTE == tl.float64 else tl.int32
    pid = program_number(MEMORY)
    block, ow, rest = split(pid, channels.blocks, outs.w, channels.by_blocks, channels.by_w, MEMORY.INT64)
    oh, od, lead = split(rest, programs.strips, programs.d, programs.by_strips, programs.by_d, MEMORY.INT64)
    l1 = lead
    l2 = lead * 0
    if MEMORY.LEADS > 1:
        l2 = divide(lead, channels.lead, channels.by_lead, MEMORY.INT64)
        l1 = lead - l2 * channels.lead
    first_d, taps_d = _window(od, table_d, sizes.d)
    first_h, taps_h = _window(oh, table_h, sizes.h)
    first_w, taps_w = _window(ow, table_w, sizes.w)
    c = block * BLOCK.WIDTH + tl.arange(0, BLOCK.WIDTH)
    inside = (c // BLOCK.UNIT * BLOCK.UNIT < channels.n)[None, :]
    base = l1 * x_strides.lead + first_d * x_strides.d + first_h * x_strides.h + first_w * x_strides.w
    to = l1 * y_strides.lead + od * y_strides.d + oh * y_strides.h + ow * y_strides.w + c * y_strides.c
    if MEMORY.LEADS > 1:
        base += l2 * x_strides.outer
        to += l2 * y_strides.outer
    wait_for_previous()
    best = tl.full([BLOCK.COLUMNS, BLOCK.WIDTH], REDUCE.IDENTITY, REDUCE.COMPUTE)
    offset = tl.full([BLOCK.COLUMNS, BLOCK.WIDTH], NO_OFFSET, tl.int32)
    given = (x, base * BLOCK.UNIT, channels.half, c, inside, (taps_h, taps_w), x_strides, kernel)
    for d in range(taps_d):
        for h in range(0, taps_h, DOWN):
            for start in range(0, taps_w, STEP):
                best, offset = _part(best, offset, d, h, start, *given, BLOCK, REDUCE)
    live = c < channels.n
    if REDUCE.OP == SUM:
        by = division.by
        if REDUCE.DIVIDE == 2:
            by = taps_d * taps_h * taps_w + c * 0
        value = divided(tl.sum(best, 0), by, division.inverse, REDUCE)
    elif REDUCE.KIND == 0:
        value = best_of(best, 0, REDUCE.OP)
    else:
        value, offset = best_along(best, offset, 0, REDUCE.OP)
        # If no element beats the identity, the first is taken.
        offset = tl.where(offset == NO_OFFSET, 0, offset)
        if BLOCK.PARTS == 1:
            piece = (offset + first_w).to(BITS).to(REDUCE.COMPUTE, bitcast=True)
            tl.store(y + channels.half + to, piece, mask=live)
        elif REDUCE.KIND == INDEX64:
            offset = offset.to(tl.int64)
            d = first_d + offset // kernel.w // kernel.h
            h = first_h + offset // kernel.w % kernel.h
            index = (d * sizes.h + h) * sizes.w + first_w + offset % kernel.w
            tl.store(extra + to, index, mask=live)
        else:
            tl.store(extra + to, offset.to(extra.dtype.element_ty), mask=live)
    tl.store(y + to, value.to(y.dtype.element_ty), mask=live)
