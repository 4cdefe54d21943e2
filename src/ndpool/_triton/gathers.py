"""Backward by gathers, block by block or input by input, and by a scatter into zeros.

Called by `backward`, which chooses between them.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels import block_backward, window_backward
from ndpool._triton.kernels import scatter_backward as scatter
from ndpool._triton.kernels.indexing import Division, Sizes
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.launch import (
    Launch,
    bounds_of,
    constant,
    containing,
    input_table,
    lanes_for,
    lanes_of,
    launcher,
    max_overlap,
    memory_of,
    optional,
    packed,
    programs_of,
    rows_are_short,
    run_starts,
    runs,
    strides_of,
    unpadded,
    window_of,
    window_table,
)
from ndpool._triton.memory import BYTES, Layout, channel_vector, next_power, widest
from ndpool.geometry import AxisPlan


def is_irregular(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether windows along some axis have different sizes.

    All axes then use tables, also the regular ones: which axes are irregular depends on sizes, and a new size
    must not compile a new kernel.
    """
    return unpadded(axes) and not all(a.regular for a in axes)


def overlap_of(axis: AxisPlan, axes: tuple[AxisPlan, ...]) -> int:
    """How many windows of an axis a kernel visits per input: at least those that contain it."""
    return max(max_overlap(axis), min(2, axis.out) if is_irregular(axes) else 1)


def one_window(axis: AxisPlan, vec: int) -> bool:
    """Whether all elements of a vector are always in the same, single window."""
    alike = axis.regular and axis.step == 1 and axis.stride == axis.kernel == axis.tap_range()[1]
    return alike and axis.origin == 0 and vec > 1 and axis.kernel % vec == 0


def _outputs_of_block(axis: AxisPlan) -> tuple[int, int]:
    """First output that contains any of the inputs 0 to stride - 1, and how many more outputs do."""
    firsts, counts, _, _ = containing(axis, tabled=False)
    first, last = firsts[counts > 0], (firsts + counts - 1)[counts > 0]
    return int(first.min()), int(last.max() - first.min())


