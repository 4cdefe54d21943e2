"""The compiled core, loaded when a CPU array is first pooled, with the environment's wishes applied.

`NDPOOL_ISA` forces an instruction set, `NDPOOL_NUM_THREADS` a number of threads; a wish that cannot be
granted raises and names what exists. Worker processes of multiprocessing start with one thread.
"""

from __future__ import annotations

import os
import sys

from ndpool import _core as core

__all__ = ["MAX_THREADS", "core"]


def _apply_environment() -> None:
    isa = os.environ.get("NDPOOL_ISA")
    if isa and not core.set_isa(isa):
        raise ValueError(f"NDPOOL_ISA must be one of {', '.join(core.isa_names())}; got NDPOOL_ISA={isa!r}")
    threads = os.environ.get("NDPOOL_NUM_THREADS")
    if threads:
        if not threads.isdecimal() or not 1 <= int(threads) <= MAX_THREADS:
            raise ValueError(f"NDPOOL_NUM_THREADS must be from 1 to {MAX_THREADS}; got {threads!r}")
        core.set_default_threads(int(threads))
    elif (process := sys.modules.get("multiprocessing.process")) and process.parent_process() is not None:
        core.set_default_threads(1)


MAX_THREADS = 1024
_apply_environment()
