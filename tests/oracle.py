"""The reference for pooling: brute-force NumPy, written from the definition.

Every other test trusts this file; ``test_oracle.py`` compares it with PyTorch. Windows are lists of
positions, and outputs are computed one by one for all leading axes at once. The pooled axes are the last
``n``, one per entry of the kernel or output size. It does not check arguments, is not optimized, and does
not import the package under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import floor, inf, prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]


class Window(NamedTuple):
    """One window of one axis: its input positions, its start, and the number of taps in input and padding."""

    positions: list[int]
    start: int
    count: int


Plan = list[list[Window]]


def output_size(size: int, kernel: int, stride: int, pad: tuple[int, int], dilation: int, ceil: bool) -> int:
    """Windows that fit; with ``ceil`` also a partial one, if it starts in the input or its left padding."""
    slack = size + sum(pad) - dilation * (kernel - 1) - 1
    if not ceil:
        return slack // stride + 1
    out = -(-slack // stride) + 1
    return out - 1 if (out - 1) * stride >= size + pad[0] else out


def sliding_windows(
    size: int, kernel: int, stride: int, pad: tuple[int, int], dilation: int = 1, ceil: bool = False
) -> list[Window]:
    """Windows of a sliding axis; starts are in the input, counts include padding but nothing beyond."""
    windows = []
    for o in range(output_size(size, kernel, stride, pad, dilation, ceil)):
        taps = [o * stride - pad[0] + t * dilation for t in range(kernel)]
        start = taps[0] if taps[0] >= 0 else taps[0] % dilation
        windows.append(
            Window([i for i in taps if 0 <= i < size], start, sum(i < size + pad[1] for i in taps))
        )
    return windows


def adaptive_windows(size: int, out: int) -> list[Window]:
    """Windows ``[floor(o * size / out), ceil((o + 1) * size / out))``."""
    bounds = [(o * size // out, -(-(o + 1) * size // out)) for o in range(out)]
    return [Window(list(range(lo, hi)), lo, hi - lo) for lo, hi in bounds]


def fractional_windows(size: int, kernel: int, out: int, sample: Any) -> list[Window]:
    """Windows from ``floor((o + sample) * step) - floor(sample * step)``, rounded in the sample's dtype.

    The last window ends with the input, and rounding must not move another one beyond it.
    """
    number = type(sample)
    starts = [size - kernel] * out
    for o in range(out - 1):
        step = number(size - kernel) / number(out - 1)
        start = floor(float((number(o) + sample) * step)) - floor(float(sample * step))
        starts[o] = min(start, size - kernel)
    return [Window(list(range(lo, lo + kernel)), lo, kernel) for lo in starts]


def entries(value: Any, n: int | None = None) -> list[Any]:
    """The entries of a sequence; a single one applies to all ``n`` axes."""
    listed = list(value) if isinstance(value, Sequence) else [value]
    return listed * n if n and len(listed) == 1 else listed


def sliding_plan(
    shape: Sequence[int],
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Plan:
    """Sliding windows of the last axes; ``padding`` is an int, or per axis an int or (before, after)."""
    kernels = entries(kernel)
    n = len(kernels)
    strides = kernels if stride is None else entries(stride, n)
    pads = [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in entries(padding, n)]
    axes = zip(shape[-n:], kernels, strides, pads, entries(dilation, n), strict=True)
    return [sliding_windows(*axis, ceil_mode) for axis in axes]


def adaptive_plan(shape: Sequence[int], output_size: Any) -> Plan:
    """Adaptive windows of the last axes; ``None`` keeps an axis at its size."""
    outs = entries(output_size)
    sizes = shape[-len(outs) :]
    return [
        adaptive_windows(size, size if out is None else out) for size, out in zip(sizes, outs, strict=True)
    ]


def flat_windows(plan: Plan, shape: Sequence[int]) -> Iterator[tuple[int, Array, int]]:
    """For each output in row-major order: its number, the flat indices in its window, its flat start."""
    sizes = shape[-len(plan) :]
    pitches = [prod(sizes[axis + 1 :]) for axis in range(len(plan))]
    for o, windows in enumerate(product(*plan)):
        flat = np.zeros(1, np.int64)
        for window, pitch in zip(windows, pitches, strict=True):
            flat = (flat[:, None] + np.array(window.positions, np.int64) * pitch).ravel()
        yield o, flat, sum(window.start * pitch for window, pitch in zip(windows, pitches, strict=True))


def outs(plan: Plan) -> tuple[int, ...]:
    """The output size of each axis of the plan."""
    return tuple(len(axis) for axis in plan)


def counts(plan: Plan, padded: bool) -> Array:
    """The number of taps of each window, with padding or in the input only."""
    axes = [[window.count if padded else len(window.positions) for window in axis] for axis in plan]
    return np.array([prod(taps) for taps in product(*axes)], np.int64).reshape(outs(plan))


def planes(x: Array, n: int) -> Array:
    """The array with its last ``n`` axes flattened into one."""
    return x.reshape(*x.shape[: x.ndim - n], prod(x.shape[x.ndim - n :]))


def is_float(dtype: DType) -> bool:
    """Whether a dtype is floating point, including bfloat16."""
    return dtype == ml_dtypes.bfloat16 or np.issubdtype(dtype, np.floating)


def extremum_of_nothing(dtype: DType, least: bool) -> Any:
    """The maximum or minimum of an empty window: an infinity, or the end of the dtype's range."""
    if is_float(dtype):
        return inf if least else -inf
    if dtype == np.bool_:
        return least
    return np.iinfo(dtype).max if least else np.iinfo(dtype).min


