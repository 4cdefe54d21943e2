"""Max pooling over sliding windows and over windows at pseudo-random places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ndpool._call import PLAIN, Asked
from ndpool._run import run, run_fractional
from ndpool._signatures import Ints
from ndpool.functional._family import family, typed_fractional_max_pool, typed_max_pool

_MAX1D, _MAX2D, _MAX3D = family("max", "max")
_, _FRACTIONAL2D, _FRACTIONAL3D = family("fractional_max", "max")


@typed_max_pool
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


@typed_max_pool
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


@typed_max_pool
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


@typed_fractional_max_pool
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
    generator : int, random generator or JAX key, default None
        Seed, generator or key that makes the call repeatable; JAX arrays need a seed or a key.

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


@typed_fractional_max_pool
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
    generator : int, random generator or JAX key, default None
        Seed, generator or key that makes the call repeatable; JAX arrays need a seed or a key.

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
