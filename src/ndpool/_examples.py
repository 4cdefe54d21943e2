"""The worked examples, run by the command line, a script in ``examples/`` and the tests.

An example is the source of a few lines of code and the expected values of expressions evaluated after it.
The printed source is the source that runs. The examples need only NumPy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np

import ndpool
from ndpool import nn

PREAMBLE = """\
import numpy as np
import ndpool
from ndpool import nn
rng = np.random.default_rng(0)"""


class Outcome(NamedTuple):
    """One checked expression of an example: its value, and whether that was expected."""

    expression: str
    value: Any
    passed: bool


@dataclass(frozen=True)
class Example:
    """A title, the code, and the expected values of expressions evaluated after it."""

    title: str
    code: str
    expected: Mapping[str, Any]

    def run(self) -> Iterator[Outcome]:
        """Run the code, then yield each expression with its value and whether it passed."""
        scope = {"np": np, "ndpool": ndpool, "nn": nn, "rng": np.random.default_rng(0)}
        exec(compile(self.code, f"<{self.title}>", "exec"), scope)
        for expression, expected in self.expected.items():
            value = eval(expression, scope)
            yield Outcome(expression, value, np.array_equal(value, expected))


EXAMPLES = (
    Example(
        "A 2x2 max pool halves a feature map",
        """\
x = rng.random((8, 64, 32, 32), dtype=np.float32)
y = ndpool.max_pool2d(x, 2)""",
        {
            "y.shape": (8, 64, 16, 16),
            "np.array_equal(y, x.reshape(8, 64, 16, 2, 16, 2).max(axis=(3, 5)))": True,
        },
    ),
    Example(
        "A 7x7 window with stride 1 and padding 3 keeps the size",
        """\
x = rng.random((1, 3, 224, 224), dtype=np.float32)
y = ndpool.max_pool2d(x, 7, 1, 3)""",
        {"y.shape": (1, 3, 224, 224), "bool((y >= x).all())": True},
    ),
    Example(
        "The maximum of every 2x2 block and its index",
        """\
x = np.array([[[[-0.4128, 0.2341, -0.9876, 0.4567],
                [0.1234, 0.8765, -0.2345, 0.6789],
                [-0.5678, 0.3456, 0.7890, -0.1234],
                [0.9012, -0.4567, 0.2345, 0.5678]]]])
y, i = nn.MaxPool2d(2, 2, return_indices=True)(x)""",
        {
            "y": [[[[0.8765, 0.6789], [0.9012, 0.7890]]]],
            "i": [[[[5, 7], [12, 10]]]],
            "np.array_equal(x.flat[i], y)": True,
            "nn.MaxPool2d(3, 1, padding=1)(x).shape": (1, 1, 4, 4),
        },
    ),
    Example(
        "Overlapping windows and rectangular windows",
        """\
x = np.arange(54.0).reshape(1, 1, 6, 9)
overlapping = nn.MaxPool2d(3, stride=1)
rectangular = nn.MaxPool2d((2, 3), stride=(2, 3))""",
        {
            "overlapping(x).shape": (1, 1, 4, 7),
            "rectangular(x).shape": (1, 1, 3, 3),
            "rectangular(x)": [[[[11, 14, 17], [29, 32, 35], [47, 50, 53]]]],
        },
    ),
    Example(
        "Global pooling: one number for every channel",
        """\
x = rng.random((32, 2048, 7, 7), dtype=np.float32)
top = ndpool.adaptive_max_pool2d(x, 1)
mean = ndpool.adaptive_avg_pool2d(x, 1)""",
        {
            "top.shape": (32, 2048, 1, 1),
            "mean.shape": (32, 2048, 1, 1),
            "np.array_equal(top, x.max(axis=(2, 3), keepdims=True))": True,
            "np.allclose(mean, x.mean(axis=(2, 3), keepdims=True))": True,
        },
    ),
    Example(
        "Adaptive pooling: any input size, a fixed output size",
        """\
