"""Calls of the named functions on plain CUDA tensors, a second time: all is remembered but the memory.

Whatever dtype, layout and arguments decide is kept as a recipe; the room in `torch.py` asks for it. What has
none, or a derivative other than reverse mode's, takes the room's usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ndpool import _explain, geometry
from ndpool._arguments import check_rank
from ndpool._native import INDEX64, NO_EXTRA, OFFSET8
from ndpool._triton.launch import Prepared, current_stream
from ndpool.frameworks import _torch_autograd as autograd
from ndpool.frameworks._torch_gpu import kernels_of
from ndpool.frameworks._torch_kernels import _EXTRA_DTYPES, CODES, FORMATS, empty, is_channels_last
from ndpool.reductions import Reduction

# PyTorch's allocator: bytes and a stream -> an address. PyTorch without CUDA has none.
allocate: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
free: Any = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)


def quick(
    fn: str,
    n_axes: int,
    reduction: Reduction,
    x: Tensor,
    window: tuple[Any, ...],
    return_indices: bool,
    trains: bool,
) -> Any:
    """A plain call that was made before, all remembered but the memory; None where there is no such way."""
    recipe = recipe_of(fn, n_axes, reduction, x, window, return_indices, trains)
    address = x.data_ptr()
    if not recipe or not address or address % 16 or x.get_device() != torch._C._cuda_getDevice():
        return None
    if trains:
        return _train(x, recipe)
    y = recipe.new()
    if not return_indices:
        recipe.run(x, y, y)
        return y
    extra = recipe.new_extra()
    recipe.run(x, y, extra)
    return y, extra


def recipe_of(
    fn: str,
    n_axes: int,
    reduction: Reduction,
    x: Tensor,
    window: tuple[Any, ...],
    return_indices: bool,
    trains: bool,
) -> Any:
    """The recipe of a call, from the cache or made now; False or None where there is none."""
    kinds = _kinds(window)
    key = (fn, x.shape, x.stride(), x.dtype, x.device, window, kinds, return_indices, trains)
    try:
        recipe = _recipes.get(key)
    except TypeError:  # lists among the arguments
        return None
    if recipe is None:
        kind = INDEX64 if return_indices else OFFSET8 if trains and reduction.picks else NO_EXTRA
        recipe = _recipe(fn, n_axes, reduction, x, window, kind, trains)
        if _FIXED.issuperset(t for kind in kinds for t in (kind if type(kind) is tuple else (kind,))):
            with _lock:
                while len(_recipes) >= LIMIT and key not in _recipes:  # another thread may have made it
                    del _recipes[next(iter(_recipes))]  # the oldest
                _recipes[key] = recipe
    return recipe


def _kinds(window: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of the arguments and of their entries: 2, 2.0 and True are equal, but not all are legal."""
    return tuple(
        [tuple(map(type, v)) if isinstance(v, tuple) else type(v) for v in window]  # the quickest way
    )


class Recipe(NamedTuple):
    """What makes values and what is kept beside them, what writes both, and the backward's arguments."""

    new: Callable[[], Tensor]
    new_extra: Callable[[], Tensor]
    run: Callable[..., None]
    args: tuple[Any, ...]


LIMIT = 1024  # recipes that are kept
_FIXED = {int, bool, type(None)}  # types of arguments that are remembered: their values never change
_recipes: dict[Any, Any] = {}
_lock = Lock()  # of whoever adds one; looking one up needs none


def _recipe(
    fn: str, n_axes: int, reduction: Reduction, x: Tensor, window: tuple[Any, ...], kind: int, trains: bool
) -> Any:
    """The recipe of a call that one kernel does, or two that follow each other; False elsewhere."""
    plan = geometry.named(fn, tuple(x.shape[-n_axes:]), window)
    axes = check_rank(fn, x.shape, n_axes)
    known = x.dtype in CODES and x.dtype is not torch.bool and x.layout is torch.strided
    known = known and (x.is_floating_point() or (reduction.picks and not trains)) and not reduction.norm
    last = is_channels_last(x.shape, x.stride(), n_axes)
    if not known or (kind == OFFSET8 and plan.taps > 256):
        return False
    found = kernels_of(x, axes, plan, reduction, x.dtype, kind, last, x.device)
    if found is None:
        return False
    *before, (outs, _, run) = found
    if before:
        run = _chain([(first, _maker(x, shape, dtype, last, n_axes)) for shape, dtype, first in before], run)
    args = (axes, plan, reduction, *(() if reduction.picks else (x.dtype, 0)), last)
    new = _maker(x, outs, x.dtype, last, n_axes)
    return Recipe(new, _maker(x, outs, _EXTRA_DTYPES[kind], last, n_axes), run, args)


def _chain(before: list[tuple[Any, Callable[[], Tensor]]], last: Any) -> Callable[..., None]:
    """Kernels that follow each other, each with what the one before it wrote.

    Between two kernels that lies in memory which is no tensor's: the allocator takes it back while they still
    wait, and gives it to later ones of the same stream.
    """
    first, new = before[0]
    two = len(before) == 1 and isinstance(first, Prepared) and isinstance(last, Prepared)
    size, ready = new().nbytes, False

    def run(x: Tensor, y: Tensor, extra: Tensor) -> None:
        nonlocal ready
        if not ready or _explain.recording:
            for kernel, make in before:
                between = make()
                kernel(x, between, between)
                x = between
            last(x, y, extra)
            ready = two and first.ready and last.ready
            return
        stream = current_stream(x.get_device())
        at = allocate(size, stream)
        try:
            first.start(stream, x.data_ptr(), at, at)
            last.start(stream, at, y.data_ptr(), extra.data_ptr())
        finally:
            free(at)

    return run


def _maker(
    x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, last: bool, n_axes: int
) -> Callable[[], Tensor]:
    """What makes a tensor of this layout: PyTorch is quickest with one that it is to be like."""
    like = torch.empty(1, dtype=dtype, device=x.device).expand(shape)
    if not last:
        return partial(torch.empty_like, like)
    if len(shape) in FORMATS and n_axes == len(shape) - 2:
        return partial(torch.empty_like, like, memory_format=FORMATS[len(shape)])
    return partial(empty, x, shape, dtype, last, n_axes)


class Quick(Function):
    """A pooling by recipe, for reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe) -> Tensor:
        """Values; of picks the offsets are kept."""
        y = recipe.new()
        ctx.args = recipe.args
        if recipe.args[2].picks:
            offsets = recipe.new_extra()
            recipe.run(x, y, offsets)
            ctx.save_for_backward(offsets)
        else:
            recipe.run(x, y, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Made of functions that can be differentiated in turn."""
        if ctx.args[2].picks:
            return autograd.spread_picks(grad, *ctx.saved_tensors, *ctx.args), None
        return autograd.spread(grad, *ctx.args), None


_train = autograd.direct(Quick)
