"""What a GPU user waits for besides the kernels: compilation of new sizes, and host time of small calls.

``python benchmarks/gpu_overhead.py waits`` pools images of 40 random sizes with an empty cache of kernels,
and again in a second process with the cache that the first one left. ``host`` times small calls and training
steps next to PyTorch's, without waiting for the device. ``train`` trains a small pyramid-pooling network on
images of 30 sizes, by PyTorch and by ndpool. Several may be named, ``all`` does everything; ``--json FILE``
keeps the results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

WAITS = {
    "max 2x2": ("max_pool2d", (2,)),
    "max 3x3 s2": ("max_pool2d", (3, 2, 1)),
    "max 5x5 s1": ("max_pool2d", (5, 1, 2)),
    "avg 3x3 s2": ("avg_pool2d", (3, 2, 1)),
    "adaptive avg 7": ("adaptive_avg_pool2d", (7,)),
    "adaptive max 7": ("adaptive_max_pool2d", (7,)),
    "adaptive avg 3": ("adaptive_avg_pool2d", (3,)),
    "global avg": ("adaptive_avg_pool2d", (1,)),
}
HOST: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...], bool]] = {
    "max 2x2": ("max_pool2d", (2,), (8, 16, 16, 16), False),
    "max 3x3 s2": ("max_pool2d", (3, 2, 1), (8, 16, 16, 16), False),
    "max 3x3 s2, channels-last": ("max_pool2d", (3, 2, 1), (8, 16, 16, 16), True),
    "avg 2x2": ("avg_pool2d", (2,), (8, 16, 16, 16), False),
    "global avg": ("adaptive_avg_pool2d", (1,), (8, 16, 16, 16), False),
    "adaptive max 3": ("adaptive_max_pool2d", (3,), (8, 16, 16, 16), False),
    "max 1-D": ("max_pool1d", (3, 2), (8, 16, 256), False),
    "lp 2x2": ("lp_pool2d", (2.0, 2), (8, 16, 16, 16), False),
}
SIZES = 40  # of images whose compilation is timed
IMAGES = 30  # of an epoch, each of another size


def waits_of(name: str, channels_last: bool) -> dict[str, Any]:
    """Seconds of each first call, forward and backward, on images of random sizes; run in a fresh process.

    Triton's own start is timed apart, with the two small kernels of unpooling.
    """
    import torch

    import ndpool

    function, args = WAITS[name]
    torch.zeros(1, device="cuda").sum().item()
    one = torch.zeros((1, 1, 1, 1), device="cuda")
    begin = time.perf_counter()
    ndpool.max_unpool2d(one, one.long(), 2)
    torch.cuda.synchronize()
    started = time.perf_counter() - begin
    rng, spans = Random(3), []
    for _ in range(SIZES):
        shape = (rng.randint(1, 16), 64, rng.randint(24, 256), rng.randint(24, 256))
        x = torch.rand(shape, device="cuda")
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        torch.cuda.synchronize()
        start = time.perf_counter()
        getattr(ndpool, function)(x.requires_grad_(), *args).sum().backward()
        torch.cuda.synchronize()
        spans.append(time.perf_counter() - start)
    usual = median(spans)
    late = [span for span in spans if span > usual + 0.05]
    return {"waits": len(late), "seconds": sum(late), "longest": max(spans), "start": started}


def waits() -> dict[str, Any]:
    """The waits of all functions, with an empty cache and in a second process; processes run side by side."""

    def one(job: tuple[str, bool]) -> tuple[str, Any]:
        name, last = job
        with tempfile.TemporaryDirectory() as cache:
            runs = []
            for _ in range(2):
                command = [sys.executable, __file__, "one", "--name", name, *["--channels-last"] * last]
                ran = subprocess.run(
                    command, env=os.environ | {"TRITON_CACHE_DIR": cache}, capture_output=True, text=True
                )
                if ran.returncode:
                    return f"{name}{', channels-last' * last}", {"error": ran.stderr[-400:]}
                runs.append(json.loads(ran.stdout.splitlines()[-1]))
            kernels = len(list(Path(cache).rglob("*.cubin"))) - 2  # those of Triton's start
        return f"{name}{', channels-last' * last}", {"first": runs[0], "second": runs[1], "kernels": kernels}

    jobs = [(name, last) for name in WAITS for last in (False, True)]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 4)) as pool:
        return dict(pool.map(one, jobs))


def host_time(call: Callable[[], Any], n: int = 40) -> float:
    """Host seconds of a call that does not wait for the device."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        call()
    span = (time.perf_counter() - start) / n
    torch.cuda.synchronize()
    return span


