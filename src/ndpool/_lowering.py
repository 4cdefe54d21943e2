"""Pooling lowered to elementary operators, for exporters that know nothing of ndpool.

Written once, over a `Graph`: PyTorch's exporters trace it on tensors (`frameworks.torch.exporting`), and
`onnx.export_pool` writes ONNX nodes with it. Sizes may be symbolic, so one graph serves every input size. No
operator relies on a `ceil_mode` of its own: padding is explicit there. Windows that do not move regularly are
gathered from tables, so that no element reaches a window that does not contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, NamedTuple, Protocol

from ndpool import geometry
from ndpool._arguments import show
from ndpool._policy import FLOAT_NAMES

MAX_TAPS = 1024  # of an axis whose taps are added one by one
MAX_NATIVE_AXES = 3  # of MaxPool and AveragePool in runtimes

# The dtype in which a dtype is pooled: runtimes have few pooling kernels. Each value survives exactly.
COMPUTE = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "float32"),
    **dict.fromkeys(("float16", "bfloat16", "float32"), "float32"),
    **dict.fromkeys(("int32", "uint32", "float64"), "float64"),
}

# The least opset with the form of each operator that `Graph` needs.
OPSETS = {
    "arange": 11,
    "arg": 13,
    "avg_pool": 7,
    "cast": 13,
    "max_pool": 8,
    "max_pool_dilated": 10,
    "max_pool_indices": 10,
    "minimum": 12,
    "pad": 11,
    "pick": 11,
    "reduce": 13,
    "scatter": 13,
    "slice": 10,
    "take": 11,
    "unsqueeze": 13,
    "where": 9,
}


class Graph(Protocol):
    """What a pooling is lowered to.

    Values also have the arithmetic operators. A size is an int where it is known and a value where it is not.
    """

    def require(self, operator: str) -> None:
        """Raise if the graph's opset is older than `OPSETS[operator]`."""

    def dtype(self, x: Any) -> str:
        """The name of a dtype."""

    def cast(self, x: Any, dtype: str) -> Any:
        """The same numbers in another dtype; floats are truncated to integers."""

    def arange(self, n: Any) -> Any:
        """0 to n - 1, as int64."""

    def transpose(self, x: Any, order: Sequence[int]) -> Any:
        """The axes in another order."""

    def unsqueeze(self, x: Any, axis: int) -> Any:
        """A new axis of size 1."""

    def squeeze(self, x: Any, axis: int) -> Any:
        """Without an axis of size 1."""

    def merge(self, x: Any, n_axes: int) -> Any:
        """The first `n_axes` axes as one."""

    def split(self, x: Any, like: Any, n_axes: int) -> Any:
        """The first axis as the first `n_axes` axes of `like`."""

    def pad(self, x: Any, pairs: Sequence[tuple[int, int]], value: float) -> Any:
        """The last axes padded."""

    def slice(self, x: Any, axis: int, start: int, stop: Any, step: int = 1) -> Any:
        """Part of an axis; `stop` may be None, negative, or beyond the end."""

    def take(self, x: Any, axis: int, table: Any) -> Any:
        """The elements of an axis that a table names; its two axes replace that axis."""

    def pick(self, x: Any, axis: int, index: Any) -> Any:
        """One element along an axis per `index`, which lacks that axis, as the result does."""

    def where(self, condition: Any, x: Any, y: float) -> Any:
        """Elements of `x` where the condition is true, `y` elsewhere."""

    def minimum(self, x: Any, y: Any) -> Any:
        """The elementwise minimum of int64 values; `y` may be an int."""

    def reduce(self, kind: str, x: Any, axes: Sequence[int], keep: bool) -> Any:
        """The "max", "min", "sum" or "mean" over axes."""

    def arg(self, kind: str, x: Any, axis: int) -> Any:
        """The first place of the max or min along an axis, without that axis."""

    def max_pool(self, x: Any, windows: Sequence[Window]) -> Any:
        """Max pooling in floor mode, symmetric padding."""

    def max_pool_indices(self, x: Any, windows: Sequence[Window], sizes: Sequence[Any]) -> Any:
        """The same with indices in the plane, which has these sizes."""

    def avg_pool(self, x: Any, windows: Sequence[Window], include: bool) -> Any:
        """Average pooling in floor mode, symmetric padding, without dilation."""