def select(x: Array, plan: Plan, least: bool = False) -> tuple[Array, Array]:
    """The extremum of each window and its flat index: the first of ties, the last of several NaNs.

    The index of an empty window is its start, even if that is outside the input.
    """
    flat_x = planes(x, len(plan))
    ordered = flat_x.astype(np.float64) if is_float(x.dtype) else flat_x
    values = np.empty((*flat_x.shape[:-1], prod(outs(plan))), x.dtype)
    indices = np.empty(values.shape, np.int64)
    for o, flat, start in flat_windows(plan, x.shape):
        if flat.size == 0:
            values[..., o], indices[..., o] = extremum_of_nothing(x.dtype, least), start
            continue
        elements = ordered[..., flat]
        nan = np.isnan(elements)
        last_nan = flat.size - 1 - nan[..., ::-1].argmax(-1)
        first_best = elements.argmin(-1) if least else elements.argmax(-1)
        indices[..., o] = flat[np.where(nan.any(-1), last_nan, first_best)]
        values[..., o] = np.take_along_axis(flat_x, indices[..., o : o + 1], -1)[..., 0]
    shape = x.shape[: x.ndim - len(plan)] + outs(plan)
    return values.reshape(shape), indices.reshape(shape)


def total(x: Array, plan: Plan) -> Array:
    """The sum of each window: floats in float64, other dtypes promoted as by ``np.sum``."""
    flat_x = planes(x.astype(np.float64) if is_float(x.dtype) else x, len(plan))
    sums = np.empty((*flat_x.shape[:-1], prod(outs(plan))), flat_x[..., :0].sum().dtype)
    with np.errstate(invalid="ignore"):
        for o, flat, _ in flat_windows(plan, x.shape):
            sums[..., o] = flat_x[..., flat].sum(-1)
    return sums.reshape(x.shape[: x.ndim - len(plan)] + outs(plan))


def narrow(x: Array, dtype: DType) -> Array:
    """The array in another dtype; overflow to infinity is the expected result."""
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def mean(x: Array, plan: Plan, divisor: Any) -> Array:
    """The sum of each window divided by the divisor; integers truncate toward zero."""
    sums = total(x, plan)
    divisor = np.asarray(divisor, sums.dtype)
    if is_float(sums.dtype):
        return sums / divisor
    return sums // divisor + ((sums % divisor != 0) & ((sums < 0) != (divisor < 0)))


