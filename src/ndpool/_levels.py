"""What pyramids in memory and in files share: the names of axes, and one level from the one before.

Called by `_pyramid`, and by `files._ome` for the levels of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ndpool.general import pool

DIMS = {1: "x", 2: "yx", 3: "zyx", 4: "czyx", 5: "tczyx"}  # by the number of axes
ORDER = "tczyx"  # of the axes, as OME-Zarr demands
SAME = {"q": "z", "i": "z", "time": "t", "lat": "y", "latitude": "y", "lon": "x", "longitude": "x"}
SAME |= {"depth": "z", "lev": "z", "level": "z"}


def letters(names: Sequence[str], ndim: int) -> tuple[str, ...]:
    """The letters of the axes that an array or a file names; otherwise those of their places."""
    found = tuple(SAME.get(name, name) for name in names)
    return found if len(set(found)) == ndim and set(found) <= set(ORDER) else tuple(DIMS.get(ndim, ""))


def next_level(array: Any, window: tuple[int, ...], reduce: str, axes: tuple[int, ...]) -> Any:
    """The level after `array`, with errors that name `pyramid`."""
    try:
        return pool(array, window, reduce=reduce, ceil_mode=True, axes=axes)
    except (ValueError, TypeError, MemoryError) as error:
        if not str(error).startswith("pool: "):
            raise
        message = str(error).removeprefix("pool: ").replace("x must", "array must", 1)
        message = message.replace("ask for another with dtype=", "ask for reduce='max' or 'min'")
        raise type(error)(f"pyramid: {message}") from None
