"""The tile engine: pools a source into a target, tile by tile, within a given amount of memory.

A tile is a box of outputs. Its input box and its windows come from `AxisPlan.cut`, so results do not depend
on the tiling. Formats are in `_sources` and `_targets`; `files` and `_ome` call `stream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._call import Call
from ndpool._dispatch import framework_of
from ndpool._plan import AxisPlan, Plan
from ndpool.files._target import Target
from ndpool.frameworks.stored import Box, Source

Progress = Callable[[int, int], None]  # bytes of the input done, and all of them

# Input bytes of a tile, where memory allows: reads of plain files stay in the cache until they are pooled,
# and compressed chunks are decoded once.
RAW_TILE, CHUNKED_TILE = 2 << 20, 128 << 20
SHORT_RUN = 64 << 10  # bytes; shorter reads cost more than larger tiles


def result_dtype(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that a call gives for an input dtype, or its error."""
    one = call._replace(plan=Plan([_whole(1)] * len(call.axes)))
    x = np.zeros((1,) * (max(call.axes) + 1), dtype)
    found: np.dtype[Any] = framework_of(call.function, x).run(one, x).dtype
    return found


def stream(
    fn: str,
    source: Source,
    target: Target,
    call: Call | None,
    memory: int,
    progress: Progress | None = None,
) -> None:
    """Pool `source` into `target`, or copy it where there is no call; tiles that `target` has are skipped."""
    axes = [_whole(n) for n in source.shape]
    for a, axis in zip(call.axes, call.plan.axes, strict=True) if call else ():
        axes[a] = axis
    tiling = Tiling(fn, source, target, axes, call, memory)
    total, done = max(1, prod(target.shape)), 0
    buffer = np.empty(tiling.block_bytes if source.raw else 0, np.uint8)
    for outputs, following in _pairs(tiling.boxes()):
        if not target.has(outputs):
            cuts = [_cut(axis, o) for axis, o in zip(axes, outputs, strict=True)]
            block = source.read(tuple(inputs for _, inputs in cuts), buffer)
            if following is not None and source.raw:
                source.prefetch(tuple(_cut(axis, o)[1] for axis, o in zip(axes, following, strict=True)))
            y = block if call is None else _pooled(call, [cuts[a][0] for a in call.axes], block)
            target.write(outputs, y)
            del block, y  # the next tile's block may take their memory
        done += prod(o.stop - o.start for o in outputs)
        if progress is not None:
            progress(source.nbytes * done // total, source.nbytes)


def _pairs(boxes: Iterator[Box]) -> Iterator[tuple[Box, Box | None]]:
    """Each box with the one after it."""
    last = next(boxes, None)
    while last is not None:
        following = next(boxes, None)
        yield last, following
        last = following


def _pooled(call: Call, axes: Sequence[AxisPlan], block: NDArray[Any]) -> NDArray[Any]:
    tile = call._replace(plan=Plan(axes, call.plan.full))
    y: NDArray[Any] = framework_of(call.function, block).run(tile, block)
    return y


def _cut(axis: AxisPlan, o: slice) -> tuple[AxisPlan, slice]:
    part, inputs = axis.cut(o.start, o.stop)
    if inputs.start == inputs.stop:
        # No window contains an element. Kernels take no empty axis, but one that all windows miss.
        part = replace(axis, size=1, out=o.stop - o.start, origin=axis.origin + o.start * axis.stride)
        inputs = slice(0, 1)
    return part, inputs


def _whole(size: int) -> AxisPlan:
    """The plan of an axis that is not pooled."""
    return AxisPlan(size, size, 1, 1, 1, 0, (0, size))


class Tiling:
    """Boxes of outputs whose blocks fit into memory, aligned to the chunks of target and source."""

    def __init__(
        self,
        fn: str,
        source: Source,
        target: Target,
        axes: Sequence[AxisPlan],
        call: Call | None,
        memory: int,
    ) -> None:
        self.fn, self.source, self.target, self.axes = fn, source, target, axes
        self.order = range(len(axes)) if target.fortran else range(len(axes))[::-1]  # fastest axis first
        item, out_item = source.dtype.itemsize, target.dtype.itemsize
        # A copy in native byte order, magnitudes in float64, and a copy in another dtype.
        copies = (not source.dtype.isnative) * item + (16 if call and call.reduction.norm else 0)
        self.per_input = item + copies
        self.per_output = out_item * (2 if call and call.dtype is not None else 1) + target.per_element
        if prod(target.shape) == 0:
            self.shape, self.block_bytes = (1,) * len(axes), 0
            return
        self.shape = self._tile(memory, memory - source.resident - source.scratch - target.resident)
        self.block_bytes = prod(self._inputs(self.shape)) * item

    def boxes(self) -> Iterator[Box]:
        """The tiles, in the order of the target's elements."""
        if 0 in self.target.shape:
            return
        slow = self.order[::-1]
        ranges = [range(0, self.target.shape[a], self.shape[a]) for a in slow]
        for at in product(*ranges):
            box: list[Any] = [None] * len(slow)
            for a, o in zip(slow, at, strict=True):
                box[a] = slice(o, min(o + self.shape[a], self.target.shape[a]))
            yield tuple(box)

    def _tile(self, memory: int, limit: int) -> tuple[int, ...]:
        outs, grain = self.target.shape, self.target.grain
        least = tuple(min(g, n) for g, n in zip(grain, outs, strict=True))
        if self._bytes(least) > limit:
            raise MemoryError(
                f"{self.fn}: memory must hold the windows of {' x '.join(map(str, least))} outputs; "
                f"they need {self._bytes(least) + memory - limit} bytes (limit {memory})"
            )
        aligned = self._aligned(least)
        start = aligned if self._bytes(aligned) <= limit else least
        chunked = self.source.chunks is not None or any(g > 1 for g in grain)
        tile = self._grown(start, min(limit, CHUNKED_TILE if chunked else RAW_TILE))
        if self.source.raw and self._shortest_run(tile) < SHORT_RUN:
            tile = self._grown(start, limit)
        return tile

    def _aligned(self, least: tuple[int, ...]) -> tuple[int, ...]:
        """Multiples of the target's grain that cover whole chunks of the source."""
        chunks = self.source.chunks or (1,) * len(least)
        tile = []
        for axis, n, chunk, g in zip(self.axes, least, chunks, self.target.grain, strict=True):
            outputs = max(1, axis.out * chunk // max(1, axis.size))
            tile.append(min(axis.out, max(n, -(-outputs // g) * g)))
        return tuple(tile)

    def _grown(self, start: tuple[int, ...], limit: int) -> tuple[int, ...]:
        """The tile made larger, along the fastest axes first: target and source stay contiguous."""
        tile = list(start)
        for a in self.order:
            out, step = self.axes[a].out, tile[a]

            def size(n: int, a: int = a, step: int = step, out: int = out) -> int:
                return self._bytes([min(n * step, out) if b == a else t for b, t in enumerate(tile)])

            most = -(-out // step)
            n = bisect_right(range(2, most + 1), limit, key=size) + 1
            tile[a] = min(n * step, out)
            if tile[a] < out:
                break
        return tuple(tile)

    def _inputs(self, tile: Sequence[int]) -> list[int]:
        return [_extent(axis, n) for axis, n in zip(self.axes, tile, strict=True)]

    def _bytes(self, tile: Sequence[int]) -> int:
        return prod(self._inputs(tile)) * self.per_input + prod(tile) * self.per_output

    def _shortest_run(self, tile: Sequence[int]) -> int:
        """Bytes of the input that are read at once."""
        inputs, run = self._inputs(tile), self.source.dtype.itemsize
        for a in range(len(tile)) if self.source.fortran else range(len(tile))[::-1]:
            run *= inputs[a]
            if inputs[a] < self.axes[a].size:
                break
        return run


def _extent(axis: AxisPlan, n: int) -> int:
    """The largest number of inputs that `n` outputs in a row need."""
    if axis.starts is not None and axis.counts is not None:
        ends = (axis.starts + axis.counts)[n - 1 :]
        return int((ends - axis.starts[: axis.out - n + 1]).max())
    return min(axis.size, (n - 1) * axis.stride + (axis.kernel - 1) * axis.step + 1)
