"""CuPy arrays on a GPU: what a call costs over the same call of a tensor, and next to cupyx.scipy.ndimage.

Answers are compared first. Contestants run in turns, in shuffled order; medians over the rounds are printed
and, with --json, written together with what they were measured on.

    python benchmarks/cupy_speed.py --json results.json
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import cupy
import numpy as np
import torch
from cupyx.scipy import ndimage

import ndpool

FORMAT = "ndpool cupy 1"
ROUNDS = 15
# Small enough that the host is what takes time.
CALLS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "max_pool2d(x, 2)": (lambda x: ndpool.max_pool2d(x, 2), (8, 64, 16, 16)),
    "max_pool2d(x, 3, 2, 1)": (lambda x: ndpool.max_pool2d(x, 3, 2, 1), (8, 64, 17, 17)),
    "max_pool2d(x, 2, return_indices=True)": (
        lambda x: ndpool.max_pool2d(x, 2, return_indices=True),
        (8, 64, 16, 16),
    ),
    "avg_pool2d(x, 2)": (lambda x: ndpool.avg_pool2d(x, 2), (8, 64, 16, 16)),
    "adaptive_avg_pool2d(x, 1)": (lambda x: ndpool.adaptive_avg_pool2d(x, 1), (8, 64, 14, 14)),
    "max_pool3d(x, 2)": (lambda x: ndpool.max_pool3d(x, 2), (2, 16, 8, 8, 8)),
    "pool(x, 2, axes=(0, 1))": (lambda x: ndpool.pool(x, 2, axes=(0, 1)), (64, 64, 3)),
}
# Windows that filters compute, too: odd, centred, every stride-th one; shapes of stacks of images.
FILTERS = [
    (reduce, kernel, stride, shape)
    for shape in ((16, 1, 1024, 1024), (1, 3, 2160, 3840))
    for reduce in ("max", "avg")
    for kernel, stride in ((3, 1), (3, 2), (7, 1), (15, 1))
]


def filtered(reduce: str, kernel: int, stride: int, x: Any) -> Any:
    """The same as a filter over the whole array, of which every stride-th element is kept."""
    size = (1,) * (x.ndim - 2) + (kernel, kernel)
    if reduce == "max":
        y = ndimage.maximum_filter(x, size, mode="constant", cval=-np.inf)
    else:
        y = ndimage.uniform_filter(x, size, mode="constant", cval=0)
    return y[..., ::stride, ::stride]


def pooled(reduce: str, kernel: int, stride: int, x: Any) -> Any:
    """The pool that a filter is compared with."""
    function = ndpool.max_pool2d if reduce == "max" else ndpool.avg_pool2d
    return function(x, kernel, stride, kernel // 2)


def in_turns(contestants: dict[str, Callable[[], Any]], calls: int, wait: bool) -> dict[str, float]:
    """Median seconds a call; with `wait` the time until the device is done, else that of the host."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name in random.sample(list(contestants), len(contestants)):
            call = contestants[name]
            call()
            torch.cuda.synchronize()
            begin = perf_counter()
            for _ in range(calls):
                call()
            if wait:
                torch.cuda.synchronize()
            times[name].append((perf_counter() - begin) / calls)
            torch.cuda.synchronize()
    return {name: median(found) for name, found in times.items()}


def by_hand(call: Callable[[Any], Any], x: Any) -> Any:
    """What a user would write without ndpool's support of CuPy."""
    result = call(torch.from_dlpack(x))
    return tuple(map(cupy.from_dlpack, result)) if isinstance(result, tuple) else cupy.from_dlpack(result)


def overhead(stream: Any) -> list[dict[str, Any]]:
    """Host time of small calls of arrays and of tensors, on a stream of CuPy."""
    rows = []
    for name, (call, shape) in CALLS.items():
        tensor = torch.randn(shape, device="cuda")
        torch.cuda.synchronize()
        array = cupy.from_dlpack(tensor)
        with stream:
            got, want = call(array), call(tensor)
            stream.synchronize()
            torch.cuda.synchronize()
            for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
                np.testing.assert_array_equal(cupy.asnumpy(a), b.cpu().numpy())
            contestants = {
                "tensor": partial(call, tensor),
                "array": partial(call, array),
                "by hand": partial(by_hand, call, array),
            }
            times = in_turns(contestants, 200, wait=False)
        rows.append({"call": name, "shape": shape} | {key: time * 1e6 for key, time in times.items()})
    return rows


def filters() -> list[dict[str, Any]]:
    """Time until the device is done, next to filters."""
    rows = []
    for reduce, kernel, stride, shape in FILTERS:
        x = cupy.random.default_rng(0).random(shape, dtype=cupy.float32) - 0.5
        arguments = (reduce, kernel, stride, x)
        got, want = map(cupy.asnumpy, (pooled(*arguments), filtered(*arguments)))
        if reduce == "max":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
        contestants = {"ndpool": partial(pooled, *arguments), "cupyx": partial(filtered, *arguments)}
        times = in_turns(contestants, 5, wait=True)
        row: dict[str, Any] = {"reduce": reduce, "kernel": kernel, "stride": stride, "shape": shape}
        rows.append(row | {key: time * 1e6 for key, time in times.items()})
    return rows


def installed() -> dict[str, str]:
    """The versions of what was measured."""
    found = {}
    for package in ("torch", "triton", "cupy", "cupy-cuda12x", "cupy-cuda13x", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    random.seed(0)
    document: dict[str, Any] = {
        "format": FORMAT,
        "device": torch.cuda.get_device_name(),
        "versions": installed(),
    }
    streams = {"null": cupy.cuda.Stream.null, "own": cupy.cuda.Stream(non_blocking=True)}
    print(document)
    document["overhead"] = []
    print(f"\n{'host time of a call, us':48} stream  tensor   array  more  by hand")
    for stream_name, stream in streams.items():
        for row in overhead(stream):
            document["overhead"].append({"stream": stream_name} | row)
            print(
                f"{row['call']:48} {stream_name:6} {row['tensor']:7.2f} {row['array']:7.2f} "
                f"{row['array'] - row['tensor']:5.2f} {row['by hand']:8.2f}"
            )
    print(f"\n{'time of a call, us':48} ndpool     cupyx  ratio")
    document["filters"] = filters()
    for row in document["filters"]:
        name = f"{row['reduce']} {row['kernel']}x{row['kernel']} stride {row['stride']} of {row['shape']}"
        print(f"{name:48} {row['ndpool']:6.1f} {row['cupyx']:9.1f} {row['cupyx'] / row['ndpool']:6.1f}")
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
