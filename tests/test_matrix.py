"""The matrix of what works where: complete, up to date, and unable to record a wrong result."""

from __future__ import annotations

import json

import numpy as np
import pytest

import matrix
import ndpool

AGAIN = "run python tests/matrix.py --write"
CPU = {kind.name: kind for kind in matrix.PROBES if kind.device == "cpu"}
# The slow columns are run again for these alone.
SLOW = [("compile", "max_pool2d"), ("export", "max_unpool2d"), ("export", "pool"), ("ONNX", "max_pool2d")]


def recorded(device):
    return json.loads((matrix.FILES / f"{device}.json").read_text(encoding="utf-8"))


def test_every_function_is_in_it():
    public = {name for name in ndpool.__all__ if "pool" in name}
    assert set(matrix.FUNCTIONS) == public
    for path in matrix.FILES.glob("*.json"):
        for name, table in recorded(path.stem)["frameworks"].items():
            assert list(table) == matrix.FUNCTIONS, f"{name} in {path.name}: {AGAIN}"


@pytest.mark.parametrize("name", CPU)
def test_recorded_answers_are_those_of_today(name):
    kind = CPU[name]
    if not kind.available():
        pytest.skip(f"not installed: {', '.join(kind.packages)}")
    table = recorded("cpu")["frameworks"][name]
    want = {
        (function, column): answer
        for function, row in table.items()
        for column, answer in row.items()
        if column in matrix.FAST and function in kind.often
    }
    got = {
        (function, column): answer
        for function, column, answer in matrix.cells(kind(), matrix.FAST, kind.often)
    }
    for column, function in SLOW:
        answer = kind().check(column, function)
        if answer is not None or column in table[function]:
            got[function, column], want[function, column] = answer, table[function].get(column)
    assert got == want, AGAIN


def test_page_is_made_from_the_files():
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(), "run python tests/matrix.py --page"


@pytest.mark.parametrize("column", ["forward", "indices"])
def test_a_wrong_result_is_not_recorded(monkeypatch, column):
    real = ndpool.max_pool2d

    def wrong(x, *args, **kwargs):
        result = real(x, *args, **kwargs)
        return (result[0], result[1] + 1) if isinstance(result, tuple) else result + np.float64(1)

    monkeypatch.setattr(ndpool, "max_pool2d", wrong)
    with pytest.raises(AssertionError, match=f"NumPy on cpu: {column} of max_pool2d"):
        matrix.Probe().check(column, "max_pool2d")


def test_what_raises_is_recorded_as_missing(monkeypatch):
    def broken(*args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(ndpool, "max_pool2d", broken)
    assert matrix.Probe().check("forward", "max_pool2d") == "no"
    assert matrix.Probe().check("gradient", "max_pool2d") is None
    assert matrix.Probe().check("indices", "avg_pool2d") is None


def test_wrong_gradients_are_found(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    real = ndpool.avg_pool2d
    monkeypatch.setattr(
        ndpool, "avg_pool2d", lambda x, *args: real(x, *args) + 0 * x.sum() + x.detach().sum()
    )
    with pytest.raises(AssertionError):
        matrix.Torch().check("forward", "avg_pool2d")
    monkeypatch.setattr(ndpool, "avg_pool2d", lambda x, *args: real(2 * x, *args))
    for column in ("gradient", "second derivative"):
        with pytest.raises(AssertionError, match=f"{column} of avg_pool2d"):
            matrix.Torch().check(column, "avg_pool2d")
