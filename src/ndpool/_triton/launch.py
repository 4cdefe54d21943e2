"""What launchers share: compute types, window tables in device memory, and the launch itself.

Sizes are run-time arguments: a new size does not compile a new kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf, prod
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from ndpool import _record
from ndpool._triton import tuning
from ndpool._triton.driver import starter
from ndpool._triton.kernels.indexing import (
    USE_PDL,
    Bounds,
    Lanes,
    Memory,
    Programs,
    Strides,
    Window,
)
from ndpool._triton.memory import LIMIT, Layout
from ndpool.geometry import AxisPlan, Plan

Launch = Callable[..., None]
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # None in a PyTorch without CUDA
MAX, SUM, SQUARES = 0, 2, 3  # as in `reductions`: an L2 norm is the root of a sum of squares
FAST_MAX = 4  # as in `kernels.reducers`: a maximum without the order of zeros
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
    """Type in which a kernel computes: float32 for half types, 64 bits for sums of integers."""
    if dtype.is_floating_point:
        return tl.float64 if torch.float64 in (dtype, result) else tl.float32
    if not sums:
        return _WHOLE[dtype]
    if result.is_floating_point:
        return tl.float64
    return tl.uint64 if dtype is torch.uint64 else tl.int64


def identity(dtype: torch.dtype, op: int) -> float | int:
    """Identity of the reduction: 0 for sums, else the value that every element beats or equals."""
    if op in (SUM, SQUARES):
        return 0
    if dtype.is_floating_point:
        return inf if op else -inf
    ends = torch.iinfo(dtype)
    return ends.max if op else ends.min


@lru_cache(128)
def tables(axis: AxisPlan, device: torch.device) -> tuple[Tensor, Tensor]:
    """First inputs and numbers of taps of all windows, in device memory."""
    a, b = (_on(device, axis, t.copy()) for t in axis.windows())
    return a, b


def _on(device: torch.device, axis: AxisPlan, table: Any) -> Tensor:
    """The table in device memory, as narrow as the axis allows."""
    return torch.from_numpy(table).to(torch.int64 if axis.size > LIMIT else torch.int32).to(device)


@lru_cache(128)
def window_table(axis: AxisPlan, device: torch.device) -> Tensor:
    """`AxisPlan.table` in device memory."""
    return _on(device, axis, axis.table())


@lru_cache(128)
def containing(axis: AxisPlan, tabled: bool) -> tuple[Any, Any, int | None, int | None]:
    """Outputs that contain each input: tables of the first and of their number, then period and spacing.

    The tables of a regular axis repeat with its stride (`AxisPlan.phases`). With `tabled`, and for irregular
    axes, they have one entry per input and the period is None. A spacing of 1 is None, too.
    """
    _check_shared(axis)
    if tabled or not axis.regular:
        return *axis.transposed().windows(), None, None
    firsts, counts, spacing = axis.trimmed().phases()
    return firsts, counts, axis.stride, spacing if axis.step > 1 else None


@lru_cache(128)
def input_table(axis: AxisPlan, device: torch.device) -> tuple[Tensor, list[int]]:
    """`AxisPlan.transposed_table` in device memory; then the step, and what comes with the table."""
    _check_shared(axis)
    table, *spacing = axis.transposed_table()
    return _on(device, axis, table), [axis.step, *spacing]


def _check_shared(axis: AxisPlan) -> None:
    if axis.starts is not None and axis.starts.ndim != 1:
        raise ValueError("ndpool: a backward pass needs windows that all planes share")


@lru_cache(128)
def run_starts(axis: AxisPlan) -> Any:
    """First inputs of runs that are contained in the same outputs."""
    firsts, counts, _, _ = containing(axis, tabled=True)
    change = (np.diff(counts) != 0) | ((np.diff(firsts) != 0) & (counts[1:] > 0))
    return np.flatnonzero(np.r_[True, change])


@lru_cache(128)
def runs(axis: AxisPlan, device: torch.device) -> Tensor:
    """Start of each run of inputs that are contained in the same outputs, and the end of the last run."""
    # Runs of at most 64 rows, so that there are enough programs.
    found = np.unique(np.concatenate([run_starts(axis), np.arange(0, axis.size, 64), [axis.size]]))
    return torch.from_numpy(found).to(torch.int32).to(device)


@lru_cache(1024)
def max_overlap(axis: AxisPlan) -> int:
    """The largest number of windows that contain one input."""
    return int(containing(axis, tabled=False)[1].max(initial=1))


def magic(by: int | None) -> int | None:
    """Magic number with which `indexing.divide` replaces a division of numbers below 2**31 by `by`."""
    if by is None:
        return None
    more = max(0, by - 1).bit_length()
    return 2**32 if by > LIMIT else ((1 << (31 + more)) // by + 1) | (more + 1) << 32


def optional(condition: bool, *values: Any) -> list[Any]:
    """The values if the condition holds, else None for each: the kernel then drops the argument."""
    return [value if condition else None for value in values]


def lanes_of(n_lanes: int, n_c: int, n_w: int, layout: Layout, strips: int | None = None) -> Lanes:
    """The number of lanes and the sizes that split it; with `strips`, lanes are numbered by these, too."""
    counts = (*optional(layout.channels, n_c), n_w, strips, *optional(layout.leads > 1, layout.sizes[1]))
    return Lanes(n_lanes, *counts, *map(magic, counts))


def rows_are_short(layout: Layout, n_c: int, n_w: int, most: int | None = None) -> bool:
    """Whether a row has so few lanes that the next lanes should take the next rows, not the next plane."""
    planes, pitch, row = layout.sizes[1], layout.input_strides[1], layout.input_strides[4]
    return n_c * n_w <= (tuning.SHORT_LANES if most is None else most) and (planes == 1 or pitch > row)


def programs_of(strips: int | None, d: int | None) -> Programs:
    """What splits the number of a program."""
    return Programs(strips, d, magic(strips), magic(d))


def strides_of(strides: Sequence[int], layout: Layout, rows: bool = False) -> Strides:
    """The strides that a kernel needs; with `rows`, those along rows are known to be 1."""
    c, lead, outer, d, h, w = strides
    found = (*optional(layout.channels, c), lead, *optional(layout.leads > 1, outer), d, h)
    return Strides(*found, *optional(not rows, w))


def memory_of(layout: Layout) -> Memory:
    """Compile-time constants that describe a layout."""
    return constant(Memory(layout.channels, layout.leads, layout.int64))


def window_of(axes: tuple[AxisPlan, ...]) -> Window:
    """Compile-time constants that describe regular windows."""
    each = (tuple(getattr(a, name) for a in axes) for name in ("kernel", "stride", "origin"))
    return constant(Window(*(value for values in each for value in values)))


def bounds_of(axes: tuple[AxisPlan, ...], needed: bool) -> Bounds:
    """Where windows are counted."""
    return Bounds(*optional(needed, *(b for a in axes for b in a.bounds)))


Group = TypeVar("Group", bound=tuple[Any, ...])


def constant(group: Group) -> Group:
    """The group as compile-time constants."""
    return group._make(map(tl.constexpr, group))  # type: ignore[attr-defined,no-any-return]


def three_axes(plan: Plan) -> tuple[AxisPlan, ...]:
    """The axes of a plan, preceded by axes of size 1 up to three."""
    return (_TRIVIAL,) * (3 - len(plan.axes)) + plan.axes


def uniform_divisor(axes: tuple[AxisPlan, ...]) -> int:
    """The divisor of every window, or 0 if they differ."""
    share = 1
    for a in axes:
        if not a.regular or a.origin < a.bounds[0] or a.end > a.bounds[1]:
            return 0
        share *= a.kernel
    return share


def is_dense(axes: tuple[AxisPlan, ...]) -> bool:
    """Whether windows are regular, have no dilation, and every tap lies inside the input in some window."""
    return all(a.regular and a.step == 1 and a.tap_range() == (0, a.kernel) for a in axes)


def divide_by(axes: tuple[AxisPlan, ...], divides: bool, divisor: int) -> tuple[int, int]:
    if not divides:
        return 0, 1
    by = divisor or uniform_divisor(axes)
    return (1, by) if by else (2, 1)


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


def folds_rows(axes: tuple[AxisPlan, ...], least: int) -> bool:
    """Whether windows have very many taps, overlap little and have no padding."""
    shared = prod(max(1, a.kernel * a.out // a.size) for a in axes)
    return shared == 1 and prod(a.kernel for a in axes) >= least and unpadded(axes)


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
    """Merge the pooled axes into one, if windows are whole planes whose axes are contiguous to each other."""
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


@lru_cache(1024)
def simplified(plan: Plan, axes: tuple[int, ...], trims: bool, size_1: bool) -> tuple[Plan, tuple[int, ...]]:
    """The plan without axes along which every window is one element: they become leading axes.

    With `trims`, taps that are padding in every window are left out, which changes divisors. With `size_1`,
    only axes of size 1 are left out: others count in the index of an element. Kernels for irregular windows
    share work along such axes, and rows are read in vectors, so that these stay, too.
    """
    if any(a.starts is not None and a.starts.ndim > 1 for a in plan.axes):
        return plan, axes  # planes are numbered
    size_1 = size_1 or not all(a.regular for a in plan.axes)
    found: list[tuple[AxisPlan, int]] = []
    for a, at in zip(plan.axes, axes, strict=True):
        if trims:
            a = a.trimmed()
        if a.regular and a.kernel == 1 < a.step:
            a = replace(a, step=1)
        single = a.regular and a.kernel == 1 and a.origin == 0 and a.out == a.size
        if not single or (a.size > 1 and (size_1 or a.stride > 1 or at == axes[-1])):
            found.append((a, at))
    if not found:
        return plan, axes
    kept, places = zip(*found, strict=True)
    return Plan(list(kept)), places


class Prepared:
    """A kernel with all arguments except its arrays; once compiled it bypasses Triton's cache look-up.

    The look-up would find the same kernel: the integers are fixed and aligned addresses stay aligned.
    Addresses are passed as integers, which need no inspection.
    """

    __slots__ = (
        "_again",
        "_arguments",
        "_grid",
        "_kernel",
        "_options",
        "direction",
        "name",
        "ready",
        "start",
    )

    def __init__(self, kernel: Any, grid: int, arguments: tuple[Any, ...], warps: int, again: bool) -> None:
        self._kernel, self._grid, self._again, self._arguments = kernel, (grid, 1, 1), again, arguments
        self._options = {"num_warps": warps} | ({"launch_pdl": True} if USE_PDL.value else {})
        self.name = kernel.__name__.removesuffix("_kernel")
        self.direction = "backward" if self.name.endswith("backward") else "forward"
        self.ready = False
        self.start: Any = None  # (stream, addresses of the arrays) -> None, once ready

    @property
    def programs(self) -> int:
        """The number of programs."""
        return self._grid[0]

    def constants(self) -> dict[str, Any]:
        """The compile-time constants by name."""
        groups = (group for group in self._arguments if isinstance(group, tuple))
        return {
            name: value.value
            for group in groups
            for name, value in group._asdict().items()  # type: ignore[attr-defined]
            if isinstance(value, tl.constexpr)
        }

    def __call__(self, x: Tensor, y: Tensor, extra: Tensor, *more: Tensor) -> None:
        if _record.recording:
            kind = self.name.removesuffix("_forward").removesuffix("_backward")
            _record.note_kernel(self.direction, kind, str(x.device))
        if not self.ready and not self._prepare(x, y, extra, *more):
            return
        addresses: tuple[int, ...] = (x.data_ptr(), y.data_ptr(), extra.data_ptr())
        if more:
            addresses += tuple(t.data_ptr() for t in more)
        self.start(current_stream(x.get_device()), *addresses)

    def _prepare(self, *arrays: Tensor) -> bool:
        """Compile the kernel and set `start`. Return False if Triton has run the kernel instead.

        Unaligned arrays may need another kernel next time, and the interpreter has nothing to compile.
        """
        arguments, options = self._arguments, self._options
        if not isinstance(self._kernel, JITFunction):
            self._kernel[self._grid](*arrays, *map(_interpreted, arguments), **options)
            return False
        made = self._kernel.run(*arrays, *map(sample, arguments), grid=self._grid, warmup=True, **options)
        if made is None:  # a hook has prevented the compilation, as checks without a device do
            if arrays[0].is_cuda:
                raise RuntimeError(f"ndpool: Triton has not compiled {self._kernel.__name__}")
            return False
        values = tuple(t.data_ptr() if isinstance(t, Tensor) else t for t in arguments)
        public = _public(made, self._grid, values)
        if not self._again:
            public(current_stream(arrays[0].get_device()), *(t.data_ptr() for t in arrays))
            return False
        self.start = starter(made, self._grid, values, len(arrays)) or public
        self.ready = True
        return True


def sample(value: Any) -> Any:
    """A stand-in of the same type for the compiler, which would specialise kernels for 1 and multiples of 16.

    Whatever the compiler must know is a constant; tensors, None and constants stand for themselves.
    """
    if isinstance(value, tuple):
        return value._make(map(sample, value))  # type: ignore[attr-defined]  # a group of arguments
    if type(value) is int:
        return 3 if -(2**31) <= value < 2**31 else 2**40 + 3
    return value


def _interpreted(value: Any) -> Any:
    """Constants as the interpreter takes them: plain values that it does not turn into tensors."""
    if isinstance(value, tuple) and isinstance(value[0], tl.constexpr):
        names = value._fields  # type: ignore[attr-defined]  # a group of arguments
        return SimpleNamespace(**{name: one.value for name, one in zip(names, value, strict=True)})
    return value


def _public(made: Any, grid: tuple[int, int, int], values: tuple[Any, ...]) -> Callable[..., None]:
    """Start a compiled kernel by Triton's own launcher."""

    def start(stream: int, *addresses: int) -> None:
        made[grid](*addresses, *values, stream=stream)

    return start


