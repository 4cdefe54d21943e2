"""Pooling as registered PyTorch operators, for compilers, export, fake tensors and dispatch modes.

Traced by the room in `torch.py` where it cannot run kernels itself. Windows travel as flat integers that may
be symbols, so every operator asks `geometry` anew. All take their tensors first, then the pooled axes; each
has a shape function, a `vmap` rule and, where it is differentiable, a backward made of other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, define, impl, register_fake, register_vmap

from ndpool import geometry
from ndpool._arguments import check_sizes
from ndpool._native import INDEX64, OFFSET8, OFFSET32
from ndpool.frameworks import _torch_checks as checks
from ndpool.frameworks import _torch_kernels as kernels
from ndpool.frameworks._torch_autograd import batched, slopes, take
from ndpool.frameworks._torch_kernels import empty, is_channels_last, with_sizes
from ndpool.reductions import REDUCTIONS

GENERAL = ("pool", "adaptive_pool")
_PLACE = "SymInt[] axes, str fn, str reduce, SymInt[] windows"
_MAX = REDUCTIONS["max"]


_PICKS = tuple(name for name, reduction in REDUCTIONS.items() if reduction.picks)
_SUMS = ("sum", "avg")


def _place(op: str, x: Tensor, axes: Sequence[int], windows: Sequence[int]) -> tuple[int, ...]:
    checks.check_tensor(op, "grad" if "spread" in op else "x", x)
    at = checks.check_place(op, x, axes)
    checks.check_windows(op, at, windows)
    return at


def sliding_windows(
    kernel: Sequence[int], stride: Any, pads: Any, dilation: Any, ceil_mode: bool, include: bool
) -> list[int]:
    """Sliding windows as the flat integers that operators take; adaptive ones are the output sizes alone."""
    before, after = ([pair[i] for pair in pads] for i in (0, 1))
    return [*kernel, *stride, *before, *after, *dilation, int(ceil_mode), int(include)]


def _parts(n: int, windows: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(windows[i * n : i * n + n]) for i in range(5)]


def _plan(x: Tensor, axes: Sequence[int], fn: str, windows: Sequence[int]) -> geometry.Plan:
    return _plan_of(fn, tuple(x.shape[a] for a in axes), windows)


def _plan_of(fn: str, sizes: tuple[int, ...], windows: Sequence[int]) -> geometry.Plan:
    strict = fn not in GENERAL
    if len(windows) == len(sizes):
        return geometry.adaptive(fn, sizes, tuple(windows), strict=strict)
    kernel, stride, before, after, dilation = _parts(len(sizes), windows)
    pads = before if strict else tuple(zip(before, after, strict=True))
    return geometry.sliding(
        fn, sizes, kernel, stride, pads, dilation, *map(bool, windows[-2:]), strict=strict
    )


def taps_of(n: int, windows: Sequence[int]) -> int:
    """The elements of a window that a norm is scaled up to; 0 for adaptive windows, which are whole."""
    return prod(windows[:n]) if len(windows) > n else 0


def _outs(x: Tensor, axes: Sequence[int], fn: str, windows: Sequence[int]) -> Sequence[int]:
    """The output sizes, of input sizes that may be symbols."""
    sizes, strict = tuple(x.shape[a] for a in axes), fn not in GENERAL
    if len(windows) == len(sizes):
        return geometry.adaptive_sizes(fn, sizes, windows, strict)
    kernel, stride, before, after, dilation = _parts(len(sizes), windows)
    pads = tuple(zip(before, after, strict=True))
    return geometry.sliding_outputs(fn, sizes, kernel, stride, pads, dilation, bool(windows[-2]), strict)


def _offset_kind(x: Tensor, axes: Sequence[int], windows: Sequence[int]) -> int:
    """One byte while that numbers the taps of any window; of an adaptive one an upper bound counts."""
    n = len(axes)
    taps = (
        windows[:n]
        if len(windows) != n
        else [x.shape[a] // max(o, 1) + 2 for a, o in zip(axes, windows, strict=True)]
    )
    return OFFSET8 if prod(taps) <= 256 else OFFSET32


def _empty_outputs(x: Tensor, axes: Any, fn: str, windows: Any, *dtypes: torch.dtype) -> list[Tensor]:
    shape = with_sizes(x.shape, axes, _outs(x, axes, fn, windows))
    channels_last = is_channels_last(x.shape, x.stride(), len(axes))
    return [empty(x, shape, dtype, channels_last, len(axes)) for dtype in dtypes]


def _register(
    op: Any, n_tensors: int, fake: Callable[..., Any], save: Any = None, backward: Any = None
) -> Any:
    def shaped(*args: Any) -> Any:
        # A tensor of the meta device sends the whole call here.
        for other in args[1:n_tensors]:
            checks.check_device(op._qualname, "every tensor", other, args[0])
        return fake(*args)

    op.register_fake(shaped)
    op.register_vmap(batched(op, n_tensors))
    if backward is not None:
        op.register_autograd(backward, setup_context=save)
    return op


def _keep(n_tensors: int) -> Callable[..., None]:
    """What the backward of a linear operator needs: its other tensors, the layout, the arguments."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        x = inputs[0]
        ctx.save_for_backward(*inputs[1:n_tensors])
        ctx.args = inputs[n_tensors:]
        ctx.channels_last = is_channels_last(x.shape, x.stride(), len(inputs[n_tensors]))
        ctx.sizes = [x.shape[a] for a in inputs[n_tensors]]

    return save


