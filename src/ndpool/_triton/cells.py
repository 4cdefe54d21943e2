"""Which inputs of a plane are in the same windows: cells, as tables for the backward that writes them.

Called by `backward`, which says where windows have their gradients.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ndpool._triton.kernels.cells_backward import cells_backward_kernel
from ndpool._triton.launch import Launch, containing, launcher, packed, run_starts
from ndpool._triton.memory import Walk, next_power, widest
from ndpool.geometry import AxisPlan

_MOST = 256  # cells that a byte can number


def _runs(axis: AxisPlan) -> tuple[Any, Any, Any, Any]:
    """The number of each input's run, and of every run the first window, the one behind the last."""
    begins = run_starts(axis)
    firsts, counts, _, _ = containing(axis, tabled=True)
    numbers = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, axis.size]))
    return numbers, firsts[begins], (firsts + counts)[begins], axis.windows()[1]


@lru_cache(128)
def _tables(
    axes: tuple[AxisPlan, ...], strides: tuple[int, ...], copies: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, int, int] | None:
    """Where the windows of cells have their gradients, their divisors, and which cells elements are in."""
    runs = [_runs(axis) for axis in axes]
    shape = [len(firsts) for _, firsts, _, _ in runs]
    most = [int((ends - firsts).max(initial=1)) for _, firsts, ends, _ in runs]
    if prod(shape) > _MOST or prod(most) > 8:
        return None
    # Tables have one size whatever the input's: with overlaps, the most that so many windows may need.
    n_cells, n_windows = prod(shape), prod(most)
    if n_windows > 1:
        n_cells = max(n_cells, min(_MOST, prod(2 * axis.out - 1 for axis in axes)))
        n_windows = max(next_power(n_windows), min(8, prod(min(2, axis.out) for axis in axes)))
    windows = np.full((n_windows, next_power(n_cells)), -1, np.int64)
    shares = np.ones_like(windows)
    for cell, at in enumerate(product(*map(range, shape))):
        held = [range(f[k], e[k]) for (_, f, e, _), k in zip(runs, at, strict=True)]
        for m, outs in enumerate(product(*held)):
            windows[m, cell] = sum(o * s for o, s in zip(outs, strides, strict=True))
            shares[m, cell] = prod(int(n[o]) for (_, _, _, n), o in zip(runs, outs, strict=True))
    numbers = [ids for ids, _, _, _ in runs]
    flat = ((numbers[0][:, None, None] * shape[1] + numbers[1][:, None]) * shape[2] + numbers[2]).ravel()
    pitch = -(-(len(flat) + copies) // 16)
    cells = np.zeros((copies, pitch * 16), np.uint8)
    for k in range(copies):
        cells[k, : len(flat) - k] = flat[k:]
    given, by = (torch.from_numpy(a.astype(np.int32)).to(device) for a in (windows, shares))
    return given, by, torch.from_numpy(cells).to(device), n_windows, pitch


def by_cells(
    axes: tuple[AxisPlan, ...],
    w: Walk,
    itemsize: int,
    by: int,
    common: dict[str, Any],
    device: torch.device,
) -> Launch | None:
    """What writes the gradient of sums cell by cell; None where planes are not packed or have too many."""
    plane, planes = prod(a.size for a in axes), w.sizes[1] * w.sizes[2]
    if not packed(axes, w) or not 2**9 <= plane <= 2**16 or itemsize > 8 or w.big:
        return None
    vec = widest(itemsize)
    found = _tables(axes, w.narrow[3:], vec, device)
    if found is None:
        return None
    windows, shares, cells, most, pitch = found
    numbers: list[Any] = [plane, pitch, w.narrow[1], by, 1 / by]
    constants = {key: common[key] for key in ("DIVIDE", "COMPUTE", "WIDE")} | {
        "CELLS": windows.shape[1],
        "MOST": most,
        "VEC": vec,
        "BLOCK": 512,
        "EDGES": plane % vec > 0,
        "num_warps": 4,
    }
    return launcher(cells_backward_kernel, planes, numbers, constants, [windows, shares, cells], True)
