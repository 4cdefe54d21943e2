"""Reports of what the runner measured: a table and a summary for a terminal, Markdown, and a chart as SVG.

Everything is computed from the dict that `runner.run` returns, or from its JSON file. A factor over the floor
is better when small; a factor over a peer says how many times faster ndpool is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, log, log10
from typing import Any, NamedTuple, TextIO
from xml.etree import ElementTree as ET

from ndpool._bench.case import Case

Document = dict[str, Any]
_OWN = ("floor", "kernel", "ndpool")
_X = "\N{MULTIPLICATION SIGN}"


class Row(NamedTuple):
    """One case at one number of threads; None if no peer supports it."""

    name: str
    group: str
    threads: int
    megabytes: float
    milliseconds: float
    over_floor: float
    whole_over_floor: float
    best_peer: str | None
    over_best: float | None
    over_torch: float | None
    suite: str


def rows(document: Document) -> list[Row]:
    """The factors of every case that was timed."""
    made = []
    for result in document["results"]:
        times = {name: entry["median"] for name, entry in result["times"].items()}
        if not times:
            continue
        peers = {name: value for name, value in times.items() if name not in _OWN}
        best = min(peers, key=lambda name: peers[name], default=None)
        mine = times["ndpool"]
        made.append(
            Row(
                result["name"],
                result["group"],
                result["threads"],
                result["moved"] / 1e6,
                mine * 1e3,
                times["kernel"] / times["floor"],
                mine / times["floor"],
                best,
                peers[best] / mine if best else None,
                peers["PyTorch"] / mine if "PyTorch" in peers else None,
                result.get("suite", "layers"),
            )
        )
    return made


def as_json(document: Document) -> str:
    """The document as the text of a results file."""
    return json.dumps(document, indent=1) + "\n"


def updated(old: Document, new: Document) -> Document:
    """The results of `new`, and of `old` for other cases; each with the date of its measurement."""
    for key in ("format", "machine", "device", "isa", "quick", "versions"):
        had, has = old.get(key), new.get(key)
        if had != has:
            raise ValueError(
                f"bench: --update needs results of the same {key}; got {has}, the file has {had}"
            )
    dated = [
        {
            (r["name"], r.get("threads")): r | {"date": r.get("date", document["date"])}
            for r in document["results"]
        }
        for document in (old, new)
    ]
    merged = {"results": list((dated[0] | dated[1]).values())}
    if "threads" in new:
        merged["threads"] = sorted({*old["threads"], *new["threads"]})
    return new | merged


def days(document: Document) -> str:
    """The day of the measurements, or the first and the last."""
    found = sorted({result.get("date", document["date"])[:10] for result in document["results"]})
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else str(document["date"][:10])


def failures(document: Document) -> list[str]:
    """The cases in which the result of ndpool was wrong."""
    return [
        f"{result['name']}, {_threads(result['threads'])}: {result['error']}"
        for result in document["results"]
        if result["error"]
    ]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of factors; None if there are none."""
    logs = [log(value) for value in values if value is not None]
    return exp(sum(logs) / len(logs)) if logs else None


def listing(cases: Iterable[Case]) -> str:
    """The cases as a table."""
    head = ("case", "network", "class", "suite", "call", "shape", "dtype", "layout", "mode")
    body = [
        (c.name, c.network, c.group, c.suite, c.call, "x".join(map(str, c.shape)), c.dtype, c.layout, c.mode)
        for c in cases
    ]
    return _columns(head, body, left=len(head))


def table(document: Document) -> str:
    """One line per case and number of threads."""
    head = ("case", "threads", "MB", "ms", "x floor", "x PyTorch", "x best peer", "")
    body = [
        (
            row.name,
            str(row.threads),
            f"{row.megabytes:.1f}",
            f"{row.milliseconds:.3f}",
            f"{row.over_floor:.2f}",
            _factor(row.over_torch),
            _factor(row.over_best),
            row.best_peer or "",
        )
        for row in rows(document)
    ]
    return _columns(head, body, left=1)


def summary(document: Document) -> str:
    """The worst factors of each class, the slowest cases, the means, the machine, and the missing peers."""
    lines, every = [], rows(document)
    threads = sorted({row.threads for row in every})
    head = ["class (worst of its cases)"]
    for n in threads:
        head += [f"x floor, {n}t", f"x best, {n}t"]
    body = []
    for group in _groups(every):
        cells = [group]
        for n in threads:
            own = [row for row in every if (row.group, row.threads) == (group, n)]
            best = [row.over_best for row in own if row.over_best is not None]
            cells += [f"{max(row.over_floor for row in own):.2f}", _factor(min(best, default=None))]
        body.append(tuple(cells))
    lines += [_columns(tuple(head), body, left=1), "", *slowest(document)]
    lines += [*means(document), machine_line(document)]
    lines += [f"{name}: {why}" for name, why in document["missing"].items()]
    if "PyTorch" in document["missing"]:
        lines.append("Without PyTorch the answers were compared with ndpool's own only")
    for result in document["results"]:
        lines += [f"{result['name']}: {name}: {why}" for name, why in result["notes"].items()]
    return "\n".join(lines)


