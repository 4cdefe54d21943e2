"""The benchmark: every case at a reduced size, the checker, the runner and the reports.

The timings here are meaningless; the tests show that a wrong answer is never timed.
"""

import dataclasses
import gc
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import ndpool
from helpers import HANG
from ndpool import _bench
from ndpool._bench import (
    ALL_CASES,
    CASES,
    Case,
    array_peers,
    contestants,
    peers,
    random_calls,
    report,
    runner,
    select,
)
from ndpool._bench.array_cases import ARRAY_CASES, IMAGE_CASES
from ndpool._cli import main

ROOT = Path(__file__).parents[1]
BRIEF = runner.Effort(2, 1e-3, 1e-5)
TINY = Case("tiny", "none", "max", "max_pool2d", {"kernel_size": 2}, (2, 3, 8, 10))
WINDOW = {"window": (2, 2), "reduce": "avg", "axes": (0, 1)}
PICTURE = Case("picture", "none", "avg", "pool", WINDOW, (9, 8, 3), "uint8", "C", suite="images")


@pytest.fixture(autouse=True, scope="module")
def restore_num_threads():
    threads = ndpool.get_num_threads()
    runner.installed(1)
    gc.freeze()  # the peers too: garbage is collected before every timing
    yield
    ndpool.set_num_threads(threads)


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_script(ROOT / "benchmarks" / "generate.py")


def own():
    return [kind(1) for kind in contestants.NDPOOL]


class Changed(contestants.FullCall):
    """ndpool with one element of its answer changed."""

    name = "changed"
    part, by = 0, 1e-6

    def answer(self, case, raw):
        answer = [array.copy() for array in super().answer(case, raw)]
        answer[self.part][0, -1, 0, -1] += self.by
        return tuple(answer)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_right(case):
    pytest.importorskip("torch")
    present, _ = runner.installed(1)
    small = case.reduced()
    result = _bench.measure(small, present, 1, BRIEF)
    assert result["error"] is None
    assert {"floor", "kernel", "ndpool"} <= result["times"].keys()
    assert ("PyTorch" in result["times"]) == peers.PyTorch(1).supports(small)
    assert not [note for note in result["notes"].values() if note.startswith("wrong")]


@pytest.mark.parametrize("case", [*IMAGE_CASES, *ARRAY_CASES], ids=lambda case: case.name)
def test_every_array_case_agrees_with_its_peers(case):
    present, _ = runner.installed(1)
    small = case.reduced()
    result = _bench.measure(small, present, 1, BRIEF)
    assert (result["error"], result["notes"]) == (None, {})
    timed = {one.name for one in present if one.runs(small)}
    assert result["times"].keys() == timed | {"floor"}
    assert small.plan.out != (1,) * len(small.axes)
    assert small.disjoint == case.disjoint
    # A peer that is not installed counts, too.
    both = [kind.name for kind in array_peers.ARRAY_PEERS if kind.__new__(kind).runs(case)]
    assert both
    assert set(both) >= timed - {"kernel", "ndpool"}


def stride_of(case):
    window, stride = case.arguments["window"][0], case.arguments["stride"]
    return "k" if stride == window else stride


def test_image_cases_leave_out_no_kind():
    kinds = {(c.reduction, stride_of(c), c.shape[2:], c.dtype) for c in IMAGE_CASES}
    assert len(kinds) == 2 * 3 * 3 * 3
    for of, wanted in (("max", {2, 3, 7, 31}), ("avg", {2, 3, 4, 9})):
        windows = {(c.arguments["window"], c.arguments["stride"]) for c in IMAGE_CASES if c.reduction == of}
        assert windows == {((k, k), stride) for k in wanted for stride in (1, 2, k)}
    assert {c.shape[:2] for c in IMAGE_CASES} == {(1080, 1920), (719, 1283), (512, 512)}
    assert {c.axes for c in IMAGE_CASES} == {(0, 1)}


