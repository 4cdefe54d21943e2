"""The benchmark on a CUDA device: checks every contestant's answer, then times it next to a copy.

Calls cycle over several inputs to defeat the cache. Calls of PyTorch, `torch.compile` and ndpool are captured
in a CUDA graph and replayed, which measures device time. Calls of JAX and CuPy are issued back to back, so
short ones measure host time. Several processes first call everything once, which is mostly compilation; only
one at a time uses the device for timing. `cuda_report` formats the results.
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
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

from ndpool._bench.case import Case
from ndpool._bench.cases import CASES
from ndpool._bench.cuda_cases import CUDA_CASES
from ndpool._bench.cuda_peers import Call, Contestant, Data, installed
from ndpool._bench.runner import Progress, machine, statistics

FORMAT = "ndpool bench cuda 1"
ALL_CASES = (*CUDA_CASES, *CASES)
_SMALL = 2**23  # bytes below which host time is reported too
_SLOW = 0.02  # seconds
_TOGETHER = 98  # cases that are compiled, then timed


class Effort(NamedTuple):
    """The number of replays, and the minimum milliseconds of each."""

    rounds: int
    milliseconds: float


FULL, QUICK = Effort(5, 3.0), Effort(2, 0.5)


def run(
    cases: Iterable[Case] = ALL_CASES,
    quick: bool = False,
    progress: Progress | None = None,
    peers: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Measure cases on the current device and return a JSON-serialisable document for `cuda_report`.

    `peers` names the contestants next to ndpool; None means all. Starts processes, so scripts must call it
    under ``if __name__ == "__main__"``.
    """
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise ValueError("bench: --device cuda needs a CUDA device that PyTorch can use; found none")
    cases = tuple(cases)
    results: dict[int, dict[str, Any]] = {}
    # Neighbouring cases have the same size: shuffled, the largest are not in memory all at the same time.
    order = Random(0).sample(range(len(cases)), len(cases))
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    workers = max(1, min(14, len(os.sched_getaffinity(0)) - 2, len(cases)))
    with tempfile.NamedTemporaryFile() as lock:
        names = None if peers is None else ("ndpool", *peers)
        setting = (lock.name, copy_speed(), QUICK if quick else FULL, names)
        with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, setting) as pool:
            try:
                for start in range(0, len(order), _TOGETHER):
                    part = order[start : start + _TOGETHER]
                    chosen = [cases[i] for i in part]
                    # Compiled kernels are kept on disk, where the process that times them finds them.
                    list(pool.map(_compile, chosen))
                    for i, result in zip(part, pool.map(_work, chosen), strict=True):
                        results[i] = result
                        if progress:
                            progress(len(results), len(cases), cases[i].name)
            except KeyboardInterrupt:  # what was measured so far is reported
                pool.shutdown(cancel_futures=True)
    ready, missing = installed()
    ready = tuple(one for one in ready if names is None or one.name in names)
    return {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "machine": machine(),
        "quick": quick,
        "copy": copy_speed(),
        "versions": {one.name: one.version() for one in ready},
        "missing": missing,
        "results": [results[i] for i in sorted(results)],
    }


_worker: dict[str, Any] = {}


def _start_worker(lock: str, copy: float, effort: Effort, names: tuple[str, ...] | None) -> None:
    import_module("torch").set_num_threads(1)
    _worker.update(lock=os.open(lock, os.O_RDWR), copy=copy, effort=effort, names=names)


def _compile(case: Case) -> None:
    """Call every contestant once; what fails here is reported when it is timed."""
    torch: Any = import_module("torch")
    torch.cuda.set_stream(_stream())
    _prepare(case, {"notes": {}, "error": None}, _worker["names"], sets=1)
    gc.collect()
    torch.cuda.empty_cache()


def _work(case: Case) -> dict[str, Any]:
    return measure(case, _worker["effort"], _worker["copy"], _worker["lock"], _worker["names"])


