"""Average and Lp pooling over sliding windows."""

from __future__ import annotations

from typing import Any, TypeVar

from ndpool._call import PLAIN, Asked
from ndpool._policy import check_norm
from ndpool._run import run
from ndpool._signatures import Ints
from ndpool.functional._family import family

A = TypeVar("A")

_AVG1D, _AVG2D, _AVG3D = family("avg", "avg")
_LP1D, _LP2D, _LP3D = family("lp", "lp")


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
