"""xarray: pooling along named dimensions, with coordinates.

What is inside a `DataArray` is pooled by its own framework, so that lazy data stay lazy. A coordinate along a
pooled dimension becomes its mean over each window; one that has no mean, as labels, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from xarray import DataArray, Dataset

from ndpool import geometry
from ndpool._arguments import check_shape, count_axes, normalize_axes
from ndpool._call import Asked, Call, Function
from ndpool._dispatch import framework_of
from ndpool._plan import AxisPlan, Plan
from ndpool.adapters._base import Adapter
from ndpool.reductions import REDUCTIONS


class DataArrays(Adapter):
    """`xarray.DataArray`."""

    def open(self, fn: str, name: str, x: Any) -> Any:
        """What is inside, be it lazy."""
        return x.data if isinstance(x, DataArray) else x

    def pool(
        self,
        run: Callable[..., Any],
        function: Function,
        x: DataArray,
        arguments: tuple[Any, ...],
        indices: Any,
        asked: Asked,
    ) -> Any:
        """Pool along dimensions, given by name or number."""
        fn, out = function.name, asked.out
        if not function.n_axes:
            *windows, given = arguments
            arguments = (*windows, numbered(fn, x.dims, given))
        result = run(function, x.data, arguments, indices, self.opened(fn, x, asked))
        if out is not None:
            return out
        axes, plan = _windows(function, x.shape, arguments)
        dims = [x.dims[a] for a in axes]
        return _wrap(x, result, dims, means(x, dict(zip(dims, plan.axes, strict=True))))

    def fractional(
        self,
        run: Callable[..., Any],
        function: Function,
        x: DataArray,
        arguments: tuple[Any, ...],
        indices: Any,
        samples: Any,
        generator: Any,
    ) -> Any:
        """Every plane has windows of its own, so that pooled dimensions lose their coordinates."""
        samples = self.open(function.name, "_random_samples", samples)
        result = run(function, x.data, arguments, indices, samples, generator)
        return _wrap(x, result, x.dims[-function.n_axes :], {})

    def unpool(
        self,
        run: Callable[..., Any],
        fn: str,
        values: DataArray,
        indices: Any,
        n_axes: int,
        arguments: tuple[Any, ...],
    ) -> Any:
        """Pooled dimensions lose their coordinates, which pooling has changed."""
        places = _aligned(fn, values, indices)
        result = run(fn, values.data, places, n_axes, arguments)
        return _wrap(values, result, values.dims[-n_axes:], {})

    def general_unpool(
        self, run: Callable[..., Any], values: DataArray, indices: Any, output_size: Any, axes: Any
    ) -> Any:
        """The same along any dimensions."""
        places, at = _aligned("unpool", values, indices), numbered("unpool", values.dims, axes)
        result = run(values.data, places, output_size, at)
        n_axes = count_axes("unpool", "output_size", output_size, at)
        pooled = normalize_axes("unpool", at, values.ndim, n_axes)
        return _wrap(values, result, [values.dims[a] for a in pooled], {})


class Datasets(DataArrays):
    """`xarray.Dataset`: every variable that has the dimensions is pooled, the others stay as they are."""

    def pool(
        self,
        run: Callable[..., Any],
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        asked: Asked,
    ) -> Any:
        """Pool along named dimensions."""
        fn, given = function.name, None if function.n_axes else arguments[-1]
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"{fn}: axes must be names of dimensions for a Dataset, in pool or adaptive_pool; "
                f"got axes={given!r}"
            )
        if asked.out is not None:
            raise TypeError(f"{fn}: out must not be given for a Dataset; got {type(asked.out).__name__}")
        results: dict[Hashable, Any] = {}
        for name, variable in x.data_vars.items():
            common = [dim for dim in names if dim in variable.dims]
            if common and len(common) < len(names):
                raise ValueError(
                    f"{fn}: every variable must have all of the pooled dimensions or none; "
                    f"got variable {name!r} with dims={variable.dims} for axes={given!r}"
                )
            if common:
                results[name] = super().pool(run, function, variable, arguments, indices, asked)
        if not results:
            raise ValueError(f"{fn}: axes must be dimensions of a variable; got axes={given!r}")
        rest = {name: variable for name, variable in x.data_vars.items() if name not in results}
        if not indices:
            return _dataset(x, names, rest | results, x.attrs)
        values = {name: pair[0] for name, pair in results.items()}
        places = {name: pair[1] for name, pair in results.items()}
        return _dataset(x, names, rest | values, x.attrs), _dataset(x, names, places, None)

    def fractional(self, run: Callable[..., Any], function: Function, x: Any, *arguments: Any) -> Any:
        """A `Dataset` has no last axes."""
        raise TypeError(f"{function.name}: input must be a DataArray; got a Dataset")

    def unpool(self, run: Callable[..., Any], fn: str, values: Any, indices: Any, *arguments: Any) -> Any:
        """A `Dataset` has no last axes."""
        raise TypeError(f"{fn}: input must be a DataArray; got a Dataset")

    def general_unpool(
        self, run: Callable[..., Any], values: Any, indices: Any, output_size: Any, axes: Any
    ) -> Any:
        """Each variable has indices of its own."""
        raise TypeError("unpool: values must be a DataArray; got a Dataset: unpool its variables one by one")


def numbered(fn: str, dims: tuple[Hashable, ...], axes: Any) -> Any:
    """Axes with numbers in place of names."""
    if isinstance(axes, str):
        return (_number(fn, dims, axes, axes),)
    if isinstance(axes, Sequence):
        return tuple([_number(fn, dims, axis, axes) if isinstance(axis, str) else axis for axis in axes])
    return axes


def _number(fn: str, dims: tuple[Hashable, ...], dim: str, axes: Any) -> int:
    if dim not in dims:
        raise ValueError(f"{fn}: axes must be dimensions of the input; got axes={axes!r} with dims={dims}")
    return dims.index(dim)


def _windows(
    function: Function, shape: tuple[int, ...], arguments: tuple[Any, ...]
) -> tuple[tuple[int, ...], Plan]:
    """Pooled axes and windows of a call, which has already run."""
    fn, _, n_axes = function
    if n_axes:
        axes = check_shape(fn, shape, n_axes)
    else:
        *arguments, given = arguments  # type: ignore[assignment]
        n_axes = count_axes(fn, "window", arguments[0], given)
        axes = normalize_axes(fn, given, len(shape), n_axes)
    return axes, geometry.plan(fn, tuple([shape[a] for a in axes]), arguments, function.n_axes > 0)


def _aligned(fn: str, values: DataArray, indices: Any) -> Any:
    """What is inside indices along the same dimensions."""
    if not isinstance(indices, DataArray):
        return indices
    if indices.dims != values.dims:
        raise ValueError(
            f"{fn}: indices must have the input's dimensions {values.dims}; got dims={indices.dims}"
        )
    return indices.data


def _wrap(x: DataArray, result: Any, dims: Any, means: dict[Hashable, Any]) -> Any:
    """Values with name, attributes and coordinates; indices have no attributes, which describe values."""
    gone = [name for name, coordinate in x.coords.items() if set(coordinate.dims) & set(dims)]
    kept = x.drop_vars(gone).coords

    def array(data: Any, attrs: Any) -> Any:
        made = DataArray(data, kept, x.dims, x.name, attrs).assign_coords(means)
        made.name = x.name  # without one, xarray would take that of a lazy array
        return made

    if isinstance(result, tuple):
        return array(result[0], x.attrs), array(result[1], None)
    return array(result, x.attrs)


def _dataset(x: Dataset, dims: Any, variables: dict[Hashable, Any], attrs: Any) -> Any:
    """Variables in the order of `x`, with the coordinates that belong to none of them."""
    pooled = [name for name, coordinate in x.coords.items() if set(coordinate.dims) & set(dims)]
    kept = x.drop_vars([*pooled, *x.data_vars]).coords
    order = {name: variables[name] for name in x.data_vars if name in variables}
    return Dataset(order, attrs=attrs).assign_coords(kept)


def means(x: DataArray, pooled: dict[Hashable, AxisPlan]) -> dict[Hashable, Any]:
    """The coordinates along pooled dimensions, as their means over the elements of each window."""
    found: dict[Hashable, Any] = {}
    for name, coordinate in x.coords.items():
        axes = tuple([a for a, dim in enumerate(coordinate.dims) if dim in pooled])
        if not axes:
            continue
        # Padding has no coordinate: it does not count.
        plans = [pooled[coordinate.dims[a]] for a in axes]
        plan = Plan([replace(axis, bounds=(0, axis.size)) for axis in plans])
        data = _mean(coordinate.variable.data, axes, plan)
        if data is not None:
            found[name] = xarray.Variable(coordinate.dims, data, coordinate.attrs)
    return found


def _mean(data: Any, axes: tuple[int, ...], plan: Plan) -> Any:
    """The mean over each window, or None where there is none."""
    kind, plain = data.dtype.kind, isinstance(data, np.ndarray)
    empty = not all(axis.windows()[1].all() for axis in plan.axes)
    if not plain and (empty or kind not in "iuf"):
        return None
    if kind in "iuf":
        data = data if kind == "f" and data.dtype.itemsize <= 8 else data.astype(np.float64)
        result = framework_of("pool", data).run(Call("pool", REDUCTIONS["avg"], axes, plan), data)
        if empty:
            result[np.broadcast_to(_counts(data.ndim, axes, plan), result.shape) == 0] = np.nan
        return result
    if kind in "mM":
        ticks = _mean_of_integers(data.view(np.int64), axes, plan)
        missing = _reduced("max", np.isnat(data), axes, plan)
        missing |= _counts(data.ndim, axes, plan) == 0
        ticks[missing] = np.datetime64("NaT").view(np.int64)
        return ticks.view(data.dtype)
    return _mean_of_dates(data, axes, plan) if kind == "O" and not empty else None


def _mean_of_dates(data: NDArray[Any], axes: tuple[int, ...], plan: Plan) -> Any:
    """The mean of dates as objects (`cftime`), to the microsecond; None for other objects."""
    try:
        first = data.flat[0]
        steps = [value - first for value in data.flat]
    except (IndexError, TypeError):
        return None
    if not all(isinstance(step, timedelta) for step in steps):
        return None
    micro = timedelta(microseconds=1)
    ticks = np.array([step // micro for step in steps], np.int64).reshape(data.shape)
    means = _mean_of_integers(ticks, axes, plan)
    dates = np.empty(means.shape, object)
    dates.ravel()[:] = [first + int(ticks) * micro for ticks in means.flat]
    return dates


def _mean_of_integers(ticks: NDArray[np.int64], axes: tuple[int, ...], plan: Plan) -> NDArray[np.int64]:
    """The mean, rounded down, without overflow: sums of the upper and the lower halves."""
    upper, lower = (_reduced("sum", half, axes, plan) for half in (ticks >> 32, ticks & 0xFFFFFFFF))
    counts = np.maximum(_counts(ticks.ndim, axes, plan), 1)
    whole, rest = np.divmod(upper, counts)
    mean: NDArray[np.int64] = (whole << 32) + ((rest << 32) + lower) // counts
    return mean


def _counts(ndim: int, axes: tuple[int, ...], plan: Plan) -> NDArray[np.int64]:
    """The number of elements of each window, of a shape that broadcasts."""
    counts = np.ones((1,) * ndim, np.int64)
    for a, axis in zip(axes, plan.axes, strict=True):
        counts = counts * axis.windows()[1].reshape([-1 if i == a else 1 for i in range(ndim)])
    return counts


def _reduced(reduce: str, data: NDArray[Any], axes: tuple[int, ...], plan: Plan) -> NDArray[Any]:
    call = Call("pool", REDUCTIONS[reduce], axes, plan)
    result: NDArray[Any] = framework_of("pool", data).run(call, data)
    return result
