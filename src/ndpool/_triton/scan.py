"""Max pooling with large overlapping windows in contiguous planes, backward: the scan kernel.

Offsets must be those of the forward pass: the kernel relies on which elements windows share. With any other
offsets the sums are meaningless, but no memory outside the arrays is touched. Called by `backward`.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Memory, Sizes, Strides
from ndpool._triton.kernels.scan_backward import Block, Work, scan_backward_kernel
from ndpool._triton.launch import Launch, Prepared, constant, launcher, max_overlap, window_of
from ndpool._triton.memory import LIMIT, Layout, next_power
from ndpool._triton.walk import walk
from ndpool.geometry import AxisPlan


def scan_backward(axes: tuple[AxisPlan, ...], layout: Layout, itemsize: int) -> Launch | None:
    """Launcher for the scan kernel, or None if planes are too large or have gaps."""
    d, h, last = axes
    x, y = layout.input_strides, layout.output_strides
    if (
        d.kernel * h.kernel > tuning.SCAN_TAGS
        or h.size == 1
        or max_overlap(last) == 1
        or (x[5], y[5]) != (1, 1)
    ):
        return None
    reach = max(
        sum((a.size + a.kernel) * abs(s) for a, s in zip(axes, x[3:], strict=True)),
        sum((a.out + 8) * abs(s) for a, s in zip(axes, y[3:], strict=True)),
    )
    deep = max(d.size, d.out) > 1  # a plane may be in two windows that are padding elsewhere
    if reach > LIMIT or (deep and (layout.leads > 1 or d.kernel == 1)):
        return None
    if not deep:
        leads = (layout.sizes[1] * layout.sizes[2], layout.sizes[1], layout.leads)
        run, scratch_size = _planes(axes, layout, itemsize, leads, x[1:3], y[1:3], x[4])

        def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
            scratch = torch.empty(scratch_size, dtype=torch.float32, device=result.device)
            run(grad, offsets, result, scratch)

        return launch
    # Planes of outputs first, then along the first axis.
    n_leads, plane = layout.sizes[1], h.size * last.size
    if x[4] != last.size or x[3] != plane or (n_leads > 1 and x[1] != plane * d.size):
        return None
    if plane * max(d.out, d.size) > LIMIT:
        return None
    leads = (n_leads * d.out, d.out, 2)
    total = n_leads * d.out * plane
    strides = (plane, plane * d.out)
    run, scratch_size = _planes(axes, layout, itemsize, leads, strides, (y[3], y[1]), x[4], total)
    along = walk(d, (n_leads, plane, 0, 0), (1, False, True), tl.float32, layout.int64, itemsize)

    def launch_both(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        scratch = torch.empty(scratch_size, dtype=torch.float32, device=result.device)
        # Sums, then one byte per sum.
        planes = torch.empty(total + -(-total // 4), dtype=torch.float32, device=result.device)
        run(grad, offsets, planes, scratch)
        along(planes, planes[total:].view(torch.uint8), result, result)

    return launch_both


def _planes(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    leads: tuple[int, int, int],
    x_leads: tuple[int, ...],
    y_leads: tuple[int, ...],
    x_h: int,
    depths: int = 0,
) -> tuple[Prepared, int]:
    """The pass over planes, and the size of its scratch memory; `leads`: planes, the inner ones, and axes."""
    _, h, last = axes
    n_planes, n_1, n_axes = leads
    y = (*y_leads, layout.output_strides[4])
    outs, width = next_power(last.out), last.size
    unit = 4 if not any(s % 4 for s in y) else 1
    if outs > tuning.SCAN_COLUMNS:
        outs = max(tuning.SCAN_COLUMNS, next_power(2 * last.kernel // last.stride))
        width = (outs - unit) * last.stride - last.kernel + 2
    inputs = next_power(width)
    planes = max(1, min(tuning.THREADS // inputs, next_power(n_planes)))
    if n_axes > 1 and n_1 % planes:
        planes = 1
    rows = max(1, min(8, 4 * tuning.THREADS // (planes * outs)))
    blocks_w, groups = -(-last.size // width), -(-n_planes // planes)
    # Rows are cut into chunks, which read the outputs between them twice, where planes are too few.
    items = groups * blocks_w
    chunks = max(1, min(h.size // 8, tuning.PROGRAMS // 2 // items))
    height = -(-h.size // chunks)
    chunks = -(-h.size // height)
    grid = min(items * chunks, tuning.PROGRAMS)
    page = planes * rows * inputs
    block = Block(PLANES=planes, ROWS=rows, OUTS=outs, INPUTS=inputs, UNIT=unit)
    arguments = (
        Work(items * chunks, n_planes, n_1, blocks_w, chunks, width, height, 2 * grid * page, depths),
        Strides(None, x_leads[0], x_leads[1], None, x_h, None),
        Strides(None, y[0] // unit, y[1] // unit, None, y[2] // unit, None),
        Sizes(*(a.size for a in axes)),
        Sizes(*(a.out for a in axes)),
        window_of(axes),
        constant(block),
        constant(Memory(False, n_axes, False)),
    )
    # Sums, then one byte per sum.
    scratch = 2 * grid * page * 5 // 4
    return launcher(scan_backward_kernel, grid, arguments, tuning.THREADS // 32, itemsize < 16), scratch
