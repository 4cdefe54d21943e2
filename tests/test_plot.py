"""Plots: positions and numbers of what is drawn, compared with ndpool's results.

Every patch and text has a gid such as ``window 0,1``; the tests read them from the figure.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import ndpool
from ndpool._bench import report

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
from matplotlib.figure import Figure

from ndpool import plot

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "cpu.json"
SLIDING = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 1, "padding": "same"},
    {"kernel_size": 2, "stride": 2, "dilation": 3},
    {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 2, "ceil_mode": True},
]


def artists(figure, what):
    """The patches or texts of one kind, as a list per position."""
    found = defaultdict(list)
    ax = figure.axes[0]
    for artist in [*ax.patches, *ax.texts]:
        name, _, at = str(artist.get_gid()).rpartition(" ")
        if name == what and (isinstance(artist, ax.texts[0].__class__)) == (what in TEXTS):
            found[tuple(map(int, at.split(",")))].append(artist)
    return found


TEXTS = {"value", "position", "note"}


def output_texts(figure):
    texts = [t for t in figure.axes[0].texts if str(t.get_gid()).startswith("output")]
    return [text.get_text() for text in texts]


def cell_at(figure, x, y):
    """The input position whose cell contains a point of the picture, or None."""
    for kind in ("cell", "padding", "beyond"):
        for at, (patch,) in artists(figure, kind).items():
            left, top = patch.get_xy()
            if left <= x < left + 1 and top <= y < top + 1:
                return at, kind
    return None


def spans(sizes, options):
    """The windows along every axis, from the public function."""
    return [ndpool.windows(size, **options) for size in sizes]


def random(shape, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(np.prod(shape))).reshape(shape).astype(float)


@pytest.mark.parametrize("options", SLIDING, ids=str)
def test_two_axes_outline_every_window_at_its_position(options):
    x = random((5, 6))
    figure = plot.windows(x, **options, indices=True)
    y, i = ndpool.pool(
        x,
        (options["kernel_size"],) * 2,
        return_indices=True,
        **{k: v for k, v in options.items() if k != "kernel_size"},
    )
    assert set(artists(figure, "cell")) == set(np.ndindex(x.shape))
    assert output_texts(figure) == [f"{value:.3g}" for value in y.flat]
    assert [t.get_text() for (t,) in artists(figure, "note").values()] == [f"at {index}" for index in i.flat]
    outlines = artists(figure, "window")
    assert set(outlines) == set(np.ndindex(y.shape))
    cells = {at: patch.get_xy() for at, (patch,) in artists(figure, "cell").items()}
    down, across = spans(x.shape, options)
    for o, (outline,) in outlines.items():
        box = outline.get_bbox()
        inside = {
            at
            for at, (left, top) in cells.items()
            if box.x0 < left + 0.5 < box.x1 and box.y0 < top + 0.5 < box.y1
        }
        if "dilation" in options:
            taps = {
                cell_at(figure, *np.mean(tap.get_bbox().get_points(), 0)) for tap in artists(figure, "tap")[o]
            }
            inside = {at for at, kind in taps if kind == "cell"}
        assert inside == {(r, c) for r in down[o[0]] for c in across[o[1]]}
    for o, (circle,) in artists(figure, "winner").items():
        at, kind = cell_at(figure, *circle.center)
        assert kind == "cell"
        assert np.ravel_multi_index(at, x.shape) == i[o]
    assert set(artists(figure, "winner")) == set(np.ndindex(y.shape))


@pytest.mark.parametrize("options", SLIDING, ids=str)
def test_one_axis_shows_every_window_as_a_bar(options):
    x = random(9)
    figure = plot.windows(x, **options)
    windows = ndpool.windows(9, **options)
    rest = {k: v for k, v in options.items() if k != "kernel_size"}
    y, i = ndpool.pool(x, (options["kernel_size"],), return_indices=True, **rest)
    assert output_texts(figure) == [f"{value:.3g}" for value in y]
    for o, window in enumerate(windows):
        taps = [cell_at(figure, tap.get_x() + 0.1, 0.5) for tap in artists(figure, "tap cell")[o,]]
        assert taps == [((i,), "cell") for i in window]
        hidden = len(artists(figure, "tap padding")[o,]) + len(artists(figure, "tap beyond")[o,])
        assert hidden == options["kernel_size"] - len(window)
        (winner,) = artists(figure, "winner")[(o,)]
        assert cell_at(figure, winner.get_x() + 0.1, 0.5) == ((i[o],), "cell")


@pytest.mark.parametrize(("size", "out"), [(10, 3), (5, 5), (4, 7), (7, 1)])
def test_adaptive_windows(size, out):
    x = random(size)
    figure = plot.windows(x, output_size=out, reduce="avg", divisors=True)
    for o, window in enumerate(ndpool.adaptive_windows(size, out)):
        places = [cell_at(figure, tap.get_x() + 0.1, 0.5)[0][0] for tap in artists(figure, "tap cell")[o,]]
        assert places == list(window)
    assert output_texts(figure) == [f"{v:.3g}" for v in ndpool.adaptive_pool(x, (out,), reduce="avg")]
    notes = [t.get_text() for (t,) in artists(figure, "note").values()]
    assert notes == [f"÷ {len(window)}" for window in ndpool.adaptive_windows(size, out)]
    assert not artists(figure, "padding")


def test_adaptive_output_size_none_keeps_the_axis():
    figure = plot.windows((5, 4), output_size=(2, None))
    assert set(artists(figure, "window")) == set(np.ndindex(2, 4))


@pytest.mark.parametrize("include", [True, False])
def test_divisors_are_those_of_the_average(include):
    x = np.ones((4, 5))
    options = {"stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": include}
    figure = plot.windows(x, 3, reduce="avg", divisors=True, **options)
    total = ndpool.pool(x, (3, 3), reduce="sum", **options)
    mean = ndpool.pool(x, (3, 3), reduce="avg", **options)
    notes = [t.get_text() for (t,) in artists(figure, "note").values()]
    assert notes == [f"÷ {round(divisor)}" for divisor in (total / mean).flat]


def test_padding_and_cells_beyond_it():
    figure = plot.windows((4, 5), 2, 2, padding=[(1, 0), (0, 2)], ceil_mode=True)
    assert len(artists(figure, "cell")) == 20
    # The last window along the rows contains rows 3 and 4; along the columns it ends in the padding.
    assert set(artists(figure, "beyond")) == {(4, column) for column in range(7)}
    above = {(-1, column) for column in range(7)}
    assert set(artists(figure, "padding")) == above | {(row, column) for row in range(4) for column in (5, 6)}
    assert all(patch.get_hatch() for (patch,) in artists(figure, "padding").values())
    figure = plot.windows(5, 3, 1, padding=(2, 1))
    assert set(artists(figure, "padding")) == {(-2,), (-1,), (5,)}


def test_sizes_alone_show_no_numbers():
    figure = plot.windows((4, 4), 2)
    assert not artists(figure, "value")
    assert not output_texts(figure)
    assert len(artists(figure, "window")) == 4
    figure = plot.windows((4, 4), 2, indices=True)
    assert [t.get_text() for (t,) in artists(figure, "position").values()] == [str(i) for i in range(16)]


@pytest.mark.parametrize(("x", "outputs", "drawn"), [((4, 4), [(0, 1), (1, 1)], 2), (8, [0, 3], 2)])
def test_only_the_selected_outputs_are_drawn(x, outputs, drawn):
    figure = plot.windows(x, 2, outputs=outputs)
    kind = "window" if isinstance(x, tuple) else "output"
    wanted = {o if isinstance(o, tuple) else (o,) for o in outputs}
    assert set(artists(figure, kind)) == wanted
    assert len(wanted) == drawn


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_numbers_of_any_dtype(dtype):
    x = np.array([[0, 1], [1, 1]]).astype(dtype)
    assert output_texts(plot.windows(x, 2)) == ["1"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((np.zeros((2, 3, 4)), 2), {}, ValueError, "one or two axes; got shape (2, 3, 4)"),
        ((8,), {}, ValueError, "exactly one of kernel_size and output_size must be given"),
        ((8, 2), {"output_size": 2}, ValueError, "got kernel_size=2, output_size=2"),
        (
            (8,),
            {"output_size": 2, "stride": 2},
            ValueError,
            "must not be given with output_size; got stride=2",
        ),
        ((8, 2), {"reduce": "median"}, ValueError, "reduce must be one of max, min"),
        ((224, 2), {}, ValueError, "an axis is too long to draw; got 224 cells with padding (limit 40)"),
        ((30, 9), {"stride": 9, "padding": 8}, ValueError, "got 46 cells"),
        ((8,), {"output_size": 10**6}, ValueError, "got 1000000 cells"),
        (
            ((20, 20), 2),
            {},
            ValueError,
            "too many windows, select some by outputs; got 100 (limit 64)",
        ),
        (
            ((4, 4), 2),
            {"outputs": [(0, 2)]},
            ValueError,
            "outputs must exist; got (0, 2) with output sizes (2, 2)",
        ),
        (((4, 4), 2), {"outputs": [1]}, ValueError, "outputs must exist; got (1,)"),
        (((4, 4), 2), {"outputs": 3}, TypeError, "outputs must be a list of positions"),
        (
            (8, 9),
            {},
            ValueError,
            "plot.windows: the window must fit into the padded input; got kernel_size=9",
        ),
        ((8, 2.5), {}, TypeError, "kernel_size must be an integer"),
    ],
)
def test_bad_arguments_raise(arguments, options, error, words):
    with pytest.raises(error) as caught:
        plot.windows(*arguments, **options)
    assert words in str(caught.value)
    assert str(caught.value).startswith("plot.windows: ")


def test_draws_on_the_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot.windows(6, 2, ax=right) is figure
    assert right.patches
    assert not left.patches


def test_dark_pictures_have_a_dark_background():
    light, dark = (sum(plot.windows(6, 2, dark=dark).get_facecolor()[:3]) / 3 for dark in (False, True))
    assert light > 0.9
    assert dark < 0.2


def test_shows_itself_in_a_notebook():
    assert plot.windows(6, 2)._repr_png_().startswith(b"\x89PNG")


def test_files_of_every_kind(tmp_path):
    for kind in ("png", "svg", "pdf"):
        plot.windows(6, 2).savefig(tmp_path / f"windows.{kind}")
    assert 'id="tap cell 0"' in (tmp_path / "windows.svg").read_text()


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_imported_late_and_without_pyplot():
    code = (
        "import sys, ndpool; assert 'matplotlib' not in sys.modules; ndpool.plot.windows(6, 2)._repr_png_();"
        "sys.exit('pyplot' if 'matplotlib.pyplot' in sys.modules else 0)"
    )
    result = run(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_matplotlib_is_reported():
    result = run("import sys; sys.modules['matplotlib'] = None; import ndpool; ndpool.plot")
    assert (
        result.stderr.splitlines()[-1]
        == "ImportError: ndpool.plot needs matplotlib: pip install 'ndpool[plot]'"
    )


def bars(figure):
    named = {patch.get_gid(): patch.get_width() for patch in figure.axes[0].patches}
    return {name: width for name, width in named.items() if name and name.startswith("bar ")}


@pytest.mark.parametrize("threads", [1, 2, None])
def test_benchmark_draws_the_means_of_the_report(threads):
    document = json.loads(RESULTS.read_text())
    means = report.class_means(document, threads or max(document["threads"]))
    wanted = {
        f"bar {group}, {name}": value
        for group, values in means.items()
        for (name, _), value in zip(report.SERIES, values, strict=True)
        if value is not None
    }
    figure = plot.benchmark(document, threads=threads)
    assert bars(figure) == pytest.approx(wanted)
    assert bars(plot.benchmark(RESULTS, threads=threads, dark=True)) == bars(figure)
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(means)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [name for name, _ in report.SERIES]
    assert document["machine"]["cpu"] in ax.get_xlabel()
    assert f"{threads or 2} thread" in ax.get_title(loc="left")


def cuda_results():
    """Two classes on a device, one without a time for torch.compile."""
    common = {"network": "large", "dtype": "float32", "moved": 8, "floor": 1e-3, "notes": {}, "error": None}
    times = {"ndpool": {"median": 1.25e-3}, "PyTorch": {"median": 4e-3}}
    compiled = times | {"torch.compile": {"median": 2e-3}}
    results = [
        {"name": "a", "group": "max", "times": compiled, **common},
        {"name": "b", "group": "avg", "times": times, **common},
    ]
    about = {"format": "ndpool bench cuda 1", "device": "a GPU", "date": "2026-11-15T12:00:00+00:00"}
    return about | {"results": results}


def test_benchmark_of_a_device_draws_shares():
    figure = plot.benchmark(cuda_results())
    assert bars(figure) == pytest.approx(
        {
            "bar max, ndpool": 0.8,
            "bar max, torch.compile": 0.5,
            "bar max, PyTorch": 0.25,
            "bar avg, ndpool": 0.8,
            "bar avg, PyTorch": 0.25,
        }
    )
    ax = figure.axes[0]
    assert ax.get_xscale() == "linear"
    labels = [text.get_text() for text in ax.texts if str(text.get_gid()).startswith("factor max")]
    assert labels == ["80 %", "50 %", "25 %"]
    assert "a GPU" in ax.get_title(loc="left")


def test_benchmark_rejects_bad_arguments():
    with pytest.raises(ValueError, match="results must come from 'ndpool bench --json'; got 'other'"):
        plot.benchmark({"format": "other"})
    with pytest.raises(ValueError, match="results must come from 'ndpool bench --json'; got 'list'"):
        plot.benchmark([])
    with pytest.raises(ValueError, match="threads must be one of 1, 2; got threads=7"):
        plot.benchmark(RESULTS, threads=7)
    with pytest.raises(ValueError, match="threads must be None for results of a GPU; got threads=2"):
        plot.benchmark(cuda_results(), threads=2)
