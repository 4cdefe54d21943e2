"""Dask arrays: a graph with one task per output chunk, each of which pools the blocks that it needs.

Reached through `_dispatch`. Building a graph computes nothing. `spans` says which pieces of the input an
output chunk reads, `tasks` has what runs in workers; blocks are pooled by their own framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from operator import getitem
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ndpool import geometry
from ndpool._arguments import input_name
from ndpool._call import INDEX64, Call, Unpool
from ndpool._plan import AxisPlan, with_sizes
from ndpool._policy import Described, Kind, check_indices, check_samples, samples_like
from ndpool.frameworks.dask.spans import Span, cumulated, kept_spans, pooled_spans, requests
from ndpool.frameworks.dask.tasks import Edges, Pool, UnpoolBand

EDGE_BYTES = 1 << 18  # smaller chunks are handed to their neighbours whole
BAND_BYTES = 1 << 27  # of an unpooled block: larger planes are made in bands


class Dask:
    """The framework. `framework_of` finds that of a block."""

    quick = None

    def __init__(self, framework_of: Callable[[str, Any], Any]) -> None:
        self.framework_of = framework_of

    @staticmethod
    def plain(x: Any) -> bool:
        """No prepared calls: a graph is made once."""
        return False

    @staticmethod
    def traced(x: Any) -> bool:
        """Whether a size is not known before the array is computed."""
        return any(n != n for n in x.shape)

    def run(self, call: Call, x: Any) -> Any:
        """Pool `x`, lazily."""
        fn = call.function
        if call.out is not None:
            raise TypeError(f"{fn}: out must not be given for a Dask array, whose result is lazy; got out=")
        if call.plan is None:
            sizes = _known(fn, x, call.axes)
            plan = geometry.plan_from_flat(fn, sizes, call.windows)
            divisor = geometry.norm_divisor(fn, plan) if call.reduction.norm else call.divisor
            call = call._replace(plan=plan, windows=(), divisor=divisor)
        return self._pool(call, _without_empty(x), None)

    def fractional(self, call: Call, x: Any, samples: Any, generator: Any) -> Any:
        """Max pooling over windows that random samples place; samples are drawn now, as for arrays."""
        fn, n_axes = call.function, len(call.axes)
        _known(fn, x, range(x.ndim))
        wanted, dtype = samples_like(x.shape, x.dtype.name, n_axes)
        if samples is None:
            kind = x.dtype.newbyteorder("=") if dtype == x.dtype.name else np.dtype(dtype)
            samples = geometry.draw_samples(fn, wanted, kind, generator)
        else:
            check_samples(fn, _SAMPLES, Described(x.shape, x.dtype.name), n_axes, samples)
            samples = samples[: wanted[0]]
        sizes, places = x.shape[-n_axes:], samples.reshape(-1, n_axes)
        plan = geometry.fractional(fn, sizes, places, call.windows[:n_axes], call.windows[n_axes:], None)
        return self._pool(call._replace(plan=plan, windows=()), _without_empty(x), wanted[:2])

    def unpool(self, call: Unpool, values: Any, indices: Any) -> Any:
        """Values at their indices in planes of zeros, lazily; a task reads whole planes of the values."""
        fn, axes = call.function, call.axes
        _known(fn, values, range(values.ndim))
        check_indices(fn, _KIND, Described(values.shape, values.dtype.name), indices)
        probe = (np.empty_like(a._meta, shape=(0, *values.shape)) for a in (values, indices))
        moved = call._replace(axes=tuple(a + 1 for a in axes))
        meta = _meta(self.framework_of(fn, values._meta).unpool(moved, *probe), values.ndim)
        chunks, bands = _planes(call, _without_empty(values), meta.dtype.itemsize)
        values, indices = values.rechunk(chunks), indices.rechunk(chunks)
        name = f"{fn}-{tokenize(tuple(call), values.name, indices.name, bands)}"
        out = list(chunks)
        for axis, size in zip(axes, call.sizes, strict=True):
            out[axis] = (size,)
        out[axes[0]] = tuple(b - a for a, b in pairwise(bands))
        tasks = [UnpoolBand(self.framework_of, call, rows) for rows in pairwise(bands)]
        layer: dict[Any, Any] = {}
        for at in product(*(range(len(along)) for along in out)):
            key, source = (name, *at), tuple(0 if a in axes else i for a, i in enumerate(at))
            layer[key] = (tasks[at[axes[0]]], (values.name, *source), (indices.name, *source))
        graph = HighLevelGraph.from_collections(name, layer, dependencies=[values, indices])
        return da.Array(graph, name, tuple(out), meta=meta)

    def _pool(self, call: Call, x: Any, planes: tuple[int, ...] | None) -> Any:
        """The graph; `planes`: batch and channels, where every plane has its own windows."""
        metas = self._metas(call, x)
        shape = with_sizes(x.shape, call.axes, call.plan.out)
        if 0 in shape:
            chunks = with_sizes(x.chunks, call.axes, [(n,) for n in call.plan.out])
            made = [da.from_array(np.empty_like(meta, shape=shape), chunks) for meta in metas]
            return tuple(made) if len(made) > 1 else made[0]
        largest = prod(max(along, key=_size) for along in x.chunks) * x.dtype.itemsize
        edges = not largest < EDGE_BYTES  # also where it is unknown
        spans = [
            pooled_spans(call.plan.axes[call.axes.index(a)], along, edges)
            if a in call.axes
            else kept_spans(along)
            for a, along in enumerate(x.chunks)
        ]
        how = (call.function, call.reduction.name, call.axes, call.extra, call.divisor, call.norm)
        windows = [_fields(axis) for axis in call.plan.axes]
        token = tokenize(how, windows, x.name, edges, [(type(m), m.dtype) for m in metas])
        name = f"{call.function}-{token}"
        edge_name, edge_layer = _edge_layer(call.function, x, spans)
        layer = self._layer(name, call, x, spans, edge_name, planes, metas[0].dtype)
        layers, dependencies = dict(x.dask.layers), dict(x.dask.dependencies)
        layers[name], dependencies[name] = layer, {x.name}
        if edge_layer:
            layers[edge_name], dependencies[edge_name] = edge_layer, {x.name}
            dependencies[name].add(edge_name)
        chunks = tuple(tuple(span.out for span in along) for along in spans)
        if len(metas) == 1:
            return da.Array(HighLevelGraph(layers, dependencies), name, chunks, meta=metas[0])
        results = []
        for i, (what, meta) in enumerate(zip(("values", "indices"), metas, strict=True)):
            own = f"{call.function}-{what}-{token}"
            each: dict[Any, Any] = {(own, *key[1:]): (getitem, key, i) for key in layer}
            graph = HighLevelGraph({**layers, own: each}, {**dependencies, own: {name}})
            results.append(da.Array(graph, own, chunks, meta=meta))
        return tuple(results)

    def _layer(
        self,
        name: str,
        call: Call,
        x: Any,
        spans: list[list[Span]],
        edge_name: str,
        planes: tuple[int, ...] | None,
        dtype: Any,
    ) -> dict[Any, Any]:
        """A task per output chunk: the pool, and the keys of the blocks and edges that it reads."""
        layer: dict[Any, Any] = {}
        source, plan = x.name, call.plan
        how = (self.framework_of, call._replace(plan=None), plan.sizes, plan.full)
        starts = [cumulated(along) for along in x.chunks] if planes else []
        for at in product(*(range(len(along)) for along in spans)):
            chosen = tuple([along[i] for along, i in zip(spans, at, strict=True)])
            if planes:
                chosen = _own_windows(chosen, at, call.axes, starts, planes)
            keys = []
            for pieces in product(*[span.pieces for span in chosen]):
                edge, block = False, []
                for piece in pieces:
                    block.append(piece.chunk)
                    edge = edge or piece.edge
                keys.append((edge_name if edge else source, *block))
            key = (name, *at)
            layer[key] = (Pool(*how, chosen, dtype), *keys)
        return layer

    def _metas(self, call: Call, x: Any) -> list[Any]:
        """Empty arrays like the results' blocks. An empty array is pooled, which checks dtypes as well."""
        probe = np.empty_like(x._meta, shape=(0, *(1 if n != n else n for n in x.shape)))
        moved = call._replace(axes=tuple(a + 1 for a in call.axes))
        got = self.framework_of(call.function, x._meta).run(moved, probe)
        return [_meta(array, x.ndim) for array in (got if call.extra == INDEX64 else (got,))]


