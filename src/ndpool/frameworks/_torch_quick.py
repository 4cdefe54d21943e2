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
from torch import Tensor
from torch.autograd import Function

from ndpool import geometry
from ndpool._arguments import check_shape
from ndpool._native import NO_EXTRA, OFFSET8, core, core_plan
from ndpool.frameworks._torch_autograd import direct, spread, spread_picks
from ndpool.frameworks._torch_kernels import CODES, FIRST_FLOAT, empty, is_channels_last, pool
from ndpool.reductions import Reduction

_SMALL = 1024  # elements of a result whose memory a recipe keeps, and of offsets that need no tensor
_WIDE = 4096  # windows along an axis: recipes keep no large tables
_recipes = core.Memo()
recall = _recipes.get  # of fn, tensor and window: a recipe, False, or None if not made yet
if hasattr(Tensor, "__dlpack_c_exchange_api__"):  # the core need not ask for attributes one by one
    core.set_exchange(Tensor, Tensor.__dlpack_c_exchange_api__)


class Recipe:
    """What a call needs but for the memory of its input."""

    __slots__ = ("args", "codes", "new", "new_codes", "outs", "pick", "run", "trains")

    args: tuple[Any, ...]  # of the backward, after gradient and offsets
    codes: int  # how many offsets a bytearray holds; 0: they need a tensor
    new: Any  # makes the result
    new_codes: Any
    outs: tuple[int, ...]
    pick: Any  # the call that finds offsets, or None
    run: Any  # the call that does not
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
    channels_last = is_channels_last(x.shape, x.stride())
    recipe.outs = outs = (*x.shape[: -len(axes)], *plan.out)
    size = prod(outs)
    like, like_codes = (
        empty(torch.empty(0, device="cpu" if size <= _SMALL else "meta"), outs, dtype, channels_last)
        for dtype in (x.dtype, torch.uint8)
    )
    recipe.new, recipe.new_codes = (
        partial(torch.empty_like, t)
        if size <= _SMALL
        else partial(torch.empty_strided, t.shape, t.stride(), dtype=t.dtype, device="cpu")
        for t in (like, like_codes)
    )
    native, source, into = core_plan(plan), (0, x.shape, x.stride()), (0, outs, like.stride())

    def call(kind: int) -> Any:
        how = (kind, reduction.divides, 0)
        return core.Call(native, reduction.op, source, code, axes, into, code, *how).run

    try:
        recipe.run = call(NO_EXTRA)
    except ValueError:  # told by the usual way, in the name of the function
        return False
    recipe.pick = call(OFFSET8) if reduction.picks and plan.taps <= 256 else None
    recipe.trains = recipe.pick is not None or not reduction.picks
    recipe.codes = size if size <= _SMALL and not channels_last else 0
    recipe.args = (axes, plan, reduction, *(() if reduction.picks else (x.dtype, 0)), channels_last)
    return recipe


def _usual(x: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor | None]:
    axes, plan, reduction, *_, channels_last = recipe.args
    kind = NO_EXTRA if recipe.pick is None else OFFSET8
    found = pool(x, axes, plan, reduction, x.dtype, 0, 0.0, kind, channels_last)
    return (found, None) if recipe.pick is None else found


class Quick(Function):
    """A pooling by recipe, for reverse mode alone. Of few offsets there is no tensor: it would cost more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe) -> Any:
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
        if offsets is not None:
            ctx.save_for_backward(offsets)
        ctx.kept = recipe, codes
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        recipe, codes = ctx.kept
        if recipe.pick is None:
            return spread(grad, *recipe.args), None
        if codes is None:
            return spread_picks(grad, *ctx.saved_tensors, *recipe.args), None
        offsets = torch.frombuffer(codes, dtype=torch.uint8).view(recipe.outs)
        return spread_picks(grad, offsets, *recipe.args), None


quick_pool = direct(Quick)
