"""Random calls of the general functions for the GPU kernels: any rank, pooled axes and memory layout.

`gpu_checks.py` runs a few of them in the interpreter and more on a GPU, in poisoned memory, so that elements
that no kernel wrote are detected. Expected values come from the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

import ndpool
import oracle
from helpers import on_axes
from ndpool import geometry

REDUCTIONS = ("max", "min", "avg", "sum", "lp")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8)


@dataclass
class Draw:
    """A call of `pool` or `adaptive_pool`, its input in its memory layout, and the oracle's windows."""

    x: torch.Tensor
    function: str
    window: tuple[int, ...]
    options: dict[str, Any]
    plan: oracle.Plan
    counts: Any  # divisors of averages

    @property
    def axes(self) -> tuple[int, ...]:
        return self.options["axes"]

    def __str__(self) -> str:
        memory = f"{tuple(self.x.shape)} with strides {self.x.stride()} and {self.x.dtype}"
        return f"{self.function}(x, {self.window}, **{self.options}) of {memory}"


def draw(rng: np.random.Generator, device: str, large: int = 7) -> Draw:
    """A legal call; tensors of 1 to 7 axes, of which up to 3 are pooled, in any order."""
    ndim = int(rng.integers(1, 8))
    n = int(rng.integers(1, min(3, ndim) + 1))
    chosen = rng.permutation(ndim)[:n]
    leads, pooled = [1, 2, 2, 3], large
    if rng.random() < 0.25:
        # Leading axes between all pooled ones, few of which can be merged.
        ndim, chosen, leads, pooled = 6, rng.permutation([1, 3, 5]), [2, 3], 4
    axes = tuple(int(a) for a in (sorted(chosen) if rng.random() < 0.6 else chosen))
    shape = [int(rng.integers(1, pooled + 1) if a in axes else rng.choice(leads)) for a in range(ndim)]
    if ndim < 5 and rng.random() < 0.3:
        shape[axes[-1]] *= int(rng.integers(2, 9))
    sizes = [shape[a] for a in axes]
    options: dict[str, Any] = {"reduce": REDUCTIONS[int(rng.integers(5))], "axes": axes}
    if rng.random() < 0.3:
        window = tuple(int(rng.integers(1, size + 2)) for size in sizes)
        plan = oracle.adaptive_plan(sizes, window)
        counts, function = oracle.counts(plan, padded=False), "adaptive_pool"
    else:
        window, options, plan = _sliding(rng, sizes, options)
        include = options.get("count_include_pad", True)
        counts, function = np.maximum(oracle.counts(plan, padded=include), 1), "pool"
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    if options["reduce"] == "lp" and not dtype.is_floating_point:
        dtype = torch.float32
    low = 0 if dtype is torch.uint8 or options["reduce"] == "lp" else -3
    values = torch.from_numpy(rng.integers(low, 4, shape)).to(dtype)
    return Draw(lay_out(rng, values, device), function, window, options, plan, counts)


