"""`explain`: which engine, instruction set, threads and copies a call uses.

The call is made once while `_record` records what the core and the frameworks do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ndpool._record import Step


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
    from ndpool._record import Recorder  # loads the core, which importing the package does not

    name = getattr(function, "__name__", None) or type(function).__name__
    with Recorder() as recorder:
        _differentiate(function(x, *args, **kwargs), x)
    return Explanation(name, tuple(recorder.steps), tuple(recorder.copies))


def _differentiate(result: Any, x: Any) -> None:
    """The backward pass of a tensor's pool, in this thread."""
    y = result[0] if isinstance(result, tuple) else result
    if getattr(y, "requires_grad", False) and getattr(x, "requires_grad", False):
        torch = sys.modules["torch"]
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(y, x, torch.ones_like(y), allow_unused=True)
