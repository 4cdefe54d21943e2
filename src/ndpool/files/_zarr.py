"""Zarr folders and zips: sources, targets, and the journal that lets a broken-off run continue.

Reached from `_sources`, `_targets` and `_ome`; needs the package zarr, version 3.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from numbers import Integral
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ndpool.files._errors import needs, readable
from ndpool.files._target import ZARR_FILES, Target, is_zarr
from ndpool.frameworks.stored import Box, Source

__all__ = ["ZARR_FILES", "Journal", "ZarrTarget", "create", "open_array", "open_tiff"]

JOURNAL = ".ndpool-journal"
CHUNK_BYTES = 1 << 20  # of new arrays
LARGEST_CHUNK = 64 << 20  # bytes of an input's chunks that a result keeps


class ZarrSource(Source):
    """An array of Zarr, read chunk by chunk."""

    def __init__(
        self, fn: str, array: Any, memory: int, dims: Sequence[str] = (), store: Any = None, where: str = ""
    ) -> None:
        self.fn, self._array, self._store, self._where = fn, array, store, where
        self.shape, self.dtype = array.shape, np.dtype(array.dtype)
        self.chunks = self.layout = tuple(array.chunks)
        self._at_once, self.scratch = _bounded(array, memory)
        self.zarr_format = array.metadata.zarr_format
        names = getattr(array.metadata, "dimension_names", None) or ()
        self.dims = tuple(dims) or (tuple(names) if all(names) else ())

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        with _coding(self._at_once), readable(self.fn, self._where):
            return np.asarray(self._array[where])

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _bounded(array: Any, memory: int) -> tuple[int, int]:
    """How many chunks Zarr may code at once (few large ones), and the bytes that this takes."""
    chunk = max(1, prod(array.chunks) * array.dtype.itemsize)
    at_once = max(1, min(8, memory // 32 // chunk))
    return at_once, 2 * chunk * at_once


@contextmanager
def _coding(at_once: int) -> Iterator[None]:
    """A context in which Zarr codes so many chunks at once."""
    with import_module("zarr").config.set({"async.concurrency": at_once}), settled():
        yield


@contextmanager
def settled() -> Iterator[None]:
    """A context that Zarr has finished with, also where an error or a signal leaves it.

    Zarr works in a thread of its own and goes on with the chunks that it has begun. They would be written to
    a store that is closed or removed, and the end of the process would report them one by one.
    """
    try:
        yield
    except BaseException:
        import_module("zarr.core.sync").sync(_others())
        raise


async def _others() -> None:
    """Wait for the other tasks of Zarr's thread."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


def open_array(fn: str, path: Path, key: str | None, memory: int) -> Source:
    """The array of a folder or zip: the one at `key`, the only one, or the first level of a pyramid."""
    zarr = needs(fn, "zarr", "zarr", "Zarr files")
    if path.is_dir() and not is_zarr(path):
        raise ValueError(f"{fn}: a folder must be a Zarr array or group; got {path}")
    if path.suffix.lower() == ".zarr" and not path.is_dir():
        raise ValueError(f"{fn}: .zarr must be a folder, and a zip .zarr.zip; got the file {path}")
    store = path if path.is_dir() else zarr.storage.ZipStore(path, mode="r")
    found = zarr.open(store, mode="r")
    dims: Sequence[str] = ()
    if isinstance(found, zarr.Group):
        levels, dims = _multiscale(found)
        names = [name for name, _ in found.arrays()] if not levels or key else levels
        if key is None and levels:
            key = levels[0]
        if key is None and len(names) == 1:
            key = names[0]
        member = found.get(key) if key else None
        if not isinstance(member, zarr.Array):
            shown = ", ".join(sorted(names)[:20])
            raise ValueError(
                f"{fn}: key must name one of the arrays in {path} ({shown or 'none'}); got key={key!r}"
            )
        found = member
    elif key is not None:
        raise ValueError(f"{fn}: key names an array in a group; got key={key!r} with the array {path}")
    if len(dims) != found.ndim:
        dims = ()
    return ZarrSource(fn, found, memory, dims, None if path.is_dir() else store, str(path))


def _multiscale(group: Any) -> tuple[list[str], list[str]]:
    """Levels and axis names of an OME-Zarr image; empty for other groups."""
    attributes = dict(group.attrs)
    scales = attributes.get("ome", attributes).get("multiscales") or [{}]
    levels = [level["path"] for level in scales[0].get("datasets", ())]
    axes = [axis["name"] if isinstance(axis, Mapping) else axis for axis in scales[0].get("axes", ())]
    return levels, axes


def open_tiff(fn: str, path: Path, memory: int, dims: tuple[str, ...]) -> Source:
    """A compressed TIFF, whose strips or tiles are the chunks of a Zarr array."""
    zarr, tifffile = (
        needs(fn, name, extra, "compressed TIFF files")
        for name, extra in (("zarr", "zarr"), ("tifffile", "tiff"))
    )
    store = tifffile.imread(path, aszarr=True, series=0, level=0)
    source = ZarrSource(fn, zarr.open_array(store, mode="r"), memory, dims, store, str(path))
    source.layout, source.zarr_format = None, 3  # strips are no chunks to keep
    return source


