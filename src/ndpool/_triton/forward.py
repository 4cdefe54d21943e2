"""Forward: choose the kernel and its block shapes for a plan and a memory layout.

The choice depends only on shapes, strides and the plan; nothing is timed. Dense windows go to `strip`, whole
planes to `planes`. Called by the CUDA part of the PyTorch framework, which caches the result.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ndpool._call import INDEX64
from ndpool._triton import tuning
from ndpool._triton.kernels.segment_forward import segment_forward_kernel
from ndpool._triton.kernels.window_forward import window_forward_kernel
from ndpool._triton.launch import (
    SQUARES,
    SUM,
    Launch,
    compute_type,
    divide_by,
    identity,
    is_dense,
    lanes_for,
    launcher,
    layout_constants,
    layout_numbers,
    magic,
    merged,
    packed,
    simplified,
    tables,
    three_axes,
    whole_planes,
    window_table,
)
from ndpool._triton.memory import BYTES, LIMIT, Arrays, Layout, channel_vector, layout_of, next_power, widest
from ndpool._triton.planes import channels_forward, plane_forward, rows_of_channels
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
    scaled: bool = False,
) -> Launch | None:
    """Return the launcher that writes the results, or None if the input must be packed first.

    With `scaled`, results are multiplied by an array laid out as they are, which the kernel gets in place of
    offsets; None if only another kernel than the strip kernel computes these windows.
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
    common = {
        "OP": op,
        "KIND": kind,
        "IDENTITY": identity(dtype, op),
        "COMPUTE": compute_type(dtype, result, op >= 2),
    } | layout_constants(layout)
    divide, by = divide_by(three, divides, divisor)
    found = None
    if scaled:
        return strip(three, layout, size, by, common | {"DIVIDE": divide, "SCALED": True})
    if op == SQUARES:
        found = strip(three, layout, size, by, common | {"DIVIDE": divide}) if is_dense(three) else None
        return found or _windows(three, layout, size, by, common | {"DIVIDE": divide}, device)
    if whole_planes(three, layout):
        return plane_forward(three, layout, size, by, common | {"DIVIDE": divide}, device)
    rows = rows_of_channels(three, layout)
    # With very many channels and small planes the strip kernel is faster.
    if rows and (rows > 64 or prod(layout.sizes) // widest(size) < 2**16):
        return channels_forward(three, layout, size, by, common | {"DIVIDE": divide}, device)
    if not rows and _few_lanes(three, layout, size):
        how = common | {"DIVIDE": by_taps(three, divide, by)}
        return channels_forward(three, layout, size, by, how, device)
    if folds_rows(three, tuning.VECTOR_TAPS):
        found = _segments(three, layout, size, by, common | {"DIVIDE": divide}, device)
        if found is not None:
            return found
    if is_dense(three):
        found = strip(three, layout, size, by, common | {"DIVIDE": divide})
        if found is not None:
            return found
    if unpadded(three):
        found = _segments(three, layout, size, by, common | {"DIVIDE": divide}, device)
        if found is not None:
            return found
    return _windows(three, layout, size, by, common | {"DIVIDE": divide}, device)


def _few_lanes(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> bool:
    """Whether channels-last windows are so few and large that one lane each would not fill the device."""
    if not layout.channels or layout.input_strides[0] != 1 or not unpadded(axes):
        return False
    lanes = prod(layout.sizes) // channel_vector(layout, itemsize) * prod(a.out for a in axes)
    return lanes < tuning.FEW_LANES and prod(a.kernel for a in axes) >= 64


def segment_shape(
    kernel: int, itemsize: int, single: bool, with_offsets: bool, n_windows: int, regular: bool
) -> tuple[int, int, int, int]:
    """Elements per vector, threads per window, vectors of a thread per row, and rows at a time.

    Powers of 2 that depend on the length class of a window's rows, and on whether there are too few windows
    to fill the device.
    """
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


def _segments(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch | None:
    """Windows along contiguous rows. Only the length class of a segment chooses the kernel."""
    d, h, last = axes
    if layout.channels or layout.input_strides[5] != 1:
        return None
    n_planes = layout.sizes[1] * layout.sizes[2]
    n_windows, least = n_planes * last.out, min(int(a.windows()[1].min()) for a in axes)
    if not least:
        return None
    least = int(last.windows()[1].min())
    # Full vectors are loaded: the last one must not reach past the input.
    single = d.size == h.size == 1
    regular = all(a.regular for a in axes)
    how = (single, common["KIND"] != 0, d.out * h.out * n_windows, regular)
    unit, lanes, vectors, rows = segment_shape(last.kernel, itemsize, *how)
    if not packed(axes, layout) or prod(a.size for a in axes) * n_planes % unit:
        unit, lanes, vectors, rows = segment_shape(last.kernel, BYTES, *how)  # single elements
    width, loop = lanes * unit, last.kernel + unit - 1 > lanes * unit * vectors
    windows = tuning.THREADS // lanes
    numbers: list[Any] = [n_windows, layout.sizes[1], *map(magic, (last.out, layout.sizes[1], h.out, d.out))]
    numbers += [*layout.input_strides[1:5], *layout.output_strides[1:], h.size, last.size]
    numbers += [d.out, h.out, last.out, h.kernel, last.kernel, by, 1 / by]
    full = max(0, vectors // 2 - 1)
    constants = {key: common[key] for key in ("OP", "KIND", "IDENTITY", "COMPUTE", "INT64")} | {
        "DIVIDE": by_taps(axes, common["DIVIDE"], by),
        "LEADS": layout.leads,
        "UNIT": unit,
        "WIDTH": width,
        "VECTORS": vectors,
        "FULL": full if not loop and least // width >= full else 0,
        "ROWS": 1 if loop or single else rows,
        "LOOP": loop,
        "WINDOWS": windows,
        "num_warps": tuning.THREADS // 32,
    }
    given = [t for a in axes for t in tables(a, device)]
    grid = d.out * h.out * -(-n_windows // windows)
    return launcher(segment_forward_kernel, grid, numbers, constants, given, itemsize < 16)


def by_taps(axes: tuple[AxisPlan, ...], divide: int, by: int) -> int:
    """How windows with tables are divided: by their own numbers of taps, also where these are all the same.

    Whether they are depends on sizes, and a new size must not compile a new kernel.
    """
    return 2 if divide == 1 and by == prod(a.kernel for a in axes) else divide


def unpadded(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether all planes share the same windows, without dilation and without padding."""
    return all(
        a.starts.ndim == 1 if a.starts is not None else a.step == 1 and a.origin >= 0 and a.end <= a.size
        for a in axes
    )


def is_irregular(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether windows along some axis have different sizes.

    All axes then use tables, also the regular ones: which axes are irregular depends on sizes, and a new size
    must not compile a new kernel.
    """
    return unpadded(axes) and not all(a.regular for a in axes)


def folds_rows(axes: tuple[AxisPlan, ...], least: int = tuning.MANY_TAPS) -> bool:
    """Whether windows have very many taps, overlap little and have no padding."""
    shared = prod(max(1, a.kernel * a.out // a.size) for a in axes)
    return shared == 1 and prod(a.kernel for a in axes) >= least and unpadded(axes)


def _windows(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    per_plane = any(a.starts is not None and a.starts.ndim == 2 for a in axes)
    vec = 1 if per_plane else channel_vector(layout, itemsize)
    n_c, last = layout.sizes[0] // vec, axes[2]
    n_lanes = n_c * last.out * layout.sizes[1] * layout.sizes[2]
    lanes = lanes_for(n_lanes, tuning.THREADS)
    grid = -(-n_lanes // lanes) * axes[0].out * axes[1].out
    x_strides, y_strides = (
        [s // vec for s in strides] for strides in (layout.input_strides, layout.output_strides)
    )
    if vec > 1:
        x_strides[0] = y_strides[0] = 1
    kernels, steps, sizes = (
        [*values] for values in zip(*((a.tap_range()[1], a.step, a.size) for a in axes), strict=True)
    )
    # Marks of taps along each axis: offsets in the window, or indices in the plane.
    indices = common["KIND"] == INDEX64
    _, n_h, n_w = sizes if indices else kernels
    marks = (n_h * n_w * steps[0], n_w * steps[1], steps[2]) if indices else (n_h * n_w, n_w, 1)
    numbers: list[Any] = [
        *layout_numbers(n_lanes, n_c, last.out, layout, axes[1].out, axes[0].out),
        *x_strides,
        *y_strides,
        *(layout.plane_steps if per_plane else (0, 0, 0)),
        axes[0].out,
        axes[1].out,
        *(a.out if a.starts is not None and a.starts.ndim == 2 else 0 for a in axes),
        *(step * stride for step, stride in zip(steps, x_strides[3:], strict=True)),
        kernels[2],
        *marks,
        *sizes[1:],
    ]
    numbers += [by, 1 / by, prod(a.kernel for a in axes)]
    constants = common | {
        "UNIT": vec,
        "VEC": vec,
        "LANES": lanes,
        "PER_PLANE": per_plane,
        "FLAT": kernels[2] <= 4,
        # Whether indices, also those of taps beside the input, need 64 bits.
        "WIDE": prod(a.size + 2 * a.kernel * a.step for a in axes) > LIMIT and indices,
        "UNROLL": 4 if common["OP"] == SUM else 8,  # comparisons have a longer latency than sums
        "num_warps": lanes // 32,
    }
    # Tables of per-plane windows are used once.
    make = window_table.__wrapped__ if per_plane else window_table
    given = [make(a, device) for a in axes]
    return launcher(window_forward_kernel, grid, numbers, constants, given, itemsize < 16)
