"""The table device -> kernels, and the pooling functions on tensors of any device. No derivatives.

Called by `autograd`, `operators` and the framework itself. CUDA kernels exist for up to three pooled axes;
what has no kernels of its own is pooled on the CPU, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ndpool._call import INDEX64, Call, Unpool
from ndpool.frameworks.torch import cpu
from ndpool.frameworks.torch.tensors import EXTRA_DTYPES, check_memory
from ndpool.geometry import fractional as fractional_plan
from ndpool.geometry import round_bfloat16

MAX_CUDA_AXES = 3
triton_only = False  # tests run CPU tensors through Triton's interpreter


@cache
def cuda() -> Any:
    """The kernels for CUDA tensors; they need Triton."""
    try:
        from ndpool.frameworks.torch import cuda
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ImportError(
            "ndpool: CUDA tensors need Triton, which is missing; `pip install triton`"
        ) from error
    return cuda


DEVICES: dict[str, Callable[[], Any]] = {"cpu": lambda: cpu, "cuda": cuda}


def _kernels(x: Tensor, n_axes: int) -> Any:
    """The kernels for a tensor; None where there are none."""
    device = "cuda" if triton_only else x.device.type
    if device == "cuda" and n_axes > MAX_CUDA_AXES:
        return None
    load = DEVICES.get(device)
    return None if load is None else load()


def _on_cpu(kernel: Callable[..., Any], call: Any, x: Tensor, *args: Any) -> Any:
    device = x.device
    kind = f"more than {MAX_CUDA_AXES} axes of cuda" if x.is_cuda else device.type
    _warn(kind)
    result = kernel(call, x.cpu(), *(a.cpu() if isinstance(a, Tensor) else a for a in args))
    return tuple(r.to(device) for r in result) if isinstance(result, tuple) else result.to(device)


@cache
def _warn(kind: str) -> None:
    warnings.warn(f"ndpool has no kernels for {kind}: such tensors are pooled on the CPU", stacklevel=2)


def pool(call: Call, x: Tensor, last: bool | None = None, targets: tuple[Tensor, ...] = ()) -> Any:
    """Values of `call.dtype`, and the extra tensor where one is asked for; `last`: channels-last or not."""
    if x.is_cpu and not triton_only:
        return cpu.pool(call, x, last, targets)
    found = _kernels(x, len(call.axes))
    return _on_cpu(cpu.pool, call, x, last) if found is None else found.pool(call, x, last, targets)


def sum_backward(call: Call, grad: Tensor, last: bool) -> Any:
    """The adjoint of sums and averages."""
    found = _kernels(grad, len(call.axes))
    if found is None:
        return _on_cpu(cpu.sum_backward, call, grad, last)
    return found.sum_backward(call, grad, last)


def max_backward(call: Call, grad: Tensor, offsets: Tensor, last: bool) -> Any:
    """The gradient of max and min pooling, gathered by offsets."""
    dtype = EXTRA_DTYPES[call.offsets]
    if offsets.shape != grad.shape or offsets.dtype is not dtype:  # hooks may change what was saved
        raise ValueError(
            f"{call.function}: saved offsets must have the shape of the gradient, {tuple(grad.shape)}, "
            f"and dtype {dtype}; got {tuple(offsets.shape)}, {offsets.dtype}"
        )
    found = _kernels(grad, len(call.axes))
    if found is None:
        return _on_cpu(cpu.max_backward, call, grad, offsets, last)
    return found.max_backward(call, grad, offsets, last)


def norm_backward(call: Call, grad: Tensor, x: Tensor, y: Tensor, taps: int, last: bool) -> Any:
    """The gradient of a norm, `call` being the average inside it; None where no kernel computes it."""
    found = _kernels(grad, len(call.axes))
    return None if found is None else found.norm_backward(call, grad, x, y, taps, last)


def gather(call: Call, x: Tensor, offsets: Tensor, last: bool) -> Any:
    """The elements that offsets stand for, of any tensor of the input's shape."""
    found = _kernels(x, len(call.axes))
    if found is None:
        return _on_cpu(cpu.gather, call, x, offsets, last)
    return found.gather(call, x, offsets, last)


def unpool(call: Unpool, values: Tensor, indices: Tensor) -> Any:
    """Values at their indices in planes of zeros."""
    found = _kernels(values, len(call.axes))
    if found is None:
        return _on_cpu(cpu.unpool, call, values, indices)
    return found.unpool(call, values, indices)


def fractional(call: Call, x: Tensor, samples: Tensor) -> Any:
    """Max pooling with indices over windows that samples place, one set per plane."""
    n_axes = len(call.axes)
    if samples.is_cpu:
        check_memory(samples)
    flat = samples.reshape(-1, n_axes).cpu()
    narrow = round_bfloat16 if flat.dtype is torch.bfloat16 else None
    places = (flat.float() if narrow else flat).numpy()
    sizes = tuple(x.shape[a] for a in call.axes)
    kernel, outs = call.windows[:n_axes], call.windows[n_axes:]
    plan = fractional_plan(call.function, sizes, places, kernel, outs, None, narrow)
    return pool(call._replace(plan=plan, extra=INDEX64, dtype=x.dtype), x)


def random_samples(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, seed: int | None) -> Tensor:
    """Random numbers in [0, 1), from a seed or from PyTorch's own generator."""
    generator = None if seed is None else torch.Generator(x.device).manual_seed(seed)
    return torch.rand(shape, dtype=dtype, device=x.device, generator=generator)
