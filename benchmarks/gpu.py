"""Times the CUDA kernels beside PyTorch's: share of copy bandwidth, and how many times eager.

Needs no compiled core. Every answer is checked before it is timed; times are those of a CUDA graph that is
replayed after the cache was flushed. With PART/PARTS every n-th case is called once, which fills the cache
of compiled kernels from several processes at a time.

    PYTHONPATH=src python3 benchmarks/gpu.py RESULTS.json [PART/PARTS]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import ndpool

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
# name, function, shape, arguments, what is timed: forward, with offsets, with indices, backward
CASES = [
    ("max 2x2 s2", "max_pool2d", (32, 64, 224, 224), (2,), "fob"),
    ("avg 2x2 s2", "avg_pool2d", (32, 64, 224, 224), (2,), "fb"),
    ("max 3x3 s2 p1", "max_pool2d", (256, 64, 112, 112), (3, 2, 1), "fob"),
    ("max 5x5 s1 p2", "max_pool2d", (256, 512, 20, 20), (5, 1, 2), "fb"),
    ("max 7x7 s1 p3", "max_pool2d", (32, 64, 112, 112), (7, 1, 3), "fb"),
    ("max 13x13 s1 p6", "max_pool2d", (32, 64, 112, 112), (13, 1, 6), "fb"),
    ("max 31x31 s1 p15", "max_pool2d", (32, 64, 112, 112), (31, 1, 15), "f"),
    ("avg 3x3 s1 p1", "avg_pool2d", (256, 64, 56, 56), (3, 1, 1), "fb"),
    ("adaptive avg 7 to 1", "adaptive_avg_pool2d", (256, 2048, 7, 7), (1,), "fb"),
    ("adaptive avg 56 to 7", "adaptive_avg_pool2d", (64, 512, 56, 56), (7,), "fb"),
    ("adaptive avg 61x53 to 6", "adaptive_avg_pool2d", (64, 512, 61, 53), (6,), "fb"),
    ("adaptive max 7 to 1", "adaptive_max_pool2d", (256, 2048, 7, 7), (1,), "fib"),
    ("adaptive max 56 to 7", "adaptive_max_pool2d", (64, 512, 56, 56), (7,), "fib"),
    ("adaptive max 61x53 to 6", "adaptive_max_pool2d", (64, 512, 61, 53), (6,), "fib"),
    ("max 3-D 2", "max_pool3d", (4, 64, 32, 112, 112), (2,), "fb"),
    ("avg 3-D 2", "avg_pool3d", (4, 64, 32, 112, 112), (2,), "fb"),
    ("max 1-D 3 s2", "max_pool1d", (256, 512, 2048), (3, 2), "fb"),
    ("max 3x3 s2 p1 odd", "max_pool2d", (256, 64, 111, 111), (3, 2, 1), "fb"),
    ("max 2x2 s2 small", "max_pool2d", (1, 3, 8, 8), (2,), "f"),
]


class Timing(NamedTuple):
    """One line of the table: our call and PyTorch's, and the bytes that must move."""

    key: dict[str, str]
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    size: int
    exact: bool


def values(name: str, x: torch.Tensor, args: Any, module: Any) -> torch.Tensor:
    """The pooled values alone, without a graph."""
    return getattr(module, name)(x, *args).detach()


def indices(name: str, x: torch.Tensor, args: Any, module: Any) -> torch.Tensor:
    """The indices of the values."""
    return getattr(module, name)(x, *args, return_indices=True)[1]


def gradient(y: torch.Tensor, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of the input."""
    return torch.autograd.grad(y, x, grad, retain_graph=True)[0]


def timings(case: Any, dtype: str, last: bool) -> Iterator[Timing]:
    """What is timed of a case in one dtype and format."""
    title, name, shape, args, kinds = case
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(DTYPES[dtype])
    x = x.contiguous(memory_format=FORMATS[len(shape)]) if last else x
    leaf = x.detach().requires_grad_()
    y = values(name, x, args, F)
    item, both, exact = x.element_size(), (ndpool, F), "max" in name
    moved = (x.numel() + y.numel()) * item
    key = {"case": title, "dtype": dtype, "layout": "channels-last" if last else "contiguous"}
    if "f" in kinds:
        calls = (partial(values, name, x, args, module) for module in both)
        yield Timing(key | {"what": "forward"}, *calls, moved, exact)
    if "o" in kinds:
        calls = (partial(values, name, leaf, args, module) for module in both)
        yield Timing(key | {"what": "forward, offsets kept"}, *calls, moved + y.numel(), exact)
    if "i" in kinds:
        calls = (partial(indices, name, x, args, module) for module in both)
        yield Timing(key | {"what": "forward, indices"}, *calls, moved + 8 * y.numel(), exact)
    if "b" in kinds:
        grad = torch.randn_like(y)
        calls = (partial(gradient, getattr(module, name)(leaf, *args), leaf, grad) for module in both)
        yield Timing(key | {"what": "backward"}, *calls, moved + (y.numel() if exact else 0), False)


def runs(cases: Any) -> Iterator[Timing]:
    """All timings, one tensor in memory at a time."""
    for case in cases:
        for dtype in DTYPES:
            for last in (False, True) if len(case[2]) in FORMATS else (False,):
                yield from timings(case, dtype, last)
                torch.cuda.empty_cache()


def median(call: Callable[[], Any], flush: torch.Tensor) -> float:
    """Milliseconds of device time."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call()
    times: list[float] = []
    while len(times) < 7 or (sum(times) < 15 and len(times) < 40):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def host(call: Callable[[], Any]) -> float:
    """Microseconds of the host per call."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(300):
        call()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return took / 300 * 1e6


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal but for the rounding of sums in another order; PyTorch's gradients may be sums of halves."""
    near = 1e-5 if got.dtype is torch.float32 else 2e-2
    return torch.allclose(got.float(), want.float(), rtol=near, atol=near)


def main(path: str, part: str = "") -> None:
    """The table, as text and as a file."""
    if part:
        i, n = map(int, part.split("/"))
        for timing in runs(CASES[i::n]):
            timing.ours()
        return
    torch.cuda.set_stream(torch.cuda.Stream())
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    a = torch.randn(2**28, device="cuda")
    # A kernel that moves what a copy moves: copies themselves are slower in a graph.
    speed = 2 * a.numel() * 4 / median(partial(torch.neg, a, out=torch.empty_like(a)), flush)
    a = flush
    table = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_GBs": speed / 1e6}
    rows: list[dict[str, Any]] = []
    print(f"copy {speed / 1e6:.0f} GB/s", flush=True)
    for timing in runs(CASES):
        got, want = timing.ours(), timing.theirs()
        right = torch.equal(got, want) if timing.exact else close(got, want)
        mine, other = median(timing.ours, flush), median(timing.theirs, flush)
        share = timing.size / speed / mine
        row = timing.key | {"as_eager": right, "ms": mine, "eager_ms": other, "share": share}
        text = f"{share:6.1%} x{other / mine:.2f} ({mine:.3f} ms){'' if right else ' NOT AS EAGER'}"
        if "small" in timing.key["case"]:
            row |= {"host_us": host(timing.ours), "eager_host_us": host(timing.theirs)}
            text += f", host {row['host_us']:.0f} us, eager {row['eager_host_us']:.0f} us"
        rows.append(row)
        print(" ".join(f"{value:23}" for value in timing.key.values()), text, flush=True)
        with open(path, "w") as file:
            json.dump(table | {"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
