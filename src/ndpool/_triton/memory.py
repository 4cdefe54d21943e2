"""Memory layouts: merged leading axes, contiguous axes for vector loads, 32-bit addresses where they suffice.

Plain integers computed from shapes and strides; launchers cache the results with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter, mul
from typing import NamedTuple

import torch

BYTES = 16  # of the widest load of a thread
LIMIT = 2**31 - 1


class Arrays(NamedTuple):
    """The memory of a call: input and output as they are, or the gradients of both."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    out_shape: tuple[int, ...]
    out_stride: tuple[int, ...]
    dtype: torch.dtype
    result: torch.dtype  # of the output
    device: torch.device
    aligned: bool  # whether all addresses are multiples of 16 bytes


class Layout(NamedTuple):
    """Sizes and strides of the input and the output of a pooling, with their leading axes merged."""

    channels: bool  # whether a leading axis varies faster than the pooled ones, as in channels-last
    leads: int  # number of other leading axes: 1 or 2
    sizes: tuple[int, int, int]  # of channels and leading axes
    input_strides: tuple[int, ...]  # of channels, 2 leading axes, 3 pooled axes
    output_strides: tuple[int, ...]
    plane_steps: tuple[int, int, int]  # what each leading axis adds to the plane number
    int64: bool  # whether addresses need 64 bits


def dense_strides(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, in the order of others, which may be zero or have gaps."""
    order = sorted(range(len(shape)), key=lambda a: (like[a], -a))
    strides = [0] * len(shape)
    for a, stride in zip(order, [1, *accumulate((shape[a] for a in order[:-1]), mul)], strict=True):
        strides[a] = stride
    return tuple(strides)


def layout_of(
    axes: Sequence[int],
    shape: Sequence[int],
    x_stride: Sequence[int],
    out: Sequence[int],
    y_stride: Sequence[int],
) -> Layout | None:
    """Layout of arrays with these shapes and strides, or None if the input must be packed first."""
    leads: list[list[int]] = []  # size, input stride, output stride, plane step
    planes = 1
    for a in range(len(shape) - 1, -1, -1):
        if a in axes or shape[a] == 1:
            continue
        size, x, y = shape[a], x_stride[a], y_stride[a]
        if leads and [x, y] == [leads[-1][0] * leads[-1][1], leads[-1][0] * leads[-1][2]]:
            leads[-1][0] *= size
        else:
            leads.append([size, x, y, planes])
        planes *= size
    last = axes[-1]
    fast = min(leads, key=lambda lead: lead[1], default=None)
    if fast is not None and (shape[last] == 1 or fast[1] >= x_stride[last]):
        fast = None
    rest = [lead for lead in leads if lead is not fast]
    if len(rest) > 2:
        rest = _joined(rest)
    if len(rest) > 2 or len(axes) > 3:
        return None
    table = [fast or [1, 0, 0, 0], *rest, *[[1, 0, 0, 0]] * (2 - len(rest))]
    sizes, x_leads, y_leads, plane_steps = zip(*table, strict=True)
    missing = (0,) * (3 - len(axes))
    reach = (
        sum((n - 1) * abs(s) for n, s in zip(shape, x_stride, strict=True)),
        sum((n - 1) * abs(s) for n, s in zip(out, y_stride, strict=True)),
    )
    # Addresses slightly past the end are computed, but never read.
    int64 = max(*reach, planes) > LIMIT - 2**24
    return Layout(
        fast is not None,
        max(1, len(rest)),  # one image has the kernels of several
        sizes,
        (*x_leads, *missing, *(x_stride[a] for a in axes)),
        (*y_leads, *missing, *(y_stride[a] for a in axes)),
        plane_steps,
        int64,
    )


def _joined(leads: list[list[int]]) -> list[list[int]]:
    """Merge axes that are contiguous to each other in both arrays, even if other axes lie between them.

    Plane numbers are then undefined; plans with per-plane windows never have more than two leading axes.
    """
    found: list[list[int]] = []
    for size, x, y, _ in sorted(leads, key=itemgetter(1)):
        if found and [x, y] == [found[-1][0] * found[-1][1], found[-1][0] * found[-1][2]]:
            found[-1][0] *= size
        else:
            found.append([size, x, y, 0])
    return found


def widest(itemsize: int, *values: int) -> int:
    """The most elements a thread can load at once, given strides and lengths that must be multiples."""
    n = max(1, BYTES // itemsize)
    while any(value % n for value in values):
        n //= 2
    return n


def widest_or_one(itemsize: int, *values: int) -> int:
    """As `widest` if that is a full load, else 1, so that there are only two kernels."""
    n = widest(itemsize, *values)
    return n if n == widest(itemsize) else 1


def channel_vector(layout: Layout, itemsize: int) -> int:
    """How many channels are contiguous in both arrays and fit one load."""
    if not layout.channels or layout.input_strides[0] != 1 or layout.output_strides[0] != 1:
        return 1
    return min(8, widest(itemsize, layout.sizes[0], *layout.input_strides[1:], *layout.output_strides[1:]))


def next_power(n: int) -> int:
    """The least power of 2 that is at least n."""
    return 1 << max(0, n - 1).bit_length()
