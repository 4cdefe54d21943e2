"""The compiled core, loaded when an array is first pooled, and its settings from the environment.

Where it was not built, using it raises an ImportError; CUDA tensors do not need it. `NDPOOL_ISA` forces an
instruction set and `NDPOOL_NUM_THREADS` a number of threads; a value that is not available raises an error
that lists what is. Worker processes of multiprocessing start with one thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from ndpool._arguments import show
from ndpool._plan import AxisPlan, Plan

try:
    from ndpool import _core as core
except ImportError as error:
    if error.name not in ("ndpool", "ndpool._core"):
        raise

    class _Missing:
        def __getattr__(self, name: str) -> Any:
            raise ImportError(
                "ndpool: the compiled core, which pools arrays on the CPU, was not built; install the "
                "package with `pip install ndpool`, or `pip install .` in its folder; CUDA tensors need none"
            )

    core = _Missing()  # type: ignore[assignment]

__all__ = ["BUILT", "MAX_THREADS", "core", "core_plan", "one_thread_each"]

BUILT = isinstance(core, ModuleType)


def core_plan(plan: Plan) -> core.Plan:
    """The compiled form of a plan, made once and stored in it."""
    if plan.core is None:
        plan.core = core.Plan([_core_axis(axis) for axis in plan.axes])
    return plan.core  # type: ignore[no-any-return]


def _core_axis(a: AxisPlan) -> Any:
    front, kernel = a.tap_range()
    origin = a.origin + front * a.step
    tables = (
        (None, None) if a.starts is None else (np.ascontiguousarray(a.starts), np.ascontiguousarray(a.counts))
    )
    return (a.size, a.out, kernel, a.stride, a.step, origin, *a.bounds, *tables, a.kernel, front)


_serial = 0  # calls inside `one_thread_each`
_serial_bytes = 0  # the core's own limit meanwhile
_serial_lock = threading.Lock()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Calls run on the thread that makes them: for the threads of a scheduler, which fill the cores already.

    The main thread keeps its threads when it is the one that enters. While any thread is inside, calls of
    other threads run serially, too; their results are the same.
    """
    global _serial, _serial_bytes
    if not BUILT or threading.current_thread() is threading.main_thread():
        yield
        return
    with _serial_lock:
        _serial += 1
        if _serial == 1:
            _serial_bytes = core.set_serial_bytes(2**62)
    try:
        yield
    finally:
        with _serial_lock:
            _serial -= 1
            if not _serial:
                core.set_serial_bytes(_serial_bytes)


def _apply_environment() -> None:
    isa = os.environ.get("NDPOOL_ISA")
    if isa and not core.set_isa(isa):
        raise ValueError(f"NDPOOL_ISA must be one of {', '.join(core.isa_names())}; got NDPOOL_ISA={isa!r}")
    threads = os.environ.get("NDPOOL_NUM_THREADS")
    if threads:
        if not (threads.isdecimal() and len(threads) < 5 and 1 <= int(threads) <= MAX_THREADS):
            raise ValueError(f"NDPOOL_NUM_THREADS must be from 1 to {MAX_THREADS}; got {show(threads)}")
        core.set_default_threads(int(threads))
    elif (process := sys.modules.get("multiprocessing.process")) and process.parent_process() is not None:
        core.set_default_threads(1)


MAX_THREADS = 1024
if BUILT:
    _apply_environment()
