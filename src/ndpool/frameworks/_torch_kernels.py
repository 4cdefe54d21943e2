"""The compiled core on plain PyTorch tensors: memory in, memory out, no derivative.

Called by the room in `torch.py` and by the operators in `_torch_ops.py`. A CPU tensor is handed over as its
address and strides and never copied, unless its memory is misaligned; a CUDA tensor goes to `_torch_gpu.py`,
a tensor of another device through the CPU. Outputs keep the channels-last format, as PyTorch's do, and are
contiguous otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ndpool._arguments import wrong_index
from ndpool._native import BUILT, INDEX64, NO_EXTRA, OFFSET8, OFFSET32, core, core_plan
from ndpool.geometry import Plan, positions, round_bfloat16
from ndpool.geometry import fractional as fractional_plan
from ndpool.reductions import REDUCTIONS, Reduction

F = TypeVar("F", bound=Callable[..., Any])
CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code
    for code, name in enumerate(
        ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
        + ["float16", "bfloat16", "float32", "float64"]
    )
}
FIRST_FLOAT = CODES[torch.float16]
_EXTRA_DTYPES = (torch.uint8, torch.uint8, torch.int32, torch.int64)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_SPATIAL = {3: (2,), 4: (3, 2), 5: (4, 3, 2)}
if BUILT:
    core.borrow_threads()  # PyTorch's own work and ours take turns on the same threads
_warned: set[str] = set()
triton_only = False  # tests run CPU tensors through Triton's interpreter


def on_cpu(kernel: F) -> F:
    """The kernel for tensors of any device."""

    @wraps(kernel)
    def run(x: Tensor, *args: Any) -> Any:
        return kernel(x, *args) if x.is_cpu and not triton_only else _elsewhere(kernel, x, *args)

    return run  # type: ignore[return-value]


def _elsewhere(kernel: Callable[..., Any], x: Tensor, *args: Any) -> Any:
    """CUDA tensors have kernels of their own for up to three axes; others go through the CPU."""
    if x.is_cuda or triton_only:
        axes = args[0] if type(args[0]) is tuple else args[1]
        if len(axes) <= 3:
            return getattr(_gpu(), kernel.__name__)(x, *args)
    return _through_cpu(kernel, x, *args)


@cache
def _gpu() -> Any:
    try:
        from ndpool.frameworks import _torch_gpu
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ImportError(
            "ndpool: CUDA tensors need Triton, which is missing; `pip install triton`"
        ) from error
    return _torch_gpu


def _through_cpu(kernel: Callable[..., Any], x: Tensor, *args: Any) -> Any:
    device = x.device
    if device.type not in _warned:
        _warned.add(device.type)
        kind = "more than 3 axes of cuda" if x.is_cuda else device.type
        warnings.warn(f"ndpool has no kernels for {kind}: such tensors are pooled on the CPU", stacklevel=2)
    result = kernel(x.cpu(), *(a.cpu() if isinstance(a, Tensor) else a for a in args))
    return tuple(r.to(device) for r in result) if isinstance(result, tuple) else result.to(device)


def is_channels_last(shape: Any, stride: Any, n_axes: int = 0) -> bool:
    """Whether PyTorch takes these strides for channels-last; one spatial axis counts as an image's row.

    With as many pooled axes as leave only the channels there is no batch: then only volumes have the format.
    """
    if n_axes and n_axes == len(shape) - 1:
        if n_axes != 3 or stride[-1] < stride[0]:
            return False
        shape, stride = (1, *shape), (max(n * step for n, step in zip(shape, stride, strict=True)), *stride)
    spatial = _SPATIAL.get(len(shape))
    # Of contiguous memory this is all that needs a look.
    if spatial is None or stride[-1] < stride[1] or stride[1] == 0:
        return False
    least = 0
    for axis in (1, *spatial, 0):
        step = stride[axis]
        if shape[axis] == 0 or step < least or (axis == 0 and least == stride[1]):
            return False
        least = step * shape[axis] if shape[axis] > 1 else step
    return True


def empty(like: Tensor, shape: Any, dtype: torch.dtype, channels_last: bool, n_axes: int = 0) -> Tensor:
    """New memory on the device of `like`; batches of `vmap` may have too many axes for a format."""
    if channels_last and n_axes and n_axes == len(shape) - 1:
        return empty(like, (1, *shape), dtype, True).squeeze(0)
    if not channels_last or len(shape) not in _SPATIAL:
        return torch.empty(shape, dtype=dtype, device=like.device)
    if len(shape) == 3:
        n, c, size = shape
        return torch.empty((n, size, c), dtype=dtype, device=like.device).transpose(1, 2)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=FORMATS[len(shape)])


def zeroed(x: Tensor) -> Tensor:
    """A new CPU tensor, filled with zeros by the core: PyTorch's threads do not exist in a forked child."""
    core.zero(x.data_ptr(), x.numel() * x.element_size())
    return x


