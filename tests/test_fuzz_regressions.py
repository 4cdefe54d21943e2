"""Regression tests for failures that the fuzzer found.

Each call runs with all its variations in a child process, next to fences on either side, on every instruction
set. A new entry is a small call that fails before the fix; seeds are not used because they change with the
fuzzer.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fences import ENDS, Layout, packed
from fuzz.case import Case, given
from fuzz.check import check
from helpers import hard_values, run_child
from ndpool._native import core
from oracle import is_float

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences need mprotect")


def order(*axes: int) -> Layout:
    """A layout with the axes in this memory order, outermost first."""
    return packed(len(axes), axes)


def gaps(*free: int) -> Layout:
    """A layout with this many unused elements after each axis."""
    return packed(len(free))._replace(gaps=free)


def steps(*each: int) -> Layout:
    """A layout with these steps in elements along the axes."""
    return packed(len(each))._replace(steps=each)


REVERSED = (packed(2)._replace(signs=(-1,) * 2), packed(3)._replace(signs=(-1,) * 3))

# function, dtype, shape, arguments; layout of the input and of `out`
FOUND: dict[str, tuple[Any, ...]] = {
    # One output: the stride along its axis is meaningless but was used as the pitch of a row.
    "one output, middle axis": (
        "pool",
        "f8",
        (3, 5, 24),
        {"window": (5,), "stride": 1, "axes": 1},
        order(2, 1, 0),
    ),
    "one output, int16": ("pool", "i2", (3, 5, 24), {"window": (5,), "stride": 1, "axes": 1}, order(2, 1, 0)),
    "one output, averages": (
        "pool",
        "f4",
        (2, 5, 5, 8),
        {"window": (5,), "stride": 1, "axes": 2, "reduce": "avg"},
        order(3, 2, 1, 0),
    ),
    "one output, four axes": (
        "pool",
        "f8",
        (33, 2, 4, 10),
        {"window": (4,), "stride": 1, "axes": 2},
        order(3, 1, 0, 2),
    ),
    "one output, rows apart": (
        "avg_pool1d",
        "f4",
        (2, 33, 15),
        {"kernel_size": 15, "stride": 1},
        order(1, 2, 0),
    ),
    "one output, dilated sums": (
        "pool",
        "f8",
        (4, 4, 2, 4),
        {"window": (3,), "stride": 1, "padding": [(0, 3)], "dilation": 3, "reduce": "sum"},
        order(2, 3, 0, 1),
    ),
    "an axis of one element": (
        "pool",
        "f4",
        (4, 3, 1),
        {"window": (1, 3), "stride": (3, 1), "padding": [(0, 0), (0, 1)], "axes": (-1, -2)},
    ),
    "an axis of one element, sums": (
        "pool",
        "f4",
        (6, 5, 6, 3, 1),
        {"window": (1, 3), "stride": (3, 1), "padding": [(0, 0), (0, 1)], "axes": (4, 3), "reduce": "sum"},
    ),
    # Memory next to `out` must not change.
    "some channels of out": (
        "max_pool2d",
        "u1",
        (2, 3, 7, 7),
        {"kernel_size": 3, "stride": 1, "padding": 1},
        None,
        gaps(0, 49, 0, 0),
    ),
    "some channels of out, averages": (
        "avg_pool2d",
        "f4",
        (2, 3, 7, 9),
        {"kernel_size": 3, "stride": 1, "padding": 1},
        steps(1, 1, 1, 2),
        gaps(0, 3, 0, 0),
    ),
    "out with a gap": (
        "pool",
        "f4",
        (10, 24, 9),
        {"window": (4,), "stride": 1, "reduce": "min"},
        None,
        gaps(0, 1, 0),
    ),
    "out with a gap, averages": (
        "avg_pool1d",
        "f4",
        (2, 65, 3),
        {"kernel_size": 5, "stride": 1, "padding": 1},
        None,
        gaps(0, 5, 0),
    ),
    "out with steps": (
        "pool",
        "?",
        (13, 7, 4),
        {"window": (4,), "stride": 1},
        steps(1, 3, 1),
        steps(1, 1, 3),
    ),
    "out in another order": (
        "pool",
        "f8",
        (6, 5, 2),
        {"window": (2,), "stride": 1, "return_indices": True},
        None,
        order(1, 2, 0),
    ),
    "out reversed": ("avg_pool1d", "f8", (2, 7, 2), {"kernel_size": 2, "stride": 1}, None, REVERSED[1]),
    "out of other bits": (
        "pool",
        "i8",
        (4, 3, 7, 6),
        {"window": (2,), "stride": 1, "reduce": "avg", "dtype": "float64"},
        None,
        gaps(0, 4, 0, 0),
    ),
    # Rows one element longer than a vector, with several partial windows at the end.
    "rows a little longer than a vector": (
        "pool",
        "f4",
        (6, 2, 33),
        {
            "window": (1, 2),
            "stride": (1, 2),
            "dilation": (1, 3),
            "padding": [(0, 0), (0, 2)],
            "ceil_mode": True,
            "return_indices": True,
        },
    ),
    "rows a little longer than a short vector": (
        "pool",
        "f8",
        (6, 2, 17),
        {
            "window": (1, 3),
            "stride": (1, 2),
            "padding": [(0, 0), (4, 4)],
            "dilation": (1, 4),
            "ceil_mode": True,
        },
    ),
    # PyTorch rounds powers differently at the end of a tensor.
    "norm of a part": (
        "pool",
        "i8",
        (31, 13, 1),
        {"window": (3,), "ceil_mode": True, "reduce": "lp", "norm_type": 3, "axes": (0,), "dtype": "float64"},
    ),
    # Axes out of order.
    "axes out of order": ("pool", "f4", (3, 4, 5, 6), {"window": (2, 2, 2), "axes": (1, 0, 3)}),
    "axes out of order, adaptive": (
        "adaptive_pool",
        "f8",
        (4, 2, 5, 1),
        {"output_size": (1, 1, 1), "axes": (1, 0, 3), "reduce": "avg"},
    ),
    # Integer Lp pooling over adaptive windows is the norm of each window, whether sizes differ or not.
    "adaptive norm of integers": (
        "adaptive_pool",
        "i8",
        (3, 3),
        {"output_size": (1,), "reduce": "lp", "norm_type": 1},
    ),
    "adaptive norm of integers, unequal windows": (
        "adaptive_pool",
        "i4",
        (3, 5),
        {"output_size": (2,), "reduce": "lp", "norm_type": 2},
    ),
    # The order of additions must depend only on the window.
    "gradient of a part": (
        "avg_pool2d",
        "f4",
        (3, 16, 3, 8),
        {"kernel_size": 3, "stride": 1},
        None,
        None,
        order(0, 2, 3, 1),
    ),
}


def cases(name: str) -> list[Case]:
    """The call on arrays and tensors, on every instruction set, next to fences on either side."""
    function, dtype, shape, kwargs, layout, out, other = (*FOUND[name], None, None, None)[:7]
    found = []
    for number in range(len(core.isa_names())):
        for end in ENDS:
            for framework in ("numpy", "torch") if find_spec("torch") else ("numpy",):
                values = hard_values(shape, dtype, special=0.0)
                if is_float(values.dtype):  # use sums that round
                    values = np.random.default_rng(0).normal(size=shape).astype(dtype)
                case = given(function, values, framework, **kwargs)
                layouts = [one or packed(len(shape)) for one in (layout, out, other)]
                if framework == "torch" and any(-1 in one.signs for one in layouts):
                    continue
                case.layout, case.out, case.others = layouts[0], (layouts[1],) * 2, (2, number, layouts[2])
                case.end = case.out_end = case.result_end = end
                case.isa, case.gradient = number, is_float(values.dtype) and "dtype" not in kwargs
                found.append(case)
    return found


def run(begin: int) -> None:
    """Run the calls from number `begin`; each name is printed before it runs."""
    if hasattr(core, "set_serial_bytes"):
        core.set_serial_bytes(1)
    for name in list(FOUND)[begin:]:
        print(name, flush=True)
        for case in cases(name):
            try:
                check(case)
            except Exception as error:
                print(f"failed: {case.framework} {core.isa()} {case.end}: {error!r}", flush=True)
    print("done", flush=True)


@cache
def outcomes() -> dict[str, str]:
    """Failures by the name of the call."""
    wrong: dict[str, str] = {}
    names, at, name = [*FOUND, "done"], 0, ""
    while name != "done":
        status, lines, errors = run_child(f"import test_fuzz_regressions as t; t.run({at})")
        for line in lines:
            if line in names:
                name = line
            else:
                wrong[name] = wrong.get(name, "") + line + "\n"
        assert lines, errors
        if name != "done":
            wrong[name] = wrong.get(name, "") + f"exit status {status}: {errors[:300]}"
            at = names.index(name) + 1
            if at == len(FOUND):
                break
    return wrong


@pytest.mark.parametrize("name", FOUND)
def test_found_by_fuzzing(name):
    assert name not in outcomes(), outcomes()[name]
