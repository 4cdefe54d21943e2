"""Derivatives of pooling for eager tensors: reverse and forward mode, any order, `vmap` and its compositions.

Max and min pooling save offsets and not their input, sums and averages save nothing. Every backward is made
of functions of this file, so that it can be differentiated in turn. Functions take their tensors first, then
a call; `last` says whether the gradient is channels-last.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C._functorch import is_legacy_batchedtensor as is_legacy_batch
from torch._C._functorch import unwrap_if_dead
from torch.autograd import Function, forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.compiler import is_dynamo_compiling

from ndpool._call import INDEX64, Call
from ndpool.frameworks.torch import kernels
from ndpool.frameworks.torch.tensors import PLAIN_TYPES, channels_last, check_memory, transformed
from ndpool.reductions import REDUCTIONS


def batched(function: Callable[..., Any], n_tensors: int, shift: Callable[[Any], Any]) -> Callable[..., Any]:
    """The `vmap` rule of a function: the batch becomes one more leading axis; `shift` renumbers the axes."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        tensors = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(args[:n_tensors], in_dims, strict=False)
        ]
        result = function(*tensors, shift(args[n_tensors]), *args[n_tensors + 1 :])
        return result, (0,) * len(result) if isinstance(result, tuple) else 0

    return rule


def shifted(call: Any) -> Any:
    """The call for tensors with one more leading axis."""
    return call._replace(axes=shifted_axes(call.axes))


def shifted_axes(axes: Any) -> tuple[int, ...]:
    """The same axes after one more leading axis."""
    return tuple(a + 1 for a in axes)


def direct(cls: type[Function]) -> Callable[..., Any]:
    """The function's `apply` as implemented in C++."""
    return super(Function, cls).apply  # type: ignore[misc, no-any-return]


def applied(cls: type[Function]) -> Callable[..., Any]:
    """The function's `apply`, without the Python wrapper that only transforms need."""
    fast = direct(cls)

    def apply(*args: Any) -> Any:
        return cls.apply(*args) if transforms_active() else fast(*args)  # type: ignore[no-untyped-call]

    return apply


def saved(ctx: Any) -> tuple[Tensor, ...]:
    """What a function saved; a tensor of a transform that has ended is the one that it wrapped."""
    return tuple(map(unwrap_if_dead, ctx.saved_tensors))


def plain(x: Tensor) -> bool:
    """Whether a tensor is nothing but its memory."""
    return type(x) in PLAIN_TYPES and not x.is_neg() and not is_legacy_batch(x)


def undifferentiated(x: Tensor) -> bool:
    """Whether a tensor is nothing but its memory and no derivative can be asked for."""
    watched = is_grad_enabled() or transforms_active() or forward_ad._current_level >= 0
    return not watched and type(x) is Tensor and not x.is_neg() and not is_legacy_batch(x)


def linear(
    kernel: Callable[..., Any],
    n_tensors: int,
    adjoint: Callable[..., Any],
    shift: Callable[[Any], Any] = shifted,
) -> Callable[..., Any]:
    """A kernel that is linear in its first tensor, with its adjoint for the backward pass."""

    def function(*args: Any) -> Any:
        if is_legacy_batch(args[0]):
            return _legacy_batched(function, n_tensors, shift, args)
        return kernel(*args) if undifferentiated(args[0]) else apply(*args)

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
            return adjoint(grad, *saved(ctx), *ctx.args), *rest

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
            return function(tangent, *ctx.saved_tensors, *ctx.args)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return batched(function, n_tensors, shift)(info, in_dims, *args)

    apply = applied(Linear)
    return function


