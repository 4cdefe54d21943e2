"""Whole-plane windows, contiguous or channels-last, and large windows in channels-last arrays.

Plans of whole planes are merged to one axis before they come here. Called by `forward` and `backward`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
import triton.language as tl
from torch import Tensor

from ndpool._call import NO_EXTRA, OFFSET32
from ndpool._plan import AxisPlan, Plan
from ndpool._triton import tuning
from ndpool._triton.kernels import channels_last
from ndpool._triton.kernels.indexing import Division, Sizes
from ndpool._triton.kernels.plane_backward import Block, plane_backward_kernel
from ndpool._triton.kernels.reducers import Gather, Reduce
from ndpool._triton.launch import (
    SUM,
    Launch,
    all_of,
    constant,
    launcher,
    launches_dependents,
    magic,
    memory_of,
    merged,
    programs_of,
    strides_of,
    three_axes,
    whole_planes,
    window_table,
)
from ndpool._triton.memory import LIMIT, Layout, layout_of, widest, widest_or_one
from ndpool._triton.segments import segments


def plane_forward(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, reduce: Reduce, device: torch.device
) -> Launch:
    """Reduce contiguous planes in one pass, or in two if there are too few to fill the device."""
    size, n_planes = axes[2].size, layout.sizes[1] * layout.sizes[2]
    n = plane_pieces(size, n_planes)
    cut_axis = all_of(size).axes[0].divided(n) if n > 1 else None
    if cut_axis is None or reduce.COMPUTE not in (tl.float32, tl.float64):
        found = segments(axes, layout, itemsize, by, reduce, device, whole=True)
        assert found is not None, "planes are contiguous"
        return found
    between = torch.float64 if reduce.COMPUTE == tl.float64 else torch.float32
    half, kind = n_planes * n, reduce.KIND
    first = reduce._replace(KIND=OFFSET32 if kind else NO_EXTRA, DIVIDE=0)
    # Pieces lie in memory as channels-last planes of n elements do.
    cut_layout = layout._replace(output_strides=(0, 1, layout.sizes[1], 0, 0, n_planes))
    cut = segments((*axes[:2], cut_axis), cut_layout, itemsize, 1, first, device, whole=True, pieces=True)
    assert cut is not None, "planes are contiguous"
    pieces = layout._replace(
        channels=True,
        leads=1,
        sizes=(*layout.sizes[1:], 1),
        input_strides=(1, layout.sizes[1], 0, 0, 0, n_planes),
        output_strides=(*layout.output_strides[1:3], 0, 0, 0, 0),
    )
    item = between.itemsize if itemsize < 16 else itemsize
    put = _channel_pass((*axes[:2], all_of(n).axes[0]), pieces, item, by, reduce, device, 2, half)

    def launch(x: Tensor, y: Tensor, extra: Tensor) -> None:
        parts = x.new_empty(2 * half if kind else half, dtype=between)
        offsets = parts[half:].view(torch.int64 if between is torch.float64 else torch.int32)
        cut(x, parts, offsets)
        put(parts, y, extra)

    return launch


def plane_pieces(size: int, n_planes: int) -> int:
    """Into how many pieces planes are cut if they are too few to fill the device."""
    if size < 8 * tuning.LARGE_PLANE or n_planes > tuning.CUT_PLANES:
        return 1
    return min(1024, size // tuning.LARGE_PLANE, -(-tuning.PROGRAMS // max(1, n_planes)))


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
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, reduce: Reduce, device: torch.device
) -> Launch:
    """Reduce channels-last windows in one pass, or planes in two if there are too few to fill the device."""
    _, _, height, blocks = channel_blocks(layout, itemsize)
    channels, *leads = layout.sizes
    programs = blocks * leads[0] * leads[1]
    rows, floating = rows_of_channels(axes, layout), reduce.COMPUTE in (tl.float32, tl.float64)
    n = min(-(-rows // height), -(-tuning.PROGRAMS // programs))
    if n < 2 or 4 * programs > tuning.PROGRAMS or not floating:
        return _channel_pass(axes, layout, itemsize, by, reduce, device)
    between = torch.float64 if reduce.COMPUTE == tl.float64 else torch.float32
    half, strides = prod(layout.sizes) * n, (1, channels * n, channels * n * leads[0], 0, 0, channels)
    pieces_of_rows = all_of(rows).axes[0].divided(n)
    assert pieces_of_rows is not None, "no more pieces than rows"
    cut_axes, merged_axes = (*axes[:2], pieces_of_rows), (*axes[:2], all_of(n).axes[0])
    pieces = layout._replace(output_strides=strides)
    cut = _channel_pass(cut_axes, pieces, itemsize, 1, reduce._replace(DIVIDE=0), device, 1, half)
    layout = layout._replace(input_strides=strides)
    itemsize = between.itemsize if itemsize < 16 else itemsize
    put = _channel_pass(merged_axes, layout, itemsize, by, reduce, device, 2, half)
    total = half * (1 if reduce.OP == SUM or not reduce.KIND else 2)

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
    reduce: Reduce,
    device: torch.device,
    parts: int = 0,
    half: int = 0,
) -> Launch:
    """One launch; `parts`: 1 writes pieces of windows, 2 merges them, with offsets `half` elements later."""
    d, h, last = axes
    unit, width, _, blocks = channel_blocks(layout, itemsize)
    columns, rows, warps = channel_shape(last, d.size * h.size > 1, parts == 2, width, itemsize)
    block = channels_last.Block(
        UNIT=unit,
        WIDTH=width,
        COLUMNS=columns,
        ROWS=rows,
        ALONG=rows > 1 and reduce.KIND != 0 and last.kernel > columns,
        PARTS=parts,
    )
    lead = layout.sizes[1] if layout.leads > 1 else None
    magics = map(magic, (blocks, lead, last.out))
    whole = (a.out == 1 and a.regular and (a.kernel, a.origin) == (a.size, 0) for a in axes)
    arguments = (
        *(None if one else window_table(a, device) for a, one in zip(axes, whole, strict=True)),
        channels_last.Channels(blocks, layout.sizes[0], lead, half, *magics),
        programs_of(h.out, d.out),
        strides_of([s // unit for s in layout.input_strides], layout),
        strides_of(layout.output_strides, layout),
        Sizes(*(a.size for a in axes)),
        Sizes(*(a.out for a in axes)),
        Sizes(*(a.kernel for a in axes)),
        Division(by, 1 / by),
        constant(block),
        memory_of(layout),
        constant(reduce),
    )
    grid = d.out * h.out * last.out * blocks * layout.sizes[1] * layout.sizes[2]
    kernel = channels_last.channels_last_forward_kernel
    return launcher(kernel, grid, arguments, warps, itemsize < 16)


def plane_backward(size: int, layout: Layout, itemsize: int, by: int, gather: Gather) -> Launch:
    """Write contiguous planes of `size` elements, without gaps."""
    total, vec, lanes = size * layout.sizes[1] * layout.sizes[2], widest(itemsize), 2 * tuning.THREADS
    grid = max(1, -(-(total // vec) // lanes))
    arguments = (
        size,
        magic(size),
        total,
        layout.output_strides[1],
        Division(by, 1 / by),
        int(launches_dependents(grid, lanes * vec * min(itemsize, 8))),
        constant(Block(LANES=lanes, VEC=vec, EDGES=total % vec > 0)),
        memory_of(layout),
        constant(gather),
    )
    return launcher(plane_backward_kernel, grid, arguments, tuning.THREADS // 32, itemsize < 16)
