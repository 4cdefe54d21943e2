"""Backward: choose the kernel and its block shapes for a plan and a memory layout.

The choice depends only on shapes, strides and the plan, and is cached with them. Called by the CUDA part of
the PyTorch framework.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from math import prod
from operator import mul
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.column import column_backward
from ndpool._triton.decompose import passes
from ndpool._triton.forward import forward
from ndpool._triton.gathers import blocks_backward, scatter_backward, windows_backward
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.launch import (
    SUM,
    Launch,
    Prepared,
    divide_by,
    is_dense,
    max_overlap,
    merged,
    rows_are_short,
    simplified,
    three_axes,
    unpadded,
    whole_planes,
)
from ndpool._triton.memory import Arrays, Layout, channel_vector, dense_strides, layout_of, widest
from ndpool._triton.planes import kind_of_planes, plane_backward
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
    scaled: int = 0,
) -> Launch | None:
    """Return the launcher that writes the gradient of the input, or None if `grad` must be packed first.

    With `scaled`, the kernel multiplies by the input, laid out as its gradient, which it gets in place of
    offsets; None if another kernel is faster even with a multiplication of its own.
    """
    dtype, _, device, aligned = arrays[4:]
    # Windows of one element each keep their rows.
    shorter = simplified(plan, axes, has_index or not divides, size_1=plan.taps == 1)
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
    gather = Gather(has_index, scaled, divide, tl.float64 if dtype is torch.float64 else tl.float32)
    last = three[2]
    ones = divide != 2 and not has_index and is_dense(three) and all(a.stride == 1 for a in three)
    if scaled and plan.out == (1,) * len(axes):
        return None
    contiguous = (
        whole_planes(three, layout) and layout.leads < 2 and layout.input_strides[1] in (0, last.size)
    )
    if not scaled and contiguous:
        return plane_backward(last.size, layout, size, by, gather)
    overlapping, deep = has_index and is_dense(three), max_overlap(three[0]) > 1
    column = column_backward(three, layout, size, gather) if overlapping and deep else None
    # Columns of rows that do not fill the device take longer than a scatter that has little to add up.
    few = column is None or (column.programs < tuning.PROGRAMS // 2 and not layout.channels)
    if few and has_index and _scatters(three, layout, size):
        return scatter_backward(three, layout, size, gather, device)
    found: Launch | None = column
    if found is None and overlapping and not deep:
        found = column_backward(three, layout, size, gather)
    if found is None and has_index and _runs_are_long(three, layout, dtype, size, gather):
        walks = layout.channels
        found = walk_backward(three, layout, dtype, size) if walks else scan_backward(three, layout, size)
    if found is not None:
        return found
    same = arrays._replace(**dict(zip(Arrays._fields, memory, strict=False)))
    if ones:
        return _over_transposed(plan, axes, same, divides, by, scaled)
    if divide == 2 and not (has_index or scaled) and is_dense(three) and all(a.stride == 1 for a in three):
        rows = not layout.channels and widest(size, last.size) > 1
        if prod(map(max_overlap, three)) >= tuning.DIVIDED_OVERLAP[rows]:
            return _divided_first(plan, axes, same)
    if not (has_index or scaled or divide == 2) and is_dense(three) and channel_vector(layout, size) > 1:
        *above, along = _transposed(plan).axes
        overlap = prod(map(max_overlap, three))
        if above and overlap > along.kernel > 1 and overlap >= tuning.SUM_OVERLAP:
            found = _in_two_passes((Plan(above), Plan([along])), axes, same, divides, by, scaled)
        if found is not None:
            return found
    sums = not has_index and not scaled and unpadded(three)
    if sums and not (is_dense(three) and prod(a.stride for a in three) < 16):
        found = region_backward(three, layout, size, by, gather, device)
    if found is None and is_dense(three):
        found = blocks_backward(three, layout, size, by, gather)
    if found is None and has_index and _few_outputs(three, layout, size):
        return scatter_backward(three, layout, size, gather, device)
    return found or windows_backward(three, layout, size, by, gather, device)


def _runs_are_long(
    axes: tuple[AxisPlan, ...], layout: Layout, dtype: torch.dtype, itemsize: int, gather: Gather
) -> bool:
    """Whether windows overlap so much that sums of runs of them take less time than a gather."""
    overlap = prod(map(max_overlap, axes))
    if not is_dense(axes) or (dtype is torch.float64 and not layout.channels):
        return False
    if not layout.channels:
        return overlap >= tuning.SCAN_OVERLAP
    if overlap >= tuning.WALK_OVERLAP:
        return True
    return overlap >= tuning.WALK_UNBLOCKED and blocks_backward(axes, layout, itemsize, 1, gather) is None


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
    vec = channel_vector(layout, itemsize)
    slow = not dense and ((layout.channels and vec * itemsize < 8) or max(overlaps) > 2)
    if layout.channels and (dense or unpadded(axes)) and not slow:
        # Blocks of single channels are written in pieces of a row of them.
        large = prod(layout.sizes) * inputs >= tuning.SATURATED
        pieces = 1 if layout.sizes[0] * itemsize < tuning.CHANNEL_ROW else 4
        return vec == 1 and large and prod(overlaps) == 1 and inputs >= pieces * tuning.SPARSE * outs
    # Blocks of short rows and an odd stride are written element by element, in partial sectors.
    scalar = last.stride % 2 == 1 and last.size * itemsize < tuning.SHORT_ROW
    sparse = tuning.SPARSE // 2 if not layout.channels and (scalar or not dense) else tuning.SPARSE
    if scalar and last.stride > 1 and rows_are_short(layout, layout.sizes[0], last.size):
        sparse = tuning.SPARSE_SHORT
    return inputs >= (tuning.SPARSE // 4 if slow else sparse) * outs and prod(overlaps) <= (
        tuning.SHARED if slow else tuning.SHARED // 4
    )


def _few_outputs(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> bool:
    """Whether outputs are so few that zeros and a scatter take less time than a gather input by input."""
    single = layout.channels and channel_vector(layout, itemsize) == 1
    if not all(a.regular for a in axes) or (unpadded(axes) and not single):
        return False  # gathered by runs
    visits = prod(min(max_overlap(a), a.out) for a in axes)
    inputs, outs = prod(a.size for a in axes), prod(a.out for a in axes)
    return prod(map(max_overlap, axes)) <= tuning.VISITS and visits * outs <= tuning.SCATTER_WORK * inputs


@lru_cache(1024)
def _transposed(plan: Plan) -> Plan:
    return plan.transposed()


def _over_transposed(
    plan: Plan, axes: tuple[int, ...], arrays: Arrays, divides: bool, by: int, scaled: int
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


@lru_cache(128)
def _shares(axis: AxisPlan, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What an axis contributes to the divisor of each window."""
    return torch.from_numpy(axis.table()[:, 3]).to(device, dtype)