def means(document: Document) -> list[str]:
    """The geometric means, one line for each suite and number of threads."""
    lines = []
    for suite, n, own in _suites(document):
        torch = geometric_mean(row.over_torch for row in own)
        best = geometric_mean(row.over_best for row in own)
        over_torch = f"{_factor(torch)} times PyTorch (contiguous), " if torch is not None else ""
        lines.append(
            f"Geometric mean over {len(own)} cases ({suite}), {_threads(n)}: {over_torch}"
            f"{_factor(best)} times the best peer of each case, {_slower(own)} slower"
        )
    return lines


def slowest(document: Document, most: int = 10) -> list[str]:
    """The cases with the smallest factors over the best peer, for each suite and number of threads."""
    lines = []
    for suite, n, own in _suites(document):
        known = [(row.over_best, row) for row in own if row.over_best is not None]
        if not known:
            continue
        known.sort(key=lambda pair: pair[0])
        body = [
            (f"  {row.name}", _factor(factor), row.best_peer or "", f"{row.milliseconds:.3f}")
            for factor, row in known[:most]
        ]
        title = f"slowest of the {suite}, {_threads(n)}"
        lines += [*_columns((title, "x best peer", "", "ms"), body, left=1).splitlines(), ""]
    return lines


def _suites(document: Document) -> Iterator[tuple[str, int, list[Row]]]:
    """The cases of each suite for each number of threads."""
    every = rows(document)
    for suite in dict.fromkeys(row.suite for row in every):
        for n in document["threads"]:
            own = [row for row in every if (row.suite, row.threads) == (suite, n)]
            if own:
                yield suite, n, own


def _slower(own: Iterable[Row]) -> int:
    return sum(row.over_best is not None and row.over_best < 1 for row in own)


def machine_line(document: Document) -> str:
    """Machine, instruction set and versions in one line."""
    machine = document["machine"]
    versions = document["versions"]
    shown = [f"{name} {number}" for name, number in versions.items() if not name.endswith("NHWC")]
    l3 = f", L3 {machine['l3']}" if machine["l3"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores{l3}, {machine['system']}, {document['isa']}, "
        f"{days(document)}; {', '.join(shown)}"
    )


def markdown(document: Document) -> str:
    """The documentation's table: for each class the range over its cases and numbers of threads."""
    every = rows(document)
    lines = [f"| class | {_X} floor | {_X} best peer | {_X} PyTorch |", "|---|---|---|---|"]
    for group in _groups(every):
        own = [row for row in every if row.group == group]
        ranges = (
            _range(row.over_floor for row in own),
            _range(row.over_best for row in own),
            _range(row.over_torch for row in own),
        )
        lines.append(f"| {' | '.join((group, *ranges))} |")
    return "\n\n".join(["\n".join(lines), *means(document), machine_line(document)])


def speedups(document: Document) -> dict[str, tuple[str, str]]:
    """For each class the range of speedups over PyTorch, and over the fastest peer of each case."""
    every = rows(document)
    return {
        group: (
            _range(row.over_torch for row in every if row.group == group),
            _range(row.over_best for row in every if row.group == group),
        )
        for group in _groups(every)
    }


def _threads(n: int) -> str:
    return f"{n} thread{'s' * (n > 1)}"


def _groups(every: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.group for row in every))


