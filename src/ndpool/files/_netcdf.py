"""NetCDF and HDF5: variables read through xarray, decoded, and written through netCDF4.

Packed integers become floats and missing values NaN, as xarray decodes them. A result keeps the names of its
axes; coordinates along pooled axes are averaged over the same windows.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._arguments import show
from ndpool._call import Call
from ndpool.files._errors import needs, readable
from ndpool.files._target import Target
from ndpool.frameworks.stored import Box, Source

SUFFIXES = (".nc", ".nc4", ".cdf", ".h5", ".hdf5", ".he5")
_ATTRIBUTES = (str, int, float, np.integer, np.floating)


class NetcdfSource(Source):
    """A variable of a NetCDF or HDF5 file; `key` may contain its group, as ``"group/name"``."""

    def __init__(self, fn: str, path: Path, key: str | None) -> None:
        xarray = needs(fn, "xarray", "netcdf", "NetCDF and HDF5 files")
        needs(fn, "netCDF4", "netcdf", "NetCDF and HDF5 files")
        group, _, name = (key or "").strip("/").rpartition("/")
        self.fn, self._path = fn, path
        # Times stay the numbers they are, so that coordinates can be averaged.
        self._file = xarray.open_dataset(
            path, group=group or None, engine="netcdf4", decode_times=False, cache=False
        )
        found = [v for v in self._file.data_vars if self._file[v].ndim and self._file[v].dtype.kind in "biuf"]
        if not name and len(found) == 1:
            name = found[0]
        if name not in self._file.variables:
            shown = ", ".join(map(str, found)) or "none"
            self._file.close()
            raise ValueError(f"{fn}: key must name one of the arrays in {path} ({shown}); got key={key!r}")
        self._array = self._file[name]
        self.name = name
        self.shape, self.dtype = self._array.shape, np.dtype(self._array.dtype)
        self.dims = tuple(map(str, self._array.dims))
        chunks = self._array.encoding.get("chunksizes")
        self.chunks = tuple(chunks) if chunks else None
        self.scratch = 2 * prod(chunks or (0,)) * self.dtype.itemsize
        self.attributes = {k: v for k, v in self._array.attrs.items() if isinstance(v, _ATTRIBUTES)}
        self.coordinates = {
            str(d): self._file[d]
            for d in self._array.dims
            if d in self._file.variables and self._file[d].ndim == 1 and self._file[d].dtype.kind in "iuf"
        }

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        with readable(self.fn, self._path):
            return np.asarray(self._array[where].values)

    def close(self) -> None:
        self._file.close()


class NetcdfTarget(Target):
    """A variable of a new NetCDF-4 file, which is an HDF5 file."""

    def __init__(
        self,
        fn: str,
        path: Path,
        like: tuple[tuple[int, ...], np.dtype[Any]],
        source: Source,
        call: Call,
        key: str | None,
    ) -> None:
        netcdf = needs(fn, "netCDF4", "netcdf", "NetCDF and HDF5 files")
        self.shape, dtype = like
        self.dtype = np.dtype(dtype)
        if self.dtype == np.bool_ or self.dtype == np.float16:
            raise TypeError(f"{fn}: NetCDF and HDF5 files must have another dtype; got dtype={self.dtype}")
        self.grain = (1,) * len(self.shape)
        self._file = netcdf.Dataset(path, "w", format="NETCDF4", clobber=False)
        dims = source.dims or tuple(f"dim_{a}" for a in range(len(self.shape)))
        try:
            for name, size in zip(dims, self.shape, strict=True):
                self._file.createDimension(name, size)
            # Every element is written, and a float result may be NaN: no fill value.
            self._variable = self._file.createVariable(
                name_of(source, key), self.dtype.str[1:], dims, fill_value=False
            )
        except RuntimeError as error:
            self._file.close()
            shown = show((name_of(source, key), *dims))
            raise ValueError(
                f"{fn}: NetCDF and HDF5 files must have names that the format allows ({error}); "
                f"got {shown} for the array and its axes"
            ) from None
        self._variable.setncatts(getattr(source, "attributes", {}))
        for name, found in getattr(source, "coordinates", {}).items():
            values = _pooled(found.values, dims.index(name), call)
            variable = self._file.createVariable(name, values.dtype.str[1:], (name,))
            variable.setncatts({k: v for k, v in found.attrs.items() if isinstance(v, _ATTRIBUTES)})
            variable[:] = values

    def write(self, where: Box, y: NDArray[Any]) -> None:
        with _writable():
            self._variable[where] = y

    def finish(self) -> None:
        with _writable():
            self._file.close()

    def close(self) -> None:
        if self._file.isopen():
            self._file.close()


def name_of(source: Source, key: str | None) -> str:
    """The name of the variable to write: that of the input, where it has one."""
    return str(getattr(source, "name", None) or (key or "data").rpartition("/")[2])


def _pooled(values: NDArray[Any], axis: int, call: Call) -> NDArray[Any]:
    """Coordinates along an axis of the result: averaged over the windows where it is pooled."""
    if axis not in call.axes:
        return values
    plan = call.plan.axes[call.axes.index(axis)]
    windows = [plan.window(o) for o in range(plan.out)]
    means = [values[w.start : w.start + w.taps * w.step : w.step].mean() for w in windows]
    return np.array(means, np.float64)


@contextmanager
def _writable() -> Iterator[None]:
    """The library's own error for what the system refused, as an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(errno.EIO, f"the NetCDF library cannot write ({error}); is the disk full?") from error
