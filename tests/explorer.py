"""Helpers of the explorer's tests: random settings, expected results, a running server, PNG files."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import isinf

import numpy as np

import oracle
from helpers import HANG
from ndpool._explore.server import Server

REDUCTIONS = ("max", "min", "avg", "sum", "lp")


def draw(random):
    """Random settings of all controls, one text per control and axis; most give valid windows."""
    dims = random.choice([1, 2])

    def axes(least, most):
        return [str(random.randint(least, most)) for _ in range(dims)]

    return {
        "dims": [str(dims)],
        "mode": [random.choice(["sliding", "sliding", "sliding", "adaptive"])],
        "reduce": [random.choice(REDUCTIONS)],
        "size": axes(1, 11),
        "kernel": axes(1, 4),
        "stride": random.choice([[""] * dims, axes(1, 4)]),
        "padding": [random.choice(["even", "even", "pairs", "same", "same_lower", "valid"])],
        "before": axes(0, 2),
        "after": axes(0, 3),
        "dilation": random.choice([["1"] * dims, axes(1, 3)]),
        "ceil_mode": [random.choice("01")],
        "count_include_pad": [random.choice("01")],
        "divisor_override": [random.choice(["", "", "3", "-2"])],
        "norm_type": [random.choice(["2", "3", "1.5", "inf", "-inf", "-1"])],
        "output_size": axes(1, 9),
        "data": [random.choice(["random", "ramp"])],
        "seed": [str(random.randint(0, 999))],
    }


def query(settings):
    """The settings as a query string."""
    values = {name: "x".join(texts) for name, texts in settings.items() if name not in ("before", "after")}
    if not any(settings["stride"]):
        values["stride"] = ""
    sides = zip(settings["before"], settings["after"], strict=True)
    if values["padding"] == "even":
        values["padding"] = "x".join(settings["before"])
    elif values["padding"] == "pairs":
        values["padding"] = "x".join(",".join(pair) for pair in sides)
    return "&".join(f"{name}={text}" for name, text in values.items())


class Expected:
    """The oracle's input, windows, output, indices and divisors for settings."""

    def __init__(self, settings):
        size, kernel, dilation, outs = (
            tuple(map(int, settings[name])) for name in ("size", "kernel", "dilation", "output_size")
        )
        reduce, seed, norm = settings["reduce"][0], int(settings["seed"][0]), float(settings["norm_type"][0])
        include = settings["count_include_pad"] == ["1"]
        random = np.random.default_rng(seed).integers(-9, 10, size).astype(float)
        self.x = random if settings["data"] == ["random"] else np.arange(float(np.prod(size))).reshape(size)
        self.adaptive = settings["mode"] == ["adaptive"]
        self.pads = [(0, 0)] * len(size)
        if self.adaptive:
            self.plan = oracle.adaptive_plan(size, outs)
        else:
            stride = tuple(map(int, settings["stride"])) if any(settings["stride"]) else kernel
            self.pads = _padding(settings, size, kernel, stride, dilation)
            ceil = settings["ceil_mode"] == ["1"]
            self.plan = oracle.sliding_plan(size, kernel, stride, self.pads, dilation, ceil)
        counts = np.maximum(oracle.counts(self.plan, include), 1)
        self.index = self.divisor = None
        if reduce in ("max", "min"):
            self.y, self.index = oracle.select(self.x, self.plan, least=reduce == "min")
        elif reduce == "sum":
            self.y = oracle.total(self.x, self.plan)
        elif reduce == "avg":
            own = settings["divisor_override"][0] if not self.adaptive else ""
            self.divisor = np.full_like(counts, int(own)) if own else counts
            self.y = oracle.mean(self.x, self.plan, self.divisor)
        elif isinf(norm):
            self.y = oracle.select(abs(self.x), self.plan, least=norm < 0)[0]
        else:
            with np.errstate(all="ignore"):
                self.y = oracle.total(abs(self.x) ** norm, self.plan) ** (1 / norm)


def _padding(settings, size, kernel, stride, dilation):
    kind = settings["padding"][0]
    before, after = (list(map(int, settings[name])) for name in ("before", "after"))
    if kind in ("even", "pairs"):
        return list(zip(before, after if kind == "pairs" else before, strict=True))
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        # The least padding that gives ceil(n / s) windows; the odd element goes after the input, or before.
        total = next(
            t for t in range(1000) if kind == "valid" or (n + t - d * (k - 1) - 1) // s + 1 >= -(-n // s)
        )
        pads.append((total // 2, total - total // 2)[:: 1 if kind != "same_lower" else -1])
    return pads


@contextmanager
def running() -> Iterator[Server]:
    """A server in a thread of this process."""
    server = Server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(condition):
    """Poll until the condition holds; the limit only stops a test that hangs."""
    for _ in range(HANG * 50):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("the condition did not become true")


def png(pixels):
    """An RGBA image as the bytes of a PNG file."""

    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], 1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