def test_drift_of_running_sums_is_not_a_wrong_answer():
    """SciPy adds and subtracts along the whole row: in float64 its error grows with the row."""
    scipy = pytest.importorskip("scipy")
    case = next(case for case in ARRAY_CASES if case.name == "signal-3-avg-float64")
    result = _bench.measure(case, [*own(), array_peers.SciPyArrays(1)], 1, BRIEF)
    assert (result["error"], result["notes"]) == (None, {}), scipy.__version__
    assert "SciPy" in result["times"]


def test_array_cases_leave_out_no_kind():
    def position(case):
        if len(case.axes) > 1:
            return len(case.axes)
        return "last" if case.axes[0] == len(case.shape) - 1 else "first" if case.axes[0] == 0 else "middle"

    single = {(position(c), c.plan.axes[0].kernel >= 30, c.dtype) for c in ARRAY_CASES if len(c.axes) == 1}
    assert len(single) == 3 * 2 * 5
    assert {position(c) for c in ARRAY_CASES} == {"first", "middle", "last", 2, 3}
    named = {(c.shape, c.axes, c.arguments["window"], stride_of(c)) for c in ARRAY_CASES}
    for shape, axis, window, stride in (
        ((365, 180, 360), 0, 7, "k"),
        ((3, 5000, 400), 1, 50, "k"),
        ((8, 1_000_000), 1, 100, "k"),
        ((1_000_000,), 0, 101, 1),
    ):
        assert (shape, (axis,), (window,), stride) in named
    assert {c.network for c in ARRAY_CASES} == {"climate", "tables", "signals", "volumes", "masks"}


def test_which_peers_run_a_call_of_pool():
    """OpenCV: images; SciPy: overlapping windows; NumPy: disjoint ones. The layers have their own peers."""

    def names(case):
        kinds = (*peers.PEERS, *array_peers.ARRAY_PEERS)
        return {kind for kind in kinds if kind.__new__(kind).runs(case)}

    opencv, scipy, numpy = array_peers.ARRAY_PEERS
    assert names(PICTURE) == {opencv, numpy}
    sliding = dataclasses.replace(PICTURE, arguments=WINDOW | {"stride": 1})
    assert names(sliding) == {opencv, scipy}
    assert names(dataclasses.replace(sliding, dtype="float64")) == {scipy}
    assert names(dataclasses.replace(sliding, shape=(9, 8, 5))) == {scipy}
    volume = WINDOW | {"window": (2, 2, 2), "axes": (0, 1, 2), "stride": 1}
    assert names(dataclasses.replace(PICTURE, arguments=volume)) == set()
    assert names(dataclasses.replace(PICTURE, arguments=volume, dtype="float32")) == {scipy}
    assert not names(TINY) & {opencv, scipy, numpy}


def test_the_reference_of_arrays():
    x = np.array([[1, 2], [4, -8], [9, 9], [0, -1]], np.int16)
    case = Case("c", "", "", "pool", {"window": (2,), "axes": (0,), "reduce": "avg"}, (4, 2), "int16", "C")
    assert array_peers.expected(case, x).tolist() == [[2, -3], [4, 4]]
    padded = {"window": (3,), "axes": (1,), "stride": 1, "padding": 1, "reduce": "max"}
    case = dataclasses.replace(case, arguments=padded)
    assert array_peers.expected(case, x).tolist() == [[2, 2], [4, 4], [9, 9], [0, 0]]
    low = -np.ones((4, 2), np.float32)
    assert array_peers.expected(dataclasses.replace(case, dtype="float32"), low).tolist() == low.tolist()
    averaged = dataclasses.replace(case, arguments=padded | {"reduce": "avg"}, dtype="float32")
    assert array_peers.expected(averaged, 3 * low).tolist() == (2 * low).tolist()