@custom_op(
    "ndpool::pool",
    mutates_args=(),
    schema=f"(Tensor x, {_PLACE}, ScalarType dtype, int divisor, float norm) -> Tensor",
)
def pool(
    x: Tensor, axes: Any, fn: str, reduce: str, windows: Any, dtype: Any, divisor: int, norm: float
) -> Any:
    """Values alone."""
    op = "ndpool::pool"
    at = _place(op, x, axes, windows)
    reduction = checks.check_reduce(op, reduce, tuple(REDUCTIONS))
    checks.check_result(op, x, reduction, dtype, divisor, norm)
    return kernels.pool(x, at, _plan(x, axes, fn, windows), reduction, dtype, divisor, norm)


def _pool_save(ctx: Any, inputs: Any, output: Tensor) -> None:
    _keep(1)(ctx, inputs, output)
    reduction = REDUCTIONS[inputs[3]]
    ctx.save_for_backward(
        *((inputs[0],) if reduction.picks else (inputs[0], output) if reduction.norm else ())
    )


def _pool_backward(ctx: Any, grad: Tensor) -> Any:
    axes, fn, reduce, windows, _, divisor, norm = ctx.args
    place = (axes, fn, reduce, windows)
    if REDUCTIONS[reduce].picks:
        # Chosen where no derivative was foreseen; its offsets are made up for.
        offsets = pool_offsets(ctx.saved_tensors[0].detach(), *place)[1]
        found = spread_picks(grad, offsets, *place, ctx.sizes, ctx.channels_last)
    elif REDUCTIONS[reduce].norm:
        x, y = ctx.saved_tensors
        adaptive = len(windows) == len(ctx.sizes)  # norms of whatever the windows hold
        before, after = slopes(x, y, 1 if adaptive else taps_of(len(axes), windows), norm)
        mean = "sum" if adaptive else "avg"
        found = before * spread(grad * after, axes, fn, mean, windows, ctx.sizes, 0, ctx.channels_last)
    else:
        found = spread(grad, *place, ctx.sizes, divisor, ctx.channels_last)
    return found, *(None,) * 7


