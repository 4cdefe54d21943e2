"""Windows: where they lie, how many there are, what they divide by, and every check of an argument.

The only place with window arithmetic. A plan has one `AxisPlan` per pooled axis; functions, frameworks and
kernels read plans and never see padding, ceil mode or output sizes. No arrays of data and no framework here;
NumPy serves only for the tables of irregular windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isnan, prod
from numbers import Integral, Real
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 2**31 - 1  # of every argument; sizes of arrays may be larger
MAX_AXES = 6
_CACHED = 4096


class Window(NamedTuple):
    """One window along one axis: its part inside the input, and its share of the divisor."""

    start: int
    taps: int
    step: int
    share: int


@dataclass(frozen=True, eq=False, slots=True)
class AxisPlan:
    """The windows along one axis.

    Tap t of window o stands at origin + o*stride + t*step; the taps in [0, size) are the window. On an
    irregular axis `starts` and `counts` say where each window begins and how many taps it has.
    """

    size: int
    out: int
    kernel: int  # taps of a whole window; of the largest one on an irregular axis
    stride: int
    step: int
    origin: int
    bounds: tuple[int, int]  # taps at positions in [lo, hi) count towards the divisor
    starts: NDArray[np.int64] | None = None  # (out,), or (planes, out) where planes differ
    counts: NDArray[np.int64] | None = None

    @property
    def regular(self) -> bool:
        """Whether the compressed form tells everything."""
        return self.starts is None

    def window(self, o: int) -> Window:
        """The window of output `o`."""
        if self.starts is not None and self.counts is not None:
            taps = int(self.counts[..., o].flat[0])
            return Window(int(self.starts[..., o].flat[0]), taps, self.step, taps)
        first = self.origin + o * self.stride
        start, taps = self._within(first, 0, self.size)
        return Window(start, taps, self.step, self._within(first, *self.bounds)[1])

    def _within(self, first: int, lo: int, hi: int) -> tuple[int, int]:
        lead = max(0, -((first - lo) // self.step))
        start = first + lead * self.step
        return start, max(0, min(self.kernel - lead, -((start - hi) // self.step)))

    def cut(self, o0: int, o1: int) -> tuple[AxisPlan, slice]:
        """The plan of outputs o0 to o1, and the slice of the input it is relative to: their own span."""
        if not 0 <= o0 < o1 <= self.out:
            raise ValueError(f"cut: outputs must be a range within 0..{self.out}; got {o0}..{o1}")
        first, last = (self.origin + o * self.stride for o in (o0, o1 - 1))
        begin = min(self.size - 1, max(0, first))
        end = max(begin + 1, min(self.size, last + (self.kernel - 1) * self.step + 1))
        if self.starts is not None and self.counts is not None:
            starts, counts = self.starts[..., o0:o1], self.counts[..., o0:o1]
            begin, end = int(starts.min()), int((starts + counts).max())
            size, moved = end - begin, starts - begin
            part = replace(self, size=size, out=o1 - o0, bounds=(0, size), starts=moved, counts=counts)
            return part, slice(begin, end)
        return (
            replace(
                self,
                size=end - begin,
                out=o1 - o0,
                origin=self.origin + o0 * self.stride - begin,
                bounds=(self.bounds[0] - begin, self.bounds[1] - begin),
            ),
            slice(begin, end),
        )


class Plan:
    """The windows of a call: one `AxisPlan` per pooled axis."""

    __slots__ = ("axes", "core", "out", "sizes", "taps")

    def __init__(self, axes: Sequence[AxisPlan]) -> None:
        self.axes = tuple(axes)
        self.sizes = tuple(axis.size for axis in axes)
        self.out = tuple(axis.out for axis in axes)
        self.taps = prod(axis.kernel for axis in axes)
        self.core: Any = None  # the compiled twin, kept by whoever makes it


def sliding(
    fn: str,
    sizes: tuple[int, ...],
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
    count_include_pad: bool = True,
    *,
    strict: bool,
) -> Plan:
    """Windows of one size at even distances; `strict` applies PyTorch's limits, not the general ones."""
    key: tuple[Any, ...]
    plain = type(padding) is type(dilation) is type(kernel) is int
    if plain and (stride is None or type(stride) is int):
        # The common call: plain integers go to the cache as they are.
        key = (kernel, kernel if stride is None else stride, padding, dilation)
    else:
        n = len(sizes)
        window = _ints(fn, "kernel_size", kernel, n)
        default = stride is None or (
            isinstance(stride, Sequence) and not isinstance(stride, str) and len(stride) == 0
        )
        key = (
            window,
            window if default else _ints(fn, "stride", stride, n),
            _padding(fn, padding, n, strict),
            _ints(fn, "dilation", dilation, n),
        )
    return _sliding(fn, sizes, *key, bool(ceil_mode), bool(count_include_pad), strict)


