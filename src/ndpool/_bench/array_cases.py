"""The benchmark's calls of `pool` on arrays as NumPy users have them: images, and other arrays of any rank.

Not the full product: each window of an image has two or three dtypes for each number of channels, each at one
of three sizes; each window of another array has all dtypes. `cases` adds them to the layers of networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ndpool._bench.case import Case

_SIZES = {"1080p": (1080, 1920), "719x1283": (719, 1283), "512x512": (512, 512)}
_CHANNELS: dict[str, tuple[int, ...]] = {"gray": (), "rgb": (3,), "rgba": (4,)}
_IMAGE_DTYPES = ("uint8", "uint16", "float32")
_ARRAY_DTYPES = ("float32", "float64", "int16", "uint8", "bool")

# Reduction, kernel and strides; the common windows come in every dtype.
_IMAGE_WINDOWS = (
    *(("max", k, stride) for k in (2, 3, 7, 31) for stride in sorted({1, 2, k})),
    *(("avg", k, stride) for k in (2, 3, 4, 9) for stride in sorted({1, 2, k})),
)
_COMMON = {("max", 2, 2), ("max", 3, 1), ("max", 3, 2), ("avg", 2, 2), ("avg", 3, 1), ("avg", 4, 4)}


def _images() -> Iterator[Case]:
    for n, (reduction, k, stride) in enumerate(_IMAGE_WINDOWS):
        # Odd windows of stride 1 are centred, as in filters; the others are not padded.
        padding = k // 2 if stride == 1 and k % 2 else 0
        arguments = {"window": (k, k), "stride": stride, "padding": padding}
        arguments |= {"reduce": reduction, "axes": (0, 1)}
        step = "k=s" if stride == k else f"s{stride}"
        for i, (colour, channels) in enumerate(_CHANNELS.items()):
            for j, dtype in enumerate(_IMAGE_DTYPES):
                if (k + i + j) % 3 == 0 and (reduction, k, stride) not in _COMMON:
                    continue
                size = list(_SIZES)[(n + i + 2 * j) % 3]
                name = f"{colour}-{dtype}-{size}-{reduction}{k}-s{stride}"
                group, shape = f"{colour} {reduction} {step}", (*_SIZES[size], *channels)
                yield Case(name, size, group, "pool", arguments, shape, dtype, "C", suite="images")


class _Row(NamedTuple):
    name: str
    what: str
    group: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    kernel: int
    stride: int


_DAYS, _COARSE_DAYS = (365, 180, 360), (365, 90, 180)  # time x latitude x longitude, 1 and 2 degrees
_ROWS = (
    _Row("weekly", "climate", "first axis k=s", _DAYS, (0,), 7, 7),
    _Row("monthly", "climate", "first axis k=s", _COARSE_DAYS, (0,), 30, 30),
    _Row("running-week", "climate", "first axis s1", _COARSE_DAYS, (0,), 7, 1),
    _Row("running-month", "climate", "first axis s1", _COARSE_DAYS, (0,), 31, 1),
    _Row("every-other-day", "climate", "first axis s2", _COARSE_DAYS, (0,), 3, 2),
    _Row("bands", "climate", "middle axis k=s", _COARSE_DAYS, (1,), 6, 6),
    _Row("rows-by-50", "tables", "middle axis k=s", (3, 5000, 400), (1,), 50, 50),
    _Row("rows-3", "tables", "middle axis s1", (3, 5000, 200), (1,), 3, 1),
    _Row("rows-51", "tables", "middle axis s1", (3, 5000, 200), (1,), 51, 1),
    _Row("samples-by-4", "signals", "last axis k=s", (8, 1_000_000), (1,), 4, 4),
    _Row("samples-by-100", "signals", "last axis k=s", (8, 1_000_000), (1,), 100, 100),
    _Row("signal-by-1000", "signals", "last axis k=s", (4_000_000,), (0,), 1000, 1000),
    _Row("signal-3", "signals", "last axis s1", (1_000_000,), (0,), 3, 1),
    _Row("signal-101", "signals", "last axis s1", (1_000_000,), (0,), 101, 1),
    _Row("hops", "signals", "last axis s4", (2, 1_000_000), (1,), 16, 4),
    _Row("grid-2x2", "climate", "last two axes", _COARSE_DAYS, (1, 2), 2, 2),
    _Row("grid-5x5", "climate", "last two axes", (90, 90, 180), (1, 2), 5, 1),
    _Row("volume-2x2x2", "volumes", "three axes", (160, 160, 160), (0, 1, 2), 2, 2),
    _Row("volume-3x3x3", "volumes", "three axes", (96, 96, 96), (0, 1, 2), 3, 1),
)


def _arrays() -> Iterator[Case]:
    for row in _ROWS:
        padding = row.kernel // 2 if row.stride == 1 else 0
        window = {"window": (row.kernel,) * len(row.axes), "stride": row.stride, "padding": padding}
        for reduction in ("max", "avg"):
            arguments: dict[str, Any] = {**window, "reduce": reduction, "axes": row.axes}
            for dtype in _ARRAY_DTYPES:
                # Masks have no average; SciPy, the only peer there, truncates integers after every axis.
                integers = dtype in ("int16", "uint8") and row.name == "volume-3x3x3"
                if reduction == "avg" and (dtype == "bool" or integers):
                    continue
                what = "masks" if dtype == "bool" else row.what
                name, group = f"{row.name}-{reduction}-{dtype}", f"{reduction} {row.group}"
                yield Case(name, what, group, "pool", arguments, row.shape, dtype, "C", suite="arrays")


IMAGE_CASES: tuple[Case, ...] = tuple(_images())
ARRAY_CASES: tuple[Case, ...] = tuple(_arrays())
