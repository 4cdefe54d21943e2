"""A worker: runs cases one after another and reports them on its standard output.

A line is written before each case, so that the parent knows the seed of a case that crashes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import resource
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fuzz.case import Case

MASK = 2**64 - 1


def case_seed(seed: int, number: int) -> int:
    """The seed of case `number` of a run: 63 bits, mixed by splitmix64."""
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> 1


def prepare() -> int:
    """Import everything and return the number of instruction sets."""
    import torch

    from fences import poisoned_results
    from ndpool._native import core

    faulthandler.enable(all_threads=False)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the references are small; does not limit ndpool's threads
    core.set_serial_bytes(1)  # use threads for small arrays too
    with poisoned_results():  # makes PyTorch import the modules it needs
        limit_memory()
    return len(core.isa_names())


def limit_memory(more: int = 2 << 30) -> None:
    """Limit the address space to `more` bytes beyond current use, so that larger calls raise MemoryError."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_case(case: Case) -> dict[str, Any]:
    """Check a case and return its tags and its failure, if any."""
    from fuzz.check import check, tags
    from ndpool._native import core

    core.set_recording(True)
    failure = {}
    try:
        check(case)
    except Exception as error:
        expected = type(error) is AssertionError and str(error)
        failure = {"failure": str(error) if expected else traceback.format_exc(limit=-4)}
    engines = sorted({f"{engine} {isa}" for _, engine, isa, _ in core.recorded()})
    return {"tags": tags(case) | {"engine": engines}, **failure}


def work(seed: int, first: int, step: int, stop: int, to: TextIO) -> None:
    """Run cases first, first + step, … up to `stop`, or until the parent ends the process."""
    isas = prepare()
    from fuzz.draw import draw

    for number in range(first, stop, step):
        case = draw(case_seed(seed, number), isas)
        to.write(f"begin {number} {case}\n")
        to.flush()
        to.write(f"end {json.dumps(run_case(case))}\n")
    to.flush()


if __name__ == "__main__":
    work(*map(int, sys.argv[1:5]), sys.stdout)
