"""Reports of what `cuda.run` measured: a table and a summary for a terminal, Markdown, and a chart as SVG.

A share is a fraction of the bandwidth of a copy: the time of a copy of the bytes that must move, over that of
the call. A factor over a peer says how many times faster ndpool is.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

from ndpool._bench.cuda_cases import CUDA_CASES
from ndpool._bench.report import _X, Scale, _columns, _factor, _range, bar_chart, days, geometric_mean

Document = dict[str, Any]
_PEERS = ("PyTorch", "torch.compile", "JAX", "CuPy")
_OWN_LIST = CUDA_CASES[0].network
SERIES = (("ndpool", "ours"), ("torch.compile", "peer"), ("PyTorch", "torch"))


class Row(NamedTuple):
    """One case: times in seconds by name, shares of the copy's bandwidth."""

    name: str
    group: str
    network: str
    dtype: str
    moved: int
    floor: float
    times: dict[str, float]
    hosts: dict[str, float]

    def share(self, name: str = "ndpool") -> float | None:
        """The fraction of a copy's bandwidth that a contestant reached."""
        return self.floor / self.times[name] if name in self.times else None

    def over(self, name: str) -> float | None:
        """How many times faster ndpool is than a contestant."""
        return self.times[name] / self.times["ndpool"] if name in self.times else None


def rows(document: Document) -> list[Row]:
    """Every case that was timed."""
    made = []
    for result in document["results"]:
        times = {name: entry["median"] for name, entry in result["times"].items()}
        hosts = {name: entry["host"] for name, entry in result["times"].items() if "host" in entry}
        if "ndpool" in times:
            fields = {key: result[key] for key in ("name", "group", "network", "dtype", "moved", "floor")}
            made.append(Row(**fields, times=times, hosts=hosts))
    return made


def failures(document: Document) -> list[str]:
    """The cases in which the result of ndpool was wrong or missing."""
    return [f"{result['name']}: {result['error']}" for result in document["results"] if result["error"]]


def table(document: Document) -> str:
    """One line per case."""
    head = ("case", "MB", "ms", "share", *(f"x {name}" for name in _PEERS), "host us", "PyTorch's")
    body = [
        (
            row.name,
            f"{row.moved / 1e6:.1f}",
            f"{row.times['ndpool'] * 1e3:.4f}",
            _percent(row.share()),
            *(_factor(row.over(name)) for name in _PEERS),
            *(f"{row.hosts[name] * 1e6:.1f}" if name in row.hosts else "-" for name in ("ndpool", "PyTorch")),
        )
        for row in rows(document)
    ]
    return _columns(head, body, left=1)


def summary(document: Document) -> str:
    """The means, the cases slower than a peer, the machine, and the peers that are missing."""
    lines = [*means(document), "", *(slower(document, name) for name in _PEERS)]
    lines += [machine_line(document), *(f"{name}: {why}" for name, why in document["missing"].items())]
    for result in document["results"]:
        lines += [f"{result['name']}: {name}: {why}" for name, why in result["notes"].items()]
    return "\n".join(lines)


def means(document: Document) -> list[str]:
    """The geometric means over each list of cases."""
    lines, every = [], rows(document)
    for text, own in (
        ("cases of the table", [row for row in every if row.network == _OWN_LIST]),
        ("cases of the CPU's list", [row for row in every if row.network != _OWN_LIST]),
    ):
        if not own:
            continue
        factors = (
            f"{_factor(geometric_mean(row.over(name) for row in own))} times {name}"
            for name in _PEERS
            if any(name in row.times for row in own)
        )
        host = geometric_mean(
            row.hosts["ndpool"] / row.hosts["PyTorch"]
            for row in own
            if {"ndpool", "PyTorch"} <= row.hosts.keys()
        )
        small = f"; host time of small calls {_factor(host)} times PyTorch's" if host else ""
        lines.append(f"Geometric mean over {len(own)} {text}: {', '.join(factors)}{small}")
    return lines


def slower(document: Document, peer: str) -> str:
    """The cases in which a peer is faster, the worst first."""
    every = rows(document)
    found = sorted((factor, row.name) for row in every if (factor := row.over(peer) or 1.0) < 1)
    shown = ", ".join(f"{name} ({_factor(factor)})" for factor, name in found) or "none"
    return f"Slower than {peer}, of {len(every)} cases: {shown}"


def machine_line(document: Document) -> str:
    """Device, its copy's bandwidth, and versions in one line."""
    shown = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    speed = f"a copy moves {document['copy'] / 1e9:.0f} GB/s"
    return f"{document['device']}, {speed}, {days(document)}; {shown}"


def markdown(document: Document) -> str:
    """The documentation's table: for each class the range over layouts."""
    lines = [
        f"| class | share of copy, f32 | bf16 | {_X} PyTorch, f32 | bf16 | {_X} torch.compile | {_X} JAX |",
        "|---|---|---|---|---|---|---|",
    ]
    for group, own in _groups(document).items():
        halves = [[row for row in own if row.dtype == dtype] for dtype in ("float32", "bfloat16")]
        cells = [_shares(row.share() for row in half) for half in halves]
        cells += [_range(row.over("PyTorch") for row in half) for half in halves]
        cells += [_range(row.over(name) for row in own) for name in ("torch.compile", "JAX")]
        lines.append(f"| {' | '.join((group, *cells))} |")
    return "\n\n".join(
        ["\n".join(lines), *means(document), slower(document, "PyTorch"), machine_line(document)]
    )


def speedups(document: Document) -> dict[str, tuple[str, str]]:
    """For each class the range of speedups over PyTorch, and over the fastest peer of each case."""
    return {
        group: (
            _range(row.over("PyTorch") for row in own),
            _range(
                min((row.over(name) or inf for name in _PEERS if name in row.times), default=None)
                for row in own
            ),
        )
        for group, own in _groups(document).items()
    }


def class_means(document: Document) -> dict[str, tuple[float | None, ...]]:
    """Shares of the copy's bandwidth: for each class the means of the `SERIES`."""
    return {
        group: tuple(geometric_mean(row.share(name) for row in own) for name, _ in SERIES)
        for group, own in _groups(document).items()
    }


def chart_title(document: Document) -> str:
    """The title of a chart of `class_means`."""
    return f"Share of a copy's bandwidth, {document['device']}"


def chart_note(document: Document) -> str:
    """The note of a chart: what a bar is, and the device."""
    return f"Geometric means over dtypes and layouts. {document['device']}, {days(document)}"


def chart(document: Document) -> str:
    """An SVG of the shares of the copy's bandwidth, by class."""
    ticks = [(f"{10 * tenth} %", tenth / 10, tenth == 10) for tenth in range(0, 11, 2)]
    scale = Scale(230, 460, lambda share: min(share, 1.05), ticks, _percent)
    return bar_chart(chart_title(document), chart_note(document), SERIES, class_means(document), scale)


def _groups(document: Document) -> dict[str, list[Row]]:
    """The classes of the large cases, or of all where there are none."""
    every = rows(document)
    every = [row for row in every if row.network == _OWN_LIST] or every
    return {
        group: [row for row in every if row.group == group] for group in dict.fromkeys(r.group for r in every)
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _shares(values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "-"
    low, high = (f"{100 * value:.0f}" for value in (known[0], known[-1]))
    return f"{low} %" if low == high else f"{low} to {high} %"