@pytest.mark.parametrize(
    ("peer", "by", "timed"),
    [
        (array_peers.NumPyArrays, 1, False),
        (array_peers.OpenCVImages, 1, True),
        (array_peers.OpenCVImages, 2, False),
        (array_peers.SciPyArrays, 1, True),
        (array_peers.SciPyArrays, 2, False),
    ],
)
def test_integer_averages_may_be_rounded_by_a_peer(peer, by, timed):
    class Rounds(array_peers.NumPyArrays):
        name = "rounds"

        def tolerance(self, case):
            return peer.__new__(peer).tolerance(case)

        def answer(self, case, raw):
            answer = raw.copy()
            answer[0, 0, 0] += by if answer[0, 0, 0] < 128 else -by
            return (answer,)

    result = _bench.measure(PICTURE, [*own(), Rounds(1)], 1, BRIEF)
    assert result["error"] is None
    assert ("rounds" in result["times"], "rounds" in result["notes"]) == (timed, not timed)
    maxima = dataclasses.replace(PICTURE, arguments=WINDOW | {"reduce": "max"})
    assert "rounds" in _bench.measure(maxima, [*own(), Rounds(1)], 1, BRIEF)["notes"]


def test_a_wrong_answer_of_ndpool_on_an_array_is_a_failure():
    class Wrong(contestants.FullCall):
        def answer(self, case, raw):
            return (raw ^ (np.arange(raw.size).reshape(raw.shape) == 3),)

    result = _bench.measure(PICTURE, [contestants.Kernel(1), Wrong(1)], 1, BRIEF)
    assert result["error"].startswith("ndpool: wrong answer: 1 of 48 elements, first at (0, 1, 0)")
    mask = dataclasses.replace(PICTURE, arguments=WINDOW | {"reduce": "max"}, dtype="bool")
    result = _bench.measure(mask, [contestants.Kernel(1), Wrong(1)], 1, BRIEF)
    assert result["error"].startswith("ndpool: wrong answer: 1 of 48 elements, first at (0, 1, 0)")


def test_the_list():
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)
    assert len(CASES) >= 45
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.layout for case in CASES} == {"NCHW", "NHWC"}
    assert {case.mode for case in CASES} == {"values", "indices", "offsets", "backward"}
    assert {len(case.axes) for case in CASES} == {1, 2, 3}
    networks = " ".join(case.network for case in CASES)
    for request in (
        "pytorch#28733",
        "pytorch#51393",
        "tensorflow#57828",
        "pytorch#14615",
        "apache/mxnet#10912",
    ):
        assert request in networks
    by_name = {case.name: case for case in CASES}
    assert by_name["pytorch-28733"].shape == (1, 16, 3000, 2000)
    assert by_name["pytorch-51393"].shape == (10, 64, 112, 112)


def test_select_by_name_network_and_group():
    assert {case.name for case in select("SPPF-20-b8")} == {"sppf-20-b8", "sppf-20-b8-nhwc"}
    assert {case.network for case in select("pspnet")} == {"PSPNet"}
    assert {case.group for case in select("max 3x3 s2 n?wc")} == {"max 3x3 s2 NHWC"}
    assert select() == ALL_CASES == (*CASES, *IMAGE_CASES, *ARRAY_CASES)
    with pytest.raises(ValueError, match="no case matches 'resnext'"):
        select("resnext")


def test_select_a_suite():
    assert select("layers") == CASES
    assert select("images") == IMAGE_CASES
    assert select("arrays") == ARRAY_CASES
    assert {case.dtype for case in select("masks")} == {"bool"}
    assert {case.shape[-1] for case in select("rgba max k=s")} == {4}


def test_quick_takes_the_smallest_of_each_group():
    chosen = {case.group: case for case in select(quick=True)}
    assert list(chosen) == list(dict.fromkeys(case.group for case in ALL_CASES))
    for case in ALL_CASES:
        assert chosen[case.group].moved <= case.moved


