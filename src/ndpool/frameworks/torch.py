"""PyTorch tensors: dtypes, memory given by the caller, and which way a call takes.

Reached through `_dispatch` only. A common call goes by a recipe of `_torch_quick.py`; else a plain tensor
goes straight to the kernels, one that is differentiated or transformed through the functions in
`_torch_autograd.py`. What a compiler or a dispatch mode looks at is traced as the operators in
`_torch_ops.py`, before any plan is made: its sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, is_grad_enabled, is_inference_mode_enabled
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from ndpool import geometry
from ndpool._arguments import (
    check_divisor,
    check_int,
    check_integer_norm,
    check_ints,
    check_overlap,
    check_padding,
    check_rank,
    check_samples,
    check_shape,
    check_sign,
    is_list,
)
from ndpool._native import INDEX64, NO_EXTRA
from ndpool.frameworks import _torch_autograd as autograd
from ndpool.frameworks import _torch_kernels as kernels
from ndpool.frameworks import _torch_ops as ops
from ndpool.frameworks import _torch_quick as quick
from ndpool.frameworks._torch_kernels import CODES, FIRST_FLOAT, FreedError, check_memory
from ndpool.frameworks._torch_quick import quick_pool, recall
from ndpool.geometry import Plan
from ndpool.reductions import REDUCTIONS, Reduction

_PLAIN = {Tensor, torch.nn.Parameter}
_UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
# x, reduction, return_indices, dtype of the values, divisor, norm -> values, or values and indices. Memory to
# write them to may come last.
Run = Callable[..., Any]


class TensorMemoryError(MemoryError, RuntimeError):
    """Memory that PyTorch could not allocate: a MemoryError as for arrays, a RuntimeError as from PyTorch."""


_FAILURES = (FreedError, MemoryError, RuntimeError)


def _in_the_name_of(fn: str, error: Exception) -> Exception:
    """What failed below, in the name of the function called."""
    if isinstance(error, FreedError):
        return ValueError(f"{fn}: {error}")
    lacking = type(error) is RuntimeError and "can't allocate memory" in str(error)
    if lacking or type(error) is MemoryError:
        return TensorMemoryError(f"{fn}: {error}")
    return error


def traced(x: Tensor) -> bool:
    """Whether a compiler, a dispatch mode or a class of its own wants to see operators."""
    return is_dynamo_compiling() or type(x) not in _PLAIN or dispatch_modes() > 0 or is_tracing() or x.is_meta


def differentiated(x: Tensor) -> bool:
    """Whether a derivative may be asked for, or a transform is at work."""
    return (x.requires_grad and is_grad_enabled()) or transforms_active() or forward_ad._current_level >= 0


def named(
    fn: str,
    n_axes: int,
    reduction: Reduction,
    x: Tensor,
    window: tuple[Any, ...],
    return_indices: bool = False,
    dtype: Any = None,
    out: Any = None,
    divisor: Any = None,
    norm: float = 0.0,
) -> Any:
    """A named function from its arguments; a small plain call costs PyTorch's time."""
    if is_dynamo_compiling() or type(x) not in _PLAIN or dispatch_modes() > 0 or is_tracing():
        return _trace_named(fn, n_axes, reduction, x, window, return_indices, dtype, out, divisor, norm)
    try:
        if x.is_cuda:
            if out is dtype is divisor is None and norm == 0:
                trains = x.requires_grad and is_grad_enabled()
                special = transforms_active() or forward_ad._current_level >= 0 or x.is_neg()
                if not special and not (trains and return_indices):
                    found = _cuda_quick()(fn, n_axes, reduction, x, window, return_indices, trains)
                    if found is not None:
                        return found
        elif out is dtype is divisor is None and not return_indices and norm == 0:
            recipe = recall(fn, x, window)
            if recipe is None:
                recipe = quick.make(fn, n_axes, reduction, x, window)
            # A recipe knows reverse mode alone, and takes memory for what it is.
            if recipe and not (transforms_active() or forward_ad._current_level >= 0 or x.is_neg()):
                if not x.requires_grad or not is_grad_enabled():
                    check_memory(x, recipe.extent)
                    y = recipe.new()
                    if recipe.run(x, y, None):
                        return y
                elif recipe.trains:
                    return quick_pool(x, recipe, None if x.is_leaf or recipe.small else autograd.link_to(x))
        if x.is_meta:
            return _trace_named(fn, n_axes, reduction, x, window, return_indices, dtype, out, divisor, norm)
        axes = check_rank(fn, x.shape, n_axes)
        plan = geometry.named(fn, x.shape[-n_axes:], window)
        divisor = check_divisor(fn, divisor)
        return _pool(fn, plan, reduction, x, axes, return_indices, dtype, out, divisor, norm)
    except _FAILURES as error:
        raise _in_the_name_of(fn, error) from None