def _divided_first(plan: Plan, axes: tuple[int, ...], arrays: Arrays) -> Launch | None:
    """Sums of gradients that have a divisor each: they are divided once, not for every input."""
    wide = torch.promote_types(arrays.dtype, torch.float32)
    shape, ndim = arrays.out_shape, len(arrays.out_shape)
    stride = dense_strides(shape, arrays.out_stride)
    run = _over_transposed(plan, axes, arrays._replace(dtype=wide, out_stride=stride), False, 0, 0)
    if run is None:
        return None
    shares = [
        _shares(axis, wide, arrays.device).view([-1 if k == a else 1 for k in range(ndim)])
        for a, axis in zip(axes, plan.axes, strict=True)
    ]

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        quotients = torch.empty_strided(shape, stride, dtype=wide, device=grad.device)
        run(torch.div(grad, reduce(mul, shares), out=quotients), offsets, result)

    return launch


def _in_two_passes(
    parts: tuple[Plan, Plan], axes: tuple[int, ...], arrays: Arrays, divides: bool, by: int, scaled: int
) -> Launch | None:
    """Sums over the transposed plan along the last axis, then along the others."""
    down, along = parts
    shape, stride, out_shape, out_stride = arrays[:4]
    swapped = arrays._replace(shape=out_shape, stride=out_stride, out_shape=shape, out_stride=stride)
    between = list(out_shape)
    between[axes[-1]] = shape[axes[-1]]
    wide = torch.promote_types(arrays.dtype, torch.float32)
    middle = (tuple(between), dense_strides(between, stride))
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
