"""Windows along contiguous rows, and whole planes: the segment kernel.

Only the length class of a segment chooses the kernel. Called by `forward` and `planes`.
"""

from __future__ import annotations

from math import prod

import torch

from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Division, Sizes
from ndpool._triton.kernels.reducers import Reduce
from ndpool._triton.kernels.segment_forward import Block, segment_forward_kernel
from ndpool._triton.launch import (
    Launch,
    by_taps,
    constant,
    lanes_of,
    launcher,
    memory_of,
    optional,
    packed,
    programs_of,
    strides_of,
    window_table,
)
from ndpool._triton.memory import BYTES, LIMIT, Layout, next_power, widest, widest_or_one
from ndpool.geometry import AxisPlan


def segment_shape(
    kernel: int, itemsize: int, whole: bool, single: bool, with_offsets: bool, n_windows: int, regular: bool
) -> tuple[int, int, int, int]:
    """Elements per vector, threads per window, vectors of a thread per row, and rows at a time.

    Powers of 2 that depend on the length class of a window's rows, whether windows are whole planes, and
    whether they are too few to fill the device.
    """
    if whole:
        return max(1, BYTES // itemsize), tuning.LOOP_LANES, 8, 1
    long, narrow = kernel >= tuning.LONG_ROW and not single, itemsize < 4
    wide = single or long or (not narrow and (with_offsets or kernel <= 6))
    unit = max(1, (8 if wide else 4) // itemsize)
    needed = -(-(kernel + unit - 1) // unit)
    vectors = min((2 if long else 8) if narrow or single else 4, next_power(needed))
    lanes = min(32, next_power(-(-needed // vectors)))
    vectors = min(8, next_power(-(-needed // lanes)))
    if lanes * n_windows >= 2 * tuning.FEW_LANES or single:
        return unit, lanes, vectors, 8 // vectors if long else max(1, 4 // vectors)
    if lanes == 1:
        return (unit, 4, 2, 1) if vectors == 8 else (unit, 1, vectors, max(1, 4 // vectors))
    if regular and itemsize == 4 and 24 < kernel <= 32:
        return 1, 32, 1, 5  # a warp reads a row, nearly without unused threads
    unit = max(1, 8 // itemsize)
    needed = -(-(kernel + unit - 1) // unit)
    lanes = 16 if needed <= 16 else 32
    vectors = min(8, next_power(-(-needed // lanes)))
    return unit, lanes, vectors, (4 if narrow and with_offsets else 8) // vectors


def plane_shape(size: int, n_planes: int, layout: Layout, itemsize: int) -> tuple[int, int, int]:
    """Elements per vector, threads per plane, and vectors of a thread; 0 of these for planes to loop over."""
    # Contiguous planes are read by full vectors, even where a vector spans two planes.
    gapless = layout.leads < 2 and layout.input_strides[1] in (0, size)
    pitches = [size * n_planes] if gapless else [size, *layout.input_strides[1:3]]
    if size <= tuning.SMALL_PLANE:
        unit = widest(itemsize, *pitches)
        vectors = -(-(size + (unit - 1) * (size % unit > 0)) // unit)
        # About seven vectors of a plane per thread; neighbouring threads read 32 bytes or more.
        lanes = next_power(-(-vectors // max(1, min(7, 56 // unit))))
        lanes = max(lanes, 32 if unit == 1 else 2 if itemsize < 4 else 4)
        return unit, lanes, -(-vectors // lanes)
    # Few kernels for all sizes: always as many loads, by one of a few numbers of lanes.
    unit = widest_or_one(itemsize, *pitches)
    most = -(-(size + unit - 1) // unit) if size <= tuning.LARGE_PLANE else LIMIT
    lanes = next((n for n in tuning.PLANE_LANES if 8 * n >= most), 0)
    return unit, lanes, 8 if lanes else 0


def segments(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    reduce: Reduce,
    device: torch.device,
    whole: bool = False,
    pieces: bool = False,
) -> Launch | None:
    """Launcher for the segment kernel, or None where windows are no segments of contiguous rows.

    With `whole`, windows are planes, or with `pieces` pieces of them, whose offsets are those in the plane.
    """
    d, h, last = axes
    if layout.channels or layout.input_strides[5] != 1:
        return None
    n_planes = layout.sizes[1] * layout.sizes[2]
    n_windows = n_planes * last.out
    if not min(int(a.windows()[1].min()) for a in axes):
        return None
    # Full vectors are loaded: the last one must not reach past the input.
    single = d.size == h.size == 1
    regular = all(a.regular for a in axes)
    how = (whole, single, reduce.KIND != 0, d.out * h.out * n_windows, regular)
    unit, lanes, vectors, rows = segment_shape(last.kernel, itemsize, *how)
    if not packed(axes, layout) or prod(a.size for a in axes) * n_planes % unit:
        unit, lanes, vectors, rows = segment_shape(last.kernel, BYTES, *how)  # single elements
    loop = last.kernel + unit - 1 > lanes * unit * vectors or lanes > 32
    full, least = max(0, vectors // 2 - 1), int(last.windows()[1].min())
    small = plane_shape(last.size, n_planes, layout, itemsize) if whole and not pieces else (0, 0, 0)
    if small[2]:
        loop, (unit, lanes, vectors) = False, small
        full = vectors if last.size <= tuning.SMALL_PLANE else 0
        full = min(full, last.size // (lanes * unit))
    windows = max(1, tuning.THREADS // lanes)
    block = Block(
        UNIT=unit,
        WIDTH=lanes * unit,
        VECTORS=vectors,
        FULL=full if not loop and least // (lanes * unit) >= full else 0,
        ROWS=1 if loop or single else rows,
        LOOP=loop,
        WINDOWS=windows,
        SINGLE=single,
        PIECES=pieces,
    )
    arguments = (
        *(None if whole and a.out == 1 else window_table(a, device) for a in axes),
        lanes_of(n_windows, 1, last.out, layout),
        programs_of(*optional(not single or d.out * h.out > 1, h.out, d.out)),
        strides_of(layout.input_strides, layout, rows=True),
        strides_of(layout.output_strides, layout),
        Sizes(*(a.size for a in axes)),
        Sizes(*(a.kernel for a in axes)),
        Division(by, 1 / by),
        constant(block),
        constant(block._replace(VECTORS=1, FULL=0, ROWS=1, LOOP=True)),
        memory_of(layout),
        constant(reduce if whole else reduce._replace(DIVIDE=by_taps(axes, reduce.DIVIDE, by))),
    )
    grid = d.out * h.out * -(-n_windows // windows)
    warps = max(lanes, tuning.THREADS) // 32
    return launcher(segment_forward_kernel, grid, arguments, warps, itemsize < 16)