class Journal:
    """The boxes that were written, in a file next to the chunks: a run that continues skips them."""

    def __init__(self, fn: str, folder: Path, request: dict[str, Any], resume: bool) -> None:
        self._path, self.resumed = journal_of(folder), resume
        request = json.loads(json.dumps(request, default=str))
        self.done: list[tuple[str, list[list[int]]]] = []
        self.begun = resume  # whether there is anything to continue
        if resume:
            try:
                first, *lines = self._path.read_text().split("\n")
                before = json.loads(first)
            except (OSError, ValueError):
                raise ValueError(f"{fn}: resume found no journal in {folder}; remove the folder") from None
            if before != request:
                changed = sorted(
                    name for name in {*before, *request} if before.get(name) != request.get(name)
                )
                raise ValueError(
                    f"{fn}: resume must repeat the arguments and the input of the run that made {folder}; "
                    f"got other {', '.join(changed)}"
                )
            self.done = [entry for line in lines if (entry := _parsed(line))]
        folder.mkdir(exist_ok=resume)
        self._file = open(self._path, "a" if resume else "x", buffering=1)  # noqa: SIM115
        _lock(self._file)
        # The last line of the earlier run may be broken off.
        self._file.write("\n" if resume else json.dumps(request) + "\n")

    def add(self, name: str, box: Box) -> None:
        """Note that a box of the array `name` was written."""
        self.begun = True
        self._file.write(json.dumps([name, [[s.start, s.stop] for s in box]]) + "\n")

    def close(self) -> None:
        """Close the journal; another run may continue it."""
        self._file.close()


def _parsed(line: str) -> tuple[str, list[list[int]]] | None:
    """An entry of a journal; None for a line that was broken off."""
    try:
        name, box = json.loads(line)
    except ValueError:
        return None
    return name, box


class ZarrTarget(Target):
    """An array of Zarr, written in whole chunks."""

    def __init__(
        self, array: Any, memory: int, journal: Journal | None = None, name: str = "", store: Any = None
    ) -> None:
        self._array, self._journal, self._name, self._store = array, journal, name, store
        self.shape, self.dtype, self.grain = array.shape, np.dtype(array.dtype), tuple(array.chunks)
        self._at_once, self.resident = _bounded(array, memory)
        self._done = np.zeros([-(-n // g) for n, g in zip(self.shape, self.grain, strict=True)], bool)
        for written, box in journal.done if journal else ():
            if written == name:
                self._done[self._chunks(tuple(slice(*pair) for pair in box))] = True

    def _chunks(self, where: Box) -> Box:
        return tuple(slice(s.start // g, -(-s.stop // g)) for s, g in zip(where, self.grain, strict=True))

    def has(self, where: Box) -> bool:
        return bool(self._done[self._chunks(where)].all())

    def write(self, where: Box, y: NDArray[Any]) -> None:
        with _coding(self._at_once):
            self._array[where] = y
        if self._journal:
            self._journal.add(self._name, where)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def create(
    store: Any,
    name: str | None,
    like: tuple[tuple[int, ...], np.dtype[Any]],
    chunks: tuple[int, ...],
    dims: Sequence[str],
    zarr_format: Any,
) -> Any:
    """A new array of Zarr; `like` is its shape and dtype."""
    shape, dtype = like
    how: dict[str, Any] = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    if zarr_format == 3:
        how = {"dimension_names": list(dims) or None}
    with settled():
        return import_module("zarr").create_array(
            store=store,
            name=name,
            shape=shape,
            dtype=dtype.str,  # NumPy has two types for integers of 64 bits, and Zarr knows one of them
            chunks=tuple(max(1, min(c, n)) for c, n in zip(chunks, shape, strict=True)),
            zarr_format=zarr_format,
            **how,
        )


def check_chunks(
    fn: str, chunks: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: tuple[int, ...] | None
) -> tuple[int, ...]:
    """The chunks asked for, those of the input, or cubes of about a MiB along the last axes."""
    if chunks is None:
        if like and prod(like) * dtype.itemsize <= LARGEST_CHUNK:
            return like
        return _default_chunks(shape, dtype)
    sizes = tuple(chunks) if isinstance(chunks, Iterable) else (chunks,) * len(shape)
    if len(sizes) != len(shape) or any(isinstance(n, bool) or not isinstance(n, Integral) for n in sizes):
        raise ValueError(f"{fn}: chunks must be {len(shape)} integers, one per axis; got chunks={chunks!r}")
    if min(sizes, default=1) < 1:
        raise ValueError(f"{fn}: chunks must be at least 1; got chunks={chunks!r}")
    return tuple(int(n) for n in sizes)


def _default_chunks(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    last = min(3, len(shape))
    chunks = [1] * len(shape)
    while True:
        grown = [a for a in range(len(shape) - last, len(shape)) if chunks[a] < shape[a]]
        if not grown or prod(chunks) * dtype.itemsize * 2 ** len(grown) > CHUNK_BYTES:
            return tuple(chunks)
        for a in grown:
            chunks[a] *= 2


def journal_of(folder: Path) -> Path:
    """The journal that a folder contains while it is written."""
    return folder / JOURNAL


def in_use(folder: Path) -> bool:
    """Whether a run that has not ended writes to a folder."""
    try:
        with open(journal_of(folder), "rb") as file:
            return not _lock(file)
    except OSError:
        return False


def _lock(file: IO[Any]) -> bool:
    """Lock a journal until it is closed; False where another run has done so."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)  # not every file system has locks
    return True
