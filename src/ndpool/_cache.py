"""The one cache of prepared calls, shared by all frameworks.

A key is a function, the type, dtype, layout and device of its array, its arguments (by type and value: 2, 2.0
and True differ) and whether indices are asked for. The compiled core has the fast implementation; the class
here replaces it where the core is missing, which CUDA tensors do not need. Both are bounded and safe under
threads.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from ndpool._call import Function
from ndpool._native import BUILT, core
from ndpool._plan import Plan

MAX_WINDOWS = 1024  # of an irregular axis of a cached call


def has_large_tables(plan: Plan) -> bool:
    """Whether a plan lists more windows than a cached call may keep; regular axes list none."""
    return any(axis.starts is not None and axis.starts.size > MAX_WINDOWS for axis in plan.axes)


class CallCache:
    """The cache in Python; see `csrc/call_cache.h` for its twin."""

    limit = 1024

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._lock = Lock()  # writers only: a lookup is one operation of a dict

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget all calls."""
        self._values = {}

    def get(self, function: Function, x: Any, arguments: Any, indices: bool) -> Any:
        """The value; None where there is none yet, False where the call cannot be cached."""
        kinds = tuple(map(type, arguments))
        if _FIXED.issuperset(kinds) and hasattr(x, "stride"):
            # As `_key` makes it of such arguments, inlined: call overhead dominates on small tensors.
            layout = (x.shape, x.stride(), x.dtype, x.device, type(x))
            typed = (arguments, kinds)
            return self._values.get((function.name, function.reduction.name, layout, typed, indices))
        key = _key(function, x, arguments, indices)
        return False if key is None else self._values.get(key)

    def put(self, function: Function, x: Any, arguments: Any, indices: bool, value: Any) -> None:
        """Keep a value; the cache starts again when it is full."""
        key = _key(function, x, arguments, indices)
        if key is None:
            return
        with self._lock:
            if len(self._values) >= self.limit:
                self._values = {}
            self._values[key] = value


_FIXED = {int, bool, float, type(None)}  # types whose values never change


def _key(function: Function, x: Any, arguments: Any, indices: bool) -> tuple[Any, ...] | None:
    if not hasattr(x, "stride"):  # an array, which needs the core anyway
        return None
    typed = typed_arguments(arguments)
    if typed is None:
        return None
    layout = (x.shape, x.stride(), x.dtype, x.device, type(x))
    return (function.name, function.reduction.name, layout, typed, indices)


def typed_arguments(arguments: Any) -> tuple[Any, Any] | None:
    """Arguments and their types, as a key; None if a value may change."""
    kinds = tuple(map(type, arguments))
    return (arguments, kinds) if _FIXED.issuperset(kinds) else _typed(arguments)


def _typed(values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Arguments and their types, lists as tuples; None if one is of a type whose values may change."""
    pairs: list[Any] = []
    for value in values:
        kind = type(value)
        pair = (value, kind) if kind in _FIXED else _typed(value) if kind is tuple or kind is list else None
        if pair is None:
            return None
        pairs.append(pair)
    return tuple(value for value, _ in pairs), tuple(kind for _, kind in pairs)


cache: Any = core.CallCache() if BUILT else CallCache()
recall, remember = cache.get, cache.put
run_prepared: Any = cache.run if BUILT else None