def max_pool(
    x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Array, Array]:
    """The maximum of each window and its flat index in the plane."""
    return select(x, sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode))


def min_pool(
    x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Array, Array]:
    """The minimum of each window and its flat index in the plane."""
    return select(x, sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode), least=True)


def adaptive_max_pool(x: Array, output_size: Any) -> tuple[Array, Array]:
    """The maximum of each adaptive window and its flat index in the plane."""
    return select(x, adaptive_plan(x.shape, output_size))


def fractional_max_pool(x: Array, kernel: Any, output_size: Any, samples: Array) -> tuple[Array, Array]:
    """The maximum of each fractional window; ``samples`` has one number in [0, 1) per plane and axis.

    In 2-D the samples of a plane are ordered last axis first, otherwise first axis first.
    """
    kernels, sizes = entries(kernel), entries(output_size)
    n = len(kernels)
    flat_x = x.reshape(-1, *x.shape[x.ndim - n :])
    values = np.empty((len(flat_x), *sizes), x.dtype)
    indices = np.empty(values.shape, np.int64)
    for plane, sample in enumerate(samples.reshape(-1, n)):
        axes = zip(flat_x.shape[1:], kernels, sizes, sample[::-1] if n == 2 else sample, strict=True)
        values[plane], indices[plane] = select(flat_x[plane], [fractional_windows(*axis) for axis in axes])
    shape = (*x.shape[: x.ndim - n], *sizes)
    return values.reshape(shape), indices.reshape(shape)


def max_unpool(values: Array, indices: Array, output_size: Any) -> Array:
    """Zeros with each value at its flat index; for repeated indices the last value wins."""
    sizes = entries(output_size)
    n = len(sizes)
    result = np.zeros((*values.shape[: values.ndim - n], prod(sizes)), values.dtype)
    flat_values, flat_indices = planes(values, n), planes(indices, n)
    for o in range(flat_values.shape[-1]):
        np.put_along_axis(result, flat_indices[..., o : o + 1], flat_values[..., o : o + 1], -1)
    return result.reshape(*result.shape[:-1], *sizes)


def sum_pool(
    x: Array, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Array:
    """The sum of each window, promoted as by ``np.sum``."""
    sums = total(x, sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode))
    return narrow(sums, x.dtype) if is_float(x.dtype) else sums


def avg_divisor(plan: Plan, count_include_pad: bool, divisor_override: int | None) -> Any:
    """The divisor of each window; 1 for empty windows."""
    return np.maximum(counts(plan, count_include_pad), 1) if divisor_override is None else divisor_override


def avg_pool(
    x: Array,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Any = 1,
) -> Array:
    """The average of each window."""
    plan = sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode)
    return narrow(mean(x, plan, avg_divisor(plan, count_include_pad, divisor_override)), x.dtype)


def adaptive_avg_pool(x: Array, output_size: Any) -> Array:
    """The average of each adaptive window."""
    plan = adaptive_plan(x.shape, output_size)
    return narrow(mean(x, plan, counts(plan, padded=False)), x.dtype)


def lp_pool(
    x: Array,
    norm_type: float,
    kernel: Any,
    stride: Any = None,
    ceil_mode: bool = False,
    padding: Any = 0,
    dilation: Any = 1,
) -> Array:
    """``(taps * mean(x ** p)) ** (1 / p)``; for p = inf or -inf the extremum of the magnitudes.

    Integers to an integer power are computed in integers up to the root, so their mean truncates; the root
    is float32.
    """
    plan = sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode)
    if abs(norm_type) == inf:
        return select(np.abs(x), plan, least=norm_type < 0)[0]
    dtype = x.dtype if is_float(x.dtype) else np.dtype(np.float32)
    if is_float(x.dtype) or isinstance(norm_type, float):
        x = x.astype(np.float64)
    elif x.dtype != np.uint64:
        x = x.astype(np.int64)
    with np.errstate(all="ignore"):
        means = mean(x**norm_type, plan, counts(plan, padded=True))
        return narrow((means * prod(entries(kernel))).astype(np.float64) ** (1 / norm_type), dtype)


