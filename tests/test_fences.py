"""CPU kernels next to protected pages: instruction sets, dtypes, layouts, one to three threads.

Each call runs as a case of the fuzzer: the result and its memory, a variation of the call, a part of it,
`out` in poisoned memory, offsets and gradients. Touching a fence ends the process, so the cases run in child
processes, which print each case before it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain, count, pairwise, product
from math import prod

import numpy as np
import pytest

from cases import DTYPES
from fences import ENDS, Layout, Memory, packed, poisoned_results
from fuzz.case import Case, given, given_unpool
from fuzz.check import check, expected
from helpers import hard_values, run_child, small
from ndpool._native import core
from oracle import is_float

linux = pytest.mark.skipif(sys.platform != "linux", reason="fences need mprotect")

CALLS = [  # function, shape, arguments
    ("max_pool1d", (3, 5, 33), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("max_pool1d", (2, 9, 17), {"kernel_size": 5, "stride": 1, "padding": 2}),
    ("max_pool2d", (2, 3, 7, 7), {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("max_pool2d", (2, 3, 16, 18), {"kernel_size": 2}),
    ("max_pool2d", (2, 9, 9, 15), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("max_pool2d", (1, 2, 21, 40), {"kernel_size": 9, "stride": 1, "padding": 4}),
    ("max_pool2d", (1, 3, 13, 19), {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}),
    ("max_pool2d", (1, 3, 9, 19), {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}),
    ("max_pool2d", (1, 2, 20, 33), {"kernel_size": 17, "stride": 1, "padding": 8}),  # four-byte offsets
    (
        "max_pool2d",
        (1, 33, 6, 7),
        {"kernel_size": 3, "stride": 1, "padding": 1},
    ),  # more channels than a vector
    ("max_pool2d", (2, 65, 5, 4), {"kernel_size": 2}),
    ("max_pool3d", (2, 2, 4, 5, 9), {"kernel_size": 2, "stride": 1}),
    ("avg_pool1d", (2, 5, 65), {"kernel_size": 5, "stride": 1, "padding": 1}),
    ("avg_pool2d", (2, 3, 7, 9), {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("avg_pool2d", (2, 17, 8, 16), {"kernel_size": 2}),
    ("avg_pool2d", (1, 33, 6, 7), {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("avg_pool2d", (1, 1, 9, 300), {"kernel_size": 5, "stride": 1, "padding": 2}),
    ("avg_pool2d", (1, 2, 21, 40), {"kernel_size": 7, "stride": 1, "padding": 3}),
    ("avg_pool3d", (1, 3, 4, 5, 17), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("lp_pool2d", (2, 3, 9, 17), {"norm_type": 2.0, "kernel_size": 3, "stride": 2}),
    ("adaptive_max_pool2d", (3, 9, 7, 7), {"output_size": (1, 1)}),
    ("adaptive_max_pool2d", (1, 3, 14, 17), {"output_size": (4, 5)}),
    ("adaptive_avg_pool2d", (3, 33, 7, 7), {"output_size": (1, 1)}),
    ("adaptive_avg_pool2d", (1, 3, 14, 56), {"output_size": (2, 7)}),
    ("pool", (3, 5, 24), {"window": (5,), "stride": 1, "axes": (1,)}),
    ("pool", (6, 5, 8), {"window": (2,), "stride": 1, "axes": (0,), "reduce": "min"}),
    ("pool", (4, 3, 5, 9), {"window": (2, 3), "stride": 1, "axes": (2, 0), "reduce": "sum"}),
    ("pool", (2, 9, 8), {"window": (9, 8), "reduce": "avg"}),
    ("pool", (2, 3, 4, 3, 9), {"window": (2, 2, 2, 3), "stride": 1, "padding": 1}),
    ("adaptive_pool", (4, 31, 3), {"output_size": (1,), "axes": (1,)}),
]

UNPOOLED = [((2, 3, 5, 7), (10, 14)), ((2, 33, 4), (9,)), ((1, 2, 2, 3, 4), (4, 6, 8))]  # values, sizes


def layouts(ndim: int) -> list[Layout]:
    """Packed, channels-last, Fortran order, gaps, steps, negative strides, permuted, misaligned."""
    plain, last = packed(ndim), ndim - 1
    return [
        plain,
        packed(ndim, [0, *range(2, ndim), 1]),
        packed(ndim, range(ndim - 1, -1, -1)),
        plain._replace(gaps=tuple(3 * (a == 1) for a in range(ndim))),
        plain._replace(steps=tuple(2 if a == last else 1 for a in range(ndim))),
        plain._replace(signs=(-1,) * ndim),
        packed(ndim, [1, 0, *range(2, ndim)])._replace(gaps=(1,) * ndim),
        plain._replace(shift=1),
    ]


def framework_of(number: int, *of: Layout) -> str:
    """Every third case uses tensors, if they support the layouts."""
    possible = all(-1 not in layout.signs for layout in of) and find_spec("torch")
    return "torch" if number % 3 == 2 and possible else "numpy"


def pooled(numbers: Iterator[int]) -> Iterator[tuple[int, Case]]:
    for (function, shape, kwargs), dtype in product(CALLS, DTYPES):
        averages = "avg" in function or kwargs.get("reduce") == "avg"
        if averages and dtype.kind == "b":
            continue
        values = small(shape, dtype, low=0) if dtype.kind == "u" else hard_values(shape, dtype)
        values = np.abs(values) if "lp" in function else values
        want = None  # the same for every layout
        for layout, other in zip(layouts(len(shape)), layouts(len(shape))[::-1], strict=True):
            number = next(numbers)
            case = given(function, values, framework_of(number, layout, other), **kwargs)
            if case.has_index:
                case.kwargs["return_indices"] = number % 2 == 1
            case.layout, case.out, case.grad_layout = layout, (other, layout), other
            case.want = want = want or expected(case)
            yield number, case


def unpooled(numbers: Iterator[int]) -> Iterator[tuple[int, Case]]:
    for (shape, sizes), dtype in product(UNPOOLED, DTYPES):
        for layout, other in zip(layouts(len(shape)), layouts(len(shape))[::-1], strict=True):
            number = next(numbers)
            indices = np.random.default_rng(number).integers(0, prod(sizes), shape)
            framework = framework_of(number, layout, other)
            case = given_unpool(small(shape, dtype, low=0), indices, sizes, framework)
            case.layout, case.indices_layout, case.grad_layout = layout, other, other
            yield number, case


def sweep(isa: str, end: str, begin: int) -> None:
    """Run all calls, dtypes and layouts from number `begin`; each case is printed before it runs."""
    assert core.set_isa(isa)
    core.set_serial_bytes(1)
    numbers = count()
    for number, case in chain(pooled(numbers), unpooled(numbers)):
        if number < begin:
            continue
        case.seed, case.end, case.out_end, case.result_end = number, end, end, end
        case.threads, case.isa = 1 + number % 3, core.isa_names().index(isa)
        case.others = (1 + (number + 1) % 3, case.isa, case.grad_layout)
        case.gradient = is_float(case.dtype)
        print(f"{number} {case} with {case.threads} threads", flush=True)
        try:
            check(case)
        except AssertionError as error:
            print(f"failed: {error}", flush=True)
    print("done", flush=True)


@linux
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("isa", core.isa_names())
def test_no_access_outside_an_array(isa, end):
    failures, begin = [], 0
    while len(failures) < 10:
        code = f"import test_fences; test_fences.sweep({isa!r}, {end!r}, {begin})"
        status, lines, errors = run_child(code)
        failures += [f"{case}\n    {line}" for case, line in pairwise(lines) if line[:6] == "failed"]
        if lines and lines[-1] == "done":
            break
        assert lines, errors
        begin = 1 + int(next(line for line in reversed(lines) if line[:6] != "failed").split()[0])
        failures.append(f"{lines[-1]}\n    exit status {status}: {errors[:500]}")
    assert not failures, "\n".join(failures)


@linux
@pytest.mark.parametrize("end", ENDS)
def test_fences_end_the_process(end):
    """Reading outside an array ends the process, reading inside does not."""
    for at, ended in ((64 if end == "behind" else -1, True), (63 if end == "behind" else 0, False)):
        code = (
            f"import ctypes, fences; memory = fences.Memory((16,), 'f4', None, {end!r}); "
            f"ctypes.string_at(memory.array.ctypes.data + {at}, 1)"
        )
        assert (run_child(code)[0] != 0) == ended


def test_changed_bytes_are_detected():
    """Next to the array, between its elements, and in it."""
    layout = packed(2)._replace(gaps=(0, 2))
    for at in (-1, 6, 13):
        memory = Memory((2, 6), np.uint8, layout).keep()
        memory.array[1, 5] = 3
        memory.check("x", written=True)
        with pytest.raises(AssertionError, match="in or next to x"):
            memory.check("x")
        memory.bytes[memory.offset + at] = 0
        if at == 13:
            memory.check("x", written=True)
        else:
            with pytest.raises(AssertionError, match="bytes next to x"):
                memory.check("x", written=True)


def test_results_are_poisoned():
    from ndpool.frameworks import numpy as framework

    with poisoned_results():
        made = framework._empty(np.zeros((2, 3)), (2, 3), np.dtype(np.uint16))
        assert (made == 0xA5A5).all()
    assert framework.np is np
