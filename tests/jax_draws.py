"""Random calls on JAX arrays against the oracle: by the core and by `jax.lax`, eager and compiled.

`test_jax.py` draws some; `python tests/jax_draws.py 5000` draws as many as asked for and prints their number.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import cases
import ndpool
import oracle
from ndpool.frameworks.jax import native
from oracle import Array, is_float

WAYS = ("core", "lax", "fused")  # fused: what other devices run, on the CPU


@contextlib.contextmanager
def way(name: str) -> Iterator[None]:
    """Within the block calls go this way."""
    before = native.enabled, native.fused
    native.enabled, native.fused = name == "core", name == "fused"
    try:
        yield
    finally:
        native.enabled, native.fused = before


def put(value: Any) -> Any:
    """Arrays as JAX arrays."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def function(case: cases.Case) -> Callable[[Any], tuple[Any, ...]]:
    """The call of a case as a function of its array."""
    args, kwargs = [put(a) for a in case.args], {key: put(a) for key, a in case.kwargs.items()}
    return lambda x: cases.as_tuple(getattr(ndpool, case.name)(x, *args, **kwargs))


def run(batch: Sequence[cases.Case], jitted: bool) -> list[tuple[Array, ...]]:
    """The results of cases as NumPy arrays; compiled, they are one program."""
    calls = [function(case) for case in batch]

    def everything(xs: list[Any]) -> list[Any]:
        return [f(x) for f, x in zip(calls, xs, strict=True)]

    results = (jax.jit(everything) if jitted else everything)([put(case.array()) for case in batch])
    return [tuple(map(np.asarray, result)) for result in results]


def without_subnormals(case: cases.Case) -> cases.Case:
    """The case without the numbers that XLA's own operations take for zero on the CPU."""
    x = case.values
    if not is_float(x.dtype):
        return case
    small = np.abs(x.astype(np.float64)) < float(ml_dtypes.finfo(x.dtype).smallest_normal)
    return replace(case, values=np.where(small, np.copysign(0, x), x).astype(x.dtype))


def same_zero(got: tuple[Array, ...], want: tuple[Array, ...]) -> tuple[Array, ...]:
    """The results, with the wanted sign of zeros, which is not promised without indices."""
    if len(want) > 1 or not is_float(want[0].dtype) or got[0].shape != want[0].shape:
        return got
    return (np.where((got[0] == 0) & (want[0] == 0), want[0], got[0]).astype(got[0].dtype),)


def check(batch: Sequence[cases.Case], jitted: bool) -> None:
    """Fail unless all results equal the oracle's."""
    for case, got in zip(batch, run(batch, jitted), strict=True):
        want = case.call_oracle()
        cases.assert_same(same_zero(got, want), want, case)


def check_gradients(batch: Sequence[cases.Case], rng: np.random.Generator) -> None:
    """Fail unless the gradients of the inputs, in float64, equal the oracle's."""
    batch = [case for case in (differentiable(case, rng) for case in batch) if case is not None]
    grads = [rng.integers(-9, 10, case.solve()[0].shape).astype(np.float64) for case in batch]
    calls = [function(case) for case in batch]

    def everything(xs: list[Any], grads: list[Any]) -> list[Any]:
        return [
            jax.vjp(lambda x: f(x)[0], x)[1](grad)[0]  # noqa: B023
            for f, x, grad in zip(calls, xs, grads, strict=True)
        ]

    results = jax.jit(everything)([put(case.array()) for case in batch], [put(grad) for grad in grads])
    for case, grad, result in zip(batch, grads, results, strict=True):
        got, want = np.asarray(result), case.oracle_gradient(grad)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        close = 0 if "max" in case.name else 1e-11
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=close, err_msg=str(case))


def differentiable(case: cases.Case, rng: np.random.Generator) -> cases.Case | None:
    """The case in float64; None if the oracle has no gradient, as of a window without an element."""
    case = case.in_float64()
    if case.family == "lp_pool":
        case = replace(case, values=rng.uniform(0.5, 3, case.values.shape))
    if case.family == "max_pool":
        plan = oracle.sliding_plan(case.values.shape, **case.operands())
        if not all(window.positions for axis in plan for window in axis):
            return None
    return case


def draw(rng: np.random.Generator, name: str) -> cases.Case:
    """A case whose dtype the function supports."""
    while True:
        case = cases.draw(rng, name, beyond=True)
        if case.values.dtype != bool or "avg" not in name:
            return case


def main(count: int, seed: int = 0, together: int = 20) -> None:
    """Check this many cases, eager and compiled, a third of their gradients, some of both by `jax.lax`."""
    rng, faults = np.random.default_rng(seed), 0
    done = {(name, kind): 0 for name in WAYS for kind in ("eager", "jit", "gradient")}
    with jax.enable_x64(True):
        for i in range(0, count, together):
            batch = [draw(rng, cases.NAMES[(i + j) % len(cases.NAMES)]) for j in range(together)]
            batch = [
                without_subnormals(case) if case.family == "fractional_max_pool" else case for case in batch
            ]
            for name, kind in done:
                if (name != "core" or kind == "gradient") and i // together % 3:
                    continue
                part = [without_subnormals(case) for case in batch] if name != "core" else batch
                part = part[i // together % 4 :: 4] if name != "core" else part  # which takes long to compile
                try:
                    with way(name):
                        check_gradients(part, rng) if kind == "gradient" else check(part, kind == "jit")
                    done[name, kind] += len(part)
                except Exception as error:
                    faults += 1
                    print(name, kind, i, type(error).__name__, str(error)[:900], flush=True)
            if i // together % 10 == 9:
                print(i + together, done, "faults", faults, flush=True)
                jax.clear_caches()
    print(f"{count} cases, {sum(done.values())} checks equal to the oracle: {done}; faults: {faults}")


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(int, sys.argv[2:3]))