def blocks_backward(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, gather: Gather
) -> Launch | None:
    """Launcher for the block kernel, or None where a block needs too many registers."""
    d, h, last = axes
    low, more = zip(*map(_outputs_of_block, axes), strict=True)
    vec = x_unit = y_unit = channel_vector(layout, itemsize)
    columns = not layout.channels and layout.input_strides[5] == 1 and layout.output_strides[5] == 1
    outs, first, shift, vectors, chunk = 1, 0, 0, 1, 1
    most = widest(itemsize) if columns else 8
    if columns:
        vec = outs = max(1, next_power(most // last.stride))
        while outs > 1 and last.size % (outs * last.stride):
            vec = outs = outs // 2
        chunk = widest(itemsize, outs * last.stride)
        first, shift = divmod(low[2], vec)
        vectors = -(-(shift + outs + more[2]) // vec)
        x_unit = (
            chunk
            if last.size % (outs * last.stride) == 0 and not any(s % chunk for s in layout.input_strides[1:5])
            else 1
        )
        y_unit = vec if last.out % vec == 0 and not any(s % vec for s in layout.output_strides[1:5]) else 1
    elif all(a.kernel <= a.stride for a in axes):
        vec = x_unit = y_unit = min(vec, max(1, 8 // itemsize))
    large = prod(layout.sizes) * prod(a.size for a in axes) >= tuning.LARGE_RESULT
    rows, loop_h, (several, single) = 4, False, tuning.REGISTERS
    if h.kernel <= h.stride and (x_unit * itemsize >= 8 if columns else large):
        rows = 1  # stores are wide; narrow ones leave time to share the arithmetic of several rows
    across = vectors if columns else more[2] + 1
    while not columns and vec > 1 and across * vec * (1 + gather.HAS_INDEX) > tuning.BLOCK_STORES:
        vec = x_unit = y_unit = vec // 2
    in_registers = (more[0] + 1) * across * vec * (1 + gather.HAS_INDEX)
    blocks_h, each = -(-h.size // h.stride), d.stride * h.stride * outs * last.stride
    most_stores = tuning.VOLUME_STORES if d.kernel > 1 else tuning.BLOCK_STORES
    while rows > 1 and (rows >= 2 * blocks_h or rows * each > most_stores):
        rows //= 2
    while rows > 1 and in_registers * (rows + more[1]) > several:
        rows //= 2
    if in_registers * (rows + more[1]) > single:
        rows, loop_h = 1, True
    stored = each * (1 if columns else vec)
    if stored > tuning.BLOCK_STORES or in_registers > single or outs * last.stride > most:
        return None
    n_w = -(-last.size // (last.stride * outs))
    n_c = layout.sizes[0] if columns else layout.sizes[0] // vec
    n_lanes = n_c * n_w * layout.sizes[1] * layout.sizes[2]
    lanes = lanes_for(n_lanes, tuning.THREADS)
    blocks_d = -(-d.size // d.stride)
    if gather.SCALED and n_lanes * blocks_d * -(-blocks_h // rows) < tuning.FEW_BLOCKS:
        rows = 1  # gradients of norms read the input, too: more lanes hide that better
    n_strips = -(-blocks_h // rows)
    by_lanes = n_strips > 1 and rows_are_short(layout, n_c, n_w)
    if by_lanes:
        n_lanes *= n_strips
        lanes = lanes_for(n_lanes, tuning.THREADS)
    grid = -(-n_lanes // lanes) * blocks_d * (1 if by_lanes else n_strips)
    x_strides = [s // x_unit for s in layout.input_strides]
    y_strides = [s // y_unit for s in layout.output_strides]
    if not columns and vec > 1:
        x_strides[0] = y_strides[0] = 1
    block = block_backward.Block(
        LOW_D=low[0],
        LOW_H=low[1],
        LOW_W=low[2],
        MORE_D=more[0],
        MORE_H=more[1],
        MORE_W=more[2],
        COLUMNS=columns,
        FIRST=first,
        SHIFT=shift,
        VECTORS=vectors,
        CHUNK=chunk,
        X_UNIT=x_unit,
        Y_UNIT=y_unit,
        VEC=vec,
        ROWS=rows,
        LANES=lanes,
        LOOP_H=loop_h,
    )
    arguments = (
        lanes_of(n_lanes, n_c, n_w, layout, *optional(by_lanes, n_strips)),
        programs_of(
            *optional(n_strips * blocks_d > 1 and not by_lanes, n_strips), *optional(blocks_d > 1, blocks_d)
        ),
        strides_of(x_strides, layout),
        strides_of(y_strides, layout),
        Sizes(*(a.size for a in axes)),
        Sizes(*(a.out for a in axes)),
        bounds_of(axes, gather.DIVIDE == 2),
        Division(by, 1 / by),
        *optional(loop_h, more[1]),
        window_of(axes),
        constant(block),
        memory_of(layout),
        constant(gather),
    )
    kernel = block_backward.block_backward_kernel
    return launcher(kernel, grid, arguments, lanes // 32, itemsize < 16)


def _inputs(last: AxisPlan, layout: Layout, itemsize: int) -> tuple[int, int, int, bool]:
    """Inputs per lane, vector units of both arrays, and whether the inputs lie along the last axis."""
    vec = channel_vector(layout, itemsize)
    if not layout.channels and layout.input_strides[5] == 1 and last.size > 1:
        # Neighbouring inputs, each with its own outputs.
        vec = widest(itemsize, last.size, *layout.input_strides[1:5])
        return vec, vec, 1, True
    return vec, vec, vec, False


def _turned(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*strides[:4], strides[5], strides[4])


def _runs_are_along(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> bool:
    """Whether runs are longer along rows of channels than down them, which a sum need not tell apart.

    The sums are the same to the bit only if windows overlap along one of both axes at most.
    """
    _, h, last = axes
    # Without full vectors of channels, fewer of them pay.
    row = tuning.CHANNEL_ROW // (1 if channel_vector(layout, itemsize) * itemsize >= BYTES else 4)
    if not layout.channels or layout.sizes[0] * min(itemsize, 8) < row or not unpadded(axes):
        return False
    if min(max_overlap(h), max_overlap(last)) > 1 or max_overlap(h) > 2:
        return False
    return h.size * len(run_starts(last)) * 4 <= last.size * len(run_starts(h))


def windows_backward(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, gather: Gather, device: torch.device
) -> Launch:
    """Launcher for the window kernel, by runs of rows where windows overlap little."""
    # Offsets in windows of one row stay the same if that row becomes a column.
    if (not gather.HAS_INDEX or axes[1].size == 1) and _runs_are_along(axes, layout, itemsize):
        axes = (axes[0], axes[2], axes[1])
        layout = layout._replace(
            input_strides=_turned(layout.input_strides), output_strides=_turned(layout.output_strides)
        )
    d, h, last = axes
    vec, x_unit, y_unit, columns = _inputs(last, layout, itemsize)
    by_runs = unpadded(axes) and max(max_overlap(d), max_overlap(last)) <= 2
    irregular = not all(a.regular for a in axes)
    if not (layout.channels or gather.HAS_INDEX or (irregular and vec == 1)):
        by_runs = by_runs and h.size >= tuning.RUN_ROWS * len(run_starts(h))
    # Where few inputs have many windows each, every thread takes one input.
    few = not by_runs and gather.HAS_INDEX and prod(map(max_overlap, axes)) > 8
    if few and columns and prod(layout.sizes) * d.size * h.size * (last.size // vec) < tuning.SATURATED:
        vec = x_unit = 1
    n_w = -(-last.size // (vec if columns else 1))
    n_c = layout.sizes[0] if columns else layout.sizes[0] // vec
    n_lanes = n_c * n_w * layout.sizes[1] * layout.sizes[2]
    by_lanes = gather.HAS_INDEX and h.size > 1 and rows_are_short(layout, n_c, n_w, tuning.SHORT_LANES // 4)
    by_runs = by_runs and not by_lanes
    if by_lanes:
        n_lanes *= h.size
    lanes = lanes_for(n_lanes, tuning.THREADS)
    found, numbers = zip(*(input_table(a, device) for a in axes), strict=True)
    if by_runs:
        # Sums of channels or full vectors take no longer than their stores: more programs, of one run each.
        short = not gather.HAS_INDEX and (layout.channels or vec > 1)
        more = 4 if vec == 1 else 1 if gather.HAS_INDEX and vec > 4 else 2
        lanes = lanes_for(n_lanes, tuning.THREADS * (1 if short else more))
        bounds = runs(h, device)
        n_rows = len(bounds) - 1
        # About 32 rows per program, but enough programs to fill a large device.
        programs = -(-n_lanes // lanes) * d.size
        each = 1 if short else max(1, min(-(-32 * n_rows // h.size), n_rows * programs // 2048))
    else:
        # Rows share the work on the last axis, if there are enough of them.
        many = not by_lanes and n_lanes * d.size * h.size >= 8 * tuning.SATURATED
        bounds, n_rows, each = None, h.size, 8 if many else 1
    strips = -(-n_rows // each)
    x_strides, y_strides = (
        [s // x_unit for s in layout.input_strides],
        [s // y_unit for s in layout.output_strides],
    )
    if not columns and vec > 1:
        x_strides[0] = y_strides[0] = 1
    block = window_backward.Block(
        COLUMNS=columns,
        X_UNIT=x_unit,
        Y_UNIT=y_unit,
        VEC=vec,
        LANES=lanes,
        IRREGULAR=irregular,
        DILATED=any(a.step > 1 for a in axes),
        RUNS=by_runs,
        OVERLAP_D=overlap_of(d, axes) if by_runs else 0,
        OVERLAP_W=overlap_of(last, axes) if by_runs else 0,
        ONE_WINDOW=by_runs and columns and one_window(last, vec),
    )
    needs_windows = by_runs or irregular or gather.DIVIDE == 2
    arguments = (
        *found,
        *optional(needs_windows, *(window_table(a, device) for a in axes)),
        bounds,
        lanes_of(n_lanes, n_c, n_w, layout, *optional(by_lanes, n_rows)),
        programs_of(None if by_lanes else strips, d.size),
        strides_of(x_strides, layout),
        strides_of(y_strides, layout),
        window_backward.Rows(n_rows, each, overlap_of(last, axes)),
        Sizes(*(a.tap_range()[1] for a in axes)),
        *(window_backward.Axis(*given) for given in numbers),
        Division(by, 1 / by),
        constant(block),
        memory_of(layout),
        constant(gather),
    )
    grid = -(-n_lanes // lanes) * d.size * (1 if by_lanes else strips)
    warps = min(4, lanes // 32)
    kernel = window_backward.window_backward_kernel
    return launcher(kernel, grid, arguments, warps, itemsize < 16)


def _fill_with_zeros(result: Tensor) -> None:
    """By words of 32 bits where that is possible: PyTorch fills half types more slowly."""
    if result.itemsize == 2 and result.numel() % 2 == 0 and result.data_ptr() % 4 == 0:
        if sum((n - 1) * s for n, s in zip(result.shape, result.stride(), strict=True)) + 1 == result.numel():
            result = result.as_strided((result.numel(),), (1,)).view(torch.int32)
    result.zero_()


def scatter_backward(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, gather: Gather, device: torch.device
) -> Launch:
    """For windows so large that most gradients are zero: write zeros, then scatter one value per output."""
    outs, plane = prod(a.out for a in axes), prod(a.size for a in axes)
    n_planes = layout.sizes[0] * layout.sizes[1] * layout.sizes[2]
    n_lanes = n_planes * outs
    lanes = lanes_for(n_lanes, tuning.THREADS) if n_lanes >= tuning.FEW_LANES else 32
    lanes_each, zeros_each, zeros, vec = lanes, 0, 0, 0
    bytes_each, few = plane * min(itemsize, 8), n_planes < tuning.FEW_PLANES
    if packed(axes, layout) and bytes_each <= (tuning.FEW_ZEROS if few else tuning.ZEROS):
        # Few enough planes that their zeros are still in the cache when the values are scattered.
        lanes = tuning.THREADS // 2 if itemsize < 4 and outs <= tuning.THREADS // 2 else tuning.THREADS
        planes = min(n_planes, next_power(-(-(2**10) // plane)), max(1, lanes // outs))
        vec = widest(itemsize)
        lanes_each, zeros_each, zeros = planes * outs, planes * plane, n_planes * plane
    irregular = not all(a.regular for a in axes)
    found = [input_table(a, device) for a in axes]
    numbers = (
        scatter.Axis(a.size, a.out, a.tap_range()[1], *steps)
        for a, (_, steps) in zip(axes, found, strict=True)
    )
    block = scatter.Block(
        OVERLAP_D=overlap_of(axes[0], axes),
        OVERLAP_H=overlap_of(axes[1], axes),
        OVERLAP_W=overlap_of(axes[2], axes),
        IRREGULAR=irregular,
        DILATED=any(a.step > 1 for a in axes),
        VEC=vec,
        ONCE=lanes_each <= lanes,
        LANES=lanes,
    )
    arguments = (
        *(t for a, (table, _) in zip(axes, found, strict=True) for t in (window_table(a, device), table)),
        scatter.Part(lanes_each, zeros_each, zeros),
        lanes_of(n_lanes, layout.sizes[0], outs, layout),
        strides_of(layout.input_strides, layout),
        strides_of(layout.output_strides, layout),
        *numbers,
        constant(block),
        memory_of(layout),
        constant(gather),
    )
    grid = -(-n_lanes // lanes_each)
    write = launcher(scatter.scatter_backward_kernel, grid, arguments, lanes // 32, itemsize < 16)
    if vec:
        return write

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        _fill_with_zeros(result)
        write(grad, offsets, result)

    return launch