def _sliding(
    rng: np.random.Generator, sizes: list[int], options: dict[str, Any]
) -> tuple[tuple[int, ...], dict[str, Any], oracle.Plan]:
    n = len(sizes)
    while True:
        kind = rng.integers(3)
        window = tuple(
            size if kind == 0 else int(rng.integers(1, min(5 if kind == 1 else 16, size + 2) + 1))
            for size in sizes
        )
        pads = tuple(int(rng.integers(0, k // 2 + 1)) if rng.random() < 0.5 else 0 for k in window)
        stride = window if rng.random() < 0.4 else tuple(int(rng.integers(1, 5)) for _ in sizes)
        dilation = (1,) * n if rng.random() < 0.7 else tuple(int(rng.integers(1, 4)) for _ in sizes)
        how = {"stride": stride, "padding": pads, "dilation": dilation, "ceil_mode": bool(rng.random() < 0.5)}
        try:
            geometry.sliding("pool", tuple(sizes), window, *how.values(), strict=False)
        except ValueError:
            continue
        plan = oracle.sliding_plan(sizes, *map(list, (window, stride, pads, dilation)), how["ceil_mode"])
        if options["reduce"] == "avg":
            how["count_include_pad"] = bool(rng.random() < 0.5)
        return window, options | how, plan


def lay_out(rng: np.random.Generator, values: torch.Tensor, device: str) -> torch.Tensor:
    """The values in a random memory layout: permuted axes, gaps, an offset, or expanded."""
    kind = rng.integers(4)
    if kind == 0:
        return values.contiguous().to(device)
    order = [int(a) for a in rng.permutation(values.dim())]
    steps = [int(rng.integers(1, 3)) if kind > 1 else 1 for _ in order]
    first = [int(rng.integers(0, 3)) if kind > 1 else 0 for _ in order]
    whole = torch.empty(
        [values.shape[a] * s + f for a, s, f in zip(order, steps, first, strict=True)],
        dtype=values.dtype,
        device=device,
    )
    cut = whole[tuple(slice(f, None, s) for f, s in zip(first, steps, strict=True))]
    view = cut.permute([order.index(a) for a in range(values.dim())])
    view.copy_(values)
    if kind == 3 and rng.random() < 0.3:
        a = int(rng.integers(values.dim()))
        view = view.narrow(a, 0, 1).expand(values.shape)
    return view


def check(rng: np.random.Generator, call: Draw, device: str) -> None:
    """Compare values, indices, gradients and unpooling with the oracle."""
    reduce, axes, function = call.options["reduce"], call.axes, getattr(ndpool, call.function)
    x = call.x.detach().cpu().double().numpy()
    sizes = tuple(x.shape[a] for a in axes)
    has_index = reduce in ("max", "min")
    if has_index:
        values, indices = on_axes(oracle.select, x, axes, call.plan, reduce == "min")
        got, places = function(call.x, call.window, **call.options, return_indices=True)
        _same(got, values, call, exact=True)
        _same(places, indices, call, exact=True)
        if indices.size and indices.max() >= prod(sizes):
            return  # the index of a window without elements lies outside, as PyTorch's does
        laid = tuple(lay_out(rng, t.cpu(), device) for t in (got, places))
        back = ndpool.unpool(*laid, sizes, axes=axes)
        pair = (t.cpu().double().numpy() for t in laid)
        (want,) = _of_two(oracle.max_unpool, *pair, axes, list(sizes))
        _same(back, want, call, exact=True)
    elif reduce == "lp":
        (sums,) = on_axes(oracle.total, x**2, axes, call.plan)
        values = np.sqrt(sums)
    else:
        (values,) = on_axes(oracle.total, x, axes, call.plan)
        if reduce == "avg":
            values = values / _along(call.counts, axes, x.ndim)
            values = values if call.x.is_floating_point() else np.trunc(values)
    _same(function(call.x, call.window, **call.options), values, call, exact=has_index)
    if not call.x.is_floating_point() or reduce == "lp":
        return
    leaf = call.x.detach().requires_grad_()
    y = function(leaf, call.window, **call.options)
    _same(y, values, call, exact=has_index)
    given = lay_out(rng, torch.from_numpy(rng.integers(-3, 4, values.shape)).to(y.dtype), device)
    (g,) = torch.autograd.grad(y, leaf, given)
    grad = given.cpu().double().numpy()
    if has_index:
        (want,) = _of_two(oracle.max_pool_backward, grad, indices, axes, sizes)
    else:
        shares = grad / _along(call.counts, axes, x.ndim) if reduce == "avg" else grad
        (want,) = on_axes(oracle.sum_backward, shares, axes, call.plan, sizes)
    _same(g, want, call, exact=has_index)


def _along(counts: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """The divisors, moved to the pooled axes."""
    return np.moveaxis(counts.reshape((1,) * (ndim - len(axes)) + counts.shape), range(-len(axes), 0), axes)


def _of_two(solve: Any, a: Any, b: Any, axes: tuple[int, ...], *args: Any) -> tuple[Any, ...]:
    """`on_axes` for functions of two arrays."""
    last = range(-len(axes), 0)
    found = solve(np.moveaxis(a, axes, last), np.moveaxis(b, axes, last).astype(np.int64), *args)
    return (np.moveaxis(found, last, axes),)


def _same(got: torch.Tensor, want: Any, call: Draw, *, exact: bool) -> None:
    assert tuple(got.shape) == want.shape, str(call)
    have = got.detach().cpu().double().numpy()
    slack = 0.0 if exact or not got.is_floating_point() else 8 * torch.finfo(got.dtype).eps
    with np.errstate(invalid="ignore"):  # infinities, which are equal or wrong
        wrong = np.argwhere((have != want) & ~(np.abs(have - want) <= slack * (1 + np.abs(want))))
    at = tuple(map(int, wrong[0])) if len(wrong) else ()
    assert len(wrong) == 0, f"{have[at]}, not {want[at]}, at {at} and {len(wrong)} places\n{call}"
