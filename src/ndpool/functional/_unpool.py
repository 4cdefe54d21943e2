"""The inverse of max pooling: values go back to their indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from ndpool._run import run_unpool
from ndpool._signatures import Ints

A = TypeVar("A")


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
