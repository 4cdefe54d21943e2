"""Gradients of a case: autograd for tensors, the backward kernels for arrays.

Max and min pooling must be exact, because the output gradients are small integers; average and Lp pooling
have an element-wise tolerance. A part of the batch and another layout must give bitwise identical results.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

import passes
from fences import lay, packed
from fuzz import reference
from fuzz.call import convert, from_result, invoke, memory
from fuzz.case import Case, repeated
from fuzz.check import Want, alike
from ndpool import geometry
from oracle import Array, counts


def check_gradient(case: Case, want: Want) -> None:
    """Check the gradient of the values with respect to the input."""
    power = case.reduce == "lp"
    if not prod(case.shape) or not prod(case.outs):
        return
    finite = bool(np.isfinite(case.values.astype(np.float64)).all() and (case.values != 0).all())
    if power and not (1 <= case.norm < inf and finite and case.dtype.itemsize > 2):
        return
    rng = np.random.default_rng(case.seed)
    grad = rng.integers(-8, 9, case.outs).astype(case.dtype)
    grad = repeated(grad, case.grad_layout)
    if case.framework == "torch":
        find = torch_gradient
    elif case.indices is None and "_random_samples" not in case.kwargs:
        find = numpy_gradient
    else:
        return
    need, slack = expected_gradient(case, want, grad)
    got = find(case, case.values, grad, case.layout, case.indices, case.grad_layout)
    alike("gradient", got, need.astype(case.dtype), slack)
    lead = [a for a in range(len(case.shape)) if a not in case.axes and case.shape[a] > 1]
    if "_random_samples" in case.kwargs or len(case.kwargs.get("output_size", ())) > len(case.axes):
        return
    if power and case.framework == "torch":
        return  # PyTorch computes the powers, with different rounding at the end of a vector
    assert case.others is not None
    again = find(case, case.values, grad, case.others[2], case.indices, packed(grad.ndim))
    alike(f"gradient with layout {case.others[2].tags}", again, got)
    if lead:
        axis = lead[0]
        part = (slice(None),) * axis + (slice(0, 1),)
        at = None if case.indices is None else case.indices[part]
        alone = find(case, case.values[part], grad[part], packed(grad.ndim), at, packed(grad.ndim))
        alike(f"gradient of 0:1 of axis {axis} alone", alone, got[part])


def expected_gradient(case: Case, want: Want, grad: Array) -> tuple[Array, Any]:
    """The reference gradient in float64, and the allowed error of each element."""
    flat_grad, lead = reference.planes(grad, case.axes)
    sizes = [case.shape[a] for a in case.axes]
    if case.indices is not None:
        at, _ = reference.planes(case.indices, case.axes)
        return reference.unplanes(np.take_along_axis(flat_grad, at, 1), lead, sizes, case.axes), None
    flat_x, _ = reference.planes(case.values, case.axes)
    if case.has_index:
        indices, _ = reference.planes(want.indices, case.axes)
        if len(case.plans) > 1:
            tables = [reference.table(plan, sizes) for plan in case.plans]
            parts = [
                reference.max_backward(flat_grad[i : i + 1], indices[i : i + 1], t, prod(sizes))
                for i, t in enumerate(tables)
            ]
            return reference.unplanes(np.concatenate(parts), lead, sizes, case.axes), None
        windows = reference.table(case.plans[0], sizes)
        found = reference.max_backward(flat_grad, indices, windows, prod(sizes))
        return reference.unplanes(found, lead, sizes, case.axes), None
    windows = reference.table(case.plans[0], sizes)
    padded = case.kwargs.get("count_include_pad", True) and "adaptive" not in case.function
    shares: Any = flat_grad.astype(np.float64)
    scale: Any = 1.0
    if case.reduce == "avg":
        shares = shares / reference.divisors(case.plans[0], padded, case.kwargs.get("divisor_override"))
    if case.reduce == "lp":
        x = flat_x.astype(np.float64)
        share = counts(case.plans[0], padded).ravel() if case.taps else None
        if not case.taps:  # a true norm
            x, sign = np.abs(x), np.sign(x)
        y = reference.lp_norm(x, windows, case.norm, case.taps, share)
        with np.errstate(all="ignore"):
            slopes = np.where(y == 0, 0, y ** (1 - case.norm))
        shares = shares * slopes * (1 if share is None else case.taps / np.maximum(share, 1))
        scale = x ** (case.norm - 1) * (1 if case.taps else sign)
    found = reference.sum_backward(shares, windows, prod(sizes)) * scale
    magnitude = reference.sum_backward(np.abs(shares), windows, prod(sizes)) * np.abs(scale)
    many = int(np.bincount(windows.flat[windows.valid], minlength=1).max())
    exact = case.dtype == np.float64
    slack = reference.sum_slack(found, magnitude, many + windows.taps, case.dtype, exact)
    if case.reduce == "lp":  # roots of sums that cancel
        slack = np.where(np.isfinite(found), slack * 64 + 1e-4 * magnitude, inf)
        if case.taps and case.norm % 2 and case.norm != 1 and case.values.min() < 0:
            slack[...] = inf
    found, slack = (reference.unplanes(a, lead, sizes, case.axes) for a in (found, slack))
    return found, slack


def torch_gradient(case: Case, values: Array, grad: Array, layout: Any, at: Any, grad_layout: Any) -> Array:
    """The gradient computed by autograd."""
    import torch

    x, g = memory(case, values, layout, case.end), lay(grad, grad_layout, case.result_end)
    tensor = convert(x.array, "torch").requires_grad_()
    indices = None if at is None else lay(at, case.indices_layout, case.end)
    result = invoke(case, tensor, None if indices is None else convert(indices.array, "torch"))
    y = result[0] if isinstance(result, tuple) else result
    (found,) = torch.autograd.grad(y, tensor, convert(g.array, "torch"))
    x.check("the input")
    g.check("the gradient")
    return from_result(found)


def plan_of(case: Case, sizes: tuple[int, ...]) -> geometry.Plan:
    """The package's plan of the case."""
    kwargs = case.kwargs
    if "output_size" in kwargs:
        return geometry.adaptive(case.function, sizes, kwargs["output_size"], strict=case.function[-1] == "d")
    return geometry.sliding(
        case.function,
        sizes,
        kwargs.get("window", kwargs.get("kernel_size")),
        kwargs.get("stride"),
        kwargs.get("padding", 0),
        kwargs.get("dilation", 1),
        kwargs.get("ceil_mode", False),
        kwargs.get("count_include_pad", True),
        strict=case.function != "pool",
    )


