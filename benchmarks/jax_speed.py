"""JAX on its default device: ndpool next to `lax.reduce_window`, both inside `jax.jit`, forward and gradient.

The cases are those of `ndpool bench` with 2x2, 3x3 and 7x7 windows, in both memory layouts. Answers are
compared first; then the contestants run in one process, in shuffled order, and medians are printed.

    python benchmarks/jax_speed.py
    python benchmarks/jax_speed.py --case vgg --rounds 31 --json results.json
    python benchmarks/jax_speed.py --batch 16 --calls 20 --one-each  # a GPU: larger batches, bursts
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from importlib.metadata import version
from math import exp, log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ndpool
from ndpool._bench.cases import Case, select
from ndpool._bench.peers import Jax, JaxChannelsLast

FORMAT = "ndpool jax 1"
GROUPS = ("max 2x2 s2", "max 3x3 s2", "max 3x3 s1", "max 7x7 s1", "avg 2x2 s2", "avg 3x3 s1", "avg k x k s1")
KERNELS = (2, 3, 7)


def cases(pattern: str | None, one_each: bool = False) -> list[Case]:
    """The cases with these windows that take part; with `one_each` the first of a group and layout alone."""
    found = [case for case in select(pattern) if case.group.startswith(GROUPS) and case.mode == "values"]
    found = [case for case in found if case.arguments["kernel_size"] in KERNELS and case.dtype == "float32"]
    first = {(case.group, case.layout): case for case in reversed(found)}
    return [case for case in found if not one_each or first[case.group, case.layout] is case]


def contestants(case: Case) -> dict[str, Callable[[Any], Any]]:
    """The pools of a case, as functions of one array in its memory layout."""
    last = case.layout == "NHWC"
    theirs = (JaxChannelsLast if last else Jax).pool((JaxChannelsLast if last else Jax)(1), case)
    given = dict(case.arguments)
    if last:
        window = (given.pop("kernel_size"),) * 2
        return {
            "reduce_window": theirs,
            "ndpool": lambda x: ndpool.pool(x, window, axes=(1, 2), reduce=case.reduction, **given),
        }
    return {"reduce_window": theirs, "ndpool": lambda x: getattr(ndpool, case.function)(x, **given)}


def gradient(pool: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """The gradient of the input, given that of the result."""
    return lambda x, grad: jax.vjp(pool, x)[1](grad)[0]


def times(calls: dict[str, Callable[[], Any]], rounds: int, burst: int) -> dict[str, float]:
    """Medians in milliseconds a call, in rounds of shuffled order, each of a burst of calls."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for name in calls:
        calls[name]().block_until_ready()
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            calls[name]().block_until_ready()  # untimed: memory and caches as in a burst of calls
            start = perf_counter()
            for _ in range(burst):
                last = calls[name]()
            last.block_until_ready()
            taken[name].append((perf_counter() - start) / burst)
    return {name: 1e3 * median(values) for name, values in taken.items()}


def measure(case: Case, rounds: int, batch: int, burst: int) -> list[dict[str, Any]]:
    """Forward and gradient of a case, answers compared first."""
    shape = case.shape if case.layout == "NCHW" else (case.shape[0], *case.shape[2:], case.shape[1])
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (batch * shape[0], *shape[1:]), np.float32)
    pools = contestants(case)
    grad = jax.random.normal(keys[1], jax.eval_shape(pools["ndpool"], x).shape, np.float32)
    rows = []
    for mode, inputs in (("forward", (x,)), ("gradient", (x, grad))):
        row: dict[str, Any] = {"case": case.name, "group": case.group, "mode": mode}
        calls, answers = {}, {}
        for name, pool in pools.items():
            start = perf_counter()
            run = jax.jit(pool if mode == "forward" else gradient(pool)).lower(*inputs).compile()
            row[f"{name} compile s"] = perf_counter() - start
            calls[name] = lambda run=run, inputs=inputs: run(*inputs)
            answers[name] = run(*inputs)
        if not jnp.allclose(answers["ndpool"], answers["reduce_window"], rtol=1e-4, atol=1e-4):
            raise AssertionError(f"{case.name}: the answers of {mode} differ")
        del answers
        rows.append(row | times(calls, rounds, burst))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="part of a case's name, network or group")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=1, help="times the batch of each case")
    parser.add_argument("--calls", type=int, default=1, help="calls in a burst")
    parser.add_argument("--one-each", action="store_true", help="one case of each kind of window and layout")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'case':24}{'mode':10}{'reduce_window ms':>18}{'ndpool ms':>12}{'times':>8}{'compile s':>14}")
    for case in cases(options.case, options.one_each):
        for row in measure(case, options.rounds, options.batch, options.calls):
            row["times"] = row["reduce_window"] / row["ndpool"]
            rows.append(row)
            figures = f"{row['reduce_window']:18.3f}{row['ndpool']:12.3f}{row['times']:8.2f}"
            compiled = f"{row['reduce_window compile s']:8.2f}{row['ndpool compile s']:6.2f}"
            print(f"{row['case']:24}{row['mode']:10}{figures}{compiled}", flush=True)
    for mode in ("forward", "gradient"):
        ratios = [row["times"] for row in rows if row["mode"] == mode]
        mean = exp(sum(map(log, ratios)) / len(ratios))
        print(f"{mode}: {mean:.2f} times (geometric mean of {len(ratios)}), least {min(ratios):.2f}")
    if options.json:
        device = jax.devices()[0]
        about = {"jax": version("jax"), "device": device.device_kind, "platform": device.platform}
        about |= {"batch": options.batch, "calls": options.calls}
        if device.platform == "cpu":
            about["threads"] = ndpool.get_num_threads()
        options.json.write_text(
            json.dumps({"format": FORMAT, "about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
