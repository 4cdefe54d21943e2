"""Pooling as primitives of JAX, with rules for every transform: derivatives of any order, `vmap`, `jit`.

Max and min give offsets beside their values, from which the derivatives are taken; sums are linear. On the
CPU a primitive becomes a call of the compiled core (`native`), elsewhere operations of `jax.lax` (`slices`
for small regular windows, `windows` for all others). Axes are counted from the end, so that a new leading
axis changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ndpool._call import BYTE_TAPS, NO_EXTRA, OFFSET8, OFFSET32
from ndpool._plan import Plan, with_sizes
from ndpool.frameworks.jax import native, slices, windows
from ndpool.reductions import REDUCTIONS

# In `jax.experimental` before JAX 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")).enable_x64

POWER = "power"  # sums of integer powers of integers, and their root


class Windows:
    """A plan as a static argument: equal plans are one."""

    __slots__ = ("_hash", "key", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.key = tuple(
            (a.size, a.out, a.kernel, a.stride, a.step, a.origin, a.bounds)
            + (
                (None, None)
                if a.starts is None or a.counts is None
                else (a.starts.tobytes(), a.counts.tobytes())
            )
            for a in plan.axes
        )
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Windows) and (self is other or self.key == other.key)

    def __repr__(self) -> str:
        return f"{self.plan.sizes} to {self.plan.out}"


windows_of = lru_cache(1024)(Windows)


class Pooling(NamedTuple):
    """What a primitive does: the static part of a call."""

    reduction: str
    windows: Windows
    axes: tuple[int, ...]  # counted from the end
    dtype: str  # of the values
    extra: int = NO_EXTRA
    divisor: int = 0
    norm: float = 0.0
    native: bool = False  # by the core, where the platform has it
    fused: bool = False  # on the CPU, too, as on other devices

    @property
    def plan(self) -> Plan:
        """The windows."""
        return self.windows.plan

    @property
    def how(self) -> tuple[Any, ...]:
        """The call as `native` takes it."""
        reduction = REDUCTIONS[self.reduction]
        return reduction.op, reduction.divides, self.divisor, self.norm

    def own_axes(self, x: Any) -> list[int]:
        """The pooled axes of this array."""
        return [a + len(x.shape) for a in self.axes]


def _extra_dtype(extra: int) -> Any:
    return np.dtype("uint8" if extra == OFFSET8 else "int32")


# The arithmetic: for each primitive by `jax.lax` and, on the CPU, by the core.


def _pool_lax(x: Array, how: Pooling, ordered: bool = False, fused: bool = True) -> list[Array]:
    plan, axes, dtype = how.plan, how.own_axes(x), np.dtype(how.dtype)
    if how.reduction in ("max", "min"):
        least = how.reduction == "min"
        if how.extra == NO_EXTRA:
            return [windows.extremes(x, plan, axes, least, ordered)]
        kind = _extra_dtype(how.extra)
        if not fused or not slices.fits_forward(plan):
            return [*windows.extremes_with_offsets(x, plan, axes, least, kind)]
        narrow = x.astype(np.uint8) if x.dtype == np.bool_ else x
        nothing = windows.nothing(narrow.dtype, least)
        values, offsets = slices.extremes_with_offsets(narrow, plan, axes, nothing, least)
        return [values.astype(x.dtype), offsets.astype(kind)]
    if how.reduction == POWER:
        return [_power(x, how, _lax_mean)]
    wide = x.astype(windows.accumulator(x.dtype, dtype))
    if how.reduction != "lp":
        total = windows.sums(wide, plan, axes)
        if how.reduction == "avg":
            total = windows.divided(total, plan, axes, how.divisor)
        return [total.astype(dtype)]
    total = windows.divided(windows.sums(power(wide, how.norm), plan, axes), plan, axes, how.divisor)
    return [power(total * plan.taps, 1 / how.norm).astype(dtype)]


def _pool_cpu(x: Array, how: Pooling) -> list[Array]:
    return _pool_native(x, how) if how.native else _pool_lax(x, how, ordered=True, fused=how.fused)


def _pool_native(x: Array, how: Pooling) -> list[Array]:
    if how.reduction == POWER:
        return [_power(x, how, _native_mean)]
    dtype = np.dtype(how.dtype)
    wide = dtype
    if how.reduction == "sum" and not jnp.issubdtype(dtype, jnp.floating):
        wide = windows.accumulator(x.dtype, dtype)
    values, *extra = native.forward(x, how.plan, how.own_axes(x), how.how, wide, how.extra)
    return [values.astype(dtype), *extra]


def _power(x: Array, how: Pooling, mean: Callable[[Array, Pooling], Array]) -> Array:
    """Integers to an integer power: powers and their mean stay integers, as in PyTorch; the root is float."""
    wide = x if x.dtype == np.uint64 else x.astype(np.int64)
    taps = 1 if how.divisor else how.plan.taps  # a clipped window is scaled up to a full one
    reduction = "sum" if how.divisor else "avg"
    inner = how._replace(reduction=reduction, dtype=wide.dtype.name, divisor=0, norm=0.0)
    total = mean(wide ** int(how.norm), inner) * np.asarray(taps, wide.dtype)
    return (total.astype(np.float64) ** (1 / how.norm)).astype(how.dtype)


def _lax_mean(x: Array, how: Pooling) -> Array:
    return _pool_lax(x, how)[0]


def _native_mean(x: Array, how: Pooling) -> Array:
    return _pool_native(x, how)[0]


def power(x: Array, norm: float) -> Array:
    """Elements to a power; by multiplications if it is a small integer."""
    if norm == int(norm) and abs(norm) <= 16:
        return lax.integer_pow(x, int(norm))
    return lax.pow(x, np.asarray(norm, x.dtype))


def _select_lax(x: Array, offsets: Array, how: Pooling) -> list[Array]:
    axes = how.own_axes(x)
    return [windows.take(x, windows.flat_indices(how.plan, offsets, axes), axes)]


def _max_backward_lax(grad: Array, offsets: Array, how: Pooling, fused: bool = True) -> list[Array]:
    plan, axes = how.plan, how.own_axes(grad)
    gather = slices.max_backward if fused and slices.fits_backward(plan) else windows.max_backward
    wide = grad.astype(windows.accumulator(grad.dtype, grad.dtype))
    return [gather(wide, offsets, plan, axes).astype(grad.dtype)]


def _max_backward_cpu(grad: Array, offsets: Array, how: Pooling) -> list[Array]:
    if not how.native:
        return _max_backward_lax(grad, offsets, how, how.fused)
    return [native.backward(grad, offsets, how.plan, how.own_axes(grad), how.how)]


def _sum_backward_lax(grad: Array, how: Pooling, fused: bool = True) -> list[Array]:
    plan, axes = how.plan, how.own_axes(grad)
    wide = grad.astype(windows.accumulator(grad.dtype, grad.dtype))
    if how.reduction == "avg":
        wide = windows.divided(wide, plan, axes, how.divisor)
    if fused and slices.fits_backward(plan) and not slices.reduces_as_well(plan):
        return [slices.sum_backward(wide, plan, axes).astype(grad.dtype)]
    return [windows.sums(wide, plan.transposed(), axes).astype(grad.dtype)]


def _sum_backward_cpu(grad: Array, how: Pooling) -> list[Array]:
    if not how.native:
        return _sum_backward_lax(grad, how, how.fused)
    return [native.backward(grad, None, how.plan, how.own_axes(grad), how.how)]


def _put_lax(values: Array, indices: Array, how: Put) -> list[Array]:
    return [windows.put(values, indices, [a + values.ndim for a in how.axes], how.sizes)]


class Put(NamedTuple):
    """The static part of an unpooling."""

    axes: tuple[int, ...]  # counted from the end
    sizes: tuple[int, ...]


# The shapes.


def _pool_shape(x: Any, *, how: Pooling) -> list[Any]:
    shape = with_sizes(x.shape, how.own_axes(x), how.plan.out)
    values = x.update(shape=shape, dtype=np.dtype(how.dtype), weak_type=False)
    return [values] if how.extra == NO_EXTRA else [values, values.update(dtype=_extra_dtype(how.extra))]


def _select_shape(x: Any, offsets: Any, *, how: Pooling) -> list[Any]:
    return [offsets.update(dtype=x.dtype, weak_type=False)]


def _backward_shape(grad: Any, *_: Any, how: Pooling) -> list[Any]:
    return [grad.update(shape=with_sizes(grad.shape, how.own_axes(grad), how.plan.sizes), weak_type=False)]


def _put_shape(values: Any, indices: Any, *, how: Put) -> list[Any]:
    axes = [a + len(values.shape) for a in how.axes]
    return [values.update(shape=with_sizes(values.shape, axes, how.sizes), weak_type=False)]


def _primitive(
    name: str,
    shape: Callable[..., Any],
    anywhere: Callable[..., Any],
    on_cpu: Callable[..., Any] | None = None,
) -> Any:
    primitive = Primitive(f"ndpool_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(shape)

    def impl(*args: Any, how: Any) -> Any:
        with jax.disable_jit(False):
            return _jitted(primitive, how)(*args)

    def batch(args: Any, dims: Any, *, how: Any) -> Any:
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        front = [
            jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(args, dims, strict=True)
        ]
        results = primitive.bind(*front, how=how)
        return results, [0] * len(results)

    primitive.def_impl(impl)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, _lowering(anywhere))
    if on_cpu is not None:
        mlir.register_lowering(primitive, _lowering(on_cpu), platform="cpu")
    return primitive


@lru_cache(4096)
def _jitted(primitive: Any, how: Any) -> Any:
    return jax.jit(lambda *args: primitive.bind(*args, how=how))


def freely() -> AbstractContextManager[Any]:
    """JAX's usual rules for operands of different dtypes and ranks, whatever the caller has set."""
    config: Any = jax.config
    if (config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion) == ("standard", "allow"):
        return nullcontext()
    rules = ExitStack()
    rules.enter_context(jax.numpy_dtype_promotion("standard"))
    rules.enter_context(jax.numpy_rank_promotion("allow"))
    return rules


