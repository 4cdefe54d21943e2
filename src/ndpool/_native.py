"""The compiled core, loaded when a CPU array is first pooled, with the environment's wishes applied.

Where it was not built, everything that needs it says so when it is used: CUDA tensors need no core.
`NDPOOL_ISA` forces an instruction set, `NDPOOL_NUM_THREADS` a number of threads; a wish that cannot be
granted raises and names what exists. Worker processes of multiprocessing start with one thread.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

from ndpool._arguments import show
from ndpool.geometry import AxisPlan, Plan

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

__all__ = ["BUILT", "INDEX64", "MAX_THREADS", "NO_EXTRA", "OFFSET8", "OFFSET32", "core", "core_plan"]

BUILT = isinstance(core, ModuleType)
# What a pick stores beside its values: nothing, offsets inside the window, positions in the plane.
NO_EXTRA, OFFSET8, OFFSET32, INDEX64 = range(4)


def core_plan(plan: Plan) -> core.Plan:
    """The core's form of a plan, made once and kept with it."""
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