@pytest.mark.parametrize(
    ("mode", "function", "moved"),
    [
        ("values", "max_pool2d", 480 * 4 + 120 * 4),
        ("indices", "max_pool2d", 480 * 4 + 120 * 12),
        ("offsets", "max_pool2d", 480 * 4 + 120 * 5),
        ("backward", "max_pool2d", 480 * 4 + 120 * 5),
        ("backward", "avg_pool2d", 480 * 4 + 120 * 4),
    ],
)
def test_minimum_memory_traffic(mode, function, moved):
    assert dataclasses.replace(TINY, mode=mode, function=function).moved == moved


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_data_are_random_in_the_requested_layout(dtype, layout):
    x, grad = dataclasses.replace(TINY, dtype=dtype, layout=layout, shape=(2, 16, 32, 32)).data()
    assert (x.shape, grad.shape) == ((2, 16, 32, 32), (2, 16, 16, 16))
    assert x.dtype.name == dtype
    assert (x if layout == "NCHW" else np.moveaxis(x, 1, -1)).flags.c_contiguous
    assert np.count_nonzero(x) > 0.98 * x.size
    assert len(np.unique(x.astype(np.float64))) > 100


def test_any_axes_of_an_array():
    window = {"window": (3,), "axes": (1,), "reduce": "avg"}
    case = Case("c", "", "", "pool", window, (5, 7, 4), "int16", "C")
    assert (case.axes, case.sizes, case.out_shape, case.reduction) == ((1,), (7,), (5, 2, 4), "avg")
    assert case.moved == 2 * (5 * 7 * 4 + 5 * 2 * 4)
    assert (case.disjoint, case.tiles, case.general, TINY.general) == (True, False, True, False)
    assert case.call == "pool(window=(3,), axes=(1,), reduce='avg')"
    masks = dataclasses.replace(case, dtype="bool", shape=(50, 70, 4)).data()[0]
    assert (masks.dtype, masks.flags.c_contiguous) == (np.bool_, True)
    assert 0 < np.count_nonzero(masks) < 0.1 * masks.size
    large = dataclasses.replace(case, shape=(500, 700, 3))
    assert large.reduced().shape == (20, 25, 3)


def test_windows_in_the_terms_of_other_libraries():
    ceil = Case("c", "", "", "max_pool2d", {"kernel_size": 3, "stride": 2, "ceil_mode": True}, (1, 1, 8, 9))
    assert ceil.window == ((3, 3), (2, 2), (0, 0), (1, 0))
    assert not ceil.tiles
    assert not ceil.is_same
    same = Case("s", "", "", "avg_pool1d", {"kernel_size": 5, "stride": 1, "padding": 2}, (1, 1, 9))
    assert (same.tiles, same.is_same, same.is_global) == (False, True, False)
    uneven = Case("u", "", "", "adaptive_max_pool2d", {"output_size": 3}, (1, 1, 8, 9))
    assert (uneven.window, uneven.tiles) == (None, False)
    whole = Case("w", "", "", "adaptive_max_pool2d", {"output_size": 1}, (1, 1, 8, 9))
    assert (whole.tiles, whole.is_global) == (True, True)


def test_measure_without_any_peer():
    result = _bench.measure(TINY, own(), 1, BRIEF)
    assert (result["error"], result["notes"]) == (None, {})
    assert list(result["times"]) == ["floor", "kernel", "ndpool"]
    for entry in result["times"].values():
        assert 0 < entry["low"] <= entry["median"] <= entry["high"]


def test_slow_contestants_get_one_round():
    assert _bench.measure(TINY, own(), 1, runner.Effort(5, 0.0, 0.0))["times"]["kernel"]["rounds"] == 1


@pytest.mark.parametrize(
    ("function", "mode"),
    [
        *(("max_pool2d", mode) for mode in ("values", "indices", "offsets", "backward")),
        *(("avg_pool2d", mode) for mode in ("values", "backward")),
    ],
)
def test_a_wrong_answer_is_not_timed(function, mode):
    case = dataclasses.replace(TINY, mode=mode, function=function)
    by = 1e-6 if function == "max_pool2d" and mode != "backward" else 1e-5
    wrong = type("Wrong", (Changed,), {"by": by})(1)
    result = _bench.measure(case, [*own(), wrong], 1, BRIEF)
    assert result["error"] is None
    assert "changed" not in result["times"]
    assert result["notes"]["changed"].startswith("wrong answer: 1 of ")


