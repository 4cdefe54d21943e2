"""Whole-plane windows, contiguous or channels-last, and large windows in channels-last arrays.

Plans of whole planes are merged to one axis before they come here. Called by `forward` and `backward`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._call import NO_EXTRA, OFFSET32
from ndpool._plan import AxisPlan, Plan
from ndpool._triton import tuning
from ndpool._triton.kernels.channels_last import channels_last_backward_kernel, channels_last_forward_kernel
from ndpool._triton.kernels.planes import plane_backward_kernel, plane_forward_kernel
from ndpool._triton.launch import (
    SUM,
    Launch,
    all_of,
    launcher,
    launches_dependents,
    magic,
    merged,
    optional,
    tables,
    three_axes,
    whole_planes,
)
from ndpool._triton.memory import LIMIT, Layout, layout_of, next_power, widest, widest_or_one


def plane_forward(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    """Reduce contiguous planes in one pass, or in two if there are too few to fill the device."""
    size, n_planes = axes[2].size, layout.sizes[1] * layout.sizes[2]
    n, piece = plane_pieces(size, n_planes)
    if n < 2 or common["COMPUTE"] not in (tl.float32, tl.float64):
        return _plane_pass(size, layout, itemsize, by, common)
    between = torch.float64 if common["COMPUTE"] == tl.float64 else torch.float32
    half, kind = n_planes * n, common["KIND"]
    first = common | {"KIND": OFFSET32 if kind else NO_EXTRA, "DIVIDE": 0}
    cut = _plane_pass(size, layout, itemsize, 1, first, piece)
    # Pieces lie in memory as channels-last planes of n elements do.
    pieces = layout._replace(
        leads=1,
        sizes=(*layout.sizes[1:], 1),
        input_strides=(1, layout.sizes[1], 0, 0, 0, n_planes),
        output_strides=(*layout.output_strides[1:3], 0, 0, 0, 0),
    )
    last, item = all_of(n).axes[0], between.itemsize if itemsize < 16 else itemsize
    put = _channel_pass((*axes[:2], last), pieces, item, by, common, device, 2, half)

    def launch(x: Tensor, y: Tensor, extra: Tensor) -> None:
        parts = x.new_empty(2 * half if kind else half, dtype=between)
        offsets = parts[half:].view(torch.int64 if between is torch.float64 else torch.int32)
        cut(x, parts, offsets)
        put(parts, y, extra)

    return launch


def plane_pieces(size: int, n_planes: int) -> tuple[int, int]:
    """Into how many pieces of how many elements planes are cut if they are too few to fill the device."""
    n = min(1024, size // tuning.LARGE_PLANE, -(-tuning.PROGRAMS // max(1, n_planes)))
    if size < 8 * tuning.LARGE_PLANE or n_planes > tuning.CUT_PLANES:
        return 1, size
    piece = -(-size // (8 * n)) * 8
    return -(-size // piece), piece


def channel_shape(
    last: AxisPlan, several: bool, merges: bool, width: int, itemsize: int
) -> tuple[int, int, int]:
    """Columns and rows at a time, and warps: few shapes for all sizes."""
    if not several:
        if itemsize < 4 and last.kernel <= 256:
            return 16, 1, 1  # a warp merges its columns without shared memory
        return (32 if merges or last.kernel <= 96 else 64), 1, 4
    more = max(1, tuning.CHANNEL_ROW // (width * min(itemsize, 8)))  # columns where there are few channels
    return (8 * more, 8, 4) if last.kernel <= 8 else (16 * more, 8, 8)


def _plane_pass(
    whole: int, layout: Layout, itemsize: int, by: int, common: dict[str, Any], piece: int = 0
) -> Launch:
    """One launch for planes of `whole` elements, or for all pieces of so many elements of them."""
    size, n_planes = piece or whole, layout.sizes[1] * layout.sizes[2]
    # Contiguous planes are read by full vectors, even where a vector spans two planes.
    dense = layout.leads < 2 and layout.input_strides[1] in (0, whole)
    pitches = [whole * n_planes] if dense else [whole, size, *layout.input_strides[1:3]]
    if piece:
        n_planes *= -(-whole // piece)
    unit = widest(itemsize, *pitches)
    shifted = size % unit > 0
    vectors = -(-(size + (unit - 1) * shifted) // unit)
    # About seven vectors of a plane per thread; neighbouring threads read 32 bytes or more.
    lanes = next_power(-(-vectors // max(1, min(7, 56 // unit))))
    lanes = max(lanes, 32 if unit == 1 else 2 if itemsize < 4 else 4)
    if common["OP"] == SUM and lanes > 64 and -(-vectors // 64) * unit <= 60:
        lanes = 64  # sums need few registers
    threads = max(lanes, tuning.THREADS if common["OP"] == SUM or itemsize > 2 else tuning.THREADS // 2)
    parts = -(-vectors // lanes)
    if tuning.SMALL_PLANE < size <= tuning.LARGE_PLANE:
        # Few kernels for all sizes: always as many loads, by one of a few numbers of lanes.
        unit = widest_or_one(itemsize, *pitches)
        shifted = dense and unit > 1
        vectors = -(-(size + (unit - 1) * shifted) // unit)
        parts, lanes = 8, next(n for n in (16, 64, 256, 1024) if 8 * n >= vectors)
        threads = max(lanes, tuning.THREADS)
    if piece or size > tuning.LARGE_PLANE or lanes > 2 * tuning.THREADS:
        # One kernel for all sizes.
        unit = widest_or_one(itemsize, *pitches)
        shifted = dense and unit > 1
        lanes, parts, threads = 4 * tuning.THREADS, 0, 2 * tuning.THREADS
    width, planes = lanes * unit, max(1, min(threads // lanes, next_power(n_planes)))
    numbers: list[Any] = [
        n_planes,
        layout.sizes[1],
        size,
        whole,
        *layout.input_strides[1:3],
        *layout.output_strides[1:3],
        by,
        1 / by,
    ]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "IDENTITY", "COMPUTE", "INT64")} | {
        "PLANES": planes,
        "WIDTH": width,
        "UNIT": unit,
        "SHIFTED": shifted,
        "PARTS": parts,
        "FULL": min(parts, size // width) if size <= tuning.SMALL_PLANE else 0,
        "PIECES": piece > 0,
        "LEADS": layout.leads,
        "num_warps": threads // 32,
    }
    return launcher(plane_forward_kernel, -(-n_planes // planes), numbers, constants, [], itemsize < 16)


def rows_of_channels(axes: tuple[AxisPlan, ...], layout: Layout) -> int:
    """Number of positions of a channels-last plane if windows are whole planes, else 0."""
    d, h, last = axes
    whole = last.out == 1 and last.regular and last.kernel == last.size and last.origin == 0
    alone = d.size == h.size == d.out == h.out == 1
    many = 16 <= last.size < LIMIT // 2
    return last.size if alone and whole and many and layout.channels and layout.input_strides[0] == 1 else 0


@lru_cache(1024)
def kind_of_planes(
    plan: Plan, axes: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...]
) -> str | None:
    """Which planes windows are, if whole ones, whose kernels cut them as needed.

    "contiguous", "channels-last", or None for other windows.
    """
    if any(a.out != 1 for a in plan.axes):
        return None
    outs = tuple(1 if a in axes else n for a, n in enumerate(shape))
    plan, axes, *memory = merged(plan, axes, shape, stride, outs, torch.empty(outs, device="meta").stride())
    layout, three = layout_of(axes, *memory), three_axes(plan)
    if layout is None:
        return None
    if whole_planes(three, layout):
        return "contiguous"
    return "channels-last" if rows_of_channels(three, layout) else None


def channel_blocks(layout: Layout, itemsize: int, row: int = tuning.CHANNEL_ROW) -> tuple[int, int, int, int]:
    """Channels per load, channels and rows per program, and blocks of channels; `row` bytes of each row.

    Two widths, for few and for many channels, and two load widths, aligned and not.
    """
    unit = min(8, widest_or_one(itemsize, layout.sizes[0], *layout.input_strides[1:]))
    width = row // min(itemsize, 8)
    if 2 * layout.sizes[0] <= width:
        width = max(unit, width // 4)
    height = max(1, min(8, 32 // unit) * tuning.THREADS * unit // width)
    return unit, width, height, -(-layout.sizes[0] // width)


def channels_forward(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    """Reduce channels-last windows in one pass, or planes in two if there are too few to fill the device."""
    _, _, height, blocks = channel_blocks(layout, itemsize)
    channels, *leads = layout.sizes
    programs = blocks * leads[0] * leads[1]
    rows, floating = rows_of_channels(axes, layout), common["COMPUTE"] in (tl.float32, tl.float64)
    n = min(-(-rows // height), -(-tuning.PROGRAMS // programs))
    if n < 2 or 4 * programs > tuning.PROGRAMS or not floating:
        return _channel_pass(axes, layout, itemsize, by, common, device)
    between = torch.float64 if common["COMPUTE"] == tl.float64 else torch.float32
    half, strides = prod(layout.sizes) * n, (1, channels * n, channels * n * leads[0], 0, 0, channels)
    pieces_of_rows = all_of(rows).axes[0].divided(n)
    assert pieces_of_rows is not None, "no more pieces than rows"
    cut_axes, merged_axes = (*axes[:2], pieces_of_rows), (*axes[:2], all_of(n).axes[0])
    pieces = layout._replace(output_strides=strides)
    cut = _channel_pass(cut_axes, pieces, itemsize, 1, common | {"DIVIDE": 0}, device, 1, half)
    layout = layout._replace(input_strides=strides)
    itemsize = between.itemsize if itemsize < 16 else itemsize
    put = _channel_pass(merged_axes, layout, itemsize, by, common, device, 2, half)
    total = half * (1 if common["OP"] == SUM or not common["KIND"] else 2)

    def launch(x: Tensor, y: Tensor, extra: Tensor) -> None:
        parts = x.new_empty(total, dtype=between)
        cut(x, parts, parts)
        put(parts, y, extra)

    return launch


def _channel_pass(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
    parts: int = 0,
    half: int = 0,
) -> Launch:
    """One launch; `parts`: 1 writes pieces of windows, 2 merges them, with offsets `half` elements later."""
    d, h, last = axes
    unit, width, _, blocks = channel_blocks(layout, itemsize)
    several = d.size * h.size > 1
    with_offsets = common["OP"] != SUM and common["KIND"] != 0
    columns, rows, warps = channel_shape(last, several, parts == 2, width, itemsize)
    x_strides = [s // unit for s in layout.input_strides]
    numbers: list[Any] = [blocks, layout.sizes[0], layout.sizes[1], half]
    numbers += [*map(magic, (blocks, last.out, h.out, d.out, layout.sizes[1])), *x_strides[1:]]
    numbers += [*layout.output_strides, d.size, h.size, last.size]
    numbers += [d.out, h.out, last.out, h.kernel, last.kernel, by, 1 / by]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "IDENTITY", "COMPUTE", "INT64")} | {
        "LEADS": layout.leads,
        "UNIT": unit,
        "WIDTH": width,
        "COLUMNS": columns,
        "ROWS": rows,
        "ALONG": rows > 1 and with_offsets and last.kernel > columns,
        "PARTS": parts,
        "WITH_OFFSETS": with_offsets,
        "num_warps": warps,
    }
    given: list[Tensor | None] = []
    for a in axes:
        whole = a.out == 1 and a.regular and (a.kernel, a.origin) == (a.size, 0)
        given += optional(not whole, *tables(a, device))
    grid = d.out * h.out * last.out * blocks * layout.sizes[1] * layout.sizes[2]
    return launcher(channels_last_forward_kernel, grid, numbers, constants, given, itemsize < 16)


def channels_backward(layout: Layout, rows: int, itemsize: int, by: int, common: dict[str, Any]) -> Launch:
    unit, width, height, blocks = channel_blocks(layout, itemsize, 4 * tuning.CHANNEL_ROW)
    leads = layout.sizes[1] * layout.sizes[2]
    each = height * max(1, min(-(-rows // height), blocks * leads * -(-rows // height) // 2048))
    pieces = -(-rows // each)
    x_strides = [s // unit for s in layout.input_strides]
    numbers: list[Any] = [blocks, layout.sizes[0], layout.sizes[1], rows, each, pieces]
    numbers += [
        *map(magic, (pieces, blocks, layout.sizes[1])),
        *x_strides[1:3],
        x_strides[5],
        *layout.output_strides[:3],
        by,
        1 / by,
    ]
    constants = {key: common[key] for key in ("HAS_INDEX", "DIVIDE", "COMPUTE", "INT64")} | {
        "LEADS": layout.leads,
        "UNIT": unit,
        "WIDTH": width,
        "ROWS": height,
        "num_warps": 4,
    }
    grid = pieces * blocks * leads
    return launcher(channels_last_backward_kernel, grid, numbers, constants, [], itemsize < 16)


def plane_backward(
    size: int, total: int, pitch: int, itemsize: int, by: int, common: dict[str, Any]
) -> Launch:
    """Write adjacent planes as one flat array of full vectors; the first program also writes the rest."""
    vec = widest(itemsize)
    lanes = total // vec
    constants = {key: common[key] for key in ("HAS_INDEX", "DIVIDE", "COMPUTE", "INT64")} | {
        "LANES": 2 * tuning.THREADS,
        "VEC": vec,
        "EDGES": total % vec > 0,
        "num_warps": tuning.THREADS // 32,
    }
    grid = max(1, -(-lanes // (2 * tuning.THREADS)))
    launch_next = int(launches_dependents(grid, 2 * tuning.THREADS * vec * min(itemsize, 8)))
    numbers: list[Any] = [lanes, total, size, magic(size), pitch, launch_next, by, 1 / by]
    return launcher(plane_backward_kernel, grid, numbers, constants, [], itemsize < 16)
