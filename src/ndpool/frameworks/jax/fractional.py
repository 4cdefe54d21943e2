"""Fractional pooling: windows that samples place, in each plane its own, known only when a program runs."""

from __future__ import annotations

from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ndpool.frameworks.jax.windows import first_maxima


def fractional_indices(x: Array, samples: Array, kernel: tuple[int, ...], outs: tuple[int, ...]) -> Array:
    """The index of the maximum of each window; samples (..., axes) are those of the planes of `x`."""
    n = len(kernel)
    dtype: Any = np.int64 if prod(x.shape[-n:]) >= 2**31 else np.int32
    value, code, pitch = x, jnp.zeros((1,) * x.ndim, dtype), 1
    for a in reversed(range(n)):
        # In 2-D the first sample belongs to the last axis.
        sample = samples[..., a if n == 3 else n - 1 - a]
        size, k, out, at = x.shape[a - n], kernel[a], outs[a], x.ndim - n + a
        starts = _starts(sample, size, k, out).astype(dtype)
        places = (starts[..., None] + jnp.arange(k, dtype=dtype)).reshape(*starts.shape[:-1], out * k)
        places = places.reshape(
            *places.shape[:-1], *[-1 if i == at else 1 for i in range(x.ndim - n, x.ndim)]
        )
        taken, numbers = (_taken(t, places, at, k) for t in (value, code * 1))
        steps = _taken(jnp.arange(size, dtype=dtype).reshape(_only(at, x.ndim)), places, at, k)
        value, code = first_maxima(taken, numbers + steps * pitch, at + 1, pitch * size)
        pitch *= size
    return code


def _only(a: int, ndim: int) -> list[int]:
    return [-1 if i == a else 1 for i in range(ndim)]


def _taken(x: Array, places: Array, a: int, k: int) -> Array:
    """Elements along axis `a`, in windows of `k` that become the axis after it."""
    if x.shape[a] == 1 and x.ndim == sum(n == 1 for n in x.shape):
        return jnp.expand_dims(x, a)  # one number for all
    lead = np.broadcast_shapes(
        *(tuple(1 if i == a else n for i, n in enumerate(t.shape)) for t in (x, places))
    )
    shapes = [tuple(t.shape[a] if i == a else n for i, n in enumerate(lead)) for t in (x, places)]
    got = jnp.take_along_axis(
        jnp.broadcast_to(x, shapes[0]), jnp.broadcast_to(places, shapes[1]), a, mode="clip"
    )
    return got.reshape(*got.shape[:a], got.shape[a] // k, k, *got.shape[a + 1 :])


def _starts(sample: Array, size: int, k: int, out: int) -> Array:
    """First elements of the windows of each plane, computed in the samples' precision as in PyTorch."""
    last = jnp.full((*sample.shape, 1), size - k, np.int32 if size < 2**31 else np.int64)
    if out < 2:
        return last
    own = sample.dtype
    wide = sample.astype(np.float32) if own.itemsize == 2 else sample
    narrow = (lambda t: t) if own.itemsize != 2 else _rounding(own)
    whole, gaps, steps = (
        np.asarray(value).astype(own).astype(wide.dtype) for value in (size - k, out - 1, np.arange(out - 1))
    )
    with np.errstate(over="ignore"):
        alpha = (whole / gaps).astype(own).astype(wide.dtype)
    base = narrow(wide * alpha)[..., None]
    places = narrow(narrow(steps + wide[..., None]) * alpha)
    starts = places.astype(last.dtype) - base.astype(last.dtype)
    # Neither rounding nor a sample outside [0, 1] moves a window beyond the input.
    return jnp.concatenate([jnp.clip(starts, 0, size - k), last], -1)


def _rounding(dtype: Any) -> Any:
    """Rounding to a narrow dtype that the compiler keeps."""
    info = jnp.finfo(dtype)
    return lambda t: lax.reduce_precision(t, info.nexp, info.nmant)
