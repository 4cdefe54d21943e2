"""Targets: .npy and .npz, TIFF, PNG and JPEG, behind the interface that `stream` writes to.

`open_target` finds the format by the extension of the final path and writes to the temporary one. Zarr is in
`_zarr`, NetCDF and HDF5 in `_netcdf`.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndpool._call import Call
from ndpool.files import _netcdf, _zarr
from ndpool.files._errors import check_dtype, check_fits, needs
from ndpool.files._sources import FORMATS, IMAGES, TIFFS, extension
from ndpool.files._target import Place, RawTarget, Target
from ndpool.frameworks.stored import Box, Source

BIGTIFF = 2**32 - 2**25  # bytes of data from which a classic TIFF is too small, with room for its header
# Shapes (axes, channels) and dtypes that an image file can hold.
_PNG = {(2, 1): ("bool", "uint8", "uint16"), (3, 2): ("uint8",), (3, 3): ("uint8",), (3, 4): ("uint8",)}
_JPEG = {(2, 1): ("uint8",), (3, 3): ("uint8",)}


class Wanted(NamedTuple):
    """The array to write: what it is, and what it was made from."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Source
    call: Call
    key: str | None = None
    chunks: Any = None
    memory: int = 0


def check_extension(fn: str, path: Path) -> str:
    """The extension of an output, or an error that lists them."""
    kind = extension(path)
    if kind not in (".npy", ".npz", ".zarr", ".zip", *TIFFS, *IMAGES, *_netcdf.SUFFIXES):
        raise ValueError(f"{fn}: the output's extension must be one of {FORMATS}; got {path.name!r}")
    return kind


def open_target(fn: str, place: Place, wanted: Wanted, journal: _zarr.Journal | None) -> Target:
    """The target for a path that is given its name later."""
    kind, path = check_extension(fn, place.path), place.partial
    shape, dtype = wanted.shape, wanted.dtype
    nbytes = prod(shape) * dtype.itemsize
    check_dtype(fn, dtype)
    if kind in (".zarr", ".zip"):
        return _zarr_target(fn, place, wanted, journal)
    if kind not in IMAGES:
        place.check_space(nbytes * (2 if kind == ".npz" else 1))
    if kind == ".npy":
        return _npy(path, shape, dtype, wanted.source.fortran)
    if kind == ".npz":
        return NpzTarget(path, wanted)
    if kind in TIFFS:
        return _tiff(fn, path, wanted)
    if kind in IMAGES:
        return ImageTarget(fn, path, kind, wanted)
    return _netcdf.NetcdfTarget(fn, path, (shape, dtype), wanted.source, wanted.call, wanted.key)


def _npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool) -> RawTarget:
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": fortran,
        "shape": shape,
    }
    with open(path, "xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
    return RawTarget(path, offset, shape, dtype, fortran)


class NpzTarget(RawTarget):
    """An uncompressed .npz with one array: written as .npy first, because it holds a checksum of that."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path, self._npy = path, path.with_name(path.name + ".npy")
        fortran = wanted.source.fortran
        self._npy.unlink(missing_ok=True)
        header = _npy(self._npy, wanted.shape, wanted.dtype, fortran)
        header.close()
        super().__init__(self._npy, header.offset, wanted.shape, wanted.dtype, fortran)
        self._name = (wanted.key or "arr_0") + ".npy"

    def finish(self) -> None:
        with zipfile.ZipFile(self._path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.write(self._npy, self._name)

    def close(self) -> None:
        super().close()
        self._npy.unlink(missing_ok=True)


def _tiff(fn: str, path: Path, wanted: Wanted) -> RawTarget:
    """An uncompressed TIFF: written without its elements, which then go to their place in the file."""
    tifffile = needs(fn, "tifffile", "tiff", "TIFF files")
    shape, dtype, dims = wanted.shape, wanted.dtype, wanted.source.dims
    if dtype == np.bool_:
        raise TypeError(f"{fn}: TIFF files must have whole bytes; got dtype=bool (ask for uint8)")
    if 0 in shape:
        raise ValueError(f"{fn}: TIFF files must not be empty; got shape {shape}")
    colour = dims[-1:] == ("c",) and shape[-1] in (3, 4) and dtype.name in ("uint8", "uint16")
    metadata: dict[str, Any] = {}
    if dims and all(len(name) == 1 for name in dims):
        metadata["axes"] = "".join(dims).upper()[: -1 if colour else None] + ("S" if colour else "")
    with tifffile.TiffWriter(path, bigtiff=prod(shape) * dtype.itemsize > BIGTIFF) as file:
        file.write(
            shape=shape,
            dtype=dtype,
            photometric="rgb" if colour else "minisblack" if len(shape) > 1 else None,
            planarconfig="contig" if colour else None,
            metadata=metadata,
        )
    with tifffile.TiffFile(path) as file:
        offset = file.series[0].dataoffset
    return RawTarget(path, offset, shape, dtype)


class ImageTarget(Target):
    """A PNG or JPEG: collected in memory and encoded at the end."""

    def __init__(self, fn: str, path: Path, kind: str, wanted: Wanted) -> None:
        self._images = needs(fn, "PIL.Image", "image", "PNG and JPEG files")
        self.shape, self.dtype, self.grain = wanted.shape, wanted.dtype, (1,) * len(wanted.shape)
        table, name = (_PNG, "PNG") if kind == ".png" else (_JPEG, "JPEG")
        held = table.get((len(self.shape), self.shape[2] if len(self.shape) == 3 else 1), ())
        if self.dtype.name not in held or 0 in self.shape:
            raise TypeError(
                f"{fn}: {name} files must be height x width of {', '.join(table[2, 1])}, or with a last axis "
                f"of colours of uint8; got shape {self.shape} and dtype={self.dtype} "
                "(.tif and .npy hold any array)"
            )
        self._path, self._format = path, name
        self.resident = 2 * prod(self.shape) * self.dtype.itemsize
        check_fits(fn, path, self.resident, wanted.memory, "PNG and JPEG files are encoded at once")
        self._array = np.empty(self.shape, self.dtype)

    def write(self, where: Box, y: NDArray[Any]) -> None:
        self._array[where] = y

    def finish(self) -> None:
        with open(self._path, "xb") as file:
            self._images.fromarray(self._array).save(file, format=self._format)


def _zarr_target(fn: str, place: Place, wanted: Wanted, journal: _zarr.Journal | None) -> Target:
    zarr = needs(fn, "zarr", "zarr", "Zarr files")
    source, like = wanted.source, (wanted.shape, wanted.dtype)
    chunks = _zarr.check_chunks(fn, wanted.chunks, *like, source.layout)
    if journal is not None and journal.resumed:
        return _zarr.ZarrTarget(zarr.open_array(place.partial, mode="r+"), wanted.memory, journal)
    store = place.partial if place.folder else zarr.storage.ZipStore(place.partial, mode="x")
    array = _zarr.create(store, None, like, chunks, source.dims, getattr(source, "zarr_format", 3))
    return _zarr.ZarrTarget(array, wanted.memory, journal, store=None if place.folder else store)
