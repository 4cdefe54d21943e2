"""Forward: which kernel serves a plan on given memory, with which block shapes.

The choice follows from shapes, strides and the plan alone, nothing is measured. Windows without holes go to
`strip`, whole planes to `planes`. Called by `frameworks/_torch_gpu.py`, which remembers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ndpool._native import INDEX64
from ndpool._triton.kernels.any_forward import any_forward_kernel
from ndpool._triton.kernels.spans import span_forward_kernel
from ndpool._triton.kernels.whole import rows_whole_kernel
from ndpool._triton.kernels.window_forward import window_forward_kernel
from ndpool._triton.launch import (
    SQUARES,
    SUM,
    THREADS,
    Launch,
    axis_numbers,
    compute_type,
    divide_by,
    lanes_for,
    launcher,
    magic,
    merged,
    needed,
    packed,
    padded,
    strips,
    tables,
    walk_kind,
    walk_numbers,
    whole_planes,
    worst,
)
from ndpool._triton.memory import LIMIT, Walk, channel_vector, next_power, walk, widest
from ndpool._triton.planes import channels_forward, plane_forward, rows_of_channels
from ndpool._triton.strip import FILLED, strip
from ndpool.geometry import AxisPlan, Plan

# Elements of a window from which rows are read whole where vectors make up for it, and in any case.
SOME, MANY = 65, 256
TILE = 512  # elements of a row of its windows that a program reads at once


def forward(
    plan: Plan,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    out_shape: tuple[int, ...],
    out_stride: tuple[int, ...],
    dtype: torch.dtype,
    result: torch.dtype,
    device: torch.device,
    op: int,
    kind: int,
    divides: bool,
    divisor: int,
    aligned: bool,
) -> Launch | None:
    """What writes a pooling's results, or None where the input needs a packed copy."""
    plan, axes, *memory = merged(plan, axes, shape, stride, out_shape, out_stride)
    w = walk(axes, *memory)
    if w is None:
        return None
    three = padded(plan)
    size = dtype.itemsize if aligned else 10**9
    common = {
        "OP": op,
        "KIND": kind,
        "LOW": worst(dtype, op),
        "COMPUTE": compute_type(dtype, result, op >= 2),
    } | walk_kind(w)
    divide, by = divide_by(three, divides, divisor)
    found = None
    if op == SQUARES:
        found = strip(three, w, size, by, common | {"DIVIDE": divide}) if strips(three) else None
        return found or _any(three, w, size, by, common | {"DIVIDE": divide}, device)
    if whole_planes(three, w):
        return plane_forward(three, w, size, by, common | {"DIVIDE": divide})
    rows = rows_of_channels(three, w)
    # So many channels that a strip of small planes is faster.
    if rows and (rows > 64 or prod(w.sizes) // widest(size) < 2**16):
        return channels_forward(w, rows, size, by, common | {"DIVIDE": divide}, dtype)
    if taken_whole(three, SOME):
        found = _whole(three, w, size, by, common | {"DIVIDE": divide}, device)
        if found is not None:
            return found
    if strips(three):
        # Places in a plane are told by rows; bytes are too little for a thread that has one row.
        apart = rows_apart(plan, axes, memory) if kind != INDEX64 and size > 1 else None
        rows_, rows_walk = apart or (three, w)
        found = strip(rows_, rows_walk, size, by, common | walk_kind(rows_walk) | {"DIVIDE": divide})
        if found is not None:
            return found
    if unpadded(three):
        found = _spans(three, w, size, by, common | {"DIVIDE": divide}, device)
        found = found or _windows(three, w, size, by, common | {"DIVIDE": divide}, device)
        if found is not None:
            return found
    return _any(three, w, size, by, common | {"DIVIDE": divide}, device)


def rows_apart(
    plan: Plan, axes: tuple[int, ...], memory: Iterable[tuple[int, ...]], *, written: bool = False
) -> tuple[tuple[AxisPlan, ...], Walk] | None:
    """The same with a plane for every row of windows, where rows share nothing: lanes then follow memory.

    Where there are few, rows may share input that is read, and be followed by some that is not. `memory`:
    shape and strides of the wide array, then of the narrow one.
    """
    shape, stride, out_shape, out_stride = memory
    *outer, last = zip(plan.axes, axes, strict=True)
    few = len(outer) == 1 and prod(out_shape) < 2 * FILLED and not written
    for p, _ in outer:
        used = p.end + (p.stride - p.kernel if written else 0)
        shared = p.kernel > p.stride and not (few and p.stride > 1)
        if shared or p.origin or used > p.size or (written and used < p.size):
            return None
    if not outer:
        return None
    leads = [(n, stride[a], out_shape[a], out_stride[a]) for a, n in enumerate(shape) if a not in axes]
    leads += [(p.out, p.stride * stride[a], p.out, out_stride[a]) for p, a in outer]
    leads.sort(key=itemgetter(1), reverse=True)
    rows = [
        AxisPlan(n, 1, p.kernel, p.stride, 1, 0, (0, n))
        for p, _ in outer
        for n in [p.stride if written else p.kernel]
    ]
    inner = [(row.size, stride[a], 1, 0) for row, (_, a) in zip(rows, outer, strict=True)]
    axis, a = last
    inner.append((shape[a], stride[a], out_shape[a], out_stride[a]))
    w = walk(range(len(leads), len(leads) + len(inner)), *zip(*leads, *inner, strict=True))
    return None if w is None else (padded(Plan([*rows, axis])), w)


def _spans(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch | None:
    d, h, last = axes
    plane, planes = prod(a.size for a in axes), w.sizes[1] * w.sizes[2]
    # Shorter vectors leave less beside a span.
    unit = min(4 if common["OP"] == SUM and itemsize > 2 else 2, widest(itemsize, plane * planes))
    if not packed(axes, w) or unit == 1 or not 4 <= last.kernel <= 32:
        return None
    n_lanes, least = planes * last.out, int(last.windows()[1].min())
    lanes = lanes_for(n_lanes, THREADS)
    numbers: list[Any] = [n_lanes, *map(magic, (last.out, h.out, d.out)), plane, w.narrow[1], *w.narrow[3:]]
    numbers += [h.size, last.size, d.out, h.out, last.out, h.kernel, last.kernel, by, 1 / by]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "LOW", "COMPUTE", "WIDE")} | {
        "UNIT": unit,
        "VECTORS": -(-(last.kernel + unit - 1) // unit),
        "FILLED": least // unit,
        "MET": -(-least // unit),
        "UNROLL": 1 if common["KIND"] else 2,
        "LANES": lanes,
        "num_warps": lanes // 32,
    }
    held = [t for a in axes for t in tables(a, device)]
    grid = -(-n_lanes // lanes) * d.out * h.out
    return launcher(span_forward_kernel, grid, numbers, constants, held, itemsize < 16)


def unpadded(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether all planes have the same windows, without holes, and no tap of them is padding."""
    return all(
        a.starts.ndim == 1 if a.starts is not None else a.step == 1 and a.origin >= 0 and a.end <= a.size
        for a in axes
    )


def uneven(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether windows along some axis differ: tables then tell those of all axes, even ones included.

    Such windows follow from sizes, and another size must not make another kernel.
    """
    return unpadded(axes) and not all(a.regular for a in axes)


def taken_whole(axes: tuple[AxisPlan, ...], least: int = MANY) -> bool:
    """Whether windows have very many elements, share few with each other, and none of them is padding."""
    shared = prod(max(1, a.kernel * a.out // a.size) for a in axes)
    return shared == 1 and prod(a.kernel for a in axes) >= least and unpadded(axes)


def _whole(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch | None:
    d, h, last = axes
    short = last.size <= 256
    if w.channels or w.wide[5] != 1 or last.size > 4096 or (last.out > 8 and not short):
        return None
    n_planes = w.sizes[1] * w.sizes[2]
    unit, width = widest(itemsize, last.size, *w.wide[1:5]), max(32, next_power(last.size))
    few = prod(a.kernel for a in axes) < MANY
    if few and (not short or unit * itemsize < (4 if common["OP"] == SUM else 16 if common["KIND"] else 8)):
        return None
    outs, taps = next_power(last.out), next_power(last.kernel)
    most = 2**11 if common["OP"] == 2 else 2**10
    # Rows are cut up inside a warp where four of them, of as many planes, are not too much for one.
    planes = 4 if few else max(4, most // max(width, outs * taps)) if short else 1
    while planes > 4 and d.out * h.out * n_planes < planes * 1056:
        planes //= 2
    wide = [s // unit for s in w.wide[1:5]]
    numbers: list[Any] = [w.sizes[1], *map(magic, (w.sizes[1], h.out, d.out)), n_planes]
    numbers += [*wide, *w.narrow[1:], h.size, last.size]
    numbers += [d.out, h.out, last.out, h.kernel, last.kernel, by, 1 / by]
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "LOW", "COMPUTE", "WIDE")} | {
        "UNIT": unit,
        "PLANES": planes,
        "ROWS": h.kernel if h.kernel < 13 else -(-h.kernel // -(-h.kernel // 10)),
        "WIDTH": width,
        "OUTS": outs,
        "TAPS": taps,
        "GATHERED": short,
        "num_warps": 2 if few and unit * itemsize < 16 else 4,
    }
    # Windows that follow each other need no tables.
    plain = [d.size == 1, *(a.regular and a.stride == a.kernel for a in (h, last))]
    if short and h.size > 1 and not all(plain[1:]):
        plain[1:] = False, False  # one kernel, whichever axis needs them
    held = [t for a, p in zip(axes, plain, strict=True) for t in needed(not p, *tables(a, device))]
    grid = d.out * h.out * -(-n_planes // planes)
    return launcher(rows_whole_kernel, grid, numbers, constants, held, itemsize < 16)


@lru_cache(128)
def formula(axis: AxisPlan) -> tuple[int, int, int, int] | None:
    """Four numbers from which windows follow, or None where they need tables.

    Window o is [(o*scale + lead) // by, (o*scale + tail) // by), for regular and for adaptive windows.
    """
    if axis.size * (axis.out + 1) + axis.out > LIMIT:
        return None
    if axis.starts is None or axis.counts is None:
        return axis.stride, axis.origin, axis.origin + axis.kernel, 1
    # Adaptive windows end at the next whole element, pieces of a window at the one before.
    for tail in (axis.size + axis.out - 1, axis.size):
        edges = np.arange(axis.out) * axis.size
        firsts, ends = edges // axis.out, (edges + tail) // axis.out
        if np.array_equal(axis.starts, firsts) and np.array_equal(axis.starts + axis.counts, ends):
            return axis.size, 0, tail, axis.out
    return None


def _windows(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch | None:
    """Long windows along contiguous rows of any length."""
    d, h, last = axes
    if w.channels or w.wide[5] != 1 or last.kernel <= 32:
        return None
    n_planes = w.sizes[1] * w.sizes[2]
    # Vectors are read whole: the last one must not reach behind the input.
    unit = min(4, max(1, 8 // itemsize))
    if not packed(axes, w) or prod(a.size for a in axes) * n_planes % unit:
        unit = 1
    width = 64 if last.kernel + unit - 1 <= 256 else TILE
    windows = TILE // width
    n_lanes = n_planes * last.out
    numbers: list[Any] = [n_lanes, w.sizes[1], *map(magic, (last.out, w.sizes[1], h.out, d.out))]
    numbers += [*w.wide[1:5], *w.narrow[1:], h.size, last.size, h.kernel, last.kernel]
    held: list[Tensor | None] = []
    for a in axes:
        numbers += [a.out, *(formula(a) or (0, 0, 0, 1))]
        held += needed(formula(a) is None, *tables(a, device))
    constants = {key: common[key] for key in ("OP", "KIND", "DIVIDE", "LOW", "COMPUTE", "WIDE", "LEADS")} | {
        "UNIT": unit,
        "WINDOWS": windows,
        "WIDTH": width,
        "ROWS": 4,
        "num_warps": THREADS // 32,
    }
    grid = d.out * h.out * -(-n_lanes // windows)
    return launcher(window_forward_kernel, grid, [*numbers, by, 1 / by], constants, held, itemsize < 16)


def _any(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch:
    per_plane = any(a.starts is not None and a.starts.ndim == 2 for a in axes)
    vec = 1 if per_plane else channel_vector(w, itemsize)
    n_c, last = w.sizes[0] // vec, axes[2]
    n_lanes = n_c * last.out * w.sizes[1] * w.sizes[2]
    lanes = lanes_for(n_lanes, THREADS)
    grid = -(-n_lanes // lanes) * axes[0].out * axes[1].out
    wide, narrow = ([s // vec for s in strides] for strides in (w.wide, w.narrow))
    if vec > 1:
        wide[0] = narrow[0] = 1
    numbers: list[Any] = [
        *walk_numbers(n_lanes, n_c, last.out, w, axes[1].out, axes[0].out),
        *wide,
        *narrow,
        *(w.planes if per_plane else (0, 0, 0)),
    ]
    numbers += [n for a in axes for n in axis_numbers(a)] + [by, 1 / by, prod(a.kernel for a in axes)]
    tabled = [not a.regular or (a.size > 1 and uneven(axes)) for a in axes]
    constants = common | {
        "UNIT": vec,
        "VEC": vec,
        "LANES": lanes,
        # Comparisons wait for each other longer than sums do.
        "UNROLL": 4 if common["OP"] == 2 else 8,
        "num_warps": lanes // 32,
    }
    # Tables of single planes serve one call alone.
    make = tables.__wrapped__ if per_plane else tables
    given = [
        t for a, own in zip(axes, tabled, strict=True) for t in (make(a, device) if own else (None, None))
    ]
    return launcher(any_forward_kernel, grid, numbers, constants, given, itemsize < 16)
