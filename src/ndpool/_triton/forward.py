"""Forward: choose the kernel and its block shapes for a plan and a memory layout.

The choice depends only on shapes, strides and the plan; nothing is timed. Dense windows go to `strip`, whole
planes to `planes`. Called by the CUDA part of the PyTorch framework, which caches the result.
"""

from __future__ import annotations

from math import prod

import torch

from ndpool._call import INDEX64
from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Division, Sizes, Strides
from ndpool._triton.kernels.reducers import Reduce
from ndpool._triton.kernels.window_forward import Block, window_forward_kernel
from ndpool._triton.launch import (
    SQUARES,
    SUM,
    Launch,
    by_taps,
    compute_type,
    constant,
    divide_by,
    folds_rows,
    identity,
    is_dense,
    lanes_for,
    lanes_of,
    launcher,
    memory_of,
    merged,
    optional,
    programs_of,
    rows_are_short,
    simplified,
    strides_of,
    three_axes,
    unpadded,
    whole_planes,
    window_table,
)
from ndpool._triton.memory import LIMIT, Arrays, Layout, channel_vector, layout_of, widest
from ndpool._triton.planes import channels_forward, plane_forward, rows_of_channels
from ndpool._triton.segments import segments
from ndpool._triton.strip import strip
from ndpool.geometry import AxisPlan, Plan


def forward(
    plan: Plan,
    axes: tuple[int, ...],
    arrays: Arrays,
    op: int,
    kind: int,
    divides: bool,
    divisor: int,
    scaled: int = 0,
) -> Launch | None:
    """Return the launcher that writes the results, or None if the input must be packed first.

    With `scaled`, results are multiplied (1) or divided (2) by an array laid out as they are, which the
    kernel gets in place of offsets; None if only another kernel than the strip kernel computes these windows.
    """
    dtype, result, device, aligned = arrays[4:]
    shorter = simplified(plan, axes, op < SUM or not divides, kind == INDEX64)
    for windows in (shorter, (plan, axes)):
        plan, axes, *memory = merged(*windows, *arrays[:4])
        layout = layout_of(axes, *memory)
        if layout is not None:
            break
    else:
        return None
    three = three_axes(plan)
    size = dtype.itemsize if aligned else 10**9
    divide, by = divide_by(three, divides, divisor)
    reduce = Reduce(op, kind, scaled, divide, identity(dtype, op), compute_type(dtype, result, op >= 2))
    given = (three, layout, size, by)
    if scaled:
        return strip(*given, reduce)
    if op == SQUARES:
        found = strip(*given, reduce) if is_dense(three) else None
        return found or _windows(*given, reduce, device)
    if whole_planes(three, layout):
        return plane_forward(*given, reduce, device)
    rows = rows_of_channels(three, layout)
    # With very many channels and small planes the strip kernel is faster.
    if rows and (rows > 64 or prod(layout.sizes) // widest(size) < 2**16):
        return channels_forward(*given, reduce, device)
    if not rows and _few_lanes(three, layout, size):
        return channels_forward(*given, reduce._replace(DIVIDE=by_taps(three, divide, by)), device)
    found = segments(*given, reduce, device) if folds_rows(three, tuning.VECTOR_TAPS) else None
    if found is None and is_dense(three):
        found = strip(*given, reduce)
    if found is None and unpadded(three):
        found = segments(*given, reduce, device)
    return found or _windows(*given, reduce, device)


def _few_lanes(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> bool:
    """Whether channels-last windows are so few and large that one lane each would not fill the device."""
    if not layout.channels or layout.input_strides[0] != 1 or not unpadded(axes):
        return False
    lanes = prod(layout.sizes) // channel_vector(layout, itemsize) * prod(a.out for a in axes)
    return lanes < tuning.FEW_LANES and prod(a.kernel for a in axes) >= 64


def _windows(
    axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int, by: int, reduce: Reduce, device: torch.device
) -> Launch:
    per_plane = any(a.starts is not None and a.starts.ndim == 2 for a in axes)
    vec = 1 if per_plane else channel_vector(layout, itemsize)
    n_c, last = layout.sizes[0] // vec, axes[2]
    n_lanes = n_c * last.out * layout.sizes[1] * layout.sizes[2]
    by_lanes, n_rows = axes[1].out > 1 and rows_are_short(layout, n_c, last.out), axes[1].out
    if by_lanes:
        n_lanes *= n_rows
    lanes = lanes_for(n_lanes, tuning.THREADS)
    grid = -(-n_lanes // lanes) * axes[0].out * (1 if by_lanes else n_rows)
    x_strides, y_strides = (
        [s // vec for s in strides] for strides in (layout.input_strides, layout.output_strides)
    )
    if vec > 1:
        x_strides[0] = y_strides[0] = 1
    kernels, steps, sizes = (
        [*values] for values in zip(*((a.tap_range()[1], a.step, a.size) for a in axes), strict=True)
    )
    # Marks of taps along each axis: offsets in the window, or indices in the plane.
    indices = reduce.KIND == INDEX64
    _, n_h, n_w = sizes if indices else kernels
    marks = (n_h * n_w * steps[0], n_w * steps[1], steps[2]) if indices else (n_h * n_w, n_w, 1)
    rows = [a.out if a.starts is not None and a.starts.ndim == 2 else 0 for a in axes]
    block = Block(
        UNIT=vec,
        VEC=vec,
        LANES=lanes,
        UNROLL=4 if reduce.OP == SUM else 8,  # comparisons have a longer latency than sums
        FLAT=kernels[2] <= 4,
        PER_PLANE=per_plane,
        # Also the indices of taps beside the input.
        WIDE=prod(a.size + 2 * a.kernel * a.step for a in axes) > LIMIT and indices,
    )
    # Tables of per-plane windows are used once.
    make = window_table.__wrapped__ if per_plane else window_table
    arguments = (
        *(make(a, device) for a in axes),
        lanes_of(n_lanes, n_c, last.out, layout, *optional(by_lanes, n_rows)),
        programs_of(None if by_lanes else n_rows, axes[0].out),
        strides_of(x_strides, layout),
        strides_of(y_strides, layout),
        Strides(*(layout.plane_steps if per_plane else (0, 0, 0)), *rows),
        Sizes(*(step * stride for step, stride in zip(steps, x_strides[3:], strict=True))),
        Sizes(*marks),
        Sizes(*sizes),
        kernels[2],
        prod(a.kernel for a in axes),
        Division(by, 1 / by),
        constant(block),
        memory_of(layout),
        constant(reduce),
    )
    return launcher(window_forward_kernel, grid, arguments, lanes // 32, itemsize < 16)
