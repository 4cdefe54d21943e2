"""The benchmark on a CUDA device: checks every contestant's answer, then times it next to a copy.

Calls cycle over several inputs to defeat the cache. Calls of PyTorch, `torch.compile` and ndpool are captured
in a CUDA graph and replayed, which measures device time. Calls of JAX and CuPy are issued back to back, so
short ones measure host time, in processes of their own: one that dies or hangs loses its case of that library
alone (`cuda_workers`). Several processes first call everything once, which is mostly compilation; only one at
a time uses the device for timing. `cuda_report` formats the results.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, NamedTuple

from ndpool._bench.case import Case
from ndpool._bench.cases import CASES
from ndpool._bench.cuda_cases import CUDA_CASES
from ndpool._bench.cuda_peers import NAMES, Call, Contestant, Data, installed
from ndpool._bench.cuda_workers import Lost, Workers, limit
from ndpool._bench.runner import Progress, machine, statistics

FORMAT = "ndpool bench cuda 1"
ALL_CASES = (*CUDA_CASES, *CASES)
_SMALL = 2**23  # bytes below which host time is reported too
_SLOW = 0.02  # seconds
_TOGETHER = 98  # cases that are compiled, then timed
_APART = ("JAX", "CuPy")  # libraries in processes of their own
_COMPILED, _TIMED = 240.0, 60.0  # seconds in which a case must have been compiled, and timed


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
    results = [_described(case, copy_speed()) for case in cases]
    done: set[int] = set()
    about: dict[str, dict[str, str]] = {"versions": {}, "missing": {}}
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    names = NAMES if peers is None else ("ndpool", *peers)
    camps = [tuple(n for n in names if n not in _APART), *((n,) for n in _APART if n in names)]
    with tempfile.NamedTemporaryFile() as lock:
        setting = (lock.name, copy_speed(), QUICK if quick else FULL)
        try:
            for camp in camps:
                for i in _measured(cases, results, (*setting, camp), about):
                    done.add(i)
                    if progress and camp == camps[0]:
                        progress(len(done), len(cases), cases[i].name)
        except KeyboardInterrupt:  # what was measured so far is reported
            pass
    return {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "machine": machine(),
        "quick": quick,
        "copy": copy_speed(),
        **about,
        "results": [results[i] for i in sorted(done)],
    }


def _measured(
    cases: tuple[Case, ...], results: list[dict[str, Any]], setting: tuple[Any, ...], about: dict[str, Any]
) -> Iterator[int]:
    """Measure the contestants that share processes, and add their times to the results; numbers of cases."""
    camp = setting[-1]
    workers = max(1, min(14, len(os.sched_getaffinity(0)) - 2, len(cases)))
    # Neighbouring cases have the same size: shuffled, the largest are not in memory all at the same time.
    order = Random(0).sample(range(len(cases)), len(cases))
    with Workers(workers, _start_worker, setting) as pool:
        ((_, found),) = pool.map(_about, [None], _COMPILED)
        if isinstance(found, Lost):
            about["missing"] |= dict.fromkeys(camp, found.reason)
            return
        about["versions"] |= found["versions"]
        about["missing"] |= found["missing"]
        for start in range(0, len(order) if found["versions"] else 0, _TOGETHER):
            part = order[start : start + _TOGETHER]
            chosen = [cases[i] for i in part]
            # Compiled kernels are kept on disk, where the process that times them finds them.
            lost = {n: made for n, made in pool.map(_compile, chosen, _COMPILED) if isinstance(made, Lost)}
            left = [n for n in range(len(part)) if n not in lost]
            for n, made in lost.items():
                _add(results[part[n]], made, camp)
                yield part[n]
            for k, result in pool.map(_work, [chosen[n] for n in left], _COMPILED):
                _add(results[part[left[k]]], result, camp)
                yield part[left[k]]


def _add(result: dict[str, Any], found: Any, camp: tuple[str, ...]) -> None:
    """Add what some contestants measured in a case, or that their process was lost."""
    if isinstance(found, Lost):
        for name in camp:
            _record_error(result, name, f"lost: {found.reason}")
        return
    result["times"] |= found["times"]
    result["notes"] |= found["notes"]
    result["error"] = result["error"] or found["error"]


_worker: dict[str, Any] = {}


def _start_worker(lock: str, copy: float, effort: Effort, names: tuple[str, ...]) -> None:
    import_module("torch").set_num_threads(1)
    _worker.update(lock=os.open(lock, os.O_RDWR), copy=copy, effort=effort, names=names)


def _about(_: None) -> dict[str, dict[str, str]]:
    """Versions of the contestants that are installed, and notes on the others."""
    ready, missing = installed(_worker["names"])
    return {"versions": {one.name: one.version() for one in ready}, "missing": missing}


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
    limit(None)
    fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    limit(_TIMED if exclusive else _COMPILED)
    try:
        yield
        import_module("torch").cuda.synchronize()
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _described(case: Case, copy: float) -> dict[str, Any]:
    """The result of a case before anything was measured."""
    keys = ("name", "network", "group", "call", "shape", "dtype", "layout", "mode", "moved")
    result: dict[str, Any] = {key: getattr(case, key) for key in keys}
    return result | {"times": {}, "notes": {}, "error": None, "floor": case.moved / copy}


def measure(
    case: Case,
    effort: Effort = FULL,
    copy: float | None = None,
    lock: int | None = None,
    names: tuple[str, ...] = NAMES,
) -> dict[str, Any]:
    """Check and time one case; contestants with a wrong answer are listed in the notes, not timed."""
    result = _described(case, copy or copy_speed())
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
    case: Case, result: dict[str, Any], names: tuple[str, ...], sets: int | None = None
) -> list[tuple[Contestant, list[Call]]]:
    """Compile and check: the calls of the contestants whose answer is right."""
    contestants = [one for one in installed(names)[0] if one.supports(case)]
    if not contestants:
        return []
    data, prepared = Data(case, sets), []
    try:
        truth = reference(case, data)
    except Exception as error:  # PyTorch has no answer, such as for more memory than there is
        result["notes"]["reference"] = _first_line(error)
        return []
    for one in contestants:
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
