"""Calls of the named functions on plain CUDA tensors, a second time: all is remembered but the memory.

Whatever dtype, layout and arguments decide is kept as a recipe; the room in `torch.py` asks for it. What has
none, or a derivative other than reverse mode's, takes the room's usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from ndpool import geometry
from ndpool._arguments import check_rank
from ndpool._native import INDEX64, NO_EXTRA, OFFSET8
from ndpool.frameworks import _torch_autograd as autograd
from ndpool.frameworks._torch_gpu import forward_of, one_kernel
from ndpool.frameworks._torch_kernels import _EXTRA_DTYPES, CODES, empty, is_channels_last
from ndpool.reductions import Reduction


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
    key = (fn, x.shape, x.stride(), x.dtype, x.device, window, return_indices, trains)
    try:
        recipe = _recipes.get(key)
    except TypeError:  # lists among the arguments
        return None
    if recipe is None:
        if len(_recipes) >= 1024:
            _recipes.clear()
        kind = INDEX64 if return_indices else OFFSET8 if trains and reduction.picks else NO_EXTRA
        recipe = _recipes[key] = _recipe(fn, n_axes, reduction, x, window, kind, trains)
    address = x.data_ptr()
    if not recipe or not address or address % 16 or x.get_device() != torch._C._cuda_getDevice():
        return None
    if trains:
        return _train(x, recipe)
    y = recipe.new(x)
    if not return_indices:
        recipe.run(x, y, y)
        return y
    extra = recipe.new_extra(x)
    recipe.run(x, y, extra)
    return y, extra


class Recipe(NamedTuple):
    """What makes values and what is kept beside them, what writes both, and the backward's arguments."""

    new: Callable[[Tensor], Tensor]
    new_extra: Callable[[Tensor], Tensor]
    run: Callable[..., None]
    args: tuple[Any, ...]


_recipes: dict[Any, Any] = {}


def _recipe(
    fn: str, n_axes: int, reduction: Reduction, x: Tensor, window: tuple[Any, ...], kind: int, trains: bool
) -> Any:
    """The recipe of a call that one kernel does; False elsewhere."""
    plan = geometry.named(fn, tuple(x.shape[-n_axes:]), window)
    axes = check_rank(fn, x.shape, n_axes)
    known = x.dtype in CODES and x.dtype is not torch.bool and x.layout is torch.strided
    known = known and (x.is_floating_point() or (reduction.picks and not trains)) and not reduction.norm
    last = is_channels_last(x.shape, x.stride())
    if not known or not one_kernel(x, plan, reduction, kind, last) or (kind == OFFSET8 and plan.taps > 256):
        return False
    memory = (x.shape, x.stride(), x.dtype, x.dtype, x.device)
    outs, last, run = forward_of(plan, axes, *memory, reduction, kind, 0, last, True)
    if run is None:
        return False
    args = (axes, plan, reduction, *(() if reduction.picks else (x.dtype, 0)), last)
    return Recipe(_maker(outs, x.dtype, last), _maker(outs, _EXTRA_DTYPES[kind], last), run, args)


def _maker(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> Callable[[Tensor], Tensor]:
    if not channels_last:
        return lambda x: x.new_empty(shape, dtype=dtype)
    stride = empty(torch.empty(0, device="meta"), shape, dtype, True).stride()
    return lambda x: x.new_empty_strided(shape, stride, dtype=dtype)


class Quick(Function):
    """A pooling by recipe, for reverse mode alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe) -> Tensor:
        """Values; of picks the offsets are kept."""
        y = recipe.new(x)
        ctx.args = recipe.args
        if recipe.args[2].picks:
            offsets = recipe.new_extra(x)
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
