"""One benchmark case: a pooling call, its input, and its windows in the terms of other libraries.

The lists of cases are in `cases` and `array_cases`. Windows come from `geometry`; nothing here depends on a
contestant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndpool import geometry

# Bytes per output for the indices or offsets that a forward pass writes.
_INDEX_BYTES = {"values": 0, "indices": 8, "offsets": 1}

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Window(NamedTuple):
    """Sliding windows: kernel, stride and padding before and after, one entry per pooled axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call and its input: a function that PyTorch has, too, or `pool` on any axes of an array."""

    name: str
    network: str
    group: str  # its row in the summary
    function: str
    arguments: Mapping[str, Any]
    shape: tuple[int, ...]  # (batch, channels, *sizes) in either layout; any for `pool`
    dtype: str = "float32"
    layout: str = "NCHW"  # or NHWC: channels last in memory; C for `pool`: row-major
    mode: str = "values"  # or indices, offsets (saved for backward), backward
    suite: str = "layers"  # or images, arrays: what the summary takes together

    @property
    def general(self) -> bool:
        """Whether it is a call of `pool`, with its own peers, instead of a layer."""
        return self.function == "pool"

    @property
    def is_norm(self) -> bool:
        """Whether it is Lp pooling, whose backward pass reads input and output."""
        return self.function.startswith("lp_pool")

    @property
    def reduction(self) -> str:
        """The name of the reduction: max or avg; Lp pooling counts as avg."""
        return str(self.arguments.get("reduce", "max" if "max" in self.function else "avg"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The pooled axes."""
        return tuple(self.arguments.get("axes", range(2, len(self.shape))))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the pooled axes."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def plan(self) -> geometry.Plan:
        """The windows as the kernels see them."""
        given = self.arguments
        if "output_size" in given:
            return geometry.adaptive(self.function, self.sizes, given["output_size"])
        kernel = given["window" if self.general else "kernel_size"]
        window = (kernel, given.get("stride"), given.get("padding", 0), given.get("dilation", 1))
        ceil = given.get("ceil_mode", False)
        return geometry.sliding(self.function, self.sizes, *window, ceil, strict=not self.general)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._with_sizes(self.shape, self.plan.out)

    @property
    def window(self) -> Window | None:
        """The windows as a sliding window, for libraries without adaptive pooling; None if irregular."""
        axes = self.plan.axes
        if not all(a.regular for a in axes):
            return None
        after = tuple(max(0, a.end - a.size) for a in axes)
        before = tuple(-a.origin for a in axes)
        return Window(tuple(a.kernel for a in axes), tuple(a.stride for a in axes), before, after)

    @property
    def is_global(self) -> bool:
        """Whether one window covers the whole plane."""
        return self.plan.out == (1,) * len(self.sizes) and self.window == Window(
            self.sizes, self.sizes, (0,) * len(self.sizes), (0,) * len(self.sizes)
        )

    @property
    def tiles(self) -> bool:
        """Whether the windows tile the plane exactly: disjoint, without padding or a remainder."""
        return self.disjoint and all(a.size % a.kernel == 0 for a in self.plan.axes)

    @property
    def disjoint(self) -> bool:
        """Whether the windows are disjoint and adjacent, without padding; a remainder may be left."""
        window = self.window
        return window is not None and window.kernel == window.stride and not any(window.before + window.after)

    @property
    def is_same(self) -> bool:
        """Whether the windows are centred on every element: stride 1 with "same" padding."""
        window = self.window
        return (
            window is not None
            and all(s == 1 for s in window.stride)
            and all(k == 2 * b + 1 for k, b in zip(window.kernel, window.before, strict=True))
        )

    @property
    def moved(self) -> int:
        """The minimum memory traffic in bytes: each input read once, each output written once."""
        item = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        n_out = prod(self.out_shape)
        if self.mode == "backward" and self.is_norm:
            return 2 * item * (prod(self.shape) + n_out)
        if self.mode == "backward":
            return prod(self.shape) * item + n_out * (item + (self.reduction == "max"))
        return prod(self.shape) * item + n_out * (item + _INDEX_BYTES[self.mode])

    @property
    def exact(self) -> bool:
        """Whether answers must be equal: max pooling and integers; sums may round differently."""
        return self.mode != "backward" and (self.reduction == "max" or self.dtype not in _EPSILON)

    @property
    def tolerance(self) -> float:
        """The largest allowed error for data of at most 1 in magnitude.

        One rounding of the result, and those of a sum in float32 or wider: of the taps of a window, or, on
        average, of the outputs that contain an input.
        """
        epsilon, plan = _EPSILON.get(self.dtype, 0.0), self.plan
        terms: float = plan.taps
        if self.mode == "backward":
            terms *= max(1, prod(plan.out) / max(1, prod(plan.sizes)))
        return 2 * epsilon + 8 * min(epsilon, _EPSILON["float32"]) * sqrt(terms)

    @property
    def call(self) -> str:
        """The call as text."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.function}({given})"

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A random input and a random output gradient, both in the layout of the case."""
        return self._random(self.shape, 0), self._random(self.out_shape, 1)

    def _random(self, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
        # A repeated block of odd length times the same as fresh numbers, and is much faster to generate.
        n, rng = min(prod(shape), 2**20 + 7), np.random.default_rng(seed)
        if self.dtype.startswith(("int", "uint")):
            info = np.iinfo(self.dtype)
            block: NDArray[Any] = rng.integers(info.min, info.max, n, self.dtype, endpoint=True)
        elif self.dtype == "bool":
            block = rng.random(n) < 0.02  # sparse, so that large windows without a True exist
        else:
            block = (2 * rng.random(n, np.float64) - 1).astype(_dtype(self.dtype))
        if self.layout != "NHWC":
            return np.resize(block, shape)
        return np.moveaxis(np.resize(block, (shape[0], *shape[2:], shape[1])), -1, 1)

    def reduced(self) -> Case:
        """The same case with an array small enough for a test."""
        kernel = 32 if "output_size" in self.arguments else self.plan.axes[0].kernel
        limit = kernel * max(2, -(-24 // kernel))
        sizes = tuple(min(size, limit + size % kernel) for size in self.sizes)
        others = tuple(min(size, 20) for size in self.shape)
        if not self.general:
            others = (min(self.shape[0], 2), *others[1:])
        return replace(self, shape=self._with_sizes(others, sizes))

    def _with_sizes(self, shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
        new = dict(zip(self.axes, sizes, strict=True))
        return tuple(new.get(axis, size) for axis, size in enumerate(shape))


def _dtype(name: str) -> np.dtype[Any]:
    # NumPy has no bfloat16 dtype.
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)
