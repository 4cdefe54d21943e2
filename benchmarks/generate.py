"""Writes what the documentation says about speed from the files in ``benchmarks/results``.

``results/NAME.json`` comes from ``ndpool bench --json``. Its table goes into README.md between
``<!-- bench:NAME -->`` and ``<!-- /bench -->``, its chart to ``results/NAME.svg``. With ``--check`` nothing
is written: the exit code is 1 if a file is not what its results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from ndpool._bench import report
from ndpool._bench.runner import FORMAT

ROOT = Path(__file__).resolve().parents[1]


def generated(root: Path) -> dict[Path, str]:
    """Every file that follows from results, with the text that it must have."""
    readme = root / "README.md"
    files = {readme: readme.read_text(encoding="utf-8")}
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") != FORMAT:
            continue  # results of another benchmark
        files[path.with_suffix(".svg")] = report.chart(document)
        begin, end = f"<!-- bench:{path.stem} -->", "<!-- /bench -->"
        block = f"{begin}\n{report.markdown(document)}\n{end}"
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