@contextmanager
def _device_lock(lock: int | None, exclusive: bool) -> Iterator[None]:
    """Share the device with other processes that prepare cases, or use it exclusively for timing."""
    if lock is None:
        yield
        return
    fcntl: Any = import_module("fcntl")
    fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
        import_module("torch").cuda.synchronize()
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def measure(
    case: Case,
    effort: Effort = FULL,
    copy: float | None = None,
    lock: int | None = None,
    names: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Check and time one case; contestants with a wrong answer are listed in the notes, not timed."""
    keys = ("name", "network", "group", "call", "shape", "dtype", "layout", "mode", "moved")
    result: dict[str, Any] = {key: getattr(case, key) for key in keys}
    result |= {"times": {}, "notes": {}, "error": None, "floor": case.moved / (copy or copy_speed())}
    torch: Any = import_module("torch")
    # The default stream cannot be captured, and backward runs on the stream of its forward.
    torch.cuda.set_stream(_stream())
    with _device_lock(lock, exclusive=False):
        prepared = _prepare(case, result, names)
    with _device_lock(lock, exclusive=True):
        for one, calls in prepared:
            try:
                timed = captured(calls, effort) if one.captured else issued(calls, effort)
                if one.captured and case.moved < _SMALL:
                    timed["host"] = host(calls[0])
                result["times"][one.name] = timed
            except Exception as error:  # a library may raise anything for a case that it does not support
                _record_error(result, one.name, _first_line(error))
        del prepared
        gc.collect()
        torch.cuda.empty_cache()
    return result


def _prepare(
    case: Case, result: dict[str, Any], names: tuple[str, ...] | None, sets: int | None = None
) -> list[tuple[Contestant, list[Call]]]:
    """Compile and check: the calls of the contestants whose answer is right."""
    data, prepared = Data(case, sets), []
    try:
        truth = reference(case, data)
    except Exception as error:  # PyTorch has no answer, such as for more memory than there is
        result["notes"]["reference"] = _first_line(error)
        return []
    for one in installed()[0]:
        if not one.supports(case) or (names is not None and one.name not in names):
            continue
        try:
            calls = one.calls(case, data)
            mistake = compare(case, one.answer(case, calls[0]()), truth, one.slack)
        except Exception as error:  # a library may raise anything for a case that it does not support
            mistake = _first_line(error)
        if mistake is None:
            prepared.append((one, calls))
        else:
            _record_error(result, one.name, mistake)
    return prepared


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _record_error(result: dict[str, Any], name: str, mistake: str) -> None:
    if name == "ndpool":
        result["error"] = mistake
    else:
        result["notes"][name] = mistake


def reference(case: Case, data: Data) -> tuple[Any, ...]:
    """PyTorch's answer for contiguous float64, which represents every value of the other dtypes."""
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


def compare(case: Case, answer: tuple[Any, ...], truth: tuple[Any, ...], slack: float = 1.0) -> str | None:
    """The first mistake in an answer, or None: maxima and indices must be equal, sums close per element."""
    exact, limit = case.exact, slack * case.tolerance
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
    """Device time per call in seconds, from a CUDA graph of all calls."""
    torch: Any = import_module("torch")
    once = min(_once(calls[0]) for _ in range(2))
    if once > _SLOW:
        return statistics([once])
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        # Keep the results alive so that each call allocates its own, as in a network.
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
    return statistics(samples)


def _once(call: Call) -> float:
    torch: Any = import_module("torch")
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def issued(calls: Sequence[Call], effort: Effort) -> dict[str, float]:
    """Seconds per call when calls are issued back to back without synchronising."""
    torch: Any = import_module("torch")
    rounds = 1
    samples: list[float] = []
    calls[0]()  # warm-up; already compiled
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
    return statistics(samples)


def host(call: Call, n: int = 200) -> float:
    """Host time per call in seconds, without waiting for the device."""
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
    """Bytes per second, read plus written, of a copy much larger than the cache."""
    torch: Any = import_module("torch")
    torch.cuda.set_stream(_stream())
    source = torch.empty(2**28, device="cuda").uniform_()
    target = torch.empty_like(source)
    # Negation moves the same bytes as a copy; captured copies are slower.
    timed = captured([lambda: torch.neg(source, out=target)], FULL)
    return 2 * 2**30 / timed["median"]
