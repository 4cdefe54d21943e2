"""Two builds of ndpool next to each other: every case of the benchmark, and random calls, in turns.

``python benchmarks/duel.py OLD NEW`` takes two folders that contain the package `ndpool` with its compiled
core. Each build runs in a process of its own, both on the same processors, since one may be slower than
another; the two are timed in turns, in bursts, in a new order every round. A ratio above 1 says that NEW is
faster. `--random N` times N random calls of tensors instead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

BURST = 2e-3  # seconds
ROUNDS = 9


def serve(threads: int) -> None:
    """The process of one build: prepares the case that a line names, and times bursts of it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import ndpool

    ndpool.set_num_threads(threads)
    call: Callable[[], Any] = lambda: None  # noqa: E731
    for line in sys.stdin:
        kind, value = json.loads(line)
        if kind == "time":
            start = time.perf_counter()
            for _ in range(value):
                call()
            answer = (time.perf_counter() - start) / value
        else:
            call = _case(value) if kind == "case" else _random(*value, threads)
            call()
            start = time.perf_counter()
            call()
            answer = time.perf_counter() - start
        print(json.dumps(answer), flush=True)


def _case(name: str) -> Callable[[], Any]:
    from ndpool._bench import ALL_CASES
    from ndpool._bench.contestants import FullCall, Kernel

    case = next(case for case in ALL_CASES if case.name == name)
    contestant = FullCall if case.is_norm else Kernel
    call: Callable[[], Any] = contestant(_threads()).prepare(case, *case.data())
    return call


def _threads() -> int:
    import ndpool

    return ndpool.get_num_threads()


def _random(seed: int, number: int, threads: int) -> Callable[[], Any]:
    import torch

    import ndpool
    from ndpool._bench import random_calls

    torch.set_num_threads(threads)
    drawn = _drawn(seed, number)[-1]
    call: Callable[[], Any] = random_calls._call(ndpool, drawn, *random_calls._data(drawn))
    return call


def _drawn(seed: int, number: int) -> list[Any]:
    from ndpool._bench import random_calls

    rng = Random(seed)
    return [random_calls.draw(rng) for _ in range(number + 1)]


class Build:
    """The process of one build, asked line by line."""

    def __init__(self, folder: Path, threads: int) -> None:
        # Without `site`, which would find an installed ndpool first.
        path = os.pathsep.join((str(folder), sysconfig.get_paths()["purelib"]))
        environment = os.environ | {"PYTHONPATH": path}
        command = [sys.executable, "-S", __file__, "--serve", "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, kind: str, value: Any) -> float:
        """Prepare a case, or time a number of calls: the seconds of one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([kind, value]), file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))


def duel(builds: list[Build], kind: str, value: Any, rng: Random) -> list[float]:
    """The median seconds of each build."""
    spans = [build.ask(kind, value) for build in builds]
    count = max(1, int(BURST / max(spans)))
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for which in rng.sample((0, 1), 2):
            builds[which].ask("time", 1)  # its caches
            times[which].append(builds[which].ask("time", count))
    return [median(one) for one in times]


def main() -> None:
    """Run the duel and print the ratios by class, and those that changed most."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--case", default="", help="cases by suite, class or name (default: all)")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--below", type=float, default=0.93, help="list what is slower than this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(given.threads)
    if len(given.folders) != 2:
        parser.error("two folders are needed: OLD and NEW")
    from ndpool._bench import ALL_CASES, select

    jobs: list[tuple[str, str, str, Any]]
    if given.random:
        drawn = _drawn(given.seed, given.random - 1)
        jobs = [(f"{d.function} {d.mode}", str(d), "random", (given.seed, i)) for i, d in enumerate(drawn)]
    else:
        cases = select(given.case) if given.case else ALL_CASES
        jobs = [(f"{c.suite}: {c.group}", c.name, "case", c.name) for c in cases]
    builds, rng = [Build(folder, given.threads) for folder in given.folders], Random(1)
    groups, rows = defaultdict(list), []
    for group, name, kind, value in jobs:
        old, new = duel(builds, kind, value, rng)
        groups[group].append(old / new)
        rows.append((old / new, old, new, name))
    for group, ratios in sorted(groups.items()):
        print(f"{_mean(ratios):6.3f}  {min(ratios):6.3f}  {len(ratios):4}  {group}")
    print(f"{_mean([row[0] for row in rows]):6.3f}  over {len(rows)}")
    for ratio, old, new, name in sorted(rows):
        if ratio < given.below or ratio > 1 / given.below:
            print(f"  {ratio:6.3f}  {old * 1e6:9.1f} -> {new * 1e6:9.1f} us  {name}")


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


if __name__ == "__main__":
    main()
