"""Pooling of Dask arrays next to what people use today: `coarsen`, xarray, scikit-image, `map_overlap`.

All contestants pool the same chunks, which are in memory already, and throw their results away chunk by
chunk, so that neither reading nor storing is timed. They run in one process and in a new random order in each
round, after their answers were compared on a smaller array of the same kind.

    python benchmarks/dask_speed.py --gib 4 --rounds 5 --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
from collections.abc import Callable
from importlib.metadata import version
from itertools import product
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np
import xarray
from scipy.ndimage import maximum_filter
from skimage.measure import block_reduce

import ndpool

DISTINCT = 8  # chunks in memory, 64 MiB each; an array refers to them in turn


class Nowhere:
    """A store that keeps nothing."""

    def __setitem__(self, place: Any, values: Any) -> None:
        """Throw a chunk away."""


def lazy(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: Any = np.float32, distinct: int = DISTINCT
) -> Any:
    """An array whose chunks are a few random blocks in memory, again and again."""
    rng = np.random.default_rng(0)
    blocks = [rng.random(chunk, np.float32).astype(dtype, copy=False) for _ in range(distinct)]
    counts = tuple(n // c for n, c in zip(shape, chunk, strict=True))
    graph = {
        ("blocks", *at): blocks[i % distinct] for i, at in enumerate(product(*(range(n) for n in counts)))
    }
    chunks = tuple((c,) * n for c, n in zip(chunk, counts, strict=True))
    return da.Array(graph, "blocks", chunks, dtype=dtype)


def means() -> dict[str, Callable[[Any], Any]]:
    """2x2x2 means of a volume."""
    axes = {0: 2, 1: 2, 2: 2}

    def reduced(x: Any) -> Any:
        chunks = tuple(tuple(n // 2 for n in along) for along in x.chunks)
        return x.map_blocks(block_reduce, (2, 2, 2), np.mean, chunks=chunks, dtype=x.dtype)

    return {
        "ndpool": lambda x: ndpool.pool(x, (2, 2, 2), reduce="avg"),
        "dask.array.coarsen": lambda x: da.coarsen(np.mean, x, axes),
        "xarray coarsen": lambda x: (
            xarray.DataArray(x, dims=("z", "y", "x")).coarsen(z=2, y=2, x=2).mean().data
        ),
        "scikit-image block_reduce, map_blocks": reduced,
    }


def maxima() -> dict[str, Callable[[Any], Any]]:
    """3x3 maxima at stride 1 of a picture."""
    return {
        "ndpool": lambda x: ndpool.pool(x, (3, 3), stride=1, padding=1),
        "SciPy maximum_filter, map_overlap": lambda x: x.map_overlap(
            maximum_filter, depth=1, boundary="none", size=3, mode="nearest", dtype=x.dtype
        ),
    }


CASES: dict[str, tuple[Callable[[], dict[str, Callable[[Any], Any]]], tuple[int, ...]]] = {
    "2x2x2 mean, volume": (means, (256, 256, 256)),
    "3x3 max, stride 1": (maxima, (4096, 4096)),
}


def shape_of(chunk: tuple[int, ...], size: float) -> tuple[int, ...]:
    """A shape of whole chunks with about `size` bytes, as even as it can be."""
    counts = [1] * len(chunk)
    while prod(counts) * prod(chunk) * 4 < size:
        counts[counts.index(min(counts))] *= 2
    return tuple(n * c for n, c in zip(counts, chunk, strict=True))


def check(contestants: dict[str, Callable[[Any], Any]], n_axes: int) -> None:
    """Fail unless all contestants agree on a small array of several chunks."""
    x = lazy((48,) * n_axes, (16,) * n_axes)
    want = contestants["ndpool"](x.compute())
    for name, pool in contestants.items():
        np.testing.assert_allclose(pool(x).compute(), want, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(contestants["ndpool"](x).compute(), want)


def measure(case: str, gib: float, rounds: int, threads: int) -> dict[str, Any]:
    """Seconds of every contestant in every round."""
    make, chunk = CASES[case]
    contestants = make()
    check(contestants, len(chunk))
    x = lazy(shape_of(chunk, gib * 2**30), chunk)
    results = {name: pool(x) for name, pool in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in results}
    for _ in range(rounds):
        for name in random.sample(sorted(results), len(results)):
            start = perf_counter()
            da.store(results[name], Nowhere(), lock=False, scheduler="threads", num_workers=threads)
            times[name].append(perf_counter() - start)
    best = min((median(t), name) for name, t in times.items() if name != "ndpool")
    own = median(times["ndpool"])
    print(f"\n{case}, {x.nbytes / 2**30:.0f} GiB {x.dtype} in {x.npartitions} chunks, {threads} threads")
    for name, seconds in times.items():
        print(f"  {name:40} {median(seconds):8.2f} s {x.nbytes / 1e9 / median(seconds):8.2f} GB/s")
    print(f"  ndpool is {best[0] / own:.1f} times as fast as the fastest other, {best[1]}")
    return {"shape": x.shape, "chunks": chunk, "seconds": times, "factor": best[0] / own}


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4, help="size of the array in GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", help="file to write results to")
    args = parser.parse_args()
    results = {case: measure(case, args.gib, args.rounds, args.threads) for case in CASES}
    if args.json:
        names = ("ndpool", "dask", "xarray", "scikit-image", "scipy", "numpy")
        found = {"machine": platform.machine(), "threads": args.threads, **{n: version(n) for n in names}}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"versions": found, "cases": results}, file, indent=1)


if __name__ == "__main__":
    main()
