"""Runs the calls of a case: inputs are arrays or tensors in fenced memory, results are NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import ndpool
from cases import as_tuple, from_torch, to_torch
from fences import Layout, Memory, lay
from fuzz.case import Case
from oracle import Array

LAYERS = {
    "max_pool": "MaxPool",
    "avg_pool": "AvgPool",
    "lp_pool": "LPPool",
    "adaptive_max_pool": "AdaptiveMaxPool",
    "adaptive_avg_pool": "AdaptiveAvgPool",
    "max_unpool": "MaxUnpool",
    "fractional_max_pool": "FractionalMaxPool",
}


def convert(value: Any, framework: str) -> Any:
    """An argument converted for the framework."""
    if framework == "torch" and isinstance(value, np.ndarray):
        return to_torch(value)
    return value


def memory(case: Case, values: Array, layout: Layout | None, end: str) -> Memory:
    """The values in poisoned memory."""
    if case.swapped and values.dtype == case.values.dtype:
        values = values.astype(values.dtype.newbyteorder())
    return lay(values, layout, end)


def invoke(case: Case, x: Any, indices: Any = None, **more: Any) -> Any:
    """Call the function or layer of the case."""
    framework = case.framework
    kwargs = {key: convert(value, framework) for key, value in (case.kwargs | more).items()}
    if framework == "torch" and "dtype" in kwargs:
        import torch

        kwargs["dtype"] = getattr(torch, kwargs["dtype"], kwargs["dtype"])
    first = (x,) if case.indices is None else (x, indices)
    if case.layer:
        family, n = case.function[:-2], case.function[-2:]
        module = ndpool.torch if framework == "torch" else ndpool.nn
        samples = kwargs.pop("_random_samples", None)
        options = {"_random_samples": samples} if samples is not None else {}
        output_size = kwargs.pop("output_size", None) if case.indices is not None else None
        layer = getattr(module, LAYERS[family] + n)(**kwargs, **options)
        return layer(*first, output_size=output_size) if output_size is not None else layer(*first)
    return getattr(ndpool, case.function)(*first, **kwargs)


def arrays(result: Any) -> tuple[Array, ...]:
    """The results as NumPy arrays."""
    return tuple(a if isinstance(a, np.ndarray) else from_torch(a) for a in as_tuple(result))


def run(
    case: Case,
    values: Array,
    layout: Layout | None = None,
    end: str = "",
    indices: Array | None = None,
    **more: Any,
) -> tuple[Array, ...]:
    """Place the values in memory, call, and check that the inputs did not change."""
    x = memory(case, values, layout, end)
    if case.readonly:
        x.array.flags.writeable = False
    at = None if indices is None else lay(indices, case.indices_layout, end)
    got = arrays(
        invoke(
            case,
            convert(x.array, case.framework),
            None if at is None else convert(at.array, case.framework),
            **more,
        )
    )
    x.check("the input")
    if at is not None:
        at.check("the indices")
    return got


def from_result(result: Any) -> Array:
    """One result as a NumPy array."""
    return arrays(result)[0]
