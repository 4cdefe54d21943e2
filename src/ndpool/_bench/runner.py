"""The runner: checks every contestant's answer, then times the correct ones next to a memory copy.

`run` starts one process per number of threads and restricts it to as many processors, which also limits
libraries that size their thread pools at start-up. `measure` runs one case in the current process.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime, timezone
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import ndpool
from ndpool._bench.array_peers import ARRAY_PEERS, expected
from ndpool._bench.case import Case
from ndpool._bench.cases import ALL_CASES
from ndpool._bench.contestants import NDPOOL, Answer, Call, Contestant
from ndpool._bench.peers import PEERS, PyTorch, reference

Burst = Callable[[int], float]  # seconds for n calls
Progress = Callable[[int, int, str], None]  # done, total, next case

FORMAT = "ndpool bench 1"


class Effort(NamedTuple):
    """Limits per contestant: rounds, total seconds, and seconds per burst of calls."""

    rounds: int
    seconds: float
    burst: float


FULL, QUICK = Effort(9, 0.25, 2e-3), Effort(3, 0.03, 1e-3)


def run(
    cases: Iterable[Case] = ALL_CASES,
    threads: Sequence[int] = (1,),
    quick: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """
    Measure cases for each number of threads.

    Starts processes, so scripts must call it under ``if __name__ == "__main__"``.

    Parameters
    ----------
    cases : iterable of Case
        The cases to measure; `select` finds cases by name.
    threads : sequence of int
        The cases are measured once for each number, at most one thread per processor.
    quick : bool
        Run few rounds, for a rough estimate.
    progress : callable, optional
        Called with (done, total, next case) before every case and at the end.

    Returns
    -------
    dict
        Machine, versions and results, JSON-serialisable; `report` formats it.
    """
    cases = tuple(cases)
    results: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    available = len(_processors())
    for n in threads:
        if not 1 <= n <= available:
            raise ValueError(f"bench: threads must be from 1 to {available}; got {n}")
    total = len(cases) * len(threads)
    spawn = get_context("spawn")  # a fork would inherit thread pools with their size already fixed
    for n in threads:
        with ProcessPoolExecutor(1, spawn, _start_worker, (n,)) as worker:
            using = f"{n} thread{'s' * (n > 1)}"
            doing = f"start, {using}"
            try:
                found = worker.submit(_describe, n).result()
                for case in cases:
                    doing = f"{case.name}, {using}"
                    if progress:
                        progress(len(results), total, doing)
                    results.append(worker.submit(_work, case, n, QUICK if quick else FULL).result())
            except BrokenProcessPool:
                raise RuntimeError(f"bench: the measuring process died ({doing})") from None
    if progress:
        progress(total, total, "done")
    return {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "quick": quick,
        "threads": list(threads),
        **found,
        "results": results,
    }


def all_threads() -> tuple[int, ...]:
    """One thread, and one per available processor."""
    return tuple(dict.fromkeys((1, len(_processors()))))


def machine() -> dict[str, Any]:
    """The machine that the benchmark runs on."""
    return {
        "cpu": _value_of("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(_processors()),
        "l3": _read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def _value_of(path: str, key: str) -> str:
    for line in _read(path).splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""


def _processors() -> list[int]:
    """The processors that this process may use, one of each physical core first."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    usable = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    first: list[int] = []
    second: list[int] = []
    for cpu in usable:
        core = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    return first + second


def _start_worker(threads: int) -> None:
    # An interrupt ends the worker immediately; the parent process reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _processors()[:threads])


@cache
def installed(threads: int) -> tuple[tuple[Contestant, ...], dict[str, str]]:
    """The contestants that are installed, and a note for each that is not."""
    ready, missing = [], {}
    for kind in NDPOOL + PEERS + ARRAY_PEERS:
        try:
            ready.append(kind(threads))
        except ImportError as error:
            missing[kind.name] = f"not installed: {error}"
    return tuple(ready), missing


def _describe(threads: int) -> dict[str, Any]:
    ready, missing = installed(threads)
    config = ndpool.show_config()
    versions = {key: config[key] for key in ("ndpool", "python")}
    versions |= {one.name: one.version for one in ready if one.packages}
    return {"isa": config["instruction set"], "versions": versions, "missing": missing}


def _work(case: Case, threads: int, effort: Effort) -> dict[str, Any]:
    return measure(case, installed(threads)[0], threads, effort)


