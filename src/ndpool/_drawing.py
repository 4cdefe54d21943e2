"""Drawing with matplotlib: cells, windows and bar charts, called by `plot`.

No window arithmetic or pooling happens here: `plot` passes the taps of every window and the results.
Every patch and text has a gid that identifies it (``cell 2,3``, ``window 0,1``) and is kept in SVG files.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Patch, Rectangle
from numpy.typing import NDArray

_INCHES = 0.5  # per cell, in a new figure
_BAR_PITCH, _BAR = 0.68, 0.5  # pitch and height of the bars of a 1-D picture
_GAP, _FOOT = 1.7, 0.75  # between input and output; below both, for the captions

_BY = "\N{MULTIPLICATION SIGN}"

At = tuple[int, ...]


@dataclass(frozen=True)
class Theme:
    """The colours of a picture; the window colours are safe for colour-blind readers."""

    page: str
    ink: str
    quiet: str
    cell: str
    line: str
    shade: str
    on_colour: str
    windows: tuple[str, ...]
    bars: tuple[str, str, str]


# After Okabe and Ito, without their yellow, which has too little contrast on white.
LIGHT = Theme(
    "#ffffff",
    "#1f2328",
    "#59636e",
    "#fbfcfd",
    "#c4ccd4",
    "#eef1f4",
    "#ffffff",
    ("#0072b2", "#d55e00", "#00876a", "#b5508a", "#7a6a00", "#5b5bd6"),
    ("#0072b2", "#e69f00", "#9aa4af"),
)
DARK = Theme(
    "#1e2129",
    "#e6edf3",
    "#a3acb8",
    "#262a33",
    "#4a515c",
    "#1a1d24",
    "#11141a",
    ("#56b4e9", "#ff9a57", "#35cfa1", "#eea0cc", "#e3c53d", "#a9b6ff"),
    ("#56b4e9", "#e69f00", "#69727d"),
)


class Picture(Figure):
    """A figure that shows itself in a notebook, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        FigureCanvasAgg(self).print_png(file)  # type: ignore[no-untyped-call]
        return file.getvalue()


class Axis(NamedTuple):
    """One axis of the input: its size, the bounds of its padding, and the taps of every window."""

    size: int
    bounds: tuple[int, int]
    taps: list[range]

    @property
    def extent(self) -> tuple[int, int]:
        """The half-open range of cells to draw, including taps beyond the padding."""
        ends = [i for taps in self.taps if taps for i in (taps[0], taps[-1] + 1)]
        return min(0, self.bounds[0], *ends), max(self.size, self.bounds[1], *ends)

    def kind(self, i: int) -> str:
        """Whether a position is in the input ("cell"), in the padding, or beyond it."""
        if 0 <= i < self.size:
            return "cell"
        return "padding" if self.bounds[0] <= i < self.bounds[1] else "beyond"


