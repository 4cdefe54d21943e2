"""Speed and memory of ``ndpool pool`` on large .npy files, next to a memory-mapped copy of the same file.

``python benchmarks/file_speed.py --folder DIR`` makes a file of random numbers in DIR, pools it 2x2 and
copies it in turn, and prints both rates; every run starts with the file in the page cache, or with ``--cold``
without. ``--memory-gib 6 --limit-mib 512`` also pools a larger file and fails where the process ever holds
more memory than the limit. All files are removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# The command, and the peak of its resident set from the kernel; ru_maxrss would include the parent's.
POOL = """
import re, sys
from ndpool._cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""
COPY = """
import sys, numpy as np
x = np.load(sys.argv[1], mmap_mode="r")
y = np.lib.format.open_memmap(sys.argv[2], mode="w+", dtype=x.dtype, shape=x.shape)
y[...] = x
y.flush()
"""


def make(path: Path, gib: float) -> None:
    """A file of random float32 numbers."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(round(gib * 16), 4096, 4096))
    for plane in x:
        plane[...] = rng.random(plane.shape, dtype="float32")
    x.flush()


def drop(path: Path) -> None:
    """Forget the cached pages of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def warm(path: Path) -> None:
    """Read a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 24)
        while file.readinto(buffer):
            pass


def run(command: list[str]) -> tuple[float, int]:
    """Seconds of a command, and the most memory that it says it held, in bytes."""
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - started, int(done.stdout or 0) << 10


def pool_command(source: Path, target: Path, arguments: argparse.Namespace) -> list[str]:
    """The command that is measured."""
    options = ["--kernel", "2", "--reduce", arguments.reduce, "--memory", arguments.memory, "--quiet"]
    return [sys.executable, "-c", POOL, "pool", str(source), str(target), *options]


def check(source: Path, target: Path, reduce: str) -> None:
    """Compare a few planes of the result with NumPy."""
    x, y = np.load(source, mmap_mode="r"), np.load(target, mmap_mode="r")
    for plane in {0, len(x) // 2, len(x) - 1}:
        blocks = x[plane].reshape(x.shape[1] // 2, 2, x.shape[2] // 2, 2)
        want = blocks.max((1, 3)) if reduce == "max" else blocks.mean((1, 3), dtype="float64")
        if not np.allclose(y[plane], want, rtol=1e-6, atol=0):
            raise SystemExit(f"plane {plane} of the result is wrong")


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Pool and copy a file in turn; rates in bytes of the file per second."""
    source, pooled, copied = (folder / name for name in ("in.npy", "pooled.npy", "copied.npy"))
    make(source, arguments.gib)
    size = source.stat().st_size
    times: dict[str, list[float]] = {"copy": [], "pool": []}
    peak = 0
    for _ in range(arguments.rounds):
        for name in times:
            os.sync()  # what the last run wrote is not this run's work
            (drop if arguments.cold else warm)(source)
            if name == "copy":
                seconds, _ = run([sys.executable, "-c", COPY, str(source), str(copied)])
                copied.unlink()
            else:
                seconds, held = run(pool_command(source, pooled, arguments))
                peak = max(peak, held)
                check(source, pooled, arguments.reduce)
                pooled.unlink()
            times[name].append(seconds)
    source.unlink()
    rates = {name: size / statistics.median(seconds) for name, seconds in times.items()}
    return {
        "bytes": size,
        "seconds": times,
        "rate": rates,
        "pool / copy": rates["pool"] / rates["copy"],
        "peak bytes of pool": peak,
    }


def bounded(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Pool a file larger than the limit; the peak of the process must stay below."""
    source, pooled = folder / "large.npy", folder / "pooled.npy"
    make(source, arguments.memory_gib)
    seconds, peak = run(pool_command(source, pooled, arguments))
    check(source, pooled, arguments.reduce)
    if peak > arguments.limit_mib << 20:
        raise SystemExit(f"the process held {peak} bytes (limit {arguments.limit_mib << 20})")
    size = source.stat().st_size
    return {"bytes": size, "seconds": seconds, "peak bytes": peak, "limit": arguments.limit_mib << 20}


def levels(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Write a pyramid of a volume of random numbers; seconds and the peak of the process."""
    source, store = folder / "volume.npy", folder / "volume.zarr"
    make(source, arguments.pyramid_gib)
    options = ["--levels", "5", "--chunks", "64,64,64", "--memory", arguments.memory, "--quiet"]
    seconds, peak = run([sys.executable, "-c", POOL, "pyramid", str(source), str(store), *options])
    return {"bytes": source.stat().st_size, "seconds": seconds, "peak bytes": peak}


def main() -> None:
    """Measure, print JSON, remove the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--gib", type=float, default=4, help="size of the file to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reduce", choices=("max", "avg"), default="avg")
    parser.add_argument("--memory", default="256MiB", help="--memory of ndpool pool")
    parser.add_argument("--cold", action="store_true", help="read from the disk instead of the page cache")
    parser.add_argument("--memory-gib", type=float, default=0, help="size of the file for the memory limit")
    parser.add_argument("--pyramid-gib", type=float, default=0, help="size of a volume for a pyramid")
    parser.add_argument("--limit-mib", type=int, default=512)
    arguments = parser.parse_args()
    needed = int(max(2 * arguments.gib, 1.25 * arguments.memory_gib) * 2**30)
    if shutil.disk_usage(arguments.folder).free < needed:
        raise SystemExit(f"{arguments.folder} must have {needed} bytes free")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.gib:
            print(json.dumps({"speed": compare(Path(name), arguments)}, indent=2), flush=True)
        if arguments.memory_gib:
            print(json.dumps({"memory": bounded(Path(name), arguments)}, indent=2), flush=True)
        if arguments.pyramid_gib:
            print(json.dumps({"pyramid": levels(Path(name), arguments)}, indent=2))


if __name__ == "__main__":
    main()