def _edge_layer(fn: str, x: Any, spans: list[list[Span]]) -> tuple[str, dict[Any, Any]]:
    """A task per input chunk that has edges."""
    wanted = [requests(along, len(own)) for along, own in zip(spans, x.chunks, strict=True)]
    name = f"edges-{tokenize(x.name, wanted)}"
    has_edge = [[any(edge for _, edge in pieces) for pieces in along] for along in wanted]
    if not any(map(any, has_edge)):
        return name, {}
    layer: dict[Any, Any] = {}
    for at in product(*(range(len(along)) for along in wanted)):
        pieces = tuple([along[i] for along, i in zip(wanted, at, strict=True)])
        if all(pieces) and any(flags[i] for flags, i in zip(has_edge, at, strict=True)):
            key, sizes = (name, *at), tuple([along[i] for along, i in zip(x.chunks, at, strict=True)])
            layer[key] = (Edges(fn, sizes, pieces), (x.name, *at))
    return name, layer


def _own_windows(
    spans: tuple[Span, ...],
    at: tuple[int, ...],
    axes: tuple[int, ...],
    starts: list[list[int]],
    planes: tuple[int, ...],
) -> tuple[Span, ...]:
    """The spans of an output chunk with the windows of its own planes only."""
    leading = [a for a in range(len(spans)) if a not in axes]
    rows = tuple(slice(starts[a][at[a]], starts[a][at[a] + 1]) for a in leading)
    rows = (slice(None),) * (len(planes) - len(rows)) + rows

    def own(table: Any) -> Any:
        return table.reshape(*planes, -1)[rows].reshape(-1, table.shape[-1])

    return tuple(
        span
        if span.plan is None
        else span._replace(
            plan=replace(span.plan, starts=own(span.plan.starts), counts=own(span.plan.counts))
        )
        for span in spans
    )


