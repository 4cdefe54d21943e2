"""The strip kernel: block shape per lane, chosen from plan, layout and dtype.

Called by `forward`, which decides when windows go to the strip kernel.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import triton.language as tl

from ndpool._call import INDEX64
from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Division, Sizes
from ndpool._triton.kernels.reducers import Reduce
from ndpool._triton.kernels.strip_forward import Block, Loops, strip_forward_kernel
from ndpool._triton.launch import (
    FAST_MAX,
    MAX,
    SQUARES,
    SUM,
    Launch,
    bounds_of,
    constant,
    lanes_for,
    lanes_of,
    launcher,
    launches_dependents,
    memory_of,
    optional,
    programs_of,
    rows_are_short,
    strides_of,
    window_of,
)
from ndpool._triton.memory import Layout, channel_vector, next_power, widest
from ndpool._triton.planes import rows_of_channels
from ndpool.geometry import AxisPlan


class _Block(NamedTuple):
    """Outputs of a lane along the last axis: `vec` from vectors of columns, or `outs` of `vec` channels."""

    columns: bool
    vec: int
    outs: int
    x_unit: int
    y_unit: int
    loop_h: bool  # whether taps are looped over instead of unrolled
    loop_w: bool
    vector: int = 1  # columns per load
    first: int = 0  # index of the first vector, and of the first tap in it
    shift: int = 0
    vectors: int = 1

    @property
    def width(self) -> int:
        """Outputs along the last axis."""
        return self.vec if self.columns else self.outs

    def across(self, last: AxisPlan) -> int:
        """Loads per row."""
        if self.columns:
            return min(self.vectors, 5) if self.loop_w else self.vectors
        return 2 * self.outs if self.loop_w else (self.outs - 1) * last.stride + last.kernel


class _Task(NamedTuple):
    """Windows, memory, and the constants that all kernels share."""

    axes: tuple[AxisPlan, ...]
    layout_of: Layout
    itemsize: int
    reduce: Reduce

    @property
    def n_outs(self) -> int:
        """Outputs of all planes."""
        return prod(self.layout_of.sizes) * prod(a.out for a in self.axes)

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return prod(a.kernel for a in self.axes)

    @property
    def with_offsets(self) -> bool:
        """Whether offsets or indices are written."""
        return bool(self.reduce.KIND != 0)

    @property
    def fast_max(self) -> bool:
        """Whether the maximum is computed by one instruction."""
        return bool(self.reduce.OP == FAST_MAX)

    @property
    def alone(self) -> bool:
        """Whether neighbouring windows are disjoint."""
        return all(a.kernel <= a.stride for a in self.axes[1:])


def _along_rows(task: _Task) -> _Block | None:
    """Vectors of neighbouring columns, if rows are contiguous in both arrays and long enough."""
    (_, h, last), layout, itemsize, _ = task
    if layout.channels or layout.input_strides[5] != 1 or layout.output_strides[5] != 1:
        return None
    vector = min(8, widest(itemsize, last.size, *layout.input_strides[1:5]))
    if last.stride == 1 and task.taps <= 9:
        # Shorter vectors where there would be too few lanes.
        while vector > 2 and task.n_outs < vector * tuning.SATURATED // 2:
            vector //= 2
    vec = max(1, vector // last.stride)
    while vec * last.stride % vector:
        vec *= 2
    if h.size == 1 and last.out > 64:
        vec *= 2  # a single row is too little work for a thread
    if vector == 1 or (vec > 1 and last.stride > 8):
        return None
    first, shift = divmod(last.origin, vector)
    vectors = -(-(shift + (vec - 1) * last.stride + last.kernel) // vector)
    whole = last.out % vec == 0 and all(s % vec == 0 for s in layout.output_strides[1:5])
    many = (shift + last.kernel) // vector - (shift + vec - 1) // vector > 3
    loop_w = many and (vec == 1 or (last.stride == 1 and last.kernel >= vec))
    loop_h = h.kernel * vectors > 16 if h.kernel <= h.stride else h.kernel > 6
    return _Block(True, vec, 1, vector, vec if whole else 1, loop_h, loop_w, vector, first, shift, vectors)


def _use_fast_max(task: _Task, columns: bool) -> bool:
    """Whether to compute float maxima by one instruction, which mostly pays for overlapping windows."""
    (_, h, last), layout, itemsize, reduce = task
    if reduce.OP != MAX or task.with_offsets or reduce.COMPUTE is not tl.float32 or task.alone:
        return False
    if not (columns or layout.channels) or task.taps < (9 if columns and h.kernel == 1 else 5):
        return False
    return itemsize < 4 or task.taps > 9 or last.stride == 1 or task.n_outs >= 2 * tuning.SATURATED


def _tall(task: _Task, columns: bool) -> bool:
    """Whether lanes compute eight rows of small windows, which pays if there are enough lanes."""
    (d, h, _), layout, itemsize, _ = task
    if not task.fast_max or d.kernel > 1 or h.stride > 1 or h.kernel == 1:
        return False
    vectors = columns or channel_vector(layout, itemsize) > 1
    return vectors and task.n_outs >= 8 * tuning.SATURATED


def _channels(task: _Task) -> int:
    """Channels per lane, fewer than a load can take where there would be too few lanes."""
    (d, h, last), layout, itemsize, _ = task
    vec, small, shared = channel_vector(layout, itemsize), task.taps <= 9, last.stride == 1
    whole_plane = task.with_offsets and itemsize > 2 and rows_of_channels(task.axes, layout)
    least = tuning.SATURATED if small else tuning.SATURATED // 8 if whole_plane else tuning.SATURATED // 4
    if small or (shared and not task.with_offsets):
        vec = min(vec, max(1, 8 // itemsize))  # neighbouring threads find shared columns in the cache
    if task.fast_max and not small and h.kernel > d.kernel == 1 and itemsize < 4 and not _walks(task, False):
        vec = min(vec, 2 if shared or task.taps > 36 else 4)  # all loads are issued at once, into registers
    while vec > 2 and task.n_outs // vec < least:
        vec //= 2
    return vec


def _side_by_side(task: _Task) -> _Block:
    """Channels and neighbouring overlapping windows; single elements where rows are not aligned."""
    (_, h, last), layout, itemsize, reduce = task
    vec, outs = _channels(task), 1
    if last.stride == 1 and last.kernel > 4 and h.kernel == 1 and not task.with_offsets:
        # With windows along one axis only, several windows cost little more than one.
        vec, outs = min(vec, 4), min(8, next_power(last.out))
        return _Block(False, vec, outs, vec, vec, False, last.kernel > 8)
    if last.stride == 1 and last.kernel > 1:
        # Lanes along a row find the columns of their neighbours in the cache.
        one = reduce.OP in (SUM, SQUARES) or (last.kernel < 4 and itemsize > 2)
        limit = 4 if layout.channels else 1 if one else 2
        most = 16 if last.kernel < 4 else 1 if task.with_offsets else 8
        outs = min(limit, max(1, most // vec // (1 + task.with_offsets)), next_power(last.out), last.kernel)
        outs = next_power(outs + 1) // 2
    unrolled = 4 if task.with_offsets else 8
    return _Block(
        False, vec, outs, vec, vec, h.kernel > unrolled, last.kernel > (unrolled if outs > 1 else 8)
    )


def _rows(task: _Task, block: _Block, tall: bool) -> int:
    """Rows of outputs per lane."""
    (d, h, last), layout, itemsize, _ = task
    with_offsets, fast, n_outs = task.with_offsets, task.fast_max, task.n_outs
    if h.kernel <= h.stride:
        rows = 2 if itemsize == 1 and h.kernel < 4 else 1
    elif block.loop_h:
        many = block.columns and (
            block.vec > 4 if fast and n_outs < tuning.SATURATED else block.vec <= 4 or fast
        )
        rows = 1 if h.stride > 1 else min(8, h.kernel) if many else 4
    elif tall and (7 + h.kernel) * block.across(last) <= tuning.UNROLLED:
        rows = 8
    elif h.stride > 1 and d.kernel == 1 and layout.channels and n_outs < tuning.FEW_OUTPUTS:
        rows = 1  # else there would be too few strips
    elif (
        h.stride == d.kernel == 1
        and not block.columns
        and not layout.channels
        and n_outs >= 8 * tuning.SATURATED
    ):
        rows = 8  # of single elements
    else:
        rows = 2 if block.columns and h.stride > 1 and (itemsize > 2 or with_offsets) else 4
    in_registers = 0 if block.columns or not with_offsets else block.outs * block.vec
    while rows > 1 and (rows >= 2 * h.out or rows * in_registers > 32):
        rows //= 2
    return rows


def _walks(task: _Task, columns: bool) -> bool:
    """Whether lanes walk down the rows and keep what later windows need, instead of unrolling windows."""
    d, h, _ = task.axes
    least, most = tuning.WALK_ROWS[columns]
    sums = task.reduce.OP in (SUM, SQUARES)
    return not sums and h.stride == d.kernel == 1 and least <= h.kernel <= most


def _step(task: _Task, block: _Block) -> int:
    """Rows that a walk computes at a time: more where few registers are needed for each."""
    few = block.columns and block.vec <= 4 and not task.with_offsets
    most = tuning.WALK_STEP[not few]
    high = task.axes[1].stride
    return next(n for n in (8, 4, 2, 1) if n == 1 or (n <= most and not _is_slow(task, block, n * high)))


def _is_slow(task: _Task, block: _Block, rows: int) -> bool:
    """Whether a strip that reads so many rows at a time would compile slowly.

    The time grows with the cube of what is unrolled.
    """
    loads = rows * block.across(task.axes[2])
    columns = loads * block.vector * (1 + task.with_offsets)
    return loads > tuning.COMPILED[0] or columns > tuning.COMPILED[1]


def _walks_instead(task: _Task, block: _Block, down: int) -> bool:
    """Whether lanes walk because an unrolled strip of so many rows would compile slowly."""
    d, h, _ = task.axes
    # With stride 1 a walk takes up to 1.5 times as long.
    overlapping = h.kernel > h.stride > d.kernel == 1
    if not overlapping or not _is_slow(task, block, down):
        return False
    kept = (-(-h.kernel // h.stride) - 1) * h.stride
    return kept * block.outs * block.vec * (1 + task.with_offsets) <= tuning.WALK_KEPT


def strip(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, reduce: Reduce
) -> Launch | None:
    """Launcher for the strip kernel, or None if a strip would need too many loads."""
    d, h, last = axes
    task = _Task(axes, layout, itemsize, reduce)
    along = _along_rows(task)
    if _use_fast_max(task, along is not None):
        reduce = reduce._replace(OP=FAST_MAX)
        task = task._replace(reduce=reduce)
    walk, tall = _walks(task, along is not None), _tall(task, along is not None)
    block = along or _side_by_side(task)
    rows = _rows(task, block, tall)
    down = 2 * rows if block.loop_h else (rows - 1) * h.stride + h.kernel
    if walk or _walks_instead(task, block, down):
        walk, block = True, block._replace(loop_h=False)
        rows = _step(task, block)
        down = rows * h.stride
    elif d.kernel > 1:
        while rows > 1 and _is_slow(task, block, down):
            rows //= 2
            down = 2 * rows if block.loop_h else (rows - 1) * h.stride + h.kernel
        if _is_slow(task, block, down):
            block, down = block._replace(loop_h=True), 2
    if down * block.across(last) > tuning.UNROLLED:
        return None
    n_w = -(-last.out // block.width)
    n_c = layout.sizes[0] if block.columns else layout.sizes[0] // block.vec
    n_lanes = n_c * n_w * layout.sizes[1] * layout.sizes[2]
    disjoint = h.kernel <= min(3, h.stride) and last.kernel <= min(3, last.stride) and itemsize > 1
    single = d.size == h.size == 1 and last.stride > 1
    lanes = lanes_for(n_lanes, 2 * tuning.THREADS if disjoint or single else tuning.THREADS)
    height = rows
    if walk:
        # Strips read the rows between them twice.
        least = 2 * h.kernel - 2
        if n_lanes * d.out * h.out < least * tuning.WALK_FEW:
            least = 4  # too few to fill the device
        wanted = max(1, min(-(-tuning.WALK_LANES // (n_lanes * d.out)), h.out // least))
        height = -(-h.out // wanted)
    n_strips = -(-h.out // height)
    by_lanes = not walk and n_strips > 1 and rows_are_short(layout, n_c, n_w)
    if by_lanes:
        n_lanes *= n_strips
        lanes = lanes_for(n_lanes, tuning.THREADS)
    grid = -(-n_lanes // lanes) * d.out * (1 if by_lanes else n_strips)
    several = walk or (n_strips * d.out > 1 and not by_lanes)
    parts = programs_of(*optional(several, n_strips), *optional(d.out > 1, d.out))
    x_strides = [s // block.x_unit for s in layout.input_strides]
    y_strides = [s // block.y_unit for s in layout.output_strides]
    if not block.columns and block.vec > 1:
        x_strides[0] = y_strides[0] = 1
    # Sizes that no tap exceeds are dropped.
    ragged = block.outs > 1 or (block.columns and block.y_unit < block.vec)
    ends = [a.end for a in axes]
    edges = last.origin < 0 or ends[2] > last.size or ragged
    ends[1] += (n_strips * rows - h.out) * h.stride
    beyond = [a.origin < 0 or end > a.size for a, end in zip(axes, ends, strict=True)]
    beyond[1] |= rows > 1  # always checked: whether the last strip is partial must not choose another kernel
    beyond[2] |= ragged
    sizes = (optional(over or reduce.KIND == INDEX64, a.size) for a, over in zip(axes, beyond, strict=True))
    each = (1 + task.taps) * block.vec * block.outs * min(itemsize, 8)
    loops = Loops(
        *optional(block.loop_h, h.kernel),
        *optional(block.loop_w, last.kernel),
        *optional(reduce.OP == SQUARES, task.taps),
        *optional(task.alone, int(launches_dependents(grid, lanes * each))),
        *optional(walk, height),
    )
    made = Block(
        COLUMNS=block.columns,
        FIRST=block.first,
        SHIFT=block.shift,
        VECTORS=block.vectors,
        VECTOR=block.vector,
        X_UNIT=block.x_unit,
        Y_UNIT=block.y_unit,
        VEC=block.vec,
        OUTS=block.outs,
        ROWS=rows,
        LANES=lanes,
        EDGES=edges,
        PADDED=any(a.origin < 0 for a in axes),
        LOOP_H=block.loop_h,
        LOOP_W=block.loop_w,
        WALK=walk,
        # Wide disjoint windows read memory in order and only once.
        EVICT="evict_first" if n_strips * d.out == 1 and 8 <= last.kernel <= last.stride else "",
    )
    arguments = (
        lanes_of(n_lanes, n_c, n_w, layout, *optional(by_lanes, n_strips)),
        parts,
        strides_of(x_strides, layout),
        strides_of(y_strides, layout),
        Sizes(*(n for size in sizes for n in size)),
        Sizes(None, *optional(rows > 1 or walk, h.out), *optional(ragged, last.out)),
        bounds_of(axes, reduce.DIVIDE == 2),
        Division(*optional(reduce.DIVIDE == 1, by, 1 / by)),
        loops,
        window_of(axes),
        constant(made),
        memory_of(layout),
        constant(reduce),
    )
    return launcher(strip_forward_kernel, grid, arguments, lanes // 32, itemsize < 16)
