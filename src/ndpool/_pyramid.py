"""`pyramid`: multiscale levels of an array in memory, of a lazy array, or of a file written as OME-Zarr.

Every level is pooled from the one before. A level comes from `_levels`; `files._ome` writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from ndpool._arguments import check_int, check_ints, check_range, normalize_axes, show
from ndpool._levels import DIMS, SAME, letters, next_level
from ndpool.general import Ints
from ndpool.reductions import find

A = TypeVar("A")
SMALL = 256  # pixels along an axis that need no further level
Axes = int | str | Sequence[int | str] | None


@overload
def pyramid(
    array: A,
    levels: int | None = None,
    reduce: str = "avg",
    factor: Ints = 2,
    *,
    axes: Axes = None,
    store: None = None,
    dims: str | Sequence[str] | None = None,
) -> list[A]: ...


@overload
def pyramid(
    array: Any,
    levels: int | None = None,
    reduce: str = "avg",
    factor: Ints = 2,
    *,
    axes: Axes = None,
    store: str | os.PathLike[str],
    dims: str | Sequence[str] | None = None,
    scale: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    ome_version: str = "0.5",
    chunks: Ints | None = None,
    key: str | None = None,
    memory: int | str = "1GiB",
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Any]: ...


def pyramid(
    array: Any,
    levels: int | None = None,
    reduce: str = "avg",
    factor: Ints = 2,
    *,
    axes: Axes = None,
    store: str | os.PathLike[str] | None = None,
    dims: str | Sequence[str] | None = None,
    scale: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    ome_version: str = "0.5",
    chunks: Ints | None = None,
    key: str | None = None,
    memory: int | str = "1GiB",
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Any]:
    """
    Make a pyramid: the array, and smaller and smaller versions of it, each pooled from the one before.

    Sizes are rounded up, so that no pixel is lost: a partial window at the end of an axis is reduced over the
    pixels it contains. An axis of size 1 stays as it is. Averages of integers are truncated towards zero, as
    in `pool`. With `store` the levels are written as OME-Zarr, chunk by chunk, within bounded memory.

    Parameters
    ----------
    array : array or path
        Image, volume or labels of any supported kind; with `store` also a file that `ndpool.files.pool`
        reads, or anything with a shape, a dtype and slices.
    levels : int, default None
        Number of levels, the array itself included; fewer where all pooled axes reach size 1. None stops
        where no pooled axis is longer than 256.
    reduce : {"avg", "max", "min"}, default "avg"
        Reduction applied to each window; max or min for labels, whose averages mean nothing.
    factor : int or sequence of int, default 2
        Window size and stride between levels, for all pooled axes or for each.
    axes : int, str or sequence of int or str, default None
        Pooled axes, by number or by name. None means those called x, y and z.
    store : path, default None
        Folder (.zarr) or zip (.zarr.zip) to write; None returns the levels.
    dims : str or sequence of str, default None
        Names of the axes, such as "tczyx". None means those of the file or the xarray object, or the last of
        "tczyx" ("zyx" for three axes).
    scale : mapping from str to float, default None
        Size of a pixel along the named axes; 1 where it is not given.
    units : mapping from str to str, default None
        Units of the named axes, such as ``{"x": "micrometer"}``.
    ome_version : {"0.5", "0.4"}, default "0.5"
        Version of OME-Zarr: 0.5 in Zarr format 3, 0.4 in Zarr format 2.
    chunks : int or sequence of int, default None
        Chunks of all levels; None keeps those of a Zarr input, or makes chunks of at most one MiB.
    key : str, default None
        Name of the array in a file with several.
    memory : int or str, default "1GiB"
        Memory for the data of a tile and everything computed from it.
    overwrite : bool, default False
        Replace an existing `store`.
    resume : bool, default False
        Continue a folder that an interrupted run with the same arguments left as ``store + ".partial"``.
    progress : callable, default None
        Called after each tile with the bytes read and in total.

    Returns
    -------
    list of array
        The levels, `array` first; with `store` the arrays of Zarr.

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> [level.shape for level in ndpool.pyramid(np.zeros((100, 75)), 4)]
    [(100, 75), (50, 38), (25, 19), (13, 10)]
    >>> labels = np.array([[0, 0, 7, 7], [0, 0, 0, 7]])
    >>> ndpool.pyramid(labels, reduce="max", levels=2)[1]
    array([[0, 7]])
    """
    reduction = find("pyramid", reduce)
    if reduction.norm or not (reduction.has_index or reduction.divides):
        raise ValueError(
            f"pyramid: reduce must keep the range of the values (avg, max or min); got reduce={reduce!r}"
        )
    if levels is not None:
        levels = check_range("pyramid", "levels", check_int("pyramid", "levels", levels), 1)
    if dims is not None and not isinstance(dims, Sequence):
        raise TypeError(f"pyramid: dims must be the names of the axes; got dims={show(dims)}")
    if store is not None:
        from ndpool.files import _ome
        from ndpool.files._errors import parse_bytes
        from ndpool.files._output import How

        how = How(key, chunks, parse_bytes("pyramid", "memory", memory), overwrite, resume, progress)
        image = _ome.Image(array, dims, scale, units, ome_version)
        return _ome.write(
            image, store, how, reduce, lambda shape, names: _steps(shape, names, axes, factor, levels)
        )
    if isinstance(array, (str, os.PathLike)):
        raise ValueError(f"pyramid: store must say where the pyramid of a file goes; got {str(array)!r}")
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        raise TypeError(f"pyramid: array must be an array; got {type(array).__qualname__}")
    shape, own = tuple(array.shape), tuple(getattr(array, "dims", ()))  # xarray's
    names = tuple(dims) if dims is not None else own if axes is not None else letters(own, len(shape))
    found = [array]
    at, steps = _steps(shape, names, axes, factor, levels)
    for window in steps:
        found.append(next_level(found[-1], window, reduce, at))
    return found


def _steps(
    shape: tuple[int, ...], names: tuple[str, ...], axes: Axes, factor: Ints, levels: int | None
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The pooled axes, and the windows from each level to the next."""
    at = _pooled_axes(shape, names, axes)
    factors = check_ints("pyramid", "factor", factor, len(at))
    for f in factors:
        check_range("pyramid", "factor", f, 1)
    if max(factors) == 1:
        raise ValueError(f"pyramid: factor must be at least 2 along one of the axes; got factor={factor!r}")
    sizes = [shape[a] for a in at]
    steps: list[tuple[int, ...]] = []
    small = 1 if levels is not None else SMALL
    while any(n > small for n, f in zip(sizes, factors, strict=True) if f > 1):
        if levels is not None and len(steps) + 1 >= levels:
            break
        window = tuple(max(1, min(f, n)) for f, n in zip(factors, sizes, strict=True))
        sizes = [-(-n // w) for n, w in zip(sizes, window, strict=True)]
        steps.append(window)
    return at, steps


def _pooled_axes(shape: tuple[int, ...], names: tuple[str, ...], axes: Axes) -> tuple[int, ...]:
    ndim = len(shape)
    if names and (len(names) != ndim or len(set(names)) != ndim):
        raise ValueError(f"pyramid: dims must name the {ndim} axes of the array; got dims={show(names)}")
    names = names or tuple(DIMS.get(ndim, ""))
    if axes is None:
        at = [a for a, name in enumerate(names) if name in ("x", "y", "z")]
        if not at:
            raise ValueError(
                f"pyramid: axes must say what to pool where none is called x, y or z; "
                f"got axes=None with shape {shape} and dims={show(names)}"
            )
        return tuple(at)
    numbers: list[int] = []
    for axis in [axes] if isinstance(axes, str) or not isinstance(axes, Iterable) else axes:
        if isinstance(axis, str) and axis not in names:
            axis = SAME.get(axis, axis)
        if isinstance(axis, str) and axis not in names:
            raise ValueError(f"pyramid: axes must be among {', '.join(names)}; got axes={show(axes)}")
        numbers.append(names.index(axis) if isinstance(axis, str) else axis)
    return normalize_axes("pyramid", numbers, ndim, len(numbers))
