"""Draws one call from a seed: function, arguments, values, memory layout, threads and instruction set.

The same seed always gives the same case. Arguments are legal; `illegal.py` makes them illegal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

import oracle
from cases import BOOL, DTYPES, chance, draw_floats, draw_integers, pick, spell, unpool_sizes
from fences import ENDS, packed
from fuzz import reference
from fuzz.case import Case, Rng, draw_layout, repeated
from oracle import Array, DType, Plan, is_float

SIZES = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    13,
    15,
    16,
    17,
    20,
    24,
    31,
    32,
    33,
    40,
    63,
    64,
    65,
    100,
    127,
    129,
    255,
    257,
]
NAMED = [
    *(
        f"{family}_pool{n}d"
        for family in ("max", "avg", "lp", "adaptive_max", "adaptive_avg")
        for n in (1, 2, 3)
    ),
    *(f"max_unpool{n}d" for n in (1, 2, 3)),
    "fractional_max_pool2d",
    "fractional_max_pool3d",
]
GENERAL = ["pool"] * 8 + ["adaptive_pool"] * 3 + ["unpool"]
REDUCTIONS = ["max", "min", "avg", "sum", "lp"]
# Typical layers of networks, with specialised engines: kernel, stride, padding, dilation.
USUAL = [(2, 2, 0, 1), (2, 2, 1, 1), (3, 2, 1, 1), (3, 2, 0, 1), (3, 1, 1, 1), (5, 1, 2, 1), (7, 1, 3, 1)]
USUAL += [
    (4, 1, 2, 1),
    (9, 1, 4, 1),
    (13, 1, 6, 1),
    (17, 1, 8, 1),
    (31, 1, 15, 1),
    (3, 2, 1, 2),
    (3, 1, 1, 2),
]
CHANNELS = [1, 2, 3, 8, 16, 17, 32, 33, 65]
PLANES = [4, 5, 7, 8, 9, 13, 14, 15, 16, 17, 20, 28, 31, 33, 40, 56, 90]


def draw_sizes(rng: Rng, n: int, budget: int) -> list[int]:
    """`n` sizes with a product of at most `budget`, in any order."""
    sizes = []
    for left in range(n, 0, -1):
        limit = max(1, budget if left == 1 or chance(rng, 0.3) else int(budget ** (1 / left) * 2))
        options = [size for size in SIZES if size <= min(limit, budget)]
        size = pick(rng, options[-6:] if left == 1 and chance(rng, 0.5) else options)
        sizes.append(size)
        budget = max(1, budget // size)
    return [sizes[i] for i in rng.permutation(n)]


def draw_window(rng: Rng, size: int, strict: bool, dilates: bool) -> tuple[int, int, int, int, int]:
    """The kernel, stride, padding before and after, and dilation of one axis."""
    way = rng.random()
    if way < 0.7:
        kernel = int(rng.integers(1, 6))
    elif way < 0.8:
        kernel = size
    else:
        kernel = int(rng.integers(1, max(2, min(40, size + size // 2 + 2))))
    dilation = int(rng.integers(2, 6)) if dilates and chance(rng, 0.2) else 1
    stride = pick(rng, [1, 1, 1, 2, 2, 3, kernel, kernel, int(rng.integers(1, size + 3))])
    limit = kernel // 2 if strict else kernel
    before = 0 if chance(rng, 0.5) else int(rng.integers(0, limit + 1))
    after = before if strict or chance(rng, 0.6) else int(rng.integers(0, limit + 1))
    return kernel, stride, before, after, dilation


def draw_sliding(
    rng: Rng, sizes: Sequence[int], function: str, cost: int, usual: bool
) -> tuple[dict[str, Any], Plan]:
    """Arguments of a sliding function and its plan, with at most `cost` taps per plane."""
    n, strict = len(sizes), function != "pool"
    dilates = not strict or function.startswith("max")
    single = chance(rng, 0.12)  # one output
    for attempt in range(100):
        ceil = chance(rng, 0.35)
        if usual:
            k, s, p, d = pick(rng, USUAL)
            axes = [(k, s, p, p, d if dilates else 1)] * n
        elif single:
            axes = [(size, 1 if chance(rng, 0.5) else size, 0, 0, 1) for size in sizes]
        elif chance(rng, 0.5):
            axes = [draw_window(rng, min(sizes), strict, dilates)] * n
        else:
            axes = [draw_window(rng, size, strict, dilates) for size in sizes]
        if attempt > 30:
            axes = [(1, 1, 0, 0, 1)] * n
        if function.startswith("lp") and strict:
            axes = [(k, s, 0, 0, 1) for k, s, *_ in axes]
        kernel, stride, before, after, dilation = (list(a) for a in zip(*axes, strict=True))
        lengths = [
            oracle.output_size(size, k, s, (b, a), d, ceil)
            for size, (k, s, b, a, d) in zip(sizes, axes, strict=True)
        ]
        if (
            min(lengths) < 1
            or prod(lengths) * prod(min(k, s) for k, s in zip(kernel, sizes, strict=True)) > cost
        ):
            continue
        pads = list(zip(before, after, strict=True))
        plan = oracle.sliding_plan(sizes, kernel, stride, pads, dilation, ceil)
        if strict or all(window.positions for axis in plan for window in axis):
            break
    else:
        raise AssertionError("no valid window found")
    kwargs: dict[str, Any] = {"ceil_mode": ceil} if ceil or chance(rng, 0.2) else {}
    if stride != kernel or chance(rng, 0.3):
        kwargs["stride"] = spell(rng, stride)
    if before != after:
        kwargs["padding"] = pads
    elif any(before) or chance(rng, 0.2):
        kwargs["padding"] = spell(rng, before)
    if set(dilation) != {1}:
        kwargs["dilation"] = spell(rng, dilation)
    window = spell(rng, kernel) if function != "pool" else tuple(kernel)
    return {"window" if function == "pool" else "kernel_size": window} | kwargs, plan


def draw_adaptive(rng: Rng, sizes: Sequence[int], cost: int) -> tuple[dict[str, Any], Plan]:
    """An output size and its plan."""
    for attempt in range(100):
        outs: list[Any] = [
            1 if chance(rng, 0.3) else int(rng.integers(1, size + 1 + 2 * chance(rng, 0.2))) for size in sizes
        ]
        if chance(rng, 0.1):
            outs[int(rng.integers(len(outs)))] = None
        plan = oracle.adaptive_plan(sizes, [1] * len(sizes) if attempt > 30 else outs)
        if attempt > 30:
            outs = [1] * len(sizes)
        if prod(sum(len(w.positions) for w in axis) for axis in plan) <= cost:
            break
    return {"output_size": tuple(outs) if len(sizes) > 1 else (outs[0],)}, plan


def draw_norm(rng: Rng, dtype: DType) -> float:
    """The power of Lp pooling."""
    norms: list[float] = [1, 2, 3, 2.0, 1.5, inf]
    if is_float(dtype):
        norms += [4, 3.0, 2.5, 0.5, -1, -2.0, -inf]
    return pick(rng, norms)


def draw_values(rng: Rng, shape: tuple[int, ...], dtype: DType, case: Case) -> Array:
    """Difficult input values whose result does not depend on the order of additions."""
    reduce, norm = case.reduce, case.norm
    if dtype == BOOL or not is_float(dtype):
        return draw_integers(rng, shape, dtype, {"avg": 2**40, "sum": 2**40, "lp": 20}.get(reduce, 2**64))
    kinds = ["normal", "negative", "ties", "zeros", "nan", "inf"]
    if reduce == "lp" and (norm < 0 or norm % 2 == 1) and norm not in (1, -inf):
        kinds = ["powers"]
    elif reduce == "lp" and norm < 1:
        kinds.remove("inf")
    elif case.has_index:
        kinds.append("extremes")
    values = draw_floats(rng, shape, dtype, kinds)
    if chance(rng, 0.3) and values.size and kinds != ["powers"] and (reduce != "lp" or norm >= 1):
        odd = [np.nan, inf, -inf, 0.0, -0.0, float(np.finfo(np.float16).smallest_subnormal)]
        for _ in range(int(rng.integers(1, 4))):
            values.reshape(-1)[int(rng.integers(values.size))] = pick(rng, odd)
    return values


def draw_unpool(rng: Rng, case: Case, sizes: Sequence[int]) -> dict[str, Any]:
    """Arguments of unpooling: indices anywhere in the result, repeated or not."""
    n, lead = len(sizes), [s for a, s in enumerate(case.shape) if a not in case.axes]
    kwargs: dict[str, Any] = {}
    if case.function == "unpool":
        wide = [int(rng.integers(1, 2 * size + 2)) for size in sizes]
        kwargs["output_size"] = tuple(wide)
    else:
        while True:
            kernel, stride = [int(rng.integers(1, 5))] * n, [int(rng.integers(1, 5))] * n
            pad = [int(rng.integers(0, kernel[0] // 2 + 1))] * n
            default = unpool_sizes(sizes, kernel, stride, pad)
            wide = [int(size + rng.integers(1 - s, s)) for size, s in zip(default, stride, strict=True)]
            if min(default + wide) >= 1:
                break
        kwargs = {"kernel_size": spell(rng, kernel), "stride": spell(rng, stride), "padding": spell(rng, pad)}
        if chance(rng, 0.6):
            kwargs["output_size"] = tuple(wide)
        else:
            wide = default
    case.sizes = tuple(wide)
    count, positions = prod(sizes), prod(wide)
    at = rng.integers(positions, size=(*lead, count))
    if positions >= count and chance(rng, 0.7):
        at = np.argsort(rng.random((*lead, positions)), axis=-1)[..., :count]
    case.indices = np.ascontiguousarray(reference.unplanes(at.reshape(-1, count), lead, sizes, case.axes))
    case.indices_layout = draw_layout(rng, len(case.shape), case.framework == "numpy")
    case.indices = repeated(case.indices, case.indices_layout)
    return kwargs


def draw_fractional(rng: Rng, case: Case, shape: tuple[int, ...]) -> dict[str, Any]:
    """Arguments of fractional pooling including samples; every plane has different windows."""
    n = len(case.axes)
    sizes = shape[-n:]
    kernel = [int(rng.integers(1, min(3, size) + 1)) for size in sizes]
    outs = [int(rng.integers(1, size - k + 2)) for size, k in zip(sizes, kernel, strict=True)]
    lead = (1, *shape[:-n]) if len(shape) == n + 1 else shape[:-n]
    dtype = case.values.dtype if is_float(case.values.dtype) else np.dtype(np.float32)
    case.sizes = tuple(outs)
    samples = np.minimum(rng.random((*lead, n)), 0.99).astype(dtype)
    for sample in samples.reshape(-1, n):
        by_axis = sample[::-1] if n == 2 else sample
        axes = zip(sizes, kernel, outs, by_axis, strict=True)
        case.plans.append([oracle.fractional_windows(*axis) for axis in axes])
    return {"kernel_size": tuple(kernel), "output_size": tuple(outs), "_random_samples": samples}


def draw(seed: int, isas: int) -> Case:
    """The case of a seed, given the number of instruction sets."""
    rng = np.random.default_rng(seed)
    if chance(rng, 0.12):
        return draw_usual(rng, seed, isas)
    framework = "torch" if chance(rng, 0.3) else "numpy"
    function = pick(rng, GENERAL if chance(rng, 0.5) else NAMED)
    budget = int(rng.choice([60, 600, 3000, 20000, 150000], p=[0.36, 0.4, 0.2, 0.035, 0.005]))
    dtype = pick(rng, DTYPES) if chance(rng, 0.5) else pick(rng, DTYPES[-4:])
    if function in GENERAL:
        n = min(int(rng.choice([1, 2, 3, 4, 5, 6], p=[0.4, 0.3, 0.15, 0.05, 0.05, 0.05])), 6)
        ndim = n + int(rng.integers(0, max(1, min(4, 7 - n))))
        in_place = chance(rng, 0.4)
        axes = tuple(range(ndim - n, ndim)) if in_place else tuple(int(a) for a in rng.permutation(ndim)[:n])
    else:
        n = int(function[-2])
        ndim = n + 1 + chance(rng, 0.75)
        axes = tuple(range(ndim - n, ndim))
    shape = tuple(draw_sizes(rng, ndim, budget))
    if function.startswith("fractional"):
        shape = tuple(max(2, s) if a in axes else min(s, 9) for a, s in enumerate(shape))
    if ndim > n and (function in ("pool", "adaptive_pool") or ndim == n + 2) and chance(rng, 0.02):
        empty = next(a for a in range(ndim) if a not in axes)
        shape = tuple(0 if a == empty else s for a, s in enumerate(shape))
    reduce = "max"
    if function in ("pool", "adaptive_pool"):
        reduce = pick(rng, REDUCTIONS)
    elif "avg" in function or "lp" in function:
        reduce = "avg" if "avg" in function else "lp"
    if reduce == "avg" and dtype == BOOL:
        dtype = np.dtype(np.float32)
    case = Case(seed, function, framework, reduce, axes, np.empty(shape, dtype), packed(ndim), {})
    _draw_arguments(rng, case, budget)
    case.values = draw_values(rng, shape, dtype, case)
    _draw_environment(rng, case, isas)
    return case


def draw_usual(rng: Rng, seed: int, isas: int) -> Case:
    """A typical layer of a network: common windows, dtypes and layouts."""
    framework = "torch" if chance(rng, 0.5) else "numpy"
    function = pick(rng, ["max_pool2d", "max_pool2d", "avg_pool2d", "pool", "adaptive_max_pool2d"])
    reduce = pick(rng, ["max", "min", "avg", "sum"]) if function == "pool" else "max"
    reduce = "avg" if "avg" in function else reduce
    dtype = np.dtype(np.float32) if chance(rng, 0.6) else pick(rng, [d for d in DTYPES if d != BOOL])
    while True:
        shape = (int(rng.integers(1, 4)), pick(rng, CHANNELS), pick(rng, PLANES), pick(rng, PLANES))
        if prod(shape) <= 20000:
            break
    case = Case(seed, function, framework, reduce, (2, 3), np.empty(shape, dtype), packed(4), {}, usual=True)
    _draw_arguments(rng, case, 20 * prod(shape))
    case.values = draw_values(rng, shape, dtype, case)
    _draw_environment(rng, case, isas)
    return case


def _draw_arguments(rng: Rng, case: Case, budget: int) -> None:
    function, axes, sizes = case.function, case.axes, [case.shape[a] for a in case.axes]
    general = function in GENERAL
    planes = max(1, case.values.size // max(1, prod(sizes)))
    cost = max(prod(sizes), (20 * budget + 20000) // planes)
    if case.reduce == "lp":
        case.norm = draw_norm(rng, case.dtype)
    if "unpool" in function:
        kwargs = draw_unpool(rng, case, sizes)
    elif "fractional" in function:
        kwargs = draw_fractional(rng, case, case.shape)
    elif "adaptive" in function:
        kwargs, plan = draw_adaptive(rng, sizes, cost)
        case.plans = [plan]
        case.taps = 0
    else:
        kwargs, plan = draw_sliding(rng, sizes, function, cost, case.usual)
        case.plans = [plan]
        kernel = oracle.entries(kwargs["window" if general else "kernel_size"], len(sizes))
        case.taps = 0 if function == "pool" else prod(kernel)
    if general:
        if case.reduce != "max" or chance(rng, 0.5):
            kwargs |= {} if function == "unpool" else {"reduce": case.reduce}
        if axes != tuple(range(len(case.shape) - len(axes), len(case.shape))) or chance(rng, 0.3):
            ndim = len(case.shape)
            kwargs["axes"] = tuple(a - ndim if chance(rng, 0.3) else a for a in axes)
    if case.reduce == "lp":
        kwargs["norm_type"] = case.norm
    if case.reduce == "avg" and "adaptive" not in function:
        if chance(rng, 0.3):
            kwargs["count_include_pad"] = chance(rng, 0.3)
        if chance(rng, 0.15):
            kwargs["divisor_override"] = pick(rng, [1, 2, 7, 100] + [-3] * (case.dtype.kind != "u"))
    if case.reduce == "lp" and function == "pool" and chance(rng, 0.2):
        kwargs["count_include_pad"] = False
    if case.has_index and "unpool" not in function:
        kwargs["return_indices"] = chance(rng, 0.5)
    if not case.has_index and chance(rng, 0.1) and abs(case.norm) != inf:
        kwargs["dtype"] = pick(rng, ["float32", "float64"])
    case.kwargs = kwargs


def _draw_environment(rng: Rng, case: Case, isas: int) -> None:
    ndim, numpy = len(case.shape), case.framework == "numpy"
    case.layout = draw_layout(rng, ndim, numpy)
    if case.usual and chance(rng, 0.8):
        case.layout = packed(ndim) if chance(rng, 0.6) else packed(ndim, [0, 2, 3, 1])
    case.values = repeated(case.values, case.layout)
    case.end = pick(rng, [*ENDS, *ENDS, ""])
    case.threads, case.isa = int(rng.integers(1, 4)), int(rng.integers(isas))
    case.layer = case.function not in GENERAL and chance(rng, 0.1)
    unknown = {"dtype", "divisor_override"} | ({"padding"} if case.reduce == "lp" else set())
    case.layer = case.layer and not unknown & {*case.kwargs}
    if case.layer and case.reduce == "lp":  # layers convert the power to float
        case.norm = case.kwargs["norm_type"] = float(case.norm)
    case.readonly = numpy and chance(rng, 0.05)
    case.swapped = numpy and case.dtype.itemsize > 1 and case.dtype.kind in "iuf" and chance(rng, 0.02)
    case.result_end = pick(rng, [*ENDS, ""])
    takes_out = "unpool" not in case.function and "fractional" not in case.function and not case.layer
    if takes_out and chance(rng, 0.35):
        case.out = (draw_layout(rng, ndim, numpy, True), draw_layout(rng, ndim, numpy, True))
        case.out_end = pick(rng, [*ENDS, *ENDS, ""])
    case.gradient = is_float(case.dtype) and "dtype" not in case.kwargs and chance(rng, 0.4)
    case.grad_layout = draw_layout(rng, ndim, numpy)
    case.others = (int(rng.integers(1, 4)), int(rng.integers(isas)), draw_layout(rng, ndim, numpy))
    if any(case.others[2].broadcast):
        case.others = (*case.others[:2], packed(ndim))
    case.illegal = int(rng.integers(1, 2**31)) if chance(rng, 0.04) else 0
