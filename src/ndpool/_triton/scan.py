"""Max pooling with large overlapping windows, backward: when and how the scan kernel runs.

Offsets must be those of the forward pass: the kernel relies on which elements windows share. With any other
offsets the sums are meaningless, but no memory outside the arrays is touched. Called by `backward`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels.scan_backward import depth_backward_kernel, scan_backward_kernel
from ndpool._triton.launch import Launch, Prepared, is_dense, launcher, max_overlap
from ndpool._triton.memory import LIMIT, Layout, next_power
from ndpool.geometry import AxisPlan


def scans(axes: tuple[AxisPlan, ...], layout: Layout, dtype: torch.dtype) -> bool:
    """Whether windows overlap so much that scans take less time than a gather."""
    d, h, last = axes
    if not is_dense(axes) or dtype is torch.float64 or d.kernel * h.kernel > tuning.SCAN_TAGS:
        return False
    if h.size == 1 or max_overlap(last) == 1:
        return False
    apart = min(h.stride, last.stride) > 1 or (d.size > 1 and not layout.channels)
    least = tuning.SCAN_OVERLAP_HALF if apart and dtype.itemsize < 4 else tuning.SCAN_OVERLAP
    return prod(map(max_overlap, axes)) >= least


def scan_backward(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> Launch | None:
    """Launcher for the scan kernel, or None if planes are too large or have gaps."""
    d, h, last = axes
    x, y = layout.input_strides, layout.output_strides
    if (x[0], y[0]) != (1, 1) if layout.channels else (x[5], y[5]) != (1, 1):
        return None
    reach = max(
        sum((a.size + a.kernel) * abs(s) for a, s in zip(axes, x[3:], strict=True)),
        sum((a.out + 8) * abs(s) for a, s in zip(axes, y[3:], strict=True)),
    )
    deep = d.size > 1
    if reach > LIMIT or (deep and layout.leads > 1):
        return None
    if not deep:
        leads = (layout.sizes[1] * layout.sizes[2], layout.sizes[1], layout.leads)
        run, scratch_size = _planes(axes, layout, itemsize, leads, x[1:3], y[1:3], x[4:6])

        def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
            scratch = torch.empty(scratch_size, dtype=torch.float32, device=result.device)
            run(grad, offsets, result, scratch)

        return launch
    # Planes of outputs first, then along the first axis.
    n_c, n_leads = layout.sizes[0], layout.sizes[1]
    plane = h.size * last.size * n_c
    if (x[4], x[5]) != (last.size * n_c, n_c) or plane * d.out > LIMIT:
        return None
    leads = (n_leads * d.out, d.out, 2)
    total = n_leads * d.out * plane
    strides = (plane, plane * d.out)
    run, scratch_size = _planes(axes, layout, itemsize, leads, strides, (y[3], y[1]), x[4:6], total)
    lanes = tuning.THREADS
    blocks = -(-plane // lanes)
    numbers: list[Any] = [total, plane, blocks, x[1], x[3], d.size, d.out]
    constants = {"KD": d.kernel, "SD": d.stride, "PD": -d.origin, "LANES": lanes, "STEP": 4}
    along = launcher(
        depth_backward_kernel, blocks * n_leads, numbers, constants | {"num_warps": lanes // 32}, [], True
    )

    def launch_both(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        scratch = torch.empty(scratch_size, dtype=torch.float32, device=result.device)
        # Sums, then one byte per sum.
        planes = torch.empty(total + -(-total // 4), dtype=torch.float32, device=result.device)
        run(grad, offsets, planes, scratch)
        along(planes, planes, result)

    return launch_both


def _planes(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    leads: tuple[int, int, int],
    x_leads: tuple[int, ...],
    y_leads: tuple[int, ...],
    x: tuple[int, ...],
    depths: int = 0,
) -> tuple[Prepared, int]:
    """The pass over planes, and the size of its scratch memory; `leads`: planes, the inner ones, and axes."""
    d, h, last = axes
    n_planes, n_1, n_axes = leads
    y = (*y_leads, *layout.output_strides[4:6])
    n_c, unit, width = layout.sizes[0], 1, last.size
    if layout.channels:
        channels = min(32, next_power(n_c))
        inputs = min(32 if last.kernel <= 16 else 64, next_power(last.size))
        width = -(-last.size // -(-last.size // inputs))
        planes, outs, rows = 1, 1, min(8, tuning.THREADS // channels)
    else:
        channels, outs = 1, next_power(last.out)
        unit = 4 if not any(s % 4 for s in y[:3]) else 1
        if outs > tuning.SCAN_COLUMNS:
            outs = max(tuning.SCAN_COLUMNS, next_power(2 * last.kernel // last.stride))
            width = (outs - unit) * last.stride - last.kernel + 2
        inputs = next_power(width)
        planes = max(1, min(tuning.THREADS // inputs, next_power(n_planes)))
        if n_axes > 1 and n_1 % planes:
            planes = 1
        rows = max(1, min(8, 4 * tuning.THREADS // (planes * outs)))
    blocks_w, blocks_c, groups = -(-last.size // width), -(-n_c // channels), -(-n_planes // planes)
    # Rows are cut into chunks, which read the outputs between them twice, where planes are too few.
    items = groups * blocks_c * blocks_w
    chunks = max(1, min(h.size // 8, tuning.SCAN_PROGRAMS // 2 // items))
    height = -(-h.size // chunks)
    chunks = -(-h.size // height)
    grid = min(items * chunks, tuning.SCAN_PROGRAMS // 4 if layout.channels else tuning.SCAN_PROGRAMS)
    page = planes * rows * inputs * channels
    numbers: list[Any] = [2 * grid * page, depths, items * chunks, n_planes, n_1, n_c]
    numbers += [blocks_c, blocks_w, chunks, width, height, *x_leads, *x]
    numbers += [*(s // unit for s in y[:3]), y[3], h.size, last.size, h.out, last.out]
    constants = {
        "KD": d.kernel,
        "KH": h.kernel,
        "KW": last.kernel,
        "SH": h.stride,
        "SW": last.stride,
        "PH": -h.origin,
        "PW": -last.origin,
        "PLANES": planes,
        "ROWS": rows,
        "OUTS": outs,
        "INPUTS": inputs,
        "C": channels,
        "UNIT": unit,
        "CHANNELS": layout.channels,
        "LEADS": max(1, n_axes),
        "num_warps": tuning.THREADS // 32,
    }
    # Sums, then one byte per sum.
    return launcher(
        scan_backward_kernel, grid, numbers, constants, [], itemsize < 16
    ), 2 * grid * page * 5 // 4
