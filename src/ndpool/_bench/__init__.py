"""The benchmark: cases, contestants, runner and report; the GPU counterparts are in `cuda*`.

Used by `ndpool bench` and by the script that generates the documentation's tables.
`run(select("resnet"), threads=(1, 2))` measures; `report` formats the result as text and charts.
"""

from ndpool._bench import cuda, cuda_report, report
from ndpool._bench.case import Case
from ndpool._bench.cases import ALL_CASES, CASES, select
from ndpool._bench.runner import all_threads, compare, installed, measure, run

__all__ = [
    "ALL_CASES",
    "CASES",
    "Case",
    "all_threads",
    "compare",
    "cuda",
    "cuda_report",
    "installed",
    "measure",
    "report",
    "run",
    "select",
]