def numpy_gradient(case: Case, values: Array, grad: Array, layout: Any, at: Any, grad_layout: Any) -> Array:
    """The gradient computed by the backward kernels; also checks the offsets."""
    plan, axes = plan_of(case, tuple(values.shape[a] for a in case.axes)), case.axes
    true_norm = case.reduce == "lp" and not case.taps
    sign = np.sign(values) if true_norm else 1
    x = lay(np.abs(values) if true_norm else values, layout, case.end)
    g = lay(grad, grad_layout, case.result_end)
    dense = case.grad_layout._replace(broadcast=(False,) * grad.ndim)
    more: dict[str, Any] = {}
    if case.has_index:
        y, offsets = passes.with_offsets(case.reduce, plan, x.array, axes)
        found = lay(offsets, dense, case.result_end)
        want = reference.select(
            reference.planes(values, axes)[0],
            windows := reference.table(case.plans[0], plan.sizes),
            case.reduce == "min",
        )
        indices = reference.planes(geometry.positions(plan, found.array.astype(np.int64), axes), axes)[0]
        nonempty = windows.valid.any(1)
        alike("values with offsets", reference.planes(y, axes)[0], want[0], zeros=False)
        alike("offsets", indices[:, nonempty], want[1][:, nonempty])
        more = {"offsets": found.array}
    if case.reduce == "lp":
        y = passes.forward("lp", plan, x.array, axes, case.norm, case.function)
        outputs = lay(y, dense, case.result_end)
        more = {"x": x.array, "y": outputs.array, "norm": case.norm, "fn": case.function}
    if case.reduce == "avg":
        more = {"divisor": case.kwargs.get("divisor_override") or 0}
    result = passes.backward(case.reduce, plan, g.array, axes, **more)
    x.check("the input")
    g.check("the gradient")
    if case.has_index:
        found.check("the offsets")
    return result * sign
