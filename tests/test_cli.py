"""The command ``ndpool``: its worked examples, picture and exit codes.

The scripts in ``examples/`` are run too, as a user would run them.
"""

import dataclasses
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import ndpool
from ndpool import _cli, _examples
from ndpool._cli import main
from ndpool._picture import pool_picture

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def ndpool_process(*arguments, **options):
    command = [sys.executable, "-m", "ndpool", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def texts(svg, *classes):
    return [node.text for node in ET.fromstring(svg).iter() if node.get("class") in classes]


@pytest.mark.parametrize("example", _examples.EXAMPLES, ids=lambda example: example.title)
def test_worked_example(example):
    outcomes = list(example.run())
    assert [outcome.expression for outcome in outcomes] == list(example.expected)
    for outcome in outcomes:
        assert outcome.passed, f"{outcome.expression} gave {outcome.value!r}"


@pytest.mark.parametrize("wrong", [7, (8, 64, 16, 17), "y"])
def test_worked_example_detects_a_wrong_result(wrong):
    example = dataclasses.replace(_examples.EXAMPLES[0], expected={"y.shape": wrong})
    assert [outcome.passed for outcome in example.run()] == [False]


def test_demo_shows_examples_and_writes_the_picture(tmp_path, capsys):
    path = tmp_path / "pool.svg"
    assert main(["demo", "--output", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "FAILED" not in out
    assert str(path) in out
    for example in _examples.EXAMPLES:
        assert example.title in out
        assert all(line in out for line in example.code.splitlines())
    assert "array([[[[ 5,  7],\n             [12, 10]]]])" in out
    svg = path.read_text(encoding="utf-8")
    assert texts(svg, "output") == ["3", "7", "9", "-2", "7", "8"]


def test_demo_writes_to_the_working_directory_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ndpool-demo.svg"]


def test_demo_without_picture_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--no-picture"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_demo_fails_if_a_check_fails(monkeypatch, capsys):
    first, second = _examples.EXAMPLES[2:4]
    wrong = dataclasses.replace(first, expected={"y": [[[[0, 0], [0, 0]]]]})
    monkeypatch.setattr(_examples, "EXAMPLES", (wrong, second))
    assert main(["demo", "--no-picture"]) == 1
    out, err = capsys.readouterr()
    assert out.count("FAILED") == 1
    assert second.title in out
    assert err == f"ndpool: 1 of {1 + len(second.expected)} checks failed\n"


def test_demo_reports_a_picture_that_cannot_be_written(tmp_path, capsys):
    path = tmp_path / "missing" / "pool.svg"
    assert main(["demo", "--output", str(path)]) == 1
    assert (
        capsys.readouterr().err == f"ndpool: cannot write the picture to {path}: No such file or directory\n"
    )


def test_demo_imports_no_framework():
    """The worked examples need only NumPy."""
    code = (
        "import sys; from ndpool._cli import main; code = main(['demo', '--no-picture']);"
        "sys.exit(code or ', '.join({'torch', 'jax', 'cupy', 'dask'} & sys.modules.keys()) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_info_prints_the_configuration(capsys):
    assert main(["info"]) == 0
    assert capsys.readouterr().out == f"{ndpool.show_config()}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["info", "--help"], ["--version"]])
def test_help_and_version(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert out.startswith(f"ndpool {version('ndpool')}" if "--version" in arguments else "usage: ndpool")
    if arguments == ["--help"]:
        assert all(word in out for word in ("demo", "info", "examples:", "exit codes:", "max_pool2d"))


def test_version_without_metadata(monkeypatch, capsys):
    """Sources that run without being installed have no version, and every command works."""

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ndpool._config.version", missing)
    assert main(["info"]) == 0
    assert capsys.readouterr().out == f"{ndpool.show_config()}\n"
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == "ndpool unknown\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["paint"], "invalid choice: 'paint'"),
        (["demo", "--output"], "expected one argument"),
        (["demo", "--output", "x.svg", "--no-picture"], "not allowed with argument"),
        (["info", "--loud"], "unrecognized arguments: --loud"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert message in err
    assert err.startswith("usage: ndpool")


def test_interrupt_is_clean(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(_cli, "run_all", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "ndpool: interrupted\n"


def test_broken_pipe_is_clean():
    process = ndpool_process("demo", "--no-picture")
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 141


def test_module_is_the_command():
    process = ndpool_process("info")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()] == list(ndpool.show_config())


def test_bad_environment_variable_is_reported_without_a_traceback():
    process = ndpool_process("info", env=os.environ | {"NDPOOL_ISA": "abacus"})
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err.startswith("ndpool: NDPOOL_ISA must be one of ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [((4, 6), 3, 2, 1), ((5, 5), 2, 2, 0), ((3, 7), (1, 3), (1, 2), (0, 1)), ((6, 4), 4, 1, 2)],
)
def test_picture_shows_the_pool(shape, kernel, stride, padding):
    x = np.random.default_rng(1).permutation(np.arange(-5.0, np.prod(shape) - 5)).reshape(shape)
    values, indices = ndpool.max_pool2d(x[None], kernel, stride, padding, return_indices=True)
    svg = pool_picture(x, kernel, stride, padding)
    assert texts(svg, "value", "winner") == [f"{value:g}" for value in x.flat]
    assert texts(svg, "output") == [f"{value:g}" for value in values.flat]
    winners = np.unique(indices)
    assert texts(svg, "winner") == [f"{x.flat[index]:g}" for index in winners]
    positions = [str(index) for index in range(x.size)] + [f"from {index}" for index in indices.flat]
    assert texts(svg, "index") == positions
    assert len(texts(svg, "window")) == len(texts(svg, "mark")) == values.size
    pads = np.broadcast_to(padding, 2)
    assert len(texts(svg, "cell")) == x.size
    assert len(texts(svg, "padding")) == np.prod(np.array(shape) + 2 * pads) - x.size
    assert ("padding, never selected" in svg) == bool(pads.any())


def test_picture_outlines_the_windows_with_their_padding():
    """A 3x3 window with padding 1 starts one cell before the input; all outlines span three cells."""
    svg = ET.fromstring(pool_picture(np.arange(24.0).reshape(4, 6), 3, 2, 1))
    by_class = {
        name: [n for n in svg.iter() if n.get("class") == name] for name in ("window", "cell", "padding")
    }
    cell = float(by_class["cell"][0].get("width"))
    left, top = (float(by_class["padding"][0].get(name)) for name in "xy")
    for number, window in enumerate(by_class["window"]):
        x, y, width, height = (float(window.get(name)) for name in ("x", "y", "width", "height"))
        row, column = divmod(number, 3)
        assert ((x - left) // cell, (y - top) // cell) == (2 * column, 2 * row)
        assert 0 < 3 * cell - width == 3 * cell - height < cell / 2


def test_there_are_example_scripts():
    assert [path.stem for path in SCRIPTS] == ["image_pyramid", "segnet_unpool", "worked_examples"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_script_runs(script, tmp_path):
    command = [sys.executable, "-W", "error", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout
    assert list(tmp_path.iterdir()) == []