def measure(
    case: Case, contestants: Sequence[Contestant], threads: int = 1, effort: Effort = FULL
) -> dict[str, Any]:
    """Check and time one case; contestants with a wrong answer are listed in the notes, not timed."""
    result: dict[str, Any] = {
        key: getattr(case, key)
        for key in ("name", "network", "group", "suite", "call", "shape", "dtype", "layout", "mode", "moved")
    }
    result |= {"threads": threads, "times": {}, "notes": {}, "error": None}
    try:
        x, grad = case.data()
    except ImportError as error:
        result["notes"]["ndpool"] = f"skipped: {error}"
        return result
    own = {kind.name for kind in NDPOOL}
    torch = next((one for one in contestants if type(one) is PyTorch), None)
    truth: Answer | None = None
    if case.general:
        truth = (expected(case, x),)
    elif torch is not None and not torch.supports(case):
        truth = reference(torch, case, x, grad)
    calls: dict[str, Call] = {}
    # Without a truth the first answer is the reference for the others: PyTorch's if it is installed.
    for one in sorted(contestants, key=lambda one: one is not torch):
        if not one.runs(case):
            continue
        try:
            call = one.prepare(case, x, grad)
            answer = one.answer(case, call())
        except Exception as error:  # a library may raise anything for a case that it does not support
            mistake: str | None = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            truth = answer if truth is None else truth
            mistake = compare(case, answer, truth, one.tolerance(case))
        if mistake is None:
            calls[one.name] = call
        elif one.name in own:
            return result | {"error": f"{one.name}: {mistake}"}
        else:
            result["notes"][one.name] = mistake
    with ThreadPoolExecutor(threads) as pool:
        bursts = {name: _repeat(call) for name, call in calls.items()}
        bursts |= _copies(case.moved, threads, pool)
        # Other libraries' idle threads spin (OpenMP's for 8 ms) and would slow down the next contestant.
        samples = _time(bursts, effort, pause=12e-3 if threads > 1 else 0.0)
    times = {name: statistics(values) for name, values in samples.items()}
    copies = [times.pop(name) for name in list(times) if name.startswith("copy")]
    result["times"] = {"floor": min(copies, key=lambda copy: copy["median"]), **times}
    return result


def compare(case: Case, answer: Answer, truth: Answer, tolerance: float | None = None) -> str | None:
    """The first mistake in an answer, or None: maxima and indices must be equal, sums close per element."""
    if tolerance is None:
        tolerance = 0.0 if case.exact else case.tolerance
    if len(answer) != len(truth):
        return f"wrong answer: {len(answer)} arrays where {len(truth)} are expected"
    for got, want in zip(answer, truth, strict=True):
        if got.shape != want.shape:
            return f"wrong answer: shape {got.shape} where {want.shape} is expected"
        if got.dtype != want.dtype:
            return f"wrong answer: dtype {got.dtype} where {want.dtype} is expected"
        good = _close(got, want, tolerance) if tolerance else got == want
        if not good.all():
            at = tuple(int(i) for i in np.argwhere(~good)[0])
            n_wrong = good.size - int(np.count_nonzero(good))
            return f"wrong answer: {n_wrong} of {good.size} elements, first at {at}: {got[at]} for {want[at]}"
    return None


def _close(got: NDArray[Any], want: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    wide = np.result_type(np.float32, *(a.dtype for a in (got, want) if a.dtype.name != "bfloat16"))
    close: NDArray[np.bool_] = np.abs(got.astype(wide) - want.astype(wide)) <= tolerance
    return close


def _repeat(call: Call) -> Burst:
    def burst(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            call()
        return time.perf_counter() - start

    return burst


def _copies(moved: int, threads: int, pool: ThreadPoolExecutor) -> dict[str, Burst]:
    """Copies with the same memory traffic, by one thread and by all threads; the faster is the floor."""
    size = max(1, moved // 2)
    source = np.resize(np.random.default_rng(0).integers(1, 256, 2**16 + 1, np.uint8), size)
    target = source.copy()

    def share(begin: int, end: int, n: int) -> None:
        read, write = source[begin:end], target[begin:end]
        for _ in range(n):
            np.copyto(write, read)

    def together(n: int) -> float:
        edges = [size * part // threads // 64 * 64 for part in range(threads)] + [size]
        start = time.perf_counter()
        list(pool.map(share, edges[:-1], edges[1:], [n] * threads))
        return time.perf_counter() - start

    def alone(n: int) -> float:
        start = time.perf_counter()
        share(0, size, n)
        return time.perf_counter() - start

    copies: dict[str, Burst] = {"copy alone": alone}
    return copies | {"copy together": together} if threads > 1 else copies


def _time(bursts: dict[str, Burst], effort: Effort, pause: float) -> dict[str, list[float]]:
    """Seconds per call in each round; every round runs in a new random order."""
    samples: dict[str, list[float]] = {}
    repeats, rounds, short = {}, {}, {}
    for name, burst in bursts.items():
        once = min(burst(1), burst(1))  # the first call may include page faults
        short[name] = once < 10e-3
        repeats[name] = max(1, int(effort.burst / once))
        rounds[name] = min(effort.rounds, int(effort.seconds / (once * repeats[name])))
        samples[name] = [] if rounds[name] else [once]
    shuffle = Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for turn in range(effort.rounds):
            order = [name for name in bursts if turn < rounds[name]]
            shuffle(order)
            for name in order:
                time.sleep(pause)
                if short[name]:
                    bursts[name](1)  # warms the caches
                samples[name].append(bursts[name](repeats[name]) / repeats[name])
    finally:
        gc.enable()
    return samples


def statistics(values: Sequence[float]) -> dict[str, float]:
    """The median and quartiles of the rounds."""
    low, median, high = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "rounds": len(values)}
