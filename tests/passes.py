"""Forward and backward passes on NumPy arrays, below the public functions: what a framework runs.

The one place of the tests that builds calls by hand.
"""

from __future__ import annotations

from typing import Any

from ndpool import geometry
from ndpool._call import Call, Saved
from ndpool._plan import Plan
from ndpool.frameworks import numpy as framework
from ndpool.reductions import REDUCTIONS
from oracle import Array

Axes = tuple[int, ...]


def forward(reduce: str, plan: Plan, x: Array, axes: Axes, norm: float = 0.0, fn: str = "f") -> Array:
    """The values of a pooling."""
    reduction = REDUCTIONS[reduce]
    divisor = geometry.norm_divisor(fn, plan) if reduction.norm else 0
    return framework.run(Call("f", reduction, axes, plan, divisor=divisor, norm=norm), x)


def with_offsets(reduce: str, plan: Plan, x: Array, axes: Axes) -> tuple[Array, Array]:
    """Values and offsets of a max or min pooling."""
    call = Call("f", REDUCTIONS[reduce], axes, plan)
    return framework.run(call._replace(extra=call.offsets), x)


def backward(
    reduce: str,
    plan: Plan,
    grad: Array,
    axes: Axes,
    divisor: int = 0,
    norm: float = 0.0,
    fn: str = "f",
    **saved: Any,
) -> Array:
    """The gradient of the input; `saved` is what the forward pass saves."""
    reduction = REDUCTIONS[reduce]
    if reduction.norm:
        divisor = divisor or geometry.norm_divisor(fn, plan)
    call = Call("f", reduction, axes, plan, divisor=divisor, norm=norm)
    return framework.backward(call, Saved(**saved), grad)
