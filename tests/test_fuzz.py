"""The fuzzer itself: its reference equals the oracle, seeds determine cases, and faults are detected."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import ndpool
import oracle
from cases import to_torch
from fences import packed
from fuzz import call
from fuzz.__main__ import Run
from fuzz.case import given
from fuzz.check import check, expected
from fuzz.draw import draw
from fuzz.work import case_seed
from helpers import assert_exact, on_axes, plain

SEEDS = [case_seed(7, number) for number in range(400)]


def by_oracle(case):
    """The oracle's result, or None if it has no such function."""
    kwargs, axes, values = case.kwargs, case.axes, case.values
    if case.indices is not None:
        moved = [np.moveaxis(a, axes, range(-len(axes), 0)) for a in (values, case.indices)]
        result = oracle.max_unpool(*moved, case.sizes)
        return (np.moveaxis(result, range(-len(axes), 0), axes),)
    if "_random_samples" in kwargs:
        return oracle.fractional_max_pool(
            values, kwargs["kernel_size"], kwargs["output_size"], kwargs["_random_samples"]
        )
    plan = case.plans[0]
    if case.has_index:
        return on_axes(oracle.select, values, axes, plan, case.reduce == "min")
    if case.reduce == "sum":
        return on_axes(oracle.total, values, axes, plan)
    return None


def test_the_reference_equals_the_oracle():
    compared = 0
    for seed in SEEDS:
        case = draw(seed, 1)
        want = by_oracle(case) if case.values.size and "dtype" not in case.kwargs else None
        if want is None:
            continue
        got = expected(case)
        assert_exact(got.values, want[0].astype(got.values.dtype))
        if len(want) > 1:
            assert_exact(got.indices, want[1])
        compared += 1
    assert compared > 150


def test_a_seed_determines_the_case():
    for seed in SEEDS[:50]:
        first, second = draw(seed, 3), draw(seed, 3)
        assert str(first) == str(second)
        assert_exact(first.values, second.values)


def sabotage(kind):
    """`max_pool2d` with a deliberate fault."""
    real = ndpool.max_pool2d

    def faulty(x, *args, out=None, **kwargs):
        y = real(x, *args, out=out, **kwargs)
        if kind == "wrong value":
            y[0, 0, 0] += 1
        elif kind == "not written":
            y[0, 0, 0] = np.float32(np.uint32(0xA5A5A5A5).view(np.float32))
        elif kind == "input changed":
            x[0, 0, 0] = x[0, 0, 0] + 1
        elif kind == "layout matters" and not x.flags.c_contiguous:
            y[0, 0, 0] = np.nextafter(y[0, 0, 0], np.float32(100))
        elif kind == "part differs" and len(x) == 1:
            y[0, 0, 0] += 1
        elif kind == "beside out" and out is not None:
            np.lib.stride_tricks.as_strided(out, (1,), (4,), writeable=True)[:] = out[0, 0, 0]
            address = out.__array_interface__["data"][0] + 4 * out.shape[-1]
            (np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 1).from_address(address)))[0] = 7
        elif kind == "raises":
            raise RuntimeError("unexpected")
        return y

    return faulty


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "wrong value",
        "not written",
        "input changed",
        "layout matters",
        "part differs",
        "beside out",
        "raises",
    ],
)
def test_faults_are_detected(monkeypatch, kind):
    monkeypatch.setattr(call.ndpool, "max_pool2d", sabotage(kind))
    case = given("max_pool2d", plain((3, 4, 5), np.float32), kernel_size=2)
    case.out = (packed(3)._replace(gaps=(0, 0, 3), order=(0, 1, 2)),) * 2
    case.others = (1, 0, packed(3, (2, 1, 0)))
    if kind:
        with pytest.raises((AssertionError, RuntimeError)):
            check(case)
    else:
        check(case)


def test_crashes_and_hangs_are_reported(capsys, monkeypatch):
    """The parent reports the case and continues with a new worker."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    run = Run(1, 1e9, 8, 1)
    run.module, run.hang = "fuzz_trouble", 5.0
    run.run()
    messages = [text for _, text in run.failures]
    assert [case for case, _ in run.failures] == [case_seed(1, number) for number in (3, 5, 6)]
    assert "SIGABRT" in messages[0]
    assert "the case also fails alone" in messages[0]
    assert "no progress" in messages[1]
    assert "wrong" in messages[2]
    assert run.cases == 8
    assert run.counts["kind"]["drawn"] == 6
    assert str(case_seed(1, 3)) in capsys.readouterr().out


@pytest.mark.torch
def test_tensors_are_views_of_the_fenced_memory():
    torch = pytest.importorskip("torch")
    x = np.zeros((2, 3), np.float32)[:, ::2]
    assert to_torch(x).data_ptr() == x.ctypes.data
    assert isinstance(to_torch(x), torch.Tensor)
