"""Run random calls in child processes, count them, and report failures with their seeds."""

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
    """A child process and its state."""

    def __init__(self, module: str, seed: int, first: int, step: int, stop: int) -> None:
        self.seed, self.step, self.stop = seed, step, stop
        self.number, self.case = first - step, ""  # the running case
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
        self.last_progress = time.monotonic()

    def lines(self) -> tuple[list[str], bool]:
        """The lines written since the last call, and whether the output has ended."""
        assert self.process.stdout is not None
        found = os.read(self.process.stdout.fileno(), 1 << 16)
        *whole, self.rest = (self.rest + found).split(b"\n")
        self.last_progress = time.monotonic()
        return [line.decode() for line in whole], not found

    def end(self) -> int:
        """Kill the process if it is still running, and return its exit status."""
        if self.process.poll() is None:
            self.process.kill()
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.seek(0)
        self.error_output = self.errors.read().partition("Extension modules")[0][-2000:]
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
        """Start a worker at this case."""
        if first < self.stop:
            worker = Worker(self.module, self.seed, first, self.n_workers, self.stop)
            self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def fail(self, worker: Worker, message: str) -> None:
        """Record and print a failure."""
        message = f"{worker.case}\n    {message}"
        if self.ignore and re.search(self.ignore, message):
            self.ignored += 1
            return
        case = case_seed(self.seed, worker.number)
        self.failures.append((case, message))
        if len(self.failures) <= SHOWN:
            print(f"FAILED case {case}: {message}", flush=True)

    def read(self, worker: Worker) -> bool:
        """Read the output of a worker; False if it has ended."""
        lines, ended = worker.lines()
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "begin":
                number, _, worker.case = rest.partition(" ")
                worker.number = int(number)
                worker.recent.append(case_seed(self.seed, worker.number))
            elif word == "end":
                self.cases += 1
                result: dict[str, Any] = json.loads(rest)
                for kind, values in result["tags"].items():
                    self.counts[kind].update(values)
                if "failure" in result:
                    self.fail(worker, result["failure"])
        return not ended

    def finish(self, worker: Worker, why: str = "") -> None:
        """Handle the end of a worker: if it was not done, report its case and continue with the next."""
        self.selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        status = worker.end()
        if status == 0 and not why:
            return
        kind = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self.cases += 1
        if not why:
            why = f"the process ended with {kind}\n{worker.error_output}{self.rerun_alone(worker)}"
        self.fail(worker, why)
        if worker.number >= 0:
            self.start(worker.number + worker.step)

    def rerun_alone(self, worker: Worker) -> str:
        """Whether a crashing case crashes alone; if not, an earlier case corrupted memory."""
        alone = Worker(self.module, self.seed, worker.number, 1, worker.number + 1)
        try:
            status = alone.process.wait(self.hang)
        except subprocess.TimeoutExpired:
            return "    alone the case hangs"
        finally:
            alone.end()
        if status:
            return "    the case also fails alone"
        return f"    the case passes alone; cases before it: {' '.join(map(str, worker.recent))}"

    def run(self) -> None:
        """Run until the time is over or all cases are done."""
        started = time.monotonic()
        for first in range(self.n_workers):
            self.start(first)
        while self.selector.get_map() and time.monotonic() - started < self.seconds:
            for key, _ in self.selector.select(timeout=1):
                if not self.read(key.data):
                    self.finish(key.data)
            for key in list(self.selector.get_map().values()):
                if time.monotonic() - key.data.last_progress > self.hang:
                    self.finish(key.data, f"no progress for {self.hang:.0f} seconds")
        for key in list(self.selector.get_map().values()):
            key.data.end()
        self.report(time.monotonic() - started)

    def report(self, seconds: float) -> None:
        """Print the counts, and the seeds of the failures."""
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
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="seed of the run (default: random, printed)")
    parser.add_argument("--cases", type=int, help="number of cases to run, instead of --seconds")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ignore", default="", help="regular expression of known failures")
    parser.add_argument("--case", type=int, help="rerun one case and print a program that reproduces it")
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
        print("no case was run: increase --seconds")
    return 1 if run.failures or not run.cases else 0


if __name__ == "__main__":
    sys.exit(main())
