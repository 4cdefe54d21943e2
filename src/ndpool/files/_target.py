"""Where results are written: the interface of a target, and the path that appears only when all is written.

`_targets` has one target per format. A `Place` is a temporary sibling of the final path: `commit` renames it,
and whatever ends the run before leaves the final path as it was.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool.frameworks.stored import Box

ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")


class Target:
    """An array that is written in boxes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grain: tuple[int, ...]  # boxes that are written as a whole
    fortran: bool = False  # the first axis varies fastest in the file
    resident: int = 0  # bytes held in memory until the end
    per_element: int = 0  # bytes of memory that writing takes, per element of a tile

    def has(self, where: Box) -> bool:
        """Whether an earlier run has written this box."""
        return False

    def write(self, where: Box, y: NDArray[Any]) -> None:
        """Write a box."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is left and close the file."""

    def close(self) -> None:
        """Release the file, finished or not."""


class Place:
    """The path of a result: written next to it and renamed, so that no half file has its name."""

    def __init__(self, fn: str, target: Any, source: Any, *, overwrite: bool, folder: bool) -> None:
        self.fn, self.folder, self.overwrite = fn, folder, overwrite
        self.path = Path(os.path.realpath(os.fspath(target)))
        if isinstance(source, (str, os.PathLike)):
            _check_apart(fn, Path(os.path.realpath(os.fspath(source))), self.path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"{fn}: the output's folder must exist; got {self.path.parent}")
        self._check_free()
        name = f"{self.path.name}.partial" if folder else f".{self.path.name}.{os.getpid()}.partial"
        self.partial = self.path.with_name(name)
        # Whether a run that fails leaves the partial result: another run may continue it, or has made it.
        self.keep = folder

    def check_space(self, nbytes: int) -> None:
        """Fail before the work where the disk cannot hold the result."""
        free = shutil.disk_usage(self.path.parent).free
        if nbytes > free:
            raise OSError(
                f"{self.fn}: the disk must have room for the output; it needs {nbytes} bytes in "
                f"{self.path.parent} (limit {free})"
            )

    def commit(self) -> None:
        """Give the finished result its name."""
        self._check_free()  # another program may have made it meanwhile
        if not self.folder:
            _sync(self.partial)
        if self.folder and self.path.exists():
            old = self.path.with_name(f".{self.path.name}.{os.getpid()}.old")
            os.rename(self.path, old)
            try:
                os.rename(self.partial, self.path)
            except BaseException:
                if not self.path.exists():
                    os.rename(old, self.path)
                raise
            _remove(old)
        else:
            os.replace(self.partial, self.path)
        with suppress(OSError):  # not every file system can do it
            _sync(self.path.parent)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and not self.keep:
            _remove(self.partial)

    def _check_free(self) -> None:
        if not os.path.lexists(self.path):
            return
        if not self.overwrite:
            raise FileExistsError(f"{self.fn}: the output exists; got {self.path} (overwrite it explicitly)")
        if self.path.is_dir() != self.folder or (self.folder and not is_zarr(self.path)):
            raise FileExistsError(
                f"{self.fn}: only {'a Zarr folder' if self.folder else 'a file'} is overwritten; "
                f"got {self.path}"
            )


def is_zarr(folder: Path) -> bool:
    """Whether a folder is a Zarr array or group."""
    return any((folder / name).is_file() for name in ZARR_FILES)


def _check_apart(fn: str, source: Path, target: Path) -> None:
    if source == target or (target.exists() and source.exists() and os.path.samefile(source, target)):
        raise ValueError(f"{fn}: the output must not be the input; got {target} twice")
    if source in target.parents or target in source.parents:
        raise ValueError(
            f"{fn}: neither of input and output may contain the other; got {source} and {target}"
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class RawTarget(Target):
    """Elements without compression, at an offset of a file."""

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool = False
    ) -> None:
        self.shape, self.dtype, self.offset, self.fortran = shape, dtype, offset, fortran
        self.grain = (1,) * len(shape)
        self._fd = os.open(path, os.O_WRONLY)
        # A TIFF goes on behind its elements.
        os.ftruncate(self._fd, max(os.fstat(self._fd).st_size, offset + prod(shape) * dtype.itemsize))

    def write(self, where: Box, y: NDArray[Any]) -> None:
        shape = self.shape
        if self.fortran:
            shape, where, y = shape[::-1], where[::-1], y.T
        data = np.ascontiguousarray(y, self.dtype).reshape(-1).view(np.uint8).data
        at = 0
        for position, size in runs(shape, where, self.dtype.itemsize):
            end, position = at + size, position + self.offset
            while at < end:
                n = os.pwrite(self._fd, data[at:end], position)
                at, position = at + n, position + n

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def runs(shape: tuple[int, ...], where: Box, item: int) -> Any:
    """The contiguous pieces of a box in a C-ordered array: (byte position, bytes), in order."""
    strides = [item] * len(shape)
    for a in range(len(shape) - 1, 0, -1):
        strides[a - 1] = strides[a] * shape[a]
    first, size = sum(s.start * stride for s, stride in zip(where, strides, strict=True)), item
    a = len(shape)
    while a:
        a -= 1
        n = where[a].stop - where[a].start
        size *= n
        if n != shape[a]:
            break
    for at in np.ndindex(*[s.stop - s.start for s in where[:a]]):
        if size:
            yield first + sum(i * stride for i, stride in zip(at, strides, strict=False)), size
