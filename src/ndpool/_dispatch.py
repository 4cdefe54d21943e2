"""From an array's type to the framework room that serves it, remembered per type.

A room is imported when the first array of its framework arrives; the framework itself was imported by
whoever made that array, so nothing is ever imported on behalf of a caller who does not use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from ndpool.geometry import Plan
from ndpool.reductions import Reduction


class Room(Protocol):
    """What a framework room offers to the functions above it."""

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

    def samples(self, fn: str, x: Any, given: Any, n_axes: int, generator: Any) -> Any:
        """The random samples of fractional windows as a (planes, axes) NumPy array of x's precision."""


# (package, class) of an array, found anywhere among its base classes -> module of the room
FRAMEWORKS = {("numpy", "ndarray"): "ndpool.frameworks.numpy"}

_rooms: dict[type, Room] = {}


def room_of(fn: str, x: object, name: str = "input") -> Room:
    """The room for an array, or a TypeError that says which kinds of array there are."""
    kind = type(x)
    room = _rooms.get(kind)
    return room if room is not None else _find(fn, kind, name)


def _find(fn: str, kind: type, name: str) -> Room:
    for base in kind.__mro__:
        module = FRAMEWORKS.get((base.__module__.partition(".")[0], base.__name__))
        if module is not None:
            room: Room = import_module(module)
            _rooms[kind] = room
            return room
    known = ", ".join(f"{package}.{cls}" for package, cls in FRAMEWORKS)
    raise TypeError(f"{fn}: {name} must be an array ({known}); got {kind.__module__}.{kind.__qualname__}")
