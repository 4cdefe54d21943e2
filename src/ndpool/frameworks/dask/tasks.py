"""What the tasks of a graph do: take edges from a chunk, pool a chunk, unpool a band of planes.

Tasks run wherever a scheduler puts them, on blocks that may be NumPy or CuPy arrays; each is a small callable
value that pickles. A task pools on one thread, because the scheduler runs as many tasks as there are cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import isnan, prod
from typing import Any, NamedTuple

import numpy as np

from ndpool._arguments import input_name
from ndpool._call import INDEX64, Call, Unpool
from ndpool._native import one_thread_each
from ndpool._plan import AxisPlan, Plan
from ndpool._policy import wrong_index
from ndpool.frameworks.dask.spans import Span

SPLIT_BYTES = 1 << 20  # of a block that is worth pooling in parts instead of putting it together


@dataclass(frozen=True)
class Edges:
    """The edges of a block, by the numbers of their pieces, as copies: a view would keep all of the block."""

    function: str
    sizes: tuple[float, ...]  # of the block
    pieces: tuple[tuple[tuple[slice, bool], ...], ...]  # per axis: place, and whether it is an edge

    def __call__(self, block: Any) -> dict[tuple[int, ...], Any]:
        """Copy them."""
        _check_sizes(self.function, self.sizes, block)
        result = {}
        for numbers in product(*(range(len(pieces)) for pieces in self.pieces)):
            chosen = [pieces[number] for pieces, number in zip(self.pieces, numbers, strict=True)]
            if any(edge for _, edge in chosen):
                result[numbers] = block[tuple(place for place, _ in chosen)].copy()
        return result


def _check_sizes(fn: str, sizes: Sequence[float], block: Any) -> None:
    """Refuse a block of other sizes than the array declares: its elements would be taken for others."""
    if any(n != size and not isnan(size) for n, size in zip(block.shape, sizes, strict=True)):
        raise ValueError(
            f"{fn}: {input_name(fn)} must have blocks of the sizes that it declares; "
            f"got a block of shape {block.shape} for {tuple(sizes)}"
        )


class Part(NamedTuple):
    """Some outputs of a chunk along one axis."""

    outputs: slice  # in the chunk
    plan: AxisPlan | None
    inputs: slice  # in the block that the chunk's pieces would make


@dataclass(frozen=True)
class Pool:
    """One chunk of the result, from the blocks that contain its windows."""

    framework_of: Callable[[str, Any], Any]
    call: Call  # without a plan: the spans have their parts of it
    sizes: tuple[int, ...]  # of the whole plane
    full: bool  # as in the whole plan
    spans: tuple[Span, ...]
    dtype: Any  # of the result

    def __call__(self, *blocks: Any) -> Any:
        """Pool: values, or values and indices."""
        with one_thread_each():
            return self._pool(self._arrays(blocks))

    def _arrays(self, blocks: tuple[Any, ...]) -> dict[tuple[int, ...], Any]:
        """The pieces of the input, by their places along each axis."""
        result = {}
        places = product(*(range(len(span.pieces)) for span in self.spans))
        for place, block in zip(places, blocks, strict=True):
            pieces = [span.pieces[i] for span, i in zip(self.spans, place, strict=True)]
            if any(piece.edge for piece in pieces):
                result[place] = block[tuple(piece.number for piece in pieces)]
            else:
                _check_sizes(self.call.function, [piece.size for piece in pieces], block)
                result[place] = block[tuple(piece.within for piece in pieces)]
        return result

    def _pool(self, arrays: dict[tuple[int, ...], Any]) -> Any:
        bounds = [self._bounds(axis, arrays) for axis in range(len(self.spans))]
        like = next(iter(arrays.values()))
        size = prod(ends[-1] for ends in bounds) * like.dtype.itemsize
        parts = [
            _parts(span, ends, len(arrays) > 1 and size >= SPLIT_BYTES)
            for span, ends in zip(self.spans, bounds, strict=True)
        ]
        if all(len(along) == 1 for along in parts):
            only = [along[0] for along in parts]
            return self._run(only, _joined(arrays, bounds, [part.inputs for part in only]), None)
        shape = [along[-1].outputs.stop for along in parts]
        wants = (self.dtype, np.dtype("int64")) if self.call.extra == INDEX64 else (self.dtype,)
        result = tuple(np.empty_like(like, dtype=dtype, shape=shape) for dtype in wants)
        for chosen in product(*parts):
            block = _joined(arrays, bounds, [part.inputs for part in chosen])
            views = tuple(array[tuple(part.outputs for part in chosen)] for array in result)
            self._run(chosen, block, views)
        return result if len(result) > 1 else result[0]

    def _bounds(self, axis: int, arrays: dict[tuple[int, ...], Any]) -> list[int]:
        """Where the pieces along an axis begin and end; their sizes may not have been known before."""
        ends = [0]
        for i in range(len(self.spans[axis].pieces)):
            ends.append(
                ends[-1] + arrays[tuple(i if a == axis else 0 for a in range(len(self.spans)))].shape[axis]
            )
        return ends

    def _run(self, parts: Sequence[Part], block: Any, views: tuple[Any, ...] | None) -> Any:
        """Pool a block, into the views of the result where they are given."""
        call = self.call
        plans = [parts[axis].plan for axis in call.axes]
        plan = Plan([plan for plan in plans if plan is not None], adaptive=self.full)
        out = None if views is None else views if len(views) > 1 else views[0]
        framework = self.framework_of(call.function, block)
        got = framework.run(call._replace(plan=plan, out=out), block)
        if call.extra != INDEX64:
            return got
        begins = [self.spans[axis].begin + parts[axis].inputs.start for axis in call.axes]
        return got[0], _moved(got[1], plan.sizes, begins, self.sizes)


def _parts(span: Span, bounds: list[int], split: bool) -> list[Part]:
    """The outputs along an axis: all of them, or apart where their windows are in the longest piece alone."""
    axis = span.plan
    if axis is None:
        return [Part(slice(0, bounds[-1]), None, slice(0, bounds[-1]))]
    whole = [Part(slice(0, span.out), axis, slice(0, axis.size))]
    if not split or len(bounds) == 2:
        return whole
    longest = max(range(len(bounds) - 1), key=lambda i: bounds[i + 1] - bounds[i])
    starts, counts = axis.windows()
    if not counts.all():
        return whole  # windows without an element keep the index that they have in the whole plane
    ends = starts + (counts - 1) * axis.step + 1
    if starts.ndim > 1:
        starts, ends = starts.min(0, initial=axis.size), ends.max(0, initial=0)
    first = int(np.searchsorted(starts, bounds[longest]))
    last = max(first, int(np.searchsorted(ends, bounds[longest + 1], "right")))
    result = []
    for o0, o1 in ((0, first), (first, last), (last, span.out)):
        if o0 < o1:
            plan, inputs = axis.cut(o0, o1)
            result.append(Part(slice(o0, o1), plan, inputs))
    return result if last > first else whole


def _joined(arrays: dict[tuple[int, ...], Any], bounds: list[list[int]], wanted: list[slice]) -> Any:
    """The wanted part of the block that the pieces make; a view where one of them contains it."""
    shape = [part.stop - part.start for part in wanted]
    along = [list(_overlaps(ends, part)) for ends, part in zip(bounds, wanted, strict=True)]
    result = None
    for chosen in product(*along):
        found = arrays[tuple(i for i, _, _ in chosen)][tuple(source for _, source, _ in chosen)]
        if all(len(pieces) == 1 for pieces in along):
            return found
        if result is None:
            result = np.empty_like(found, shape=shape)
        result[tuple(target for _, _, target in chosen)] = found
    return result


def _overlaps(bounds: list[int], wanted: slice) -> Iterator[tuple[int, slice, slice]]:
    """The pieces that a range consists of: number, place in the piece, place in the range."""
    if len(bounds) == 2:
        yield 0, wanted, slice(0, wanted.stop - wanted.start)
        return
    for i, (begin, end) in enumerate(pairwise(bounds)):
        low, high = max(begin, wanted.start), min(end, wanted.stop)
        if low < high:
            yield i, slice(low - begin, high - begin), slice(low - wanted.start, high - wanted.start)


def _moved(indices: Any, sizes: Sequence[int], begins: Sequence[int], whole: Sequence[int]) -> Any:
    """Indices in a part of a plane as indices in all of it, in place."""
    # With q the index of a row among all rows of its axis, moving on by one row adds what was cut off each.
    pitch, local, shift = 1, 1, 0
    terms = []
    for size, begin, n in zip(reversed(sizes), reversed(begins), reversed(whole), strict=True):
        shift += begin * pitch
        terms.append((local * size, pitch * (n - size)))
        pitch, local = pitch * n, local * size
    # The outermost axis has no rows that follow.
    moves = [(indices // length) * extra for length, extra in terms[:-1] if extra]
    for move in moves:
        indices += move
    indices += shift
    return indices


@dataclass(frozen=True)
class UnpoolBand:
    """Planes of an unpooling, whole or from one row to another along their first axis."""

    framework_of: Callable[[str, Any], Any]
    call: Unpool
    rows: tuple[int, int]

    def __call__(self, values: Any, indices: Any) -> Any:
        """Unpool."""
        fn, sizes = self.call.function, self.call.sizes
        first, last = self.rows
        framework = self.framework_of(fn, values)
        with one_thread_each():
            if last - first == sizes[0]:
                return framework.unpool(self.call, values, indices)
            pitch = prod(sizes[1:])
            bad = (indices < 0) | (indices >= sizes[0] * pitch)
            if bad.any():
                raise wrong_index(fn, int(indices[bad][0]), sizes)
            # What belongs to other bands goes to a row of its own, which is left out.
            low, high = first * pitch, last * pitch
            local = indices.astype(np.int64) - low
            local[(local < 0) | (local >= high - low)] = high - low
            call = self.call._replace(sizes=(last - first + 1, *sizes[1:]))
            got = framework.unpool(call, values, local)
            axis = self.call.axes[0]
            return got[tuple(slice(0, last - first) if a == axis else slice(None) for a in range(got.ndim))]
