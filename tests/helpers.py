"""Helpers of several test files: fresh processes, the oracle for any axes, difficult values, comparisons.

AddressSanitizer allocates memory in the process, so tests that measure memory are skipped under it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oracle
from cases import as_tuple, same_bits
from ndpool import geometry
from oracle import Array, Plan

not_sanitized = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer's memory would be counted"
)


HANG = 1800  # seconds after which a process counts as hanging, even on a busy machine


def run_python(code: str | Path, *arguments: str, **environment: str) -> str:
    """The output of a new interpreter that runs this code or file; a failure shows its error output."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NDPOOL_")}
    done = subprocess.run(
        [sys.executable, *(["-c", code] if isinstance(code, str) else [str(code)]), *arguments],
        env=kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"
    return done.stdout


def on_axes(
    solve: Callable[..., Any], x: Array, axes: Sequence[int], *args: Any, **kwargs: Any
) -> tuple[Array, ...]:
    """The oracle's result for any axes, which are moved to the end in the given order and back."""
    last = range(-len(axes), 0)
    result = solve(np.moveaxis(x, axes, last), *args, **kwargs)
    return tuple(np.moveaxis(r, last, axes) for r in as_tuple(result))


def hard_values(shape: Sequence[int], dtype: Any, seed: int = 0, special: float = 0.02) -> Array:
    """Values with many ties; a fraction of floats is NaN, infinite or negative zero."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        low, high = (max(-99, np.iinfo(dtype).min), 100)
        return rng.integers(low, high, shape).astype(dtype)
    x = rng.integers(-8, 9, shape) / 4
    odd = rng.random(shape) < special
    x[odd] = rng.choice([np.nan, np.inf, -np.inf, -0.0], int(odd.sum()))
    return x.astype(dtype)


def epsilon(dtype: Any) -> float:
    """The machine epsilon of a floating dtype, including bfloat16."""
    return float(ml_dtypes.finfo(dtype).eps)


def plain(shape: Sequence[int], dtype: Any = float, seed: int = 0) -> Array:
    """Quarters from -4 to 4: sums of a few thousand are exact in float32."""
    return (np.random.default_rng(seed).integers(-16, 17, shape) / 4).astype(dtype)


def small(shape: Sequence[int], dtype: Any, seed: int = 0, low: int = -2) -> Array:
    """Integers up to 2: sums of hundreds are exact in every dtype."""
    return np.random.default_rng(seed).integers(low, 3, shape).astype(dtype)


def inner(a: Array, b: Array) -> float:
    """The inner product, in float64."""
    return float((a.astype(np.float64) * b.astype(np.float64)).sum())


def assert_exact(
    got: Array | tuple[Array, ...], want: Array | tuple[Array, ...], signs: bool = False
) -> None:
    """Fail unless dtypes, shapes and bits are equal; NaNs are equal; without indices zeros have any sign."""
    for have, need in zip(as_tuple(got), as_tuple(want), strict=True):
        assert (have.dtype, have.shape) == (need.dtype, need.shape)
        zeros = len(as_tuple(got)) == 1 and not signs
        wrong = np.argwhere(~same_bits(np.ascontiguousarray(have), np.ascontiguousarray(need), zeros))
        at = tuple(map(int, wrong[0])) if len(wrong) else ()
        assert len(wrong) == 0, f"{have[at]}, not {need[at]}, at {at}"


def assert_close(got: Array, want: Array, taps: int, magnitude: Any = None) -> None:
    """Fail unless equal up to one rounding of the sum of magnitudes per tap, and one of the result."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    eps = epsilon(want.dtype)
    have, need = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(need) if magnitude is None else magnitude
    slack = (taps + 4) * min(eps, epsilon(np.float32)) * size + eps * np.abs(need)
    wrong = np.argwhere(~(np.abs(have - need) <= slack))
    at = tuple(map(int, wrong[0])) if len(wrong) else ()
    assert len(wrong) == 0, f"{have[at]}, not {need[at]}, at {at}"


GEOMETRIES = {  # sliding: kernel, stride, padding, dilation, ceil_mode; adaptive: output size
    "strided": (3, 2, 1, 1, False),
    "overlapping": (5, 1, 2, 1, False),
    "dilated": (3, 2, 1, 2, False),
    "ceil": (3, 3, 0, 1, True),
    "gaps": (2, 4, 0, 1, False),
    "far": (2, 17, 1, 1, True),
    "fewer": 4,
    "more": 12,
}


def plans(windows: Any, sizes: tuple[int, ...]) -> tuple[geometry.Plan, Plan]:
    """The plan of the package and of the oracle, for an entry of `GEOMETRIES`."""
    n = len(sizes)
    if isinstance(windows, int):
        return geometry.adaptive("f", sizes, windows), oracle.adaptive_plan(sizes, [windows] * n)
    kernel, *rest = windows
    return geometry.sliding("f", sizes, kernel, *rest, strict=False), oracle.sliding_plan(
        sizes, [kernel] * n, *rest
    )


def routed_functions() -> list[tuple[Any, str]]:
    """The functions that `ndpool.torch.patch` replaces, as (module, name)."""
    import torch

    import ndpool.torch

    found = []
    for module in (torch.nn.functional, torch):
        before = dict(vars(module))
        with ndpool.torch.patch():
            found += [(module, name) for name, value in vars(module).items() if before[name] is not value]
    return found


def run_child(code: str) -> tuple[int, list[str], str]:
    """The exit status, output lines and error output of a new interpreter, which may crash."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr
