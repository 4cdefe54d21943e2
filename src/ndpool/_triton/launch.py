"""What the launchers share: compute types, window tables in device memory, and the launch itself.

Sizes travel as plain arguments: another size compiles nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf, prod
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ndpool import _explain
from ndpool._triton.kernels.lanes import EARLY
from ndpool._triton.memory import LIMIT, Walk
from ndpool.geometry import AxisPlan, Plan

Launch = Callable[..., None]
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # PyTorch without CUDA has none
THREADS = 128
MAX, SUM, SQUARES = 0, 2, 3  # as `reductions` numbers them: a norm is the root of a sum of squares
LARGEST = 4  # as the kernels' `reducers` do: a maximum, by other means
_TRIVIAL = AxisPlan(1, 1, 1, 1, 1, 0, (0, 1))
_WHOLE = {
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.uint16: tl.uint16,
    torch.int32: tl.int32,
    torch.uint32: tl.uint32,
    torch.int64: tl.int64,
    torch.uint64: tl.uint64,
}


def compute_type(dtype: torch.dtype, result: torch.dtype, sums: bool) -> Any:
    """What a kernel computes in: the type itself, float32 for halves; sums of integers have 64 bits."""
    if dtype.is_floating_point:
        return tl.float64 if torch.float64 in (dtype, result) else tl.float32
    if not sums:
        return _WHOLE[dtype]
    if result.is_floating_point:
        return tl.float64
    return tl.uint64 if dtype is torch.uint64 else tl.int64


def worst(dtype: torch.dtype, op: int) -> float | int:
    """What no element loses to; 0 for sums."""
    if op in (SUM, SQUARES):
        return 0
    if dtype.is_floating_point:
        return inf if op else -inf
    ends = torch.iinfo(dtype)
    return ends.max if op else ends.min


@lru_cache(128)
def tables(axis: AxisPlan, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the windows of an axis begin and how many taps they have, in the device's memory."""
    kind = torch.int64 if axis.size > LIMIT else torch.int32
    a, b = (torch.from_numpy(t.copy()).to(kind).to(device) for t in axis.windows())
    return a, b


@lru_cache(128)
def containing(axis: AxisPlan, tabled: bool) -> tuple[Any, Any, int | None, int | None]:
    """The outputs that contain each input: tables of the first and of their number, period, and spacing.

    The tables of a regular axis repeat with its stride (`AxisPlan.phases`). With `tabled`, and for irregular
    axes, they have an entry for every input; the period is then None. A spacing of 1 is None too.
    """
    if axis.starts is not None and axis.starts.ndim != 1:
        raise ValueError("ndpool: a backward pass needs windows that all planes share")
    if tabled or not axis.regular:
        return *axis.transposed().windows(), None, None
    front, kernel = axis.tap_range()
    inside = replace(axis, kernel=kernel, origin=axis.origin + front * axis.step)
    firsts, counts, spacing = inside.phases()
    return firsts, counts, axis.stride, spacing if axis.step > 1 else None