@cache
def _cuda_quick() -> Callable[..., Any]:
    """What remembers calls on CUDA tensors; it needs Triton."""
    kernels._gpu()
    from ndpool.frameworks._torch_gpu_quick import quick

    return quick


def _trace_named(
    fn: str,
    n_axes: int,
    reduction: Reduction,
    x: Tensor,
    window: tuple[Any, ...],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: Any,
    norm: float,
) -> Any:
    axes, divisor = check_shape(fn, x.shape, n_axes), check_divisor(fn, divisor)
    if len(window) == 1:
        return adaptive(fn, reduction, x, axes, *window, return_indices, dtype, out, norm)
    return sliding(fn, reduction, x, axes, window, return_indices, dtype, out, divisor, norm)


def pool(
    fn: str,
    plan: Plan,
    reduction: Reduction,
    x: Tensor,
    axes: tuple[int, ...],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    """Reduce `x` over the windows of `plan`, into `out` where it is given."""
    try:
        return _pool(fn, plan, reduction, x, axes, return_indices, dtype, out, divisor, norm)
    except _FAILURES as error:
        raise _in_the_name_of(fn, error) from None


def _pool(
    fn: str,
    plan: Plan,
    reduction: Reduction,
    x: Tensor,
    axes: tuple[int, ...],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    own = x.dtype
    code = CODES.get(own)
    if code is None or x.layout is not torch.strided:
        code = _check_input(fn, x)
    kept = reduction.picks or (code >= FIRST_FLOAT and not (reduction.norm and abs(norm) == inf))
    if kept and dtype is None and out is None:
        if (x.requires_grad and is_grad_enabled()) or transforms_active() or forward_ad._current_level >= 0:
            return _differentiable(x, axes, plan, reduction, return_indices, own, divisor, norm)
        kind = INDEX64 if return_indices else NO_EXTRA
        return kernels.pool(x, axes, plan, reduction, own, divisor, norm, kind)

    def run(
        x: Tensor,
        reduction: Reduction,
        return_indices: bool,
        dtype: torch.dtype,
        divisor: int,
        norm: float,
        into: tuple[Tensor, ...] = (),
    ) -> Any:
        if differentiated(x):
            return _differentiable(x, axes, plan, reduction, return_indices, dtype, divisor, norm)
        kind = INDEX64 if return_indices else NO_EXTRA
        return kernels.pool(x, axes, plan, reduction, dtype, divisor, norm, kind, into=into)

    if out is not None and differentiated(x):
        raise ValueError(f"{fn}: out must not be given where a derivative or a transform is at work")
    shape = kernels.with_sizes(x.shape, axes, plan.out)
    taps = 0 if plan.norm_divisor else plan.taps
    return _convert(fn, run, x, shape, taps, reduction, return_indices, dtype, out, divisor, norm)


def _differentiable(
    x: Tensor,
    axes: tuple[int, ...],
    plan: Plan,
    reduction: Reduction,
    return_indices: bool,
    dtype: torch.dtype,
    divisor: int,
    norm: float,
) -> Any:
    channels_last = kernels.is_channels_last(x.shape, x.stride(), len(axes))
    if reduction.picks:
        link = autograd.link_to(x)
        found = autograd.pick(x, axes, plan, reduction, channels_last, return_indices, link)
        return (found[0], found[2]) if return_indices else found[0]
    if reduction.norm:
        return autograd.power_mean(x, axes, plan, reduction, norm)
    return autograd.total(autograd.with_link(x), axes, plan, reduction, dtype, divisor, channels_last)


def _convert(
    fn: str,
    run: Run,
    x: Tensor,
    shape: tuple[int, ...],
    taps: int,
    reduction: Reduction,
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    """A pooling with more to it: a dtype asked for, memory given, integers that change, infinite norms."""
    if x.is_cpu and not traced(x) and not transforms_active():
        check_memory(x)  # PyTorch, whose arithmetic comes first here, does not look
    if reduction.norm and abs(norm) == inf:  # the extremum of the magnitudes
        reduction = REDUCTIONS["max" if norm > 0 else "min"]
        x = x if x.dtype in _UNSIGNED else x.abs()
    result = _result_dtype(fn, reduction, x.dtype, dtype)
    check_sign(fn, divisor, result in _UNSIGNED)
    if out is not None:
        _check_out(fn, out, shape, result, x.device, return_indices)
    targets = () if out is None else out if return_indices else (out,)
    if reduction.norm and isinstance(norm, int) and not x.dtype.is_floating_point:
        got = _integer_norm(fn, run, x, taps, norm)
    else:
        own = x.dtype if reduction.picks else result
        if x.dtype.is_floating_point and own != x.dtype:
            own = torch.promote_types(x.dtype, result)
            x = x.to(own)
        how = (reduction, return_indices, own, *((0, 0.0) if reduction.picks else (divisor, norm)))
        straight = out is not None and own is result and all(_writable(target, x) for target in targets)
        got = run(x, *how, targets) if straight else run(x, *how)
    values, *rest = got if return_indices else (got,)
    results = (values.to(result), *rest)
    for target, value in zip(targets, results, strict=False):
        if value is not target:
            target.copy_(value)
        elif not target.is_inference():
            increment_version(target)
    return out if out is not None else results if return_indices else results[0]


def _writable(target: Tensor, x: Tensor) -> bool:
    """Whether a kernel may write into memory that was given: it is as it seems, and not that of the input."""
    frozen = target.is_inference() and not is_inference_mode_enabled()
    if type(target) not in _PLAIN or target.is_neg() or frozen or not target.data_ptr():
        return False
    (begin, end), (x_begin, x_end) = (
        (memory.data_ptr(), memory.data_ptr() + memory.nbytes())
        for memory in (target.untyped_storage(), x.untyped_storage())
    )
    return (end <= x_begin or x_end <= begin) and target.data_ptr() % target.itemsize == 0


def _integer_norm(fn: str, run: Run, x: Tensor, taps: int, norm: int) -> Tensor:
    """Integers to an integer power: powers and their mean stay integers, as in PyTorch; the root is float."""
    check_integer_norm(fn, norm)
    unsigned = x.dtype is torch.uint64  # which has no arithmetic in PyTorch: its bits do it as int64's
    powers = (x.view(torch.int64) if unsigned else x.to(torch.int64)) ** norm
    powers = powers.view(torch.uint64) if unsigned else powers
    sums: Tensor = run(powers, REDUCTIONS["avg" if taps else "sum"], False, powers.dtype, 0, 0.0)
    if taps:
        sums = (sums.view(torch.int64) * taps).view(powers.dtype)
    if sums.is_cpu and not traced(sums) and not transforms_active():
        # PyTorch's powers at the end of a tensor have other last bits than those before.
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(sums.numpy().astype(np.float64) ** (1 / norm))
    return sums.to(torch.float64) ** (1 / norm)


def unpool(fn: str, values: Tensor, indices: Any, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """Zeros with every value at its index; of repeated indices the last in row-major order stays."""
    _check_input(fn, values)
    indices = _check_indices(fn, values, indices)
    if traced(values):
        return ops.unpool(values, indices, axes, fn, sizes)  # type: ignore[no-any-return]
    run = autograd.unpool if differentiated(values) else kernels.unpool
    try:
        return run(values, indices, axes, fn, sizes)
    except _FAILURES as error:
        raise _in_the_name_of(fn, error) from None


def fractional(
    fn: str, n_axes: int, x: Tensor, size: tuple[Any, ...], return_indices: bool, given: Any, generator: Any
) -> Any:
    """Maxima over windows at the places that the random samples give."""
    _check_input(fn, x)
    axes = check_shape(fn, x.shape, n_axes)
    sizes = tuple(x.shape[-n_axes:])
    outs = geometry.fractional_output(fn, sizes, *size)
    kernel = check_ints(fn, "kernel_size", size[0], n_axes, single=False)
    samples = _samples(fn, x, given, n_axes, generator).reshape(*x.shape[:-n_axes], n_axes)
    if traced(x) or differentiated(x) or traced(samples):
        # Samples may be symbols or batched too. Indices have no derivative, values are taken at them.
        _, indices = ops.fractional(x.detach(), samples.detach(), axes, fn, kernel, outs)
        values = autograd.take(x if traced(x) else autograd.with_link(x), indices, axes)
    else:
        try:
            values, indices = kernels.fractional(x, samples, axes, fn, kernel, outs)
        except _FAILURES as error:
            raise _in_the_name_of(fn, error) from None
    return (values, indices) if return_indices else values


def _samples(fn: str, x: Tensor, given: Any, n_axes: int, generator: Any) -> Tensor:
    dtype = x.dtype if x.dtype.is_floating_point else torch.float64
    # PyTorch's samples always carry the batch axis, also for an unbatched input.
    shape = (x.shape[0] if x.dim() == n_axes + 2 else 1, x.shape[-n_axes - 1], n_axes)
    if given is None:
        if isinstance(generator, torch.Generator):
            return torch.rand(shape, dtype=dtype, device=x.device, generator=generator)
        seed = None if generator is None else _check_seed(fn, generator)
        if traced(x) or transforms_active():
            return ops.random_samples(x.detach(), shape, dtype, seed)  # type: ignore[no-any-return]
        return kernels.random_samples(x, shape, dtype, seed)
    if not isinstance(given, Tensor):
        raise TypeError(f"{fn}: _random_samples must be a tensor; got {type(given).__name__}")
    check_samples(fn, given.shape, shape)
    if given.dtype != dtype if x.dtype.is_floating_point else not given.dtype.is_floating_point:
        raise TypeError(
            f"{fn}: _random_samples must be floating point like the input; got dtype={given.dtype}"
        )
    if given.device != x.device:
        raise ValueError(
            f"{fn}: _random_samples must be on the input's device {x.device}; got {given.device}"
        )
    return given[: shape[0]]


def _check_seed(fn: str, generator: Any) -> int:
    try:
        seed = check_int(fn, "generator", generator)
    except TypeError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise TypeError(
            f"{fn}: generator must be a torch.Generator or a seed of at least 0; got {generator!r}"
        )
    return seed


def sliding(
    fn: str,
    reduction: Reduction,
    x: Tensor,
    axes: tuple[int, ...],
    window: tuple[Any, ...],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    """Pool a traced tensor with sliding windows, given as kernel, stride, padding, dilation and the flags."""
    n = len(axes)
    kernel, stride, padding, dilation, ceil_mode, include = (*window, True)[:6]
    kernel = check_ints(fn, geometry.kernel_name(fn), kernel, n)
    default = stride is None or (is_list(stride) and len(stride) == 0)
    stride = kernel if default else check_ints(fn, "stride", stride, n)
    dilation = check_ints(fn, "dilation", dilation, n)
    pads = check_padding(fn, padding, n, fn not in ops.GENERAL)
    if isinstance(pads, str):
        pads = geometry.same_padding(pads, [x.shape[a] for a in axes], kernel, stride, dilation)
    windows = ops.sliding_windows(kernel, stride, pads, dilation, ceil_mode, include)
    return _trace(fn, reduction, x, axes, windows, return_indices, dtype, out, divisor, norm)


def adaptive(
    fn: str,
    reduction: Reduction,
    x: Tensor,
    axes: tuple[int, ...],
    output_size: Any,
    return_indices: bool,
    dtype: Any,
    out: Any,
    norm: float,
) -> Any:
    """Pool a traced tensor to a fixed output size."""
    windows = geometry.adaptive_sizes(fn, [x.shape[a] for a in axes], output_size, fn not in ops.GENERAL)
    return _trace(fn, reduction, x, axes, windows, return_indices, dtype, out, 0, norm)


def _trace(
    fn: str,
    reduction: Reduction,
    x: Tensor,
    axes: tuple[int, ...],
    windows: Sequence[int],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    def run(
        x: Tensor, reduction: Reduction, return_indices: bool, dtype: Any, divisor: int, norm: float
    ) -> Any:
        place = (axes, fn, reduction.name, windows)
        if not reduction.picks:
            return ops.pool(x, *place, dtype, divisor, float(norm))
        differentiates = x.requires_grad and is_grad_enabled()
        if not return_indices:
            return ops.pool_offsets(x, *place)[0] if differentiates else ops.pool(x, *place, dtype, 0, 0.0)
        if not differentiates:
            return ops.pool_indices(x, *place)
        return ops.pool_offsets(x, *place)[0], ops.pool_indices(x.detach(), *place)[1]

    code = _check_input(fn, x)
    if dtype is None and out is None and (reduction.picks or code >= FIRST_FLOAT) and abs(norm) != inf:
        return run(x, reduction, return_indices, x.dtype, divisor, norm)
    if out is not None:
        raise ValueError(f"{fn}: out must not be given where a compiler or a dispatch mode is at work")
    whole = reduction.norm and code < FIRST_FLOAT  # only then is the size of a window needed
    taps = ops.taps_of(len(axes), windows) if whole else 0
    return _convert(fn, run, x, (), taps, reduction, return_indices, dtype, out, divisor, norm)


def _check_input(fn: str, x: Tensor, name: str = "input") -> int:
    """The kernels' number of the tensor's dtype."""
    code = CODES.get(x.dtype)
    if code is None or x.layout is not torch.strided:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)
        raise TypeError(
            f"{fn}: {name} has no pooling for dtype={x.dtype} and layout={x.layout}; "
            f"there is one for strided tensors of {known}"
        )
    return code


def _result_dtype(fn: str, reduction: Reduction, own: torch.dtype, dtype: Any) -> torch.dtype:
    """What a reduction of this dtype gives: its own, or the asked-for one where that loses no meaning."""
    code = CODES[own]
    if dtype is None:
        if reduction.picks or code >= FIRST_FLOAT:
            return own
        if reduction.norm:
            return torch.float32
        if not reduction.divides:
            return torch.uint64 if own in _UNSIGNED[1:] else torch.int64
        if own is torch.bool:
            raise TypeError(f"{fn}: the average of dtype=bool is not a bool; ask for another with dtype=")
        return own
    if not isinstance(dtype, torch.dtype) or dtype not in CODES:
        raise TypeError(f"{fn}: dtype must be a torch.dtype that has a pooling; got dtype={dtype!r}")
    whole = code < FIRST_FLOAT and dtype is not torch.bool and not reduction.norm
    if reduction.picks or dtype.is_floating_point or whole:
        return dtype
    raise TypeError(f"{fn}: a {reduction.name} of dtype={own} cannot be given as dtype={dtype}")


def _check_out(
    fn: str, out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: Any, return_indices: bool
) -> None:
    if return_indices and not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(f"{fn}: out must be a pair (values, indices); got {type(out).__name__}")
    wanted = [("out", dtype), ("out[1]", torch.int64)]
    for (name, want), target in zip(wanted, out if return_indices else (out,), strict=False):
        if not isinstance(target, Tensor):
            raise TypeError(f"{fn}: {name} must be a tensor; got {type(target).__name__}")
        if tuple(target.shape) != shape:
            raise ValueError(f"{fn}: {name} must have shape {shape}; got shape {tuple(target.shape)}")
        if target.dtype != want:
            raise TypeError(f"{fn}: {name} must have dtype {want}; got dtype={target.dtype}")
        if target.device != device:
            raise ValueError(f"{fn}: {name} must be on device {device}; got device={target.device}")
        if target.requires_grad:
            raise ValueError(f"{fn}: {name} must not require a gradient")
        if target.is_cpu:
            check_memory(target)
        check_overlap(fn, name, shape, target.stride(), 1)
    if return_indices and out[0].untyped_storage().data_ptr() == out[1].untyped_storage().data_ptr() != 0:
        raise ValueError(f"{fn}: out must be two tensors that share no memory; got overlapping ones")


def _check_indices(fn: str, values: Tensor, indices: Any) -> Tensor:
    if not isinstance(indices, Tensor):
        raise TypeError(f"{fn}: indices must be a tensor; got {type(indices).__name__}")
    if indices.dtype.is_floating_point or indices.dtype is torch.bool or indices.dtype not in CODES:
        raise TypeError(f"{fn}: indices must be integers; got dtype={indices.dtype}")
    if indices.shape != values.shape:
        raise ValueError(
            f"{fn}: indices must have the input's shape {tuple(values.shape)}; "
            f"got shape {tuple(indices.shape)}"
        )
    if indices.device != values.device:
        raise ValueError(f"{fn}: indices must be on the input's device {values.device}; got {indices.device}")
    return indices.to(torch.int64)
