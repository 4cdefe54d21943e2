"""Pooling as registered PyTorch operators, for compilers, export, fake tensors and dispatch modes.

Windows travel as flat integers that may be symbolic (`geometry.flatten`), so every operator asks `geometry`
for its plan. All operators take their tensors first, then the pooled axes; each has a shape function, a
`vmap` rule and, where it is differentiable, a backward made of other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.library import custom_op, define, impl, register_fake, register_vmap

from ndpool import geometry
from ndpool._arguments import check_sizes
from ndpool._call import BYTE_TAPS, INDEX64, OFFSET8, OFFSET32, Call, Unpool
from ndpool._plan import with_sizes
from ndpool.frameworks.torch import exporting, kernels
from ndpool.frameworks.torch import operator_checks as checks
from ndpool.frameworks.torch.autograd import batched, lp_factors, shifted_axes, take
from ndpool.frameworks.torch.tensors import EXTRA_DTYPES, channels_last, empty
from ndpool.reductions import REDUCTIONS

_WINDOWS = "SymInt[] axes, str fn, str reduce, SymInt[] windows"
_INDEXED = tuple(name for name, reduction in REDUCTIONS.items() if reduction.has_index)
_SUMS = ("sum", "avg")


def _call(op: str, x: Tensor, axes: Any, fn: str, reduce: str, windows: Any, sizes: Any = None) -> Call:
    """The call of an operator, its arguments checked; `sizes` of the input where `x` is a gradient."""
    checks.check_tensor(op, "x" if sizes is None else "grad", x)
    at = checks.check_axes(op, x, axes)
    checks.check_windows(op, at, windows)
    reduction = checks.check_reduce(op, reduce, tuple(REDUCTIONS))
    if sizes is None:
        sizes = tuple(x.shape[a] for a in at)
    else:
        sizes = check_sizes(op, "sizes", tuple(sizes), len(at))
    plan = geometry.plan_from_flat(fn, sizes, windows)
    return Call(fn, reduction, at, plan, dtype=x.dtype)


def _outs(x: Tensor, axes: Sequence[int], fn: str, windows: Sequence[int]) -> Sequence[int]:
    """The output sizes, also of symbolic input sizes."""
    return geometry.outputs_from_flat(fn, tuple(x.shape[a] for a in axes), windows)


def _offset_kind(x: Tensor, axes: Sequence[int], windows: Sequence[int]) -> int:
    """One byte while that can number the taps of a window; an adaptive one counts with an upper bound."""
    n = len(axes)
    taps = (
        windows[:n]
        if len(windows) != n
        else [x.shape[a] // max(o, 1) + 2 for a, o in zip(axes, windows, strict=True)]
    )
    return OFFSET8 if prod(taps) <= BYTE_TAPS else OFFSET32


def _empty_outputs(x: Tensor, axes: Any, fn: str, windows: Any, *dtypes: torch.dtype) -> list[Tensor]:
    shape = with_sizes(x.shape, axes, _outs(x, axes, fn, windows))
    last = channels_last(x, axes)
    return [empty(x, shape, dtype, last, len(axes)) for dtype in dtypes]


def _register(
    op: Any,
    n_tensors: int,
    fake: Callable[..., Any],
    save: Any = None,
    backward: Any = None,
    exported: Any = None,
) -> Any:
    def shaped(*args: Any) -> Any:
        # One tensor on the meta device sends the whole call here.
        for other in args[1:n_tensors]:
            checks.check_device(op._qualname, "every tensor", other, args[0])
        exporting.allow_fallback(op)
        return fake(*args)

    op.register_fake(shaped)
    op.register_vmap(batched(op, n_tensors, shifted_axes))
    if backward is not None:
        op.register_autograd(backward, setup_context=save)
    if exported is not None:
        exporting.register(op, exported, shaped)
    return op


def _keep(n_tensors: int) -> Callable[..., None]:
    """What the backward of a linear operator needs: its other tensors, the layout, the arguments."""

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        x, axes = inputs[0], inputs[n_tensors]
        ctx.save_for_backward(*inputs[1:n_tensors])
        ctx.args = inputs[n_tensors:]
        ctx.last = channels_last(x, axes)
        ctx.sizes = [x.shape[a] for a in axes]

    return save


@custom_op(
    "ndpool::pool",
    mutates_args=(),
    schema=f"(Tensor x, {_WINDOWS}, ScalarType dtype, int divisor, float norm) -> Tensor",
)
def pool(
    x: Tensor, axes: Any, fn: str, reduce: str, windows: Any, dtype: Any, divisor: int, norm: float
) -> Any:
    """Values alone."""
    op = "ndpool::pool"
    call = _call(op, x, axes, fn, reduce, windows)
    checks.check_result(op, x, call.reduction, dtype, divisor, norm)
    if call.reduction.norm and not divisor:
        divisor = geometry.norm_divisor(fn, call.plan)
    return kernels.pool(call._replace(dtype=dtype, divisor=divisor, norm=norm), x)


def _pool_save(ctx: Any, inputs: Any, output: Tensor) -> None:
    _keep(1)(ctx, inputs, output)
    reduction = REDUCTIONS[inputs[3]]
    ctx.save_for_backward(
        *((inputs[0],) if reduction.has_index else (inputs[0], output) if reduction.norm else ())
    )


def _pool_backward(ctx: Any, grad: Tensor) -> Any:
    axes, fn, reduce, windows, _, divisor, norm = ctx.args
    where = (axes, fn, reduce, windows)
    if REDUCTIONS[reduce].has_index:
        # Called where no derivative was expected: its offsets are computed now.
        offsets = pool_offsets(ctx.saved_tensors[0].detach(), *where)[1]
        found = max_backward(grad, offsets, *where, ctx.sizes, ctx.last)
    elif REDUCTIONS[reduce].norm:
        x, y = ctx.saved_tensors
        taps = geometry.norm_taps(fn, len(axes), windows)
        before, after = lp_factors(x, y, taps or 1, norm)
        mean = "avg" if taps else "sum"
        found = before * sum_backward(grad * after, axes, fn, mean, windows, ctx.sizes, 0, ctx.last)
    else:
        found = sum_backward(grad, *where, ctx.sizes, divisor, ctx.last)
    return found, *(None,) * 7


@custom_op("ndpool::pool_offsets", mutates_args=(), schema=f"(Tensor x, {_WINDOWS}) -> (Tensor, Tensor)")
def pool_offsets(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """Values and offsets, which the backward needs."""
    op = "ndpool::pool_offsets"
    checks.check_reduce(op, reduce, _INDEXED)
    call = _call(op, x, axes, fn, reduce, windows)
    return kernels.pool(call._replace(extra=_offset_kind(x, axes, windows)), x)


def _offsets_save(ctx: Any, inputs: Any, output: Any) -> None:
    _keep(1)(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _offsets_backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
    if grad is None:
        return (None,) * 5
    return max_backward(grad, *ctx.saved_tensors, *ctx.args, ctx.sizes, ctx.last), *(None,) * 4


@custom_op("ndpool::pool_indices", mutates_args=(), schema=f"(Tensor x, {_WINDOWS}) -> (Tensor, Tensor)")
def pool_indices(x: Tensor, axes: Any, fn: str, reduce: str, windows: Any) -> Any:
    """Values and indices in the plane."""
    op = "ndpool::pool_indices"
    checks.check_reduce(op, reduce, _INDEXED)
    return kernels.pool(_call(op, x, axes, fn, reduce, windows)._replace(extra=INDEX64), x)


@custom_op(
    "ndpool::sum_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_WINDOWS}, SymInt[] sizes, int divisor, bool channels_last) -> Tensor",
)
def sum_backward(
    grad: Tensor, axes: Any, fn: str, reduce: str, windows: Any, sizes: Any, divisor: int, channels_last: bool
) -> Any:
    """The adjoint of sums and averages."""
    op = "ndpool::sum_backward"
    checks.check_reduce(op, reduce, _SUMS)
    call = _call(op, grad, axes, fn, reduce, windows, sizes)
    checks.check_grad(op, grad, call.axes, call.plan)
    return kernels.sum_backward(call._replace(divisor=divisor), grad, channels_last)


def _sum_backward_backward(ctx: Any, grad: Tensor) -> Any:
    axes, fn, reduce, windows, _, divisor, _ = ctx.args
    return pool(grad, axes, fn, reduce, windows, grad.dtype, divisor, 0.0), *(None,) * 7


@custom_op(
    "ndpool::max_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor offsets, {_WINDOWS}, SymInt[] sizes, bool channels_last) -> Tensor",
)
def max_backward(
    grad: Tensor,
    offsets: Tensor,
    axes: Any,
    fn: str,
    reduce: str,
    windows: Any,
    sizes: Any,
    channels_last: bool,
) -> Any:
    """The gradient of max and min pooling, gathered by offsets."""
    op = "ndpool::max_backward"
    checks.check_reduce(op, reduce, _INDEXED)
    call = _call(op, grad, axes, fn, reduce, windows, sizes)
    checks.check_grad(op, grad, call.axes, call.plan)
    checks.check_offsets(op, offsets, grad, grad.shape, call.plan)
    return kernels.max_backward(call, grad, offsets, channels_last)


@custom_op(
    "ndpool::gather",
    mutates_args=(),
    schema=f"(Tensor x, Tensor offsets, {_WINDOWS}, bool channels_last) -> Tensor",
)
def gather(
    x: Tensor, offsets: Tensor, axes: Any, fn: str, reduce: str, windows: Any, channels_last: bool
) -> Any:
    """The elements that offsets stand for, of any tensor of the input's shape."""
    op = "ndpool::gather"
    checks.check_reduce(op, reduce, _INDEXED)
    call = _call(op, x, axes, fn, reduce, windows)
    checks.check_offsets(op, offsets, x, with_sizes(x.shape, call.axes, call.plan.out), call.plan)
    return kernels.gather(call, x, offsets, channels_last)