def _factor(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _range(values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    low, high = _factor(known[0]), _factor(known[-1])
    return low if low == high else f"{low} to {high}"


def _columns(head: tuple[str, ...], body: Iterable[tuple[str, ...]], left: int) -> str:
    """A plain table; the first `left` columns and columns without a heading are left-aligned."""
    cells = [head, *body]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left or not head[column] else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def progress_bar(stream: TextIO) -> Callable[[int, int, str], None]:
    """Show the progress of a run and the time left; line by line if the stream is not a terminal."""
    started = time.monotonic()

    def show(done: int, total: int, text: str) -> None:
        passed = time.monotonic() - started
        left = f"{passed / done * (total - done):.0f} s left" if done else "estimating"
        if stream.isatty():
            bar = "#" * (24 * done // total)
            end = "\n" if done == total else ""
            stream.write(f"\r\x1b[K[{bar:<24}] {done}/{total}  {left}  {text}{end}")
        else:
            stream.write(f"{done}/{total}  {left}  {text}\n")
        stream.flush()

    return show


SERIES = (("ndpool", "ours"), ("best peer", "peer"), ("PyTorch, contiguous", "torch"))
_BAR, _STEP, _TOP, _FOOT = 9, 40, 96, 46
_STYLE = """
  text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .name { text-anchor: end }
  .value { font-size: 9px }
  .tick { text-anchor: middle }
  .tick, .note { fill: #656d76 }
  .page { fill: #ffffff }
  .grid { stroke: #d8dee4 }
  .floor { stroke: #1f2328; stroke-dasharray: 4 3 }
  .ours { fill: #2563eb }
  .peer { fill: #f59e0b }
  .torch { fill: #94a3b8 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .tick, .note { fill: #9198a1 }
    .page { fill: #0d1117 }
    .grid { stroke: #30363d }
    .floor { stroke: #e6edf3 }
    .ours { fill: #4c8dff }
    .torch { fill: #64748b }
  }
"""


def class_means(document: Document, threads: int) -> dict[str, tuple[float | None, ...]]:
    """Whole calls as multiples of the floor: for each class the means of the `SERIES`."""
    every = [row for row in rows(document) if row.threads == threads]
    means: dict[str, tuple[float | None, ...]] = {}
    for group in _groups(every):
        own = [row for row in every if row.group == group]
        means[group] = (
            geometric_mean(row.whole_over_floor for row in own),
            geometric_mean(row.over_best and row.over_best * row.whole_over_floor for row in own),
            geometric_mean(row.over_torch and row.over_torch * row.whole_over_floor for row in own),
        )
    return means


def chart_title(threads: int) -> str:
    """The title of a chart of `class_means`."""
    return f"Time of a pooling call, {_threads(threads)}, in copies of the same bytes (log scale)"


def chart_note(document: Document) -> str:
    """The note of a chart: what a bar is, and the machine."""
    machine = document["machine"]
    measured = f"{machine['cpu']}, {machine['cores']} cores, {document['isa']}, {days(document)}"
    return f"Geometric means over the cases of a class. {measured}"


class Scale(NamedTuple):
    """Layout of a chart: the widths of names and bars, and lengths as fractions of the latter."""

    names: int
    width: int
    length: Callable[[float], float]
    ticks: list[tuple[str, float, bool]]  # text, value, whether it is the floor
    text: Callable[[float], str]


def bar_chart(
    title: str,
    note: str,
    series: Sequence[tuple[str, str]],
    bars: dict[str, tuple[float | None, ...]],
    scale: Scale,
) -> str:
    """An SVG with a bar for each of the series, by class."""
    names, bottom = scale.names, _TOP + _STEP * len(bars)
    width, height = names + scale.width + 60, bottom + _FOOT
    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.attrib.update(width=str(width), height=str(height), viewBox=f"0 0 {width} {height}")
    _add(root, "title", title)
    _add(root, "style", _STYLE)
    _add(root, "rect", class_="page", width=width, height=height, rx=12)
    _add(root, "text", title, class_="title", x=16, y=30)
    for number, (text, name) in enumerate(series):
        _add(root, "rect", class_=name, x=16 + 150 * number, y=44, width=12, height=12, rx=2)
        _add(root, "text", text, x=34 + 150 * number, y=54)
    for text, value, floor in scale.ticks:
        x = f"{names + scale.width * scale.length(value):.1f}"
        _add(root, "line", class_="floor" if floor else "grid", x1=x, x2=x, y1=_TOP - 8, y2=bottom)
        _add(root, "text", text, class_="tick", x=x, y=_TOP - 14)
    for line, (group, values) in enumerate(bars.items()):
        top = _TOP + _STEP * line + 4
        _add(root, "text", group, class_="name", x=names - 10, y=top + 1.5 * _BAR + 6)
        for number, bar in enumerate(values):
            if bar is None:
                continue
            y, length = top + number * (_BAR + 2), scale.width * scale.length(bar)
            _add(root, "rect", class_=series[number][1], x=names, y=y, width=f"{length:.1f}", height=_BAR)
            place = {"x": f"{names + length + 4:.1f}", "y": y + _BAR - 1}
            _add(root, "text", scale.text(bar), class_="value", **place)
    _add(root, "text", note, class_="note", x=16, y=height - 18)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def chart(document: Document, groups: Sequence[str] | None = None) -> str:
    """An SVG of whole calls as multiples of the floor, by class, for the largest number of threads."""
    threads = max(document["threads"])
    bars = class_means(document, threads)
    if groups is not None:
        bars = {group: bars[group] for group in groups}
    known = [value for values in bars.values() for value in values if value is not None]
    decades = max(1, -int(-log10(max(known, default=10)) // 1))

    def length(value: float) -> float:
        # The axis starts half a decade below the floor, so that a bar at the floor is visible.
        return (min(max(log10(value), -0.5), decades) + 0.5) / (decades + 0.5)

    ticks = [(f"{10**n}{_X}" if n else "floor", 10.0**n, n == 0) for n in range(decades + 1)]
    scale = Scale(170, 520, length, ticks, _factor)
    return bar_chart(chart_title(threads), chart_note(document), SERIES, bars, scale)


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: object) -> ET.Element:
    names = {name.rstrip("_"): str(value) for name, value in attributes.items()}
    element = ET.SubElement(parent, tag, names)
    element.text = text
    return element
