"""Max pooling with overlapping windows in channels-last arrays, backward: the walk kernel, once per axis.

Offsets must be those of the forward pass: the kernel relies on which elements windows share. With any other
offsets the sums are meaningless, but no memory outside the arrays is touched. Called by `backward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Memory
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.kernels.walk_backward import Block, walk_backward_kernel
from ndpool._triton.launch import Launch, Prepared, constant, launcher, magic
from ndpool._triton.memory import LIMIT, Layout
from ndpool.geometry import AxisPlan


def _gapless(strides: tuple[int, ...], sizes: Sequence[int], channels: int) -> bool:
    """Whether memory has no gaps, in the order of leads, pooled axes and channels."""
    _, first, second, *pooled = strides
    pitch, found = channels, channels == 1 or strides[0] == 1
    for size, stride in zip((*sizes[:1:-1], *sizes[:2]), (*pooled[::-1], first, second), strict=True):
        found = found and (size == 1 or stride == pitch)
        pitch *= size
    return found


def walk_backward(
    axes: tuple[AxisPlan, ...], layout: Layout, dtype: torch.dtype, itemsize: int
) -> Launch | None:
    """Launcher for the walk kernel, or None if arrays are too large or have gaps."""
    n_c, *leads = layout.sizes
    kernels, sizes, outs = ([getattr(a, name) for a in axes] for name in ("kernel", "size", "out"))
    if not _gapless(layout.input_strides, [*leads, *sizes], n_c):
        return None
    if not _gapless(layout.output_strides, [*leads, *outs], n_c) or n_c * prod(sizes) > LIMIT:
        return None
    walked = [k for k, a in enumerate(axes) if (a.kernel, a.stride, a.size) != (1, 1, a.out)]
    double = dtype is torch.float64
    wide = torch.float64 if double else torch.float32
    # Sums and tags after each pass but the last: bytes per lead, and the type of the tags.
    between: list[tuple[int, torch.dtype]] = []
    for k in walked[:-1]:
        taps = prod(kernels[k + 1 :])
        tag = torch.uint8 if taps < 255 else torch.int16
        if taps >= 2**15:
            return None
        between.append((n_c * prod(sizes[: k + 1]) * prod(outs[k + 1 :]), tag))
    n_leads = leads[0] * leads[1]
    bytes_each = sum(n * (wide.itemsize + tag.itemsize) for n, tag in between)
    each = max(1, min(n_leads, tuning.WALK_SCRATCH // max(1, bytes_each)))
    each = -(-n_leads // -(-n_leads // each))
    runs: list[list[Prepared]] = []
    for lead in range(0, n_leads, each):
        n = min(each, n_leads - lead)
        runs.append([])
        for k in walked:
            first, last = k == walked[0], k == walked[-1]
            inner, outer = n_c * prod(outs[k + 1 :]), prod(sizes[:k])
            memory = (n * outer, inner, first * lead * outer, last * lead * outer)
            how = (prod(kernels[k + 1 :]), first, last)
            compute = tl.float64 if double else tl.float32
            runs[-1].append(walk(axes[k], memory, how, compute, layout.int64, itemsize))

    def launch(grad: Tensor, offsets: Tensor, result: Tensor) -> None:
        scratch: list[Tensor] = []
        for n, tag in between:
            scratch.append(torch.empty(n * each, dtype=wide, device=result.device))
            scratch.append(torch.empty(n * each, dtype=tag, device=result.device))
        arrays = (grad, offsets, *scratch, result, result)
        for passes in runs:
            for p, run in enumerate(passes):
                run(*arrays[2 * p : 2 * p + 4])

    return launch


def walk(
    axis: AxisPlan,
    memory: tuple[int, int, int, int],
    how: tuple[int, bool, bool],
    compute: Any,
    int64: bool,
    itemsize: int,
) -> Prepared:
    """One pass over (leads, inner) from its first lead in both arrays on.

    `how`: the number of taps along the axes that follow, and whether this is the first and the last pass.
    """
    leads, inner, src_lead, dst_lead = memory
    lanes = leads * inner
    # Chunks read the outputs between them twice.
    wanted = min(-(-tuning.WALK_COLUMNS // lanes), axis.size // (2 * max(16, axis.kernel)))
    chunk = -(-axis.size // max(1, wanted) // 8) * 8
    chunks = -(-axis.size // chunk)
    block = Block(axis.kernel, axis.stride, -axis.origin, *how, STEP=tuning.WALK_AHEAD, LANES=tuning.THREADS)
    arguments = (
        *(lanes, inner, magic(inner), axis.out, axis.size, chunk, chunks, src_lead, dst_lead),
        constant(block),
        constant(Memory(False, 1, int64)),
        constant(Gather(True, False, 0, compute)),
    )
    grid = -(-lanes // tuning.THREADS) * chunks
    return launcher(walk_backward_kernel, grid, arguments, tuning.THREADS // 32, itemsize < 16)
