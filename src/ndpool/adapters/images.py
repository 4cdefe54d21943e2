"""PIL images: pooled along height and width, and returned as images of the same mode.

A result that is no such image (another dtype, other channels, indices) is a NumPy array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ndpool._arguments import input_name
from ndpool._call import Asked, Function
from ndpool.adapters._base import Adapter


class Images(Adapter):
    """Images whose pixels are numbers."""

    def open(self, fn: str, name: str, x: Any) -> Any:
        """The pixels: (height, width), or (height, width, channels)."""
        if not isinstance(x, Image.Image):
            return x
        if x.mode in ("P", "PA"):
            raise TypeError(
                f"{fn}: {name} must not have a palette, its numbers have no order; got an image of "
                f"mode={x.mode!r}: convert it first, image.convert('RGB')"
            )
        return np.asarray(x)

    def close(self, fn: str, x: Any, result: NDArray[Any]) -> Any:
        """An image of the mode of `x` where the result is one, else the array itself."""
        like = np.asarray(Image.new(x.mode, (1, 1)))
        same = result.dtype == like.dtype.newbyteorder("=") and result.shape[2:] == like.shape[2:]
        if not same or result.ndim != like.ndim or 0 in result.shape:
            return result
        height, width = result.shape[:2]
        if x.mode == "1":
            data = np.packbits(result, axis=1).tobytes()
        else:
            data = result.astype(like.dtype, copy=False).tobytes()
        image = Image.frombytes(x.mode, (width, height), data)
        image.info = dict(x.info)
        return image

    def pool(
        self,
        run: Callable[..., Any],
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        asked: Asked,
    ) -> Any:
        """General functions pool height and width by default, named ones always."""
        fn, pixels = function.name, self.open(function.name, input_name(function.name), x)
        if function.n_axes:
            planes = _planes(fn, function.n_axes, pixels)
            # The layout of `out` cannot be told from the result's.
            if asked.out is not None:
                raise TypeError(f"{fn}: out must not be given for an image; pool numpy.asarray(image)")
            got = run(function, planes, arguments, indices, asked)
            return self._joined(fn, x, pixels, got)
        *windows, axes = arguments
        got = run(function, pixels, (*windows, (0, 1) if axes is None else axes), indices, asked)
        return got if asked.out is not None else self._first(fn, x, got)

    def fractional(
        self,
        run: Callable[..., Any],
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        samples: Any,
        generator: Any,
    ) -> Any:
        """Windows are drawn for each channel."""
        fn, pixels = function.name, self.open(function.name, "input", x)
        planes = _planes(fn, function.n_axes, pixels)
        got = run(function, planes, arguments, indices, samples, generator)
        return self._joined(fn, x, pixels, got)

    def unpool(
        self,
        run: Callable[..., Any],
        fn: str,
        values: Any,
        indices: Any,
        n_axes: int,
        arguments: tuple[Any, ...],
    ) -> Any:
        """Indices are the arrays that pooling an image returns."""
        pixels = self.open(fn, "input", values)
        planes = _planes(fn, n_axes, pixels)
        if isinstance(indices, np.ndarray) and indices.shape == pixels.shape:
            indices = _planes(fn, n_axes, indices)
        return self._joined(fn, values, pixels, run(fn, planes, indices, n_axes, arguments))

    def general_unpool(
        self, run: Callable[..., Any], values: Any, indices: Any, output_size: Any, axes: Any
    ) -> Any:
        """Height and width by default."""
        pixels = self.open("unpool", "values", values)
        got = run(pixels, indices, output_size, (0, 1) if axes is None else axes)
        return self.close("unpool", values, got)

    def _first(self, fn: str, x: Any, got: Any) -> Any:
        """The values as an image; indices stay an array."""
        return (self.close(fn, x, got[0]), got[1]) if isinstance(got, tuple) else self.close(fn, x, got)

    def _joined(self, fn: str, x: Any, pixels: NDArray[Any], got: Any) -> Any:
        """Planes as pixels again."""
        parts = got if isinstance(got, tuple) else (got,)
        joined = tuple([np.moveaxis(part, 0, -1) if pixels.ndim == 3 else part[0] for part in parts])
        return self._first(fn, x, joined if len(joined) > 1 else joined[0])


def _planes(fn: str, n_axes: int, pixels: NDArray[Any]) -> NDArray[Any]:
    """Channels first, as the named functions take them."""
    if n_axes != 2:
        raise TypeError(f"{fn}: an image has two axes to pool; got one for a function of {n_axes}")
    return np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels[None]
