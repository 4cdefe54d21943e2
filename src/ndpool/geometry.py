"""The rules that turn arguments into plans: sliding, adaptive and fractional windows, and unpooling's sizes.

Together with `_plan`, which defines what a plan is, the only place with window arithmetic. Functions ask for
a plan here and get it, or an error that names the argument. No arrays of data and no framework; NumPy holds
the tables of irregular windows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool._arguments import (
    GENERAL,
    MAX_AXES,
    check_count,
    check_flag,
    check_int,
    check_ints,
    check_padding,
    check_range,
    check_ratio,
    check_size,
    is_list,
    show,
)
from ndpool._plan import AxisPlan as AxisPlan
from ndpool._plan import Plan as Plan
from ndpool._plan import irregular, least_residue
from ndpool._plan import positions as positions

_CACHED = 4096
_CACHED_WINDOWS = 1024  # an irregular axis with more windows is not cached: its tables are large


def kernel_name(fn: str) -> str:
    """The parameter name of the window's size."""
    return "window" if fn == "pool" else "kernel_size"


def round_bfloat16(x: NDArray[Any]) -> NDArray[Any]:
    """Float32 numbers rounded to bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: NDArray[Any] = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


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
    """Windows of one size at regular distances; `strict` applies PyTorch's limits, not the general ones."""
    key: tuple[Any, ...]
    plain = type(padding) is type(dilation) is type(kernel) is int
    if plain and (stride is None or type(stride) is int):
        # The common call: plain integers are cache keys as they are.
        key = (kernel, kernel if stride is None else stride, padding, dilation)
    else:
        key = _per_axis(fn, len(sizes), kernel, stride, padding, dilation, strict)
    flags = check_flag(fn, "ceil_mode", ceil_mode), check_flag(fn, "count_include_pad", count_include_pad)
    return _sliding(fn, sizes, *key, *flags, strict)