@custom_op(
    "ndpool::unpool",
    mutates_args=(),
    schema="(Tensor values, Tensor indices, SymInt[] axes, str fn, SymInt[] sizes) -> Tensor",
)
def unpool(values: Tensor, indices: Tensor, axes: Any, fn: str, sizes: Any) -> Any:
    """Values at their indices in planes of zeros."""
    at = checks.check_axes("ndpool::unpool", values, axes)
    checks.check_unpool("ndpool::unpool", values, indices, at, sizes)
    return kernels.unpool(Unpool(fn, at, tuple(sizes)), values, indices)


@custom_op(
    "ndpool::fractional",
    mutates_args=(),
    schema="(Tensor x, Tensor samples, SymInt[] axes, str fn, SymInt[] kernel, SymInt[] outs)"
    " -> (Tensor, Tensor)",
)
def fractional(x: Tensor, samples: Tensor, axes: Any, fn: str, kernel: Any, outs: Any) -> Any:
    """Max pooling with indices over windows that samples place, one set per plane."""
    at = checks.check_axes("ndpool::fractional", x, axes)
    checks.check_tensor("ndpool::fractional", "x", x)
    checks.check_samples("ndpool::fractional", x, samples, at)
    call = Call(fn, REDUCTIONS["max"], at, None, windows=(*kernel, *outs))
    return kernels.fractional(call, x, samples)


