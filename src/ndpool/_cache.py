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
        try:
            return self._values.get(_key(function, x, arguments, indices))
        except TypeError:  # an argument of a type that may change, or that has no hash
            return False

    def put(self, function: Function, x: Any, arguments: Any, indices: bool, value: Any) -> None:
        """Keep a value; the cache starts again when it is full."""
        try:
            key = _key(function, x, arguments, indices)
        except TypeError:
            return
        with self._lock:
            old = self._values
            if len(old) >= self.limit:
                self._values = old = {}
            old[key] = value


def _key(function: Function, x: Any, arguments: Any, indices: bool) -> tuple[Any, ...]:
    layout = (type(x), x.dtype, x.shape, x.stride(), x.device)
    return (function.name, function.reduction.name, layout, indices, *[_typed(v) for v in arguments])


def _typed(value: Any) -> Any:
    """An argument with its type, for types whose values never change."""
    kind = type(value)
    if kind is int or value is None or kind is bool or kind is float:
        return kind, value
    if kind is tuple or kind is list:
        return tuple([_typed(v) for v in value])
    raise TypeError(kind)


cache: Any = core.CallCache() if BUILT else CallCache()
recall, remember = cache.get, cache.put
