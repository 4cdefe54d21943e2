"""`explain`: which engine, instruction set, threads and copies a call uses.

The call is made once, while the core and the frameworks record what they do. A framework notes its copies and
its GPU kernels here; on a path that every call takes it looks at `recording` first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

recording = 0  # explanations under way, in any thread
_lock = threading.Lock()
_local = threading.local()


@dataclass(frozen=True)
class Step:
    """One run of a kernel."""

    direction: str
    engine: str
    instruction_set: str | None
    threads: int | None
    device: str = "cpu"

    def __str__(self) -> str:
        if self.device != "cpu":
            return f"{self.direction}: {self.engine} on {self.device}"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.direction}: {self.engine}, {self.instruction_set}, {threads}"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a call did: `steps`, one per run of a kernel, and `copies` of whole arrays, in words."""

    function: str
    steps: tuple[Step, ...]
    copies: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [self.function, *map(str, self.steps)] if self.steps else [self.function, "no kernel"]
        lines.append(f"copies: {', '.join(self.copies) or 'none'}")
        return "\n  ".join(lines)

    def _first(self, direction: str) -> Step | None:
        return next((step for step in self.steps if step.direction == direction), None)

    @property
    def forward(self) -> Step | None:
        """The step that pooled, if any ran."""
        return self._first("forward")

    @property
    def backward(self) -> Step | None:
        """The step that computed the gradient, if the input needs one."""
        return self._first("backward")


def explain(function: Callable[..., Any] | str, x: Any, *args: Any, **kwargs: Any) -> Explanation:
    """
    Which engine, instruction set or GPU kernel, how many threads and which copies a call uses.

    The call is made, and so is its backward pass where `x` requires a gradient: what is reported is what
    happened. An array given as `out` is written.

    Parameters
    ----------
    function : callable or str
        A function of this package, its name, or a layer.
    x : array
        Input of the call.
    *args : object
        Positional arguments of the call, after `x`.
    **kwargs : object
        Keyword arguments of the call.

    Returns
    -------
    Explanation
        With `steps`, `copies`, `forward` and `backward`; it prints as a short list.

    Examples
    --------
    >>> import numpy as np, ndpool
    >>> found = ndpool.explain(ndpool.max_pool2d, np.ones((1, 3, 64, 64), np.float32), 2)
    >>> found.forward.engine, found.forward.threads, found.copies
    ('direct', 1, ())
    """
    if isinstance(function, str):
        import ndpool

        name, function = function, getattr(ndpool, function, None)  # type: ignore[assignment]
        if not callable(function):
            raise ValueError(f"explain: function must be a function of ndpool; got function={name!r}")
    elif not callable(function):
        raise TypeError(f"explain: function must be a function, a name or a layer; got {function!r}")
    name = getattr(function, "__name__", None) or type(function).__name__
    outer: _Notes | None = getattr(_local, "notes", None)
    if outer is not None:
        outer.collect()
    notes = _local.notes = _Notes()
    _count(1)
    _core_recording(True)
    try:
        _differentiate(function(x, *args, **kwargs), x)
        notes.collect()
    finally:
        _core_recording(outer is not None)
        _count(-1)
        _local.notes = outer
    return Explanation(name, tuple(notes.steps), tuple(notes.copies))


class _Notes:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.copies: list[str] = []

    def collect(self) -> None:
        """The core's steps since the last look, in their place among those of the GPU."""
        from ndpool._native import BUILT, core

        if BUILT:
            self.steps += [Step(*step) for step in core.recorded()]
            core.set_recording(True)


def _core_recording(on: bool) -> None:
    from ndpool._native import BUILT, core

    if BUILT:
        core.set_recording(on)


def _count(change: int) -> None:
    global recording
    with _lock:
        recording += change


def _differentiate(result: Any, x: Any) -> None:
    """The backward pass of a tensor's pool, in this thread."""
    y = result[0] if isinstance(result, tuple) else result
    if getattr(y, "requires_grad", False) and getattr(x, "requires_grad", False):
        torch = sys.modules["torch"]
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(y, x, torch.ones_like(y), allow_unused=True)


def note_copy(what: str) -> None:
    """A framework copies a whole array."""
    notes: _Notes | None = getattr(_local, "notes", None)
    if notes is not None:
        notes.copies.append(what)


def note_kernel(direction: str, engine: str, device: str) -> None:
    """A framework launches a kernel that is not the core's."""
    notes: _Notes | None = getattr(_local, "notes", None)
    if notes is not None:
        notes.collect()
        notes.steps.append(Step(direction, engine, None, None, device))
