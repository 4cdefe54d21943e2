"""The benchmark: cases, contestants, runner and report, private to ndpool; a GPU has files of its own.

The command `ndpool bench` and the script that writes the tables of the documentation call it:
`run(select("resnet"), threads=(1, 2))` measures, `report` turns what comes back into text and pictures.
"""

from ndpool._bench import cuda, cuda_report, report
from ndpool._bench.case import Case
from ndpool._bench.cases import CASES, select
from ndpool._bench.runner import all_threads, compare, field, measure, run

__all__ = [
    "CASES",
    "Case",
    "all_threads",
    "compare",
    "cuda",
    "cuda_report",
    "field",
    "measure",
    "report",
    "run",
    "select",
]