class Window(NamedTuple):
    """The windows of one axis, as arguments give them."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def span(self) -> int:
        """The inputs from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1


class Job(NamedTuple):
    """A pooling call as it is exported; `windows` as in `geometry.flatten`."""

    function: str
    reduce: str
    axes: tuple[int, ...]
    sizes: tuple[Any, ...]
    windows: tuple[Any, ...]
    dtype: str  # of the result
    divisor: int = 0
    norm: float = 0.0
    indices: bool = False


def pool(g: Graph, x: Any, job: Job) -> Any:
    """Values, or values and indices."""
    fn, own = job.function, g.dtype(x)
    if own not in COMPUTE:
        raise TypeError(f"{fn}: export supports integers of up to 32 bits; got dtype={own}")
    planes = Planes(g, x, job.axes)
    x = _cast(g, planes.enter(x), COMPUTE[own])
    if own not in FLOAT_NAMES and job.reduce in ("sum", "avg"):
        x = _cast(g, x, "float64")
    if job.norm:
        x = _power(x, job.norm)
    results = _adaptive(g, x, job) if len(job.windows) == len(job.axes) else _sliding(g, x, job)
    if job.norm:
        results = [_power(results[0], 1 / job.norm)]
    values, *rest = (planes.leave(y) for y in results)
    values = _cast(g, values, job.dtype)
    return (values, *rest) if job.indices else values


class Planes:
    """Between an array with any pooled axes and one with a batch axis, a channel axis and the pooled axes."""

    def __init__(self, g: Graph, x: Any, axes: tuple[int, ...]) -> None:
        self.g, self.ndim, n = g, len(x.shape), len(axes)
        self.order = [a for a in range(self.ndim) if a not in axes] + list(axes)
        self.lead = self.ndim - n
        self.like: Any = None

    def enter(self, x: Any) -> Any:
        if self.order != list(range(self.ndim)):
            x = self.g.transpose(x, self.order)
        if self.lead > 2:
            self.like = x
            return self.g.merge(x, self.lead - 1)
        for _ in range(2 - self.lead):
            self.g.require("unsqueeze")
            x = self.g.unsqueeze(x, 0)
        return x

    def leave(self, y: Any) -> Any:
        if self.lead > 2:
            y = self.g.split(y, self.like, self.lead - 1)
        for _ in range(2 - self.lead):
            y = self.g.squeeze(y, 0)
        if self.order != list(range(self.ndim)):
            y = self.g.transpose(y, [self.order.index(a) for a in range(self.ndim)])
        return y


def _cast(g: Graph, x: Any, dtype: str) -> Any:
    if g.dtype(x) == dtype:
        return x
    g.require("cast")
    return g.cast(x, dtype)


def _power(x: Any, p: float) -> Any:
    return x if p == 1 else x * x if p == 2 else x**p


class _Padded(NamedTuple):
    """Sliding windows in floor mode, and what to pad for it."""

    windows: list[Window]  # with the padding that the operator adds
    explicit: bool
    over: list[int]  # inputs beyond the padding that ceil_mode adds; negative: padding that it leaves out


def _floor(job: Job) -> _Padded:
    """The windows of a sliding call, without ceil_mode."""
    n = len(job.axes)
    parts = [job.windows[i * n : i * n + n] for i in range(5)]
    windows = [Window(*axis) for axis in zip(*parts, strict=True)]
    over = [0] * n
    if job.windows[-2]:
        for a, (size, w) in enumerate(zip(job.sizes, windows, strict=True)):
            if isinstance(size, int):
                out = geometry.outputs_from_flat(job.function, (size,), (*w, 1, 1))[0]
                beyond = (out - 1) * w.stride + w.span - (size + w.before + w.after)
                # Padding wider than a window has room for windows that begin beyond the input.
                over[a] = beyond if beyond > 0 else min(0, beyond + w.stride - 1)
            else:
                # Enough for a partial window, not for one that begins beyond the input.
                over[a] = min(w.stride - 1, w.span - 1 - w.after)
    explicit = any(over) or any(
        # "same" padding of symbolic sizes is symbolic
        not isinstance(w.before, int) or w.before != w.after or w.before > w.kernel // 2
        for w in windows
    )
    return _Padded(windows, explicit, over)


