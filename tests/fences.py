"""Guarded memory for tests: arrays flush against protected pages, surrounded by a known byte pattern.

`Memory` places an array with any strides in its own pages, filled with a pattern. An access beyond a
protected page (a fence) ends the process; `check` finds changed bytes next to the array. `poisoned_results`
fills the results that the package allocates, so that unwritten elements are detected. The fuzzer and the GPU
checks use this module too, so it needs neither the compiled core nor PyTorch.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ndpool import _native

Array = np.ndarray[Any, Any]
POISON = 0xA5
PAGE = mmap.PAGESIZE
ENDS = ("front", "behind")  # the side of an array that is flush with a fence

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
if _libc:
    _libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def pages(nbytes: int) -> Array:
    """At least `nbytes` of poisoned memory in whole pages, with a protected page on either side."""
    inside = -(-max(1, nbytes) // PAGE) * PAGE
    everything = np.frombuffer(mmap.mmap(-1, inside + 2 * PAGE), np.uint8)
    at = everything.ctypes.data
    for fence in (at, at + PAGE + inside):
        if _libc is None or _libc.mprotect(fence, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
    found = everything[PAGE : PAGE + inside]
    found[...] = POISON
    return found


class Layout(NamedTuple):
    """The memory layout of an array, relative to a packed one in row-major order.

    Axes in memory order, outermost first; for each axis its step in elements, the unused elements after it,
    its direction, and whether it is broadcast; the misalignment in bytes.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    signs: tuple[int, ...]
    broadcast: tuple[bool, ...]
    shift: int = 0

    @property
    def tags(self) -> list[str]:
        """The special properties of the layout, as words."""
        plain = not any((self.shift, *self.broadcast, *self.gaps)) and {*self.signs, *self.steps} <= {1}
        kinds = {
            "contiguous": plain and self.order == tuple(range(len(self.order))),
            "permuted": self.order != tuple(range(len(self.order))),
            "gaps": any(self.gaps) or max(self.steps, default=1) > 1,
            "negative": -1 in self.signs,
            "zero": any(self.broadcast),
            "unaligned": self.shift > 0,
        }
        return [kind for kind, present in kinds.items() if present]

    def strides(self, shape: Sequence[int], item: int) -> tuple[int, ...]:
        """The strides in bytes of an array of this shape."""
        strides, pitch = [0] * len(shape), item
        for axis in reversed(self.order):
            if self.broadcast[axis]:
                continue
            strides[axis] = pitch * self.steps[axis] * self.signs[axis]
            pitch = pitch * self.steps[axis] * max(1, shape[axis]) + item * self.gaps[axis]
        return tuple(strides)


def packed(ndim: int, order: Sequence[int] | None = None) -> Layout:
    """Row-major order, or the axes in this order of memory."""
    ones = (1,) * ndim
    return Layout(tuple(order or range(ndim)), ones, (0,) * ndim, ones, (False,) * ndim)


class Memory:
    """An array in poisoned memory; `end` is the side that is flush with a fence, if any."""

    def __init__(self, shape: Sequence[int], dtype: Any, layout: Layout | None = None, end: str = "") -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        layout = layout or packed(len(self.shape))
        self.strides = layout.strides(self.shape, self.dtype.itemsize)
        reach = [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]
        empty = prod(self.shape) == 0
        low = 0 if empty else sum(r for r in reach if r < 0)
        high = 0 if empty else sum(r for r in reach if r > 0) + self.dtype.itemsize
        span = high - low + layout.shift
        if end:
            self.bytes = pages(span)
            begin = layout.shift if end == "front" else len(self.bytes) - span
        else:
            self.bytes, begin = np.full(span + 512, POISON, np.uint8), 256 + layout.shift
        self.offset = begin - low
        self.array = self._view(self.bytes, self.dtype)
        self._before: Array | None = None

    def _view(self, memory: Array, dtype: Any) -> Array:
        return np.ndarray(self.shape, dtype, memory.data, self.offset, self.strides)

    def _bits(self, memory: Array) -> Array:
        return self._view(memory, f"u{self.dtype.itemsize}")

    def fill(self, values: Array) -> Memory:
        """Copy the bits of values into the array."""
        if values.size:
            bits = np.ascontiguousarray(values).view(f"u{self.dtype.itemsize}")
            self._bits(self.bytes)[...] = bits
            assert all(self.strides) or np.array_equal(self._bits(self.bytes), bits), (
                "broadcast axes must have one value"
            )
        return self.keep()

    def keep(self) -> Memory:
        """Save the current bytes for `check`."""
        self._before = self.bytes.copy()
        return self

    def check(self, name: str, *, written: bool = False) -> None:
        """Fail if a byte changed since `keep`; the array itself may change if `written`."""
        assert self._before is not None
        before = self._before.copy()
        if written and prod(self.shape):
            self._bits(before)[...] = self._bits(self.bytes)
        if not np.array_equal(before, self.bytes):
            at = np.flatnonzero(before != self.bytes)
            first = int(at[0]) - self.offset
            where = "next to" if written else "in or next to"
            raise AssertionError(
                f"{len(at)} bytes {where} {name} were changed, the first {first} bytes from its first element"
            )


def lay(values: Array, layout: Layout | None = None, end: str = "") -> Memory:
    """The values in poisoned memory."""
    return Memory(values.shape, values.dtype, layout, end).fill(values)


class _Namespace(SimpleNamespace):
    """NumPy's namespace with some functions replaced."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _poisoned(make: Callable[..., Array], end: Callable[[], str]) -> Callable[..., Array]:
    """A NumPy allocation function with poisoned results, next to a fence if `end` returns a side."""

    def call(*args: Any, **kwargs: Any) -> Array:
        made = make(*args, **kwargs)
        if not made.size:
            return made
        side = end()
        if side:
            low = sum(
                (size - 1) * step for size, step in zip(made.shape, made.strides, strict=True) if step < 0
            )
            inside = pages(made.nbytes)
            offset = (0 if side == "front" else len(inside) - made.nbytes) - low
            return np.ndarray(made.shape, made.dtype, inside.data, offset, made.strides)
        made.view(f"u{made.itemsize}")[...] = int.from_bytes(bytes([POISON] * made.itemsize), "little")
        return made

    return call


@contextmanager
def poisoned_results(end: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Fill results that ndpool allocates with a pattern (NumPy), or NaN and extremes (PyTorch).

    NumPy results are placed next to fences if `end` returns a side.
    """
    framework: Any = SimpleNamespace(np=np)  # without a compiled core, only tensors are pooled
    if _native.BUILT:
        from ndpool.frameworks import numpy as framework
    names = ("empty", "empty_like")
    torch = sys.modules.get("torch")
    before = framework.np
    framework.np = _Namespace(**{name: _poisoned(getattr(np, name), end) for name in names})
    if torch:
        was = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        filled = torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        framework.np = before
        if torch:
            torch.use_deterministic_algorithms(was[0], warn_only=was[1])
            torch.utils.deterministic.fill_uninitialized_memory = filled