def sum_backward(
    grad: Array, plan: Plan, sizes: Sequence[int], divisor: Any = 1, weights: Array | None = None
) -> Array:
    """The adjoint of a sum: each output's gradient is added to all elements of its window, times a weight."""
    n = len(plan)
    flat_grad = planes(grad.astype(np.float64) / divisor, n)
    result = np.zeros((*flat_grad.shape[:-1], prod(sizes[-n:])))
    scale = np.ones(result.shape[-1:]) if weights is None else planes(weights, n)
    for o, flat, _ in flat_windows(plan, sizes):
        result[..., flat] += flat_grad[..., o : o + 1] * scale[..., flat]
    return result.reshape(*result.shape[:-1], *sizes[-n:])


def max_pool_backward(grad: Array, indices: Array, sizes: Sequence[int]) -> Array:
    """Gradient of max and min pooling: each output's gradient is added at its index."""
    n = len(sizes)
    flat_grad, flat_indices = planes(grad.astype(np.float64), n), planes(indices, n)
    result = np.zeros((*flat_grad.shape[:-1], prod(sizes)))
    for o in range(flat_grad.shape[-1]):
        at = flat_indices[..., o : o + 1]
        np.put_along_axis(result, at, np.take_along_axis(result, at, -1) + flat_grad[..., o : o + 1], -1)
    return result.reshape(*result.shape[:-1], *sizes).astype(grad.dtype)


def max_unpool_backward(grad: Array, indices: Array, n: int) -> Array:
    """Gradient of unpooling ``n`` axes: each value gets the gradient at its index."""
    return np.take_along_axis(planes(grad, n), planes(indices, n), -1).reshape(indices.shape)


def avg_pool_backward(
    grad: Array,
    sizes: Sequence[int],
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    dilation: Any = 1,
) -> Array:
    """Gradient of average pooling over sliding windows; ``sizes`` are those of the input."""
    plan = sliding_plan(sizes, kernel, stride, padding, dilation, ceil_mode)
    divisor = avg_divisor(plan, count_include_pad, divisor_override)
    return sum_backward(grad, plan, sizes, divisor).astype(grad.dtype)


def adaptive_avg_pool_backward(grad: Array, sizes: Sequence[int], output_size: Any) -> Array:
    """Gradient of average pooling over adaptive windows; ``sizes`` are those of the input."""
    plan = adaptive_plan(sizes, output_size)
    return sum_backward(grad, plan, sizes, counts(plan, padded=False)).astype(grad.dtype)


def lp_pool_backward(
    grad: Array,
    x: Array,
    norm_type: float,
    kernel: Any,
    stride: Any = None,
    ceil_mode: bool = False,
    padding: Any = 0,
    dilation: Any = 1,
) -> Array:
    """Gradient of Lp pooling: ``taps / count * (x / y) ** (p - 1)``, 0 where a window sums to zero."""
    plan = sliding_plan(x.shape, kernel, stride, padding, dilation, ceil_mode)
    n = len(plan)
    if abs(norm_type) == inf:
        _, indices = select(np.abs(x), plan, least=norm_type < 0)
        return max_pool_backward(grad, indices, x.shape[-n:]) * np.sign(x)
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        y = lp_pool(x, norm_type, kernel, stride, ceil_mode, padding, dilation)
        share = grad * y ** (1 - norm_type) * prod(entries(kernel))
        share[total(x**norm_type, plan) == 0] = 0
        return sum_backward(share, plan, x.shape, counts(plan, padded=True), x ** (norm_type - 1)).astype(
            grad.dtype
        )
