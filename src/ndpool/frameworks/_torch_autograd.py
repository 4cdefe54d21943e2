"""Derivatives of pooling for eager tensors: reverse and forward mode, any order, `vmap` and its compositions.

Called by the room in `torch.py` for tensors that are differentiated or transformed. A pick keeps its offsets
and not its input, a sum or an average keeps nothing, and each backward is made of functions of this file, so
that it can be differentiated in turn. All take their tensors first, then the pooled axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, empty_like
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C._functorch import is_legacy_batchedtensor as is_legacy_batch
from torch.autograd import Function

from ndpool import geometry
from ndpool._arguments import check_shape
from ndpool._native import INDEX64, OFFSET8, OFFSET32, core, core_plan
from ndpool.frameworks import _torch_kernels as kernels
from ndpool.frameworks._torch_kernels import CODES, is_channels_last, offset_dtype
from ndpool.geometry import Plan
from ndpool.reductions import REDUCTIONS


def batched(call: Callable[..., Any], n_tensors: int) -> Callable[..., Any]:
    """How `vmap` maps a function of tensors and axes: the batch becomes one more leading axis."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        tensors = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(args[:n_tensors], in_dims, strict=False)
        ]
        axes = tuple(a + 1 for a in args[n_tensors])
        result = call(*tensors, axes, *args[n_tensors + 1 :])
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return rule


def direct(cls: type[Function]) -> Callable[..., Any]:
    """The function's `apply` as C++ has it."""
    return super(Function, cls).apply  # type: ignore[misc, no-any-return]


def caller(cls: type[Function]) -> Callable[..., Any]:
    """The function's `apply`, without the binding of arguments that only transforms need."""
    quick = direct(cls)

    def call(*args: Any) -> Any:
        return cls.apply(*args) if transforms_active() else quick(*args)  # type: ignore[no-untyped-call]

    return call