# `custom_op` takes no tags before PyTorch 2.7, and without this one equal draws would be merged.
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
    exporting.pool,
)
_register(
    pool_offsets,
    1,
    lambda x, axes, fn, reduce, windows: tuple(
        _empty_outputs(x, axes, fn, windows, x.dtype, EXTRA_DTYPES[_offset_kind(x, axes, windows)])
    ),
    _offsets_save,
    _offsets_backward,
    exporting.pool_offsets,
)
_register(
    pool_indices,
    1,
    lambda x, axes, fn, reduce, windows: tuple(_empty_outputs(x, axes, fn, windows, x.dtype, torch.int64)),
    exported=exporting.pool_indices,
)
_register(
    sum_backward,
    1,
    lambda grad, axes, fn, reduce, windows, sizes, divisor, last: empty(
        grad, with_sizes(grad.shape, axes, sizes), grad.dtype, last, len(axes)
    ),
    _keep(1),
    _sum_backward_backward,
)
_register(
    max_backward,
    2,
    lambda grad, offsets, axes, fn, reduce, windows, sizes, last: empty(
        grad, with_sizes(grad.shape, axes, sizes), grad.dtype, last, len(axes)
    ),
    _keep(2),
    lambda ctx, grad: (gather(grad, *ctx.saved_tensors, *ctx.args[:4], ctx.args[-1]), *(None,) * 7),
)
_register(
    gather,
    2,
    lambda x, offsets, axes, fn, reduce, windows, last: empty(x, offsets.shape, x.dtype, last, len(axes)),
    _keep(2),
    lambda ctx, grad: (
        max_backward(grad, *ctx.saved_tensors, *ctx.args[:4], ctx.sizes, ctx.args[-1]),
        *(None,) * 6,
    ),
)
_register(
    unpool,
    2,
    lambda values, indices, axes, fn, sizes: empty(
        values, with_sizes(values.shape, axes, sizes), values.dtype, channels_last(values, axes), len(axes)
    ),
    _keep(2),
    lambda ctx, grad: (take(grad, ctx.saved_tensors[0], ctx.args[0]), None, None, None, None),
    exporting.unpool,
)
_register(
    fractional,
    2,
    lambda x, samples, axes, fn, kernel, outs: tuple(
        empty(x, with_sizes(x.shape, axes, outs), dtype, channels_last(x, axes), len(axes))
        for dtype in (x.dtype, torch.int64)
    ),
    exported=exporting.fractional,
)


def run(call: Call, x: Tensor) -> Any:
    """A traced call, as the operator that computes what is asked for."""
    if exporting.scripted():
        return exporting.run(call, x)
    where = (call.axes, call.function, call.reduction.name, call.windows)
    if not call.reduction.has_index:
        return pool(x, *where, call.dtype, call.divisor, float(call.norm))
    differentiates = x.requires_grad and is_grad_enabled()
    if call.extra != INDEX64:
        return pool_offsets(x, *where)[0] if differentiates else pool(x, *where, call.dtype, 0, 0.0)
    if not differentiates:
        return pool_indices(x, *where)
    return pool_offsets(x, *where)[0], pool_indices(x.detach(), *where)[1]


def run_unpool(call: Unpool, values: Tensor, indices: Tensor) -> Any:
    """A traced unpooling."""
    how = exporting.unpool if exporting.scripted() else unpool
    return how(values, indices, call.axes, call.function, call.sizes)
