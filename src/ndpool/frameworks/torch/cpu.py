"""CPU tensors: the compiled core on their memory. No derivatives.

Called through the table in `kernels`. A tensor is passed as its address and strides and copied only if its
memory is misaligned. Results keep the channels-last format, as PyTorch's do, and are contiguous otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ndpool._call import NO_EXTRA, OFFSET8, OFFSET32, Call, Unpool
from ndpool._native import BUILT, core, core_plan
from ndpool._plan import positions, with_sizes
from ndpool._policy import wrong_index
from ndpool.frameworks.torch.tensors import (
    CODES,
    EXTRA_DTYPES,
    NoMemoryError,
    channels_last,
    check_memory,
    empty,
    is_channels_last,
    materialized,
    memory,
    pooled_last,
    renamed,
    zeroed,
)
from ndpool.reductions import REDUCTIONS

_LP = REDUCTIONS["lp"].op

if BUILT:
    core.borrow_threads()  # PyTorch's work and ours take turns on the same threads


def pool(call: Call, x: Tensor, last: bool | None = None, targets: tuple[Tensor, ...] = ()) -> Any:
    """Values of `call.dtype`, and the extra tensor where one is asked for; `last`: channels-last or not."""
    # Every call that is not prepared comes through here, so the common case is written out.
    check_memory(x)
    axes, plan = call.axes, call.plan
    shape, stride = x.shape, x.stride()
    ndim, n = len(shape), len(axes)
    trailing = n <= 3 and axes[0] == ndim - n and axes[-1] == ndim - 1 and (n < 3 or axes[1] == ndim - 2)
    outs = shape[: ndim - n] + plan.out if trailing else with_sizes(shape, axes, plan.out)
    if last is None:
        last = ndim > 2 and stride[-1] >= stride[0 if n == ndim - 1 else 1]
        last = last and is_channels_last(shape, stride, n)
    same = not last and call.dtype is x.dtype
    y = targets[0] if targets else x.new_empty(outs) if same else empty(x, outs, call.dtype, last, n)
    extra = extra_memory = None
    if call.extra != NO_EXTRA:
        extra = targets[1] if targets else empty(x, outs, EXTRA_DTYPES[call.extra], last, n)
        extra_memory = (extra.data_ptr(), outs, extra.stride())
    address = x.data_ptr()
    if address == 0 or x.is_neg():
        x = materialized(x)
        address, _, stride = memory(x)
    core_windows, op, code = plan.core or core_plan(plan), call.reduction.op, CODES[x.dtype]
    values = (y.data_ptr(), outs, y.stride())
    how = (CODES[call.dtype], extra_memory, call.extra, call.reduction.divides, call.divisor, call.norm)
    if not core.forward(core_windows, op, (address, shape, stride), code, axes, values, *how):
        # Misaligned memory: the one layout that needs a copy.
        x = x.clone()
        if not core.forward(core_windows, op, memory(x), code, axes, values, *how):
            raise RuntimeError("ndpool core: a packed copy was refused")
    return y if extra is None else (y, extra)


def sum_backward(call: Call, grad: Tensor, last: bool) -> Tensor:
    """The adjoint of sums and averages."""
    return _backward(call, grad, None, last)


def max_backward(call: Call, grad: Tensor, offsets: Tensor, last: bool) -> Tensor:
    """The gradient of max and min pooling, gathered by offsets."""
    return _backward(call, grad, offsets, last)


def norm_backward(call: Call, grad: Tensor, x: Tensor, y: Tensor, taps: int, last: bool) -> Tensor | None:
    """The gradient of a norm, `call` being the average or the sum inside it; None for strange tensors."""
    grad, x, y = materialized(grad), materialized(x), materialized(y)
    result = empty(grad, x.shape, grad.dtype, last, len(call.axes))
    if grad.numel() == 0 or result.numel() == 0:
        return zeroed(result)
    if norm_gradient(call, grad, x, y, result):
        return result
    return result if norm_gradient(call, grad.clone(), x.clone(), y.clone(), result) else None


def norm_gradient(call: Call, grad: Tensor, x: Tensor, y: Tensor, result: Tensor) -> bool:
    """Writes the gradient of a norm; False for misaligned or unlike tensors."""
    for saved, like in ((y, grad), (x, result)):  # hooks may change what was saved
        if saved.dtype is not grad.dtype or saved.shape != like.shape or not saved.is_cpu:
            return False
    target = (result.data_ptr(), result.shape, result.stride())
    how: Any = (None, NO_EXTRA, memory(y), call.reduction.divides, 0, call.norm, memory(x))
    return core.backward(core_plan(call.plan), _LP, memory(grad), CODES[grad.dtype], call.axes, target, *how)


def _backward(call: Call, grad: Tensor, offsets: Tensor | None, last: bool) -> Tensor:
    grad = materialized(grad)
    shape = with_sizes(grad.shape, call.axes, call.plan.sizes)
    result = empty(grad, shape, grad.dtype, last, len(call.axes))
    if grad.numel() == 0 or result.numel() == 0:
        return zeroed(result)
    kind = NO_EXTRA if offsets is None else OFFSET8 if offsets.dtype is torch.uint8 else OFFSET32
    divisor = 0 if offsets is not None else call.divisor

    def done(grad: Tensor, offsets: Tensor | None) -> bool:
        places = None if offsets is None else memory(offsets)
        how: Any = (places, kind, None, call.reduction.divides, divisor, 0.0)
        gradient = (memory(grad), CODES[grad.dtype], call.axes, memory(result))
        return core.backward(core_plan(call.plan), call.reduction.op, *gradient, *how)

    try:
        if done(grad, offsets) or done(grad.clone(), None if offsets is None else offsets.clone()):
            return result
    except NoMemoryError as error:
        raise renamed(call.function, error) from None
    raise RuntimeError("ndpool core: a packed copy was refused")


def gather(call: Call, x: Tensor, offsets: Tensor, last: bool) -> Tensor:
    """The elements that offsets stand for, of any tensor of the input's shape; 0 for an empty window."""
    check_memory(x)
    check_memory(offsets)
    result = empty(x, offsets.shape, x.dtype, last, len(call.axes))
    if result.numel():
        order, (n_lead, *_) = pooled_last(x.dim(), call.axes)
        flat = materialized(x).permute(order).flatten(n_lead)
        found = positions(call.plan, offsets.long(), call.axes, torch.tensor)
        at = found.permute(order).flatten(n_lead)
        taken = flat.gather(-1, at.clamp(min=0)).masked_fill_(at < 0, 0)
        result.permute(order).copy_(taken.view(*flat.shape[:-1], *call.plan.out))
    return result


def unpool(call: Unpool, values: Tensor, indices: Tensor) -> Tensor:
    """Values at their indices in planes of zeros; of repeated indices the last in row-major order wins."""
    check_memory(values)
    check_memory(indices)
    axes, n = call.axes, len(call.axes)
    shape = with_sizes(values.shape, axes, call.sizes)
    result = zeroed(empty(values, shape, values.dtype, channels_last(values, axes), n))
    order, _ = pooled_last(values.dim(), axes)
    narrow, places = materialized(values), materialized(indices)
    wide, narrow, places = (t.permute(order) for t in (result, narrow, places))
    code = CODES[values.dtype]
    done, bad = core.unpool(memory(wide), memory(narrow), memory(places), code, n, True)
    if not done:
        packed, narrow, places = (t.contiguous().clone() for t in (wide, narrow, places))
        _, bad = core.unpool(memory(packed), memory(narrow), memory(places), code, n, True)
        wide.copy_(packed)
    if bad is not None:
        raise wrong_index(call.function, bad, call.sizes)
    return result
