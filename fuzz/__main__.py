"""Run random calls for some time in child processes, count them, and report what failed with its seed."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from typing import Any

from fuzz.work import case_seed

HANG = 120.0  # seconds without progress
SHOWN = 25  # failures reported in full


class Worker:
    """A child process and what is known of it."""

    def __init__(self, module: str, seed: int, first: int, step: int, stop: int) -> None:
        self.seed, self.step, self.stop = seed, step, stop
        self.number, self.case = first - step, ""  # the case that runs
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, (seed, first, step, stop))],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | {"MALLOC_PERTURB_": "165"},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""
        self.recent: deque[int] = deque(maxlen=30)
        self.moved = time.monotonic()

    def lines(self) -> tuple[list[str], bool]:
        """What it wrote since, and whether it is at its end."""
        assert self.process.stdout is not None
        found = os.read(self.process.stdout.fileno(), 1 << 16)
        *whole, self.rest = (self.rest + found).split(b"\n")
        self.moved = time.monotonic()
        return [line.decode() for line in whole], not found

    def end(self) -> int:
        """End the process if it still runs; its exit status."""
        if self.process.poll() is None:
            self.process.kill()
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.seek(0)
        self.last_words = self.errors.read().partition("Extension modules")[0][-2000:]
        self.errors.close()
        return status


class Run:
    """All workers of a run, the counts and the failures."""

    def __init__(self, seed: int, seconds: float, cases: int | None, workers: int, ignore: str = "") -> None:
        self.ignore, self.ignored = ignore, 0
        self.module, self.hang = "fuzz.work", HANG
        self.seed, self.seconds, self.n_workers = seed, seconds, workers
        self.stop = cases if cases is not None else 1 << 62
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.cases = 0
        self.failures: list[tuple[int, str]] = []
        self.selector = selectors.DefaultSelector()

    def start(self, first: int) -> None:
        """A new worker from this case on."""
        if first < self.stop:
            worker = Worker(self.module, self.seed, first, self.n_workers, self.stop)
            self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def fail(self, worker: Worker, told: str) -> None:
        """Report a failure."""
        told = f"{worker.case}\n    {told}"
        if self.ignore and re.search(self.ignore, told):
            self.ignored += 1
            return
        case = case_seed(self.seed, worker.number)
        self.failures.append((case, told))
        if len(self.failures) <= SHOWN:
            print(f"FAILED case {case}: {told}", flush=True)

    def read(self, worker: Worker) -> bool:
        """Take what a worker wrote; False at its end."""
        lines, ended = worker.lines()
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "begin":
                number, _, worker.case = rest.partition(" ")
                worker.number = int(number)
                worker.recent.append(case_seed(self.seed, worker.number))
            elif word == "end":
                self.cases += 1
                told: dict[str, Any] = json.loads(rest)
                for kind, values in told["tags"].items():
                    self.counts[kind].update(values)
                if "failure" in told:
                    self.fail(worker, told["failure"])
        return not ended

    def lost(self, worker: Worker, why: str = "") -> None:
        """A worker is gone: if it was not done, report its case and go on with the next one."""
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        status = worker.end()
        if status == 0 and not why:
            return
        kind = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self.cases += 1
        if not why:
            why = f"the process ended with {kind}\n{worker.last_words}{self.again(worker)}"
        self.fail(worker, why)
        if worker.number >= 0:
            self.start(worker.number + worker.step)

    def again(self, worker: Worker) -> str:
        """Whether a case that ended its process does so alone; if not, memory was damaged before it."""
        alone = Worker(self.module, self.seed, worker.number, 1, worker.number + 1)
        try:
            status = alone.process.wait(self.hang)
        except subprocess.TimeoutExpired:
            return "    alone it does not end"
        finally:
            alone.end()
        if status:
            return "    so it does alone"
        return f"    alone it does not; cases before it: {' '.join(map(str, worker.recent))}"

    def run(self) -> None:
        """Until the time is over or all cases are done."""
        begun = time.monotonic()
        for first in range(self.n_workers):
            self.start(first)
        while self.selector.get_map() and time.monotonic() - begun < self.seconds:
            for key, _ in self.selector.select(timeout=1):
                if not self.read(key.data):
                    self.lost(key.data)
            for key in list(self.selector.get_map().values()):
                if time.monotonic() - key.data.moved > self.hang:
                    self.lost(key.data, f"no progress for {self.hang:.0f} seconds")
        for key in list(self.selector.get_map().values()):
            key.data.end()
        self.report(time.monotonic() - begun)

    def report(self, seconds: float) -> None:
        """Counts, and the failures by seed."""
        for kind, counted in self.counts.items():
            print(f"{kind}: " + ", ".join(f"{name} {n}" for name, n in counted.most_common()))
        rate = self.cases / max(seconds, 1e-9)
        print(f"{self.cases} cases in {seconds:.0f} s, {rate:.0f} per second; seed {self.seed}")
        if self.ignored:
            print(f"{self.ignored} failures ignored")
        if self.failures:
            print(f"{len(self.failures)} failures; rerun one with: python -m fuzz --case SEED")
            print("seeds: " + " ".join(str(case) for case, _ in self.failures[:200]))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="of the run; random and printed if not given")
    parser.add_argument("--cases", type=int, help="stop after so many, whatever the time")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ignore", default="", help="a regular expression: failures that are known already")
    parser.add_argument("--case", type=int, help="rerun one case and print a program that repeats it")
    options = parser.parse_args()
    if options.case is not None:
        from fuzz.show import rerun

        return rerun(options.case)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    run = Run(
        seed,
        options.seconds if options.cases is None else 1e9,
        options.cases,
        options.workers,
        options.ignore,
    )
    run.run()
    if not run.cases:
        print("no case was run: more seconds are needed")
    return 1 if run.failures or not run.cases else 0


if __name__ == "__main__":
    sys.exit(main())
