"""JAX arrays: what a call means for them, in terms of the primitives.

Reached through `_dispatch`, with arrays and with the tracers of `jit`, `grad`, `vmap` and the like. Sizes are
static, so the plan is made as for any array. Where 64-bit types are off, results have JAX's 32-bit ones.
"""

from __future__ import annotations

from functools import partial
from math import prod
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from ndpool._arguments import input_name
from ndpool._call import INDEX64, NO_EXTRA, Call, Unpool
from ndpool._plan import Plan, with_sizes
from ndpool._policy import (
    DTYPES,
    FLOAT_NAMES,
    Described,
    Kind,
    arithmetic,
    check_dtype,
    check_indices,
    check_samples,
    samples_like,
    wrong_index,
)
from ndpool._record import note_kernel
from ndpool.frameworks.jax import native, windows
from ndpool.frameworks.jax.fractional import fractional_indices
from ndpool.frameworks.jax.primitives import (
    POWER,
    Pooling,
    Put,
    freely,
    offset_kind,
    pool_p,
    put_p,
    windows_of,
)

__all__ = ["fractional", "plain", "quick", "run", "traced", "unpool"]

traced = None  # sizes are always numbers
quick = None
_MAX_INDEX = 2**31 - 1  # of 32 bits
_MAX_TAPS = 2**31 - 1  # whose offsets fit


def plain(x: Any) -> bool:
    """Whether prepared calls may run: JAX keeps its own cache of compiled programs."""
    return False


def run(call: Call, x: Array) -> Any:
    """Pool `x`: values, or values and indices."""
    fn = call.function
    own = _dtype_of(fn, input_name(fn), x)
    if call.out is not None:
        raise TypeError(f"{fn}: out must not be given for JAX arrays, which are never written to")
    asked = None if call.dtype is None else _dtype_name(fn, call.dtype)
    how = arithmetic(fn, call.reduction, own, asked, call.divisor, call.norm)
    result = jax.dtypes.canonicalize_dtype(how.result).name
    indices = call.extra == INDEX64
    _check_limits(call, indices)
    reduction, dtype = how.reduction, own if how.reduction.has_index else result
    if own in FLOAT_NAMES and dtype != own:
        dtype = jnp.promote_types(own, dtype).name  # kernels of floats keep the dtype
    pooling = Pooling(
        POWER if how.power else reduction.name,
        windows_of(call.plan),
        tuple(a - len(x.shape) for a in call.axes),
        dtype,
        offset_kind(call.plan) if indices else NO_EXTRA,
        0 if reduction.has_index else call.divisor,
        0.0 if reduction.has_index else call.norm,
        native.enabled,
        native.fused,
    )
    _note(x, "forward")
    with freely():
        return _pool(x, pooling, result, how.magnitudes)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _pool(x: Array, how: Pooling, result: str, magnitudes: bool) -> Any:
    if magnitudes:
        # The least integer has no magnitude of its own dtype.
        wide = not jnp.issubdtype(x.dtype, jnp.floating) and result in FLOAT_NAMES
        x = jnp.abs(x.astype(jax.dtypes.canonicalize_dtype("float64")) if wide else x)
        how = how._replace(dtype=x.dtype.name) if how.reduction in ("max", "min") else how
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(how.dtype)
    axes = how.own_axes(x)
    shape = with_sizes(x.shape, axes, how.plan.out)
    if 0 in shape:
        got = [jnp.zeros(shape, dtype=result), jnp.zeros(shape, _index_dtype())]
        return got[0] if how.extra == NO_EXTRA else tuple(got)
    values, *extra = pool_p.bind(x, how=how)
    values = values.astype(result)
    return (values, _indices(how.plan, extra[0], axes)) if extra else values


def _indices(plan: Plan, offsets: Array, axes: Any) -> Array:
    """Indices in the flattened plane; of a window without an element, where it starts."""
    indices = windows.flat_indices(plan, offsets, axes).astype(_index_dtype())
    if all(axis.windows()[1].all() for axis in plan.axes):
        return indices
    start, pitch = np.zeros((), np.int64), 1
    for axis, a in reversed(list(zip(plan.axes, axes, strict=True))):
        first = axis.origin + axis.stride * np.arange(axis.out, dtype=np.int64)
        first = np.where(first < 0, first % axis.step, first) if axis.starts is None else axis.starts
        start = start + pitch * first.reshape([-1 if i == a else 1 for i in range(indices.ndim)])
        pitch *= axis.size
    return jnp.where(indices < 0, jnp.asarray(start.astype(indices.dtype)), indices)


def unpool(call: Unpool, values: Array, indices: Any) -> Array:
    """Values at their indices in planes of zeros; of repeated indices the last in row-major order wins."""
    fn = call.function
    own = _dtype_of(fn, input_name(fn), values)
    check_indices(fn, KIND, Described(tuple(values.shape), own), indices)
    if not isinstance(indices, Tracer):
        _check_values(call, indices)
    shape = with_sizes(values.shape, call.axes, call.sizes)
    if prod(shape) == 0 or prod(values.shape) == 0:
        return jnp.zeros(shape, values.dtype)
    _note(values, "unpool")
    with freely():
        return _unpool(values, indices, Put(tuple(a - values.ndim for a in call.axes), call.sizes))


@partial(jax.jit, static_argnums=2)
def _unpool(values: Array, indices: Array, how: Put) -> Array:
    return put_p.bind(values, indices, how=how)[0]