head = nn.AdaptiveAvgPool2d((7, 7))
small, large = np.ones((1, 256, 56, 56)), np.ones((1, 256, 112, 112))
level = np.arange(196.0).reshape(1, 1, 14, 14)""",
        {
            "head(small).shape": (1, 256, 7, 7),
            "head(large).shape": (1, 256, 7, 7),
            "nn.AdaptiveMaxPool2d((7, 7))(level)[0, 0, :, -1]": [27, 55, 83, 111, 139, 167, 195],
            "ndpool.adaptive_max_pool2d(np.ones((4, 3, 16, 16)), [8, 8]).shape": (4, 3, 8, 8),
            "ndpool.adaptive_avg_pool2d(np.ones((4, 3, 100, 100)), [10, 10]).shape": (4, 3, 10, 10),
        },
    ),
    Example(
        "Pool with indices, then unpool every value to its original position",
        """\
x = rng.random((2, 3, 28, 28)) + 1
y, i = ndpool.max_pool2d(x, 2, return_indices=True)
back = ndpool.max_unpool2d(y, i, 2)""",
        {
            "y.shape": (2, 3, 14, 14),
            "back.shape": (2, 3, 28, 28),
            "int(np.count_nonzero(back)) == y.size": True,
            "np.array_equal(back[back > 0], x[back > 0])": True,
        },
    ),
    Example(
        "A plain 7x5 image: partial windows are dropped, or kept in ceil mode",
        """\
image = np.arange(35.0).reshape(7, 5)
floor = ndpool.pool(image, (2, 2))
ceil = ndpool.pool(image, (2, 2), ceil_mode=True)
mean = ndpool.pool(image, (2, 2), reduce="avg", ceil_mode=True)""",
        {
            "floor": [[6, 8], [16, 18], [26, 28]],
            "ceil": [[6, 8, 9], [16, 18, 19], [26, 28, 29], [31, 33, 34]],
            "mean[-1]": [30.5, 32.5, 34],
        },
    ),
    Example(
        "Dilating a mask: max pooling with stride 1",
        """\
mask = np.zeros((5, 7), dtype=np.uint8)
mask[1, 2] = mask[4, 6] = 1
grown = ndpool.pool(mask, (3, 3), stride=1, padding=1)""",
        {
            "grown": [
                [0, 1, 1, 1, 0, 0, 0],
                [0, 1, 1, 1, 0, 0, 0],
                [0, 1, 1, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 1, 1],
                [0, 0, 0, 0, 0, 1, 1],
            ],
            "grown.dtype.name": "uint8",
        },
    ),
    Example(
        "Channels last: name the axes to pool",
        """\
x = rng.random((2, 8, 6, 3))
y = ndpool.pool(x, (2, 2), axes=(-3, -2))""",
        {
            "y.shape": (2, 4, 3, 3),
            "np.array_equal(y, ndpool.max_pool2d(x.transpose(0, 3, 1, 2), 2).transpose(0, 2, 3, 1))": True,
        },
    ),
    Example(
        "A moving average that keeps the length and never averages in padding",
        """\
x = np.array([3.0, 6.0, 9.0, 0.0, 12.0])
y = ndpool.pool(x, (3,), reduce="avg", stride=1, padding="same", count_include_pad=False)""",
        {"y": [4.5, 6, 5, 7, 6]},
    ),
)


def run_all() -> int:
    """Run and print every example with its results, and return the number of failed checks."""
    print(_prompt(PREAMBLE))
    failures = 0
    for number, example in enumerate(EXAMPLES, 1):
        # Flush before running, so that the title shows which example is in progress.
        print(f"\n[{number}/{len(EXAMPLES)}] {example.title}", flush=True)
        print(_prompt(example.code))
        for expression, value, passed in example.run():
            print(_prompt(expression))
            print(indent(repr(value), "    ") + ("" if passed else "    <- FAILED"))
            failures += not passed
    checks = sum(len(example.expected) for example in EXAMPLES)
    if failures:
        print(f"ndpool: {failures} of {checks} checks failed", file=sys.stderr)
    else:
        print(f"\nAll {checks} checks of {len(EXAMPLES)} examples passed.")
    return failures


def _prompt(code: str) -> str:
    return "\n".join(f"    {'...' if line.startswith(' ') else '>>>'} {line}" for line in code.splitlines())
