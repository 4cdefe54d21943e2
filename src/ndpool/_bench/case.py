"""One benchmark case: what is called on what, and what that means in the terms of other libraries.

The list of them is in `cases`. Windows come from `geometry`; nothing here knows of a contestant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndpool import geometry

# What a forward pass keeps of the winner's place, in bytes per output.
_EXTRA = {"values": 0, "indices": 8, "offsets": 1}


class Window(NamedTuple):
    """Windows of one size at even distances, one entry per pooled axis; padding before and after."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call: a function of ndpool and PyTorch, its arguments, and the array that it gets."""

    name: str
    network: str
    group: str  # the row of the summary that it counts in
    function: str
    arguments: Mapping[str, Any]
    shape: tuple[int, ...]  # (batch, channels, *sizes), whatever the layout
    dtype: str = "float32"
    layout: str = "NCHW"  # or NHWC: channels last in memory
    mode: str = "values"  # or indices, offsets (what training keeps), backward

    @property
    def reduction(self) -> str:
        """The name of the reduction: max or avg."""
        return "max" if "max" in self.function else "avg"

    @property
    def axes(self) -> tuple[int, ...]:
        """The pooled axes."""
        return tuple(range(2, len(self.shape)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the pooled axes."""
        return self.shape[2:]

    @property
    def plan(self) -> geometry.Plan:
        """The windows as the kernels see them."""
        given = self.arguments
        if "output_size" in given:
            return geometry.adaptive(self.function, self.sizes, given["output_size"])
        window = (given["kernel_size"], given.get("stride"), given.get("padding", 0), 1)
        ceil = given.get("ceil_mode", False)
        return geometry.sliding(self.function, self.sizes, *window, ceil, strict=True)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.shape[:2] + self.plan.out

    @property
    def window(self) -> Window | None:
        """The windows in the terms of libraries that know sliding windows only; None where these fail."""
        axes = self.plan.axes
        if not all(a.regular for a in axes):
            return None
        after = tuple(max(0, a.end - a.size) for a in axes)
        before = tuple(-a.origin for a in axes)
        return Window(tuple(a.kernel for a in axes), tuple(a.stride for a in axes), before, after)

    @property
    def whole(self) -> bool:
        """Whether the one window is the whole plane."""
        return self.plan.out == (1,) * len(self.sizes) and self.window == Window(
            self.sizes, self.sizes, (0,) * len(self.sizes), (0,) * len(self.sizes)
        )

    @property
    def tiles(self) -> bool:
        """Whether the windows cut the plane into whole blocks."""
        window = self.window
        return (
            window is not None
            and window.kernel == window.stride
            and not any(window.before + window.after)
            and all(size % k == 0 for size, k in zip(self.sizes, window.kernel, strict=True))
        )

    @property
    def keeps_size(self) -> bool:
        """Whether the windows are centred on every element."""
        window = self.window
        return (
            window is not None
            and all(s == 1 for s in window.stride)
            and all(k == 2 * b + 1 for k, b in zip(window.kernel, window.before, strict=True))
        )

    @property
    def moved(self) -> int:
        """The bytes that have to move: each input read once, each output written once."""
        item = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        n_out = prod(self.out_shape)
        if self.mode == "backward":
            return prod(self.shape) * item + n_out * (item + (self.reduction == "max"))
        return prod(self.shape) * item + n_out * (item + _EXTRA[self.mode])

    @property
    def call(self) -> str:
        """The call as text."""
        given = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.function}({given})"

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A random input and a random gradient of the output, both in the layout of the case."""
        return self._random(self.shape, 0), self._random(self.out_shape, 1)

    def _random(self, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
        # A block of odd length, repeated: as good as new numbers throughout, and far quicker to make.
        n, rng = min(prod(shape), 2**20 + 7), np.random.default_rng(seed)
        if self.dtype.startswith(("int", "uint")):
            info = np.iinfo(self.dtype)
            block: NDArray[Any] = rng.integers(info.min, info.max, n, self.dtype, endpoint=True)
        else:
            block = (2 * rng.random(n, np.float64) - 1).astype(_dtype(self.dtype))
        if self.layout == "NCHW":
            return np.resize(block, shape)
        return np.moveaxis(np.resize(block, (shape[0], *shape[2:], shape[1])), -1, 1)

    def reduced(self) -> Case:
        """The same case on an array small enough for a test."""
        kernel = 32 if "output_size" in self.arguments else self.plan.axes[0].kernel
        room = kernel * max(2, -(-24 // kernel))
        sizes = (min(size, room + size % kernel) for size in self.sizes)
        return replace(self, shape=(min(self.shape[0], 2), min(self.shape[1], 20), *sizes))


def _dtype(name: str) -> np.dtype[Any]:
    # NumPy has no bfloat16 of its own.
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)
