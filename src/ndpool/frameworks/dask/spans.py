"""Which output chunks a pool has, and which pieces of which input chunks each of them reads.

Everything here is per axis: chunks, and the pieces that they consist of, are products over the axes. Windows
come from the plan, whose `split` assigns outputs to input chunks and whose `cut` tells what they read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ndpool._plan import AxisPlan


class Piece(NamedTuple):
    """What an output chunk reads of one input chunk, along one axis."""

    chunk: int
    within: slice
    size: float  # of the chunk; NaN if it is not known
    number: int = 0  # among all pieces of this input chunk
    edge: bool = False  # a small part, which is copied so that the rest of the chunk need not be kept


class Span(NamedTuple):
    """An output chunk along one axis."""

    out: int
    pieces: tuple[Piece, ...]
    plan: AxisPlan | None = None  # relative to the pieces; None on an axis that is not pooled
    begin: int = 0  # of the first piece in the input
    first: int = 0  # output


def cumulated(chunks: Sequence[int]) -> list[int]:
    """Where each chunk begins, and where the last one ends."""
    return [0, *accumulate(chunks)]


def pooled_spans(axis: AxisPlan, chunks: Sequence[int], edges: bool) -> list[Span]:
    """The output chunks along a pooled axis; with `edges`, small pieces are marked as such."""
    bounds = cumulated(chunks)
    spans = []
    for first, end in pairwise(_ranges(axis, bounds)):
        if axis.starts is None and axis.step > axis.size:
            # Windows may step over the whole input. Their index is outside of it and has no place in a part.
            part, needed = axis, slice(0, axis.size)
        else:
            part, needed = axis.cut(first, end)
        pieces = tuple(_pieces(bounds, needed.start, needed.stop))
        spans.append(Span(end - first, pieces, part, needed.start, first))
    return _numbered(spans, chunks, edges)


def kept_spans(chunks: Sequence[Any]) -> list[Span]:
    """The chunks along an axis that is not pooled, whose sizes may be unknown."""
    return [Span(n, (Piece(j, slice(None), n),)) for j, n in enumerate(chunks)]


def requests(spans: Sequence[Span], n_chunks: int) -> list[tuple[tuple[slice, bool], ...]]:
    """For each input chunk its pieces in the order of their numbers: place, and whether it is an edge."""
    found: list[dict[int, tuple[slice, bool]]] = [{} for _ in range(n_chunks)]
    for span in spans:
        for piece in span.pieces:
            found[piece.chunk][piece.number] = piece.within, piece.edge
    return [tuple(pieces[number] for number in sorted(pieces)) for pieces in found]


def _ranges(axis: AxisPlan, bounds: list[int]) -> list[int]:
    """Bounds of the output chunks: about one per input chunk, and none that reads far more than it covers."""
    if axis.starts is None and axis.step > axis.size:
        return [0, axis.out]
    # As many outputs as windows overlap: with fewer, chunks would read the same inputs many times.
    if axis.starts is None:
        least = -(-((axis.kernel - 1) * axis.step + 1) // axis.stride)
    else:
        least = -(-axis.kernel * axis.out // axis.size)
    merged = [0]
    for end in axis.split(bounds)[1:]:
        if end - merged[-1] >= least:
            merged.append(end)
    if merged[-1] != axis.out:
        merged[max(1, len(merged) - 1) :] = [axis.out]
    # Adaptive windows may be more than inputs; their chunks stay about as large as the input's.
    longest = max(end - begin for begin, end in pairwise(bounds))
    result = [0]
    for begin, end in pairwise(merged):
        n = max(1, (end - begin) // max(longest, least))
        result += [begin + (end - begin) * k // n for k in range(1, n + 1)]
    return result


def _pieces(bounds: list[int], begin: int, end: int) -> Iterator[Piece]:
    """The input from `begin` to `end`, chunk by chunk."""
    j = bisect_right(bounds, begin) - 1
    while begin < end:
        stop = min(end, bounds[j + 1])
        if stop > begin:
            yield Piece(j, slice(begin - bounds[j], stop - bounds[j]), bounds[j + 1] - bounds[j])
        begin, j = stop, j + 1


def _numbered(spans: list[Span], chunks: Sequence[int], edges: bool) -> list[Span]:
    """The spans with numbers for all pieces of a chunk, and its edges."""
    wanted: dict[int, list[slice]] = {}
    for span in spans:
        for piece in span.pieces:
            same = wanted.setdefault(piece.chunk, [])
            if piece.within not in same:
                same.append(piece.within)
    small: dict[int, list[bool]] = {}
    for j, places in wanted.items():
        sizes = [place.stop - place.start for place in places]
        small[j] = [edges and 2 * size <= chunks[j] for size in sizes]
        if 4 * sum(size for size, edge in zip(sizes, small[j], strict=True) if edge) > chunks[j]:
            small[j] = [False] * len(sizes)
    result = []
    for span in spans:
        pieces = []
        for piece in span.pieces:
            number = wanted[piece.chunk].index(piece.within)
            pieces.append(piece._replace(number=number, edge=small[piece.chunk][number]))
        result.append(span._replace(pieces=tuple(pieces)))
    return result
