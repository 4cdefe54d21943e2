"""The benchmark on a CUDA device: checks before any timing, next to whoever pools there and to a copy.

Calls walk over several inputs, so that no cache holds the next one. Those of PyTorch, `torch.compile` and
ndpool are captured in a graph and replayed: device time. Those of JAX and CuPy are issued one after the
other: where a call is short, that is their host's time. Several processes prepare cases, which is mostly
compiling; one at a time has the device for its timing. `cuda_report` tells what came out.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from math import sqrt
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

import numpy as np

from ndpool._bench.case import Case
from ndpool._bench.cases import CASES
from ndpool._bench.cuda_cases import CUDA_CASES
from ndpool._bench.cuda_peers import Call, Contestant, Data, field
from ndpool._bench.runner import Progress, machine

FORMAT = "ndpool bench cuda 1"
ALL_CASES = (*CUDA_CASES, *CASES)
_SMALL = 2**23  # bytes under which the host's time is told too
_SLOW = 0.02  # seconds
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Effort(NamedTuple):
    """How many replays, each of so many milliseconds at least."""

    rounds: int
    milliseconds: float


FULL, QUICK = Effort(5, 3.0), Effort(2, 0.5)


def run(
    cases: Iterable[Case] = ALL_CASES, quick: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure cases on the current device; what comes back is for `cuda_report`, and JSON can hold it.

    Starts processes: a script calls it under ``if __name__ == "__main__"``.
    """
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise ValueError("bench: --device cuda needs a CUDA device that PyTorch sees; there is none")
    cases = tuple(cases)
    results: dict[int, dict[str, Any]] = {}
    # Neighbours in the list are of one size: in this order the largest do not hold their memory all at once.
    order = Random(0).sample(range(len(cases)), len(cases))
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    workers = max(1, min(14, len(os.sched_getaffinity(0)) - 2, len(cases)))
    with tempfile.NamedTemporaryFile() as lock:
        setting = (lock.name, copy_speed(), QUICK if quick else FULL)
        with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, setting) as pool:
            for i, result in zip(order, pool.map(_work, [cases[i] for i in order]), strict=True):
                results[i] = result
                if progress:
                    progress(len(results), len(cases), cases[i].name)
    ready, missing = field()
    return {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "machine": machine(),
        "quick": quick,
        "copy": copy_speed(),
        "versions": {one.name: one.version() for one in ready},
        "missing": missing,
        "results": [results[i] for i in range(len(cases))],
    }


_worker: dict[str, Any] = {}


def _start_worker(lock: str, copy: float, effort: Effort) -> None:
    import_module("torch").set_num_threads(1)
    _worker.update(lock=os.open(lock, os.O_RDWR), copy=copy, effort=effort)


def _work(case: Case) -> dict[str, Any]:
    return measure(case, _worker["effort"], _worker["copy"], _worker["lock"])


@contextmanager
def _held(lock: int | None, alone: bool) -> Iterator[None]:
    """The device together with other processes that prepare, or alone for timing."""
    if lock is None:
        yield
        return
    fcntl: Any = import_module("fcntl")
    fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        yield
        import_module("torch").cuda.synchronize()
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def measure(
    case: Case, effort: Effort = FULL, copy: float | None = None, lock: int | None = None
) -> dict[str, Any]:
    """Check, then time one case; whoever is wrong is named in the notes and not timed."""
    keys = ("name", "network", "group", "call", "shape", "dtype", "layout", "mode", "moved")
    result: dict[str, Any] = {key: getattr(case, key) for key in keys}
    result |= {"times": {}, "notes": {}, "error": None, "floor": case.moved / (copy or copy_speed())}
    torch: Any = import_module("torch")
    # The default stream cannot be captured, and a backward pass runs where its forward pass did.
    torch.cuda.set_stream(_stream())
    with _held(lock, alone=False):
        prepared = _prepare(case, result)
    with _held(lock, alone=True):
        for one, calls in prepared:
            try:
                timed = captured(calls, effort) if one.captured else issued(calls, effort)
                if one.captured and case.moved < _SMALL:
                    timed["host"] = host(calls[0])
                result["times"][one.name] = timed
            except Exception as error:  # whatever a library raises is its answer to the case
                _complain(result, one.name, _first_line(error))
        del prepared
        gc.collect()
        torch.cuda.empty_cache()
    return result


