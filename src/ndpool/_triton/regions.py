"""Regions of inputs that are contained in the same windows, as tables for the backward of sums.

Called by `backward`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ndpool._triton import tuning
from ndpool._triton.kernels.indexing import Division
from ndpool._triton.kernels.reducers import Gather
from ndpool._triton.kernels.region_backward import Block, region_backward_kernel
from ndpool._triton.launch import Launch, constant, containing, launcher, memory_of, packed, run_starts
from ndpool._triton.memory import Layout, next_power, widest
from ndpool.geometry import AxisPlan


def _runs(axis: AxisPlan) -> tuple[Any, Any, Any, Any]:
    """Run number of each input; first window and end of the windows of each run; taps of each window."""
    begins = run_starts(axis)
    firsts, counts, _, _ = containing(axis, tabled=True)
    numbers = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, axis.size]))
    return numbers, firsts[begins], (firsts + counts)[begins], axis.windows()[1]


@lru_cache(128)
def _tables(
    axes: tuple[AxisPlan, ...], strides: tuple[int, ...], copies: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, int, int] | None:
    """For each region the addresses and divisors of its windows, and the region of each element."""
    runs = [_runs(axis) for axis in axes]
    shape = [len(firsts) for _, firsts, _, _ in runs]
    most = [int((ends - firsts).max(initial=1)) for _, firsts, ends, _ in runs]
    if prod(shape) > tuning.REGIONS[1] or prod(most) > tuning.REGION_WINDOWS:
        return None
    # Few sizes of tables, which depend on the output size only: new sizes should not compile new kernels.
    n_regions, n_windows = prod(shape), prod(most)
    if n_windows > 1:
        n_regions = max(n_regions, min(tuning.REGIONS[1], prod(2 * axis.out - 1 for axis in axes)))
        n_windows = max(next_power(n_windows), min(8, prod(min(2, axis.out) for axis in axes)))
    windows = np.full((n_windows, max(tuning.REGIONS[0], next_power(n_regions))), -1, np.int64)
    shares = np.ones_like(windows)
    for region, at in enumerate(product(*map(range, shape))):
        contain = [range(f[k], e[k]) for (_, f, e, _), k in zip(runs, at, strict=True)]
        for m, outs in enumerate(product(*contain)):
            windows[m, region] = sum(o * s for o, s in zip(outs, strides, strict=True))
            shares[m, region] = prod(int(n[o]) for (_, _, _, n), o in zip(runs, outs, strict=True))
    numbers = [ids for ids, _, _, _ in runs]
    flat = ((numbers[0][:, None, None] * shape[1] + numbers[1][:, None]) * shape[2] + numbers[2]).ravel()
    pitch = -(-(len(flat) + copies) // 16)
    regions = np.zeros((copies, pitch * 16), np.uint8)
    for k in range(copies):
        regions[k, : len(flat) - k] = flat[k:]
    addresses, by = (torch.from_numpy(a.astype(np.int32)).to(device) for a in (windows, shares))
    return addresses, by, torch.from_numpy(regions).to(device), n_windows, pitch


def region_backward(
    axes: tuple[AxisPlan, ...],
    layout: Layout,
    itemsize: int,
    by: int,
    gather: Gather,
    device: torch.device,
) -> Launch | None:
    """Launcher for the gradient of sums, or None if planes have gaps, too many regions, or are too few."""
    plane, planes = prod(a.size for a in axes), layout.sizes[1] * layout.sizes[2]
    if not packed(axes, layout) or not 2**9 <= plane <= 2**16 or itemsize > 8 or layout.int64:
        return None
    vec = widest(itemsize)
    found = _tables(axes, layout.output_strides[3:], vec, device)
    if found is None:
        return None
    windows, shares, regions, most, pitch = found
    if planes < tuning.REGION_PLANES and plane + windows.numel() > tuning.REGION_FEW:
        return None
    arguments = (
        *(windows, shares, regions, plane, pitch, layout.output_strides[1]),
        Division(by, 1 / by),
        constant(Block(windows.shape[1], most, vec, tuning.REGION_BLOCK)),
        memory_of(layout),
        constant(gather),
    )
    return launcher(region_backward_kernel, planes, arguments, 4, True)