class WindowPicture:
    """The input, windows and output of one pool on one `Axes`, in units of cells."""

    def __init__(
        self,
        axes: list[Axis],
        data: NDArray[Any] | None,
        result: NDArray[Any] | None,
        winners: NDArray[Any] | None,
        chosen: list[At],
        positions: bool,
        divisors: NDArray[Any] | None,
        theme: Theme,
    ) -> None:
        self.axes, self.data, self.result, self.winners = axes, data, result, winners
        self.chosen, self.positions, self.divisors, self.theme = chosen, positions, divisors, theme
        self.out = tuple(len(axis.taps) for axis in axes)
        spans = [axis.extent for axis in axes]
        self.origin = tuple(lo for lo, _ in spans)
        self.cells = tuple(hi - lo for lo, hi in spans)

    def draw(self, ax: Axes | None) -> Figure:
        """Draw on `ax`, or on a new figure of matching size."""
        flat = len(self.axes) == 1
        columns = self.cells[-1]
        rows = 1.35 + _BAR_PITCH * len(self.chosen) if flat else max(self.cells[0], self.out[0])
        width = columns + _GAP + (1.2 if flat else self.out[1])
        height = rows + _FOOT
        if ax is None:
            figure = Picture(figsize=(_INCHES * (width + 0.4), _INCHES * (height + 0.4)), dpi=120)
            figure.set_facecolor(self.theme.page)
            ax = figure.add_axes((0, 0, 1, 1))
        ax.set_xlim(-0.2, width + 0.2)
        ax.set_ylim(height + 0.2, -0.2)
        ax.set_aspect("equal")
        ax.axis("off")
        self.ax = ax
        box = ax.get_window_extent()
        # Scale the font with the cells.
        self.points = min(box.width / (width + 0.4), box.height / (height + 0.4)) * 72 / ax.figure.dpi
        top = 0.0 if flat else (rows - self.cells[0]) / 2
        self.draw_input(top)
        if flat:
            self.draw_window_bars()
        else:
            self.draw_windows(top)
        self.draw_values(top)
        if flat:
            self.caption(columns / 2, rows + 0.35, f"input {self.axes[0].size}")
            self.caption(columns + _GAP + 0.6, rows + 0.35, f"output {self.out[0]}")
        else:
            self.draw_output(columns + _GAP, (rows - self.out[0]) / 2)
            sizes = tuple(axis.size for axis in self.axes)
            self.caption(columns / 2, rows + 0.4, f"input {sizes[0]} {_BY} {sizes[1]}")
            self.caption(width - self.out[1] / 2, rows + 0.4, f"output {self.out[0]} {_BY} {self.out[1]}")
        return ax.figure  # type: ignore[return-value]

    def place(self, at: At) -> tuple[int, int]:
        """The column and row of an input position in the picture."""
        moved = [i - lo for i, lo in zip(at, self.origin, strict=True)]
        return moved[-1], moved[0] if len(moved) == 2 else 0

    def colour(self, o: At) -> str:
        """The colour of an output; neighbours along both axes have different colours."""
        return self.theme.windows[(o[-1] + (3 * o[0] if len(o) == 2 else 0)) % len(self.theme.windows)]

    def draw_input(self, top: float) -> None:
        """Draw the cells of the input, the padding, and cells beyond it that the last windows reach."""
        theme = self.theme
        looks: dict[str, dict[str, Any]] = {
            "cell": {"fc": theme.cell, "ec": theme.line, "lw": 0.8},
            "padding": {"fc": theme.shade, "ec": theme.line, "lw": 0.8, "hatch": "////"},
            "beyond": {"fc": "none", "ec": theme.line, "lw": 0.9, "ls": (0, (1, 2))},
        }
        for at in product(*(range(*axis.extent) for axis in self.axes)):
            kinds = {axis.kind(i) for axis, i in zip(self.axes, at, strict=True)}
            kind = next(name for name in ("beyond", "padding", "cell") if name in kinds)
            x, y = self.place(at)
            self.add(Rectangle((x, y + top), 1, 1, **looks[kind]), kind, at)

    def draw_windows(self, top: float) -> None:
        """Draw the windows of a 2-D pool as outlines; dilated windows also mark every tap."""
        for o in self.chosen:
            down, across = (axis.taps[i] for axis, i in zip(self.axes, o, strict=True))
            colour = self.colour(o)
            # Different insets keep the shared edges of neighbouring windows visible.
            inset = 0.04 + 0.04 * ((o[0] % 2) * 2 + o[1] % 2)
            x, y = self.place((down[0], across[0]))
            width, height = across[-1] - across[0] + 1 - 2 * inset, down[-1] - down[0] + 1 - 2 * inset
            gaps = max(down.step, across.step) > 1
            self.add(
                rounded(x + inset, y + top + inset, width, height, 0.16, fc=colour, alpha=0.07, lw=0),
                "tint",
                o,
            )
            line = {"lw": 1.6, "ls": (0, (4, 2)) if gaps else "solid"}
            self.add(
                rounded(x + inset, y + top + inset, width, height, 0.16, fc="none", ec=colour, **line),
                "window",
                o,
            )
            for at in product(down, across) if gaps else ():
                x, y = self.place(at)
                box = rounded(x + 0.13, y + top + 0.13, 0.74, 0.74, 0.14, fc=colour, ec="none", alpha=0.28)
                self.add(box, "tap", o)

    def draw_window_bars(self) -> None:
        """Draw the windows of a 1-D pool: one bar each below the input, with its output at the end."""
        axis, theme, columns = self.axes[0], self.theme, self.cells[0]
        for line, o in enumerate(self.chosen):
            y, taps, colour = 1.35 + _BAR_PITCH * line, axis.taps[o[0]], self.colour(o)
            left = self.place((taps[0],))[0]
            self.ax.plot(
                [left + 0.2, left + taps[-1] - taps[0] + 0.8],
                [y + _BAR / 2] * 2,
                color=colour,
                lw=1.4,
                zorder=1,
            )
            for i in taps:
                kind, x = axis.kind(i), self.place((i,))[0] + 0.06
                won = self.winners is not None and int(self.winners[o]) == i
                look: dict[str, Any] = {"fc": theme.page, "ec": colour, "lw": 1.3}
                if kind == "padding":
                    look |= {"fc": theme.shade, "hatch": "////", "lw": 0.9}
                elif kind == "beyond":
                    look["ls"] = (0, (1, 1.5))
                self.add(rounded(x, y, 0.88, _BAR, 0.14, **look), f"tap {kind}", o)
                if kind == "cell":
                    alpha = 1.0 if won else 0.22 if self.winners is not None else 0.55
                    full = rounded(x, y, 0.88, _BAR, 0.14, fc=colour, ec="none", alpha=alpha)
                    self.add(full, "winner" if won else "share", o)
                if self.data is not None and kind == "cell":
                    ink = theme.on_colour if won else theme.ink
                    self.text(
                        x + 0.44,
                        y + _BAR / 2,
                        number(self.data[i]),
                        0.24,
                        colour=ink,
                        what="value",
                        at=o,
                        bold=won,
                    )
            arrow = FancyArrowPatch((columns + 0.35, y + _BAR / 2), (columns + _GAP - 0.3, y + _BAR / 2))
            arrow.set(arrowstyle="-|>", mutation_scale=self.points * 0.22, color=theme.quiet, lw=1)
            self.add(arrow, "arrow", o)
            self.add(
                rounded(columns + _GAP, y, 1.2, _BAR, 0.14, fc=colour, ec=colour, alpha=0.16, lw=0), "tint", o
            )
            self.add(rounded(columns + _GAP, y, 1.2, _BAR, 0.14, fc="none", ec=colour, lw=1.4), "output", o)
            note = self.note(o)
            middle = columns + _GAP + (0.4 if note and self.result is not None else 0.6)
            if self.result is not None:
                self.text(middle, y + _BAR / 2, number(self.result[o]), 0.27, bold=True, what="output", at=o)
            if note:
                x = columns + _GAP + (0.85 if self.result is not None else 0.6)
                self.text(x, y + _BAR / 2, note, 0.17, colour=theme.quiet, what="note", at=o)

    def draw_values(self, top: float) -> None:
        """Draw the values and flat indices of the input; in 2-D, circle the maxima or minima."""
        theme = self.theme
        sizes = tuple(axis.size for axis in self.axes)
        won: dict[int, list[At]] = {}
        if self.winners is not None and len(sizes) == 2:
            for o in self.chosen:
                won.setdefault(int(self.winners[o]), []).append(o)
        for flat, at in enumerate(np.ndindex(sizes)):
            x, y = self.place(at)
            middle = y + top + (0.4 if self.positions else 0.5)
            for ring, o in enumerate(won.get(flat, [])):
                colour = self.colour(o)
                circle = Circle(
                    (x + 0.5, middle), 0.26 + 0.06 * ring, fc="none" if ring else colour, ec=colour, lw=1.4
                )
                self.add(circle, "winner", o)
            if self.data is not None:
                bold = flat in won
                ink = theme.on_colour if bold else theme.ink
                self.text(
                    x + 0.5, middle, number(self.data[at]), 0.3, colour=ink, what="value", at=at, bold=bold
                )
            if self.positions:
                low = y + top + (0.76 if self.data is not None else 0.5)
                self.text(x + 0.5, low, str(flat), 0.16, colour=theme.quiet, what="position", at=at)

    def draw_output(self, left: float, top: float) -> None:
        """Draw the output of a 2-D pool; outputs that were not chosen are grey."""
        theme, chosen = self.theme, set(self.chosen)
        middle = top + self.out[0] / 2
        arrow = FancyArrowPatch((left - _GAP + 0.4, middle), (left - 0.4, middle))
        arrow.set(arrowstyle="-|>", mutation_scale=self.points * 0.3, color=theme.quiet, lw=1.4)
        self.ax.add_patch(arrow)
        for o in np.ndindex(self.out):
            x, y = left + o[1], top + o[0]
            colour = self.colour(o) if o in chosen else theme.line
            self.add(rounded(x + 0.06, y + 0.06, 0.88, 0.88, 0.14, fc=colour, alpha=0.16, lw=0), "tint", o)
            self.add(rounded(x + 0.06, y + 0.06, 0.88, 0.88, 0.14, fc="none", ec=colour, lw=1.6), "output", o)
            note = self.note(o)
            if self.result is not None:
                high = y + (0.43 if note else 0.5)
                self.text(x + 0.5, high, number(self.result[o]), 0.3, bold=True, what="output", at=o)
            if note:
                low = y + (0.76 if self.result is not None else 0.5)
                self.text(x + 0.5, low, note, 0.16, colour=theme.quiet, what="note", at=o)

    def note(self, o: At) -> str:
        """The note of an output: its divisor, or the index of its maximum or minimum."""
        if self.divisors is not None:
            return f"÷ {self.divisors[o]}"
        return f"at {self.winners[o]}" if self.positions and self.winners is not None else ""

    def caption(self, x: float, y: float, words: str) -> None:
        self.text(x, y, words, 0.22, colour=self.theme.quiet, what="caption", at=())

    def add(self, patch: Patch, what: str, at: At) -> None:
        """Add a patch with its gid."""
        if patch.get_hatch():
            patch.set(hatch_linewidth=0.5)
        patch.set_gid(" ".join((what, ",".join(map(str, at)))).strip())
        self.ax.add_patch(patch)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float,
        *,
        what: str,
        at: At,
        colour: str = "",
        bold: bool = False,
    ) -> None:
        """Add a text; its size is a fraction of a cell, reduced for long numbers."""
        points = self.points * size * (min(1, 4.2 / max(1, len(words))) if what in ("value", "output") else 1)
        text = self.ax.text(x, y, words, ha="center", va="center_baseline", fontsize=points)
        text.set(color=colour or self.theme.ink, fontweight="bold" if bold else "normal", zorder=3)
        text.set_gid(" ".join((what, ",".join(map(str, at)))).strip())


