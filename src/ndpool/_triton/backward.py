"""Backward: which kernel serves a plan on given memory, with which block shapes.

The choice follows from shapes, strides and the plan alone and is remembered with them. Called by
`frameworks/_torch_gpu.py`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton.cells import by_cells
from ndpool._triton.forward import forward, rows_apart, uneven, unpadded
from ndpool._triton.kernels.any_backward import any_backward_kernel
from ndpool._triton.kernels.block_backward import block_backward_kernel
from ndpool._triton.kernels.few_backward import few_backward_kernel
from ndpool._triton.kernels.held_backward import held_backward_kernel
from ndpool._triton.launch import (
    THREADS,
    Launch,
    Prepared,
    axis_numbers,
    containing,
    divide_by,
    lanes_for,
    launcher,
    max_overlap,
    merged,
    needed,
    padded,
    runs,
    strips,
    tables,
    transposed_tables,
    walk_kind,
    walk_numbers,
    walk_strides,
    whole_planes,
)
from ndpool._triton.memory import Walk, channel_vector, next_power, walk, widest
from ndpool._triton.planes import by_channels, channels_backward, plane_backward, rows_of_channels
from ndpool.geometry import AxisPlan, Plan

LARGE = 2**24  # elements of which a device has enough where every thread writes few


@lru_cache(1024)
def backward(
    plan: Plan,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    out_shape: tuple[int, ...],
    out_stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    picks: bool,
    divides: bool,
    divisor: int,
    aligned: bool,
) -> Launch | None:
    """What writes the gradient of a pooling's input, or None where the output's needs a packed copy."""
    memory: Any = (shape, stride, out_shape, out_stride)
    if stride[axes[-1]] == 1 or by_channels(plan, axes, shape, stride):
        plan, axes, *memory = merged(plan, axes, *memory)
    w = walk(axes, *memory)
    if w is None:
        return None
    three = padded(plan)
    size = dtype.itemsize if aligned else 10**9
    divide, by = divide_by(three, divides, divisor)
    common = {
        "PICKS": picks,
        "DIVIDE": divide,
        "COMPUTE": tl.float64 if dtype is torch.float64 else tl.float32,
    } | walk_kind(w)
    last = three[2]
    if whole_planes(three, w) and w.leads < 2 and w.wide[1] in (0, last.size):
        return plane_backward(last.size, last.size * w.sizes[1], w.narrow[1], size, by, common)
    if rows := rows_of_channels(three, w):
        return channels_backward(w, rows, size, by, common)
    if picks and not w.channels and prod(plan.sizes) >= 16 * prod(plan.out):
        if prod(map(max_overlap, three)) <= 8:
            return _few(three, w, size, common, device)
    if not picks and divide != 2 and strips(three) and all(a.stride == 1 for a in three):
        return _mirrored(plan, axes, memory, dtype, device, divides, by, aligned)
    found = None
    if not picks and unpadded(three) and not (strips(three) and prod(a.stride for a in three) < 16):
        found = by_cells(three, w, size, by, common, device)
    if found is None and strips(three):
        apart = rows_apart(plan, axes, memory, written=True) if prod(memory[0]) >= LARGE else None
        rows_, rows_walk = apart or (three, w)
        found = _blocks(rows_, rows_walk, size, by, common | walk_kind(rows_walk))
    if found is not None:
        return found
    # Sums are the same for all rows of a run, which the kernel for any window knows too.
    rows = picks or (not w.channels and widest(size, last.size, *w.wide[1:5]) == 1)
    if rows and unpadded(three) and max(max_overlap(three[0]), max_overlap(last)) <= 2:
        return _held(three, w, size, by, common, device)
    return _any_backward(three, w, size, by, common, device)


def most_of(axis: AxisPlan, axes: tuple[AxisPlan, ...]) -> int:
    """How many windows of an axis a kernel looks at for one input: those that hold it, or some more."""
    return max(max_overlap(axis), min(2, axis.out) if uneven(axes) else 1)


def one_window(axis: AxisPlan, vec: int) -> bool:
    """Whether neighbours in a vector are always in one window, and in no other."""
    alike = axis.regular and axis.step == 1 and axis.stride == axis.kernel == axis.tap_range()[1]
    return alike and axis.origin == 0 and vec > 1 and axis.kernel % vec == 0


@lru_cache(1024)
def _transposed(plan: Plan) -> Plan:
    return plan.transposed()


def _mirrored(
    plan: Plan,
    axes: tuple[int, ...],
    memory: Any,
    dtype: torch.dtype,
    device: torch.device,
    divides: bool,
    by: int,
    aligned: bool,
) -> Launch | None:
    shape, stride, out_shape, out_stride = memory
    wide = (out_shape, out_stride, shape, stride, dtype, dtype, device)
    run = forward(_transposed(plan), axes, *wide, 2, 0, divides, by, aligned)
    if run is None:
        return None
    if isinstance(run, Prepared):
        run.direction = "backward"

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        run(grad, result, result)

    return launch


def _outputs_of_block(axis: AxisPlan) -> tuple[int, int]:
    """The first output that contains inputs of the block from 0 to stride - 1, and how many more do."""
    firsts, counts, _, _ = containing(axis, tabled=False)
    first, last = firsts[counts > 0], (firsts + counts - 1)[counts > 0]
    return int(first.min()), int(last.max() - first.min())


def _blocks(
    axes: tuple[AxisPlan, ...], w: Walk, itemsize: int, by: int, common: dict[str, Any]
) -> Launch | None:
    d, h, last = axes
    low, more = zip(*map(_outputs_of_block, axes), strict=True)
    vec = x_unit = y_unit = channel_vector(w, itemsize)
    columns = not w.channels and w.wide[5] == 1 and w.narrow[5] == 1
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
            chunk if last.size % (outs * last.stride) == 0 and not any(s % chunk for s in w.wide[1:5]) else 1
        )
        y_unit = vec if last.out % vec == 0 and not any(s % vec for s in w.narrow[1:5]) else 1
    elif all(a.kernel <= a.stride for a in axes):
        vec = x_unit = y_unit = min(vec, max(1, 8 // itemsize))
    large = prod(w.sizes) * prod(a.size for a in axes) >= LARGE
    rows, loop_h = 1 if large and h.kernel <= h.stride else 8 if large and columns and vec == 1 else 4, False
    across = vectors if columns else more[2] + 1
    while not columns and vec > 1 and across * vec * (1 + common["PICKS"]) > 64:
        vec = x_unit = y_unit = vec // 2
    held = (more[0] + 1) * across * vec * (1 + common["PICKS"])
    blocks_h, each = -(-h.size // h.stride), d.stride * h.stride * outs * last.stride
    while rows > 1 and (held * (rows + more[1]) > 80 or rows >= 2 * blocks_h or rows * each > 64):
        rows //= 2
    if held * (rows + more[1]) > 100:
        rows, loop_h = 1, True
    if each * (1 if columns else vec) > 64 or held > 100 or outs * last.stride > most:
        return None
    n_w = -(-last.size // (last.stride * outs))
    n_c = w.sizes[0] if columns else w.sizes[0] // vec
    n_lanes = n_c * n_w * w.sizes[1] * w.sizes[2]
    lanes = lanes_for(n_lanes, 2 * THREADS if rows == 8 else THREADS)
    n_strips = -(-blocks_h // rows)
    blocks_d = -(-d.size // d.stride)
    grid = -(-n_lanes // lanes) * blocks_d * n_strips
    wide = [s // x_unit for s in w.wide]
    narrow = [s // y_unit for s in w.narrow]
    if not columns and vec > 1:
        wide[0] = narrow[0] = 1
    parts = [*needed(n_strips * blocks_d > 1, n_strips), *needed(blocks_d > 1, blocks_d)]
    numbers: list[Any] = walk_numbers(n_lanes, n_c, n_w, w, *parts)
    numbers += walk_strides(wide, w) + walk_strides(narrow, w)
    numbers += [a.size for a in axes] + [a.out for a in axes]
    numbers += needed(common["DIVIDE"] == 2, *(b for a in axes for b in a.bounds))
    numbers += [by, 1 / by, *parts, *needed(loop_h, more[1])]
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


def _held(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    last = axes[2]
    vec, x_unit, y_unit, columns = _inputs(last, w, itemsize)
    n_w = -(-last.size // (vec if columns else 1))
    n_c = w.sizes[0] if columns else w.sizes[0] // vec
    n_lanes = n_c * n_w * w.sizes[1] * w.sizes[2]
    lanes = THREADS * (4 if vec == 1 else 1 if common["PICKS"] and vec > 4 else 2)
    lanes = lanes_for(n_lanes, lanes)
    bounds = runs(axes[1], device)
    n_runs = len(bounds) - 1
    # About 32 rows to a program, and enough programs for a large device.
    blocks = -(-n_lanes // lanes) * axes[0].size
    each = max(1, min(-(-32 * n_runs // axes[1].size), n_runs * blocks // 2048))
    groups = -(-n_runs // each)
    wide, narrow = [s // x_unit for s in w.wide], [s // y_unit for s in w.narrow]
    if not columns and vec > 1:
        wide[0] = narrow[0] = 1
    numbers: list[Any] = [*walk_numbers(n_lanes, n_c, n_w, w, groups, axes[0].size), *wide, *narrow]
    numbers += [axes[0].size, axes[1].kernel, last.kernel, n_runs, groups, each, by, 1 / by]
    constants = common | {
        "MOST_D": most_of(axes[0], axes),
        "MOST_W": most_of(last, axes),
        "COLUMNS": columns,
        "SHARED": columns and one_window(last, vec),
        "X_UNIT": x_unit,
        "Y_UNIT": y_unit,
        "VEC": vec,
        "LANES": lanes,
        "num_warps": min(4, lanes // 32),
    }
    given = [t for a in axes for t in (*tables(a, device), *transposed_tables(a, True, device))] + [bounds]
    return launcher(held_backward_kernel, blocks * groups, numbers, constants, given, itemsize < 16)


def _inputs(last: AxisPlan, w: Walk, itemsize: int) -> tuple[int, int, int, bool]:
    """How many inputs a lane has, the units of both memories, and whether they are along the last axis."""
    vec = channel_vector(w, itemsize)
    if not w.channels and w.wide[5] == 1 and last.size > 1:
        # Neighbouring inputs, each with outputs of its own.
        vec = widest(itemsize, last.size, *w.wide[1:5])
        return vec, vec, 1, True
    return vec, vec, vec, False


def _any_backward(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    last = axes[2]
    vec, x_unit, y_unit, columns = _inputs(last, w, itemsize)
    n_w = -(-last.size // (vec if columns else 1))
    n_c = w.sizes[0] if columns else w.sizes[0] // vec
    n_lanes = n_c * n_w * w.sizes[1] * w.sizes[2]
    lanes = lanes_for(n_lanes, THREADS)
    bounds = runs(axes[1], device)
    if common["PICKS"]:
        # Gradients of picks differ from row to row: rows only share what the last axis needs.
        bounds = torch.arange(0, axes[1].size + 8, 8, dtype=torch.int32, device=device).clamp_(
            max=axes[1].size
        )
    n_runs = len(bounds) - 1
    grid = -(-n_lanes // lanes) * axes[0].size * n_runs
    wide, narrow = [s // x_unit for s in w.wide], [s // y_unit for s in w.narrow]
    if not columns and vec > 1:
        wide[0] = narrow[0] = 1
    most, tabled = most_of(last, axes), uneven(axes)
    common = common | {"DILATED": any(a.step > 1 for a in axes)}
    given: list[Any] = []
    for a in axes:
        own = tables(a, device) if tabled or not a.regular else (None, None)
        given += [*own, *transposed_tables(a, tabled, device)]
    numbers: list[Any] = [*walk_numbers(n_lanes, n_c, n_w, w, n_runs, axes[0].size), *wide, *narrow]
    numbers += [n for a in axes for n in (*axis_numbers(a), *containing(a, tabled)[2:])]
    numbers += [most, n_runs, by, 1 / by]
    constants = common | {
        "MOST": min(most, 2),
        "COLUMNS": columns,
        "SHARED": columns and one_window(last, vec),
        "X_UNIT": x_unit,
        "Y_UNIT": y_unit,
        "VEC": vec,
        "LANES": lanes,
        "num_warps": lanes // 32,
    }
    return launcher(any_backward_kernel, grid, numbers, constants, [*given, bounds], itemsize < 16)


def _few(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    """Windows so large that most inputs get nothing: zeros, and what each output took."""
    outs, plane = prod(a.out for a in axes), prod(a.size for a in axes)
    n_planes = w.sizes[0] * w.sizes[1] * w.sizes[2]
    n_lanes = n_planes * outs
    lanes = lanes_for(n_lanes, THREADS)
    lanes_each, zeros_each, zeros, vec = lanes, 0, 0, 0
    if not w.channels and w.leads < 2 and w.wide[1] in (0, plane) and w.wide[5] == 1 and plane <= 2**16:
        # So few planes that their zeros are still in the cache when the picks come.
        lanes = THREADS // 2 if itemsize < 4 and outs <= THREADS // 2 else THREADS
        planes = min(n_planes, next_power(-(-(2**10) // plane)), max(1, lanes // outs))
        vec = widest(itemsize)
        lanes_each, zeros_each, zeros = planes * outs, planes * plane, n_planes * plane
    numbers: list[Any] = [lanes_each, zeros_each, zeros]
    numbers += [*walk_numbers(n_lanes, w.sizes[0], outs, w), *w.wide, *w.narrow]
    tabled = uneven(axes)
    given: list[Tensor | None] = []
    for a in axes:
        numbers += [*axis_numbers(a), *containing(a, tabled)[2:]]
        starts = tables(a, device)[0] if tabled or not a.regular else None
        given += [starts, *transposed_tables(a, tabled, device)]
    constants = {key: common[key] for key in ("COMPUTE", "WIDE", "CHANNELS", "LEADS")} | {
        "VEC": vec,
        "EDGES": vec > 0 and zeros_each % vec > 0,
        "ONCE": lanes_each <= lanes,
        "DILATED": any(a.step > 1 for a in axes),
        "LANES": lanes,
        "num_warps": lanes // 32,
    }
    for name, a in zip("DHW", axes, strict=True):
        constants[f"MOST_{name}"] = most_of(a, axes)
    grid = -(-n_lanes // lanes_each)
    write = launcher(few_backward_kernel, grid, numbers, constants, given, itemsize < 16)
    if vec:
        return write

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        result.zero_()
        write(grad, offsets, result)

    return launch
