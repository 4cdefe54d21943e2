"""PyTorch's pooling functions, signature for signature, for any kind of array.

Each function passes its arguments to `_run`, which does the rest. What goes beyond PyTorch is keyword-only,
after PyTorch's own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ndpool._call import PLAIN, Asked, Function
from ndpool._policy import check_norm
from ndpool._run import run, run_fractional, run_unpool
from ndpool._signatures import AdaptiveMaxPool, FractionalMaxPool, Ints, MaxPool
from ndpool.reductions import REDUCTIONS

A = TypeVar("A")


def _unchanged(function: Callable[..., Any]) -> Any:
    return function


# The signature of a function with return_indices for type checkers: True makes it return a pair.
_max_pool = cast(Callable[[Callable[..., Any]], MaxPool], _unchanged)
_adaptive_max_pool = cast(Callable[[Callable[..., Any]], AdaptiveMaxPool], _unchanged)
_fractional_max_pool = cast(Callable[[Callable[..., Any]], FractionalMaxPool], _unchanged)


def _family(kind: str, reduce: str) -> tuple[Function, Function, Function]:
    one, two, three = (Function(f"{kind}_pool{n}d", REDUCTIONS[reduce], n) for n in (1, 2, 3))
    return one, two, three


_MAX1D, _MAX2D, _MAX3D = _family("max", "max")
_AVG1D, _AVG2D, _AVG3D = _family("avg", "avg")
_LP1D, _LP2D, _LP3D = _family("lp", "lp")
_ADAPTIVE_MAX1D, _ADAPTIVE_MAX2D, _ADAPTIVE_MAX3D = _family("adaptive_max", "max")
_ADAPTIVE_AVG1D, _ADAPTIVE_AVG2D, _ADAPTIVE_AVG3D = _family("adaptive_avg", "avg")
_, _FRACTIONAL2D, _FRACTIONAL3D = _family("fractional_max", "max")


@_max_pool
def max_pool1d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    1-D max pooling.

    Arguments and results as in `max_pool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.max_pool1d(np.array([[1, 3, 2, 5, 4]]), 2)
    array([[3, 5]])
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    return run(_MAX1D, input, window, return_indices, PLAIN if out is None else Asked(None, out))


@_max_pool
def max_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    2-D max pooling.

    NaN wins; of equal maxima the first in row-major order is taken.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    kernel_size : int or pair of int
        Size of the window.
    stride : int or pair of int, optional
        Distance between windows; the window's size by default.
    padding : int or pair of int
        Cells of -inf around the input, at most ``kernel_size // 2``.
    dilation : int or pair of int
        Distance between the elements of a window.
    ceil_mode : bool
        Keep a last window that only begins inside the input or its leading padding.
    return_indices : bool
        Also return where each maximum stood: int64 positions in the flattened plane, for `max_unpool2d`.
    out : array, or pair of arrays with `return_indices`
        Where to put the result.

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(16.0).reshape(1, 4, 4)
    >>> ndpool.max_pool2d(x, 2)
    array([[[ 5.,  7.],
            [13., 15.]]])
    >>> ndpool.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)[1]
    array([[[ 5,  7],
            [13, 15]]])
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    return run(_MAX2D, input, window, return_indices, PLAIN if out is None else Asked(None, out))


@_max_pool
def max_pool3d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    3-D max pooling.

    Arguments and results as in `max_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.max_pool3d(np.arange(64.0).reshape(1, 4, 4, 4), 2)[0, :, 0, 0]
    array([21., 53.])
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    return run(_MAX3D, input, window, return_indices, PLAIN if out is None else Asked(None, out))


def avg_pool1d(
    input: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    divisor_override: int | None = None,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    1-D average pooling.

    Arguments and results as in `avg_pool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.avg_pool1d(np.array([[1.0, 3.0, 2.0, 5.0]]), 2)
    array([[2. , 3.5]])
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode, count_include_pad)
    plain = dtype is out is divisor_override is None
    result: A = run(_AVG1D, input, window, False, PLAIN if plain else Asked(dtype, out, divisor_override))
    return result


def avg_pool2d(
    input: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    2-D average pooling.

    Integers truncate toward zero, as in PyTorch; ask for a float `dtype` to keep the fraction.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    kernel_size, stride, padding, dilation : int or pair of int
        As in `max_pool2d`; padding cells are zeros.
    ceil_mode : bool
        Keep a last window that only begins inside the input or its leading padding.
    count_include_pad : bool
        Whether padding cells count in the denominator.
    divisor_override : int, optional
        A denominator of your own; 1 gives sums.
    dtype : dtype, optional
        Type of the result.
    out : array, optional
        Where to put the result.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(16.0).reshape(1, 4, 4)
    >>> ndpool.avg_pool2d(x, 2)
    array([[[ 2.5,  4.5],
            [10.5, 12.5]]])
    >>> ndpool.avg_pool2d(np.array([[[1, 2], [3, 5]]]), 2, dtype="float64")
    array([[[2.75]]])
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode, count_include_pad)
    plain = dtype is out is divisor_override is None
    result: A = run(_AVG2D, input, window, False, PLAIN if plain else Asked(dtype, out, divisor_override))
    return result


def avg_pool3d(
    input: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    3-D average pooling.

    Arguments and results as in `avg_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.avg_pool3d(np.ones((1, 4, 4, 4)), 2).shape
    (1, 2, 2, 2)
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode, count_include_pad)
    plain = dtype is out is divisor_override is None
    result: A = run(_AVG3D, input, window, False, PLAIN if plain else Asked(dtype, out, divisor_override))
    return result


def lp_pool1d(
    input: A,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
    *,
    padding: Ints = 0,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    1-D power-average pooling: ``(sum of x**p) ** (1/p)`` over each window.

    Arguments and results as in `lp_pool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.lp_pool1d(np.array([[3.0, 4.0, 6.0, 8.0]]), 2, 2)
    array([[ 5., 10.]])
    """
    norm = check_norm("lp_pool1d", norm_type)
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    result: A = run(_LP1D, input, window, False, Asked(dtype, out, None, norm))
    return result