def _planes(call: Unpool, values: Any, itemsize: int) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """Chunks of whole planes for the values of an unpooling, and the bands of rows that its output has."""
    chunks = list(with_sizes(values.chunks, call.axes, [(values.shape[a],) for a in call.axes]))
    leading = [a for a in range(values.ndim) if a not in call.axes]
    excess = prod(max(chunks[a]) for a in leading) * prod(call.sizes) * itemsize / BAND_BYTES
    for axis in leading:
        size = max(chunks[axis])
        if excess > 1 and size > 1:
            most = max(1, int(size / excess))
            chunks[axis] = da.core.normalize_chunks((most,), (values.shape[axis],))[0]
            excess *= most / size
    rows = call.sizes[0]
    n = min(rows, max(1, -int(-excess // 1)))
    return tuple(chunks), [rows * k // n for k in range(n + 1)]


def _without_empty(x: Any) -> Any:
    """The array without chunks of size zero, unless that is all there is along an axis."""
    chunks = tuple(tuple(n for n in along if n != 0) or (0,) for along in x.chunks)
    return x if chunks == x.chunks or Dask.traced(x) else x.rechunk(chunks)


def _known(fn: str, x: Any, axes: Sequence[int]) -> tuple[int, ...]:
    """The sizes along some axes, or an error where one is unknown."""
    sizes = tuple(x.shape[a] for a in axes)
    if any(n != n for n in sizes):
        raise ValueError(
            f"{fn}: {input_name(fn)} must have known sizes along the axes {tuple(axes)}; "
            f"got shape {x.shape}; compute_chunk_sizes() finds them"
        )
    return sizes


def _meta(array: Any, ndim: int) -> Any:
    return da.utils.meta_from_array(array, ndim)


def _size(n: Any) -> float:
    return float("inf") if n != n else n


def _fields(axis: AxisPlan) -> tuple[Any, ...]:
    return tuple(getattr(axis, name) for name in axis.__slots__)


def _describe(x: Any) -> Described | None:
    return Described(x.shape, x.dtype.name) if isinstance(x, da.Array) else None


def _describe_samples(x: Any) -> Described | None:
    return Described(x.shape, x.dtype.name) if isinstance(x, np.ndarray) else None


_KIND = Kind("a Dask array", _describe, lambda a, b: False)
_SAMPLES = Kind("a NumPy array", _describe_samples, lambda a, b: False)
