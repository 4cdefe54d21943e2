"""The GPU benchmark without a GPU: its cases, its reports and its error messages."""

import json
from xml.etree import ElementTree as ET

import pytest

from ndpool._bench import CASES, cuda, cuda_random, cuda_report
from ndpool._bench.cuda_cases import CUDA_CASES
from ndpool._cli import main

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def entry(name, seconds, group="max, values", dtype="float32", network="large batches", **more):
    times = {
        key: {"median": value, "low": value, "high": value, "rounds": 5} for key, value in seconds.items()
    }
    result = {"name": name, "group": group, "network": network, "dtype": dtype, "moved": 4000, "floor": 1e-6}
    return result | {"times": times, "notes": {}, "error": None} | more


@pytest.fixture
def document():
    results = [
        entry("a", {"ndpool": 1.25e-6, "PyTorch": 5e-6, "torch.compile": 2.5e-6}),
        entry("b", {"ndpool": 2e-6, "PyTorch": 4e-6, "torch.compile": 1e-6}, notes={"CuPy": "wrong answer"}),
        entry("c", {"ndpool": 4e-6, "PyTorch": 8e-6}, dtype="bfloat16"),
        entry("d", {"ndpool": 1e-6, "PyTorch": 3e-6}, group="small", network="VGG"),
        entry("e", {}, error="wrong answer: 1 elements"),
    ]
    results[3]["times"]["ndpool"]["host"], results[3]["times"]["PyTorch"]["host"] = 2e-5, 1e-5
    about = {"format": cuda.FORMAT, "date": "2026-01-02T03:04:05+00:00", "device": "GPU", "copy": 4e12}
    return about | {"versions": {"ndpool": "1", "PyTorch": "2"}, "missing": {"JAX": "no"}, "results": results}


def test_cases_are_the_cpu_cases_and_large_ones():
    assert cuda.ALL_CASES[-len(CASES) :] == CASES
    assert len({case.name for case in cuda.ALL_CASES}) == len(cuda.ALL_CASES)
    assert {case.layout for case in CUDA_CASES} == {"NCHW", "NHWC"}
    assert {case.mode for case in CUDA_CASES} == {"values", "offsets", "indices", "backward"}


def test_shares_and_factors(document):
    rows = cuda_report.rows(document)
    assert [row.name for row in rows] == ["a", "b", "c", "d"]
    assert rows[0].share() == pytest.approx(0.8)
    assert rows[1].over("torch.compile") == pytest.approx(0.5)
    assert rows[2].over("torch.compile") is None
    text = cuda_report.markdown(document)
    assert "| max, values | 50 to 80 % | 25 % | 2.00 to 4.00 | 2.00 | 0.50 to 2.00 | - |" in text
    assert "| small |" not in text
    assert "1 cases of the CPU's list: 3.00 times PyTorch; host time of small calls 2.00 times" in text
    assert cuda_report.failures(document) == ["e: wrong answer: 1 elements"]
    summary = cuda_report.summary(document)
    assert "Slower than torch.compile, of 4 cases: b (0.50)" in summary
    assert "b: CuPy: wrong answer" in summary
    assert "80 %" in cuda_report.table(document)


def test_chart(document):
    root = ET.fromstring(cuda_report.chart(document))
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "9"]
    assert len(bars) == 3
    assert json.loads(json.dumps(document)) == document


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_error_messages(capsys):
    assert main(["bench", "--device", "cuda", "--case", "max 2x2"]) != 0
    assert "needs a CUDA device" in capsys.readouterr().err
    assert main(["bench", "--device", "cuda", "--threads", "1"]) != 0
    assert "--threads applies to the CPU only" in capsys.readouterr().err


def test_answers_are_compared_in_every_element():
    case = next(case for case in CUDA_CASES if case.mode == "values" and case.reduction == "max")
    one = torch.ones(2, 2, dtype=torch.float64)
    assert cuda.compare(case, (one,), (one,)) is None
    other = one.clone()
    other[1, 0] += 1e-9
    assert "first at (1, 0)" in cuda.compare(case, (other,), (one,))
    mean = next(case for case in CUDA_CASES if case.reduction == "avg")
    assert cuda.compare(mean, (other,), (one,)) is None
    other[0, 1] = float("nan")
    assert "first at (0, 1)" in cuda.compare(mean, (other,), (one,))


def test_random_cases():
    """The same seed draws the same cases: every function, dtype, layout and direction, none too large."""
    drawn = cuda_random.draw(150, 3)
    assert drawn == cuda_random.draw(150, 3)
    assert drawn[:20] != cuda_random.draw(20, 4)
    assert len({case.function for case in drawn}) == 15
    assert {case.dtype for case in drawn} == {"float32", "bfloat16", "float16"}
    assert {case.layout for case in drawn} == {"NCHW", "NHWC"}
    assert {case.mode for case in drawn} == {"values", "indices", "backward"}
    for case in drawn:
        assert case.shape[0] <= 256
        assert case.shape[1] <= 2048
        assert max(case.sizes) <= 512
        assert case.moved <= 2**30
        small = case.reduced()
        x = torch.ones(small.shape)
        assert getattr(torch.nn.functional, case.function)(x, **case.arguments).shape == small.out_shape


def test_report_of_random_cases(document):
    for result in document["results"]:
        result |= {"call": "max_pool2d()", "shape": [1, 2], "layout": "NHWC", "mode": "values"}
    document["results"][0]["mode"] = "backward"
    text = cuda_random.text(document | {"seed": 5})
    assert text.startswith("5 random cases, seed 5; GPU")
    assert "forward: 3 cases, 50% of a copy" in text
    assert "2.29 x PyTorch over 3, 0 below 1.0" in text
    assert "0.50 x torch.compile over 1, 1 below 0.97" in text
    assert (
        "4.00 x      1.2 us,  80% of a copy  max_pool2d() of (1, 2) float32 channels-last, backward" in text
    )


def test_mistakes_of_peers_may_be_larger():
    """PyTorch adds gradients of half types in half precision; ndpool does not."""
    case = next(case for case in CUDA_CASES if case.reduction == "avg" and case.dtype == "bfloat16")
    one = torch.ones(2, 2, dtype=torch.float64)
    assert "first at (0, 0)" in cuda.compare(case, (one * 1.1,), (one,))
    assert cuda.compare(case, (one * 1.1,), (one,), slack=64) is None


def test_table_of_random_cases(document):
    """Forward and backward apart; a peer that was not timed has no factors."""
    modes = ("values", "backward", "backward", "values", "values")
    for result, mode in zip(document["results"], modes, strict=True):
        result["mode"] = mode
    text = cuda_random.markdown(document)
    assert "| forward | 2 | 89% | 3.5 | 0 of 2 | 3.00 | 2.0 | 0 of 1 | 2.00 |" in text
    assert "| backward | 2 | 35% | 2.0 | 0 of 2 | 2.00 | 0.5 | 1 of 1 | 0.50 |" in text
