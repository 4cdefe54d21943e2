"""Strips: what a lane of the kernel for windows without holes has, and how often it does what.

The shape of a lane's block follows from plan, walk and dtype. Called by `forward`, which says what strips are
for.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import triton.language as tl

from ndpool._call import INDEX64
from ndpool._triton.kernels.strip_forward import strip_forward_kernel
from ndpool._triton.launch import (
    LARGEST,
    MAX,
    SQUARES,
    SUM,
    THREADS,
    Launch,
    calls_next,
    lanes_for,
    launcher,
    needed,
    walk_numbers,
    walk_strides,
)
from ndpool._triton.memory import Walk, channel_vector, next_power, widest
from ndpool._triton.planes import rows_of_channels
from ndpool.geometry import AxisPlan

FILLED = 2**20  # lanes that keep a large device busy
UNROLLED = 160  # loads that a strip may be made of: more take too long to compile


class _Block(NamedTuple):
    """Along the last axis: VEC outputs from vectors of columns, or OUTS outputs for each of VEC channels."""

    columns: bool
    vec: int
    outs: int
    x_unit: int
    y_unit: int
    loop_h: bool  # whether taps are looped over
    loop_w: bool
    vector: int = 1  # columns that are read at once
    first: int = 0  # the first vector, and where in it the first window begins
    shift: int = 0
    vectors: int = 1

    @property
    def width(self) -> int:
        """Outputs along the last axis."""
        return self.vec if self.columns else self.outs

    def across(self, last: AxisPlan) -> int:
        """Loads of a row."""
        if self.columns:
            return min(self.vectors, 5) if self.loop_w else self.vectors
        return 2 * self.outs if self.loop_w else (self.outs - 1) * last.stride + last.kernel

    def constants(self) -> dict[str, Any]:
        """As the kernel takes it."""
        return {
            "COLUMNS": self.columns,
            "FIRST_VECTOR": self.first,
            "SHIFT": self.shift,
            "VECTORS": self.vectors,
            "VECTOR": self.vector,
            "X_UNIT": self.x_unit,
            "Y_UNIT": self.y_unit,
            "VEC": self.vec,
            "OUTS": self.outs,
            "LOOP_H": self.loop_h,
            "LOOP_W": self.loop_w,
        }


class _Task(NamedTuple):
    """What is pooled: windows, memory, and the constants that all kernels share."""

    axes: tuple[AxisPlan, ...]
    walk: Walk
    itemsize: int
    common: dict[str, Any]

    @property
    def n_outs(self) -> int:
        """Outputs of all planes."""
        return prod(self.walk.sizes) * prod(a.out for a in self.axes)

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(a.kernel for a in self.axes)

    @property
    def coded(self) -> bool:
        """Whether it is told where values were found."""
        return bool(self.common["KIND"] != 0)

    @property
    def largest(self) -> bool:
        """Whether values are maxima by one instruction."""
        return bool(self.common["OP"] == LARGEST)

    @property
    def alone(self) -> bool:
        """Whether windows side by side share nothing."""
        return all(a.kernel <= a.stride for a in self.axes[1:])


def _along_rows(task: _Task) -> _Block | None:
    """Vectors of neighbouring columns, where rows are contiguous in both arrays and long enough."""
    (_, h, last), w, itemsize, _ = task
    if w.channels or w.wide[5] != 1 or w.narrow[5] != 1:
        return None
    vector = min(8, widest(itemsize, last.size, *w.wide[1:5]))
    if last.stride == 1 and task.taps <= 9:
        # Shorter vectors where there would be too few lanes.
        while vector > 2 and task.n_outs < vector * FILLED // 2:
            vector //= 2
    vec = max(1, vector // last.stride)
    while vec * last.stride % vector:
        vec *= 2
    if h.size == 1 and last.out > 64:
        vec *= 2  # a single row gives a thread too little to do
    if vector == 1 or (vec > 1 and last.stride > 8):
        return None
    first, shift = divmod(last.origin, vector)
    vectors = -(-(shift + (vec - 1) * last.stride + last.kernel) // vector)
    whole = last.out % vec == 0 and all(s % vec == 0 for s in w.narrow[1:5])
    many = (shift + last.kernel) // vector - (shift + vec - 1) // vector > 3
    loop_w = many and (vec == 1 or (last.stride == 1 and last.kernel >= vec))
    loop_h = h.kernel * vectors > 16 if h.kernel <= h.stride else h.kernel > 6
    return _Block(True, vec, 1, vector, vec if whole else 1, loop_h, loop_w, vector, first, shift, vectors)


def _largest(task: _Task, columns: bool) -> bool:
    """Whether maxima of float vectors are made by one instruction: where windows overlap it mostly pays."""
    (_, h, last), w, itemsize, common = task
    if common["OP"] != MAX or task.coded or common["COMPUTE"] is not tl.float32 or task.alone:
        return False
    if not (columns or w.channels) or task.taps < (9 if columns and h.kernel == 1 else 5):
        return False
    return itemsize < 4 or task.taps > 9 or last.stride == 1 or task.n_outs >= 2 * FILLED


def _tall(task: _Task, columns: bool) -> bool:
    """Whether lanes have eight rows of largest values: where there are enough lanes and few rows more."""
    (d, h, _), w, itemsize, _ = task
    if not task.largest or d.kernel > 1 or h.stride > 1 or h.kernel == 1:
        return False
    if not columns and channel_vector(w, itemsize) == 1:
        return False
    if columns or task.taps <= 9:
        return task.n_outs >= 8 * FILLED
    unused = -h.out % 8
    return task.n_outs >= FILLED and (8 * unused <= h.out or (itemsize > 2 and h.kernel < 6))


def _channels(task: _Task, tall: bool) -> int:
    """Channels per lane: fewer than a load could take where there would be too few lanes for the device."""
    (d, h, last), w, itemsize, _ = task
    vec, small, shared = channel_vector(w, itemsize), task.taps <= 9, last.stride == 1
    wide = task.coded and itemsize > 2 and rows_of_channels(task.axes, w)
    least = FILLED if small else FILLED // 8 if wide else FILLED // 4
    if small or (shared and not task.coded):
        vec = min(vec, max(1, 8 // itemsize))  # neighbours share columns: many threads find them in the cache
    if task.largest and not small and h.kernel > d.kernel == 1:
        # All loads go on at once, into registers.
        if itemsize < 4:
            vec = min(vec, 2 if shared or task.taps > 36 else 4)
        elif tall and task.taps > 36:
            vec = 1
    while vec > 2 and task.n_outs // vec < least:
        vec //= 2
    return vec


def _side_by_side(task: _Task, tall: bool) -> _Block:
    """Channels, and neighbouring windows that share what they have; elements where rows begin anywhere."""
    (_, h, last), w, itemsize, common = task
    vec, outs = _channels(task, tall), 1
    if last.stride == 1 and last.kernel > 4 and h.kernel == 1 and not task.coded:
        # Windows along one axis alone: many of them cost little more than one.
        vec, outs = min(vec, 4), min(8, next_power(last.out))
        return _Block(False, vec, outs, vec, vec, False, last.kernel > 8)
    if last.stride == 1 and last.kernel > 1:
        # Where lanes lie along rows, they find their neighbours' columns in the cache.
        one = common["OP"] in (SUM, SQUARES) or (last.kernel < 4 and itemsize > 2)
        limit = 4 if w.channels else 1 if one else 2
        most = 16 if last.kernel < 4 else 8
        outs = min(limit, max(1, most // vec // (1 + task.coded)), next_power(last.out), last.kernel)
        outs = next_power(outs + 1) // 2
    unrolled = 4 if task.coded else 8
    return _Block(
        False, vec, outs, vec, vec, h.kernel > unrolled, last.kernel > (unrolled if outs > 1 else 8)
    )


def _rows(task: _Task, block: _Block, tall: bool) -> int:
    """Rows of outputs that a lane has, one below the other."""
    (d, h, last), w, itemsize, _ = task
    coded, fast, n_outs = task.coded, task.largest, task.n_outs
    if h.kernel <= h.stride:
        rows = 2 if itemsize == 1 and h.kernel < 4 else 1
    elif block.loop_h:
        many = block.columns and (block.vec > 4 if fast and n_outs < FILLED else block.vec <= 4 or fast)
        rows = 1 if h.stride > 1 else min(8, h.kernel) if many else 4
    elif tall and (7 + h.kernel) * block.across(last) <= UNROLLED:
        rows = 8
    elif h.stride > 1 and d.kernel == 1 and n_outs < 2 * FILLED:
        rows = 1  # there would be too few strips
    elif h.stride == d.kernel == 1 and not block.columns and not w.channels and n_outs >= 8 * FILLED:
        rows = 8  # of single elements
    else:
        rows = 2 if block.columns and h.stride > 1 and (itemsize > 2 or coded) else 4
    held = 0 if block.columns or not coded else block.outs * block.vec
    while rows > 1 and (rows >= 2 * h.out or rows * held > 32):
        rows //= 2
    return rows


def strip(
    axes: tuple[AxisPlan, ...], w: Walk, itemsize: int, by: int, common: dict[str, Any]
) -> Launch | None:
    """What pools by strips, or None where one would be made of too many loads."""
    d, h, last = axes
    task = _Task(axes, w, itemsize, common)
    along = _along_rows(task)
    if _largest(task, along is not None):
        common = common | {"OP": LARGEST}
        task = task._replace(common=common)
    tall = _tall(task, along is not None)
    block = along or _side_by_side(task, tall)
    rows = _rows(task, block, tall)
    down = 2 * rows if block.loop_h else (rows - 1) * h.stride + h.kernel
    if d.kernel * down * block.across(last) > UNROLLED:
        return None
    n_w = -(-last.out // block.width)
    n_c = w.sizes[0] if block.columns else w.sizes[0] // block.vec
    n_lanes = n_c * n_w * w.sizes[1] * w.sizes[2]
    apart = h.kernel <= min(3, h.stride) and last.kernel <= min(3, last.stride) and itemsize > 1
    single = d.size == h.size == 1 and last.stride > 1
    lanes = lanes_for(n_lanes, 2 * THREADS if apart or single else THREADS)
    n_strips = -(-h.out // rows)
    grid = -(-n_lanes // lanes) * d.out * n_strips
    parts = [*needed(n_strips * d.out > 1, n_strips), *needed(d.out > 1, d.out)]
    wide = [s // block.x_unit for s in w.wide]
    narrow = [s // block.y_unit for s in w.narrow]
    if not block.columns and block.vec > 1:
        wide[0] = narrow[0] = 1
    # Sizes that nothing exceeds are left out.
    ragged = block.outs > 1 or (block.columns and block.y_unit < block.vec)
    ends = [a.end for a in axes]
    edges = last.origin < 0 or ends[2] > last.size or ragged
    ends[1] += (n_strips * rows - h.out) * h.stride
    beyond = [a.origin < 0 or end > a.size for a, end in zip(axes, ends, strict=True)]
    beyond[1] |= rows > 1  # whether some of them are beyond the last is no matter for another kernel
    beyond[2] |= ragged
    numbers: list[Any] = walk_numbers(n_lanes, n_c, n_w, w, *parts, lanes=lanes)
    numbers += walk_strides(wide, w) + walk_strides(narrow, w)
    for a, exceeded in zip(axes, beyond, strict=True):
        numbers += needed(exceeded or common["KIND"] == INDEX64, a.size)
    numbers += [parts[1], *needed(rows > 1, h.out), *needed(ragged, last.out)]
    numbers += needed(common["DIVIDE"] == 2, *(b for a in axes for b in a.bounds))
    numbers += [*needed(common["DIVIDE"] == 1, by, 1 / by), parts[0], *needed(block.loop_h, h.kernel)]
    numbers += [*needed(block.loop_w, last.kernel), *needed(common["OP"] in (SQUARES, LARGEST), task.taps)]
    each = (1 + task.taps) * block.vec * block.outs * min(itemsize, 8)
    numbers += needed(task.alone, int(calls_next(grid, lanes * each)))
    constants = common | block.constants()
    for name, a in zip("DHW", axes, strict=True):
        constants |= {f"K{name}": a.kernel, f"S{name}": a.stride, f"ORIGIN_{name}": a.origin}
    constants |= {
        "ROWS": rows,
        "LANES": lanes,
        "EDGES": edges,
        # What a wide window reads in the order of memory nobody reads again.
        "EVICT": "evict_first" if parts[0] is None and 8 <= last.kernel <= last.stride else "",
        "PADDED": any(a.origin < 0 for a in axes),
        "num_warps": lanes // 32,
    }
    return launcher(strip_forward_kernel, grid, numbers, constants, [], itemsize < 16)
