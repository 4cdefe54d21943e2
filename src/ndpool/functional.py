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

    NaN propagates; ties return the first index in row-major order.

    Parameters
    ----------
    input : array
        Shape (N, C, L) or (C, L).
    kernel_size : int or sequence of one int
        Window size.
    stride : int or sequence of one int, default None
        Step between windows; None means `kernel_size`.
    padding : int or sequence of one int, default 0
        Padding on both sides, at most ``kernel_size // 2``. It is never the maximum.
    dilation : int or sequence of one int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane, as `max_unpool1d` takes it.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

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

    NaN propagates; ties return the first index in row-major order.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    kernel_size : int or pair of int
        Window size.
    stride : int or pair of int, default None
        Step between windows; None means `kernel_size`.
    padding : int or pair of int, default 0
        Padding on both sides, at most ``kernel_size // 2``. It is never the maximum.
    dilation : int or pair of int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane, as `max_unpool2d` takes it.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

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

    NaN propagates; ties return the first index in row-major order.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    kernel_size : int or triple of int
        Window size.
    stride : int or triple of int, default None
        Step between windows; None means `kernel_size`.
    padding : int or triple of int, default 0
        Padding on both sides, at most ``kernel_size // 2``. It is never the maximum.
    dilation : int or triple of int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane, as `max_unpool3d` takes it.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

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

    Integers truncate toward zero, as in PyTorch; a float `dtype` keeps the fraction.

    Parameters
    ----------
    input : array
        Shape (N, C, L) or (C, L).
    kernel_size : int or sequence of one int
        Window size.
    stride : int or sequence of one int, default None
        Step between windows; None means `kernel_size`.
    padding : int or sequence of one int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    count_include_pad : bool, default True
        Whether padding counts in the divisor.
    divisor_override : int, default None
        Divisor used instead of the window size; 1 gives sums. Keyword-only.
    dilation : int or sequence of one int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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

    Integers truncate toward zero, as in PyTorch; a float `dtype` keeps the fraction.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    kernel_size : int or pair of int
        Window size.
    stride : int or pair of int, default None
        Step between windows; None means `kernel_size`.
    padding : int or pair of int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    count_include_pad : bool, default True
        Whether padding counts in the divisor.
    divisor_override : int, default None
        Divisor used instead of the window size; 1 gives sums.
    dilation : int or pair of int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

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

    Integers truncate toward zero, as in PyTorch; a float `dtype` keeps the fraction.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    kernel_size : int or triple of int
        Window size.
    stride : int or triple of int, default None
        Step between windows; None means `kernel_size`.
    padding : int or triple of int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    count_include_pad : bool, default True
        Whether padding counts in the divisor.
    divisor_override : int, default None
        Divisor used instead of the window size; 1 gives sums.
    dilation : int or triple of int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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
    1-D Lp pooling: ``(sum of x**p) ** (1/p)`` over each window.

    As in PyTorch, no magnitudes are taken: with odd p a negative sum gives NaN (p = 1 gives the plain sum),
    with fractional p any negative element does. A window cut off by `ceil_mode` is scaled up to a full one.

    Parameters
    ----------
    input : array
        Shape (N, C, L) or (C, L).
    norm_type : float
        The power p; not 0.
    kernel_size : int or sequence of one int
        Window size.
    stride : int or sequence of one int, default None
        Step between windows; None means `kernel_size`.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    padding : int or sequence of one int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    dilation : int or sequence of one int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's, and gives float32 for integers.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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
    2-D Lp pooling: ``(sum of x**p) ** (1/p)`` over each window.

    As in PyTorch, no magnitudes are taken: with odd p a negative sum gives NaN (p = 1 gives the plain sum),
    with fractional p any negative element does. A window cut off by `ceil_mode` is scaled up to a full one.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    norm_type : float
        The power p; not 0.
    kernel_size : int or pair of int
        Window size.
    stride : int or pair of int, default None
        Step between windows; None means `kernel_size`.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    padding : int or pair of int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    dilation : int or pair of int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's, and gives float32 for integers.
    out : array, default None
        Array to write the result to.

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
    3-D Lp pooling: ``(sum of x**p) ** (1/p)`` over each window.

    As in PyTorch, no magnitudes are taken: with odd p a negative sum gives NaN (p = 1 gives the plain sum),
    with fractional p any negative element does. A window cut off by `ceil_mode` is scaled up to a full one.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    norm_type : float
        The power p; not 0.
    kernel_size : int or triple of int
        Window size.
    stride : int or triple of int, default None
        Step between windows; None means `kernel_size`.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    padding : int or triple of int, default 0
        Zeros added on both sides, at most ``kernel_size // 2``.
    dilation : int or triple of int, default 1
        Step between the elements of a window.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's, and gives float32 for integers.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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
    1-D adaptive max pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``.

    Parameters
    ----------
    input : array
        Shape (N, C, L) or (C, L).
    output_size : int, None or sequence of one of them
        Output size; None keeps the input's.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

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
    2-D adaptive max pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    output_size : int, None or pair of them
        Output size; None keeps the input's.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

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
    3-D adaptive max pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    output_size : int, None or triple of them
        Output size; None keeps the input's.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    out : array or pair of arrays, default None
        Array to write the result to; with `return_indices`, a pair (values, indices).

    Returns
    -------
    array, or (array, indices)

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
    1-D adaptive average pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``: whole elements, never
    fractions of them.

    Parameters
    ----------
    input : array
        Shape (N, C, L) or (C, L).
    output_size : int, None or sequence of one of them
        Output size; None keeps the input's.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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
    2-D adaptive average pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``: whole elements, never
    fractions of them.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    output_size : int, None or pair of them
        Output size; None keeps the input's.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

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
    3-D adaptive average pooling: the output size is fixed, whatever the input size.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``: whole elements, never
    fractions of them.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    output_size : int, None or triple of them
        Output size; None keeps the input's.
    dtype : dtype, default None
        Dtype of the result; None keeps the input's. Boolean input needs one.
    out : array, default None
        Array to write the result to.

    Returns
    -------
    array

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
    Put the values of `max_pool1d` back at their indices, with zeros everywhere else.

    Of repeated indices the last in row-major order wins; an index outside the output raises.

    Parameters
    ----------
    input : array
        Values returned by `max_pool1d`.
    indices : array of int
        Indices returned by `max_pool1d` with ``return_indices=True``.
    kernel_size : int or sequence of one int
        As passed to `max_pool1d`.
    stride : int or sequence of one int, default None
        As passed to `max_pool1d`; None means `kernel_size`.
    padding : int or sequence of one int, default 0
        As passed to `max_pool1d`.
    output_size : sequence of int, default None
        Size to restore, with or without the leading axes; several sizes pool to the same one. It must be less
        than one stride away from ``(size - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1``,
        which None means.
    dilation : int or sequence of one int, default 1
        As passed to `max_pool1d`.

    Returns
    -------
    array

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
    Put the values of `max_pool2d` back at their indices, with zeros everywhere else.

    Of repeated indices the last in row-major order wins; an index outside the output raises.

    Parameters
    ----------
    input : array
        Values returned by `max_pool2d`.
    indices : array of int
        Indices returned by `max_pool2d` with ``return_indices=True``.
    kernel_size : int or pair of int
        As passed to `max_pool2d`.
    stride : int or pair of int, default None
        As passed to `max_pool2d`; None means `kernel_size`.
    padding : int or pair of int, default 0
        As passed to `max_pool2d`.
    output_size : sequence of int, default None
        Size to restore, with or without the leading axes; several sizes pool to the same one. It must be less
        than one stride away from ``(size - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1``,
        which None means.
    dilation : int or pair of int, default 1
        As passed to `max_pool2d`.

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
    Put the values of `max_pool3d` back at their indices, with zeros everywhere else.

    Of repeated indices the last in row-major order wins; an index outside the output raises.

    Parameters
    ----------
    input : array
        Values returned by `max_pool3d`.
    indices : array of int
        Indices returned by `max_pool3d` with ``return_indices=True``.
    kernel_size : int or triple of int
        As passed to `max_pool3d`.
    stride : int or triple of int, default None
        As passed to `max_pool3d`; None means `kernel_size`.
    padding : int or triple of int, default 0
        As passed to `max_pool3d`.
    output_size : sequence of int, default None
        Size to restore, with or without the leading axes; several sizes pool to the same one. It must be less
        than one stride away from ``(size - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1``,
        which None means.
    dilation : int or triple of int, default 1
        As passed to `max_pool3d`.

    Returns
    -------
    array

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
    2-D fractional max pooling: windows start at pseudo-random places, drawn for each plane.

    Parameters
    ----------
    input : array
        Shape (N, C, H, W) or (C, H, W).
    kernel_size : int or pair of int
        Window size.
    output_size : int or pair of int, default None
        Output size; give either this or `output_ratio`.
    output_ratio : float or pair of float, default None
        Output size as a fraction of the input size, between 0 and 1.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    _random_samples : array, default None
        Numbers in [0, 1) of shape (N, C, 2) that fix the windows; N = 1 for an unbatched input.
    generator : int or random generator, default None
        Seed or generator that makes the call repeatable.

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
    3-D fractional max pooling: windows start at pseudo-random places, drawn for each plane.

    Parameters
    ----------
    input : array
        Shape (N, C, D, H, W) or (C, D, H, W).
    kernel_size : int or triple of int
        Window size.
    output_size : int or triple of int, default None
        Output size; give either this or `output_ratio`.
    output_ratio : float or triple of float, default None
        Output size as a fraction of the input size, between 0 and 1.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    _random_samples : array, default None
        Numbers in [0, 1) of shape (N, C, 3) that fix the windows; N = 1 for an unbatched input.
    generator : int or random generator, default None
        Seed or generator that makes the call repeatable.

    Returns
    -------
    array, or (array, indices)

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> x = np.zeros((1, 9, 9, 9))
    >>> ndpool.fractional_max_pool3d(x, 2, output_ratio=0.5, generator=0).shape
    (1, 4, 4, 4)
    """
    size = (kernel_size, output_size, output_ratio)
    return run_fractional(_FRACTIONAL3D, input, size, return_indices, _random_samples, generator)