@pytest.mark.parametrize("mode", ["indices", "offsets"])
def test_a_wrong_index_is_not_timed(mode):
    wrong = type("Wrong", (Changed,), {"part": 1, "by": 1})(1)
    result = _bench.measure(dataclasses.replace(TINY, mode=mode), [*own(), wrong], 1, BRIEF)
    assert (result["error"], "changed" in result["times"]) == (None, False)
    assert result["notes"]["changed"].startswith("wrong answer: 1 of 120")


def test_rounding_of_a_sum_is_not_a_wrong_answer():
    case = dataclasses.replace(TINY, function="avg_pool2d")
    last_bit = type("LastBit", (Changed,), {"by": 6e-8})(1)
    assert "changed" in _bench.measure(case, [*own(), last_bit], 1, BRIEF)["times"]


def test_a_wrong_answer_of_ndpool_is_a_failure():
    wrong = type("Wrong", (Changed,), {"name": "ndpool"})(1)
    result = _bench.measure(TINY, [contestants.Kernel(1), wrong], 1, BRIEF)
    assert result["error"].startswith("ndpool: wrong answer")
    assert result["times"] == {}
    assert report.failures({"results": [result]}) == [f"tiny, 1 thread: {result['error']}"]


def test_a_contestant_that_raises_is_noted():
    class Raises(contestants.FullCall):
        name = "raises"

        def prepare(self, case, x, grad):
            raise RuntimeError("not implemented for 'Byte'\nand a long trace")

    result = _bench.measure(TINY, [*own(), Raises(1)], 1, BRIEF)
    assert result["notes"] == {"raises": "RuntimeError: not implemented for 'Byte'"}


