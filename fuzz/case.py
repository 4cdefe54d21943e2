"""A case: one call with its values, memory layouts and variations, drawn by `draw.py` or given explicitly."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

import oracle
from cases import chance, pick
from fences import Layout, packed
from fuzz import reference
from oracle import Array, DType, Plan

Rng = np.random.Generator


@dataclass
class Case:
    """One call and its variations."""

    seed: int
    function: str
    framework: str
    reduce: str
    axes: tuple[int, ...]
    values: Array
    layout: Layout
    kwargs: dict[str, Any]
    plans: list[Plan] = field(default_factory=list)  # one, or one per plane
    norm: float = 0
    taps: int = 0  # that Lp pooling scales a clipped window up to
    end: str = ""
    threads: int = 1
    isa: int = 0
    layer: bool = False
    readonly: bool = False
    swapped: bool = False
    out: tuple[Layout, Layout] | None = None
    out_end: str = ""
    result_end: str = ""
    gradient: bool = False
    usual: bool = False  # a typical layer of a network
    grad_layout: Layout = field(default_factory=lambda: packed(0))
    indices: Array | None = None  # of unpooling
    indices_layout: Layout | None = None
    sizes: tuple[int, ...] = ()  # output sizes of unpooling and fractional pooling
    others: tuple[int, int, Layout] | None = None  # threads, instruction set and layout of a second call
    illegal: int = 0  # seed of an illegal argument; 0 if the arguments are legal
    want: Any = None  # the reference result, if it is known

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input."""
        return self.values.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the input."""
        return self.values.dtype

    @property
    def has_index(self) -> bool:
        """Whether the reduction selects an element: exact, any dtype, with indices."""
        return self.reduce in ("max", "min")

    def __str__(self) -> str:
        shown = {key: value for key, value in self.kwargs.items() if key != "_random_samples"}
        out = [layout.tags for layout in (self.out or ())[: 1 + bool(self.kwargs.get("return_indices"))]]
        more = [f"out={out}"] * bool(out) + ["layer"] * self.layer + ["swapped"] * self.swapped
        return " ".join(
            [
                self.framework,
                self.function,
                self.dtype.name,
                str(self.shape),
                str(shown),
                *self.layout.tags,
                *more,
            ]
        )

    @property
    def outs(self) -> tuple[int, ...]:
        """The shape of the result."""
        if not self.plans:
            shape = list(self.shape)
            for axis, size in zip(self.axes, self.sizes, strict=True):
                shape[axis] = size
            return tuple(shape)
        return reference.out_shape(self.shape, self.axes, self.plans[0])


def given(function: str, values: Array, framework: str = "numpy", **kwargs: Any) -> Case:
    """A case with these arguments, for functions with sliding or adaptive windows."""
    axes = kwargs.get(
        "axes", range(values.ndim - int(function[-2]), values.ndim) if function[-1] == "d" else None
    )
    sizes_of = kwargs.get("window", kwargs.get("kernel_size", kwargs.get("output_size")))
    if axes is None:
        axes = range(values.ndim - len(sizes_of), values.ndim)
    axes = tuple(a % values.ndim for a in (axes if not isinstance(axes, int) else (axes,)))
    sizes = [values.shape[a] for a in axes]
    reduce = kwargs.get("reduce", next((r for r in ("avg", "lp") if r in function), "max"))
    case = Case(0, function, framework, reduce, axes, values, packed(values.ndim), kwargs)
    case.norm = kwargs.get("norm_type", 2.0) if reduce == "lp" else 0
    if "output_size" in kwargs:
        case.plans = [oracle.adaptive_plan(sizes, oracle.entries(sizes_of, len(sizes)))]
    else:
        window = oracle.entries(sizes_of, len(sizes))
        names = ("stride", "padding", "dilation", "ceil_mode")
        options = {name: kwargs[name] for name in names if name in kwargs}
        case.plans = [oracle.sliding_plan(sizes, window, **options)]
        case.taps = 0 if case.function == "pool" else prod(window)  # the general function does not scale
    case.others = (1, 0, packed(values.ndim))
    case.grad_layout = packed(values.ndim)
    return case


def given_unpool(values: Array, indices: Array, sizes: tuple[int, ...], framework: str) -> Case:
    """A case of `unpool` over the last axes."""
    axes = tuple(range(values.ndim - len(sizes), values.ndim))
    case = Case(0, "unpool", framework, "max", axes, values, packed(values.ndim), {"output_size": sizes})
    case.sizes, case.indices, case.indices_layout = sizes, indices, packed(values.ndim)
    case.others = (1, 0, packed(values.ndim))
    case.grad_layout = packed(values.ndim)
    return case


def draw_layout(rng: Rng, ndim: int, negative: bool = True, writable: bool = False) -> Layout:
    """A random memory layout."""
    layout = packed(ndim)
    if ndim == 0 or chance(rng, 0.3):
        return layout
    kinds = ["last", "permuted", "fortran", "gap", "step", "first gap", "many"]
    kinds += ["negative"] * negative + ["zero"] * (not writable)
    kind = pick(rng, kinds + ["shift"] * chance(rng, 0.3))
    if kind == "last" and ndim > 2:
        at = 1 if chance(rng, 0.7) else 0
        return packed(ndim, [*range(at), *range(at + 1, ndim), at])
    if kind == "fortran":
        return packed(ndim, range(ndim - 1, -1, -1))
    if kind in ("permuted", "many", "last"):
        layout = layout._replace(order=tuple(int(a) for a in rng.permutation(ndim)))
    axis = int(rng.integers(ndim))

    def at(value: Any, rest: Any, axis: int) -> tuple[Any, ...]:
        return tuple(value if a == axis else rest for a in range(ndim))

    if kind == "gap":
        layout = layout._replace(gaps=at(int(rng.integers(1, 9)), 0, axis))
    if kind == "first gap":
        layout = layout._replace(gaps=at(int(rng.integers(1, 70)), 0, min(1, ndim - 1)))
    if kind == "step":
        layout = layout._replace(steps=at(int(rng.integers(2, 4)), 1, axis))
    if kind == "negative":
        layout = layout._replace(signs=at(-1, 1, axis) if chance(rng, 0.6) else (-1,) * ndim)
    if kind == "zero":
        layout = layout._replace(broadcast=at(True, False, axis))
    if kind == "shift":
        layout = layout._replace(shift=1)
    if kind == "many":
        layout = layout._replace(
            steps=tuple(int(s) for s in rng.choice([1, 1, 2, 3], ndim)),
            gaps=tuple(int(g) for g in rng.choice([0, 0, 1, 5], ndim)),
            signs=tuple(int(s) for s in rng.choice([1, -1] if negative else [1], ndim)),
        )
    return layout


def repeated(values: Array, layout: Layout) -> Array:
    """The values that a broadcast layout represents: the first along each broadcast axis, repeated."""
    if not any(layout.broadcast) or not values.size:
        return values
    first = tuple(slice(0, 1) if b else slice(None) for b in layout.broadcast)
    return np.broadcast_to(values[first], values.shape).copy()
