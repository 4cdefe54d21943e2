"""Sources: arrays in memory, .npy and .npz, TIFF, PNG and JPEG, behind the interface that `stream` reads.

`open_source` finds the format by the file's extension. Zarr is in `_zarr`, NetCDF and HDF5 in `_netcdf`.
"""

from __future__ import annotations

import os
import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ndpool.files import _netcdf, _zarr
from ndpool.files._errors import check_fits, needs, readable
from ndpool.files._target import runs
from ndpool.frameworks.stored import Box, Source

IMAGES = (".png", ".jpg", ".jpeg")
TIFFS = (".tif", ".tiff", ".btf", ".tf8")
FORMATS = ".npy, .npz, .zarr, .zarr.zip, .tif, .tiff, .png, .jpg, .nc, .h5 and .hdf5"


def extension(path: Path) -> str:
    """The extension that names the format of a file."""
    name = path.name.lower()
    return ".zip" if name.endswith(".zip") else path.suffix.lower()


def open_source(fn: str, source: Any, key: str | None, memory: int) -> Source:
    """The source for a path, or for an object with a shape, a dtype and slices."""
    if not isinstance(source, (str, os.PathLike)):
        if key is not None:
            raise ValueError(f"{fn}: key names an array in a file; got key={key!r} with an array")
        return ArraySource(fn, source)
    path = Path(source)
    with readable(fn, path):
        found = _open(fn, path, key, memory)
    found.identity = _identity(path)
    if len(set(found.dims)) < len(found.dims):
        found.dims = ()  # a name that two axes have names neither
    return found


def _open(fn: str, path: Path, key: str | None, memory: int) -> Source:
    path.stat()  # the system's own error for a file that is missing or out of reach
    kind = extension(path)
    if not (path.is_dir() or path.is_file()):
        raise ValueError(f"{fn}: the input must be a file or a Zarr folder; got {path}")
    if path.is_dir() or kind in (".zip", ".zarr"):
        return _zarr.open_array(fn, path, key, memory)
    if kind in _netcdf.SUFFIXES:
        return _netcdf.NetcdfSource(fn, path, key)
    if kind == ".npz":
        return _open_npz(fn, path, key, memory)
    if key is not None:
        raise ValueError(f"{fn}: key names one of several arrays; got key={key!r} with a {kind} file")
    if kind == ".npy":
        with open(path, "rb") as file:
            return RawSource(fn, path, *_npy_header(fn, path, file))
    if kind in TIFFS:
        return _open_tiff(fn, path, memory)
    if kind in IMAGES:
        return _open_image(fn, path, memory)
    raise ValueError(f"{fn}: the format is found by the extension, one of {FORMATS}; got {path.name!r}")


def _identity(path: Path) -> tuple[Any, ...]:
    """What changes when a file is written again."""
    if path.is_dir():
        path = next((path / name for name in _zarr.ZARR_FILES if (path / name).exists()), path)
    stat = path.stat()
    return (stat.st_size, stat.st_mtime_ns)


class ArraySource(Source):
    """An array in memory, or anything else with a shape, a dtype and slices (Zarr, HDF5, Dask)."""

    def __init__(self, fn: str, array: Any, dims: tuple[str, ...] = (), owned: bool = False) -> None:
        if not (hasattr(array, "shape") and hasattr(array, "dtype") and hasattr(array, "__getitem__")):
            raise TypeError(f"{fn}: the input must be a path or an array; got {type(array).__qualname__}")
        self.fn = fn
        # Dask knows the kind of its blocks.
        self._check_mask(isinstance(getattr(array, "_meta", array), np.ma.MaskedArray))
        if any(n != n for n in array.shape):
            raise ValueError(f"{fn}: the input must have known sizes; got shape {tuple(array.shape)}")
        names = getattr(array, "dims", ())  # xarray's
        self._array = array
        self.dims = dims or (tuple(names) if all(isinstance(name, str) for name in names) else ())
        self.shape = tuple(int(n) for n in array.shape)
        try:
            self.dtype = np.dtype(array.dtype)
        except TypeError:
            raise TypeError(f"{fn}: the input must have a NumPy dtype; got dtype={array.dtype}") from None
        chunks = getattr(array, "chunks", None)
        if chunks and all(isinstance(n, tuple) for n in chunks):
            chunks = [max(sizes, default=1) for sizes in chunks]  # Dask lists the sizes of all chunks
        self.chunks = self.layout = tuple(int(n) for n in chunks) if chunks else None
        self.resident = array.nbytes if owned else 0

    def _check_mask(self, masked: bool) -> None:
        if masked:
            raise TypeError(f"{self.fn}: the input must not be a masked array, its mask would be lost")

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        found = self._array[where]
        self._check_mask(np.ma.is_masked(found))
        return np.asarray(found)

    def close(self) -> None:
        self._array = None


