"""From an array's type to the framework room that serves it, remembered per type.

A room is imported when the first array of its framework arrives; the framework itself was imported by
whoever made that array, so nothing is ever imported on behalf of a caller who does not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ndpool.geometry import Plan
from ndpool.reductions import Reduction


class Room(Protocol):
    """What a framework room offers to the functions above it."""

    def named(
        self,
        fn: str,
        n_axes: int,
        reduction: Reduction,
        x: Any,
        window: tuple[Any, ...],
        return_indices: bool = False,
        dtype: Any = None,
        out: Any = None,
        divisor: Any = None,
        norm: float = 0.0,
    ) -> Any:
        """A named function from its arguments; `window` holds those of `geometry.named`."""

    def pool(
        self,
        fn: str,
        plan: Plan,
        reduction: Reduction,
        x: Any,
        axes: tuple[int, ...],
        return_indices: bool,
        dtype: Any,
        out: Any,
        divisor: int,
        norm: float,
    ) -> Any:
        """Reduce `x` over the windows of `plan`; a pair with int64 indices when they are asked for."""

    def unpool(
        self, fn: str, values: Any, indices: Any, sizes: tuple[int, ...], axes: tuple[int, ...]
    ) -> Any:
        """Zeros of the given pooled sizes with every value at its index."""

    def fractional(
        self,
        fn: str,
        n_axes: int,
        x: Any,
        size: tuple[Any, ...],
        return_indices: bool,
        given: Any,
        generator: Any,
    ) -> Any:
        """Maxima over windows at the places that samples give; `size` is kernel, output size and ratio."""

    # None, or whether the sizes of an array may be symbols; such an array's plan is made later, in the room.
    traced: Callable[[Any], bool] | None

    def sliding(
        self,
        fn: str,
        reduction: Reduction,
        x: Any,
        axes: tuple[int, ...],
        window: tuple[Any, ...],
        return_indices: bool,
        dtype: Any,
        out: Any,
        divisor: int,
        norm: float,
    ) -> Any:
        """Pool a traced array; `window` holds the arguments of `geometry.sliding`."""

    def adaptive(
        self,
        fn: str,
        reduction: Reduction,
        x: Any,
        axes: tuple[int, ...],
        output_size: Any,
        return_indices: bool,
        dtype: Any,
        out: Any,
        norm: float,
    ) -> Any:
        """Pool a traced array to a fixed size."""


def _numpy() -> Any:
    from ndpool.frameworks import numpy

    return numpy


def _torch() -> Any:
    from ndpool.frameworks import torch

    return torch


# (package, class) of an array, found anywhere among its base classes -> what imports the room, by a statement
# that PyTorch's compiler can follow.
FRAMEWORKS = {("numpy", "ndarray"): _numpy, ("torch", "Tensor"): _torch}

rooms: dict[type, Room] = {}  # of the types met so far


def room_of(fn: str, x: object, name: str = "input") -> Room:
    """The room for an array, or a TypeError that says which kinds of array there are."""
    kind = type(x)
    room = rooms.get(kind)
    return room if room is not None else _find(fn, kind, name)


def _find(fn: str, kind: type, name: str) -> Room:
    for base in kind.__mro__:
        load = FRAMEWORKS.get((base.__module__.partition(".")[0], base.__name__))
        if load is not None:
            room: Room = load()
            rooms[kind] = room
            return room
    known = ", ".join(f"{package}.{cls}" for package, cls in FRAMEWORKS)
    raise TypeError(f"{fn}: {name} must be an array ({known}); got {kind.__module__}.{kind.__qualname__}")