def test_answers_of_another_shape_or_dtype_are_wrong():
    y = np.ones((2, 3, 4, 5), np.float32)
    assert _bench.compare(TINY, (y,), (y,)) is None
    assert "2 arrays where 1" in _bench.compare(TINY, (y, y), (y,))
    assert "shape" in _bench.compare(TINY, (y[:1],), (y,))
    assert "dtype float64" in _bench.compare(TINY, (y.astype(float),), (y,))
    nan = np.full_like(y, np.nan)
    assert "wrong answer: 120 of 120" in _bench.compare(TINY, (nan,), (y,))
    average = dataclasses.replace(TINY, function="avg_pool2d")
    assert "wrong answer: 120 of 120" in _bench.compare(average, (nan,), (y,))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One real run of the command on three small cases: its files and its output."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["bench", "--quick", "--case", "spp-13", "--threads", "1"]
    files = ["--json", str(folder / "run.json"), "--plot", str(folder / "run.svg")]
    command = [sys.executable, "-m", "ndpool", *arguments, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def document(written):
    return json.loads((written[0] / "run.json").read_text(encoding="utf-8"))


def test_command_shows_table_summary_and_progress(written):
    _, done = written
    for text in (
        "spp-13-13x13",
        "x floor",
        "x best peer",
        "max 9x9 s1",
        "Geometric mean over 3 cases (layers), 1 thread",
        "slowest of the layers, 1 thread",
    ):
        assert text in done.stdout
    assert "0/3  estimating  spp-13-5x5, 1 thread" in done.stderr
    assert "3/3  0 s left  done" in done.stderr


def test_results_file_contains_everything(document):
    assert document["format"] == runner.FORMAT
    assert document["threads"] == [1]
    assert document["quick"] is True
    assert document["isa"] in ndpool.show_config()["instruction sets available"]
    assert document["machine"].keys() == {"cpu", "cores", "l3", "system"}
    assert document["versions"]["NumPy"] == np.__version__
    assert {kind.name for kind in peers.PEERS} <= document["versions"].keys() | document["missing"].keys()
    assert [result["name"] for result in document["results"]] == [case.name for case in select("spp-13")]
    for result in document["results"]:
        assert result["error"] is None
        assert result["threads"] == 1
        assert {"floor", "kernel", "ndpool"} <= result["times"].keys()
        assert all(entry.keys() == {"median", "low", "high", "rounds"} for entry in result["times"].values())


def test_chart_is_an_svg_for_both_themes(written, document):
    text = (written[0] / "run.svg").read_text(encoding="utf-8")
    assert text == report.chart(document)
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text
    drawn = [node.get("class") for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert drawn.count("ours") == 1 + 3  # the legend, and a bar for every class


def made(*rows):
    """A document with the given (group, threads, floor, kernel, ndpool, PyTorch, other) times."""
    results = []
    for number, (group, threads, *times) in enumerate(rows):
        names = ("floor", "kernel", "ndpool", "PyTorch", "other")
        medians = {n: {"median": t} for n, t in zip(names, times, strict=True) if t is not None}
        results.append(
            {"name": f"c{number}", "group": group, "threads": threads, "moved": 8_000_000, "notes": {}}
            | {"error": None, "times": medians}
        )
    return {
        "threads": sorted({row[1] for row in rows}),
        "machine": {"cpu": "C", "cores": 2, "l3": "", "system": "S"},
        "versions": {"ndpool": "1", "PyTorch": "2", "PyTorch NHWC": "2"},
        "isa": "avx2",
        "date": "2026-01-02T00:00:00+00:00",
        "missing": {"JAX": "not installed"},
        "results": results,
    }


def test_update_replaces_the_results_of_measured_cases():
    """Each result records its date; cases that were not measured again are unchanged."""
    old, new = made(("g", 1, 1, 1, 4, 8, 8), ("g", 2, 1, 1, 4, 8, 8)), made(("g", 1, 1, 1, 2, 8, 8))
    new["date"] = "2026-03-04T00:00:00+00:00"
    both = report.updated(old, new)
    assert [(r["name"], r["threads"], r["date"][:10]) for r in both["results"]] == [
        ("c0", 1, "2026-03-04"),
        ("c1", 2, "2026-01-02"),
    ]
    assert both["results"][0]["times"]["ndpool"]["median"] == 2
    assert both["threads"] == [1, 2]
    assert (report.days(old), report.days(both)) == ("2026-01-02", "2026-01-02 to 2026-03-04")
    assert report.updated(both, new) == both
    with pytest.raises(
        ValueError, match=r"bench: --update needs results of the same isa; got avx2, the file"
    ):
        report.updated(old | {"isa": "neon"}, new)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "bench: --update needs a results file: --json FILE"),
        (["--json", "none.json"], "bench: --update found no results in none.json"),
    ],
)
def test_nothing_to_update(more, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--case", "spp-13", "--update", *more]) == 1
    assert message in capsys.readouterr().err


def test_factors():
    document = made(
        ("a", 1, 1.0, 1.5, 2.0, 20.0, 8.0),
        ("a", 1, 1.0, 1.2, 4.0, 160.0, 4.0),
        ("b", 1, 1.0, 3.0, 3.0, None, None),
    )
    first, second, third = report.rows(document)
    assert (first.over_floor, first.over_torch, first.best_peer, first.over_best) == (1.5, 10, "other", 4)
    assert (second.over_floor, second.over_best) == (1.2, 1)
    assert (third.best_peer, third.over_best, third.over_torch) == (None, None, None)
    lines = report.summary(document).splitlines()
    assert lines[1].split() == ["a", "1.50", "1.00"]
    assert lines[2].split() == ["b", "3.00", "-"]
    assert " ".join(lines[4].split()) == "slowest of the layers, 1 thread x best peer ms"
    assert [line.split() for line in lines[5:7]] == [["c1", "1.00", "other", "4000.000"]] + [
        ["c0", "4.00", "other", "2000.000"]
    ]
    assert lines[8] == (
        "Geometric mean over 3 cases (layers), 1 thread: 20.0 times PyTorch (contiguous), "
        "2.00 times the best peer of each case, 0 slower"
    )
    assert "avx2, 2026-01-02; ndpool 1, PyTorch 2" in lines[9]
    assert lines[10:] == ["JAX: not installed"]
    alone = report.summary(document | {"missing": {"PyTorch": "not installed"}}).splitlines()
    assert alone[-1] == "Without PyTorch the answers were compared with ndpool's own only"
    assert "| a | 1.20 to 1.50 | 1.00 to 4.00 | 10.0 to 40.0 |" in report.markdown(document)
    assert "| b | 3.00 | - | - |" in report.markdown(document)
    assert report.table(document).splitlines()[1].split()[3:] == ["2000.000", "1.50", "10.0", "4.00", "other"]


def test_summary_of_each_suite():
    """Layers, images and arrays have a mean, a number of slower cases and a list of ten of their own."""
    document = made(
        *(("a", 1, 1.0, 1.0, 1.0, 4.0, 2.0) for _ in range(3)),
        *(("b", 1, 1.0, 1.0, 1.0, None, (n + 1) / 4) for n in range(12)),
        ("b", 1, 1.0, 1.0, 1.0, None, None),
    )
    for result in document["results"][3:]:
        result["suite"] = "images"
    text = report.summary(document)
    assert "over 3 cases (layers), 1 thread: 4.00 times PyTorch (contiguous), 2.00 times" in text
    assert "over 13 cases (images), 1 thread: 1.32 times the best peer of each case, 3 slower" in text
    images = text.partition("slowest of the images")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[:2] for line in images] == [[f"c{n + 3}", f"{(n + 1) / 4:.2f}"] for n in range(10)]
    assert "(images), 1 thread: 1.32" in report.markdown(document)


