"""Arrays in files: a pooling call on one is checked and planned like any other, and returned instead of run.

`files` makes a `Source` for each format, asks the general functions for the `Call`, and pools tile by tile.
Reads of a tile are the only access to the data.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._call import Call

__all__ = ["Source", "plain", "quick", "run", "traced"]

Box = tuple[slice, ...]  # one slice with a start and a stop per axis


def plain(x: Source) -> bool:
    """No prepared calls: nothing runs here."""
    return False


traced = None  # sizes are always numbers
quick = None


class Source:
    """An array that is read in boxes: its shape and dtype, and what is known of its storage."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...] = ()  # names of the axes, where the format has them
    chunks: tuple[int, ...] | None = None  # boxes that are read as a whole
    layout: tuple[int, ...] | None = None  # chunks that a result should have too
    resident: int = 0  # bytes held in memory while the source is open
    scratch: int = 0  # bytes that reading takes beside the box
    raw: bool = False  # a box is read without decoding anything around it
    fortran: bool = False  # the first axis varies fastest in the file
    identity: tuple[Any, ...] = ()  # tells one version of a file from another

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    def read(self, where: Box, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        """The elements in a box; `buffer` is large enough for them and may be used."""
        raise NotImplementedError

    def prefetch(self, where: Box) -> None:
        """Ask the system to read a box that is needed next."""

    def close(self) -> None:
        """Release the file."""


def run(call: Call, x: Source) -> Call:
    """The call, checked and planned."""
    return call