def launcher(kernel: Any, grid: int, arguments: Sequence[Any], warps: int, aligned: bool) -> Prepared:
    """Bind a kernel to its grid and arguments; on aligned arrays the compiled kernel is reused."""
    return Prepared(kernel, grid, tuple(arguments), warps, aligned)


def lanes_for(n_lanes: int, most: int) -> int:
    """Lanes per program: `most`, or one warp if there are fewer lanes in total."""
    return most if n_lanes >= most else 32


def launches_dependents(grid: int, moved: int) -> bool:
    """Whether programs that move so many bytes should start the next kernel early, which delays them."""
    return grid < 2048 or moved >= 2**13


def whole_planes(axes: tuple[AxisPlan, ...], layout: Layout) -> bool:
    """Whether windows are whole planes of contiguous memory, as `merged` leaves them."""
    d, h, last = axes
    one = d is h is _TRIVIAL and last.out == 1 and last.regular and last.kernel == last.size
    return (
        one
        and last.origin == 0
        and not layout.channels
        and layout.input_strides[5] == 1
        and 16 <= last.size < LIMIT // 2
    )


def packed(axes: tuple[AxisPlan, ...], layout: Layout) -> bool:
    """Whether the planes of the input and their rows are contiguous, without gaps."""
    inner = [prod(a.size for a in axes[k + 1 :]) for k in range(3)]
    rows = all(a.size == 1 or s == n for a, s, n in zip(axes, layout.input_strides[3:], inner, strict=True))
    return (
        rows
        and not layout.channels
        and layout.leads < 2
        and layout.input_strides[1] in (0, prod(a.size for a in axes))
    )
