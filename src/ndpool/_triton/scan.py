"""Max pooling with large overlapping windows, backward: when and how the scan kernel runs.

Called by `backward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels.scan_backward import scan_backward_kernel
from ndpool._triton.launch import Launch, is_dense, launcher
from ndpool._triton.memory import LIMIT, Layout, next_power
from ndpool.geometry import AxisPlan


def scans(axes: tuple[AxisPlan, ...], layout: Layout, dtype: torch.dtype) -> bool:
    """Whether windows overlap so much that a scan takes less time than a gather."""
    d, h, last = axes
    if d.size > 1 or h.kernel > 254 or not is_dense(axes) or dtype is torch.float64 or not tuning.SCANS:
        return False
    return True


def scan_backward(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> Launch | None:
    """Launcher for the scan kernel, or None if planes are too large or rows have gaps."""
    _, h, last = axes
    steps = layout.input_strides[0] if layout.channels else layout.input_strides[5]
    out_steps = layout.output_strides[0] if layout.channels else layout.output_strides[5]
    reach = max(
        sum((a.size + a.kernel) * abs(s) for a, s in zip(axes, layout.input_strides[3:], strict=True)),
        sum((a.out + 8) * abs(s) for a, s in zip(axes, layout.output_strides[3:], strict=True)),
    )
    if steps != 1 or out_steps != 1 or reach > LIMIT:
        return None
    n_c, n_planes, unit, width = layout.sizes[0], layout.sizes[1] * layout.sizes[2], 1, last.size
    if layout.channels:
        channels = min(32, next_power(n_c))
        inputs = min(32 if last.kernel <= 16 else 64, next_power(last.size))
        width = -(-last.size // -(-last.size // inputs))
        planes, outs, rows = 1, 1, min(tuning.SCAN_ROWS_CHANNELS, tuning.THREADS // channels)
    else:
        channels, outs = 1, next_power(last.out)
        if not any(s % 4 for s in layout.output_strides[1:5]):
            unit = 4
        if outs > 128:
            outs = max(128, next_power(2 * last.kernel // last.stride))
            width = (outs - unit) * last.stride - last.kernel + 2
        inputs = next_power(width)
        planes = max(1, min(tuning.THREADS // inputs, next_power(n_planes))) if layout.leads < 2 else 1
        rows = max(1, min(8, tuning.SCAN_EACH * tuning.THREADS // (planes * outs)))
    threads = tuning.THREADS
    blocks_w, blocks_c, groups = -(-last.size // width), -(-n_c // channels), -(-n_planes // planes)
    # Rows are cut into chunks, which read the outputs between them twice, only where planes are too few.
    items = groups * blocks_c * blocks_w
    chunks = max(1, min(h.size // max(8, 2 * h.kernel), tuning.SCAN_PROGRAMS // items))
    height = -(-h.size // chunks)
    chunks = -(-h.size // height)
    items *= chunks
    grid = min(items, tuning.SCAN_PROGRAMS)
    page = planes * rows * inputs * channels
    x, y = layout.input_strides, layout.output_strides
    numbers: list[Any] = [2 * grid * page, items, n_planes, layout.sizes[1], n_c, blocks_c, blocks_w, chunks, width, height]
    numbers += [x[1], x[2], x[4], x[5], y[1] // unit, y[2] // unit, y[4] // unit, y[5]]
    numbers += [h.size, last.size, h.out, last.out]
    constants = {
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
        "LEADS": max(1, layout.leads),
        "num_warps": threads // 32,
    }
    write = launcher(scan_backward_kernel, grid, numbers, constants, [], itemsize < 16)

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        # Sums, then one byte per sum.
        scratch = torch.empty(2 * grid * page * 5 // 4, dtype=torch.float32, device=result.device)
        write(grad, offsets, result, scratch)

    return launch