def with_sizes(shape: Any, axes: Any, sizes: Any) -> Any:
    """The shape with other sizes at the pooled axes."""
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


class FreedError(ValueError):
    """A tensor whose storage is smaller than its elements; the public functions add their name."""


def extent(x: Tensor) -> int:
    """The bytes from the first element of a tensor to its last."""
    return (sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1) * x.itemsize


def check_memory(x: Tensor, needed: int | None = None) -> None:
    """That storage lies under every element: anybody can give it back, or shrink it, under a tensor."""
    size = x.untyped_storage().nbytes()
    bytes_needed = (extent(x) if needed is None else needed) + x.storage_offset() * x.itemsize
    if size < bytes_needed and x.numel() and not x._is_zerotensor():
        raise FreedError(
            f"a tensor's memory was freed or cut; its storage has {size} bytes "
            f"(limit: at least {bytes_needed})"
        )


def memory(x: Tensor) -> Any:
    """The tensor as the core takes it; whoever calls keeps the tensor alive."""
    check_memory(x)
    return x.data_ptr(), x.shape, x.stride()


def real(x: Tensor) -> Tensor:
    """The tensor with values of its own: not negated on reading, not a zero without memory."""
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if x._is_zerotensor() else x


def offset_dtype(plan: Plan) -> torch.dtype:
    """One byte per window while that can number its taps, else four."""
    return torch.uint8 if plan.taps <= 256 else torch.int32


def pool(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int = 0,
    norm: float = 0.0,
    kind: int = NO_EXTRA,
    channels_last: bool | None = None,
    into: tuple[Tensor, ...] = (),
) -> Any:
    """Values, and with a `kind` also where in its window or its plane each was found.

    Memory to write `into` is taken where a kernel can do so; a tensor of its own may come back.
    """
    if not x.is_cpu or triton_only:
        there = (into,) if into and (x.is_cuda or triton_only) and len(axes) <= 3 else ()
        return _elsewhere(pool, x, axes, plan, reduction, dtype, divisor, norm, kind, channels_last, *there)
    if reduction.norm and not divisor:
        divisor = plan.norm_divisor
    # Every small call comes through here, so the common case is written out.
    check_memory(x)
    shape, stride = x.shape, x.stride()
    ndim, n = len(shape), len(axes)
    trailing = n <= 3 and axes[0] == ndim - n and axes[-1] == ndim - 1 and (n < 3 or axes[1] == ndim - 2)
    outs = shape[: ndim - n] + plan.out if trailing else with_sizes(shape, axes, plan.out)
    if channels_last is None:
        channels_last = ndim > 2 and stride[-1] >= stride[0 if n == ndim - 1 else 1]
        channels_last = channels_last and is_channels_last(shape, stride, n)
    same = not channels_last and dtype is x.dtype
    y = into[0] if into else x.new_empty(outs) if same else empty(x, outs, dtype, channels_last, n)
    extra = to = None
    if kind != NO_EXTRA:
        extra = into[1] if into else empty(x, outs, _EXTRA_DTYPES[kind], channels_last, n)
        to = (extra.data_ptr(), outs, extra.stride())
    address = x.data_ptr()
    if address == 0 or x.is_neg():
        x = real(x)
        address, stride = x.data_ptr(), x.stride()
    native, op, code = plan.core or core_plan(plan), reduction.op, CODES[x.dtype]
    values = (y.data_ptr(), outs, y.stride())
    more = (CODES[dtype], to, kind, reduction.divides, divisor, norm)
    if not core.forward(native, op, (address, shape, stride), code, axes, values, *more):
        # Misaligned memory: the one layout that needs a copy.
        x = x.clone()
        if not core.forward(native, op, memory(x), code, axes, values, *more):
            raise RuntimeError("ndpool core: a packed copy was refused")
    return y if extra is None else (y, extra)


def total(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    channels_last: bool,
) -> Any:
    """Sums or averages, in the given memory format."""
    return pool(x, axes, plan, reduction, dtype, divisor, 0.0, NO_EXTRA, channels_last)