def _pairs(p: _Padded) -> list[tuple[int, int]]:
    return [(w.before, w.after + e) for w, e in zip(p.windows, p.over, strict=True)]


def _unpadded(p: _Padded) -> list[Window]:
    return [w._replace(before=0, after=0) for w in p.windows]


def _sliding(g: Graph, x: Any, job: Job) -> list[Any]:
    p = _floor(job)
    if len(job.axes) > MAX_NATIVE_AXES and job.reduce in ("max", "min"):
        raise ValueError(
            f"{job.function}: max and min pooling is exported along at most {MAX_NATIVE_AXES} axes; "
            f"got {len(job.axes)} axes"
        )
    return _extreme(g, x, job, p) if job.reduce in ("max", "min") else [_summed(g, x, job, p)]


def _extreme(g: Graph, x: Any, job: Job, p: _Padded) -> list[Any]:
    """Max pooling, or min pooling as that of negated elements."""
    g.require("max_pool_dilated" if any(w.dilation > 1 for w in p.windows) else "max_pool")
    x = -x if job.reduce == "min" else x
    windows, sizes = p.windows, job.sizes
    if p.explicit:
        g.require("pad")
        x, windows = g.pad(x, _pairs(p), -inf), _unpadded(p)
        sizes = tuple(size + sum(pair) for size, pair in zip(sizes, _pairs(p), strict=True))
    if not job.indices:
        y = g.max_pool(x, windows)
        return [-y if job.reduce == "min" else y]
    g.require("max_pool_indices")
    y, found = g.max_pool_indices(x, windows, sizes)
    if p.explicit:
        found = _moved(found, job.sizes, _pairs(p))
    return [-y if job.reduce == "min" else y, found]


