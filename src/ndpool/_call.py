"""The values that travel from a public function to a kernel: a function, what it was asked for, a call.

`_run` makes a `Call`, a framework's `run(call, x)` takes it, kernels read it. No logic: the rules are in
`geometry` (windows) and `_policy` (dtypes and everything else).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ndpool.reductions import Reduction

# What a kernel stores beside the values, by its number: nothing, offsets in the window, indices in the plane.
NO_EXTRA, OFFSET8, OFFSET32, INDEX64 = range(4)


class Function(NamedTuple):
    """A public pooling function."""

    name: str
    reduction: Reduction
    n_axes: int = 0  # of a named function; 0 for a general one, whose last argument is `axes`


class Asked(NamedTuple):
    """What was asked for beside windows and indices."""

    dtype: Any = None
    out: Any = None
    divisor: Any = None
    norm: float = 0.0


PLAIN = Asked()


class Call(NamedTuple):
    """A pooling call: one array, one plan, one reduction."""

    function: str  # for messages
    reduction: Reduction
    axes: tuple[int, ...]
    plan: Any  # a `Plan`; None while sizes are symbolic, then `windows` says how to make it
    extra: int = NO_EXTRA
    dtype: Any = None
    out: Any = None
    divisor: int = 0  # 0: the window's own
    norm: float = 0.0
    windows: tuple[int, ...] = ()  # as in `geometry.flatten`

    @property
    def offsets(self) -> int:
        """The kind of offsets that the backward pass needs: one byte while that can number the taps."""
        return OFFSET8 if self.plan.taps <= 256 else OFFSET32


class Saved(NamedTuple):
    """What a forward pass saves for the backward pass, beside the call."""

    offsets: Any = None  # of reductions with an index
    x: Any = None  # of norms, with their result
    y: Any = None
    channels_last: bool = False  # the memory format of the gradient, where a framework has one


class Unpool(NamedTuple):
    """An unpooling call: values go to their indices in planes of these sizes."""

    function: str
    axes: tuple[int, ...]
    sizes: tuple[int, ...]
