"""The CPU benchmark: cases, contestants, runner and report, private to ndpool.

The command `ndpool bench` and the script that writes the tables of the documentation call it:
`run(select("resnet"), threads=(1, 2))` measures, `report` turns what comes back into text and pictures.
"""

from ndpool._bench import report
from ndpool._bench.case import Case
from ndpool._bench.cases import CASES, select
from ndpool._bench.runner import all_threads, compare, field, measure, run

__all__ = ["CASES", "Case", "all_threads", "compare", "field", "measure", "report", "run", "select"]
