"""An SVG picture of one small 2-D max pool: input, padding, windows, maxima and output.

Used by ``ndpool demo``. The windows come from ``ndpool.windows`` and the values from ``ndpool.max_pool2d``;
this module only draws. The colours follow the viewer's light or dark theme.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

import ndpool

_CELL, _MARGIN, _GAP, _HEAD, _FOOT = 64, 28, 96, 64, 58
_COLOURS = ("#2563eb", "#ea580c", "#059669", "#db2777", "#7c3aed", "#0891b2", "#b45309", "#4d7c0f")
_STYLE = """
  text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; text-anchor: middle; fill: #1f2328 }
  .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 16px; text-anchor: start }
  .value { font-size: 20px }
  .winner, .output { font-size: 20px; font-weight: 600 }
  .winner { fill: #ffffff }
  .note { font-size: 13px }
  .index { font-size: 10px }
  .note, .index { fill: #656d76 }
  .page { fill: #ffffff }
  .cell { fill: none; stroke: #d0d7de }
  .padding { stroke: #d0d7de }
  .shade { fill: #eaeef2 }
  .hatch { stroke: #ccd3da; stroke-width: 2 }
  .arrow { stroke: #656d76; fill: none; stroke-width: 2.5; stroke-linecap: round; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note, .index { fill: #9198a1 }
    .page { fill: #0d1117 }
    .cell, .padding { stroke: #3d444d }
    .shade { fill: #1b2129 }
    .hatch { stroke: #2f363f }
    .arrow { stroke: #9198a1 }
  }
"""


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: object) -> ET.Element:
    names = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = ET.SubElement(parent, tag, names)
    element.text = text
    return element


def _window_colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def pool_picture(
    x: NDArray[Any],
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | tuple[int, int] = 0,
) -> str:
    """Draw ``max_pool2d(x, kernel_size, stride, padding)`` of one plane and return the SVG document."""
    values, indices = ndpool.max_pool2d(x[None], kernel_size, stride, padding, return_indices=True)
    values, indices = values[0], indices[0]
    pads = _pair(padding)
    padded = [size + 2 * pad for size, pad in zip(x.shape, pads, strict=True)]
    # The windows of the padded plane are the windows of the plane including their padding.
    spans = [ndpool.windows(*axis) for axis in zip(padded, _pair(kernel_size), _pair(stride), strict=True)]
    rows, columns = padded
    right = _MARGIN + columns * _CELL
    width = right + _GAP + values.shape[1] * _CELL + _MARGIN
    height = _HEAD + rows * _CELL + _FOOT

    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    root.attrib.update(width=str(width), height=str(height), viewBox=f"0 0 {width} {height}")
    call = f"max_pool2d(x, {kernel_size}, stride={stride}, padding={padding}, return_indices=True)"
    _add(root, "title", call)
    _add(root, "style", _STYLE)
    hatch = _add(
        _add(root, "defs"), "pattern", id="padding", width=8, height=8, patternUnits="userSpaceOnUse"
    )
    hatch.set("patternTransform", "rotate(45)")
    _add(hatch, "rect", class_="shade", width=8, height=8)
    _add(hatch, "line", class_="hatch", x1=0, y1=0, x2=0, y2=8)
    _add(root, "rect", class_="page", width=width, height=height, rx=12)
    _add(root, "text", call, class_="code", x=_MARGIN, y=38)

    _draw_input(root, x, pads, spans, indices)
    middle = _HEAD + rows * _CELL / 2
    _draw_arrow(root, right + _GAP * 0.3, right + _GAP * 0.7, middle)
    _draw_output(root, values, indices, right + _GAP, middle - values.shape[0] * _CELL / 2)

    foot = _HEAD + rows * _CELL + 24
    border = "; hatched: padding, never selected" if any(pads) else ""
    notes = (
        f"input {x.shape[0]} x {x.shape[1]}, small: flat indices{border}",
        "outlined: windows; filled: the maximum of the window of that colour",
    )
    for line, note in enumerate(notes):
        _add(root, "text", note, class_="note", x=(_MARGIN + right) / 2, y=foot + 20 * line)
    under_output = middle + values.shape[0] * _CELL / 2 + 24
    output_note = f"output {values.shape[0]} x {values.shape[1]}"
    _add(root, "text", output_note, class_="note", x=(right + _GAP + width - _MARGIN) / 2, y=under_output)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _draw_input(
    root: ET.Element,
    x: NDArray[Any],
    pads: tuple[int, int],
    spans: list[list[range]],
    indices: NDArray[Any],
) -> None:
    """Draw the padded grid, then the windows, then the values with the maxima marked."""
    rows, columns = (size + 2 * pad for size, pad in zip(x.shape, pads, strict=True))
    for row, column in np.ndindex(rows, columns):
        inside = pads[0] <= row < rows - pads[0] and pads[1] <= column < columns - pads[1]
        look = {"class_": "cell"} if inside else {"class_": "padding", "fill": "url(#padding)"}
        at = {"x": _MARGIN + column * _CELL, "y": _HEAD + row * _CELL}
        _add(root, "rect", **look, **at, width=_CELL, height=_CELL)
    for number, (o_row, o_column) in enumerate(np.ndindex(indices.shape)):
        down, across = spans[0][o_row], spans[1][o_column]
        # Different insets keep the shared edges of neighbouring windows visible.
        inset = 3 + 4 * ((o_row + o_column) % 2)
        colour = _window_colour(number)
        _add(
            root,
            "rect",
            class_="window",
            x=_MARGIN + across[0] * _CELL + inset,
            y=_HEAD + down[0] * _CELL + inset,
            width=(across[-1] + 1 - across[0]) * _CELL - 2 * inset,
            height=(down[-1] + 1 - down[0]) * _CELL - 2 * inset,
            rx=8,
            fill=colour,
            fill_opacity=0.07,
            stroke=colour,
            stroke_width=2.5,
        )
    winners: dict[int, list[str]] = defaultdict(list)
    for number, index in enumerate(indices.flat):
        winners[int(index)].append(_window_colour(number))
    for index, value in enumerate(x.flat):
        row, column = divmod(index, x.shape[1])
        left, top = _MARGIN + (column + pads[1]) * _CELL, _HEAD + (row + pads[0]) * _CELL
        colours = winners[index]
        for ring, colour in enumerate(colours):
            fill = "none" if ring else colour
            at = {"cx": left + _CELL / 2, "cy": top + 25}
            _add(
                root, "circle", class_="mark", **at, r=16 + 4 * ring, fill=fill, stroke=colour, stroke_width=2
            )
        _add(
            root,
            "text",
            f"{value:g}",
            class_="winner" if colours else "value",
            x=left + _CELL / 2,
            y=top + 32,
        )
        _add(root, "text", str(index), class_="index", x=left + _CELL / 2, y=top + 52)


def _draw_arrow(root: ET.Element, start: float, end: float, y: float) -> None:
    _add(root, "path", class_="arrow", d=f"M {start:g} {y:g} H {end:g} m -9 -8 l 9 8 l -9 8")


def _draw_output(
    root: ET.Element,
    values: NDArray[Any],
    indices: NDArray[Any],
    left: float,
    top: float,
) -> None:
    """Draw the output grid: each value in the colour of its window, with its index below."""
    for number, (row, column) in enumerate(np.ndindex(values.shape)):
        colour = _window_colour(number)
        x, y = left + column * _CELL, top + row * _CELL
        inner = {"x": x + 3, "y": y + 3, "width": _CELL - 6, "height": _CELL - 6, "rx": 8}
        _add(root, "rect", **inner, fill=colour, fill_opacity=0.12, stroke=colour, stroke_width=2.5)
        _add(root, "text", f"{values[row, column]:g}", class_="output", x=x + _CELL / 2, y=y + 34)
        _add(root, "text", f"from {indices[row, column]}", class_="index", x=x + _CELL / 2, y=y + 51)
