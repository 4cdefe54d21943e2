"""PyTorch tensors: which way a call takes.

Reached through `_dispatch`. A prepared call (`prepared`) comes first. Otherwise a plain tensor goes straight
to the kernels of its device (`kernels`: `cpu`, `cuda`), one that is differentiated or transformed goes
through `autograd`, and what a compiler or a dispatch mode watches becomes `operators`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from ndpool._arguments import check_int, input_name
from ndpool._cache import recall, remember, run_prepared
from ndpool._call import INDEX64, Call, Saved, Unpool
from ndpool._plan import with_sizes
from ndpool._policy import (
    DTYPES,
    FLOAT_NAMES,
    Arithmetic,
    Described,
    arithmetic,
    check_indices,
    check_out,
    check_samples,
    samples_like,
)
from ndpool.frameworks.torch import autograd, exporting, kernels, operators
from ndpool.frameworks.torch.prepared import prepare
from ndpool.frameworks.torch.tensors import (
    EXCHANGED,
    FAILURES,
    KIND,
    NAMES,
    check_memory,
    check_tensor,
    differentiated,
    plain,
    renamed,
    traced,
    transformed,
    writable,
)
from ndpool.geometry import norm_taps
from ndpool.reductions import REDUCTIONS

__all__ = [
    "backward",
    "fractional",
    "plain",
    "prepare",
    "quick",
    "recall",
    "remember",
    "run",
    "traced",
    "unpool",
]


def _run_prepared(function: Any, x: Tensor, arguments: tuple[Any, ...], indices: bool) -> Any:
    # Checked here, where a compiler sees it; the core checks the rest of `plain`.
    return None if is_dynamo_compiling() else run_prepared(function, x, arguments, indices)


quick = _run_prepared if EXCHANGED else None


def run(call: Call, x: Tensor) -> Any:
    """Pool `x`, into `call.out` where it is given."""
    fn = call.function
    own = DTYPES[check_tensor(fn, x, input_name(fn))]
    if call.plan is None and call.out is not None:
        raise ValueError(f"{fn}: out must not be given where a compiler or a dispatch mode is active")
    try:
        if call.dtype is None and call.out is None:
            how = arithmetic(fn, call.reduction, own, None, call.divisor, call.norm)
            if how == (call.reduction, own, False, 0):
                return _pool(call._replace(dtype=x.dtype), x)
        else:
            asked = None if call.dtype is None else _dtype_name(fn, call.dtype)
            how = arithmetic(fn, call.reduction, own, asked, call.divisor, call.norm)
        return _convert(call, how, x)
    except FAILURES as error:
        raise renamed(fn, error) from None


def _pool(call: Call, x: Tensor, targets: tuple[Tensor, ...] = ()) -> Any:
    """The kernels on `x`, in the way that whatever watches it needs."""
    if call.plan is None:
        return operators.run(call, x)
    return autograd.pool(call, x) if differentiated(x) else kernels.pool(call, x, None, targets)


def _convert(call: Call, how: Arithmetic, x: Tensor) -> Any:
    """A call with more to it: a dtype asked for, `out=`, integers that change, infinite norms."""
    fn, out, indices = call.function, call.out, call.extra == INDEX64
    watched = traced(x) or transformed()
    if x.is_cpu and not watched:
        check_memory(x)  # PyTorch's arithmetic, which comes first here, does not
    if how.magnitudes:
        # The least integer has no magnitude of its own dtype.
        wide = not x.dtype.is_floating_point and how.result in FLOAT_NAMES
        x = (x.to(torch.float64) if wide else x).abs()
    result: torch.dtype = getattr(torch, how.result)
    targets: tuple[Tensor, ...] = ()
    if out is not None:
        if differentiated(x):
            raise ValueError(f"{fn}: out must not be given where a derivative or a transform is active")
        shape = with_sizes(x.shape, call.axes, call.plan.out)
        targets = check_out(fn, KIND, out, indices, shape, how.result, str(x.device))
        for target in targets:
            if target.is_cpu:
                check_memory(target)
    call = call._replace(reduction=how.reduction, out=None)
    if how.power:
        got = _integer_norm(call, how.power, x)
    else:
        dtype = x.dtype if how.reduction.has_index else result
        if x.dtype.is_floating_point and dtype != x.dtype:
            dtype = torch.promote_types(x.dtype, result)
            x = x.to(dtype)
        straight = dtype is result and all(writable(target, x) for target in targets)
        if how.reduction.has_index:
            call = call._replace(divisor=0, norm=0.0)
        got = _pool(call._replace(dtype=dtype), x, targets if straight else ())
    values, *rest = got if indices else (got,)
    results = (values.to(result), *rest)
    for target, value in zip(targets, results, strict=False):
        if value is not target:
            target.copy_(value)
        elif not target.is_inference():
            increment_version(target)
    return out if out is not None else results if indices else results[0]


def _integer_norm(call: Call, power: int, x: Tensor) -> Tensor:
    """Integers to an integer power: powers and their mean stay integers, as in PyTorch; the root is float."""
    if call.plan is None:
        taps = norm_taps(call.function, len(call.axes), call.windows)
    else:
        taps = 0 if call.divisor else call.plan.taps
    unsigned = x.dtype is torch.uint64  # without arithmetic in PyTorch: int64 gives the same bits
    powers = (x.view(torch.int64) if unsigned else x.to(torch.int64)) ** power
    powers = powers.view(torch.uint64) if unsigned else powers
    reduction = REDUCTIONS["avg" if taps else "sum"]
    inner = call._replace(reduction=reduction, dtype=powers.dtype, divisor=0, norm=0.0)
    sums: Tensor = _pool(inner, powers)
    if taps:
        sums = (sums.view(torch.int64) * taps).view(powers.dtype)
    if sums.is_cpu and not traced(sums) and not transformed():
        # PyTorch's powers at the end of a tensor differ in the last bits from those before.
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(sums.numpy().astype(np.float64) ** (1 / power))
    return sums.to(torch.float64) ** (1 / power)


def backward(call: Call, saved: Saved, grad: Tensor) -> Tensor:
    """The gradient of the input of a max, min, sum or average pooling, without further derivatives."""
    if saved.offsets is None:
        return kernels.sum_backward(call, grad, saved.channels_last)  # type: ignore[no-any-return]
    return kernels.max_backward(  # type: ignore[no-any-return]
        call, grad, saved.offsets, saved.channels_last
    )


def unpool(call: Unpool, values: Tensor, indices: Any) -> Tensor:
    """Values at their indices in planes of zeros; of repeated indices the last in row-major order wins."""
    fn = call.function
    own = DTYPES[check_tensor(fn, values, input_name(fn))]
    check_indices(fn, KIND, Described(tuple(values.shape), own, device=str(values.device)), indices)
    indices = indices.to(torch.int64)
    if traced(values) or traced(indices):
        return operators.run_unpool(call, values, indices)  # type: ignore[no-any-return]
    try:
        if differentiated(values):
            return autograd.unpool(values, indices, call)  # type: ignore[no-any-return]
        return kernels.unpool(call, values, indices)  # type: ignore[no-any-return]
    except FAILURES as error:
        raise renamed(fn, error) from None


def fractional(call: Call, x: Tensor, samples: Any, generator: Any) -> Any:
    """Max pooling over windows that random samples place."""
    fn, n_axes = call.function, len(call.axes)
    check_tensor(fn, x)
    if exporting.scripted():
        exporting.fractional(x, samples, call.axes, fn, (), ())
    places = _samples(call, x, samples, generator).reshape(*x.shape[:-n_axes], n_axes)
    if traced(x) or differentiated(x) or traced(places):
        # Samples may be symbolic or batched too. Indices have no derivative; values are taken at them.
        kernel, outs = call.windows[:n_axes], call.windows[n_axes:]
        _, indices = operators.fractional(x.detach(), places.detach(), call.axes, fn, kernel, outs)
        values = autograd.take(x if traced(x) else autograd.with_link(x), indices, call.axes)
    else:
        try:
            values, indices = kernels.fractional(call, x, places)
        except FAILURES as error:
            raise renamed(fn, error) from None
    return (values, indices) if call.extra == INDEX64 else values


def _samples(call: Call, x: Tensor, given: Any, generator: Any) -> Tensor:
    fn, n_axes = call.function, len(call.axes)
    if given is not None:
        like = Described(tuple(x.shape), NAMES[x.dtype], device=str(x.device))
        shape = check_samples(fn, KIND, like, n_axes, given)
        return given[: shape[0]]  # type: ignore[no-any-return]
    shape, name = samples_like(x.shape, NAMES[x.dtype], n_axes)
    dtype = getattr(torch, name)
    if isinstance(generator, torch.Generator):
        return torch.rand(shape, dtype=dtype, device=x.device, generator=generator)
    seed = None if generator is None else _check_seed(fn, generator)
    if traced(x) or transformed():
        return operators.random_samples(x.detach(), shape, dtype, seed)  # type: ignore[no-any-return]
    return kernels.random_samples(x, shape, dtype, seed)


def _check_seed(fn: str, generator: Any) -> int:
    try:
        seed = check_int(fn, "generator", generator)
    except TypeError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise TypeError(
            f"{fn}: generator must be a torch.Generator or a seed of at least 0; got {generator!r}"
        )
    return seed


def _dtype_name(fn: str, dtype: Any) -> str:
    if not isinstance(dtype, torch.dtype) or dtype not in NAMES:
        raise TypeError(f"{fn}: dtype must be a supported torch.dtype; got dtype={dtype!r}")
    return NAMES[dtype]
