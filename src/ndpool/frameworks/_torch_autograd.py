"""Derivatives of pooling for eager tensors: reverse and forward mode, any order, `vmap` and its compositions.

Called by the room in `torch.py` for tensors that are differentiated or transformed. A pick keeps its offsets
and not its input, a sum or an average keeps nothing, and each backward is made of functions of this file, so
that it can be differentiated in turn. All take their tensors first, then the pooled axes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C._functorch import is_legacy_batchedtensor as is_legacy_batch
from torch.autograd import Function, forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.compiler import is_dynamo_compiling

from ndpool._native import INDEX64, OFFSET8, OFFSET32
from ndpool.frameworks import _torch_kernels as kernels
from ndpool.frameworks._torch_kernels import is_channels_last, offset_dtype
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


def plain(x: Tensor) -> bool:
    """Whether a tensor is its memory and nothing else, and nobody asks for derivatives."""
    watched = is_grad_enabled() or transforms_active() or forward_ad._current_level >= 0
    return not watched and type(x) is Tensor and not x.is_neg() and not is_legacy_batch(x)


def linear(kernel: Callable[..., Any], n_tensors: int, adjoint: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is linear in its first tensor, with the function that its backward applies."""

    def call(*args: Any) -> Any:
        if is_legacy_batch(args[0]):
            return unlooped(call, n_tensors, args)
        return kernel(*args) if plain(args[0]) else apply(*args)

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
    """The elements of each plane at these positions, with derivatives that are the same on every run."""
    lead = [a for a in range(x.dim()) if a not in axes]
    order = lead + list(axes)
    planes = [x.shape[a] for a in lead]
    flat, at = (t.permute(order).reshape(*planes, prod([t.shape[a] for a in axes])) for t in (x, indices))
    # On the CPU PyTorch's own is so already; a compiler derives its own from it.
    plain = is_dynamo_compiling() or (x.is_cpu and not kernels.triton_only)
    found = flat.gather(-1, at) if plain else at_places(flat, at, (len(planes),), flat.shape[-1])
    taken = found.reshape(*planes, *[indices.shape[a] for a in axes])
    return taken.permute([order.index(a) for a in range(x.dim())])


def _at_places(x: Tensor, places: Tensor, axes: tuple[int, ...], size: int) -> Tensor:
    return x.gather(-1, places)


def _added_at_places(grad: Tensor, places: Tensor, axes: tuple[int, ...], size: int) -> Tensor:
    """Zeros with every gradient added at its place, in an order that does not change."""
    flat, rows = places.reshape(-1, places.shape[-1]), grad.reshape(-1, grad.shape[-1])
    result = grad.new_zeros((len(rows), size))
    lines = torch.arange(len(rows), device=grad.device)[:, None].expand_as(flat)
    return result.index_put_((lines, flat), rows, accumulate=True).reshape(*grad.shape[:-1], size)


def link_to(x: Tensor) -> Any:
    """What leads to `x` in the graph and keeps none of its memory; None where nobody can ask for it."""
    if not x.requires_grad or transforms_active() or forward_ad._current_level >= 0:
        return None
    return (x.index_select(0, _NOTHING) if x.is_cpu else x.narrow(0, 0, 0).clone(),)


def linked(found: Tensor, link: Any) -> Tensor:
    """A gradient that depends on the input too, with a derivative of zero, as PyTorch's gradients do.

    `link` is a tuple, so that `Function.apply` takes its tensor for no argument of its own.
    """
    return found - link[0].sum() if link is not None and is_grad_enabled() else found


_NOTHING = torch.empty(0, dtype=torch.int64)


class Linked(Function):
    """The input itself; its gradient depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, link: Any) -> Any:
        ctx.link = link
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return linked(grad, ctx.link), None


def with_link(x: Tensor) -> Tensor:
    """The tensor, for functions whose second derivative with respect to it is to be zeros, not nothing."""
    link = link_to(x)
    return x if link is None else direct(Linked)(x, link)


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
# x or gradient, places along the last axis, that axis, its size
at_places = linear(_at_places, 2, lambda *args: added_at_places(*args))
added_at_places: Callable[..., Any] = linear(_added_at_places, 2, at_places)
# values, indices, axes, fn, sizes
unpool = linear(kernels.unpool, 2, lambda grad, indices, axes, *_: take(grad, indices, axes))


class Pick(Function):
    """Maxima or minima: values, offsets, and indices where they are wanted."""

    @staticmethod
    def forward(
        x: Tensor, axes: Any, plan: Any, reduction: Any, channels_last: bool, indices: bool, link: Any
    ) -> Any:
        kind = OFFSET8 if offset_dtype(plan) is torch.uint8 else OFFSET32
        found = kernels.pool(x, axes, plan, reduction, x.dtype, 0, 0.0, kind, channels_last)
        if not indices:
            return found
        return *found, kernels.pool(x, axes, plan, reduction, x.dtype, 0, 0.0, INDEX64, channels_last)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.args, ctx.link = inputs[1:5], inputs[6]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.others = (None,) * (len(output) - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        """The gradient, where each value came from."""
        if grad is None:
            return (None,) * 7
        found = linked(spread_picks(grad, *ctx.saved_tensors, *ctx.args), ctx.link)
        return found, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        """The tangent, from where each value came."""
        return gather(tangent, *ctx.saved_tensors, *ctx.args), *ctx.others

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(pick, 1)(info, in_dims, *args)


class PowerMean(Function):
    """Lp pooling: its slopes need input and output."""

    @staticmethod
    def forward(x: Tensor, axes: Any, plan: Any, reduction: Any, norm: float) -> Any:
        return kernels.pool(x, axes, plan, reduction, x.dtype, 0, norm)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, axes, plan, _reduction, ctx.norm = inputs
        mean, ctx.taps = ("sum", 1) if plan.norm_divisor else ("avg", plan.taps)
        ctx.args = axes, plan, REDUCTIONS[mean], x.dtype, 0, is_channels_last(x.shape, x.stride(), len(axes))
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        for tensor in () if transforms_active() else (x, y, grad):
            if tensor.is_cpu and not is_legacy_batch(tensor):
                kernels.check_memory(tensor)  # PyTorch's arithmetic does not look
        before, after = slopes(x, y, ctx.taps, ctx.norm)
        return before * spread(grad * after, *ctx.args), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        # PyTorch turns forward mode off here, also for outer levels, which differentiate the slopes.
        with _set_fwd_grad_enabled(True):
            x, y = (torch._VF._unpack_dual(t, level=forward_ad._current_level)[0] for t in ctx.saved_tensors)
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
