"""Plans: the windows of a call as plain values, which frameworks and kernels read.

A plan has one `AxisPlan` per pooled axis. It can be cut to a range of outputs, transposed (for each input,
the outputs that contain it) and asked which element an offset stands for. The rules that make plans are in
`geometry`; a kernel never sees padding, ceil mode or output sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Window(NamedTuple):
    """One window along one axis, clipped to the input, and its share of the divisor."""

    start: int
    taps: int
    step: int
    share: int


@dataclass(frozen=True, eq=False, slots=True)
class AxisPlan:
    """The windows along one axis.

    Tap t of window o is the input at origin + o*stride + t*step; taps outside [0, size) are padding. On an
    irregular axis `starts` and `counts` give the first input and the number of taps of each window.
    """

    size: int
    out: int
    kernel: int  # taps of a full window; of the largest one on an irregular axis
    stride: int
    step: int
    origin: int
    bounds: tuple[int, int]  # taps at positions in [lo, hi) count towards the divisor
    starts: NDArray[np.int64] | None = None  # (out,), or (planes, out) where every plane has its own windows
    counts: NDArray[np.int64] | None = None
    counted: tuple[int, int] | None = None  # in a part of an axis, the `tap_range` of the whole

    @property
    def regular(self) -> bool:
        """Whether all windows follow from origin, stride and step."""
        return self.starts is None

    @property
    def end(self) -> int:
        """One past the last tap of the last window, on a regular axis."""
        return self.origin + (self.out - 1) * self.stride + (self.kernel - 1) * self.step + 1

    def window(self, o: int) -> Window:
        """The window of output `o`."""
        if self.starts is not None and self.counts is not None:
            taps = int(self.counts[..., o].flat[0])
            return Window(int(self.starts[..., o].flat[0]), taps, self.step, taps)
        first = self.origin + o * self.stride
        start, taps = self._clipped(first, 0, self.size)
        return Window(start, taps, self.step, self._clipped(first, *self.bounds)[1])

    def windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First inputs and numbers of taps of all windows, clipped to the input."""
        if self.starts is not None and self.counts is not None:
            return self.starts, self.counts
        first = self.origin + self.stride * np.arange(self.out, dtype=np.int64)
        lead = np.maximum(0, -(first // self.step))
        starts = first + lead * self.step
        ends = np.minimum(self.kernel - lead, -((starts - self.size) // self.step))
        return starts, np.maximum(0, ends)

    def _clipped(self, first: int, lo: int, hi: int) -> tuple[int, int]:
        """Start and number of the taps in [lo, hi) of the window that begins at `first`."""
        lead = max(0, -((first - lo) // self.step))
        start = first + lead * self.step
        return start, max(0, min(self.kernel - lead, -((start - hi) // self.step)))

    def tap_range(self) -> tuple[int, int]:
        """First and number of the taps that offsets count: those that lie inside the input in any window.

        Dilated windows keep all of their taps unless they are far wider than the input, because a window
        without an element stores one past its last tap. A part of an axis counts the taps of the whole: the
        order of additions depends on their number.
        """
        if self.counted is not None:
            return self.counted
        narrow = self.step > 1 and (self.kernel - 1) * self.step < 2 * self.size + 64
        if self.starts is not None or not self.out or narrow:
            return 0, self.kernel
        leading = -((self.origin + (self.out - 1) * self.stride) // self.step)
        front = min(self.kernel - 1, max(0, leading))
        end = min(self.kernel, max(front + 1, -((self.origin - self.size) // self.step)))
        return front, end - front

    def trimmed(self) -> AxisPlan:
        """The same windows without the taps that offsets do not count."""
        front, kernel = self.tap_range()
        if kernel == self.kernel:
            return self
        counted = None if self.counted is None else (0, kernel)
        return replace(self, kernel=kernel, origin=self.origin + front * self.step, counted=counted)

    def table(self) -> NDArray[np.int64]:
        """One row per window: first input, number of taps, number of the first tap, share of the divisor.

        Taps are numbered as offsets count them. A window without elements has the first tap that would come
        next.
        """
        if self.starts is not None and self.counts is not None:
            return np.stack([self.starts, self.counts, np.zeros_like(self.starts), self.counts], -1)
        inside, o = self.trimmed(), np.arange(self.out, dtype=np.int64)
        first = inside.origin + o * self.stride
        lead = np.clip(-(first // self.step), 0, inside.kernel - 1)
        start = first + lead * self.step
        taps = np.clip(-((start - self.size) // self.step), 0, inside.kernel - lead) * (start >= 0)
        first = self.origin + o * self.stride
        low, high = (np.clip(-((first - end) // self.step), 0, self.kernel) for end in self.bounds)
        return np.stack([start, taps, lead, np.maximum(1, high - low)], -1)

    def transposed_table(self) -> tuple[NDArray[np.int64], int, int]:
        """One row per input: first output that contains it, how many do, its tap in the first one, 0.

        Then the spacing of these outputs, and by how much the tap decreases from one to the next on a regular
        axis; on others taps follow from the first inputs of windows.
        """
        inside = self.trimmed()
        back = inside.transposed()
        firsts, counts = back.windows()
        i = np.arange(self.size, dtype=np.int64)
        if inside.starts is None:
            taps = (i - inside.origin - firsts * inside.stride) // inside.step
        else:
            taps = i - inside.starts[np.minimum(firsts, self.out - 1)]
        found = np.stack([firsts, counts, taps, np.zeros_like(i)], -1)
        return found, back.step, inside.stride * back.step // inside.step

    def divided(self, n: int) -> AxisPlan | None:
        """Each window as n adjacent ones; None where one of them would be empty."""
        starts, counts = self.windows()
        edges = starts[:, None] + counts[:, None] * np.arange(n + 1) // n
        sizes = np.diff(edges, axis=1)
        if sizes.min(initial=1) < 1:
            return None
        firsts = np.ascontiguousarray(edges[:, :-1], np.int64).ravel()
        return irregular(self.size, firsts, np.ascontiguousarray(sizes, np.int64).ravel())

    def cut(self, o0: int, o1: int) -> tuple[AxisPlan, slice]:
        """The plan of outputs o0 to o1, relative to the smallest slice of the input that they need."""
        if not 0 <= o0 < o1 <= self.out:
            raise ValueError(f"cut: outputs must be a range within 0..{self.out}; got {o0}..{o1}")
        if self.starts is not None and self.counts is not None:
            starts, counts = self.starts[..., o0:o1], self.counts[..., o0:o1]
            begin, end = int(starts.min()), int((starts + counts).max())
            size, moved = end - begin, starts - begin
            part = replace(self, size=size, out=o1 - o0, bounds=(0, size), starts=moved, counts=counts)
            return part, slice(begin, end)
        origin = self.origin + o0 * self.stride
        behind = self.size - 1 - (self.origin + (o1 - 1) * self.stride + (self.kernel - 1) * self.step)
        begin = _first_tap(origin, self.stride, self.step, o1 - o0)
        # The end is the beginning of the mirrored axis.
        end = self.size - _first_tap(behind, self.stride, self.step, o1 - o0)
        if begin >= end:
            begin = end = 0  # no window contains an element
        lo, hi = self.bounds
        bounds, counted = (lo - begin, hi - begin), self.tap_range()
        part = replace(
            self, size=end - begin, out=o1 - o0, origin=origin - begin, bounds=bounds, counted=counted
        )
        return part, slice(begin, end)

    def split(self, bounds: Sequence[int]) -> list[int]:
        """Bounds of ranges of outputs for ranges of inputs, from 0 to `size`; none of them is empty.

        Output `o` belongs where o*stride is: equal ranges stay equal, whatever the padding.
        """
        ends: Any
        if self.starts is not None:
            rows = self.starts.reshape(-1, self.out)[:1]  # where every plane has its own windows: the first's
            ends = np.searchsorted(rows[0], bounds[1:-1]).tolist() if len(rows) else []
        else:
            ends = [min(self.out, -(-end // self.stride)) for end in bounds[1:-1]]
        return sorted({0, *ends, self.out})

    def transposed(self) -> AxisPlan:
        """For each input the outputs whose windows contain it, as windows over the outputs.

        Window i of the result starts at the first such output; the others follow every `step` outputs, in
        increasing order, each containing input i at an earlier tap than the one before. The result is regular
        for stride 1 and a table otherwise.
        """
        if self.starts is None or self.counts is None:
            if self.stride == 1:
                reach = (self.kernel - 1) * self.step
                origin = -self.origin - reach
                return AxisPlan(self.out, self.size, self.kernel, 1, self.step, origin, (0, self.out))
            return self._transposed_table()
        i = np.arange(self.size, dtype=np.int64)
        starts, ends = (np.atleast_2d(t) for t in (self.starts, self.starts + self.counts))
        firsts, lasts = (
            np.stack([np.searchsorted(row, i, "right") for row in rows]).reshape(*self.starts.shape[:-1], -1)
            for rows in (ends, starts)
        )
        return irregular(self.out, firsts, lasts - firsts)

    def phases(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """For the first `stride` inputs of a regular axis the outputs that contain them, none left out.

        First outputs, numbers of outputs and their spacing, as if there were outputs on both sides: the first
        may be negative. Input i + n*stride is contained in the outputs n later than those of input i.
        """
        reach = self.origin + (self.kernel - 1) * self.step
        before = max(0, reach // self.stride)
        out = before + max(1, (self.stride - 1 - self.origin) // self.stride + 1)
        size, origin = min(self.size, self.stride), self.origin - before * self.stride
        back = replace(self, size=size, out=out, origin=origin).transposed()
        firsts, counts = back.windows()
        return firsts - before, counts, back.step

    def _transposed_table(self) -> AxisPlan:
        # Input i is tap t of output o where o*stride == i - origin - t*step: outputs in one residue class.
        reach = np.arange(self.size, dtype=np.int64) - self.origin
        common = gcd(self.stride, self.step)
        spacing = self.step // common
        low = np.maximum(-(((self.kernel - 1) * self.step - reach) // self.stride), 0)
        high = np.minimum(reach // self.stride, self.out - 1)
        if spacing > 1:
            inverse = pow(self.stride // common, -1, spacing)
            low += (reach // common % spacing * inverse - low) % spacing
        counts = np.maximum((high - low) // spacing + 1, 0)
        counts[reach % common != 0] = 0
        return irregular(self.out, np.where(counts > 0, low, 0), counts, spacing)


def irregular(
    size: int, starts: NDArray[np.int64], counts: NDArray[np.int64], step: int = 1, kernel: int | None = None
) -> AxisPlan:
    """Windows over `size` inputs from tables of their first inputs and numbers of taps."""
    starts.flags.writeable = counts.flags.writeable = False  # plans are shared
    if kernel is None:
        kernel = int(counts.max(initial=0))
    return AxisPlan(size, starts.shape[-1], kernel, 1, step, 0, (0, size), starts, counts)


class Plan:
    """The windows of a call: one `AxisPlan` per pooled axis."""

    __slots__ = ("axes", "core", "full", "out", "sizes", "taps")

    def __init__(self, axes: Sequence[AxisPlan], adaptive: bool = False) -> None:
        self.axes = tuple(axes)
        self.sizes = tuple(axis.size for axis in axes)
        self.out = tuple(axis.out for axis in axes)
        self.taps = prod(axis.kernel for axis in axes)
        self.full = adaptive or not all(axis.regular for axis in axes)  # no window is ever clipped
        self.core: Any = None  # the compiled form, filled in by `_native`

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.axes, self.full)  # the compiled form stays behind

    def transposed(self) -> Plan:
        """The plan of the backward pass: each window is the outputs that contain one input."""
        return Plan([axis.transposed() for axis in self.axes])


def positions(
    plan: Plan, offsets: Any, axes: tuple[int, ...], put: Callable[[NDArray[np.int64]], Any] = np.asarray
) -> Any:
    """Indices in the flattened plane of the taps that int64 `offsets` stand for; -1 outside the input.

    Arrays of any framework, by arithmetic operators alone; `put` makes a table an array like `offsets`.
    """
    rest, found, inside, pitch = offsets, 0, True, 1
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        front, kernel = axis.tap_range()
        tap, rest = rest % kernel, rest // kernel
        o = np.arange(axis.out, dtype=np.int64)
        first = axis.origin + o * axis.stride if axis.starts is None else axis.starts
        first = first.reshape([-1 if i == a else 1 for i in range(len(offsets.shape))])
        place = put(first) + (front + tap) * axis.step
        inside = (place >= 0) & (place < axis.size) & inside
        found, pitch = place * pitch + found, pitch * axis.size
    return (found + 1) * (inside & (rest == 0)) - 1


def with_sizes(shape: Any, axes: Any, sizes: Any) -> Any:
    """The shape with other sizes at the pooled axes."""
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


def _first_tap(origin: int, stride: int, step: int, out: int) -> int:
    """The least position from 0 on that is a tap of any of `out` windows, none of them clipped at the end."""
    # Taps of a window that begins before the input may step over its first elements.
    lead = min(out, max(0, -(origin // stride)))
    inside = [origin + lead * stride] if lead < out else []
    return min(inside + ([least_residue(stride, origin, step, lead)] if lead else []))


def least_residue(a: int, b: int, m: int, n: int) -> int:
    """The least (a*i + b) % m for i in range(n), in logarithmic time."""
    b %= m
    return bisect_left(range(1, m + 1), 1, key=lambda v: _floor_sum(a, b, m, n) - _floor_sum(a, b - v, m, n))


def _floor_sum(a: int, b: int, m: int, n: int) -> int:
    """The sum of (a*i + b) // m for i in range(n)."""
    total = 0
    while True:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        a, b, m, n = m, top % m, a, top // m
