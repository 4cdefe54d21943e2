"""OME-Zarr: the metadata of a multiscale image, and the writing of its levels, each from the one before.

`_pyramid` decides the windows. Level 0 is a copy of the input; every tile is read, pooled and written within
the given memory. Versions 0.4 (Zarr format 2) and 0.5 (Zarr format 3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndpool._arguments import show
from ndpool._levels import ORDER, letters, next_level
from ndpool.files import _zarr
from ndpool.files._errors import check_dtype, needs
from ndpool.files._output import How, output
from ndpool.files._sources import extension, open_source
from ndpool.files._stream import stream
from ndpool.frameworks.stored import Box, Source

FORMATS = {"0.4": 2, "0.5": 3}  # version -> format of Zarr
_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_METHODS = {"avg": "mean", "max": "max", "min": "min"}

Steps = tuple[tuple[int, ...], list[tuple[int, ...]]]


class Image(NamedTuple):
    """What is written, and how it is described."""

    array: Any
    dims: str | Sequence[str] | None
    scale: Mapping[str, float] | None
    units: Mapping[str, str] | None
    version: str


class Transposed(Source):
    """Another source with its axes in another order."""

    def __init__(self, inner: Source, order: Sequence[int], dims: Sequence[str]) -> None:
        self._inner, self._order = inner, order
        self.shape = tuple(inner.shape[a] for a in order)
        self.dtype, self.dims, self.identity = inner.dtype, tuple(dims), inner.identity
        self.chunks, self.layout = (
            None if sizes is None else tuple(sizes[a] for a in order)
            for sizes in (inner.chunks, inner.layout)
        )
        self.resident, self.scratch, self.raw = inner.resident, inner.scratch, inner.raw
        self.fortran = inner.fortran

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        box: list[Any] = [None] * len(where)
        for a, s in zip(self._order, where, strict=True):
            box[a] = s
        found: NDArray[Any] = self._inner.read(tuple(box), buffer).transpose(self._order)
        return found

    def close(self) -> None:
        self._inner.close()


def write(
    image: Image,
    store: str | os.PathLike[str],
    how: How,
    reduce: str,
    steps_of: Callable[[tuple[int, ...], tuple[str, ...]], Steps],
) -> list[Any]:
    """Write the levels of a pyramid; the arrays of Zarr."""
    zarr = needs("pyramid", "zarr", "zarr", "OME-Zarr files")
    if image.version not in FORMATS:
        raise ValueError(f"pyramid: ome_version must be 0.4 or 0.5; got ome_version={image.version!r}")
    if extension(Path(store)) not in (".zarr", ".zip"):
        raise ValueError(f"pyramid: store must end in .zarr or .zarr.zip; got {Path(store).name!r}")
    with closing(open_source("pyramid", image.array, how.key, how.memory)) as opened:
        x = _ordered(opened, image.dims)
        axes, steps = steps_of(x.shape, x.dims)
        chunks = _zarr.check_chunks("pyramid", how.chunks, x.shape, x.dtype, x.layout)
        _check_dtype(x, axes, reduce)
        attributes = _metadata(Path(store).name, image, x.dims, axes, steps, reduce)
        request: dict[str, Any] = {
            "function": "pyramid",
            "reduce": reduce,
            "axes": axes,
            "steps": steps,
            "chunks": chunks,
        }
        request |= {"version": image.version, "shape": x.shape, "input": [str(x.dtype), *x.identity]}
        request |= {"scale": dict(image.scale or {}), "units": dict(image.units or {})}
        with output("pyramid", image.array, store, how, request) as (place, journal):
            at: Any = place.partial if place.folder else zarr.storage.ZipStore(place.partial, mode="x")
            format = FORMATS[image.version]
            with nullcontext() if place.folder else closing(at), _zarr.settled():
                if journal is not None and journal.resumed:
                    group = zarr.open_group(at, mode="r+")
                else:
                    group = zarr.create_group(at, zarr_format=format, attributes=attributes)
                _Levels(group, at, journal, x, chunks, format).write(axes, steps, reduce, how)
    found = zarr.open_group(place.path if place.folder else zarr.storage.ZipStore(place.path), mode="r")
    return [found[str(level)] for level in range(len(steps) + 1)]


class _Levels:
    """The arrays of a pyramid, written one after the other."""

    def __init__(
        self, group: Any, store: Any, journal: Any, x: Source, chunks: tuple[int, ...], format: int
    ) -> None:
        self.group, self.store, self.journal, self.format = group, store, journal, format
        self.x, self.chunks, self.read = x, chunks, 0

    def write(self, axes: tuple[int, ...], steps: list[tuple[int, ...]], reduce: str, how: How) -> None:
        shapes = [self.x.shape]
        for window in steps:
            pooled = list(shapes[-1])
            for a, w in zip(axes, window, strict=True):
                pooled[a] = -(-pooled[a] // w)
            shapes.append(tuple(pooled))
        item = self.x.dtype.itemsize
        total = sum(prod(shape) * item for shape in [shapes[0], *shapes[:-1]])

        def progress(done: int, _: int) -> None:
            if how.progress is not None:
                how.progress(self.read + done, total)

        source = self.x
        for level, shape in enumerate(shapes):
            array = self._array(str(level), shape)
            target = _zarr.ZarrTarget(array, how.memory, self.journal, str(level))
            call: Any = None
            if level:
                window = steps[level - 1]
                call = next_level(source, window, reduce, axes)
            stream("pyramid", source, target, call, how.memory, progress)
            self.read += source.nbytes
            source = _zarr.ZarrSource("pyramid", array, how.memory, self.x.dims)

    def _array(self, name: str, shape: tuple[int, ...]) -> Any:
        if self.journal is not None and self.journal.resumed and name in self.group:
            return self.group[name]
        like = (shape, self.x.dtype.newbyteorder("="))
        return _zarr.create(self.store, name, like, self.chunks, self.x.dims, self.format)


def _check_dtype(x: Source, axes: tuple[int, ...], reduce: str) -> None:
    """Raise what pooling the dtype would raise, before anything is written."""
    next_level(np.zeros((1,) * len(x.shape), x.dtype), (1,) * len(axes), reduce, axes)
    check_dtype("pyramid", x.dtype)


def _ordered(source: Source, dims: str | Sequence[str] | None) -> Source:
    """The source with the names and the order of axes that OME-Zarr has."""
    ndim = len(source.shape)
    names = letters(source.dims, ndim)
    if dims is not None:
        names = tuple(dims)
        if len(names) != ndim or len(set(names)) != ndim or not set(names) <= set(ORDER):
            raise ValueError(
                f"pyramid: dims must name the {ndim} axes with different letters of {ORDER!r}; "
                f"got dims={show(dims)}"
            )
    if not 2 <= ndim <= 5 or not {"x", "y"} <= set(names):
        raise ValueError(
            f"pyramid: OME-Zarr images must have 2 to 5 axes, x and y among them; "
            f"got shape {show(source.shape)} with the axes {show(source.dims or names)}"
        )
    order = sorted(range(ndim), key=lambda a: ORDER.index(names[a]))
    if order == list(range(ndim)):
        source.dims = names
        return source
    return Transposed(source, order, [names[a] for a in order])


def _metadata(
    name: str,
    image: Image,
    dims: Sequence[str],
    axes: tuple[int, ...],
    steps: list[tuple[int, ...]],
    reduce: str,
) -> dict[str, Any]:
    """The attributes of the group. The centre of a window lies half its size, less a half, further on."""
    _check_names("scale", image.scale, dims)
    _check_names("units", image.units, dims)
    sizes = [_size(image.scale, name) for name in dims]
    entries: list[dict[str, Any]] = [{"name": name, "type": _TYPES[name]} for name in dims]
    for entry in entries:
        if image.units and entry["name"] in image.units:
            entry["unit"] = str(image.units[entry["name"]])
    spacing, shift = [1] * len(dims), [0.0] * len(dims)
    datasets = []
    for level in range(len(steps) + 1):
        if level:
            for a, w in zip(axes, steps[level - 1], strict=True):
                shift[a] += spacing[a] * (w - 1) / 2
                spacing[a] *= w
        transforms: list[dict[str, Any]] = [
            {"type": "scale", "scale": [n * size for n, size in zip(spacing, sizes, strict=True)]}
        ]
        if level:
            moved = [n * size for n, size in zip(shift, sizes, strict=True)]
            transforms.append({"type": "translation", "translation": moved})
        datasets.append({"path": str(level), "coordinateTransformations": transforms})
    scales: dict[str, Any] = {"name": name.partition(".")[0], "axes": entries, "datasets": datasets}
    scales["type"] = _METHODS.get(reduce, reduce)
    scales["metadata"] = {"method": "ndpool.pyramid", "kwargs": {"reduce": reduce, "windows": steps}}
    if image.version == "0.4":
        return {"multiscales": [{"version": "0.4", **scales}]}
    return {"ome": {"version": "0.5", "multiscales": [scales]}}


def _check_names(argument: str, given: Any, dims: Sequence[str]) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"pyramid: {argument} must be a mapping by axis; got {argument}={show(given)}")
    if unknown := [name for name in given or () if name not in dims]:
        raise ValueError(
            f"pyramid: {argument} must be for the axes {', '.join(dims)}; got {argument}[{show(unknown[0])}]"
        )


def _size(scale: Mapping[str, float] | None, name: str) -> float:
    size = (scale or {}).get(name, 1.0)
    if isinstance(size, bool) or not isinstance(size, Real) or not 0 < size < float("inf"):
        raise ValueError(f"pyramid: scale must be positive numbers; got scale[{name!r}]={show(size)}")
    return float(size)