def linear(kernel: Callable[..., Any], n_tensors: int, adjoint: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is linear in its first tensor, with the function that its backward applies."""

    def call(*args: Any) -> Any:
        return unlooped(call, n_tensors, args) if is_legacy_batch(args[0]) else apply(*args)

    class Linear(Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return kernel(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.args = inputs[n_tensors:]
            ctx.save_for_backward(*inputs[1:n_tensors])
            ctx.save_for_forward(*inputs[1:n_tensors])

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            rest = (None,) * (n_tensors - 1 + len(ctx.args))
            return adjoint(grad, *ctx.saved_tensors, *ctx.args), *rest

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
            return call(tangent, *ctx.saved_tensors, *ctx.args)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return batched(call, n_tensors)(info, in_dims, *args)

    apply = caller(Linear)
    return call


def unlooped(call: Callable[..., Any], n_tensors: int, args: tuple[Any, ...]) -> Any:
    """The call under the older `vmap` that `is_grads_batched=True` still uses: once, for all gradients."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    size = torch._remove_batch_dim(args[0], level, 1, 0).size(0)
    tensors = (torch._remove_batch_dim(t, level, size, 0) for t in args[:n_tensors])
    axes = tuple(a + 1 for a in args[n_tensors])
    return torch._add_batch_dim(call(*tensors, axes, *args[n_tensors + 1 :]), 0, level)


def take(x: Tensor, indices: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The elements of each plane at these positions, with PyTorch's own derivatives."""
    lead = [a for a in range(x.dim()) if a not in axes]
    order = lead + list(axes)
    planes = [x.shape[a] for a in lead]
    flat, at = (t.permute(order).reshape(*planes, prod([t.shape[a] for a in axes])) for t in (x, indices))
    taken = flat.gather(-1, at).reshape(*planes, *[indices.shape[a] for a in axes])
    return taken.permute([order.index(a) for a in range(x.dim())])


# Arguments, as in the kernels: gradient, offsets, axes, plan, reduction, channels_last
spread_picks = linear(kernels.spread_picks, 2, lambda *args: gather(*args))
gather: Callable[..., Any] = linear(kernels.gather, 2, spread_picks)
# x or gradient, axes, plan, reduction, dtype, divisor, channels_last
total = linear(kernels.total, 1, lambda *args: spread(*args))
spread: Callable[..., Any] = linear(
    kernels.spread,
    1,
    lambda grad, axes, plan, reduction, dtype, *rest: total(grad, axes, plan, reduction, grad.dtype, *rest),
)
# values, indices, axes, fn, sizes
unpool = linear(kernels.unpool, 2, lambda grad, indices, axes, *_: take(grad, indices, axes))


class Pick(Function):
    """Maxima or minima: values, offsets, and indices where they are wanted."""

    @staticmethod
    def forward(x: Tensor, axes: Any, plan: Any, reduction: Any, channels_last: bool, indices: bool) -> Any:
        kind = OFFSET8 if offset_dtype(plan) is torch.uint8 else OFFSET32
        found = kernels.pool(x, axes, plan, reduction, x.dtype, 0, 0.0, kind, channels_last)
        if not indices:
            return found
        return *found, kernels.pool(x, axes, plan, reduction, x.dtype, 0, 0.0, INDEX64, channels_last)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.args = inputs[1:5]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.others = (None,) * (len(output) - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        """The gradient, where each value came from."""
        found = None if grad is None else spread_picks(grad, *ctx.saved_tensors, *ctx.args)
        return found, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        """The tangent, from where each value came."""
        return gather(tangent, *ctx.saved_tensors, *ctx.args), *ctx.others

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(pick, 1)(info, in_dims, *args)


class Recipe(NamedTuple):
    """What a small call needs, worked out once for a shape of contiguous input, a dtype and a window."""

    plan: Plan
    native: Any
    axes: tuple[int, ...]
    code: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    outs: tuple[int, ...]
    out_stride: tuple[int, ...]
    like: Tensor  # like the result, but of one element's memory; so the offsets'
    offsets_like: Tensor
    kind: int


@lru_cache(4096, typed=True)
def recipe_of(fn: str, n_axes: int, shape: torch.Size, dtype: torch.dtype, *window: Any) -> Recipe | None:
    """What the call needs for contiguous input of this shape, or None where it is no common one."""
    # A sequence would be taken for another that equals it, (2, True) for (2, 1): it is checked each time.
    if dtype not in CODES or any(isinstance(value, Sequence) for value in window):
        return None
    axes = check_shape(fn, shape, n_axes)
    plan = geometry.sliding(fn, tuple(shape[-n_axes:]), *window, strict=True)
    # Contiguous strides may mean channels-last where there is one channel or one element per channel.
    if prod(shape) == 0 or 1 in (shape[-n_axes - 1], prod(shape[-n_axes:])):
        return None
    offsets = offset_dtype(plan)
    outs = shape[:-n_axes] + plan.out
    with torch.inference_mode(False):
        # A tensor like the result is allocated fastest; unless it is small it has one element's memory.
        whole = torch.Size(outs if prod(outs) <= 1024 else [1])
        like, offsets_like = (
            torch.empty(whole, dtype=d, device="cpu").expand(outs) for d in (dtype, offsets)
        )
    stride, out_stride = (torch.empty(size, device="meta").stride() for size in (shape, outs))
    kind = OFFSET8 if offsets is torch.uint8 else OFFSET32
    sizes = tuple(shape), stride, tuple(outs), out_stride
    return Recipe(plan, core_plan(plan), axes, CODES[dtype], *sizes, like, offsets_like, kind)


class QuickMax(Function):
    """`Pick` of maxima for a recipe's input, and for reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe) -> Any:
        plan, native, axes, code, shape, stride, outs, out_stride, like, offsets_like, kind = recipe
        y, offsets, address = empty_like(like), empty_like(offsets_like), x.data_ptr()
        source, into = (address, shape, stride), (y.data_ptr(), outs, out_stride)
        places = (offsets.data_ptr(), outs, out_stride)
        if not address or not core.forward(
            native, 0, source, code, axes, into, code, places, kind, False, 0, 0.0
        ):
            y, offsets = kernels.pool(x, axes, plan, REDUCTIONS["max"], x.dtype, kind=kind)
        ctx.recipe = recipe
        ctx.save_for_backward(offsets)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        recipe = ctx.recipe
        return spread_picks(
            grad, *ctx.saved_tensors, recipe.axes, recipe.plan, REDUCTIONS["max"], False
        ), None


class QuickTotal(Function):
    """`total` for a recipe's input, and for reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe, reduction: Any, divisor: int) -> Any:
        ctx.args = recipe.axes, recipe.plan, reduction, x.dtype, divisor, False
        return kernels.total(x, *ctx.args)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return spread(grad, *ctx.args), None, None, None


class PowerMean(Function):
    """Lp pooling: its slopes need input and output."""

    @staticmethod
    def forward(x: Tensor, axes: Any, plan: Any, reduction: Any, norm: float) -> Any:
        return kernels.pool(x, axes, plan, reduction, x.dtype, 0, norm)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, axes, plan, _reduction, ctx.norm = inputs
        mean, ctx.taps = ("sum", 1) if plan.norm_divisor else ("avg", plan.taps)
        ctx.args = axes, plan, REDUCTIONS[mean], x.dtype, 0, is_channels_last(x.shape, x.stride())
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        before, after = slopes(x, y, ctx.taps, ctx.norm)
        return before * spread(grad * after, *ctx.args), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        x, y = ctx.saved_tensors
        before, after = slopes(x, y, ctx.taps, ctx.norm)
        return after * total(tangent * before, *ctx.args)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(power_mean, 1)(info, in_dims, *args)


def slopes(x: Tensor, y: Tensor, taps: int, norm: float) -> tuple[Tensor, Tensor]:
    """What a power mean multiplies tangents by before its average, and after it; 0 where it is 0 itself."""
    zero = y == 0
    return x ** (norm - 1), torch.where(zero, 0, taps * torch.where(zero, 1, y) ** (1 - norm))


pick, power_mean = caller(Pick), caller(PowerMean)
quick_max, quick_total = direct(QuickMax), direct(QuickTotal)