def _legacy_batched(
    function: Callable[..., Any], n_tensors: int, shift: Callable[[Any], Any], args: tuple[Any, ...]
) -> Any:
    """The function under the older `vmap` that `is_grads_batched=True` still uses: once for all gradients."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    size = torch._remove_batch_dim(args[0], level, 1, 0).size(0)
    tensors = (torch._remove_batch_dim(t, level, size, 0) for t in args[:n_tensors])
    return torch._add_batch_dim(function(*tensors, shift(args[n_tensors]), *args[n_tensors + 1 :]), 0, level)


def take(x: Tensor, indices: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The elements of each plane at these indices, with deterministic derivatives."""
    lead = [a for a in range(x.dim()) if a not in axes]
    order = lead + list(axes)
    planes = [x.shape[a] for a in lead]
    flat, at = (t.permute(order).reshape(*planes, prod([t.shape[a] for a in axes])) for t in (x, indices))
    # PyTorch's own is deterministic on the CPU; a compiler derives its own.
    simple = is_dynamo_compiling() or (x.is_cpu and not kernels.triton_only)
    found = flat.gather(-1, at) if simple else take_last(flat, at, (len(planes),), flat.shape[-1])
    taken = found.reshape(*planes, *[indices.shape[a] for a in axes])
    return taken.permute([order.index(a) for a in range(x.dim())])


def _take_last(x: Tensor, indices: Tensor, axes: tuple[int, ...], size: int) -> Tensor:
    return x.gather(-1, indices)


def _scatter_add_last(grad: Tensor, indices: Tensor, axes: tuple[int, ...], size: int) -> Tensor:
    """Zeros with every gradient added at its index along the last axis, in a fixed order."""
    flat, rows = indices.reshape(-1, indices.shape[-1]), grad.reshape(-1, grad.shape[-1])
    result = grad.new_zeros((len(rows), size))
    lines = torch.arange(len(rows), device=grad.device)[:, None].expand_as(flat)
    return result.index_put_((lines, flat), rows, accumulate=True).reshape(*grad.shape[:-1], size)


def link_to(x: Tensor) -> Any:
    """A link to the input of a function; None where it can have no effect."""
    return link_of(x) if x.requires_grad and not transformed() else None


def link_of(x: Tensor) -> tuple[Tensor]:
    """An empty tensor that depends on `x` and keeps none of its memory.

    In a tuple, so that `Function.apply` does not treat it as a differentiable argument.
    """
    if not x.is_cpu:
        return (x.narrow(0, 0, 0).clone(),)
    return (x.index_select(0, torch.empty(0, dtype=torch.int64, device="cpu")),)


def linked(grad: Tensor, link: Any) -> Tensor:
    """A gradient that also depends on the input, with derivative zero, as PyTorch's gradients do."""
    return grad - link[0].sum() if link is not None and is_grad_enabled() else grad


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
    """The tensor, for functions whose second derivative with respect to it must be zeros, not None."""
    link = link_to(x)
    return x if link is None else direct(Linked)(x, link)


def _sum(x: Tensor, call: Call, last: bool) -> Any:
    return kernels.pool(call, x, last)


def _sum_backward(grad: Tensor, call: Call, last: bool) -> Any:
    return kernels.sum_backward(call, grad, last)


def _max_backward(grad: Tensor, offsets: Tensor, call: Call, last: bool) -> Any:
    return kernels.max_backward(call, grad, offsets, last)


def _gather(x: Tensor, offsets: Tensor, call: Call, last: bool) -> Any:
    return kernels.gather(call, x, offsets, last)


def _unpool(values: Tensor, indices: Tensor, call: Any) -> Any:
    return kernels.unpool(call, values, indices)


# (gradient, offsets, call, last)
max_backward = linear(_max_backward, 2, lambda *args: gather(*args))
gather: Callable[..., Any] = linear(_gather, 2, max_backward)
# (x or gradient, call, last)
sum_pool = linear(_sum, 1, lambda *args: sum_backward(*args))
sum_backward: Callable[..., Any] = linear(
    _sum_backward, 1, lambda grad, call, last: sum_pool(grad, call._replace(dtype=grad.dtype), last)
)
# (x or gradient, indices along the last axis, that axis, its size)
take_last = linear(_take_last, 2, lambda *args: scatter_add_last(*args), shifted_axes)
scatter_add_last: Callable[..., Any] = linear(_scatter_add_last, 2, take_last, shifted_axes)
# (values, indices, call)
unpool = linear(_unpool, 2, lambda grad, indices, call: take(grad, indices, call.axes))


