"""What mkdocs does beyond its plugins: pictures from code, a table of all cases, no outside references.

- ``![words](plot:windows(6, 3))`` becomes two SVG files, light and dark, drawn by that call of `ndpool.plot`.
- ``<!-- cases:NAME -->`` becomes a table of every case in ``benchmarks/results/NAME.json``; shorter tables
  are written into the pages by `benchmarks/generate.py`.
- ``<iframe src="FILE" data-state="STATE"`` gets its file: the explorer's page of that state.
- A built page that asks another host for a script, style, font or image fails the build.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from textwrap import indent
from typing import Any

import matplotlib
import numpy as np
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import ndpool.plot
from ndpool._bench import report
from ndpool._explore.page import page as explorer_page

ROOT = Path(__file__).resolve().parents[1]
X = "\N{MULTIPLICATION SIGN}"
PLOT = re.compile(r"^!\[(?P<words>[^\]]+)\]\(plot:(?P<call>.+)\)$", re.MULTILINE)
CASES = re.compile(r"^(?P<indent> *)<!-- cases:(?P<name>[\w-]+) -->$", re.MULTILINE)
STATE = re.compile(r'<iframe src="(?P<path>[^"]+)" data-state="(?P<state>[^"]+)"')
STYLE_URL = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")
SCOPE = {"np": np, "windows": ndpool.plot.windows, "benchmark": ndpool.plot.benchmark}
SCOPE["RESULTS"] = ROOT / "benchmarks" / "results"


def draw(call: str, dark: bool) -> str:
    """The picture of a call as SVG text: the same text every time, with a transparent page."""
    figure = eval(f"{call[:-1]}, dark={dark})", dict(SCOPE))
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ndpool", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def cases(name: str) -> str:
    """Every case of a results file, a line each."""
    document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    details = {result["name"]: result for result in document["results"]}
    head = ["case", "call", "input", "threads", "ms", f"{X} floor", f"{X} PyTorch"]
    head += ["best peer", f"{X} best peer"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in report.rows(document):
        about = details[row.name]
        size = f"{'x'.join(map(str, about['shape']))} {about['dtype']} {about['layout']}"
        cells = [row.name, f"`{about['call']}`", size, str(row.threads), f"{row.milliseconds:.3f}"]
        cells += [
            _factor(row.over_floor),
            _factor(row.over_torch),
            row.best_peer or "-",
            _factor(row.over_best),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put pictures and tables into a page."""

    def picture(match: re.Match[str]) -> str:
        name = hashlib.sha256(match["call"].encode()).hexdigest()[:12]
        images = []
        for theme in ("light", "dark"):
            path = f"assets/plots/{name}-{theme}.svg"
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, content=draw(match["call"], theme == "dark")))
            up = "../" * page.file.src_uri.count("/")
            images.append(f"![{match['words']}]({up}{path}#only-{theme})")
        return "\n".join([*images, "{: .picture }"])

    for match in STATE.finditer(markdown):
        files.append(File.generated(config, match["path"], content=explorer_page(match["state"])))
    markdown = CASES.sub(lambda match: indent(cases(match["name"]), match["indent"]), markdown)
    return PLOT.sub(picture, markdown)


class Outside(HTMLParser):
    """Collects what a page fetches from other hosts; links that a reader may follow are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at every attribute that makes a browser fetch something."""
        if ("rel", "canonical") in attrs:
            return
        fetched = {"src", "srcset", "poster", "data"} | (
            {"href"} if tag in ("link", "image", "use") else set()
        )
        for name, value in attrs:
            if name in fetched and re.match(r"\s*(https?:)?//", value or ""):
                self.found.append(f"<{tag} {name}={value}>")


def on_post_build(config: Any) -> None:
    """Refuse a site that needs another host to be read."""
    site = Path(config["site_dir"])
    found = []
    for path in site.rglob("*.html"):
        parser = Outside()
        parser.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {what}" for what in parser.found]
    for path in site.rglob("*.css"):
        urls = STYLE_URL.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {url}" for url in urls]
    if found:
        raise PluginError("pages fetch from other hosts:\n" + "\n".join(found))