@lru_cache(_CACHED)
def _sliding(
    fn: str,
    sizes: tuple[int, ...],
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    include: bool,
    strict: bool,
) -> Plan:
    n = len(sizes)
    if isinstance(kernel, int):
        kernel, stride, dilation = (kernel,) * n, (stride,) * n, (dilation,) * n
        padding = _padding(fn, padding, n, strict)
    for name, values, least in (("kernel_size", kernel, 1), ("stride", stride, 1), ("dilation", dilation, 1)):
        for value in values:
            _in_range(fn, name, value, least)
    pads = padding if isinstance(padding, tuple) else _same(padding, sizes, kernel, stride, dilation)
    axes = []
    for size, k, s, (before, after), d in zip(sizes, kernel, stride, pads, dilation, strict=True):
        _in_range(fn, "padding", before, 0)
        _in_range(fn, "padding", after, 0)
        if size < 1:
            raise ValueError(f"{fn}: pooled axes must not be empty; got sizes {sizes}")
        if strict and before > k // 2:
            raise ValueError(
                f"{fn}: padding must be at most half the kernel; got padding={before} "
                f"with kernel_size={k} (limit {k // 2})"
            )
        out = _output_size(size, k, s, before, after, d, ceil_mode)
        if out < 1:
            raise ValueError(
                f"{fn}: the window must fit into the padded input; got kernel_size={k} with dilation={d}, "
                f"padding={(before, after)} and input size {size} (output size would be {out})"
            )
        bounds = (-before, size + after) if include else (0, size)
        axis = AxisPlan(size, out, k, s, d, -before, bounds)
        if not strict and (empty := _empty_window(axis)) is not None:
            raise ValueError(
                f"{fn}: every window must hold an element of the input; got padding={(before, after)} with "
                f"kernel_size={k}, stride={s}, dilation={d} and input size {size} (window {empty} holds none)"
            )
        axes.append(axis)
    return Plan(axes)


