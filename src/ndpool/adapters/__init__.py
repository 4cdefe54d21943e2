"""Arrays that are pooled as arrays of another kind: which adapter a type belongs to.

`_run` asks here for every array that no framework of `_dispatch` takes. An adapter is imported when its first
array arrives; it opens the array, calls `_run` again with what is inside, and closes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ndpool import _dispatch
from ndpool._arguments import input_name
from ndpool._dispatch import unsupported
from ndpool.adapters._base import Adapted, Adapter

__all__ = ["adapter_of"]


def _arrays(fn: str) -> Adapter:
    from ndpool.adapters.arrays import Arrays

    return Arrays()


def _cupy(fn: str) -> Adapter:
    try:
        from ndpool.adapters.cupy import CupyArrays
    except ImportError as error:
        raise ImportError(
            f"{fn}: CuPy arrays need PyTorch with CUDA, and Triton; got {error} (limit: torch 2.6 or newer)"
        ) from error
    return CupyArrays()


def _data_arrays(fn: str) -> Adapter:
    from ndpool.adapters.xarray import DataArrays

    return DataArrays()


def _datasets(fn: str) -> Adapter:
    from ndpool.adapters.xarray import Datasets

    return Datasets()


def _images(fn: str) -> Adapter:
    from ndpool.adapters.images import Images

    return Images()


# (package, class) of an array or one of its base classes -> its adapter, in the name of a function.
ADAPTERS: dict[tuple[str, str], Callable[[str], Adapter]] = {
    ("cupy", "ndarray"): _cupy,
    ("xarray", "DataArray"): _data_arrays,
    ("xarray", "Dataset"): _datasets,
    ("PIL", "Image"): _images,
}
LAZY = frozenset({"cubed", "dask"})  # packages whose arrays would be computed by reading them
_PROTOCOLS = ("__array_namespace__", "__dlpack__", "__array__")
_known: dict[type, Adapter] = {}


def adapter_of(fn: str, x: Any) -> Adapter:
    """The adapter of an array that belongs to no framework, or a TypeError that says what is supported."""
    kind = type(x)
    adapter = _known.get(kind)
    if adapter is None:
        adapter = _known[kind] = _find(fn, x)
        _dispatch.packages[kind] = None  # so that the next call need not look for a framework
    return adapter


def _find(fn: str, x: Any) -> Adapter:
    kind = type(x)
    for base in kind.__mro__:
        load = ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if load is not None:
            return load(fn)
    # A NumPy scalar has an array's methods, and no axes.
    if isinstance(x, np.generic) or not any(hasattr(kind, name) for name in _PROTOCOLS):
        raise unsupported(fn, x)
    if kind.__module__.partition(".")[0] in LAZY:
        raise TypeError(
            f"{fn}: {input_name(fn)} must not be lazy, reading it would compute all of it; "
            f"got {kind.__module__}.{kind.__qualname__}"
        )
    return _arrays(fn)


def _adapted(fn: str, x: Any) -> Adapted:
    """A framework for blocks of other arrays, which may be of any kind."""
    adapter = adapter_of(fn, x)
    if not adapter.plain:
        raise unsupported(fn, x)
    return Adapted(adapter)


_dispatch.adapted = _adapted