def test_progress_on_a_terminal():
    stream = io.StringIO()
    stream.isatty = lambda: True
    show = report.progress_bar(stream)
    show(0, 2, "first")
    show(1, 2, "second")
    show(2, 2, "done")
    lines = stream.getvalue().split("\r\x1b[K")
    assert lines[1] == f"[{' ' * 24}] 0/2  estimating  first"
    assert lines[2].startswith(f"[{'#' * 12}{' ' * 12}] 1/2  0 s left")
    assert lines[3].endswith("done\n")


def test_list_shows_every_case(capsys):
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [case.name for case in ALL_CASES]


def test_help_names_the_suites(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    for suite in dict.fromkeys(case.suite for case in ALL_CASES):
        assert f"\n  {suite}   " in text
    assert "ndpool bench --case images" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "nothing"], "bench: no case matches 'nothing'"),
        (["--threads", "0", "--case", "sppf"], "bench: threads must be from 1 to"),
        (["--threads", "1,99999"], "bench: threads must be from 1 to"),
        (["--json", "no/such/folder/x.json"], "bench: cannot write x.json: no directory no/such/folder"),
    ],
)
def test_bad_requests_fail_before_measuring(arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"ndpool: {message}")


def test_threads_must_be_numbers(capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", "--threads", "two"])
    assert end.value.code == 2
    assert "must be comma-separated integers; got 'two'" in capsys.readouterr().err


def test_a_failed_case_fails_the_command(monkeypatch, capsys):
    document = made(("a", 1, 1.0, 1.5, 2.0, 20.0, 8.0))
    document["results"].append(document["results"][0] | {"times": {}, "error": "kernel: wrong answer"})
    monkeypatch.setattr(_bench, "run", lambda *_: document)
    assert main(["bench"]) == 1
    out, err = capsys.readouterr()
    assert "x floor" in out
    assert err == "ndpool: bench: c0, 1 thread: kernel: wrong answer\n"


def test_documentation_is_generated_from_results(tmp_path, capsys):
    results, readme = tmp_path / "benchmarks" / "results", tmp_path / "README.md"
    results.mkdir(parents=True)
    readme.write_text("# Speed\n<!-- bench:cpu -->\nold\n<!-- /bench -->\nend\n", encoding="utf-8")
    assert generate.main(["--check"], tmp_path) == 0
    document = {"format": runner.FORMAT, **made(("a", 1, 1.0, 1.5, 2.0, 20.0, 8.0))}
    (results / "cpu.json").write_text(report.as_json(document), encoding="utf-8")
    (results / "gpu.json").write_text('{"format": "another"}', encoding="utf-8")
    assert generate.main(["--check"], tmp_path) == 1
    assert generate.main([], tmp_path) == 0
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("# Speed\n<!-- bench:cpu -->\n| class |")
    assert text.endswith("\n<!-- /bench -->\nend\n")
    assert "old" not in text
    assert sorted(path.name for path in results.iterdir()) == ["cpu.json", "cpu.svg", "gpu.json"]
    assert generate.main(["--check"], tmp_path) == 0
    capsys.readouterr()


def test_table_of_models(tmp_path, capsys):
    results, readme = tmp_path / "benchmarks" / "results", tmp_path / "README.md"
    results.mkdir(parents=True)
    readme.write_text("<!-- bench:models -->\n<!-- /bench -->\n", encoding="utf-8")
    row = {"model": "SPPF", "input": [8, 512, 20, 20], "mode": "inference", "speedup": 1.5}
    row |= {"torch": {"median_s": 0.03}, "ndpool": {"median_s": 0.02}}
    about = {"processor": "a processor", "threads": {"torch": 2}, "versions": {"torch": "2.13.0"}}
    document = {"format": generate.MODELS, **about, "results": [row]}
    (results / "models.json").write_text(json.dumps(document), encoding="utf-8")
    assert generate.main([], tmp_path) == 0
    text = readme.read_text(encoding="utf-8")
    assert "| SPPF | 8x512x20x20 | inference | 30.0 ms | 20.0 ms | 1.50 |" in text
    assert "a processor, 2 threads, PyTorch 2.13.0" in text
    capsys.readouterr()


def test_generator_and_model_benchmark_use_one_format():
    pytest.importorskip("torch")
    assert load_script(ROOT / "benchmarks" / "torch_models.py").FORMAT == generate.MODELS


def test_documentation_is_up_to_date():
    assert generate.main(["--check"]) == 0


@pytest.mark.torch
def test_random_calls_equal_pytorch_and_repeat(tmp_path, capsys):
    """`--random` draws the same calls from a seed, checks every answer and reports the distribution."""
    pytest.importorskip("torch")
    drawn = [random_calls.draw(Random(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    file = tmp_path / "random.json"
    assert main(["bench", "--random", "25", "--seed", "7", "--threads", "1", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "25 random calls, seed 7, 1 thread: geometric mean" in text
    assert text.count(" us  ") == 20
    results = json.loads(file.read_text())["results"]
    assert len(results) == 25
    assert all(set(r["seconds"]) == {"ndpool", "PyTorch"} for r in results)
    for wrong in (["--random", "0"], ["--random", "5", "--device", "cuda"]):
        assert main(["bench", *wrong]) != 0


@pytest.mark.torch
def test_random_calls_detect_wrong_answers(monkeypatch):
    torch = pytest.importorskip("torch")
    right = ndpool.max_pool2d
    monkeypatch.setattr(ndpool, "max_pool2d", lambda x, **given: right(x, **given) + 1)
    call = random_calls.Drawn("max_pool2d", (1, 2, 8, 8), "float32", False, {"kernel_size": 2}, "forward")
    assert random_calls.measure(call)["wrong"] == "values differ"
    document = {"results": [random_calls.measure(call)]}
    assert random_calls.failures(document) == [f"{call}: values differ"]
    assert torch.get_num_threads() > 0