def check_window(
    fn: str, n: int, kernel: object, stride: object, padding: object, dilation: object
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Kernel, stride and padding of a named function per axis; raises for what no input size allows."""
    window = _per_axis(fn, n, kernel, stride, padding, dilation, strict=True)
    _check_ranges(fn, *window, strict=True)
    return window[:3]


def _per_axis(
    fn: str, n: int, kernel: object, stride: object, padding: object, dilation: object, strict: bool
) -> tuple[Any, ...]:
    window = check_ints(fn, kernel_name(fn), kernel, n)
    default = stride is None or (isinstance(stride, (tuple, list)) and len(stride) == 0)
    return (
        window,
        window if default else check_ints(fn, "stride", stride, n),
        check_padding(fn, padding, n, strict),
        check_ints(fn, "dilation", dilation, n),
    )


def _check_ranges(fn: str, kernel: Any, stride: Any, padding: Any, dilation: Any, *, strict: bool) -> None:
    named = kernel_name(fn)
    for name, values in ((named, kernel), ("stride", stride), ("dilation", dilation)):
        for value in values:
            check_range(fn, name, value, 1)
    if isinstance(padding, str):
        return
    for k, (before, after) in zip(kernel, padding, strict=True):
        check_range(fn, "padding", before, 0)
        check_range(fn, "padding", after, 0)
        if strict and before > k // 2:
            raise ValueError(
                f"{fn}: padding must be at most half the kernel; got padding={before} "
                f"with {named}={k} (limit {k // 2})"
            )


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
        padding = check_padding(fn, padding, n, strict)
    named = kernel_name(fn)
    _check_ranges(fn, kernel, stride, padding, dilation, strict=strict)
    pads = padding if isinstance(padding, tuple) else same_padding(padding, sizes, kernel, stride, dilation)
    axes = []
    for size, k, s, (before, after), d in zip(sizes, kernel, stride, pads, dilation, strict=True):
        if size < 1:
            raise ValueError(f"{fn}: pooled axes must not be empty; got sizes {sizes}")
        out = _output_size(size, k, s, before, after, d, ceil_mode)
        if out < 1:
            raise ValueError(
                f"{fn}: the window must fit into the padded input; got {named}={k} with dilation={d}, "
                f"padding={(before, after)} and input size {size} (output size would be {out})"
            )
        bounds = (-before, size + after) if include else (0, size)
        axis = AxisPlan(size, out, k, s, d, -before, bounds)
        # Within PyTorch's limit a dilated window may step over the whole input, as in PyTorch.
        if max(before, after) > k // 2 and (empty := _empty_window(axis)) is not None:
            raise ValueError(
                f"{fn}: every window must contain an element of the input, or padding must be at most half "
                f"the {named}; got padding={(before, after)} with {named}={k}, stride={s}, dilation={d} and "
                f"input size {size} (window {empty} contains none)"
            )
        axes.append(axis)
    return Plan(axes)


def _output_size(size: int, k: int, s: int, before: int, after: int, d: int, ceil_mode: bool) -> int:
    span = size + before + after - (k - 1) * d - 1
    if not ceil_mode:
        return span // s + 1
    out = -(-span // s) + 1
    if s <= (k - 1) * d + 1 - after:
        return out  # whatever the size, so that a symbolic one remains unguarded
    # A last window must begin inside the input or its leading padding.
    return out - 1 if (out - 1) * s >= size + before else out


def _empty_window(a: AxisPlan) -> int | None:
    """A window without an element of the input, if there is one."""
    for o in (0, a.out - 1):  # the outermost windows reach least far into the input
        if a.window(o).taps == 0:
            return o
    # Windows that begin before the input and end after it may step over it.
    reach = a.origin + (a.kernel - 1) * a.step
    first, last = max(0, -((reach - a.size) // a.stride)), min(a.out, -(a.origin // a.stride))

    def stepped_over(n: int) -> bool:
        greatest = a.step - 1 - least_residue(-a.stride, -1 - a.origin - first * a.stride, a.step, n)
        return greatest >= a.size

    if a.step <= a.size or first >= last or not stepped_over(last - first):
        return None
    return first + bisect_left(range(1, last - first), True, key=stepped_over)


def same_padding(
    mode: str, sizes: Any, kernel: Any, stride: Any, dilation: Any
) -> tuple[tuple[int, int], ...]:
    """The padding that gives ceil(size / stride) outputs; an odd element goes last, or first if lower."""
    pads = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        # Stride 1 needs the same padding for every size, also for a symbolic one.
        total = (k - 1) * d if s == 1 else max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        small = total // 2
        pads.append((small, total - small) if mode == "same" else (total - small, small))
    return tuple(pads)


def plan(fn: str, sizes: tuple[int, ...], arguments: Sequence[Any], strict: bool) -> Plan:
    """The plan of a call: `arguments` are those of `sliding`, or an output size alone."""
    if len(arguments) == 1:
        return adaptive(fn, sizes, arguments[0], strict=strict)
    return sliding(fn, sizes, *arguments, strict=strict)


def flatten(fn: str, sizes: Sequence[int], arguments: Sequence[Any], strict: bool) -> tuple[int, ...]:
    """The arguments of `plan` as a flat tuple of integers, for sizes that may be a compiler's symbols.

    Either an output size per axis, or kernel, stride, padding before, padding after and dilation per axis and
    the two flags.
    """
    if len(arguments) == 1:
        return adaptive_sizes(fn, sizes, arguments[0], strict)
    kernel, stride, padding, dilation = arguments[:4]
    kernel, stride, padding, dilation = _per_axis(fn, len(sizes), kernel, stride, padding, dilation, strict)
    if isinstance(padding, str):
        padding = same_padding(padding, sizes, kernel, stride, dilation)
    before, after = zip(*padding, strict=True)
    flags = (
        check_flag(fn, "ceil_mode", arguments[4]),
        check_flag(fn, "count_include_pad", (*arguments, True)[5]),
    )
    return (*kernel, *stride, *before, *after, *dilation, *map(int, flags))


def plan_from_flat(fn: str, sizes: tuple[int, ...], windows: Sequence[int]) -> Plan:
    """The plan that `flatten` wrote down, once sizes are numbers."""
    strict = fn not in GENERAL
    if len(windows) == len(sizes):
        return adaptive(fn, sizes, tuple(windows), strict=strict)
    kernel, stride, pads, dilation = _unflattened(len(sizes), windows)
    flags = map(bool, windows[-2:])
    padding = tuple(before for before, _ in pads) if strict else pads
    return sliding(fn, sizes, kernel, stride, padding, dilation, *flags, strict=strict)


def outputs_from_flat(fn: str, sizes: tuple[int, ...], windows: Sequence[int]) -> tuple[int, ...]:
    """The output sizes of that plan, also for sizes that are symbols."""
    strict = fn not in GENERAL
    if len(windows) == len(sizes):
        # A symbol was a size of the input before: checking it again would add a guard.
        return adaptive_sizes(fn, sizes, [o if isinstance(o, int) else None for o in windows], strict)
    ceil_mode = bool(windows[-2])
    made: Plan = _sliding.__wrapped__(fn, sizes, *_unflattened(len(sizes), windows), ceil_mode, True, strict)
    return made.out


def norm_taps(fn: str, n: int, windows: Sequence[int]) -> int:
    """The taps that Lp pooling scales a clipped window up to; 0 where it does not, as in `norm_divisor`."""
    return prod(windows[:n]) if len(windows) > n and fn not in GENERAL else 0


def norm_divisor(fn: str, plan: Plan) -> int:
    """The divisor of Lp pooling: the taps of a full window for a plain sum, 0 for PyTorch's scaled one.

    PyTorch scales a window that `ceil_mode` clips up to a full one. Adaptive windows are always full, and the
    general functions give the norm of what a window contains.
    """
    if not plan.full and fn not in GENERAL:
        return 0
    if plan.taps >= 2**63:
        raise ValueError(f"{fn}: a window of 2**63 elements or more has no norm; got {plan.taps} elements")
    return plan.taps


def _unflattened(n: int, windows: Sequence[int]) -> tuple[Any, ...]:
    kernel, stride, before, after, dilation = (tuple(windows[i * n : i * n + n]) for i in range(5))
    return kernel, stride, tuple(zip(before, after, strict=True)), dilation


def adaptive(fn: str, sizes: tuple[int, ...], output_size: object, *, strict: bool = True) -> Plan:
    """As many windows as asked for, of whole elements: [floor(o*size/out), ceil((o+1)*size/out))."""
    outs = adaptive_sizes(fn, sizes, output_size, strict)
    if max(outs) <= _CACHED_WINDOWS:
        return _adaptive(sizes, outs)
    for size, out in zip(sizes, outs, strict=True):
        if out and size % out:
            check_count(fn, "output_size", out)
    return _adaptive.__wrapped__(sizes, outs)


def adaptive_sizes(fn: str, sizes: Sequence[int], output_size: object, strict: bool) -> tuple[int, ...]:
    """The output sizes asked for, checked; sizes may be symbolic."""
    wanted = check_adaptive(fn, len(sizes), output_size, strict)
    if any(size < 1 for size in sizes):
        raise ValueError(f"{fn}: pooled axes must not be empty; got sizes {sizes}")
    return tuple(size if out is None else out for out, size in zip(wanted, sizes, strict=True))


def check_adaptive(fn: str, n: int, output_size: object, strict: bool = True) -> tuple[int | None, ...]:
    """The output size asked for along each axis; None keeps the input's."""
    if not isinstance(output_size, Sequence) or not is_list(output_size):
        if output_size is None and strict:
            raise TypeError(f"{fn}: output_size must be an integer or have {n} entries; got output_size=None")
        wanted: Sequence[Any] = (output_size,) * n
    elif len(output_size) == n:
        wanted = output_size
    else:
        raise ValueError(f"{fn}: output_size must have {n} entries; got output_size={show(output_size)}")
    return tuple(
        out if out is None else check_range(fn, "output_size", check_int(fn, "output_size", out), 0)
        for out in wanted
    )


@lru_cache(1024)
def _adaptive(sizes: tuple[int, ...], outs: tuple[int, ...]) -> Plan:
    axes = [_adaptive_axis(size, out) for size, out in zip(sizes, outs, strict=True)]
    return Plan(axes, adaptive=True)


def _adaptive_axis(size: int, out: int) -> AxisPlan:
    if out == 0 or size % out == 0:
        k = size // out if out else 1
        return AxisPlan(size, out, k, k, 1, 0, (0, size))
    o = np.arange(out, dtype=np.int64)
    # o*size by parts: the product itself may exceed 64 bits.
    whole, rest = divmod(size, out)
    starts = o * whole + o * rest // out
    counts = (o + 1) * whole + -(-(o + 1) * rest // out) - starts
    return irregular(size, starts, counts)


def fractional_output(
    fn: str, sizes: tuple[int, ...], kernel_size: object, output_size: object, output_ratio: object
) -> tuple[int, ...]:
    """The output size of fractional pooling, from a size or a ratio."""
    n = len(sizes)
    if output_size is not None:
        outs = check_ints(fn, "output_size", output_size, n, single=False)
    elif output_ratio is not None:
        outs = tuple(
            int(size * ratio) for size, ratio in zip(sizes, check_ratio(fn, output_ratio, n), strict=True)
        )
    else:
        raise ValueError(f"{fn}: output_size or output_ratio must be given; got neither")
    for size, k, out in zip(
        sizes, check_ints(fn, "kernel_size", kernel_size, n, single=False), outs, strict=True
    ):
        check_range(fn, "kernel_size", k, 1)
        check_range(fn, "output_size", out, 0)
        if out + k - 1 > size:
            raise ValueError(
                f"{fn}: output_size and kernel_size must fit into the input; got output_size={out} with "
                f"kernel_size={k} and input size {size} (limit {max(0, size - k + 1)})"
            )
    return outs


def draw_samples(fn: str, shape: tuple[int, ...], dtype: np.dtype[Any], generator: Any) -> NDArray[Any]:
    """Random samples for fractional windows, in [0, 1); `generator`: one of NumPy's, or a seed."""
    try:
        source = np.random.default_rng(generator)
    except (TypeError, ValueError):
        raise TypeError(
            f"{fn}: generator must be a numpy.random.Generator or a seed of at least 0; got {generator!r}"
        ) from None
    drawn = source.random(shape).astype(dtype)
    drawn[drawn >= 1] = 0  # a sample that a narrow dtype rounded up would leave the input
    return drawn


def fractional(
    fn: str,
    sizes: tuple[int, ...],
    samples: NDArray[Any],
    kernel_size: object,
    output_size: object,
    output_ratio: object,
    narrow: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> Plan:
    """Windows at pseudo-random places, one set per plane, computed in the samples' precision as in PyTorch.

    `narrow` rounds to that precision where NumPy has no such dtype.
    """
    outs = fractional_output(fn, sizes, kernel_size, output_size, output_ratio)
    kernels = check_ints(fn, "kernel_size", kernel_size, len(sizes), single=False)
    if samples.size and not (samples.min() >= 0 and samples.max() <= 1):
        raise ValueError(f"{fn}: _random_samples must be in [0, 1]; got {samples.min()} to {samples.max()}")
    axes = []
    # Sample 0 belongs to the last axis in 2-D; the axes' samples run backwards there and forwards in 3-D.
    order = range(len(sizes)) if len(sizes) == 3 else reversed(range(len(sizes)))
    for size, k, out, a in zip(sizes, kernels, outs, order, strict=True):
        check_count(fn, "output_size", len(samples) * out)
        starts = _fractional_starts(fn, samples[:, a], size, k, out, narrow or np.asarray)
        axes.append(irregular(size, starts, np.full_like(starts, k), kernel=k))
    return Plan(axes)


def _fractional_starts(
    fn: str,
    samples: NDArray[Any],
    size: int,
    k: int,
    out: int,
    narrow: Callable[[NDArray[Any]], NDArray[Any]],
) -> NDArray[np.int64]:
    starts = np.empty((len(samples), out), np.int64)
    if out > 1:
        sample = samples[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            whole, gaps = (narrow(np.asarray(value, samples.dtype)) for value in (size - k, out - 1))
            alpha = narrow(whole / gaps)
            base = narrow(sample * alpha)
            steps = narrow(np.arange(out - 1).astype(samples.dtype))
            places = narrow(narrow(steps + sample) * alpha)
        if not (np.isfinite(base).all() and np.isfinite(places).all()):
            raise ValueError(
                f"{fn}: input size {size} is beyond the range of {samples.dtype} _random_samples"
            )
        # Rounding in a narrow dtype must not move a window beyond the input.
        starts[:, :-1] = np.minimum(places.astype(np.int64) - base.astype(np.int64), size - k)
    if out > 0:
        starts[:, -1] = size - k
    return starts


def unpool_size(
    fn: str,
    sizes: tuple[int, ...],
    kernel_size: object,
    stride: object,
    padding: object,
    output_size: object,
    dilation: object = 1,
) -> tuple[int, ...]:
    """The sizes to unpool to: those that pooling inverts, or given ones that pool to the same size."""
    n = len(sizes)
    kernels, strides, pads, dilations = check_unpool(fn, n, kernel_size, stride, padding, dilation)
    natural = tuple(
        (i - 1) * s - 2 * p + (k - 1) * d + 1
        for i, s, p, k, d in zip(sizes, strides, pads, kernels, dilations, strict=True)
    )
    if output_size is None:
        if min(natural) < 1:
            raise ValueError(
                f"{fn}: padding must leave an output, or output_size= be given; got sizes {natural} with "
                f"padding={padding!r} (limit 1)"
            )
        return natural
    if not isinstance(output_size, Sequence) or isinstance(output_size, str):
        raise TypeError(f"{fn}: output_size must be a sequence of integers; got output_size={output_size!r}")
    if len(output_size) not in (n, n + 1, n + 2):
        raise ValueError(
            f"{fn}: output_size must have {n} or {n + 2} entries; got output_size={tuple(output_size)!r}"
        )
    wanted = tuple(check_int(fn, "output_size", value) for value in output_size[-n:])
    for got, middle, s in zip(wanted, natural, strides, strict=True):
        if not middle - s < got < middle + s or got < 1:
            raise ValueError(
                f"{fn}: output_size must be within one stride of {natural}, which the other arguments give; "
                f"got output_size={show(wanted)} (limits {max(1, middle - s + 1)} to {middle + s - 1}); "
                f"after a dilated pool also pass its dilation="
            )
    return wanted


def check_unpool(
    fn: str, n: int, kernel_size: object, stride: object, padding: object, dilation: object
) -> tuple[tuple[int, ...], ...]:
    """Kernel, stride, padding and dilation of an unpooling per axis; any padding, as in PyTorch."""
    kernels = check_ints(fn, "kernel_size", kernel_size, n)
    strides = kernels if stride is None else check_ints(fn, "stride", stride, n)
    pads, dilations = check_ints(fn, "padding", padding, n), check_ints(fn, "dilation", dilation, n)
    named = (
        ("kernel_size", kernels, 1),
        ("stride", strides, 1),
        ("padding", pads, 0),
        ("dilation", dilations, 1),
    )
    for name, values, least in named:
        for value in values:
            check_range(fn, name, value, least)
    return kernels, strides, pads, dilations


def windows(
    size: int,
    kernel_size: int,
    stride: int | None = None,
    padding: int | str | tuple[int, int] = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> list[range]:
    """
    The input range of every sliding window along one axis.

    Parameters
    ----------
    size : int
        Input size.
    kernel_size : int
        Window size.
    stride : int, default None
        Step between windows; None means `kernel_size`.
    padding : int, str or pair of int, default 0
        Padding on both sides, a (before, after) pair, or ``"same"``, ``"same_lower"`` or ``"valid"`` as in
        `pool`.
    dilation : int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.

    Returns
    -------
    list of range
        One per output; empty where a dilated window steps over the whole input.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.windows(6, 3, stride=2, padding=1)
    [range(0, 2), range(1, 4), range(3, 6)]
    """
    pad = [padding] if isinstance(padding, tuple) else padding
    size = check_size("windows", size)
    plan = sliding("windows", (size,), kernel_size, stride, pad, dilation, ceil_mode, strict=False)
    return _ranges("windows", "size", plan.axes[0])


def adaptive_windows(size: int, output_size: int | None) -> list[range]:
    """
    The input range of every adaptive window along one axis.

    Output `o` of `n` over `s` elements covers ``[floor(o*s/n), ceil((o+1)*s/n))``.

    Parameters
    ----------
    size : int
        Input size.
    output_size : int or None
        Output size; None keeps the input's.

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
    size = check_size("adaptive_windows", size)
    plan = adaptive("adaptive_windows", (size,), output_size, strict=False)
    return _ranges("adaptive_windows", "output_size", plan.axes[0])


def _ranges(fn: str, name: str, axis: AxisPlan) -> list[range]:
    check_count(fn, name, axis.out)
    found = (axis.window(o) for o in range(axis.out))
    return [range(w.start, w.start + max(0, (w.taps - 1) * w.step + 1), w.step) for w in found]


def output_size(
    size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Any = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> int | tuple[int, ...]:
    """
    The number of windows: ``floor((size + padding - dilation*(kernel-1) - 1) / stride) + 1``.

    With `ceil_mode` the division rounds up, unless the last window would then start beyond the input and its
    leading padding.

    Parameters
    ----------
    size : int or sequence of int
        Input size along one axis, or along each.
    kernel_size : int or sequence of int
        Window size.
    stride : int or sequence of int, default None
        Step between windows; None means `kernel_size`.
    padding : int, str, sequence of int or sequence of pair of int, default 0
        Padding on both sides, per axis, as a (before, after) pair per axis, or a word, as in `pool`.
    dilation : int or sequence of int, default 1
        Step between the elements of a window.
    ceil_mode : bool, default False
        Round up instead of down, with the exception above.

    Returns
    -------
    int or tuple of int
        An int if `size` is one.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.output_size(112, 3, stride=2, padding=1)
    56
    >>> ndpool.output_size((7, 5), 2, ceil_mode=True)
    (4, 3)
    """
    single = not is_list(size)
    given: Any = (size,) if single else size
    if not 1 <= len(given) <= MAX_AXES:
        raise ValueError(f"output_size: size must have 1 to {MAX_AXES} entries; got size={show(size)}")
    sizes = tuple(check_size("output_size", s) for s in given)
    plan = sliding("output_size", sizes, kernel_size, stride, padding, dilation, ceil_mode, strict=False)
    return plan.out[0] if single else plan.out
