"""Small calls of the named functions on plain CPU tensors, at about PyTorch's own cost.

Whatever dtype, layout and arguments decide is worked out once and kept as a recipe: the core's call, the
layout of the result. The room in `torch.py` looks it up; what has none, or a derivative other than reverse
mode's, takes the room's usual way. A recipe's backward is made of the functions in `_torch_autograd.py`.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import Function

from ndpool import geometry
from ndpool._arguments import check_shape
from ndpool._native import BUILT, NO_EXTRA, OFFSET8, core, core_plan
from ndpool.frameworks._torch_autograd import direct, link_to, linked, plain, spread, spread_picks
from ndpool.frameworks._torch_kernels import (
    CODES,
    FIRST_FLOAT,
    check_memory,
    empty,
    extent,
    is_channels_last,
    pool,
)
from ndpool.reductions import Reduction

_SMALL = 1024  # elements of a result whose memory a recipe keeps, and of offsets that need no tensor
_WIDE = 4096  # windows along an axis: recipes keep no large tables
_recipes: Any = core.Memo() if BUILT else None  # CUDA tensors need no core, and have no recipes


def recall(fn: str, x: Tensor, window: tuple[Any, ...]) -> Any:
    """The recipe for a call, None where it is not made yet, False where there is none."""
    return _recipes.get(fn, x, window) if BUILT and x.is_cpu and x.layout is torch.strided else False


if (
    BUILT
    and hasattr(Tensor, "__dlpack_c_exchange_api__")
    and core.set_exchange(Tensor, Tensor.__dlpack_c_exchange_api__)
):
    recall = _recipes.get  # which sees in one look what a tensor is


class Recipe:
    """What a call needs but for the memory of its input."""

    __slots__ = (
        "args",
        "back",
        "codes",
        "extent",
        "new",
        "new_codes",
        "new_grad",
        "outs",
        "pick",
        "run",
        "small",
        "stride",
        "trains",
    )

    args: tuple[Any, ...]  # of the backward, after gradient and offsets
    back: Any  # the call of the backward, for a gradient of the result's layout
    codes: int  # how many offsets a bytearray holds; 0: they need a tensor
    extent: int  # the bytes from the input's first element to its last
    new: Any  # makes the result
    new_codes: Any
    new_grad: Any
    outs: tuple[int, ...]
    pick: Any  # the call that finds offsets, or None
    run: Any  # the call that does not
    small: bool  # whether the input may be kept for the derivatives of its gradient
    stride: tuple[int, ...]
    trains: bool  # whether the backward is known


def make(fn: str, n_axes: int, reduction: Reduction, x: Tensor, window: tuple[Any, ...]) -> Any:
    """The recipe for a tensor of this dtype and layout, or False where there can be none."""
    axes = check_shape(fn, x.shape, n_axes)
    plan = geometry.named(fn, tuple(x.shape[-n_axes:]), window)
    code = CODES.get(x.dtype, -1)
    recipe: Any = False
    known = code >= (0 if reduction.picks else FIRST_FLOAT)
    if known and x.numel() and prod(plan.out) and max(plan.out) <= _WIDE:
        with torch.inference_mode(False):
            recipe = _make(x, axes, plan, reduction, code)
    _recipes.put(fn, x, window, recipe)
    return recipe


def _make(x: Tensor, axes: tuple[int, ...], plan: geometry.Plan, reduction: Reduction, code: int) -> Any:
    recipe = Recipe()
    channels_last = is_channels_last(x.shape, x.stride(), len(axes))
    recipe.outs = outs = (*x.shape[: -len(axes)], *plan.out)
    layouts = [(outs, x.dtype), (outs, torch.uint8), (x.shape, x.dtype)]
    (recipe.new, stride), (recipe.new_codes, _), (recipe.new_grad, grad_stride) = (
        _maker(shape, dtype, channels_last, len(axes)) for shape, dtype in layouts
    )
    recipe.stride, recipe.extent, picks = stride, extent(x), reduction.picks
    into = (0, outs, stride)

    def call(kind: int, x: Any, y: Any, backward: bool = False) -> Any:
        how = (code, axes, kind, reduction.divides, backward)
        return core.Call(core_plan(plan), reduction.op, x, y, *how).run

    try:
        recipe.run = call(NO_EXTRA, (0, x.shape, x.stride()), into)
    except ValueError:  # told by the usual way, in the name of the function
        return False
    recipe.trains = code >= FIRST_FLOAT and (plan.taps <= 256 or not picks)
    recipe.pick = recipe.back = None
    if recipe.trains:
        recipe.pick = call(OFFSET8, (0, x.shape, x.stride()), into) if picks else None
        recipe.back = call(OFFSET8 if picks else NO_EXTRA, into, (0, x.shape, grad_stride), True)
    recipe.codes = prod(outs) if prod(outs) <= _SMALL and not channels_last else 0
    recipe.small = x.numel() <= 4 * _SMALL and (recipe.codes > 0 or not picks)
    recipe.args = (axes, plan, reduction, *(() if picks else (x.dtype, 0)), channels_last)
    return recipe


def _maker(shape: Any, dtype: torch.dtype, channels_last: bool, n_axes: int) -> tuple[Any, tuple[int, ...]]:
    """What makes a tensor of this layout most quickly, and its strides."""
    small = prod(shape) <= _SMALL
    like = empty(torch.empty(0, device="cpu" if small else "meta"), shape, dtype, channels_last, n_axes)
    if small:
        return partial(torch.empty_like, like), like.stride()
    return partial(torch.empty_strided, like.shape, like.stride(), dtype=dtype, device="cpu"), like.stride()


def _usual(x: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor | None]:
    axes, plan, reduction, *_, channels_last = recipe.args
    kind = NO_EXTRA if recipe.pick is None else OFFSET8
    found = pool(x, axes, plan, reduction, x.dtype, 0, 0.0, kind, channels_last)
    return (found, None) if recipe.pick is None else found


class Quick(Function):
    """A pooling by recipe, for reverse mode alone. Of few offsets there is no tensor: it would cost more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe, link: Any) -> Any:
        check_memory(x, recipe.extent)
        y: Tensor = recipe.new()
        codes = offsets = None
        if recipe.pick is None:
            done = recipe.run(x, y, None)
        elif recipe.codes:
            codes = bytearray(recipe.codes)
            done = recipe.pick(x, y, codes)
        else:
            offsets = recipe.new_codes()
            done = recipe.pick(x, y, offsets)
        if not done:  # misaligned memory, or none
            codes, (y, offsets) = None, _usual(x, recipe)
        # A leaf is kept by the graph, and a small input costs less than a link to it.
        kept = recipe.small and not x.is_leaf
        if offsets is not None:
            ctx.save_for_backward(*((offsets, x) if kept else (offsets,)))
        elif kept:
            ctx.save_for_backward(x)
        ctx.kept = recipe, codes, link
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        recipe, codes, link = ctx.kept
        offsets = codes if codes is not None or recipe.pick is None else ctx.saved_tensors[0]
        if grad.stride() == recipe.stride and plain(grad):
            check_memory(grad)
            result = recipe.new_grad()
            if recipe.back(grad, result, offsets):
                return result, None, None
        if link is None and is_grad_enabled():
            link = _late_link(ctx)
        if recipe.pick is None:
            return linked(spread(grad, *recipe.args), link), None, None
        if codes is not None:
            offsets = torch.frombuffer(codes, dtype=torch.uint8).view(recipe.outs)
        return linked(spread_picks(grad, offsets, *recipe.args), link), None, None


def _late_link(ctx: Any) -> Any:
    """A link to an input that is a leaf, or was kept because it is small."""
    node = ctx.next_functions[0][0]
    return link_to(node.variable if hasattr(node, "variable") else ctx.saved_tensors[-1])


quick_pool = direct(Quick)