@lru_cache(128)
def transposed_tables(axis: AxisPlan, tabled: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables of `containing` in the device's memory."""
    kind = torch.int64 if axis.size > LIMIT else torch.int32
    firsts, counts, _, _ = containing(axis, tabled)
    a, b = (torch.from_numpy(t.copy()).to(kind).to(device) for t in (firsts, counts))
    return a, b


@lru_cache(128)
def run_starts(axis: AxisPlan) -> Any:
    """The first inputs of runs that are contained in the same outputs."""
    firsts, counts, _, _ = containing(axis, tabled=True)
    change = (np.diff(counts) != 0) | ((np.diff(firsts) != 0) & (counts[1:] > 0))
    return np.flatnonzero(np.r_[True, change])


@lru_cache(128)
def runs(axis: AxisPlan, device: torch.device) -> Tensor:
    """Where runs of inputs that are in the same windows begin, and where the last ends."""
    # At most 64 rows stay together, or too few programs would write many.
    found = np.unique(np.concatenate([run_starts(axis), np.arange(0, axis.size, 64), [axis.size]]))
    return torch.from_numpy(found).to(torch.int32).to(device)


@lru_cache(1024)
def max_overlap(axis: AxisPlan) -> int:
    """How many windows contain one input, at most."""
    return int(containing(axis, tabled=False)[1].max(initial=1))


def magic(by: int) -> int:
    """What numbers below 2**31 are multiplied with and shifted by in place of a division by `lanes.over`."""
    more = max(0, by - 1).bit_length()
    return 2**32 if by > LIMIT else ((1 << (31 + more)) // by + 1) | (more + 1) << 32


def needed(condition: bool, *values: Any) -> list[Any]:
    """The values, or None for each that a kernel does without: it then takes no place among the arguments."""
    return [value if condition else None for value in values]


def walk_numbers(
    n_lanes: int, n_c: int, n_w: int, w: Walk, *parts: int | None, lanes: int = LIMIT
) -> list[int | None]:
    """How programs of so many lanes are numbered, and what divides them; the parts come before lanes."""
    counts = (*needed(w.channels, n_c), *needed(w.leads > 0, n_w), *needed(w.leads > 1, w.sizes[1]))
    magics = (n if n is None else magic(n) for n in (*counts, *parts))
    return [*needed(n_lanes % lanes > 0, n_lanes), *counts, *magics]


def walk_kind(w: Walk) -> dict[str, Any]:
    """What kernels are told of a walk while they compile."""
    return {"WIDE": w.big, "CHANNELS": w.channels, "LEADS": w.leads}


def walk_strides(strides: Sequence[int], w: Walk) -> list[int | None]:
    """The strides that a walk needs: of channels, two leading axes and three pooled ones."""
    c, first, second, *pooled = strides
    return [*needed(w.channels, c), *needed(w.leads > 0, first), *needed(w.leads > 1, second), *pooled]


def padded(plan: Plan) -> tuple[AxisPlan, ...]:
    """Three axes, the missing ones in front of one element."""
    return (_TRIVIAL,) * (3 - len(plan.axes)) + plan.axes


def even_share(axes: tuple[AxisPlan, ...]) -> int:
    """The divisor that all windows share, or 0."""
    share = 1
    for a in axes:
        if not a.regular or a.origin < a.bounds[0] or a.end > a.bounds[1]:
            return 0
        share *= a.kernel
    return share


def strips(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether the windows are alike, without holes, and none of their taps was cropped."""
    return all(a.regular and a.step == 1 and a.tap_range() == (0, a.kernel) for a in axes)


def divide_by(axes: tuple[AxisPlan, ...], divides: bool, divisor: int) -> tuple[int, int]:
    if not divides:
        return 0, 1
    by = divisor or even_share(axes)
    return (1, by) if by else (2, 1)


@lru_cache(1024)
def all_of(size: int) -> Plan:
    """One window over a whole axis."""
    return Plan([AxisPlan(size, 1, size, size, 1, 0, (0, size))])


def merged(
    plan: Plan,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    out_shape: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> tuple[Any, ...]:
    """The same with one pooled axis, where windows are planes whose axes follow each other in memory."""
    whole = all(
        a.out == 1 and a.regular and (a.kernel, a.origin, a.step) == (a.size, 0, 1) for a in plan.axes
    )
    if len(axes) == 1 or not whole or any(stride[a] != stride[b] * shape[b] for a, b in pairwise(axes)):
        return plan, axes, shape, stride, out_shape, out_stride
    kept = [a for a in range(len(shape)) if a not in axes[:-1]]
    sizes = list(shape)
    sizes[axes[-1]] = prod(shape[a] for a in axes)
    parts = (tuple(values[a] for a in kept) for values in (sizes, stride, out_shape, out_stride))
    return all_of(sizes[axes[-1]]), (kept.index(axes[-1]),), *parts


class Prepared:
    """A kernel with all but its three arrays; once compiled it is called without Triton's own look-up.

    What that look-up finds does not change: the integers stay, and aligned addresses remain aligned. They are
    handed over as integers, about which nothing is asked.
    """

    __slots__ = ("_again", "_arguments", "_grid", "_kernel", "direction", "name", "ready", "start")

    def __init__(
        self, kernel: Any, grid: int, arguments: tuple[Any, ...], constants: dict[str, Any], again: bool
    ) -> None:
        self._kernel, self._grid, self._again = kernel, (grid, 1, 1), again
        self._arguments = arguments, constants | ({"launch_pdl": True} if EARLY.value else {})
        self.name = kernel.__name__.removesuffix("_kernel")
        self.direction = "backward" if self.name.endswith("backward") else "forward"
        self.ready = False
        self.start: Any = None  # stream and three addresses -> None, once ready

    def __call__(self, x: Tensor, y: Tensor, extra: Tensor) -> None:
        if _explain.recording:
            kind = self.name.removesuffix("_forward").removesuffix("_backward")
            _explain.note_kernel(self.direction, kind, str(x.device))
        if self.ready:
            self.start(current_stream(x.get_device()), x.data_ptr(), y.data_ptr(), extra.data_ptr())
            return
        arguments, constants = self._arguments
        made = self._kernel[self._grid](x, y, extra, *arguments, **constants)
        if self._again and made is not None:
            before, run = _runner(made)
            fixed = (
                *(t.data_ptr() if isinstance(t, Tensor) else t for t in arguments),
                *(constants[name] for name in self._kernel.arg_names if name in constants),
            )
            places = self._grid

            def start(stream: int, x: int, y: int, extra: int) -> None:
                run(*places, stream, *before, x, y, extra, *fixed)

            self.start, self.ready = start, True


def launcher(
    kernel: Any,
    grid: int,
    numbers: list[Any],
    constants: dict[str, Any],
    tables: Sequence[Tensor | None],
    aligned: bool,
) -> Prepared:
    """The kernel on a grid with its tables and numbers; on aligned arrays it remembers what was compiled."""
    return Prepared(kernel, grid, (*tables, *numbers), constants, aligned)


def _runner(made: Any) -> tuple[tuple[Any, ...], Callable[..., None]]:
    """The function that starts a compiled kernel, and what it takes between stream and arguments.

    Versions of Triton that were looked at have a short way; of others it is the one for everybody.
    """
    run = made.run
    if triton.__version__.startswith("3.6.") and not run.global_scratch_size + run.profile_scratch_size:
        kept = (made.function, run.launch_cooperative_grid, run.launch_pdl, None, None, made.packed_metadata)
        return (*kept, None, None, None), run.launch

    def call(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        made[x, y, z](*args, stream=stream)

    return (), call


def lanes_for(n_lanes: int, most: int) -> int:
    """How many lanes a program has: as many as given, or a warp where there are fewer in all."""
    return most if n_lanes >= most else 32


def calls_next(grid: int, moved: int) -> bool:
    """Whether programs that move so many bytes should call the next kernel in, which slows their start."""
    return grid < 2048 or moved >= 2**13


def axis_numbers(a: AxisPlan) -> list[int]:
    """An axis as the kernels for any window take it: taps that never meet the input are cut off."""
    front, kernel = a.tap_range()
    return [a.size, a.out, kernel, a.stride, a.step, a.origin + front * a.step, a.kernel, front, *a.bounds]


def whole_planes(axes: tuple[AxisPlan, ...], w: Walk) -> bool:
    """Whether windows are planes of contiguous memory; `merged` made one axis of them."""
    d, h, last = axes
    one = d is h is _TRIVIAL and last.out == 1 and last.regular and last.kernel == last.size
    return one and last.origin == 0 and not w.channels and w.wide[5] == 1 and 16 <= last.size < LIMIT // 2


def packed(axes: tuple[AxisPlan, ...], w: Walk) -> bool:
    """Whether the planes of the wide array follow each other in memory, and their rows too."""
    inner = [prod(a.size for a in axes[k + 1 :]) for k in range(3)]
    rows = all(a.size == 1 or s == n for a, s, n in zip(axes, w.wide[3:], inner, strict=True))
    return rows and not w.channels and w.leads < 2 and w.wide[1] in (0, prod(a.size for a in axes))