def _prepare(case: Case, result: dict[str, Any]) -> list[tuple[Contestant, list[Call]]]:
    """The calls of everyone whose answer is right; this compiles them."""
    data, prepared = Data(case), []
    truth = reference(case, data)
    for one in field()[0]:
        if not one.supports(case):
            continue
        try:
            calls = one.calls(case, data)
            complaint = compare(case, one.answer(case, calls[0]()), truth)
        except Exception as error:  # whatever a library raises is its answer to the case
            complaint = _first_line(error)
        if complaint is None:
            prepared.append((one, calls))
        else:
            _complain(result, one.name, complaint)
    return prepared


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _complain(result: dict[str, Any], name: str, complaint: str) -> None:
    if name == "ndpool":
        result["error"] = complaint
    else:
        result["notes"][name] = complaint


def reference(case: Case, data: Data) -> tuple[Any, ...]:
    """PyTorch's answer in float64, contiguous: it holds every number of the other dtypes."""
    torch = data.torch
    x, grad = (t[0].detach().to(torch.float64).contiguous() for t in (data.x, data.grad))
    function, given = getattr(torch.nn.functional, case.function), dict(case.arguments)
    if case.mode == "backward":
        y = function(x.requires_grad_(), **given)
        return (torch.autograd.grad(y, x, grad)[0],)
    if case.mode == "indices":
        return tuple(function(x, **given, return_indices=True))
    y = function(x, **given)
    return (y if data.x[0].dtype.is_floating_point else y.trunc(),)


def compare(case: Case, answer: tuple[Any, ...], truth: tuple[Any, ...]) -> str | None:
    """What is wrong with an answer: maxima and indices must be equal, sums close in every element."""
    exact = case.mode != "backward" and (case.reduction == "max" or case.dtype not in _EPSILON)
    epsilon = _EPSILON.get(case.dtype, 0.0)
    limit = 2 * epsilon + 8 * min(epsilon, _EPSILON["float32"]) * sqrt(case.plan.taps)
    if len(answer) != len(truth):
        return f"wrong answer: {len(answer)} tensors where {len(truth)} are expected"
    for got, want in zip(answer, truth, strict=True):
        if got.shape != want.shape:
            return f"wrong answer: shape {tuple(got.shape)} where {tuple(want.shape)} is expected"
        wide = got.to(want.dtype)
        bad = wide != want if exact else ~((wide - want).abs() <= limit * (1 + want.abs()))
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            return f"wrong answer: {int(bad.sum())} elements, first at {at}: {got[at]} for {want[at]}"
    return None


def captured(calls: Sequence[Call], effort: Effort) -> dict[str, float]:
    """Seconds of device time per call, from a graph of all calls."""
    torch: Any = import_module("torch")
    once = min(_once(calls[0]) for _ in range(2))
    if once > _SLOW:
        return _statistics([once])
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        # Results are kept: each has memory of its own, as in a network.
        kept = [call() for call in calls]
    replays = 1
    samples: list[float] = []
    while len(samples) < effort.rounds:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        took = start.elapsed_time(end)
        if took < effort.milliseconds and replays < 1000:
            replays = min(1000, 1 + int(replays * 1.5 * effort.milliseconds / max(took, 1e-3)))
        else:
            samples.append(took / 1e3 / replays / len(calls))
    del kept
    return _statistics(samples)


def _once(call: Call) -> float:
    torch: Any = import_module("torch")
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def issued(calls: Sequence[Call], effort: Effort) -> dict[str, float]:
    """Seconds per call where calls follow each other without waiting for their results."""
    torch: Any = import_module("torch")
    rounds = 1
    samples: list[float] = []
    calls[0]()  # was compiled before
    while len(samples) < effort.rounds:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                last = call()
        if hasattr(last, "block_until_ready"):
            last.block_until_ready()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        if took < effort.milliseconds / 1e3 and rounds < 1000:
            rounds *= 4
        else:
            samples.append(took / rounds / len(calls))
    return _statistics(samples)


def host(call: Call, n: int = 200) -> float:
    """Seconds of the host per call, which the device does not hold up."""
    torch: Any = import_module("torch")
    for _ in range(20):
        call()
    samples = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n // 5):
            call()
        samples.append((time.perf_counter() - start) / (n // 5))
    torch.cuda.synchronize()
    return sorted(samples)[2]


@cache
def _stream() -> Any:
    return import_module("torch").cuda.Stream()


@cache
def copy_speed() -> float:
    """Bytes per second, read and written, of a copy much larger than the cache."""
    torch: Any = import_module("torch")
    torch.cuda.set_stream(_stream())
    source = torch.empty(2**28, device="cuda").uniform_()
    target = torch.empty_like(source)
    # A kernel that moves what a copy moves: copies themselves are slower in a graph.
    timed = captured([lambda: torch.neg(source, out=target)], FULL)
    return 2 * 2**30 / timed["median"]


def _statistics(samples: Sequence[float]) -> dict[str, float]:
    low, median, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "rounds": len(samples)}
