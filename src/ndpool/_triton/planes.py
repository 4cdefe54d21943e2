"""Windows that are whole planes: which kernel serves them, contiguous or with the channels inside.

Plans come here merged to one axis. Called by `forward` and `backward`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton.kernels.channels import channel_backward_kernel, channel_forward_kernel
from ndpool._triton.kernels.planes import plane_backward_kernel, plane_forward_kernel
from ndpool._triton.launch import SUM, THREADS, Launch, calls_next, launcher, magic, merged, padded
from ndpool._triton.memory import LIMIT, Walk, next_power, walk, widest, widest_or_one
from ndpool.geometry import AxisPlan, Plan

LARGE = 2**12  # elements of a plane beyond which a loop reads it
PROGRAMS = 2112  # that keep a large device busy
FEW = 64  # rows of channels that are read at once
ROW = 128  # bytes of a row that threads of one program read side by side


def plane_forward(
    axes: tuple[AxisPlan, ...], w: Walk, itemsize: int, by: int, common: dict[str, Any]
) -> Launch:
    size, n_planes = axes[2].size, w.sizes[1] * w.sizes[2]
    # Planes that follow each other are read by whole vectors, though these begin between two of them.
    dense = w.leads < 2 and w.wide[1] in (0, size)
    pitches = [size * n_planes] if dense else [size, *w.wide[1:3]]
    unit = widest(itemsize, *pitches)
    shifted = size % unit > 0
    vectors = -(-(size + (unit - 1) * shifted) // unit)
    # A thread has about seven vectors of a plane, those side by side read 32 bytes or more at once.
    lanes = next_power(-(-vectors // max(1, min(7, 56 // unit))))
    lanes = max(lanes, 32 if unit == 1 else 2 if itemsize < 4 else 4)
    if common["OP"] == SUM and lanes > 64 and -(-vectors // 64) * unit <= 60:
        lanes = 64  # sums need few registers
    threads = max(lanes, THREADS if common["OP"] == SUM or itemsize > 2 else THREADS // 2)
    parts = -(-vectors // lanes)
    if size > LARGE or lanes > 2 * THREADS:
        # One kernel for all sizes.
        unit = widest_or_one(itemsize, *pitches)
        shifted = dense and unit > 1
        lanes, parts, threads = 4 * THREADS, 0, THREADS if common["OP"] == SUM else 2 * THREADS
    width, planes = lanes * unit, max(1, min(threads // lanes, next_power(n_planes)))
    numbers: list[Any] = [n_planes, w.sizes[1], size, *w.wide[1:3], *w.narrow[1:3], by, 1 / by]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "LOW", "COMPUTE", "WIDE")} | {
        "PLANES": planes,
        "WIDTH": width,
        "UNIT": unit,
        "SHIFTED": shifted,
        "PARTS": parts,
        "FILLED": min(parts, size // width),
        "LEADS": max(1, w.leads),
        "num_warps": threads // 32,
    }
    return launcher(plane_forward_kernel, -(-n_planes // planes), numbers, constants, [], itemsize < 16)


def rows_of_channels(axes: tuple[AxisPlan, ...], w: Walk) -> int:
    """How many rows of channels a window has that is a whole plane, 0 where it is not."""
    d, h, last = axes
    whole = last.out == 1 and last.regular and last.kernel == last.size and last.origin == 0
    alone = d.size == h.size == d.out == h.out == 1
    many = 16 <= last.size < LIMIT // 2
    return last.size if alone and whole and many and w.channels and w.wide[0] == 1 else 0


@lru_cache(1024)
def by_channels(plan: Plan, axes: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether windows are whole planes with the channels inside; these are cut as they need it."""
    if any(a.out != 1 for a in plan.axes):
        return False
    outs = tuple(1 if a in axes else n for a, n in enumerate(shape))
    plan, axes, *memory = merged(plan, axes, shape, stride, outs, torch.empty(outs, device="meta").stride())
    w = walk(axes, *memory)
    return w is not None and rows_of_channels(padded(plan), w) > 0


