"""Backward: choose the kernel and its block shapes for a plan and a memory layout.

The choice depends only on shapes, strides and the plan, and is cached with them. Called by the CUDA part of
the PyTorch framework.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.column import column_backward
from ndpool._triton.decompose import passes
from ndpool._triton.forward import forward, is_irregular, unpadded
from ndpool._triton.kernels.block_backward import block_backward_kernel
from ndpool._triton.kernels.row_backward import row_backward_kernel
from ndpool._triton.kernels.scatter_backward import scatter_backward_kernel
from ndpool._triton.kernels.window_backward import window_backward_kernel
from ndpool._triton.launch import (
    SUM,
    Launch,
    Prepared,
    containing,
    divide_by,
    input_table,
    is_dense,
    lanes_for,
    launcher,
    layout_constants,
    layout_numbers,
    layout_strides,
    max_overlap,
    merged,
    optional,
    packed,
    runs,
    simplified,
    three_axes,
    whole_planes,
    window_table,
)
from ndpool._triton.memory import Arrays, Layout, channel_vector, layout_of, next_power, widest
from ndpool._triton.planes import channels_backward, kind_of_planes, plane_backward, rows_of_channels
from ndpool._triton.regions import region_backward
from ndpool._triton.scan import scan_backward
from ndpool._triton.walk import walk_backward
from ndpool.geometry import AxisPlan, Plan


@lru_cache(1024)
def backward(
    plan: Plan,
    axes: tuple[int, ...],
    arrays: Arrays,
    has_index: bool,
    divides: bool,
    divisor: int,
    scaled: bool = False,
) -> Launch | None:
    """Return the launcher that writes the gradient of the input, or None if `grad` must be packed first.

    With `scaled`, the kernel multiplies by the input, laid out as its gradient, which it gets in place of
    offsets; None if another kernel is faster even with a multiplication of its own.
    """
    dtype, _, device, aligned = arrays[4:]
    shorter = simplified(plan, axes, has_index or not divides, size_1=True)
    for windows in (shorter, (plan, axes)):
        plan, axes = windows
        memory: Any = arrays[:4]
        if arrays.stride[axes[-1]] == 1 or kind_of_planes(plan, axes, arrays.shape, arrays.stride):
            plan, axes, *memory = merged(plan, axes, *memory)
        layout = layout_of(axes, *memory)
        if layout is not None:
            break
    else:
        return None
    three = three_axes(plan)
    size = dtype.itemsize if aligned else 10**9
    divide, by = divide_by(three, divides, divisor)
    common = {
        "HAS_INDEX": has_index,
        "SCALED": scaled,
        "DIVIDE": divide,
        "COMPUTE": tl.float64 if dtype is torch.float64 else tl.float32,
    } | layout_constants(layout)
    last = three[2]
    ones = divide != 2 and not has_index and is_dense(three) and all(a.stride == 1 for a in three)
    if scaled and plan.out == (1,) * len(axes):
        return None
    if (
        not scaled
        and whole_planes(three, layout)
        and layout.leads < 2
        and layout.input_strides[1] in (0, last.size)
    ):
        return plane_backward(
            last.size, last.size * layout.sizes[1], layout.output_strides[1], size, by, common
        )
    if not scaled and (rows := rows_of_channels(three, layout)):
        return channels_backward(layout, rows, size, by, common)
    if has_index and _scatters(three, layout, size):
        return _scatter(three, layout, size, common, device)
    if has_index and is_dense(three):
        found = column_backward(three, layout, size, common)
        if found is not None:
            return found
    if has_index and _runs_are_long(three, layout, dtype, size, common):
        walks = layout.channels
        found = walk_backward(three, layout, dtype, size) if walks else scan_backward(three, layout, size)
        if found is not None:
            return found
    same = arrays._replace(**dict(zip(Arrays._fields, memory, strict=False)))
    if ones:
        return _over_transposed(plan, axes, same, divides, by, scaled)
    found = None
    if not (has_index or scaled or divide == 2) and is_dense(three) and channel_vector(layout, size) > 1:
        *above, along = _transposed(plan).axes
        overlap = prod(map(max_overlap, three))
        if above and overlap > along.kernel > 1 and overlap >= tuning.SUM_OVERLAP:
            found = _in_two_passes((Plan(above), Plan([along])), axes, same, divides, by, scaled)
        if found is not None:
            return found
    sums = not has_index and not scaled and unpadded(three)
    if sums and not (is_dense(three) and prod(a.stride for a in three) < 16):
        found = region_backward(three, layout, size, by, common, device)
    if found is None and is_dense(three):
        found = _blocks(three, layout, size, by, common)
    if found is not None:
        return found
    if unpadded(three) and max(max_overlap(three[0]), max_overlap(last)) <= 2:
        return _rows(three, layout, size, by, common, device)
    return _windows(three, layout, size, by, common, device)


def _runs_are_long(
    axes: tuple[AxisPlan, ...], layout: Layout, dtype: torch.dtype, itemsize: int, common: dict[str, Any]
) -> bool:
    """Whether windows overlap so much that sums of runs of them take less time than a gather."""
    overlap = prod(map(max_overlap, axes))
    if not is_dense(axes) or (dtype is torch.float64 and not layout.channels):
        return False
    if not layout.channels:
        return overlap >= tuning.SCAN_OVERLAP
    if overlap >= tuning.WALK_OVERLAP:
        return True
    return overlap >= tuning.WALK_UNBLOCKED and _blocks(axes, layout, itemsize, 1, common) is None


def _scatters(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> bool:
    """Whether windows are so large that zeros and a scatter take less time than a gather."""
    dense, last = is_dense(axes), axes[2]
    overlaps = [max_overlap(a) for a in axes]
    inputs, outs = prod(a.size for a in axes), prod(a.out for a in axes)
    # Gathers visit all windows that contain an input, scatters all that share an input with an output.
    if dense and axes[0].size > 1 and 8 < prod(overlaps) <= tuning.SHARED:
        return prod(overlaps) * outs <= tuning.SCATTER_WORK * inputs
    # Gathers read full vectors of channels, unless channels are no multiple of a vector. Those of windows
    # that overlap much visit them one after the other.
    narrow = layout.channels and channel_vector(layout, itemsize) * itemsize < 8
    slow = not dense and (narrow or max(overlaps) > 2)
    if layout.channels and (dense or unpadded(axes)) and not slow:
        return False
    # Blocks of short rows and an odd stride are written element by element, in partial sectors.
    scalar = last.stride % 2 == 1 and last.size * itemsize < tuning.SHORT_ROW
    sparse = tuning.SPARSE // 2 if not layout.channels and (scalar or not dense) else tuning.SPARSE
    return inputs >= (tuning.SPARSE // 4 if slow else sparse) * outs and prod(overlaps) <= (
        tuning.SHARED if slow else tuning.SHARED // 4
    )


def overlap_of(axis: AxisPlan, axes: tuple[AxisPlan, ...]) -> int:
    """How many windows of an axis a kernel visits per input: at least those that contain it."""
    return max(max_overlap(axis), min(2, axis.out) if is_irregular(axes) else 1)


def one_window(axis: AxisPlan, vec: int) -> bool:
    """Whether all elements of a vector are always in the same, single window."""
    alike = axis.regular and axis.step == 1 and axis.stride == axis.kernel == axis.tap_range()[1]
    return alike and axis.origin == 0 and vec > 1 and axis.kernel % vec == 0


@lru_cache(1024)
def _transposed(plan: Plan) -> Plan:
    return plan.transposed()


def _over_transposed(
    plan: Plan, axes: tuple[int, ...], arrays: Arrays, divides: bool, by: int, scaled: bool
) -> Launch | None:
    """The gradient of sums with stride 1: a sum over the transposed plan, of long windows axis by axis."""
    shape, stride, out_shape, out_stride = arrays[:4]
    swapped = arrays._replace(shape=out_shape, stride=out_stride, out_shape=shape, out_stride=stride)
    contiguous = stride[axes[-1]] == 1
    long = tuning.SUM_PASSES_SCALED if scaled else tuning.SUM_PASSES[arrays.dtype.itemsize < 4]
    parts = passes(_transposed(plan), long if contiguous else tuning.SUM_PASSES_CHANNELS)
    if parts is None:
        run = forward(_transposed(plan), axes, swapped, SUM, 0, divides, by, scaled)
        if run is None:
            return None
        if isinstance(run, Prepared):
            run.direction = "backward"

        def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
            run(grad, result, offsets if scaled else result)

        return launch
    return _in_two_passes(parts, axes, arrays, divides, by, scaled)


def _in_two_passes(
    parts: tuple[Plan, Plan], axes: tuple[int, ...], arrays: Arrays, divides: bool, by: int, scaled: bool
) -> Launch | None:
    """Sums over the transposed plan along the last axis, then along the others."""
    down, along = parts
    shape, stride, out_shape, out_stride = arrays[:4]
    swapped = arrays._replace(shape=out_shape, stride=out_stride, out_shape=shape, out_stride=stride)
    between = list(out_shape)
    between[axes[-1]] = shape[axes[-1]]
    wide = torch.promote_types(arrays.dtype, torch.float32)
    order = sorted(range(len(shape)), key=lambda a: (stride[a], -a))
    steps = [0] * len(shape)
    for a, n in zip(order, [1, *accumulate((between[a] for a in order[:-1]), mul)], strict=True):
        steps[a] = n
    middle = (tuple(between), tuple(steps))
    rows = swapped._replace(out_shape=middle[0], out_stride=middle[1], result=wide)
    columns = swapped._replace(shape=middle[0], stride=middle[1], dtype=wide)
    first = forward(along, axes[-1:], rows, SUM, 0, False, 0)
    second = forward(down, axes[:-1], columns, SUM, 0, divides, by, scaled)
    if first is None or second is None:
        return None
    for part in (first, second):
        if isinstance(part, Prepared):
            part.direction = "backward"

    def launch_both(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        sums = torch.empty_strided(*middle, dtype=wide, device=grad.device)
        first(grad, sums, sums)
        second(sums, result, offsets if scaled else result)

    return launch_both


def _outputs_of_block(axis: AxisPlan) -> tuple[int, int]:
    """First output that contains any of the inputs 0 to stride - 1, and how many more outputs do."""
    firsts, counts, _, _ = containing(axis, tabled=False)
    first, last = firsts[counts > 0], (firsts + counts - 1)[counts > 0]
    return int(first.min()), int(last.max() - first.min())


def _blocks(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, common: dict[str, Any]
) -> Launch | None:
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
    while not columns and vec > 1 and across * vec * (1 + common["HAS_INDEX"]) > tuning.BLOCK_STORES:
        vec = x_unit = y_unit = vec // 2
    in_registers = (more[0] + 1) * across * vec * (1 + common["HAS_INDEX"])
    blocks_h, each = -(-h.size // h.stride), d.stride * h.stride * outs * last.stride
    while rows > 1 and (rows >= 2 * blocks_h or rows * each > tuning.BLOCK_STORES):
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
    n_strips = -(-blocks_h // rows)
    blocks_d = -(-d.size // d.stride)
    grid = -(-n_lanes // lanes) * blocks_d * n_strips
    x_strides = [s // x_unit for s in layout.input_strides]
    y_strides = [s // y_unit for s in layout.output_strides]
    if not columns and vec > 1:
        x_strides[0] = y_strides[0] = 1
    parts = [*optional(n_strips * blocks_d > 1, n_strips), *optional(blocks_d > 1, blocks_d)]
    numbers: list[Any] = layout_numbers(n_lanes, n_c, n_w, layout, *parts)
    numbers += layout_strides(x_strides, layout) + layout_strides(y_strides, layout)
    numbers += [a.size for a in axes] + [a.out for a in axes]
    numbers += optional(common["DIVIDE"] == 2, *(b for a in axes for b in a.bounds))
    numbers += [by, 1 / by, *parts, *optional(loop_h, more[1])]
    constants = common | {
        "COLUMNS": columns,
        "FIRST_VECTOR": first,
        "SHIFT": shift,
        "VECTORS": vectors,
        "CHUNK": chunk,
        "X_UNIT": x_unit,
        "Y_UNIT": y_unit,
        "VEC": vec,
        "ROWS": rows,
        "LANES": lanes,
        "LOOP_H": loop_h,
        "num_warps": lanes // 32,
    }
    for name, a, lo, extent in zip("DHW", axes, low, more, strict=True):
        constants |= {f"K{name}": a.kernel, f"S{name}": a.stride, f"P{name}": -a.origin}
        constants |= {f"LOW_{name}": lo, f"MORE_{name}": extent}

    return launcher(block_backward_kernel, grid, numbers, constants, [], itemsize < 16)


def _rows(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    last = axes[2]
    vec, x_unit, y_unit, columns = _inputs(last, layout, itemsize)
    n_w = -(-last.size // (vec if columns else 1))
    n_c = layout.sizes[0] if columns else layout.sizes[0] // vec
    n_lanes = n_c * n_w * layout.sizes[1] * layout.sizes[2]
    # Sums of channels or full vectors take no longer than their stores: more programs, of one run each.
    short = not common["HAS_INDEX"] and (layout.channels or vec > 1)
    lanes = 4 if vec == 1 else 1 if common["HAS_INDEX"] and vec > 4 else 2
    lanes = lanes_for(n_lanes, tuning.THREADS * (1 if short else lanes))
    bounds = runs(axes[1], device)
    n_runs = len(bounds) - 1
    # About 32 rows per program, but enough programs to fill a large device.
    blocks = -(-n_lanes // lanes) * axes[0].size
    each = 1 if short else max(1, min(-(-32 * n_runs // axes[1].size), n_runs * blocks // 2048))
    groups = -(-n_runs // each)
    x_strides, y_strides = (
        [s // x_unit for s in layout.input_strides],
        [s // y_unit for s in layout.output_strides],
    )
    if not columns and vec > 1:
        x_strides[0] = y_strides[0] = 1
    numbers: list[Any] = [
        *layout_numbers(n_lanes, n_c, n_w, layout, groups, axes[0].size),
        *x_strides,
        *y_strides,
    ]
    numbers += [axes[0].size, axes[1].kernel, last.kernel, n_runs, groups, each, by, 1 / by]
    constants = common | {
        "OVERLAP_D": overlap_of(axes[0], axes),
        "OVERLAP_W": overlap_of(last, axes),
        "COLUMNS": columns,
        "ONE_WINDOW": columns and one_window(last, vec),
        "X_UNIT": x_unit,
        "Y_UNIT": y_unit,
        "VEC": vec,
        "LANES": lanes,
        "num_warps": min(4, lanes // 32),
    }
    given = [t for a in axes for t in (window_table(a, device), input_table(a, device)[0])] + [bounds]
    return launcher(row_backward_kernel, blocks * groups, numbers, constants, given, itemsize < 16)


def _inputs(last: AxisPlan, layout: Layout, itemsize: int) -> tuple[int, int, int, bool]:
    """Inputs per lane, vector units of both arrays, and whether the inputs lie along the last axis."""
    vec = channel_vector(layout, itemsize)
    if not layout.channels and layout.input_strides[5] == 1 and last.size > 1:
        # Neighbouring inputs, each with its own outputs.
        vec = widest(itemsize, last.size, *layout.input_strides[1:5])
        return vec, vec, 1, True
    return vec, vec, vec, False


def _windows(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    d, h, last = axes
    vec, x_unit, y_unit, columns = _inputs(last, layout, itemsize)
    rows = d.size * h.size
    # Where few inputs have many windows each, every thread takes one input.
    few = common["HAS_INDEX"] and prod(map(max_overlap, axes)) > 8
    if few and columns and prod(layout.sizes) * rows * (last.size // vec) < tuning.SATURATED:
        vec = x_unit = 1
    n_w = -(-last.size // (vec if columns else 1))
    n_c = layout.sizes[0] if columns else layout.sizes[0] // vec
    n_lanes = n_c * n_w * layout.sizes[1] * layout.sizes[2]
    lanes = lanes_for(n_lanes, tuning.THREADS)
    # Rows share the work on the last axis, if there are enough of them.
    each = 8 if n_lanes * rows >= 8 * tuning.SATURATED else 1
    strips = -(-h.size // each)
    grid = -(-n_lanes // lanes) * d.size * strips
    x_strides, y_strides = (
        [s // x_unit for s in layout.input_strides],
        [s // y_unit for s in layout.output_strides],
    )
    if not columns and vec > 1:
        x_strides[0] = y_strides[0] = 1
    irregular = not all(a.regular for a in axes)
    tables_, numbers_ = zip(*(input_table(a, device) for a in axes), strict=True)
    windows = (window_table(a, device) for a in axes)
    given = [*tables_, *optional(irregular or common["DIVIDE"] == 2, *windows)]
    numbers: list[Any] = [
        *layout_numbers(n_lanes, n_c, n_w, layout, strips, d.size),
        *x_strides,
        *y_strides,
        *(d.size, h.size, h.tap_range()[1], last.tap_range()[1]),
        *(n for each_axis in zip(*numbers_, strict=True) for n in each_axis),
        *(overlap_of(last, axes), strips, each, by, 1 / by),
    ]
    constants = common | {
        "COLUMNS": columns,
        "X_UNIT": x_unit,
        "Y_UNIT": y_unit,
        "VEC": vec,
        "LANES": lanes,
        "IRREGULAR": irregular,
        "DILATED": any(a.step > 1 for a in axes),
        "num_warps": lanes // 32,
    }
    return launcher(window_backward_kernel, grid, numbers, constants, given, itemsize < 16)


def _scatter(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    common: dict[str, Any],
    device: torch.device,
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
    numbers: list[Any] = [lanes_each, zeros_each, zeros]
    numbers += [
        *layout_numbers(n_lanes, layout.sizes[0], outs, layout),
        *layout.input_strides,
        *layout.output_strides,
    ]
    given: list[Tensor | None] = []
    for a in axes:
        table, steps = input_table(a, device)
        numbers += [a.size, a.out, a.tap_range()[1], *steps]
        given += [window_table(a, device), table]
    constants = {key: common[key] for key in ("COMPUTE", "INT64", "CHANNELS", "LEADS")} | {
        "VEC": vec,
        "ONCE": lanes_each <= lanes,
        "IRREGULAR": not all(a.regular for a in axes),
        "DILATED": any(a.step > 1 for a in axes),
        "LANES": lanes,
        "num_warps": lanes // 32,
    }
    for name, a in zip("DHW", axes, strict=True):
        constants[f"OVERLAP_{name}"] = overlap_of(a, axes)
    grid = -(-n_lanes // lanes_each)
    write = launcher(scatter_backward_kernel, grid, numbers, constants, given, itemsize < 16)
    if vec:
        return write

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        result.zero_()
        write(grad, offsets, result)

    return launch
