"""Call signatures for type checkers: which functions give a pair, and when.

A function of `functional` with `return_indices` is declared as one of these protocols; at run time they do
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

A = TypeVar("A")
Ints = int | Sequence[int]


class MaxPool(Protocol):
    """`max_pool1d`, `max_pool2d`, `max_pool3d`."""

    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
        *,
        out: A | None = None,
    ) -> A: ...
    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
        out: tuple[A, A] | None = None,
    ) -> tuple[A, A]: ...
    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        stride: Ints | None,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        return_indices: Literal[True],
        *,
        out: tuple[A, A] | None = None,
    ) -> tuple[A, A]: ...
    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
        *,
        out: Any = None,
    ) -> A | tuple[A, A]: ...


class AdaptiveMaxPool(Protocol):
    """`adaptive_max_pool1d`, `adaptive_max_pool2d`, `adaptive_max_pool3d`."""

    @overload
    def __call__(
        self,
        input: A,
        output_size: int | Sequence[int | None] | None,
        return_indices: Literal[False] = False,
        *,
        out: A | None = None,
    ) -> A: ...
    @overload
    def __call__(
        self,
        input: A,
        output_size: int | Sequence[int | None] | None,
        return_indices: Literal[True],
        *,
        out: tuple[A, A] | None = None,
    ) -> tuple[A, A]: ...
    @overload
    def __call__(
        self,
        input: A,
        output_size: int | Sequence[int | None] | None,
        return_indices: bool = False,
        *,
        out: Any = None,
    ) -> A | tuple[A, A]: ...


class FractionalMaxPool(Protocol):
    """`fractional_max_pool2d`, `fractional_max_pool3d`."""

    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        output_size: Ints | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: Literal[False] = False,
        _random_samples: A | None = None,
        *,
        generator: Any = None,
    ) -> A: ...
    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        output_size: Ints | None = None,
        output_ratio: float | Sequence[float] | None = None,
        *,
        return_indices: Literal[True],
        _random_samples: A | None = None,
        generator: Any = None,
    ) -> tuple[A, A]: ...
    @overload
    def __call__(
        self,
        input: A,
        kernel_size: Ints,
        output_size: Ints | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: A | None = None,
        *,
        generator: Any = None,
    ) -> A | tuple[A, A]: ...
