"""Pooling of files, also of those larger than memory: `pool` and `adaptive_pool`.

They take the arguments of `ndpool.pool` and `ndpool.adaptive_pool`, read the input tile by tile and write the
result under its name when it is complete. The command ``ndpool pool`` calls them. One module per concern:
`_stream` pools tiles, `_sources` and `_targets` know the formats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ndpool import general
from ndpool._call import Call
from ndpool._plan import with_sizes
from ndpool.files._errors import parse_bytes
from ndpool.files._output import How, output
from ndpool.files._sources import open_source
from ndpool.files._stream import Progress, result_dtype, stream
from ndpool.files._targets import Wanted, check_extension, open_target
from ndpool.frameworks.stored import Source
from ndpool.general import Ints, Padding

__all__ = ["adaptive_pool", "pool"]

Axes = int | str | Sequence[int | str] | None


def pool(
    source: Any,
    target: str | os.PathLike[str],
    window: Ints,
    *,
    reduce: str = "max",
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    axes: Axes = None,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    dtype: Any = None,
    key: str | None = None,
    chunks: Ints | None = None,
    memory: int | str = "1GiB",
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """
    Pool an array in a file into another file, within bounded memory.

    The result equals that of `ndpool.pool` on the whole array, to the bit. The formats follow from the
    extensions: .npy, .npz, .zarr, .zarr.zip, .tif, .png, .jpg, .nc, .h5. The target appears when it is
    complete; a run that fails or is interrupted leaves no file of that name.

    Parameters
    ----------
    source : path or array
        File to pool, or an array that can be sliced.
    target : path
        File to write.
    window : int or sequence of int
        Window size along each pooled axis.
    reduce : {"max", "min", "avg", "sum", "lp"}, default "max"
        Reduction applied to each window.
    stride : int or sequence of int, default None
        Step between windows; None means `window`.
    padding : int, str, sequence of int or sequence of pair of int, default 0
        As in `ndpool.pool`.
    dilation : int or sequence of int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window.
    axes : int, str or sequence of int or str, default None
        Pooled axes, by number or by name where the file has names. None means y and x where the file names
        them, otherwise the last axes: as many as `window` has entries, two for a single number.
    count_include_pad : bool, default True
        Whether padding counts in the divisor of an average.
    divisor_override : int, default None
        Divisor used instead of the window size, for averages only.
    norm_type : float, default 2.0
        The p of ``reduce="lp"``.
    dtype : dtype, default None
        Dtype of the result; None keeps that of the input, as in `ndpool.pool`.
    key : str, default None
        Name of the array in an .npz, a Zarr group, a NetCDF or HDF5 file; needed where there are several.
    chunks : int or sequence of int, default None
        Chunks of a Zarr result; None keeps those of a Zarr input, or makes chunks of at most one MiB.
    memory : int or str, default "1GiB"
        Memory for the data of a tile and everything computed from it, beside the interpreter's own.
    overwrite : bool, default False
        Replace an existing target.
    resume : bool, default False
        Continue a Zarr folder that an interrupted run with the same arguments left, ``target + ".partial"``.
    progress : callable, default None
        Called after each tile with the bytes of the input done and in total.

    Returns
    -------
    pathlib.Path
        The path of the target.

    Examples
    --------
    >>> import numpy as np, ndpool, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.save(f"{folder.name}/large.npy", np.arange(24).reshape(4, 6))
    >>> path = ndpool.files.pool(f"{folder.name}/large.npy", f"{folder.name}/small.npy", 2)
    >>> np.load(path)
    array([[ 7,  9, 11],
           [19, 21, 23]])
    >>> folder.cleanup()
    """

    def call(x: Source) -> Any:
        return general.pool(
            x,
            window,
            reduce=reduce,
            stride=stride,
            padding=padding,
            dilation=dilation,
            ceil_mode=ceil_mode,
            axes=find_axes("pool", axes, x, window),
            count_include_pad=count_include_pad,
            divisor_override=divisor_override,
            norm_type=norm_type,
            dtype=dtype,
        )

    asked: dict[str, Any] = {"window": window, "stride": stride, "padding": padding, "dilation": dilation}
    asked |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor": divisor_override}
    asked |= {
        "reduce": reduce,
        "norm_type": norm_type,
        "axes": axes,
        "dtype": None if dtype is None else str(dtype),
    }
    how = How(key, chunks, parse_bytes("pool", "memory", memory), overwrite, resume, progress)
    return _write("pool", call, source, target, asked, how)


def adaptive_pool(
    source: Any,
    target: str | os.PathLike[str],
    output_size: int | Sequence[int | None],
    *,
    reduce: str = "max",
    axes: Axes = None,
    norm_type: float = 2.0,
    dtype: Any = None,
    key: str | None = None,
    chunks: Ints | None = None,
    memory: int | str = "1GiB",
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """
    Pool an array in a file to a fixed output size, within bounded memory.

    The result equals that of `ndpool.adaptive_pool` on the whole array, to the bit.

    Parameters
    ----------
    source : path or array
        File to pool, or an array that can be sliced.
    target : path
        File to write.
    output_size : int or sequence of int or None
        Output size along each pooled axis; None keeps the input's.
    reduce : {"max", "min", "avg", "sum", "lp"}, default "max"
        Reduction applied to each window.
    axes : int, str or sequence of int or str, default None
        As in `ndpool.files.pool`.
    norm_type : float, default 2.0
        The p of ``reduce="lp"``.
    dtype : dtype, default None
        Dtype of the result.
    key : str, default None
        Name of the array in a file with several.
    chunks : int or sequence of int, default None
        Chunks of a Zarr result.
    memory : int or str, default "1GiB"
        Memory for the data of a tile and everything computed from it; a tile holds at least one window.
    overwrite : bool, default False
        Replace an existing target.
    resume : bool, default False
        Continue a Zarr folder that an interrupted run left.
    progress : callable, default None
        Called after each tile with the bytes of the input done and in total.

    Returns
    -------
    pathlib.Path
        The path of the target.
    """

    def call(x: Source) -> Any:
        at = find_axes("adaptive_pool", axes, x, output_size)
        return general.adaptive_pool(x, output_size, reduce=reduce, axes=at, norm_type=norm_type, dtype=dtype)

    asked: dict[str, Any] = {
        "output_size": output_size,
        "reduce": reduce,
        "norm_type": norm_type,
        "axes": axes,
    }
    asked["dtype"] = None if dtype is None else str(dtype)
    how = How(key, chunks, parse_bytes("adaptive_pool", "memory", memory), overwrite, resume, progress)
    return _write("adaptive_pool", call, source, target, asked, how)


def find_axes(fn: str, axes: Axes, x: Source, window: Any) -> Any:
    """The pooled axes as numbers: by number, by name, or those of the picture."""
    if axes is not None:
        given = [axes] if isinstance(axes, str) or not isinstance(axes, Iterable) else list(axes)
        if any(isinstance(a, str) for a in given):
            for a in given:
                if isinstance(a, str) and a not in x.dims:
                    known = ", ".join(x.dims) or "none"
                    raise ValueError(
                        f"{fn}: axes must be axes of the input (names: {known}); got axes={axes!r}"
                    )
            return [x.dims.index(a) if isinstance(a, str) else a for a in given]
        return axes
    n = len(window) if isinstance(window, Sequence) else 2
    names = ("z", "y", "x")[-n:] if n in (2, 3) else ()
    if names and all(name in x.dims for name in names):
        return [x.dims.index(name) for name in names]
    if not isinstance(window, Sequence):
        return list(range(len(x.shape)))[-2:]
    return None


def _write(
    fn: str,
    ask: Callable[[Source], Call],
    source: Any,
    target: str | os.PathLike[str],
    asked: dict[str, Any],
    how: How,
) -> Path:
    check_extension(fn, Path(target))
    with closing(open_source(fn, source, how.key, how.memory)) as x:
        call = ask(x)
        shape = with_sizes(x.shape, call.axes, call.plan.out)
        wanted = Wanted(shape, result_dtype(call, x.dtype), x, call, how.key, how.chunks, how.memory)
        request = {"function": fn, **asked, "shape": x.shape, "input": [str(x.dtype), *x.identity]}
        request |= {"chunks": how.chunks, "key": how.key}
        with (
            output(fn, source, target, how, request) as (place, journal),
            closing(open_target(fn, place, wanted, journal)) as y,
        ):
            stream(fn, x, y, call, how.memory, how.progress)
            y.finish()
    return place.path