def _moved(found: Any, sizes: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> Any:
    """Indices in a padded plane as indices in the plane."""
    index, pitch, rest = 0, 1, found
    for a, (size, (before, after)) in enumerate(reversed(list(zip(sizes, pairs, strict=True))), 1):
        padded = size + before + after
        above = rest // padded if a < len(sizes) else 0
        place, rest = rest - above * padded, above
        index, pitch = (place - before) * pitch + index, pitch * size
    return index


def _summed(g: Graph, x: Any, job: Job, p: _Padded) -> Any:
    """Sums, averages and the sums of Lp pooling."""
    n, dtype = len(job.axes), g.dtype(x)
    count = prod(w.kernel for w in p.windows)
    include, over = bool(job.windows[-1]), any(e > 0 for e in p.over)
    # ONNX Runtime moves a Pad into AveragePool, whose padding must be less than the window.
    wide = any(
        isinstance(width, int) and width >= w.kernel
        for w, pair in zip(p.windows, _pairs(p), strict=True)
        for width in pair
    )
    regular = not wide and all(w.dilation == 1 for w in p.windows)
    plain = dtype == "float32" and n <= MAX_NATIVE_AXES and regular
    scale = count if plain else 1  # of what the sum is more than what `total` gives
    mean = job.reduce == "avg" or (job.reduce == "lp" and geometry.norm_taps(job.function, n, job.windows))

    def total(x: Any, windows: Sequence[Window], include: bool = True) -> Any:
        if plain:
            g.require("avg_pool")
            return g.avg_pool(x, windows, include)
        return _taps(g, x, windows, job.function)

    if plain and not p.explicit:
        y = total(x, p.windows, include or not mean or bool(job.divisor))
        divided = mean and not job.divisor
    else:
        padded = any(not isinstance(w.before, int) or w.before or w.after for w in p.windows)
        y = total(_padded(g, x, _pairs(p), 0), _unpadded(p))
        divided = bool(mean and not job.divisor and (over or (padded and not include)))
        if divided:
            # One division, so that averages of integers truncate exact quotients.
            counts: Any = None
            for axis, (size, w, e) in enumerate(zip(job.sizes, p.windows, p.over, strict=True), 2):
                taps = _cast(g, _along(g, _counts(g, size, w, e, include), axis, n + 2), dtype)
                counts = taps if counts is None else counts * taps
            y = y * (float(scale) / counts) if plain else y / counts
    if divided:
        return y if job.reduce == "avg" else y * float(count)
    divisor = job.divisor if job.divisor else count if job.reduce == "avg" else 1
    return y if divisor == scale else y * (scale / divisor) if scale > 1 else y / float(divisor)


def _counts(g: Graph, size: Any, w: Window, over: int, include: bool) -> Any:
    """The taps of each window that an average counts: those in the input, or also those in the padding."""
    if not isinstance(size, int):
        for operator in ("arange", "minimum", "unsqueeze"):
            g.require(operator)
    first = g.arange((size + (w.before + w.after + over - w.span)) // w.stride + 1) * w.stride
    end = size + w.before + (w.after if include else 0)
    taps = g.minimum((end - first + (w.dilation - 1)) // w.dilation, w.kernel)
    if include or (isinstance(w.before, int) and not w.before):
        return taps
    lead = g.minimum(first - w.before, 0) - (w.dilation - 1)
    taps = taps + (-((-lead) // w.dilation))
    # A dilated window may step over the whole input: its sum is 0, and so is its average.
    return -g.minimum(-taps, -1) if w.dilation > 1 else taps


def _padded(g: Graph, x: Any, pairs: Sequence[tuple[int, int]], value: float) -> Any:
    if not any(not isinstance(width, int) or width for pair in pairs for width in pair):
        return x
    g.require("pad")
    return g.pad(x, pairs, value)


def _taps(g: Graph, x: Any, windows: Sequence[Window], fn: str) -> Any:
    """Sums axis by axis, tap by tap, for what AveragePool does not compute."""
    g.require("slice")
    for axis, w in enumerate(windows, 2):
        if w.kernel > MAX_TAPS:
            raise ValueError(
                f"{fn}: windows of float64, of integers or with dilation are exported up to a size of "
                f"{MAX_TAPS}; got {show(w.kernel)} (limit {MAX_TAPS})"
            )
        parts = [
            g.slice(x, axis, t * w.dilation, (t + 1 - w.kernel) * w.dilation or None, w.stride)
            for t in range(w.kernel)
        ]
        # Pairwise, so that the error grows with the logarithm of the window.
        while len(parts) > 1:
            pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(pairs) * 2 :]
        x = parts[0]
    return x


class _Table(NamedTuple):
    """The windows of an adaptive axis."""

    starts: Any  # (out,)
    counts: Any  # (out,)
    inputs: Any  # (out, taps): of a shorter window the last element is repeated
    inside: Any  # (out, taps): whether an entry is no repetition; None where all are


def _table(g: Graph, size: Any, out: Any) -> _Table:
    for operator in ("arange", "minimum", "unsqueeze"):
        g.require(operator)
    o = g.arange(out)
    starts = o * size // out
    counts = ((o + 1) * size + (out - 1)) // out - starts
    known = isinstance(size, int)
    t = g.unsqueeze(g.arange(_most(size, out) if known else (size + (out - 1)) // out + 1), 0)
    column = g.unsqueeze(counts, 1)
    inputs = g.unsqueeze(starts, 1) + g.minimum(t, column - 1)
    return _Table(starts, counts, inputs, None if known and size % out == 0 else t < column)


def _most(size: int, out: int) -> int:
    """The size of the largest window."""
    plan = geometry.adaptive("adaptive_pool", (size,), (out,), strict=False)
    return plan.axes[0].kernel


def _along(g: Graph, vector: Any, axis: int, rank: int) -> Any:
    """A vector as an array that broadcasts along one axis."""
    g.require("unsqueeze")
    for _ in range(rank - 1 - axis):
        vector = g.unsqueeze(vector, -1)
    return vector


def _adaptive(g: Graph, x: Any, job: Job) -> list[Any]:
    outs, sizes, fn = job.windows, job.sizes, job.function
    for out in outs:
        if isinstance(out, int) and out < 1:
            raise ValueError(f"{fn}: output_size is exported from 1; got output_size={outs}")
    extreme = job.reduce in ("max", "min")
    known = all(isinstance(out, int) for out in outs)
    native = (
        known and prod(outs) > 1 and len(outs) <= MAX_NATIVE_AXES and (extreme or g.dtype(x) == "float32")
    )
    if native and all(_divides(size, out) for size, out in zip(sizes, outs, strict=True)):
        kernel = tuple(size // out for size, out in zip(sizes, outs, strict=True))
        zeros, ones = (0,) * len(outs), (1,) * len(outs)
        return _sliding(g, x, job._replace(windows=(*kernel, *kernel, *zeros, *zeros, *ones, 0, 1)))
    if not extreme:
        return [_adaptive_sum(g, x, job)]
    return _adaptive_indices(g, x, job) if job.indices else [_adaptive_extreme(g, x, job)]


def _divides(size: Any, out: Any) -> bool:
    """Whether windows are known to be of one size."""
    return isinstance(size, int) and isinstance(out, int) and size % out == 0


def _steps(job: Job) -> list[tuple[int, Any, int]]:
    """(axis, size, output size) of the axes that adaptive pooling changes, from the last to the first."""
    found = [
        (axis, size, out)
        for axis, (size, out) in enumerate(zip(job.sizes, job.windows, strict=True), 2)
        # A symbolic output size is that of its input.
        if isinstance(out, int) and not (isinstance(size, int) and size == out)
    ]
    return found[::-1]


def _adaptive_extreme(g: Graph, x: Any, job: Job) -> Any:
    steps = _steps(job)
    g.require("reduce")
    if whole := [axis for axis, _, out in steps if out == 1]:
        x = g.reduce(job.reduce, x, sorted(whole), True)
    for axis, size, out in steps:
        if out != 1:
            g.require("take")
            x = g.reduce(job.reduce, g.take(x, axis, _table(g, size, out).inputs), (axis + 1,), False)
    return x


def _adaptive_indices(g: Graph, x: Any, job: Job) -> list[Any]:
    """Axis by axis, from the last: ties give the first column of the first row."""
    rank = 2 + len(job.axes)
    for operator in ("reduce", "take", "arg", "pick"):
        g.require(operator)
    places: dict[int, Any] = {}  # axis -> where along it the result stood
    changed = {axis: (size, out) for axis, size, out in _steps(job)}
    if not changed:  # every element is a window, and one axis is enough to find it
        changed = {rank - 1: (job.sizes[-1], job.sizes[-1])}
    for axis in reversed(range(2, rank)):
        if axis not in changed:
            continue
        table = _table(g, *changed[axis])
        taken = g.take(x, axis, table.inputs)
        tap = g.arg(job.reduce, taken, axis + 1)
        x = g.pick(taken, axis + 1, tap)
        places = {a: g.pick(g.take(place, axis, table.inputs), axis + 1, tap) for a, place in places.items()}
        places[axis] = tap + _along(g, table.starts, axis, rank)
    found: Any = None
    pitch: Any = 1
    for axis in reversed(range(2, rank)):
        size = job.sizes[axis - 2]
        place = places[axis] if axis in places else _along(g, g.arange(size), axis, rank)
        part = place * pitch
        found = part if found is None else found + part
        pitch = pitch * size
    return [x, found]


def _adaptive_sum(g: Graph, x: Any, job: Job) -> Any:
    """Sums over gathered windows; averages divide by the windows' sizes at the end."""
    steps, rank, mean = _steps(job), 2 + len(job.axes), job.reduce == "avg"
    g.require("reduce")
    if mean and steps and all(out == 1 for *_, out in steps) and job.dtype in FLOAT_NAMES:
        return g.reduce("mean", x, sorted(axis for axis, *_ in steps), True)
    dtype = g.dtype(x)
    divisor: Any = None
    for axis, size, out in steps:
        table = _table(g, size, out)
        if out == 1:
            x = g.reduce("sum", x, (axis,), True)
        else:
            g.require("take")
            taken = g.take(x, axis, table.inputs)
            if table.inside is not None:
                g.require("where")
                taken = g.where(_along(g, table.inside, axis + 1, rank + 1), taken, 0.0)
            x = g.reduce("sum", taken, (axis + 1,), False)
        if mean:
            counts = _cast(g, _along(g, table.counts, axis, rank), dtype)
            divisor = counts if divisor is None else divisor * counts
    return x if divisor is None else x / divisor
