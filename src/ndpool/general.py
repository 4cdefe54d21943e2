"""The general functions: any number of pooled axes, any axes, any reduction, freer padding.

They pass their arguments to `_run`, as the named functions in `functional` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

from ndpool._call import PLAIN, Asked, Function
from ndpool._policy import check_norm
from ndpool._run import run, run_general_unpool
from ndpool.reductions import REDUCTIONS, find

A = TypeVar("A")
Ints = int | Sequence[int]
Axes = int | str | Sequence[int] | Sequence[str]
Padding = int | str | Sequence[int] | Sequence[tuple[int, int]]
_POOL = {name: Function("pool", reduction) for name, reduction in REDUCTIONS.items()}
_ADAPTIVE_POOL = {name: Function("adaptive_pool", reduction) for name, reduction in REDUCTIONS.items()}


@overload
def pool(
    x: A,
    window: Ints,
    *,
    reduce: str = "max",
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    axes: Axes | None = None,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    return_indices: Literal[False] = False,
    dtype: Any = None,
    out: A | None = None,
) -> A: ...


@overload
def pool(
    x: A,
    window: Ints,
    *,
    reduce: str = "max",
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    axes: Axes | None = None,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    return_indices: Literal[True],
    dtype: Any = None,
    out: tuple[A, A] | None = None,
) -> tuple[A, A]: ...


def pool(
    x: Any,
    window: Ints,
    *,
    reduce: str = "max",
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    axes: Axes | None = None,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    return_indices: bool = False,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """
    Pool any axes of an array with a sliding window.

    Parameters
    ----------
    x : array
        Any number of axes, any memory layout, any supported dtype.
    window : int or sequence of int
        Window size along each pooled axis; an int needs `axes`.
    reduce : {"max", "min", "avg", "sum", "lp"}, default "max"
        Reduction applied to each window. Max and min propagate NaN; ties return the first index.
    stride : int or sequence of int, default None
        Step between windows; None means `window`.
    padding : int, str, sequence of int or sequence of pair of int, default 0
        Padding on both sides, per axis, or as a (before, after) pair per axis. More than half the window is
        allowed while every window contains an element of the input. ``"same"`` gives ceil(size / stride)
        outputs and puts the odd element after the input, ``"same_lower"`` before it; ``"valid"`` means 0.
    dilation : int or sequence of int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    axes : int, str, sequence of int or sequence of str, default None
        Pooled axes; None means the last ones. ``(-3, -2)`` pools a channels-last image. Names are dimensions
        of an `xarray.DataArray`.
    count_include_pad : bool, default True
        Whether padding counts in the divisor of an average.
    divisor_override : int, default None
        Divisor used instead of the window size, for averages only.
    norm_type : float, default 2.0
        The p of ``reduce="lp"``, the norm ``(sum of |x|**p) ** (1/p)``.
    return_indices : bool, default False
        Also return the int64 index of each max or min in the flattened plane of the pooled axes.
    dtype : dtype, default None
        Dtype of the result; None keeps that of `x`, except for integers in sums (64 bits) and Lp (float32).
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.pool(np.arange(12).reshape(3, 4), (2, 2), ceil_mode=True)
    array([[ 5,  7],
           [ 9, 11]])
    >>> ndpool.pool(np.arange(6.0), 3, axes=0, stride=1, padding="same", reduce="sum")
    array([ 1.,  3.,  6.,  9., 12.,  9.])
    """
    reduction = find("pool", reduce)
    if divisor_override is not None and (reduction.norm or not reduction.divides):
        raise ValueError(f"pool: divisor_override is for averages; got it with reduce={reduce!r}")
    norm = check_norm("pool", norm_type) if reduction.norm else 0.0
    plain = dtype is out is divisor_override is None and not norm
    asked = PLAIN if plain else Asked(dtype, out, divisor_override, norm)
    arguments = (window, stride, padding, dilation, ceil_mode, count_include_pad, axes)
    return run(_POOL[reduction.name], x, arguments, return_indices, asked)


@overload
def adaptive_pool(
    x: A,
    output_size: int | Sequence[int | None],
    *,
    reduce: str = "max",
    axes: Axes | None = None,
    norm_type: float = 2.0,
    return_indices: Literal[False] = False,
    dtype: Any = None,
    out: A | None = None,
) -> A: ...


@overload
def adaptive_pool(
    x: A,
    output_size: int | Sequence[int | None],
    *,
    reduce: str = "max",
    axes: Axes | None = None,
    norm_type: float = 2.0,
    return_indices: Literal[True],
    dtype: Any = None,
    out: tuple[A, A] | None = None,
) -> tuple[A, A]: ...


def adaptive_pool(
    x: Any,
    output_size: int | Sequence[int | None],
    *,
    reduce: str = "max",
    axes: Axes | None = None,
    norm_type: float = 2.0,
    return_indices: bool = False,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """
    Pool any axes of an array to a fixed output size, whatever their input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``: windows overlap where `n`
    does not divide `s`, and repeat where `n` is larger.

    Parameters
    ----------
    x : array
        Any number of axes, any memory layout, any supported dtype.
    output_size : int or sequence of int or None
        Output size along each pooled axis; None keeps the input's, and an int needs `axes`.
    reduce : {"max", "min", "avg", "sum", "lp"}, default "max"
        Reduction applied to each window. Max and min propagate NaN; ties return the first index.
    axes : int, str, sequence of int or sequence of str, default None
        Pooled axes; None means the last ones. ``(-3, -2)`` pools a channels-last image. Names are dimensions
        of an `xarray.DataArray`.
    norm_type : float, default 2.0
        The p of ``reduce="lp"``, the norm ``(sum of |x|**p) ** (1/p)``.
    return_indices : bool, default False
        Also return the int64 index of each max or min in the flattened plane of the pooled axes.
    dtype : dtype, default None
        Dtype of the result; None keeps that of `x`, except for integers in sums (64 bits) and Lp (float32).
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_pool(np.arange(10), (3,), return_indices=True)
    (array([3, 6, 9]), array([3, 6, 9]))
    >>> ndpool.adaptive_pool(np.ones((4, 6, 3)), (1, 1), axes=(0, 1), reduce="avg").shape
    (1, 1, 3)
    """
    reduction = find("adaptive_pool", reduce)
    norm = check_norm("adaptive_pool", norm_type) if reduction.norm else 0.0
    asked = PLAIN if dtype is out is None and not norm else Asked(dtype, out, None, norm)
    return run(_ADAPTIVE_POOL[reduction.name], x, (output_size, axes), return_indices, asked)


def unpool(values: A, indices: A, output_size: Ints, *, axes: Axes | None = None) -> A:
    """
    Put pooled values back at their indices, with zeros everywhere else.

    Of repeated indices the last in row-major order wins; an index outside the output raises.

    Parameters
    ----------
    values : array
        Values returned by a pooling with ``return_indices=True``.
    indices : array of int
        Indices returned by that pooling.
    output_size : int or sequence of int
        Size of the result along each pooled axis; an int needs `axes`.
    axes : int, str, sequence of int or sequence of str, default None
        Pooled axes; None means the last ones. Names are dimensions of an `xarray.DataArray`.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.array([[1, 5, 2, 4]])
    >>> ndpool.unpool(*ndpool.pool(x, (2,), return_indices=True), (4,))
    array([[0, 5, 0, 4]])
    """
    return run_general_unpool(values, indices, output_size, axes)  # type: ignore[no-any-return]