@on_cpu
def spread(
    grad: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    dtype: torch.dtype,
    divisor: int,
    channels_last: bool,
) -> Tensor:
    """The adjoint of `total`."""
    return _spread(grad, None, axes, plan, reduction, divisor, channels_last)


@on_cpu
def spread_picks(
    grad: Tensor,
    offsets: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    channels_last: bool,
) -> Tensor:
    """The gradient of what was picked: each output's, where its value came from."""
    return _spread(grad, offsets, axes, plan, reduction, 0, channels_last)


def _spread(
    grad: Tensor,
    offsets: Tensor | None,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    divisor: int,
    channels_last: bool,
) -> Tensor:
    check_memory(grad)
    grad = real(grad)
    result = empty(grad, with_sizes(grad.shape, axes, plan.sizes), grad.dtype, channels_last, len(axes))
    if grad.numel() == 0 or result.numel() == 0:
        return zeroed(result)
    kind = NO_EXTRA if offsets is None else OFFSET8 if offsets.dtype is torch.uint8 else OFFSET32

    def done(grad: Tensor, offsets: Tensor | None) -> bool:
        places = None if offsets is None else memory(offsets)
        into = (memory(result), places, kind, None, reduction.divides, divisor, 0.0)
        return core.backward(core_plan(plan), reduction.op, memory(grad), CODES[grad.dtype], axes, *into)

    if not done(grad, offsets) and not done(grad.clone(), None if offsets is None else offsets.clone()):
        raise RuntimeError("ndpool core: a packed copy was refused")
    return result


@on_cpu
def gather(
    x: Tensor,
    offsets: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    channels_last: bool,
) -> Tensor:
    """The elements that were picked, from another array of the same shape; 0 where a window held nothing."""
    check_memory(x)
    check_memory(offsets)
    result = empty(x, offsets.shape, x.dtype, channels_last, len(axes))
    if result.numel():
        found = torch.from_numpy(positions(plan, offsets.numpy(), axes))
        order = [a for a in range(x.dim()) if a not in axes] + list(axes)
        flat = real(x).permute(order).flatten(x.dim() - len(axes))
        at = found.permute(order).flatten(x.dim() - len(axes))
        taken = flat.gather(-1, at.clamp(min=0)).masked_fill_(at < 0, 0)
        result.permute(order).copy_(taken.view(*flat.shape[:-1], *plan.out))
    return result


@on_cpu
def unpool(values: Tensor, indices: Tensor, axes: tuple[int, ...], fn: str, sizes: tuple[int, ...]) -> Tensor:
    """Zeros with every value at its index; of repeated indices the last in row-major order stays."""
    check_memory(values)
    check_memory(indices)
    shape, channels_last = (
        with_sizes(values.shape, axes, sizes),
        is_channels_last(values.shape, values.stride(), len(axes)),
    )
    result = zeroed(empty(values, shape, values.dtype, channels_last, len(axes)))
    order = [a for a in range(values.dim()) if a not in axes] + list(axes)
    wide, narrow, places = (t.permute(order) for t in (result, real(values), indices))
    code, n = CODES[values.dtype], len(axes)
    understood, bad = core.unpool(memory(wide), memory(narrow), memory(places), code, n, True)
    if not understood:
        packed, narrow, places = (t.contiguous().clone() for t in (wide, narrow, places))
        _, bad = core.unpool(memory(packed), memory(narrow), memory(places), code, n, True)
        wide.copy_(packed)
    if bad is not None:
        raise wrong_index(fn, bad, sizes)
    return result


@on_cpu
def fractional(
    x: Tensor,
    samples: Tensor,
    axes: tuple[int, ...],
    fn: str,
    kernel: tuple[int, ...],
    outs: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Maxima over windows at the places that samples give, one set per plane, and where they were found."""
    check_memory(samples)
    flat = samples.reshape(-1, len(axes))
    narrow = round_bfloat16 if flat.dtype is torch.bfloat16 else None
    places = (flat.float() if narrow else flat).numpy()
    plan = fractional_plan(fn, tuple(x.shape[a] for a in axes), places, kernel, outs, None, narrow)
    return pool(x, axes, plan, REDUCTIONS["max"], x.dtype, kind=INDEX64)  # type: ignore[no-any-return]


def random_samples(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, seed: int | None) -> Tensor:
    """Random numbers in [0, 1), from a seed or from PyTorch's own generator."""
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    return torch.rand(shape, dtype=dtype, device=x.device, generator=generator)