def _lowering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule that lowers a primitive to this function, which may use 64-bit types in any case."""
    rule = mlir.lower_fun(lambda *args, how: function(*args, how), multiple_results=True)

    def lower(ctx: Any, *args: Any, how: Any) -> Any:
        with _enable_x64(True), freely():
            return rule(ctx, *args, how=how)

    return lower


pool_p = _primitive("pool", _pool_shape, _pool_lax, _pool_cpu)
select_p = _primitive("select", _select_shape, _select_lax)
max_backward_p = _primitive("max_backward", _backward_shape, _max_backward_lax, _max_backward_cpu)
sum_backward_p = _primitive("sum_backward", _backward_shape, _sum_backward_lax, _sum_backward_cpu)
put_p = _primitive("put", _put_shape, _put_lax)


# The derivatives.


def _zero(value: Any) -> Any:
    aval = value.aval
    return ad.Zero(aval.to_tangent_aval() if hasattr(aval, "to_tangent_aval") else aval.at_least_vspace())


def _pool_jvp(primals: Any, tangents: Any, *, how: Pooling) -> Any:
    (x,), (tangent,) = primals, tangents
    if type(tangent) is ad.Zero:
        results = pool_p.bind(x, how=how)
        return results, [_zero(y) for y in results]
    if how.reduction in ("max", "min"):
        asked = how.extra
        y, offsets = pool_p.bind(x, how=how._replace(extra=asked or offset_kind(how.plan)))
        (slope,) = select_p.bind(tangent, offsets, how=how)
        return ([y], [slope]) if asked == NO_EXTRA else ([y, offsets], [slope, _zero(offsets)])
    (y,) = pool_p.bind(x, how=how)
    if how.reduction == "lp":
        return [y], [_norm_slope(x, tangent, y, how)]
    return [y], pool_p.bind(tangent, how=how)


def _norm_slope(x: Array, tangent: Array, y: Array, how: Pooling) -> Array:
    """The derivative of y, where y**p == taps * mean(x**p); 0 where a window sums to zero."""
    p, dtype = how.norm, windows.accumulator(x.dtype, x.dtype)
    wide, out = x.astype(dtype), y.astype(dtype)
    vanishes = out == 0 if p > 0 else jnp.isinf(out)
    share = jnp.where(vanishes, 0, power(jnp.where(vanishes, 1, out), 1 - p) * how.plan.taps)
    inner = how._replace(reduction="avg", norm=0.0, dtype=np.dtype(dtype).name)
    (mean,) = pool_p.bind(power(wide, p - 1) * tangent.astype(dtype), how=inner)
    return (share * mean).astype(y.dtype)


def _pool_transpose(cts: Any, x: Any, *, how: Pooling) -> Any:
    if type(cts[0]) is ad.Zero:
        return [ad.Zero(x.aval)]
    return sum_backward_p.bind(cts[0], how=how)


def _linear(primitive: Any, adjoint: Callable[..., Any]) -> None:
    """The rules of a primitive that is linear in its first argument; the others have no derivative."""

    def jvp(primals: Any, tangents: Any, *, how: Any) -> Any:
        results = primitive.bind(*primals, how=how)
        if type(tangents[0]) is ad.Zero:
            return results, [_zero(results[0])]
        return results, primitive.bind(tangents[0], *primals[1:], how=how)

    def transpose(cts: Any, x: Any, *rest: Any, how: Any) -> Any:
        ct = ad.Zero(x.aval) if type(cts[0]) is ad.Zero else adjoint(cts[0], *rest, how=how)
        return [ct, *[None] * len(rest)]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose


def offset_kind(plan: Plan) -> int:
    """The narrowest offsets that windows of this plan need."""
    return OFFSET8 if plan.taps <= BYTE_TAPS else OFFSET32


def _take(grad: Array, indices: Array, *, how: Put) -> Array:
    return windows.take(grad, indices, [a + grad.ndim for a in how.axes])


ad.primitive_jvps[pool_p] = _pool_jvp
ad.primitive_transposes[pool_p] = _pool_transpose
_linear(select_p, lambda ct, offsets, how: max_backward_p.bind(ct, offsets, how=how)[0])
_linear(max_backward_p, lambda ct, offsets, how: select_p.bind(ct, offsets, how=how)[0])
_linear(sum_backward_p, lambda ct, how: pool_p.bind(ct, how=how)[0])
_linear(put_p, _take)
