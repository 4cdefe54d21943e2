"""Pools a Dask array larger than a limit of resident memory; ends with status 1 if the limit is ever passed.

Chunks are made when they are needed and results are thrown away chunk by chunk. A thread watches the resident
memory and ends the process at once if it is above the limit; at the end the kernel's own high-water mark is
compared with it, so that no peak is missed.

    python benchmarks/dask_memory.py --gib 16 --limit 1.5
    python benchmarks/dask_memory.py --gib 16 --limit 1.5 --case max
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from math import prod
from time import perf_counter, sleep
from typing import Any

import dask
import dask.array as da
import numpy as np

import ndpool

MIB = 2**20
CASES: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "mean": ("2x2x2 mean", (256, 256, 256), lambda x: ndpool.pool(x, (2, 2, 2), reduce="avg")),
    "max": ("3x3 max, stride 1", (256, 65536), lambda x: ndpool.pool(x, (3, 3), stride=1, padding=1)),
    "tiles": ("3x3 max, stride 1", (4096, 4096), lambda x: ndpool.pool(x, (3, 3), stride=1, padding=1)),
    "time": (
        "mean of 31 time steps, stride 1",
        (512, 32, 1024),
        lambda x: ndpool.pool(x, (31,), stride=1, padding="same", axes=0, reduce="avg"),
    ),
}


class Nowhere:
    """A store that keeps nothing."""

    def __setitem__(self, place: Any, values: Any) -> None:
        """Throw a chunk away."""


def status(name: str) -> float:
    """A line of the process's memory status, in MiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024


def watch(limit: float) -> None:
    """End the process as soon as it is above the limit."""
    while True:
        if status("VmRSS") > limit:
            print(f"resident memory above {limit:.0f} MiB", file=sys.stderr, flush=True)
            os._exit(1)
        sleep(0.005)


def random_block(block_info: Any = None) -> Any:
    """A block of random numbers, the same ones for the same place."""
    info = block_info[None]
    shape = tuple(end - begin for begin, end in info["array-location"])
    return np.random.default_rng(info["chunk-location"]).random(shape, np.float32)


def shape_of(chunk: tuple[int, ...], size: float) -> tuple[int, ...]:
    """A shape of whole chunks with `size` bytes, whose axes are as even as they can be."""
    shape = list(chunk)
    while prod(shape) * 4 < size:
        axis = shape.index(min(shape))
        shape[axis] += shape[axis]
    return tuple(shape)


def main() -> None:
    """Pool under the limit and print the peak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=16, help="size of the array in GiB")
    parser.add_argument("--limit", type=float, default=1.5, help="limit of resident memory in GiB")
    parser.add_argument(
        "--chunk", type=int, default=1, help="chunks are so many times shorter along each axis"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", choices=CASES, default="mean")
    args = parser.parse_args()
    what, chunk, pool = CASES[args.case]
    chunk = tuple(n // args.chunk for n in chunk)
    limit = args.limit * 1024
    threading.Thread(target=watch, args=(limit,), daemon=True).start()
    shape = shape_of(chunk, args.gib * 2**30)
    chunks = tuple((c,) * (n // c) for n, c in zip(shape, chunk, strict=True))
    x = da.map_blocks(random_block, chunks=chunks, dtype=np.float32)
    y = pool(x)
    before, start = status("VmRSS"), perf_counter()
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        # `persist` does not join the stores at the end: Dask then finds an order that keeps fewer chunks.
        da.store(y, Nowhere(), lock=False, compute=False).persist()
    peak = status("VmHWM")
    print(
        f"{what}: {x.nbytes / 2**30:g} GiB in {x.npartitions} chunks of {prod(chunk) * 4 / MIB:g} MiB, "
        f"{args.threads} threads, {perf_counter() - start:.0f} s; peak {peak:.0f} MiB resident, "
        f"{before:.0f} MiB of it before (limit {limit:.0f} MiB)"
    )
    sys.exit(peak > limit)


if __name__ == "__main__":
    main()
