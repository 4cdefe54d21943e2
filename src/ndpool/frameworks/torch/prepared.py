"""Prepared calls: everything that function, arguments, dtype and layout decide, worked out once.

`prepare` gives a function of a tensor, kept in the cache of `ndpool._cache`; a small call then costs about as
much as PyTorch's own. It differentiates in reverse mode, by the functions of `autograd`. Any other call takes
the way of `run` in this folder's `__init__`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import Function
from torch.autograd.graph import increment_version

from ndpool import _record
from ndpool._cache import has_large_tables
from ndpool._call import BYTE_TAPS, INDEX64, NO_EXTRA, OFFSET8, Call
from ndpool._native import core, core_plan
from ndpool._plan import with_sizes
from ndpool._policy import DTYPES, FIRST_FLOAT, arithmetic
from ndpool.frameworks.torch import cpu, kernels
from ndpool.frameworks.torch.autograd import (
    direct,
    inside_norm,
    link_of,
    link_to,
    linked,
    lp_backward,
    max_backward,
    sum_backward,
    undifferentiated,
)
from ndpool.frameworks.torch.tensors import (
    CODES,
    EXCHANGED,
    EXTRA_DTYPES,
    FAILURES,
    FORMATS,
    PLAIN_TYPES,
    channels_last,
    check_memory,
    empty,
    extent,
    renamed,
    writable,
)

# The allocation of compiled graphs: a shape, strides and a dtype -> a tensor, on the current device.
_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty_cpu, _empty_cuda = (getattr(_guards, f"_empty_strided_{device}", None) for device in ("cpu", "cuda"))
_SMALL = 1024  # elements of a result whose offsets are kept in a bytearray


def prepare(call: Call, x: Tensor) -> Callable[[Tensor, Any], Any] | None:
    """The call for tensors like `x`, or None where it cannot be prepared."""
    if call.plan is None:  # a meta tensor
        return None
    call = call._replace(dtype=x.dtype)
    code = CODES.get(x.dtype)
    if code is None or type(x) not in PLAIN_TYPES or x.layout is not torch.strided or kernels.triton_only:
        return None
    how = arithmetic(call.function, call.reduction, DTYPES[code], None, call.divisor, call.norm)
    if how != (call.reduction, DTYPES[code], False, 0) or not x.numel() or not prod(call.plan.out):
        return None
    if has_large_tables(call.plan):
        return None
    try:
        with torch.inference_mode(False):
            if x.is_cpu:
                return _prepare_cpu(call, x, code)
            return _prepare_cuda(call, x) if x.is_cuda else None
    except FAILURES as error:
        raise renamed(call.function, error) from None


def _new(x: Tensor, shape: Any, dtype: torch.dtype, last: bool, n_axes: int) -> tuple[Any, tuple[int, ...]]:
    """The fastest way to allocate a tensor of this layout, and its strides."""
    if x.is_cuda and _empty_cuda is not None and not torch.are_deterministic_algorithms_enabled():
        # On the current device, which prepared calls check. In deterministic mode PyTorch fills new memory.
        like = empty(torch.empty(0, device="meta"), shape, dtype, last, n_axes)
        return partial(_empty_cuda, tuple(like.shape), like.stride(), dtype), ()
    if x.is_cuda:
        like = torch.empty(1, dtype=dtype, device=x.device).expand(shape)
        if not last:
            return partial(torch.empty_like, like), ()
        if len(shape) in FORMATS and n_axes == len(shape) - 2:
            return partial(torch.empty_like, like, memory_format=FORMATS[len(shape)]), ()
        return partial(empty, x, shape, dtype, last, n_axes), ()
    like = empty(torch.empty(0, device="meta"), shape, dtype, last, n_axes)
    if _empty_cpu is not None:
        return partial(_empty_cpu, tuple(like.shape), like.stride(), dtype), like.stride()
    return partial(torch.empty_strided, like.shape, like.stride(), dtype=dtype, device="cpu"), like.stride()


class Training(NamedTuple):
    """What a prepared forward and backward pass on the CPU need."""

    call: Call
    last: bool
    new: Any  # allocates the result
    kind: int  # of the offsets, if there are any
    new_offsets: Any
    new_grad: Any
    outs: tuple[int, ...]
    stride: tuple[int, ...]  # of the result
    forward: Any  # the core's calls
    backward: Any
    packed_bytes: int  # of offsets in a bytearray; 0: they need a tensor, or there are none
    keeps_input: bool  # small enough to be saved for second derivatives, or needed for the first
    extent: int  # bytes from the first element of the input to its last
    itemsize: int


def _prepare_cpu(call: Call, x: Tensor, code: int) -> Callable[[Tensor, Any], Any] | None:
    fn, axes, plan, has_index = call.function, call.axes, call.plan, call.reduction.has_index
    last, n_axes = channels_last(x, axes), len(axes)
    shape = with_sizes(x.shape, axes, plan.out)
    new, stride = _new(x, shape, x.dtype, last, n_axes)
    source, target = (0, x.shape, x.stride()), (0, shape, stride)

    def core_call(call: Call, kind: int, x: Any, y: Any, backward: bool = False) -> Any:
        how = (code, axes, kind, call.reduction.divides, backward, call.divisor, call.norm)
        return core.Call(core_plan(plan), call.reduction.op, x, y, *how)

    def norm_gradient(result: Any) -> Any:
        how = (code, axes, NO_EXTRA, inside_norm(call)[0].reduction.divides, True, 0, call.norm)
        return core.Call(core_plan(plan), call.reduction.op, target, result, *how, source)

    try:
        kept = core_call(call, call.extra, source, target)
    except ValueError:  # `run` raises it again, in the name of the function
        return None
    run = kept.run
    bytes_needed, itemsize, dtype = extent(x), x.itemsize, x.dtype
    training = train = None
    if code >= FIRST_FLOAT and call.extra == NO_EXTRA:
        new_grad, grad_stride = _new(x, x.shape, x.dtype, last, n_axes)
        gradient, small, norm = (0, x.shape, grad_stride), prod(shape) <= _SMALL, call.reduction.norm
        kind = call.offsets if has_index else NO_EXTRA
        training = Training(
            call=call,
            last=last,
            new=new,
            kind=kind,
            new_offsets=_new(x, shape, EXTRA_DTYPES[kind], last, n_axes)[0] if has_index else None,
            new_grad=new_grad,
            outs=shape,
            stride=stride,
            forward=core_call(call, kind, source, target) if has_index else kept,
            backward=norm_gradient(gradient) if norm else core_call(call, kind, target, gradient, True),
            packed_bytes=prod(shape) * EXTRA_DTYPES[kind].itemsize if has_index and small else 0,
            keeps_input=norm or (x.numel() <= 4 * _SMALL and (small or not has_index)),
            extent=bytes_needed,
            itemsize=itemsize,
        )

    def prepared(x: Tensor, out: Any) -> Any:
        nonlocal train
        try:
            if x.requires_grad and is_grad_enabled():
                if training is None or out is not None:
                    return None
                if train is None:
                    train = _train_cpu(training)
                if x.is_leaf or training.keeps_input:
                    return train(x)
                link, y = link_to(x), train(x)
                node: Any = y.grad_fn
                node.link = link
                return y
            if x.untyped_storage().nbytes() < bytes_needed + x.storage_offset() * itemsize:
                check_memory(x)
            if out is None:
                y = new()
                return y if run(x, y, None) else None
            if not writable(out, x) or out.dtype is not dtype or not run(x, out, None):
                return None
            if not out.is_inference():
                increment_version(out)
            return out
        except FAILURES as error:
            raise renamed(fn, error) from None

    if call.extra == NO_EXTRA:
        return _quick(kept, prepared, new, None, x)
    new_extra, _ = _new(x, shape, EXTRA_DTYPES[call.extra], last, n_axes)

    def prepared_with_indices(x: Tensor, out: Any) -> Any:
        if out is not None or (x.requires_grad and is_grad_enabled()):
            return None
        try:
            if x.untyped_storage().nbytes() < bytes_needed + x.storage_offset() * itemsize:
                check_memory(x)
            y, extra = new(), new_extra()
            return (y, extra) if run(x, y, extra) else None
        except FAILURES as error:
            raise renamed(fn, error) from None

    return _quick(kept, prepared_with_indices, new, new_extra, x)


def _quick(
    call: Any, usual: Callable[[Tensor, Any], Any], new: Any, new_extra: Any, x: Tensor
) -> Callable[[Tensor, Any], Any]:
    """A prepared call that the core runs without Python, where it can have PyTorch allocate the results."""
    if _empty_cpu is None or not EXCHANGED:
        return usual
    extra = None if new_extra is None else new_extra.args
    return core.TensorCall(call, usual, _empty_cpu, new.args, extra, extent(x), x.itemsize)


def _train_cpu(t: Training) -> Callable[[Tensor], Tensor]:
    """A prepared call with its backward pass, in reverse mode alone.

    Each prepared call has a class: arguments of a `Function` besides the tensor cost time in both passes. The
    core has both passes without Python code, and leaves to these what is not plain.
    """
    has_offsets = t.new_offsets is not None

    def forward(ctx: Any, x: Tensor) -> Any:
        check_memory(x)
        found = cpu.pool(t.call._replace(extra=t.kind), x, t.last)
        y, offsets = found if has_offsets else (found, None)
        # The graph keeps a leaf anyway, and keeping a small input costs less than a link to it.
        kept = (x,) if t.keeps_input and not x.is_leaf else ()
        ctx.save_for_backward(*(kept if offsets is None else (offsets, *kept)))
        ctx.packed = None
        return y

    def backward(ctx: Any, grad: Tensor, saved: Any = None) -> Any:
        if saved is None and has_offsets and ctx.packed is None:
            saved = ctx.saved_tensors
        link = _link_of(ctx, saved) if is_grad_enabled() else None
        if not has_offsets:
            return linked(sum_backward(grad, t.call, t.last), link)
        if ctx.packed is None:
            offsets = saved[0]
        else:
            offsets = torch.frombuffer(ctx.packed, dtype=EXTRA_DTYPES[t.kind]).as_strided(t.outs, t.stride)
        return linked(max_backward(grad, offsets, t.call, t.last), link)

    def forward_norm(ctx: Any, x: Tensor) -> Any:
        check_memory(x)
        y = cpu.pool(t.call, x, t.last)
        ctx.save_for_backward(x, y)
        return y

    def backward_norm(ctx: Any, grad: Tensor, saved: Any = None) -> Any:
        x, y = ctx.saved_tensors if saved is None else saved
        return lp_backward(grad, x, y, t.call, t.last)

    passes: tuple[Callable[..., Any], Callable[..., Any]] = forward, backward
    if t.call.reduction.norm:
        passes = forward_norm, backward_norm
    if _empty_cpu is not None and EXCHANGED:
        core_passes = core.TensorTraining(
            t.forward,
            t.backward,
            *passes,
            _empty_cpu,
            t.new.args,
            t.new_offsets.args if has_offsets and not t.packed_bytes else None,
            t.new_grad.args,
            t.packed_bytes,
            t.extent,
            prod(t.outs),
            t.itemsize,
            EXTRA_DTYPES[t.kind].itemsize if has_offsets else 1,
            t.keeps_input,
            t.call.reduction.norm,
        )
        passes = core_passes.forward, core_passes.backward
    names = dict(zip(("forward", "backward"), map(staticmethod, passes), strict=True))
    return direct(type("TrainCpu", (Function,), names))


def _link_of(ctx: Any, saved: Any) -> Any:
    """The link to the input: made with the result, or now, to a leaf or to a small input that was saved."""
    if hasattr(ctx, "link"):
        return ctx.link
    node = ctx.next_functions[0][0]
    # By its name: the context of a caller's own function may have any attribute.
    leaf = node.name() == "torch::autograd::AccumulateGrad"
    if leaf:
        return link_of(node.variable)
    return link_of((ctx.saved_tensors if saved is None else saved)[-1])


class Launches(NamedTuple):
    """What makes the results of a CUDA call, what writes them, and what the backward pass needs."""

    call: Call
    last: bool
    new: Any
    new_extra: Any
    run: Any
    has_offsets: bool
    stride: tuple[int, ...] = ()  # of the gradient that `backward` reads
    new_grad: Any = None
    backward: Any = None  # None: gradients must be packed first
    several: bool = False  # devices
    steps: Any = ()  # (shape, dtype, kernel) of each kernel


def _launches(call: Call, x: Tensor, last: bool) -> Launches | None:
    """The kernels of a call that only follow one another; None elsewhere."""
    known = (x.is_floating_point() or call.reduction.has_index) and x.dtype is not torch.bool
    if not known or len(call.axes) > kernels.MAX_CUDA_AXES:
        return None
    found = kernels.cuda().launches(call, x, last, x.device)
    if found is None:
        return None
    n_axes = len(call.axes)
    *before, (outs, _, run) = steps = found
    if before:
        first = [(kernel, _new(x, shape, dtype, last, n_axes)[0]) for shape, dtype, kernel in before]
        run = _chain(first, run)
    new_extra = _new(x, outs, EXTRA_DTYPES.get(call.extra, x.dtype), last, n_axes)[0]
    new = _new(x, outs, x.dtype, last, n_axes)[0]
    return Launches(call, last, new, new_extra, run, call.extra == OFFSET8, steps=steps)


def _training(call: Call, x: Tensor, forward: Launches) -> Launches | None:
    """The forward and the backward pass; None where autograd takes the usual way."""
    if not x.is_floating_point() or call.extra != NO_EXTRA or call.reduction.norm:
        return None
    if call.reduction.has_index:
        if call.plan.taps > BYTE_TAPS:
            return None
        found = _launches(call._replace(extra=OFFSET8), x, forward.last)
        if found is None:
            return None
        forward = found
    how, like = (x.shape, x.dtype, forward.last, len(call.axes)), forward.new()
    result = empty(torch.empty(0, device="meta"), *how)
    backward = kernels.cuda().backward_launch(call, like, result, forward.has_offsets, aligned=True)
    several = torch.cuda.device_count() > 1
    return forward._replace(
        stride=like.stride(), new_grad=_new(x, *how)[0], backward=backward, several=several
    )


def _prepare_cuda(call: Call, x: Tensor) -> Callable[[Tensor, Any], Any] | None:
    fn, last = call.function, channels_last(x, call.axes)
    forward = _launches(call, x, last)
    if forward is None:
        return None
    train: Any = False  # made with the first training step
    start: Any = None  # a single kernel, once it is compiled
    new, new_extra, run, indices = forward.new, forward.new_extra, forward.run, call.extra == INDEX64
    device, several = x.get_device(), torch.cuda.device_count() > 1

    def prepared(x: Tensor, out: Any) -> Any:
        nonlocal train, start
        address = x.data_ptr()
        if out is not None or not address or address % 16 or (several and device != _current_device()):
            return None
        try:
            if x.requires_grad and is_grad_enabled():
                if train is False:
                    training = _training(call, x, forward)
                    train = None if training is None else _train_cuda(training, device)
                return None if train is None else train(x)
            y = new()
            extra = new_extra() if indices else y
            if start is None or _record.recording:
                run(x, y, extra)
                start = getattr(run, "start", None)
            else:
                result = y.data_ptr()
                start(_current_stream(device), address, result, extra.data_ptr() if indices else result)
            return (y, extra) if indices else y
        except FAILURES as error:
            raise renamed(fn, error) from None

    prepared.steps = forward.steps  # type: ignore[attr-defined]  # for arrays that are no tensors
    return prepared


_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)  # None in a PyTorch without CUDA
# PyTorch's allocator: bytes and a stream -> an address. Missing from PyTorch without CUDA.
_allocate: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
_free: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)


def _chain(before: list[tuple[Any, Callable[[], Tensor]]], last: Any) -> Callable[..., None]:
    """Kernels in sequence, each reading what the one before it wrote.

    Two kernels share raw memory of the allocator, which may be freed while they still wait: the allocator
    gives it only to later kernels of the same stream.
    """
    from ndpool._triton.launch import Prepared, current_stream

    first, new = before[0]
    two = len(before) == 1 and isinstance(first, Prepared) and isinstance(last, Prepared)
    size, ready = new().nbytes, False

    def run(x: Tensor, y: Tensor, extra: Tensor) -> None:
        nonlocal ready
        if not ready or _record.recording:
            for kernel, make in before:
                between = make()
                kernel(x, between, between)
                x = between
            last(x, y, extra)
            ready = two and first.ready and last.ready
            return
        stream = current_stream(x.get_device())
        address = _allocate(size, stream)
        try:
            first.start(stream, x.data_ptr(), address, address)
            last.start(stream, address, y.data_ptr(), extra.data_ptr())
        finally:
            _free(address)

    return run


def _train_cuda(t: Launches, device: int) -> Callable[[Tensor], Tensor]:
    """A prepared CUDA call with its backward pass, in reverse mode alone.

    Each prepared call has a class, as on the CPU. The backward pass runs in another thread, which has to be
    woken, so that each step there takes several times as long as here.
    """
    has_offsets, new, new_extra, new_grad = t.has_offsets, t.new, t.new_extra, t.new_grad
    run, run_back, several = t.run, t.backward, t.several
    start: Any = None  # single kernels, once they are compiled
    start_back: Any = None

    class TrainCuda(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            nonlocal start
            y: Tensor = new()
            offsets = new_extra() if has_offsets else y
            if start is None or _record.recording:
                run(x, y, offsets)
                start = getattr(run, "start", None)
            else:
                start(_current_stream(device), x.data_ptr(), y.data_ptr(), offsets.data_ptr())
            if has_offsets:
                ctx.save_for_backward(offsets)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            nonlocal start_back
            offsets = grad
            address = other = grad.data_ptr()
            fits = grad.stride() == t.stride and address and not address % 16
            if has_offsets:
                (offsets,) = ctx.saved_tensors
                # Hooks of saved tensors may have changed the offsets.
                other = offsets.data_ptr() if offsets.is_cuda else 0
                fits = fits and offsets.stride() == t.stride and other and not other % 16
            if several:
                fits = fits and grad.get_device() == offsets.get_device() == device == _current_device()
            if fits and run_back is not None and undifferentiated(grad):
                result = new_grad()
                if start_back is None or _record.recording:
                    run_back(grad, offsets, result)
                    start_back = getattr(run_back, "start", None)
                else:
                    start_back(_current_stream(device), address, other, result.data_ptr())
                return result
            if has_offsets:
                return max_backward(grad, offsets, t.call, t.last)
            return sum_backward(grad, t.call, t.last)

    return direct(TrainCuda)