def _check_values(call: Unpool, indices: Array) -> None:
    """Indices that are known must lie in the plane; those of a tracer are dropped if they do not."""
    limit = prod(call.sizes)
    most = int(jnp.iinfo(indices.dtype).max)
    with jax.ensure_compile_time_eval():
        wrong = (indices < 0) | (indices >= limit) if limit <= most else indices < 0
        if not wrong.any():
            return
    host = np.moveaxis(np.asarray(indices), call.axes, range(-len(call.axes), 0)).ravel()
    raise wrong_index(call.function, int(host[(host < 0) | (host >= limit)][0]), call.sizes)


def fractional(call: Call, x: Array, samples: Any, generator: Any) -> Any:
    """Max pooling over windows that random samples place; `generator` is a key or a seed."""
    fn, n_axes = call.function, len(call.axes)
    own = _dtype_of(fn, input_name(fn), x)
    wanted, dtype = samples_like(x.shape, own, n_axes)
    if samples is None:
        samples = jax.random.uniform(_key(fn, generator), wanted, jax.dtypes.canonicalize_dtype(dtype))
    else:
        check_samples(fn, KIND, Described(tuple(x.shape), own), n_axes, samples)
        samples = samples[: wanted[0]]
        if not isinstance(samples, Tracer) and samples.size:
            with jax.ensure_compile_time_eval():
                low, high = float(samples.min()), float(samples.max())
            if not (low >= 0 and high <= 1):
                raise ValueError(f"{fn}: _random_samples must be in [0, 1]; got {low} to {high}")
    kernel, outs = call.windows[:n_axes], call.windows[n_axes:]
    _check_sizes(fn, x.shape[-n_axes:], prod(outs))
    _note(x, "forward")
    with freely():
        values, indices = _fractional(x, samples, kernel, outs)
    return (values, indices) if call.extra == INDEX64 else values


@partial(jax.jit, static_argnums=(2, 3))
def _fractional(x: Array, samples: Array, kernel: tuple[int, ...], outs: tuple[int, ...]) -> Any:
    n_axes = len(kernel)
    if 0 in outs or 0 in x.shape:
        shape = (*x.shape[:-n_axes], *outs)
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, _index_dtype())
    places = samples.reshape(*x.shape[:-n_axes], n_axes)
    indices = fractional_indices(jax.lax.stop_gradient(x), places, kernel, outs)
    values = windows.take(x, indices, range(x.ndim - n_axes, x.ndim))
    return values, indices.astype(_index_dtype())


def _key(fn: str, generator: Any) -> Any:
    """The key to draw samples with: a key of either kind, or one made from a seed."""
    if isinstance(generator, Array):
        if jnp.issubdtype(generator.dtype, jax.dtypes.prng_key) and generator.shape == ():
            return generator
        if generator.dtype == np.uint32 and generator.ndim == 1:
            return generator
    elif generator is not None and not isinstance(generator, bool):
        try:
            if (seed := index(generator)) >= 0:
                return jax.random.key(seed)
        except (TypeError, OverflowError):
            pass
    raise TypeError(
        f"{fn}: generator must be a JAX key such as jax.random.key(0), or a seed of at least 0, "
        f"for JAX has no global generator; got generator={generator!r}"
    )


def _dtype_of(fn: str, name: str, x: Array) -> str:
    return DTYPES[check_dtype(fn, name, str(x.dtype), x.dtype)]


def _dtype_name(fn: str, dtype: Any) -> str:
    """The name of a dtype asked for, as JAX has it."""
    try:
        asked = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(f"{fn}: dtype must be a dtype of JAX; got dtype={dtype!r}") from None
    check_dtype(fn, "dtype", asked.name, asked)
    return jax.dtypes.canonicalize_dtype(asked).name


def _index_dtype() -> Any:
    """The dtype of indices: int64, or int32 where JAX has no 64-bit types."""
    return jax.dtypes.canonicalize_dtype("int64")


def _check_limits(call: Call, indices: bool) -> None:
    fn, plan = call.function, call.plan
    if indices:
        if prod(axis.tap_range()[1] for axis in plan.axes) > _MAX_TAPS:
            raise ValueError(f"{fn}: a window of more than {_MAX_TAPS} elements has no indices")
        _check_sizes(fn, plan.sizes)
    if call.reduction.divides and not call.divisor and plan.taps >= 2**63:
        raise ValueError(f"{fn}: a window of 2**63 elements or more has no average")


def _check_sizes(fn: str, sizes: tuple[int, ...], outputs: int = 0) -> None:
    if max(prod(sizes), outputs) > _MAX_INDEX and _index_dtype() == np.int32:
        raise ValueError(
            f"{fn}: indices of planes of more than {_MAX_INDEX} elements need 64-bit types; got sizes "
            f'{sizes} without jax.config.update("jax_enable_x64", True)'
        )


def _note(x: Array, direction: str) -> None:
    """For `explain`: what runs, and where; a traced call runs later, wherever its program is compiled for."""
    platform = "jit" if isinstance(x, Tracer) else next(iter(x.devices())).platform
    by_core = native.enabled and platform != "gpu" and direction == "forward"
    note_kernel(direction, "core, called by XLA" if by_core else "jax.lax", f"jax {platform}")


def _describe(x: Any) -> Described | None:
    return Described(tuple(x.shape), str(x.dtype)) if isinstance(x, Array) else None


KIND = Kind("a JAX array", _describe, lambda a, b: False)