@custom_op("ndpool::pool_offsets", mutates_args=(), schema=f"(Tensor x, {_PLACE}) -> (Tensor, Tensor)")
def pool_offsets(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """Values, and where in its window each was found: what backward needs."""
    op = "ndpool::pool_offsets"
    at = _place(op, x, axes, windows)
    reduction = checks.check_reduce(op, reduce, _PICKS)
    plan = _plan(x, axes, fn, windows)
    return kernels.pool(x, at, plan, reduction, x.dtype, kind=_offset_kind(x, axes, windows))


def _offsets_save(ctx: Any, inputs: Any, output: Any) -> None:
    _keep(1)(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _offsets_backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
    if grad is None:
        return (None,) * 5
    return spread_picks(grad, *ctx.saved_tensors, *ctx.args, ctx.sizes, ctx.channels_last), *(None,) * 4


@custom_op("ndpool::pool_indices", mutates_args=(), schema=f"(Tensor x, {_PLACE}) -> (Tensor, Tensor)")
def pool_indices(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """Values, and where in its plane each was found."""
    op = "ndpool::pool_indices"
    at = _place(op, x, axes, windows)
    reduction = checks.check_reduce(op, reduce, _PICKS)
    return kernels.pool(x, at, _plan(x, axes, fn, windows), reduction, x.dtype, kind=INDEX64)


@custom_op(
    "ndpool::spread",
    mutates_args=(),
    schema=f"(Tensor grad, {_PLACE}, SymInt[] sizes, int divisor, bool channels_last) -> Tensor",
)
def spread(
    grad: Tensor, axes: Any, fn: str, reduce: str, windows: Any, sizes: Any, divisor: int, channels_last: bool
) -> Any:
    """The adjoint of sums and averages."""
    op = "ndpool::spread"
    at = _place(op, grad, axes, windows)
    reduction = checks.check_reduce(op, reduce, _SUMS)
    plan = _plan_of(fn, check_sizes(op, "sizes", tuple(sizes), len(at)), windows)
    checks.check_grad(op, grad, at, plan)
    return kernels.spread(grad, at, plan, reduction, grad.dtype, divisor, channels_last)


def _spread_backward(ctx: Any, grad: Tensor) -> Any:
    axes, fn, reduce, windows, _, divisor, _ = ctx.args
    return pool(grad, axes, fn, reduce, windows, grad.dtype, divisor, 0.0), *(None,) * 7


@custom_op(
    "ndpool::spread_picks",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor offsets, {_PLACE}, SymInt[] sizes, bool channels_last) -> Tensor",
)
def spread_picks(
    grad: Tensor,
    offsets: Tensor,
    axes: Any,
    fn: str,
    reduce: str,
    windows: Any,
    sizes: Any,
    channels_last: bool,
) -> Any:
    """The gradient of what was picked: each output's, where its value came from."""
    op = "ndpool::spread_picks"
    at = _place(op, grad, axes, windows)
    reduction = checks.check_reduce(op, reduce, _PICKS)
    plan = _plan_of(fn, check_sizes(op, "sizes", tuple(sizes), len(at)), windows)
    checks.check_grad(op, grad, at, plan)
    checks.check_offsets(op, offsets, grad, grad.shape, plan)
    return kernels.spread_picks(grad, offsets, at, plan, reduction, channels_last)


@custom_op(
    "ndpool::gather",
    mutates_args=(),
    schema=f"(Tensor x, Tensor offsets, {_PLACE}, bool channels_last) -> Tensor",
)
def gather(
    x: Tensor, offsets: Tensor, axes: Any, fn: str, reduce: str, windows: Any, channels_last: bool
) -> Any:
    """The elements that were picked, from another array of the same shape."""
    op = "ndpool::gather"
    at = _place(op, x, axes, windows)
    reduction = checks.check_reduce(op, reduce, _PICKS)
    plan = _plan(x, axes, fn, windows)
    checks.check_offsets(op, offsets, x, with_sizes(x.shape, at, plan.out), plan)
    return kernels.gather(x, offsets, at, plan, reduction, channels_last)


@custom_op(
    "ndpool::unpool",
    mutates_args=(),
    schema="(Tensor values, Tensor indices, SymInt[] axes, str fn, SymInt[] sizes) -> Tensor",
)
def unpool(values: Tensor, indices: Tensor, axes: Any, fn: str, sizes: Any) -> Any:
    """Zeros with every value at its index."""
    at = checks.check_place("ndpool::unpool", values, axes)
    checks.check_unpool("ndpool::unpool", values, indices, at, sizes)
    return kernels.unpool(values, indices, at, fn, tuple(sizes))


@custom_op(
    "ndpool::fractional",
    mutates_args=(),
    schema="(Tensor x, Tensor samples, SymInt[] axes, str fn, SymInt[] kernel, SymInt[] outs)"
    " -> (Tensor, Tensor)",
)
def fractional(x: Tensor, samples: Tensor, axes: Any, fn: str, kernel: Any, outs: Any) -> Any:
    """Maxima over windows at the places that samples give, one set per plane, and where they were found."""
    at = checks.check_place("ndpool::fractional", x, axes)
    checks.check_tensor("ndpool::fractional", "x", x)
    checks.check_samples("ndpool::fractional", x, samples, at)
    return kernels.fractional(x, samples, at, fn, tuple(kernel), tuple(outs))


# `custom_op` takes no tags before PyTorch 2.7, and without this one equal draws would become one.
_RANDOM = "ndpool::random_samples"
define(
    _RANDOM,
    "(Tensor x, SymInt[] shape, ScalarType dtype, int? seed) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)
impl(_RANDOM, "default", kernels.random_samples)
random_samples = torch.ops.ndpool.random_samples.default


def _random_batch(info: Any, in_dims: Any, x: Tensor, shape: Any, dtype: Any, seed: int | None) -> Any:
    if seed is None and info.randomness == "error":
        raise RuntimeError(
            "fractional_max_pool: vmap needs randomness='same' or 'different', samples or a seed"
        )
    same = seed is not None or info.randomness == "same"
    return random_samples(x, shape if same else [info.batch_size, *shape], dtype, seed), None if same else 0


register_vmap(_RANDOM, _random_batch)
register_fake(_RANDOM, lambda x, shape, dtype, seed: x.new_empty(shape, dtype=dtype))


_register(
    pool,
    1,
    lambda x, axes, fn, reduce, windows, dtype, *_: _empty_outputs(x, axes, fn, windows, dtype)[0],
    _pool_save,
    _pool_backward,
)
_register(
    pool_offsets,
    1,
    lambda x, axes, fn, reduce, windows: tuple(
        _empty_outputs(
            x,
            axes,
            fn,
            windows,
            x.dtype,
            torch.uint8 if _offset_kind(x, axes, windows) == OFFSET8 else torch.int32,
        )
    ),
    _offsets_save,
    _offsets_backward,
)
_register(
    pool_indices,
    1,
    lambda x, axes, fn, reduce, windows: tuple(_empty_outputs(x, axes, fn, windows, x.dtype, torch.int64)),
)
_register(
    spread,
    1,
    lambda grad, axes, fn, reduce, windows, sizes, divisor, channels_last: empty(
        grad, with_sizes(grad.shape, axes, sizes), grad.dtype, channels_last, len(axes)
    ),
    _keep(1),
    _spread_backward,
)
_register(
    spread_picks,
    2,
    lambda grad, offsets, axes, fn, reduce, windows, sizes, channels_last: empty(
        grad, with_sizes(grad.shape, axes, sizes), grad.dtype, channels_last, len(axes)
    ),
    _keep(2),
    lambda ctx, grad: (gather(grad, *ctx.saved_tensors, *ctx.args[:4], ctx.args[-1]), *(None,) * 7),
)
_register(
    gather,
    2,
    lambda x, offsets, axes, fn, reduce, windows, channels_last: empty(
        x, offsets.shape, x.dtype, channels_last, len(axes)
    ),
    _keep(2),
    lambda ctx, grad: (
        spread_picks(grad, *ctx.saved_tensors, *ctx.args[:4], ctx.sizes, ctx.args[-1]),
        *(None,) * 6,
    ),
)
_register(
    unpool,
    2,
    lambda values, indices, axes, fn, sizes: empty(
        values,
        with_sizes(values.shape, axes, sizes),
        values.dtype,
        is_channels_last(values.shape, values.stride(), len(axes)),
        len(axes),
    ),
    _keep(2),
    lambda ctx, grad: (take(grad, ctx.saved_tensors[0], ctx.args[0]), None, None, None, None),
)
_register(
    fractional,
    2,
    lambda x, samples, axes, fn, kernel, outs: tuple(
        empty(
            x,
            with_sizes(x.shape, axes, outs),
            dtype,
            is_channels_last(x.shape, x.stride(), len(axes)),
            len(axes),
        )
        for dtype in (x.dtype, torch.int64)
    ),
)
