"""Writes what the documentation says about speed from the files in ``benchmarks/results``.

``results/NAME.json`` comes from ``ndpool bench --json`` or ``torch_models.py --json``. Its table goes into
README.md between ``<!-- bench:NAME -->`` and ``<!-- /bench -->``, the chart of the former to
``results/NAME.svg``. With ``--check`` nothing is written: the exit code is 1 if a file is not what its
results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from ndpool._bench import cuda, cuda_report, report, runner

ROOT = Path(__file__).resolve().parents[1]
REPORTS: dict[str, Any] = {runner.FORMAT: report, cuda.FORMAT: cuda_report}

MODELS = "ndpool models 1"  # as torch_models.py writes them


def models(document: dict[str, Any]) -> str:
    """The table of whole models, before and after; of a device also what its memory holds."""
    device = any("peak_bytes" in row for row in document["results"])
    head = ["model", "input", "mode", "PyTorch", "accelerated", "faster"]
    head += ["kept for backward", "peak of memory"] if device else []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in document["results"]:
        before, after = (f"{row[who]['median_s'] * 1e3:.1f} ms" for who in ("torch", "ndpool"))
        cells = [row["model"], "x".join(map(str, row["input"])), row["mode"], before, after]
        cells.append(f"{row['speedup']:.2f}")
        if device:
            kept, peak = row.get("saved_for_backward_bytes"), row["peak_bytes"]
            cells.append(" to ".join(f"{kept[who] / 2**20:.0f}" for who in kept) + " MiB" if kept else "-")
            # Both ran in one process: what else it held is the same, and left out.
            cells.append(f"{(peak['ndpool'] - peak['torch']) / 2**20:+.0f} MiB")
        lines.append(f"| {' | '.join(cells)} |")
    threads = "" if device else f", {document['threads']['torch']} threads"
    about = f"{document['processor']}{threads}, PyTorch {document['versions']['torch']}"
    return "\n".join([*lines, "", about])


def generated(root: Path) -> dict[Path, str]:
    """Every file that follows from results, with the text that it must have."""
    readme = root / "README.md"
    files = {readme: readme.read_text(encoding="utf-8")}
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") in REPORTS:
            told = REPORTS[document["format"]]
            files[path.with_suffix(".svg")] = told.chart(document)
            text = told.markdown(document)
        elif document.get("format") == MODELS:
            text = models(document)
        else:
            continue  # results of another benchmark
        begin, end = f"<!-- bench:{path.stem} -->", "<!-- /bench -->"
        block = f"{begin}\n{text}\n{end}"
        marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        files[readme] = marked.sub(lambda _, block=block: block, files[readme])
    return files


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write, or check, every generated file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is out of date")
    check = parser.parse_args(argv).check
    stale = {
        path: text
        for path, text in generated(root).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.relative_to(root)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
