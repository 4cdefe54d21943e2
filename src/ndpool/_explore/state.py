"""The settings of the explorer: parsed from a query string, validated, and written back in canonical form.

The page sends its controls as a query and gets the canonical form back, so the grammar is defined only here.
The limits are those of the drawing; ndpool itself checks whether the windows are valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, quote

from ndpool.reductions import REDUCTIONS

Ints = tuple[int, ...]
Padding = str | tuple[tuple[int, int], ...]

MAX_SIZE = 32
MAX_PADDING = 16
MAX_TEXT = 32_768
_NAMED_PADDING = ("same", "same_lower", "valid")
_MODES = ("sliding", "adaptive")
_DATA = ("random", "ramp", "custom")


@dataclass(frozen=True)
class State:
    """The values of all controls; tuples have one entry per pooled axis."""

    dims: int = 2
    mode: str = "sliding"
    reduce: str = "max"
    size: Ints = (6, 8)
    kernel: Ints = (3, 3)
    stride: Ints | None = (2, 2)
    padding: Padding = ((1, 1), (1, 1))
    dilation: Ints = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None
    norm_type: float = 2.0
    output_size: Ints = (3, 3)
    data: str = "random"
    seed: int = 7
    values: tuple[tuple[float, ...], ...] = ()
    at: int = 0
    play: bool = False

    def __str__(self) -> str:
        """The query that `parse` reads back, without default values."""
        default = _defaults(self.dims)
        shown = {f.name: _write(getattr(self, f.name)) for f in fields(self)}
        changed = {
            name: text
            for name, text in shown.items()
            if name == "dims" or getattr(self, name) != getattr(default, name)
        }
        if self.dims == 2:
            del changed["dims"]
        return "&".join(f"{name}={quote(text, safe=',;')}" for name, text in changed.items())

    def controls(self) -> dict[str, list[str]]:
        """The text of each control of the page: one per axis, or one."""
        shown = {}
        for field in fields(self):
            value = getattr(self, field.name)
            shown[field.name] = (
                [_write(v) for v in value] if _per_axis(field.name, value) else [_write(value)]
            )
        if self.stride is None:
            shown["stride"] = [""] * self.dims
        pads = self.padding if isinstance(self.padding, tuple) else ((0, 0),) * self.dims
        named = isinstance(self.padding, str)
        uneven = any(before != after for before, after in pads)
        shown["padding"] = [str(self.padding) if named else "pairs" if uneven else "even"]
        shown["before"], shown["after"] = ([str(p[i]) for p in pads] for i in (0, 1))
        return shown


def parse(text: str) -> State:
    """The state encoded in a URL, its fragment or a query; raises `ValueError` if it is invalid."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"explore: the state is too long; got {len(text)} characters (limit {MAX_TEXT})")
    if "#" in text or "://" in text:
        text = text.partition("#")[2]
    given: dict[str, str] = {}
    for name, value in parse_qsl(text.lstrip("?"), keep_blank_values=True, max_num_fields=64):
        if name not in _READERS:
            raise ValueError(f"explore: unknown setting {name[:40]!r}; settings are {', '.join(_READERS)}")
        if name in given:
            raise ValueError(f"explore: {name} is given twice")
        given[name] = value.strip()
    dims = _integer("dims", given.pop("dims", "2"), 1, 2)
    chosen = {name: _READERS[name](name, value, dims) for name, value in given.items()}
    return State(**{**vars(_defaults(dims)), **chosen})


def _defaults(dims: int) -> State:
    if dims == 2:
        return State()
    return State(1, size=(12,), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(1,), output_size=(5,))


def _per_axis(name: str, value: object) -> bool:
    return isinstance(value, tuple) and name not in ("padding", "values")


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value or value != value else repr(value)
    if not isinstance(value, tuple):
        return str(value)
    if value and all(isinstance(v, int) for v in value):
        return str(value[0]) if len(set(value)) == 1 else "x".join(map(str, value))
    if value and len(value[0]) == 2 and all(isinstance(v, int) for pair in value for v in pair):
        axes = [str(a) if a == b else f"{a},{b}" for a, b in value]
        return axes[0] if len(set(axes)) == 1 else "x".join(axes)
    return ";".join(",".join(map(_write, row)) for row in value)


def _integer(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"explore: {name} must be an integer; got {name}={text[:40]!r}")
    value = int(text)
    if not least <= value <= most:
        raise ValueError(f"explore: {name} must be from {least} to {most}; got {name}={value}")
    return value


def _number(name: str, text: str) -> float:
    try:
        return float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        raise ValueError(f"explore: {name} must be a number; got {name}={text[:40]!r}") from None


def _parts(name: str, text: str, dims: int) -> list[str]:
    """One text per axis; a single one applies to all axes."""
    parts = text.split("x")
    if len(parts) == 1:
        return parts * dims
    if len(parts) != dims:
        raise ValueError(f"explore: {name} must have one number per axis ({dims}); got {name}={text[:40]!r}")
    return parts


def _integers(least: int, most: int) -> Callable[[str, str, int], Ints]:
    return lambda name, text, dims: tuple(_integer(name, p, least, most) for p in _parts(name, text, dims))


def _padding(name: str, text: str, dims: int) -> Padding:
    if text in _NAMED_PADDING:
        return text
    pads = []
    for part in _parts(name, text, dims):
        sides = part.split(",")
        if len(sides) > 2:
            raise ValueError(f"explore: {name} must be n or before,after per axis; got {name}={part[:40]!r}")
        first, last = (_integer(name, side, 0, MAX_PADDING) for side in (sides[0], sides[-1]))
        pads.append((first, last))
    return tuple(pads)


def _choice(choices: tuple[str, ...]) -> Callable[[str, str, int], str]:
    def read(name: str, text: str, _: int) -> str:
        if text not in choices:
            raise ValueError(f"explore: {name} must be one of {', '.join(choices)}; got {name}={text[:40]!r}")
        return text

    return read


def _flag(name: str, text: str, _: int) -> bool:
    return bool(_integer(name, text, 0, 1))


def _values(name: str, text: str, _: int) -> tuple[tuple[float, ...], ...]:
    if not text:
        return ()
    rows = tuple(tuple(_number(name, part) for part in row.split(",")) for row in text.split(";"))
    if len(rows) > MAX_SIZE or max(map(len, rows)) > MAX_SIZE:
        raise ValueError(f"explore: {name} must have at most {MAX_SIZE} rows and columns")
    return rows


_sizes = _integers(1, MAX_SIZE)
_READERS: dict[str, Callable[[str, str, int], Any]] = {
    "dims": lambda *_: None,  # parsed first because the others depend on it
    "mode": _choice(_MODES),
    "reduce": _choice(tuple(REDUCTIONS)),
    "size": _sizes,
    "kernel": _sizes,
    "stride": lambda name, text, dims: _sizes(name, text, dims) if text else None,
    "padding": _padding,
    "dilation": _integers(1, MAX_PADDING),
    "ceil_mode": _flag,
    "count_include_pad": _flag,
    "divisor_override": lambda name, text, _: _integer(name, text, -(10**9), 10**9) if text else None,
    "norm_type": lambda name, text, _: _number(name, text),
    "output_size": _sizes,
    "data": _choice(_DATA),
    "seed": lambda name, text, _: _integer(name, text, 0, 2**32 - 1),
    "values": _values,
    "at": lambda name, text, _: _integer(name, text, 0, 10**6),
    "play": _flag,
}
