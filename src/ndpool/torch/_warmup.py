"""`warmup`: compile the GPU kernels of a model or of single calls before the first batch needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ndpool.torch.modules import Pool, Unpool


def warmup(
    model_or_calls: torch.nn.Module | Iterable[tuple[Any, ...]],
    inputs: Iterable[Any] = (),
    *,
    training: bool = True,
) -> int:
    """
    Compile the GPU kernels of a model's pooling layers, or of single calls.

    The first call of a kernel compiles it, which takes seconds. Kernels are compiled for windows,
    dtypes, memory layouts and classes of sizes, so a few typical inputs are enough. Triton keeps compiled
    kernels on disk, in ``~/.triton/cache`` or the directory in ``TRITON_CACHE_DIR``: another process that
    uses the same cache compiles nothing.

    Parameters
    ----------
    model_or_calls : torch.nn.Module or iterable of tuple
        A model with pooling layers of `ndpool.torch`, as `accelerate` leaves it, or calls: a pooling
        function, its input and its other positional arguments.
    inputs : iterable, default ()
        For a model: inputs on its device, each a tensor or a tuple of arguments. The model is called once for
        each, in evaluation mode and without gradients. Pooling functions that it calls directly are compiled
        for that forward pass only.
    training : bool, default True
        Whether to compile the forward pass that gradients need and the backward pass, too.

    Returns
    -------
    int
        The number of different calls.

    Examples
    --------
    >>> import torch, ndpool, ndpool.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), ndpool.torch.MaxPool2d(2))
    >>> ndpool.torch.warmup(model, [torch.rand(1, 3, size, size) for size in (32, 48)])
    2
    >>> ndpool.torch.warmup([(ndpool.avg_pool2d, torch.rand(1, 8, 16, 16), 2)], training=False)
    1
    """
    calls: dict[Any, tuple[Any, ...]] = {}
    if isinstance(model_or_calls, torch.nn.Module):
        calls = _calls_of(model_or_calls, inputs)
    else:
        for call in _checked(model_or_calls):
            function, x, *arguments = call
            calls[function, _memory(x), repr(arguments)] = function, _memory(x), tuple(arguments)
    for function, (shape, stride, dtype, device), arguments in calls.values():
        x = torch.empty_strided(shape, stride, dtype=dtype, device=device)  # its values do not matter
        _run(function, x, arguments, training)
    return len(calls)


def _checked(calls: Any) -> list[tuple[Any, ...]]:
    """The calls, or a TypeError: they are tuples of a function, a tensor and other arguments."""
    expected = "warmup: model_or_calls must be a torch.nn.Module or (function, tensor, ...) tuples"
    if not isinstance(calls, Iterable):
        raise TypeError(f"{expected}; got {type(calls).__name__}")
    given = list(calls)
    for call in given:
        right = (
            isinstance(call, tuple) and len(call) > 1 and callable(call[0]) and isinstance(call[1], Tensor)
        )
        if not right:
            raise TypeError(f"{expected}; got {call!r}")
    return given


def _calls_of(model: torch.nn.Module, inputs: Iterable[Any]) -> dict[Any, Any]:
    """The pooling layers of a model, each with the memory layouts of its inputs."""
    calls: dict[Any, Any] = {}

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        if isinstance(x, Tensor):
            calls[module, _memory(x)] = module, _memory(x), ()

    layers = [layer for layer in model.modules() if isinstance(layer, Pool)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers if not isinstance(layer, Unpool)]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            for given in inputs:
                model(*(given if isinstance(given, tuple) else (given,)))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    return calls


def _memory(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.dtype, x.device


def _run(function: Callable[..., Any], x: Tensor, arguments: tuple[Any, ...], training: bool) -> None:
    """A forward pass without gradients and, for training, one with its backward pass."""
    with torch.no_grad():
        function(x, *arguments)
    if not training or not x.is_floating_point():
        return
    with torch.enable_grad():
        x.requires_grad_()
        y = function(x, *arguments)
        y = y[0] if isinstance(y, tuple) else y
        if y.requires_grad:
            torch.autograd.grad(y, x, torch.ones_like(y))