def lp_pool2d(
    input: A,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
    *,
    padding: Ints = 0,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    2-D power-average pooling: ``(sum of x**p) ** (1/p)`` over each window.

    A window cut off by `ceil_mode` is scaled up to a whole one, and negative inputs keep their sign,
    both as in PyTorch.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    norm_type : float
        The power p; not 0.
    kernel_size, stride, padding, dilation : int or pair of int
        As in `max_pool2d`; padding cells are zeros.
    ceil_mode : bool
        Keep a last window that only begins inside the input or its leading padding.
    dtype : dtype, optional
        Type of the result.
    out : array, optional
        Where to put the result.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.lp_pool2d(np.full((1, 2, 2), 3.0), 2, 2)
    array([[[6.]]])
    """
    norm = check_norm("lp_pool2d", norm_type)
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    result: A = run(_LP2D, input, window, False, Asked(dtype, out, None, norm))
    return result


def lp_pool3d(
    input: A,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
    *,
    padding: Ints = 0,
    dilation: Ints = 1,
    dtype: Any = None,
    out: A | None = None,
) -> A:
    """
    3-D power-average pooling: ``(sum of x**p) ** (1/p)`` over each window.

    Arguments and results as in `lp_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.lp_pool3d(np.ones((1, 2, 2, 2)), 1, 2)
    array([[[[8.]]]])
    """
    norm = check_norm("lp_pool3d", norm_type)
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    result: A = run(_LP3D, input, window, False, Asked(dtype, out, None, norm))
    return result


@_adaptive_max_pool
def adaptive_max_pool1d(
    input: Any,
    output_size: int | Sequence[int | None] | None,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    1-D max pooling to a fixed output size, whatever the input's size.

    Arguments and results as in `adaptive_max_pool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_max_pool1d(np.arange(10).reshape(1, 10), 3)
    array([[3, 6, 9]])
    """
    asked = PLAIN if out is None else Asked(None, out)
    return run(_ADAPTIVE_MAX1D, input, (output_size,), return_indices, asked)


@_adaptive_max_pool
def adaptive_max_pool2d(
    input: Any,
    output_size: int | Sequence[int | None] | None,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    2-D max pooling to a fixed output size, whatever the input's size.

    Window `o` of `n` over a size `s` is ``[floor(o*s/n), ceil((o+1)*s/n))``.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    output_size : int or None, or a pair of them
        Size of the output; None keeps the input's.
    return_indices : bool
        Also return where each maximum stood: int64 positions in the flattened plane.
    out : array, or pair of arrays with `return_indices`
        Where to put the result.

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(30.0).reshape(1, 5, 6)
    >>> ndpool.adaptive_max_pool2d(x, (2, None)).shape
    (1, 2, 6)
    >>> ndpool.adaptive_max_pool2d(x, 1, return_indices=True)
    (array([[[29.]]]), array([[[29]]]))
    """
    asked = PLAIN if out is None else Asked(None, out)
    return run(_ADAPTIVE_MAX2D, input, (output_size,), return_indices, asked)


@_adaptive_max_pool
def adaptive_max_pool3d(
    input: Any,
    output_size: int | Sequence[int | None] | None,
    return_indices: bool = False,
    *,
    out: Any = None,
) -> Any:
    """
    3-D max pooling to a fixed output size, whatever the input's size.

    Arguments and results as in `adaptive_max_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_max_pool3d(np.zeros((2, 9, 7, 5)), (3, 2, 4)).shape
    (2, 3, 2, 4)
    """
    asked = PLAIN if out is None else Asked(None, out)
    return run(_ADAPTIVE_MAX3D, input, (output_size,), return_indices, asked)


def adaptive_avg_pool1d(
    input: A, output_size: int | Sequence[int | None] | None, *, dtype: Any = None, out: A | None = None
) -> A:
    """
    1-D average pooling to a fixed output size, whatever the input's size.

    Arguments and results as in `adaptive_avg_pool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_avg_pool1d(np.arange(6.0).reshape(1, 6), 2)
    array([[1., 4.]])
    """
    asked = PLAIN if dtype is out is None else Asked(dtype, out)
    result: A = run(_ADAPTIVE_AVG1D, input, (output_size,), False, asked)
    return result


def adaptive_avg_pool2d(
    input: A, output_size: int | Sequence[int | None] | None, *, dtype: Any = None, out: A | None = None
) -> A:
    """
    2-D average pooling to a fixed output size, whatever the input's size.

    Windows as in `adaptive_max_pool2d`: whole elements, never fractions of them.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    output_size : int or None, or a pair of them
        Size of the output; None keeps the input's.
    dtype : dtype, optional
        Type of the result.
    out : array, optional
        Where to put the result.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_avg_pool2d(np.ones((32, 8, 7, 7)), 1).shape
    (32, 8, 1, 1)
    """
    asked = PLAIN if dtype is out is None else Asked(dtype, out)
    result: A = run(_ADAPTIVE_AVG2D, input, (output_size,), False, asked)
    return result


def adaptive_avg_pool3d(
    input: A, output_size: int | Sequence[int | None] | None, *, dtype: Any = None, out: A | None = None
) -> A:
    """
    3-D average pooling to a fixed output size, whatever the input's size.

    Arguments and results as in `adaptive_avg_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> ndpool.adaptive_avg_pool3d(np.ones((2, 9, 7, 5)), 1).shape
    (2, 1, 1, 1)
    """
    asked = PLAIN if dtype is out is None else Asked(dtype, out)
    result: A = run(_ADAPTIVE_AVG3D, input, (output_size,), False, asked)
    return result


def max_unpool1d(
    input: A,
    indices: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
    *,
    dilation: Ints = 1,
) -> A:
    """
    Put the results of `max_pool1d` back where they came from, zeros elsewhere.

    Arguments and results as in `max_unpool2d`, for an input of (N, C, L) or (C, L).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> values, indices = ndpool.max_pool1d(np.array([[1, 3, 2, 5]]), 2, return_indices=True)
    >>> ndpool.max_unpool1d(values, indices, 2)
    array([[0, 3, 0, 5]])
    """
    window = (kernel_size, stride, padding, output_size, dilation)
    return cast(A, run_unpool("max_unpool1d", input, indices, 1, window))


def max_unpool2d(
    input: A,
    indices: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
    *,
    dilation: Ints = 1,
) -> A:
    """
    Put the results of `max_pool2d` back where they came from, zeros elsewhere.

    Of repeated indices the last in row-major order stays; an index outside the output raises.

    Parameters
    ----------
    input, indices : array
        What `max_pool2d` gave with `return_indices=True`.
    kernel_size, stride, padding, dilation : int or pair of int
        As they were given to `max_pool2d`.
    output_size : sequence of int, optional
        The size wanted, with or without the leading axes, where several sizes pool to the same: less than
        one stride away from ``(size - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1``.

    Returns
    -------
    array

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(25.0).reshape(1, 5, 5)
    >>> values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    >>> ndpool.max_unpool2d(values, indices, 2, output_size=x.shape[-2:])[0, 1]
    array([0., 6., 0., 8., 0.])
    >>> values, indices = ndpool.max_pool2d(x, 2, dilation=3, return_indices=True)
    >>> ndpool.max_unpool2d(values, indices, 2, output_size=x.shape, dilation=3)[0, 3]
    array([ 0.,  0.,  0., 18.,  0.])
    """
    window = (kernel_size, stride, padding, output_size, dilation)
    return cast(A, run_unpool("max_unpool2d", input, indices, 2, window))


def max_unpool3d(
    input: A,
    indices: A,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
    *,
    dilation: Ints = 1,
) -> A:
    """
    Put the results of `max_pool3d` back where they came from, zeros elsewhere.

    Arguments and results as in `max_unpool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(8.0).reshape(1, 2, 2, 2)
    >>> values, indices = ndpool.max_pool3d(x, 2, return_indices=True)
    >>> ndpool.max_unpool3d(values, indices, 2)[0, 1, 1]
    array([0., 7.])
    """
    window = (kernel_size, stride, padding, output_size, dilation)
    return cast(A, run_unpool("max_unpool3d", input, indices, 3, window))


@_fractional_max_pool
def fractional_max_pool2d(
    input: Any,
    kernel_size: Ints,
    output_size: Ints | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
    *,
    generator: Any = None,
) -> Any:
    """
    2-D max pooling over windows at pseudo-random places, drawn for every plane.

    Parameters
    ----------
    input : array
        (N, C, H, W) or (C, H, W).
    kernel_size : int or pair of int
        Size of the window.
    output_size : int or pair of int, optional
        Size of the output: this or `output_ratio`.
    output_ratio : float or sequence of float, optional
        Size of the output as a share of the input's, between 0 and 1.
    return_indices : bool
        Also return where each maximum stood: int64 positions in the flattened plane.
    _random_samples : array, optional
        (N, C, 2) numbers in [0, 1) that fix the windows, N = 1 for an unbatched input.
    generator : seed or generator of random numbers, optional
        Makes the call repeatable.

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.arange(49.0).reshape(1, 7, 7)
    >>> ndpool.fractional_max_pool2d(x, 2, output_size=4, generator=0).shape
    (1, 4, 4)
    """
    size = (kernel_size, output_size, output_ratio)
    return run_fractional(_FRACTIONAL2D, input, size, return_indices, _random_samples, generator)


@_fractional_max_pool
def fractional_max_pool3d(
    input: Any,
    kernel_size: Ints,
    output_size: Ints | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Any = None,
    *,
    generator: Any = None,
) -> Any:
    """
    3-D max pooling over windows at pseudo-random places, drawn for every plane.

    Arguments and results as in `fractional_max_pool2d`, for an input of (N, C, D, H, W) or (C, D, H, W).

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.zeros((1, 9, 9, 9))
    >>> ndpool.fractional_max_pool3d(x, 2, output_ratio=0.5, generator=0).shape
    (1, 4, 4, 4)
    """
    size = (kernel_size, output_size, output_ratio)
    return run_fractional(_FRACTIONAL3D, input, size, return_indices, _random_samples, generator)
