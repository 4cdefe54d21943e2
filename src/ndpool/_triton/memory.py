"""How threads walk an array: leading axes merged, vectors where memory is contiguous, 32 bits where they do.

Plain integers from shapes and strides; what is decided here is remembered by the launchers with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

BYTES = 16  # the widest load of a thread
LIMIT = 2**31 - 1


class Walk(NamedTuple):
    """The leading axes of a wide array (the input) and a narrow one (the output); one of them may be fast."""

    channels: bool  # whether a leading axis lies inside the pooled ones
    leads: int  # the other leading axes, up to 2
    sizes: tuple[int, int, int]  # channels and leads
    wide: tuple[int, ...]  # strides: channels, 2 leads, 3 pooled axes
    narrow: tuple[int, ...]
    planes: tuple[int, int, int]  # what each leading axis adds to the number of a plane
    big: bool  # whether 32 bits are too few


def walk(
    axes: Sequence[int], shape: Sequence[int], wide: Sequence[int], out: Sequence[int], narrow: Sequence[int]
) -> Walk | None:
    """The walk over arrays of these shapes and strides, or None where it needs a packed copy."""
    leads: list[list[int]] = []  # size, wide stride, narrow stride, planes
    planes = 1
    for a in range(len(shape) - 1, -1, -1):
        if a in axes or shape[a] == 1:
            continue
        size, w, n = shape[a], wide[a], narrow[a]
        if leads and [w, n] == [leads[-1][0] * leads[-1][1], leads[-1][0] * leads[-1][2]]:
            leads[-1][0] *= size
        else:
            leads.append([size, w, n, planes])
        planes *= size
    last = axes[-1]
    fast = min(leads, key=lambda lead: lead[1], default=None)
    if fast is not None and (shape[last] == 1 or fast[1] >= wide[last]):
        fast = None
    rest = [lead for lead in leads if lead is not fast]
    if len(rest) > 2:
        rest = _joined(rest)
    if len(rest) > 2 or len(axes) > 3:
        return None
    table = [fast or [1, 0, 0, 0], *rest, *[[1, 0, 0, 0]] * (2 - len(rest))]
    sizes, wides, narrows, ordinals = zip(*table, strict=True)
    missing = (0,) * (3 - len(axes))
    spans = (
        sum((n - 1) * abs(s) for n, s in zip(shape, wide, strict=True)),
        sum((n - 1) * abs(s) for n, s in zip(out, narrow, strict=True)),
    )
    # Positions somewhat behind the end are computed, though never read.
    big = max(*spans, planes) > LIMIT - 2**24
    return Walk(
        fast is not None,
        len(rest),
        sizes,
        (*wides, *missing, *(wide[a] for a in axes)),
        (*narrows, *missing, *(narrow[a] for a in axes)),
        ordinals,
        big,
    )


def _joined(leads: list[list[int]]) -> list[list[int]]:
    """The same with axes that follow each other in both memories as one, though others lie between them.

    Then no axis tells the number of a plane. Windows of single planes have no more than two leading axes.
    """
    found: list[list[int]] = []
    for size, wide, narrow, _ in sorted(leads, key=itemgetter(1)):
        if found and [wide, narrow] == [found[-1][0] * found[-1][1], found[-1][0] * found[-1][2]]:
            found[-1][0] *= size
        else:
            found.append([size, wide, narrow, 0])
    return found


def widest(itemsize: int, *values: int) -> int:
    """The most elements a thread can load at once if these are the distances and lengths."""
    n = max(1, BYTES // itemsize)
    while any(value % n for value in values):
        n //= 2
    return n


def widest_or_one(itemsize: int, *values: int) -> int:
    """The same where it is all that a thread can load, else 1: kernels are made for two cases only."""
    n = widest(itemsize, *values)
    return n if n == widest(itemsize) else 1


def channel_vector(w: Walk, itemsize: int) -> int:
    """How many channels lie side by side in both arrays, for one load."""
    if not w.channels or w.wide[0] != 1 or w.narrow[0] != 1:
        return 1
    return min(8, widest(itemsize, w.sizes[0], *w.wide[1:], *w.narrow[1:]))


def next_power(n: int) -> int:
    """The least power of 2 that is no less."""
    return 1 << max(0, n - 1).bit_length()
