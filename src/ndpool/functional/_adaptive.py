"""Max and average pooling to a fixed output size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ndpool._call import PLAIN, Asked
from ndpool._run import run
from ndpool.functional._family import family, typed_adaptive_max_pool

A = TypeVar("A")

_ADAPTIVE_MAX1D, _ADAPTIVE_MAX2D, _ADAPTIVE_MAX3D = family("adaptive_max", "max")
_ADAPTIVE_AVG1D, _ADAPTIVE_AVG2D, _ADAPTIVE_AVG3D = family("adaptive_avg", "avg")


@typed_adaptive_max_pool
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


@typed_adaptive_max_pool
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


@typed_adaptive_max_pool
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