def channel_blocks(w: Walk, itemsize: int, row: int = ROW) -> tuple[int, int, int, int]:
    """Channels of a load and of a program with `row` bytes of each row, its rows at a time, and its kind.

    Two widths, for few channels and for many, and two loads, aligned and not.
    """
    unit = min(8, widest_or_one(itemsize, w.sizes[0], *w.wide[1:]))
    width = row // min(itemsize, 8)
    if 4 * w.sizes[0] <= width:
        width = max(unit, width // 8)
    height = max(1, min(8, 32 // unit) * THREADS * unit // width)
    return unit, width, height, -(-w.sizes[0] // width)


def channels_forward(
    w: Walk, rows: int, itemsize: int, by: int, common: dict[str, Any], dtype: torch.dtype
) -> Launch:
    """Windows that are whole planes: at once, or where they are few for a device cut into pieces first."""
    _, _, height, blocks = channel_blocks(w, itemsize)
    channels, *leads = w.sizes
    programs = blocks * leads[0] * leads[1]
    n = min(-(-rows // height), -(-PROGRAMS // programs))
    if n < 2 or 2 * programs > PROGRAMS or not dtype.is_floating_point:
        return _channel_pass(w, rows, itemsize, by, common)
    between = torch.float64 if common["COMPUTE"] == tl.float64 else torch.float32
    half, strides = prod(w.sizes) * n, (1, channels * n, channels * n * leads[0], 0, 0, channels)
    first, then = common | {"KIND": 0, "DIVIDE": 0}, 1 if common["OP"] == SUM else 2
    cut = _channel_pass(w._replace(narrow=strides), rows, itemsize, 1, first, (1, n, half))
    w = w._replace(wide=strides)
    put = _channel_pass(w, n, between.itemsize if itemsize < 16 else itemsize, by, common, (2, 1, half))

    def launch(x: Tensor, y: Tensor, extra: Tensor) -> None:
        parts = x.new_empty(then * half, dtype=between)
        cut(x, parts, parts)
        put(parts, y, extra)

    return launch


def _channel_pass(
    w: Walk,
    rows: int,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    cut: tuple[int, int, int] = (0, 1, 0),
) -> Launch:
    """One of two passes or both: `cut` says which, how many pieces there are, how far codes are behind."""
    unit, width, height, blocks = channel_blocks(w, itemsize)
    parts, pieces, half = cut
    each = -(-rows // pieces)
    once = not parts and rows <= FEW <= height
    if once or parts == 2:
        height = min(height, FEW)
    wide = [s // unit for s in w.wide]
    numbers: list[Any] = [blocks, w.sizes[0], w.sizes[1], rows, each, pieces, half]
    numbers += [*map(magic, (pieces, blocks, w.sizes[1])), *wide[1:3], wide[5], *w.narrow[:3], w.narrow[5]]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "LOW", "COMPUTE", "WIDE")} | {
        "LEADS": max(1, w.leads),
        "UNIT": unit,
        "WIDTH": width,
        "ROWS": height,
        "ONCE": once,
        "PARTS": parts,
        "num_warps": 4,
    }
    grid = pieces * blocks * w.sizes[1] * w.sizes[2]
    return launcher(channel_forward_kernel, grid, [*numbers, by, 1 / by], constants, [], itemsize < 16)


def channels_backward(w: Walk, rows: int, itemsize: int, by: int, common: dict[str, Any]) -> Launch:
    unit, width, height, blocks = channel_blocks(w, itemsize, 4 * ROW)
    leads = w.sizes[1] * w.sizes[2]
    each = height * max(1, min(-(-rows // height), blocks * leads * -(-rows // height) // 2048))
    pieces = -(-rows // each)
    wide = [s // unit for s in w.wide]
    numbers: list[Any] = [blocks, w.sizes[0], w.sizes[1], rows, each, pieces]
    numbers += [*map(magic, (pieces, blocks, w.sizes[1])), *wide[1:3], wide[5], *w.narrow[:3], by, 1 / by]
    constants = {key: common[key] for key in ("PICKS", "DIVIDE", "COMPUTE", "WIDE")} | {
        "LEADS": max(1, w.leads),
        "UNIT": unit,
        "WIDTH": width,
        "ROWS": height,
        "num_warps": 4,
    }
    grid = pieces * blocks * leads
    return launcher(channel_backward_kernel, grid, numbers, constants, [], itemsize < 16)


def plane_backward(
    size: int, total: int, pitch: int, itemsize: int, by: int, common: dict[str, Any]
) -> Launch:
    vec = widest_or_one(itemsize, total)
    lanes = total // vec
    constants = {key: common[key] for key in ("PICKS", "DIVIDE", "COMPUTE", "WIDE")} | {
        "LANES": 2 * THREADS,
        "VEC": vec,
        "num_warps": THREADS // 32,
    }
    grid = -(-lanes // (2 * THREADS))
    early = int(calls_next(grid, 2 * THREADS * vec * min(itemsize, 8)))
    numbers: list[Any] = [lanes, size, magic(size), pitch, early, by, 1 / by]
    return launcher(plane_backward_kernel, grid, numbers, constants, [], itemsize < 16)