class RawSource(Source):
    """Elements without compression, at an offset of a file.

    Boxes are read into a buffer instead of mapped: mapped pages would count as memory of the process.
    """

    raw = True

    def __init__(
        self,
        fn: str,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran: bool = False,
        dims: tuple[str, ...] = (),
    ) -> None:
        self.fn, self.path, self.offset = fn, path, offset
        self.shape, self.dtype, self.fortran, self.dims = shape, dtype, fortran, dims
        _check_numbers(fn, path, dtype)
        needed, size = offset + prod(shape) * dtype.itemsize, path.stat().st_size
        if size < needed:
            raise ValueError(f"{fn}: {path} is truncated; it needs {needed} bytes and has {size}")
        self._fd = os.open(path, os.O_RDONLY)

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        shape, item = self.shape, self.dtype.itemsize
        if self.fortran:
            shape, where = shape[::-1], where[::-1]
        sizes = [s.stop - s.start for s in where]
        block = buffer[: prod(sizes) * item]
        data, at = block.data, 0
        for position, size in runs(shape, where, item):
            end, position = at + size, position + self.offset
            while at < end:
                n = os.preadv(self._fd, [data[at:end]], position)
                if n == 0:
                    raise ValueError(f"{self.fn}: {self.path} is truncated; it ended while it was read")
                at, position = at + n, position + n
        found = block.view(self.dtype).reshape(sizes)
        return found.T if self.fortran else found

    def prefetch(self, where: Box) -> None:
        shape = self.shape
        if self.fortran:
            shape, where = shape[::-1], where[::-1]
        pieces = list(_few(runs(shape, where, self.dtype.itemsize)))
        for position, size in pieces:
            os.posix_fadvise(self._fd, self.offset + position, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _few(pieces: Any) -> Any:
    """At most the first pieces: advice on thousands of small ones costs more than it saves."""
    for _, piece in zip(range(16), pieces, strict=False):
        yield piece


def _npy_header(
    fn: str, path: Path, file: IO[bytes], start: int = 0
) -> tuple[int, tuple[int, ...], np.dtype[Any], bool]:
    """Offset of the data, shape, dtype and order of the .npy at the file's position."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"{fn}: {path} must be in version 1, 2 or 3 of .npy; got {version[0]}.{version[1]}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if any(n < 0 for n in shape):
        raise ValueError(f"{fn}: {path} is damaged; its header has shape {shape}")
    return start + file.tell(), shape, dtype, fortran and len(shape) > 1


def _check_numbers(fn: str, path: Path, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise TypeError(f"{fn}: {path} must hold numbers; got dtype={dtype}, Python objects")
    if dtype.subdtype is not None:
        raise TypeError(f"{fn}: {path} must hold numbers; got dtype={dtype}, arrays")


def choose(fn: str, path: Path, key: str | None, names: list[str]) -> str:
    """The name of the array to pool: the one asked for, or the only one."""
    if key is None and len(names) == 1:
        return names[0]
    if key in names:
        return str(key)
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise ValueError(f"{fn}: key must name one of the arrays in {path} ({shown or 'none'}); got key={key!r}")


def _open_npz(fn: str, path: Path, key: str | None, memory: int) -> Source:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        info = members[choose(fn, path, key, list(members))]
        with archive.open(info) as member:
            offset, shape, dtype, fortran = _npy_header(fn, path, member)
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            with open(path, "rb") as file:
                # The local header repeats the name and has extra fields of its own.
                file.seek(info.header_offset + 26)
                lengths = np.frombuffer(file.read(4), "<u2")
            begin = info.header_offset + 30 + int(lengths.sum())
            return RawSource(fn, path, begin + offset, shape, dtype, fortran)
        _check_numbers(fn, path, dtype)
        check_fits(fn, path, prod(shape) * dtype.itemsize, memory, "compressed .npz files are read at once")
        with archive.open(info) as member:
            return ArraySource(fn, np.lib.format.read_array(member, allow_pickle=False), owned=True)


def _open_tiff(fn: str, path: Path, memory: int) -> Source:
    tifffile = needs(fn, "tifffile", "tiff", "TIFF files")
    with tifffile.TiffFile(path) as file:
        if not file.pages or not file.series[0].shape:
            raise ValueError(f"{fn}: {path} is damaged; it has no page with an image")
        series = file.series[0]
        dims = tuple("c" if name == "S" else name.lower() for name in series.axes)
        if series.dataoffset is not None:
            dtype = np.dtype(series.dtype).newbyteorder(file.byteorder)
            return RawSource(fn, path, series.dataoffset, series.shape, dtype, dims=dims)
        try:
            needs(fn, "zarr", "zarr", "compressed TIFF files")
        except ImportError:
            nbytes = series.size * np.dtype(series.dtype).itemsize
            check_fits(fn, path, nbytes, memory, "compressed TIFF files stream only where zarr is installed")
            return ArraySource(fn, series.asarray(), dims, owned=True)
    return _zarr.open_tiff(fn, path, memory, dims)


def _open_image(fn: str, path: Path, memory: int) -> Source:
    images = needs(fn, "PIL.Image", "image", "PNG and JPEG files")
    with images.open(path) as image:
        bands = len(image.getbands())
        if image.mode == "P":
            raise TypeError(
                f"{fn}: {path} must hold brightness or colours; got a palette image (convert it to RGB or L)"
            )
        nbytes = image.width * image.height * bands * 4
        check_fits(fn, path, nbytes, memory, "PNG and JPEG files are decoded at once")
        array = np.asarray(image)
    return ArraySource(fn, array, ("y", "x", "c")[: array.ndim], owned=True)