def rounded(x: float, y: float, width: float, height: float, radius: float, **look: Any) -> FancyBboxPatch:
    """A rectangle with rounded corners."""
    box = FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad=0,rounding_size={radius}")
    box.set(**look)
    return box


def number(value: Any) -> str:
    """A number formatted in a few characters."""
    kind = value.dtype.kind
    return f"{value:.3g}" if kind == "f" else f"{int(value)}" if kind in "iub" else f"{float(value):.3g}"


def _label(value: float, shares: bool) -> str:
    return f"{100 * value:.0f} %" if shares else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def draw_bars(
    series: list[str],
    groups: dict[str, tuple[float | None, ...]],
    title: str,
    note: str,
    theme: Theme,
    ax: Axes | None,
    *,
    shares: bool = False,
) -> Figure:
    """Draw groups of horizontal bars, the first on top: factors on a log scale, or shares of 1."""
    height = 0.27 * len(series)
    if ax is None:
        figure = Picture(figsize=(8, 1.4 + 0.42 * len(groups)), dpi=120, layout="constrained")
        ax = figure.add_subplot()
        figure.set_facecolor(theme.page)
    ax.set_facecolor("none")
    ax.set_xscale("linear" if shares else "log")
    for part, (name, colour) in enumerate(zip(series, theme.bars, strict=True)):
        for line, (group, values) in enumerate(groups.items()):
            value = values[part]
            if value is None:
                continue
            y = line + (part - (len(series) - 1) / 2) * 0.27
            (bar,) = ax.barh(y, value, height=0.24, color=colour, label=name if not line else None)
            bar.set_gid(f"bar {group}, {name}")
            label = ax.annotate(
                _label(value, shares), (value, y), (3, 0), textcoords="offset points", va="center"
            )
            label.set(fontsize=6.5, color=theme.quiet, gid=f"factor {group}, {name}")
            label.set_bbox({"fc": theme.page, "ec": "none", "pad": 0.4})
    ax.axvline(1, color=theme.ink, lw=1, ls=(0, (4, 3)))
    ax.set_yticks(range(len(groups)), list(groups), color=theme.ink, fontsize=9)
    ax.set_ylim(len(groups) - 0.4, -1 + height / 2)
    known = [value for values in groups.values() for value in values if value is not None]
    if shares:
        ax.set_xlim(0, max([1.0, *known]) * 1.08)
        ax.xaxis.set_major_formatter(lambda value, _: _label(value, shares))
    else:
        ax.set_xlim(min([0.5, *known]) * 0.9, max([10.0, *known]) * 1.6)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}{_BY}")
    ax.tick_params(axis="x", which="both", colors=theme.quiet, labelsize=8)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=theme.line, lw=0.6, alpha=0.6)
    ax.set_axisbelow(True)
    for name, spine in ax.spines.items():
        spine.set_visible(name == "left")
        spine.set_color(theme.line)
    ax.set_title(title, loc="left", color=theme.ink, fontsize=11, fontweight="bold", pad=26)
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(series),
        frameon=False,
        labelcolor=theme.ink,
        fontsize=9,
    )
    ax.set_xlabel(note, color=theme.quiet, fontsize=8, loc="left")
    return ax.figure  # type: ignore[return-value]