def _output_size(size: int, k: int, s: int, before: int, after: int, d: int, ceil_mode: bool) -> int:
    room = size + before + after - (k - 1) * d - 1
    if not ceil_mode:
        return room // s + 1
    out = -(-room // s) + 1
    # A last window must begin inside the input or its leading padding.
    return out - 1 if (out - 1) * s >= size + before else out


def _empty_window(a: AxisPlan) -> int | None:
    """A window without an element of the input, if there is one."""
    for o in (0, a.out - 1):  # the outermost windows reach least far into the input
        if a.window(o).taps == 0:
            return o
    if a.step <= a.size:
        return None
    # Taps may step over the input in windows that begin before it and end behind it; where they fall repeats
    # after as many windows as a step has cells.
    reach = a.origin + (a.kernel - 1) * a.step
    first, last = max(0, -((reach - a.size) // a.stride)), min(a.out, -(a.origin // a.stride))
    last = min(last, first + a.step)
    for begin in range(first, last, 2**20):
        places = (a.origin + np.arange(begin, min(last, begin + 2**20)) * a.stride) % a.step
        if (places >= a.size).any():
            return begin + int((places >= a.size).argmax())
    return None


def _same(mode: str, sizes: Any, kernel: Any, stride: Any, dilation: Any) -> tuple[tuple[int, int], ...]:
    """The padding that gives ceil(size / stride) outputs; an odd cell goes after the input, or before it."""
    pads = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        small = total // 2
        pads.append((small, total - small) if mode == "same" else (total - small, small))
    return tuple(pads)


def adaptive(fn: str, sizes: tuple[int, ...], output_size: object, *, strict: bool = True) -> Plan:
    """As many windows as asked for, of whole elements: [floor(o*size/out), ceil((o+1)*size/out))."""
    n = len(sizes)
    if output_size is None or isinstance(output_size, str) or not isinstance(output_size, Sequence):
        wanted: Sequence[Any] = (output_size,) * n
    elif len(output_size) == n:
        wanted = output_size
    else:
        raise ValueError(f"{fn}: output_size must have {n} entries; got output_size={output_size!r}")
    outs = tuple(
        size if out is None else _in_range(fn, "output_size", _int(fn, "output_size", out), 0)
        for out, size in zip(wanted, sizes, strict=True)
    )
    if min(sizes) < 1:
        raise ValueError(f"{fn}: pooled axes must not be empty; got sizes {sizes}")
    return _adaptive(sizes, outs)


@lru_cache(_CACHED)
def _adaptive(sizes: tuple[int, ...], outs: tuple[int, ...]) -> Plan:
    return Plan([_adaptive_axis(size, out) for size, out in zip(sizes, outs, strict=True)])


def _adaptive_axis(size: int, out: int) -> AxisPlan:
    if out == 0 or size % out == 0:
        k = size // out if out else 1
        return AxisPlan(size, out, k, k, 1, 0, (0, size))
    o = np.arange(out, dtype=np.int64)
    # o*size by parts: the product itself may leave 64 bits.
    whole, rest = divmod(size, out)
    starts = o * whole + o * rest // out
    counts = (o + 1) * whole + -(-(o + 1) * rest // out) - starts
    return AxisPlan(size, out, int(counts.max()), 1, 1, 0, (0, size), starts, counts)


def fractional_output(
    fn: str, sizes: tuple[int, ...], kernel_size: object, output_size: object, output_ratio: object
) -> tuple[int, ...]:
    """The output size of fractional pooling, from a size or a ratio."""
    n = len(sizes)
    if output_size is not None:
        outs = _ints(fn, "output_size", output_size, n, single=False)
    elif output_ratio is not None:
        outs = tuple(
            int(size * ratio) for size, ratio in zip(sizes, check_ratio(fn, output_ratio, n), strict=True)
        )
    else:
        raise ValueError(f"{fn}: output_size or output_ratio must be given; got neither")
    for size, k, out in zip(sizes, _ints(fn, "kernel_size", kernel_size, n, single=False), outs, strict=True):
        _in_range(fn, "kernel_size", k, 1)
        _in_range(fn, "output_size", out, 0)
        if out + k - 1 > size:
            raise ValueError(
                f"{fn}: output_size and kernel_size must fit into the input; got output_size={out} with "
                f"kernel_size={k} and input size {size} (limit {max(0, size - k + 1)})"
            )
    return outs


def check_ratio(fn: str, output_ratio: object, n: int) -> tuple[float, ...]:
    """One ratio per axis; what it may be at most, the window that has to fit says."""
    ratios: tuple[Any, ...] = (
        tuple(output_ratio) if isinstance(output_ratio, Sequence) else (output_ratio,) * n
    )
    if len(ratios) != n:
        raise ValueError(f"{fn}: output_ratio must have {n} entries; got output_ratio={output_ratio!r}")
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float, np.number)):
            raise TypeError(f"{fn}: output_ratio must be a number; got output_ratio={output_ratio!r}")
        if not 0 < ratio < LIMIT:
            raise ValueError(
                f"{fn}: output_ratio must be positive; got output_ratio={output_ratio!r} (limit {LIMIT})"
            )
    return tuple(float(ratio) for ratio in ratios)


def fractional(
    fn: str,
    sizes: tuple[int, ...],
    samples: NDArray[Any],
    kernel_size: object,
    output_size: object,
    output_ratio: object,
) -> Plan:
    """Windows at pseudo-random places, one set per plane, in the samples' own precision as PyTorch."""
    outs = fractional_output(fn, sizes, kernel_size, output_size, output_ratio)
    kernels = _ints(fn, "kernel_size", kernel_size, len(sizes), single=False)
    if samples.size and not (samples.min() >= 0 and samples.max() < 1):
        raise ValueError(f"{fn}: _random_samples must be in [0, 1); got {samples.min()} to {samples.max()}")
    axes = []
    # Sample 0 belongs to the last axis in 2-D; the axes' samples run backwards there and forwards in 3-D.
    order = range(len(sizes)) if len(sizes) == 3 else reversed(range(len(sizes)))
    for size, k, out, a in zip(sizes, kernels, outs, order, strict=True):
        starts = _fractional_starts(samples[:, a], size, k, out)
        axes.append(AxisPlan(size, out, k, 1, 1, 0, (0, size), starts, np.full_like(starts, k)))
    return Plan(axes)


def _fractional_starts(samples: NDArray[Any], size: int, k: int, out: int) -> NDArray[np.int64]:
    starts = np.empty((len(samples), out), np.int64)
    if out > 1:
        scalar = samples.dtype.type
        alpha = scalar(size - k) / scalar(out - 1)
        o = np.arange(out - 1).astype(samples.dtype)
        places = ((o + samples[:, None]) * alpha).astype(np.int64)
        # Rounding in a narrow type takes no window beyond the input.
        starts[:, :-1] = np.minimum(places - (samples * alpha).astype(np.int64)[:, None], size - k)
    if out > 0:
        starts[:, -1] = size - k
    return starts


def unpool_size(
    fn: str, sizes: tuple[int, ...], kernel_size: object, stride: object, padding: object, output_size: object
) -> tuple[int, ...]:
    """The sizes to unpool to: the inverse of pooling's, or the given ones where they pool to the same."""
    n = len(sizes)
    kernels = _ints(fn, "kernel_size", kernel_size, n)
    strides = kernels if stride is None else _ints(fn, "stride", stride, n)
    pads = _ints(fn, "padding", padding, n)
    for name, values, least in (("kernel_size", kernels, 1), ("stride", strides, 1), ("padding", pads, 0)):
        for value in values:
            _in_range(fn, name, value, least)
    natural = tuple((i - 1) * s - 2 * p + k for i, s, p, k in zip(sizes, strides, pads, kernels, strict=True))
    if output_size is None:
        if min(natural) < 1:
            raise ValueError(
                f"{fn}: padding leaves nothing of the output; got sizes {natural} with padding={padding!r}"
            )
        return natural
    if not isinstance(output_size, Sequence) or isinstance(output_size, str):
        raise TypeError(f"{fn}: output_size must be a sequence of integers; got output_size={output_size!r}")
    if len(output_size) not in (n, n + 1, n + 2):
        raise ValueError(
            f"{fn}: output_size must have {n} or {n + 2} entries; got output_size={tuple(output_size)!r}"
        )
    wanted = tuple(_int(fn, "output_size", value) for value in output_size[-n:])
    for got, middle, s in zip(wanted, natural, strides, strict=True):
        if not middle - s < got < middle + s or got < 1:
            raise ValueError(
                f"{fn}: output_size must be within one stride of {natural}, which the other arguments give; "
                f"got output_size={wanted} (limits {max(1, middle - s + 1)} to {middle + s - 1})"
            )
    return wanted


def check_sizes(fn: str, name: str, value: object, n: int) -> tuple[int, ...]:
    """`n` sizes of at least 1."""
    return tuple(_in_range(fn, name, size, 1) for size in _ints(fn, name, value, n, single=False))


@lru_cache(_CACHED)
def check_rank(fn: str, shape: tuple[int, ...], n_axes: int) -> tuple[int, ...]:
    """The pooled axes of a named function: the last ones, after a channel axis and perhaps a batch axis."""
    ndim = len(shape)
    if ndim not in (n_axes + 1, n_axes + 2):
        raise ValueError(
            f"{fn}: input must have {n_axes + 1} axes, or {n_axes + 2} with a batch; got shape {shape}"
        )
    if 0 in shape[ndim - n_axes - 1 :]:
        raise ValueError(f"{fn}: input must not be empty except for its batch; got shape {shape}")
    return tuple(range(ndim - n_axes, ndim))


def normalize_axes(fn: str, axes: object, ndim: int, n_axes: int) -> tuple[int, ...]:
    """The pooled axes of a general function as positive numbers."""
    if not 1 <= n_axes <= MAX_AXES:
        raise ValueError(f"{fn}: axes must be 1 to {MAX_AXES} axes; got {n_axes}")
    if n_axes > ndim:
        raise ValueError(f"{fn}: axes must exist; got {n_axes} axes to pool for an array with {ndim}")
    if axes is None:
        return tuple(range(ndim - n_axes, ndim))
    result = []
    for axis in _ints(fn, "axes", axes, n_axes):
        if not -ndim <= axis < ndim:
            raise ValueError(f"{fn}: axes must be from {-ndim} to {ndim - 1}; got axes={axes!r}")
        result.append(axis % ndim)
    if len(set(result)) < n_axes:
        raise ValueError(f"{fn}: axes must differ; got axes={axes!r}")
    return tuple(result)


def check_divisor(fn: str, divisor: object) -> int:
    """A divisor of one's own: any integer but zero; None is 0, the window's own."""
    if divisor is None:
        return 0
    value = _int(fn, "divisor_override", divisor)
    if value == 0 or abs(value) > LIMIT:
        raise ValueError(
            f"{fn}: divisor_override must not be 0 nor beyond {LIMIT}; got divisor_override={value}"
        )
    return value


def check_norm(fn: str, norm_type: object) -> float:
    """The power of an Lp pooling; an integer stays one, for integers to an integer power keep to integers."""
    if isinstance(norm_type, bool) or not isinstance(norm_type, Real):
        raise TypeError(f"{fn}: norm_type must be a number; got norm_type={norm_type!r}")
    if norm_type == 0 or isnan(norm_type):
        raise ValueError(f"{fn}: norm_type must be a number other than 0; got norm_type={norm_type!r}")
    return int(norm_type) if isinstance(norm_type, Integral) else float(norm_type)


def _int(fn: str, name: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{fn}: {name} must be an integer; got {name}={value!r}")
    return index(value)


def _ints(fn: str, name: str, value: object, n: int, *, single: bool = True) -> tuple[int, ...]:
    """One integer per axis, from an integer or a sequence; `single`: a sequence of one stands for all."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == n or (single and len(value) == 1):
            result = tuple(_int(fn, name, item) for item in value)
            return result if len(result) == n else result * n
        raise ValueError(f"{fn}: {name} must be an integer or have {n} entries; got {name}={value!r}")
    return (_int(fn, name, value),) * n


def _in_range(fn: str, name: str, value: int, least: int) -> int:
    if not least <= value <= LIMIT:
        raise ValueError(f"{fn}: {name} must be from {least} to {LIMIT}; got {name}={value}")
    return value


def _padding(fn: str, padding: object, n: int, strict: bool) -> tuple[tuple[int, int], ...] | str:
    """(before, after) per axis, or the name of a rule that makes them."""
    if not strict:
        if padding == "valid":
            padding = 0
        if isinstance(padding, str):
            if padding not in ("same", "same_lower"):
                raise ValueError(
                    f"{fn}: padding must be numbers, 'same', 'same_lower' or 'valid'; got padding={padding!r}"
                )
            return padding
        if isinstance(padding, Sequence) and any(isinstance(pair, Sequence) for pair in padding):
            if len(padding) != n or not all(
                isinstance(pair, Sequence) and len(pair) == 2 for pair in padding
            ):
                raise ValueError(
                    f"{fn}: padding must have {n} (before, after) pairs; got padding={padding!r}"
                )
            return tuple((_int(fn, "padding", b), _int(fn, "padding", a)) for b, a in padding)
    return tuple((p, p) for p in _ints(fn, "padding", padding, n))


def windows(
    size: int,
    kernel_size: int,
    stride: int | None = None,
    padding: int | str | tuple[int, int] = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> list[range]:
    """
    The input positions of every window along one axis.

    Parameters
    ----------
    size, kernel_size, stride, padding, dilation, ceil_mode
        As in `pool`, for one axis; padding may also be a (before, after) pair.

    Returns
    -------
    list of range
        One per output.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.windows(6, 3, stride=2, padding=1)
    [range(0, 2), range(1, 4), range(3, 6)]
    """
    pad = [padding] if isinstance(padding, tuple) else padding
    size = _in_range("windows", "size", _int("windows", "size", size), 1)
    plan = sliding("windows", (size,), kernel_size, stride, pad, dilation, ceil_mode, strict=False)
    return _ranges(plan.axes[0])


def adaptive_windows(size: int, output_size: int) -> list[range]:
    """
    The input positions of every adaptive window along one axis: [floor(o*size/out), ceil((o+1)*size/out)).

    Parameters
    ----------
    size, output_size : int
        Input and output size.

    Returns
    -------
    list of range
        One per output; neighbours overlap where `output_size` does not divide `size`.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.adaptive_windows(10, 3)
    [range(0, 4), range(3, 7), range(6, 10)]
    """
    size = _in_range("adaptive_windows", "size", _int("adaptive_windows", "size", size), 1)
    return _ranges(adaptive("adaptive_windows", (size,), output_size).axes[0])


def _ranges(axis: AxisPlan) -> list[range]:
    found = (axis.window(o) for o in range(axis.out))
    return [range(w.start, w.start + (w.taps - 1) * w.step + 1, w.step) for w in found]


def output_size(
    size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> int | tuple[int, ...]:
    """
    The number of windows: floor((size + padding - dilation*(kernel-1) - 1) / stride) + 1.

    With `ceil_mode` the division rounds up, unless the last window would then begin beyond the input and its
    leading padding.

    Parameters
    ----------
    size : int or sequence of int
        Input size along one axis, or along each.
    kernel_size, stride, padding, dilation, ceil_mode
        As in `pool`.

    Returns
    -------
    int or tuple of int
        As `size` was given.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.output_size(112, 3, stride=2, padding=1)
    56
    >>> ndpool.output_size((7, 5), 2, ceil_mode=True)
    (4, 3)
    """
    single = not isinstance(size, Sequence)
    n = 1 if single else len(size)  # type: ignore[arg-type]
    if not 1 <= n <= MAX_AXES:
        raise ValueError(f"output_size: size must have 1 to {MAX_AXES} entries; got size={size!r}")
    sizes = tuple(_int("output_size", "size", s) for s in ([size] if single else size))  # type: ignore[union-attr]
    for s in sizes:
        if s < 1:
            raise ValueError(f"output_size: size must be at least 1; got size={size!r}")
    plan = sliding("output_size", sizes, kernel_size, stride, padding, dilation, ceil_mode, strict=False)
    return plan.out[0] if single else plan.out