def host(rounds: int = 41) -> dict[str, Any]:
    """Microseconds of small calls and training steps by both, measured in turns: medians and their ratio."""
    import torch

    import ndpool

    found: dict[str, Any] = {}
    homes: dict[str, Any] = {"ndpool": ndpool, "PyTorch": torch.nn.functional}
    for name, (function, args, shape, last) in HOST.items():
        x = torch.rand(shape, device="cuda")
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        calls: dict[str, dict[str, Callable[[], Any]]] = {"forward": {}, "indices": {}, "training": {}}
        for home, package in homes.items():
            pool = getattr(package, function)
            calls["forward"][home] = lambda pool=pool, x=x, args=args: pool(x, *args)
            if "max" in function:
                calls["indices"][home] = lambda pool=pool, x=x, args=args: pool(x, *args, return_indices=True)
            leaf, grad = x.detach().clone().requires_grad_(), torch.rand_like(pool(x, *args))
            calls["training"][home] = lambda pool=pool, leaf=leaf, grad=grad, args=args: torch.autograd.grad(
                pool(leaf, *args), leaf, grad
            )
        for mode, both in calls.items():
            if not both:
                continue
            for call in both.values():
                for _ in range(20):
                    call()
            spans: dict[str, list[float]] = {home: [] for home in both}
            for turn in range(rounds):
                for home in sorted(both, reverse=bool(turn % 2)):
                    spans[home].append(host_time(both[home]) * 1e6)
            ours, theirs = median(spans["ndpool"]), median(spans["PyTorch"])
            ratio = median(a / b for a, b in zip(spans["ndpool"], spans["PyTorch"], strict=True))
            found[f"{name}, {mode}"] = {"ndpool": ours, "PyTorch": theirs, "ratio": ratio}
    return found


def network(home: Any) -> Any:
    """A small pyramid-pooling network: stem, max pooling, averages of four sizes, classifier."""
    import torch
    from torch import nn

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 32, 3, 2, 1), nn.Linear(32 * 50, 10)

        def forward(self, x: Any) -> Any:
            x = home.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
            return self.head(
                torch.cat([home.adaptive_avg_pool2d(x, n).flatten(1) for n in (1, 2, 3, 6)], dim=1)
            )

    return Pyramid().cuda()


def train() -> dict[str, Any]:
    """Seconds of epochs over images of many sizes, with an empty cache of kernels and Triton's start."""
    import torch

    import ndpool

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for name, home in (("PyTorch", torch.nn.functional), ("ndpool", ndpool)):
            torch.manual_seed(0)
            model = network(home)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            rng = Random(4)
            sizes = [(rng.randint(64, 512), rng.randint(64, 512)) for _ in range(IMAGES)]
            images = [torch.rand(8, 3, *size, device="cuda") for size in sizes]
            for image in images:  # PyTorch's own start: convolutions
                model.head(torch.zeros(8, 32 * 50, device="cuda")).sum().backward()
                model.stem(image).sum().backward()
            torch.cuda.synchronize()
            spans = []
            for _ in range(3):
                start = time.perf_counter()
                for image in images:
                    optimizer.zero_grad()
                    model(image).logsumexp(1).sum().backward()
                    optimizer.step()
                torch.cuda.synchronize()
                spans.append(time.perf_counter() - start)
            found[name] = spans
    return found


def text(document: dict[str, Any]) -> str:
    """The results as lines."""
    lines = []
    for name, row in document.get("host", {}).items():
        ours, theirs, ratio = row["ndpool"], row["PyTorch"], row["ratio"]
        lines.append(f"host  {name:40} {ours:7.1f} us  PyTorch {theirs:7.1f}  {ratio:.2f} x")
    for name, row in document.get("waits", {}).items():
        if "error" in row:
            lines.append(f"waits {name:40} {row['error']}")
            continue
        first, second = row["first"], row["second"]
        lines.append(
            f"waits {name:40} {first['seconds']:5.1f} s in {first['waits']} of {SIZES}, longest "
            f"{first['longest']:.2f} s, {row['kernels']} kernels; second process "
            f"{second['seconds']:.1f} s; start {first['start']:.1f} and {second['start']:.1f} s"
        )
    for name, spans in document.get("train", {}).items():
        lines.append(f"train {name:40} epochs {', '.join(f'{span:.2f} s' for span in spans)}")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("waits", "host", "train", "all", "one"), nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--channels-last", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == ["one"]:
        print(json.dumps(waits_of(options.name, options.channels_last)))
        return
    import torch
    import triton

    from ndpool._native import BUILT

    parts: dict[str, Callable[[], dict[str, Any]]] = {"train": train, "waits": waits, "host": host}
    document: dict[str, Any] = {
        "format": "ndpool gpu overhead 1",
        "device": torch.cuda.get_device_name(),
        "versions": f"PyTorch {torch.__version__}, Triton {triton.__version__}",
        "core": BUILT,  # whether the compiled core looks calls up
    }
    document |= {"sizes": SIZES, "images": IMAGES}
    failed = False
    for name, part in parts.items():
        if {name, "all"} & {*options.what}:
            document[name] = part()
            print(text({name: document[name]}), flush=True)
            if options.json:  # after each part
                options.json.write_text(json.dumps(document, indent=1))
            failed |= any("error" in row for row in document[name].values())
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
