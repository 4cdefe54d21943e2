"""The compiled core inside XLA: calls of its foreign function interface, for JAX arrays on the CPU.

A call becomes a list of integers, which `csrc/python/jax_ffi.cpp` reads; it is part of the compiled program,
so that programs can be stored and loaded. XLA passes the arrays' memory itself: nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.ffi
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ndpool._call import INDEX64, NO_EXTRA, OFFSET8, OFFSET32
from ndpool._native import BUILT, core
from ndpool._plan import Plan, with_sizes
from ndpool._policy import DTYPES

_TARGET = "ndpool_pool"
_VERSION = 1  # of the list of integers
_EXTRA_DTYPES = {OFFSET8: np.dtype("uint8"), OFFSET32: np.dtype("int32"), INDEX64: np.dtype("int64")}

# Whether the core is used where it can be. Tests switch it; `NDPOOL_JAX=lax` leaves everything to XLA.
enabled = BUILT and os.environ.get("NDPOOL_JAX") != "lax"
fused = False  # whether the CPU runs the programs of other devices where the core is not used: for tests


def forward(x: Array, plan: Plan, axes: Sequence[int], how: tuple[Any, ...], dtype: Any, extra: int) -> Any:
    """Values of this dtype and, if asked for, offsets; `how` is op, divide, divisor and norm."""
    shape = with_sizes(x.shape, axes, plan.out)
    results = [jax.ShapeDtypeStruct(shape, dtype)]
    if extra != NO_EXTRA:
        results.append(jax.ShapeDtypeStruct(shape, _EXTRA_DTYPES[extra]))
    words = _words(0, extra, x.dtype, dtype, how, plan, [a - x.ndim for a in axes])
    return _call(results, (x,), words)


def backward(grad: Array, offsets: Any, plan: Plan, axes: Sequence[int], how: tuple[Any, ...]) -> Array:
    """The gradient of the input; `offsets` is None for sums."""
    shape = with_sizes(grad.shape, axes, plan.sizes)
    extra = NO_EXTRA if offsets is None else OFFSET8 if offsets.dtype == np.uint8 else OFFSET32
    words = _words(1, extra, grad.dtype, grad.dtype, how, plan, [a - grad.ndim for a in axes])
    arrays = (grad,) if offsets is None else (grad, offsets)
    return _call([jax.ShapeDtypeStruct(shape, grad.dtype)], arrays, words)[0]


@cache
def _register() -> None:
    jax.ffi.register_ffi_target(_TARGET, core.jax_handler(), platform="cpu")


def _call(results: Any, arrays: tuple[Array, ...], words: NDArray[np.int64]) -> Any:
    _register()
    return jax.ffi.ffi_call(_TARGET, results)(*arrays, call=words)


def _words(
    direction: int, extra: int, own: Any, result: Any, how: tuple[Any, ...], plan: Plan, axes: Sequence[int]
) -> NDArray[np.int64]:
    op, divide, divisor, norm = how
    codes = (DTYPES.index(np.dtype(own).name), DTYPES.index(np.dtype(result).name))
    bits = int(np.float64(norm).view(np.int64))
    head = [_VERSION, direction, op, extra, *codes, int(divide), divisor, bits, len(axes)]
    parts: list[Any] = [head]
    for axis, a in zip(plan.axes, axes, strict=True):
        front, kernel = axis.tap_range()
        origin = axis.origin + front * axis.step
        parts.append([a, axis.size, axis.out, kernel, axis.stride, axis.step, origin, *axis.bounds])
        parts.append([axis.kernel, front])
        if axis.starts is None or axis.counts is None:
            parts.append([0])
        else:
            parts += [[axis.out], axis.starts, axis.counts]
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