class Max(Function):
    """Max or min pooling: values, offsets, and indices where they are asked for."""

    @staticmethod
    def forward(x: Tensor, call: Call, last: bool, link: Any) -> Any:
        found = kernels.pool(call._replace(extra=call.offsets), x, last)
        return found if call.extra != INDEX64 else (*found, kernels.pool(call, x, last)[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.args, ctx.link = inputs[1:3], inputs[3]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.others = (None,) * (len(output) - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        if grad is None:
            return None, None, None, None
        return linked(max_backward(grad, *saved(ctx), *ctx.args), ctx.link), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return gather(tangent, *ctx.saved_tensors, *ctx.args), *ctx.others

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(_max_pool, 1, shifted)(info, in_dims, *args)


class Lp(Function):
    """Lp pooling: its derivative needs input and output."""

    @staticmethod
    def forward(x: Tensor, call: Call) -> Any:
        return kernels.pool(call, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.call = inputs
        ctx.last = channels_last(x, ctx.call.axes)
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = saved(ctx)
        return lp_backward(grad, x, y, ctx.call, ctx.last), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        # PyTorch disables forward mode here, also for outer levels, which differentiate the factors.
        with _set_fwd_grad_enabled(True):
            x, y = (torch._VF._unpack_dual(t, level=forward_ad._current_level)[0] for t in ctx.saved_tensors)
            linear, taps = inside_norm(ctx.call)
            before, after = lp_factors(x, y, taps, ctx.call.norm)
            return after * sum_pool(tangent * before, linear, ctx.last)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(lp_pool, 1, shifted)(info, in_dims, *args)


def inside_norm(call: Call) -> tuple[Call, int]:
    """The sum or average inside an Lp pooling, and the taps that its result is multiplied by."""
    mean, taps = ("sum", 1) if call.divisor else ("avg", call.plan.taps)
    return call._replace(reduction=REDUCTIONS[mean], divisor=0, norm=0.0), taps


def lp_backward(grad: Tensor, x: Tensor, y: Tensor, call: Call, last: bool) -> Tensor:
    """The gradient of Lp pooling from its input and its output."""
    for tensor in () if transforms_active() else (x, y, grad):
        if tensor.is_cpu and not is_legacy_batch(tensor):
            check_memory(tensor)  # PyTorch's arithmetic does not
    linear, taps = inside_norm(call)
    if undifferentiated(grad) and plain(x) and plain(y):
        found: Tensor | None = kernels.norm_backward(linear._replace(norm=call.norm), grad, x, y, taps, last)
        if found is not None:
            return found
    before, after = lp_factors(x, y, taps, call.norm)
    return before * sum_backward(grad * after, linear, last)  # type: ignore[no-any-return]


def lp_factors(x: Tensor, y: Tensor, taps: int, norm: float) -> tuple[Tensor, Tensor]:
    """The factors of a tangent before and after the average inside Lp pooling; 0 where the result is 0."""
    zero = y == 0
    return x ** (norm - 1), torch.where(zero, 0, taps * torch.where(zero, 1, y) ** (1 - norm))


_max_pool, lp_pool = applied(Max), applied(Lp)


def pool(call: Call, x: Tensor) -> Any:
    """Pool a tensor whose derivatives may be asked for."""
    if call.reduction.norm:
        return lp_pool(x, call)
    last = channels_last(x, call.axes)
    if not call.reduction.has_index:
        return sum_pool(with_link(x), call, last)
    found = _max_pool(x, call, last, link_to(x))
    return (found[0], found[2]) if call.extra == INDEX64 else found[0]
