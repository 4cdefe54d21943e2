"""The command ``ndpool``: parses arguments, prints results and returns exit codes.

The results come from public functions, the worked examples in ``_examples`` and the drawing in ``_picture``.
Exit codes: 0 success, 1 failure, 2 bad usage; 130 after Ctrl-C, 141 after a broken pipe, 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ndpool
from ndpool._cli_files import add_commands
from ndpool._config import own_version
from ndpool._examples import run_all
from ndpool._picture import pool_picture

_DESCRIPTION = "Pooling for every array, with PyTorch's semantics."

_EPILOG = """\
examples:
  ndpool demo                       run the worked examples and draw a pool to ndpool-demo.svg
  ndpool demo --output pool.svg     draw to another file
  ndpool demo --no-picture          write no file
  ndpool info                       show instruction set, threads and versions
  ndpool bench --quick              time one case per class next to the installed libraries
  ndpool explore                    show moving windows in the browser
  ndpool pool in.npy out.npy --kernel 2 --reduce avg     pool a file of any size
  ndpool pyramid in.tif out.zarr --levels 5              write its multiscale levels as OME-Zarr

from Python:
  >>> import numpy as np, ndpool
  >>> ndpool.max_pool2d(np.random.rand(1, 3, 32, 32), 2).shape
  (1, 3, 16, 16)
  >>> print(ndpool.show_config())

exit codes: 0 success, 1 failure (a check failed, a file could not be read or written), 2 bad usage,
130 interrupted by Ctrl-C, 141 broken pipe, 143 terminated"""

_DEMO_EPILOG = """\
Each example prints its title, its code, and the values of expressions evaluated after it. An unexpected
value is marked FAILED and sets the exit code to 1."""

_BENCH_EPILOG = """\
Every answer is checked before it is timed. "x floor" is the kernel's time divided by the time to copy the
same bytes; "x PyTorch" and "x best peer" are the speedups of a full call over theirs. Peers, if installed:
PyTorch, oneDNN, ONNX Runtime, JAX, OpenCV, SciPy, scikit-image and NumPy.

suites:
  layers   pooling layers of well-known networks, forward and backward
  images   pool(image, ..., axes=(0, 1)) with 1, 3 and 4 channels, next to OpenCV, SciPy and NumPy
  arrays   pool along any axes of volumes, climate data, masks and signals, next to SciPy and NumPy

examples:
  ndpool bench --list                         list the cases with their classes and suites
  ndpool bench --case images --threads 1      run one suite
  ndpool bench --case resnet --threads 1      run cases whose name, network or class contains the word
  ndpool bench --json run.json --plot run.svg
  ndpool bench --random 1000 --seed 1         random calls next to PyTorch, with the slowest ones
  ndpool bench --device cuda                  run on a GPU, next to PyTorch, torch.compile, JAX and CuPy

exit codes: 1 if an answer of ndpool is wrong or a file cannot be written"""

_EXPLORE_EPILOG = """\
The server accepts connections from this machine only, unless --host is given; Ctrl-C stops it (exit code 0).
The URL of the page contains all settings; --state accepts such a URL or the part after its "#".

examples:
  ndpool explore
  ndpool explore --state 'reduce=avg&size=7x9&kernel=3&stride=2&padding=same'
  ndpool explore --export windows.html --state 'mode=adaptive&size=10x7&output_size=3'"""

# It has a window with padding whose maximum is negative, and an element that is the maximum of two windows.
_DEMO_PLANE = np.array(
    [
        [3.0, -1.0, 4.0, 1.0, -5.0, 9.0],
        [-2.0, -6.0, 7.0, 3.0, 5.0, 8.0],
        [-9.0, -7.0, 5.0, 3.0, 2.0, 3.0],
        [-8.0, -4.0, 6.0, 2.0, 6.0, 4.0],
    ]
)


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: ``sys.argv[1:]``) and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout again at exit and would report the broken pipe a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("ndpool: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, MemoryError, ImportError) as error:
        print(f"ndpool: {_reason(error)}", file=sys.stderr)
        return 1
    return code


def _reason(error: Exception) -> str:
    """One line that says what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ndpool", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=layout
    )
    parser.add_argument("--version", action="version", version=f"ndpool {own_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="show the configuration of this installation")
    info.set_defaults(run=_info)

    demo = commands.add_parser(
        "demo",
        help="run the worked examples, check every result and draw one pool",
        description="Run the worked examples with NumPy, check every result and draw one pool.",
        epilog=_DEMO_EPILOG,
        formatter_class=layout,
    )
    picture = demo.add_mutually_exclusive_group()
    picture.add_argument(
        "--output",
        type=Path,
        default=Path("ndpool-demo.svg"),
        metavar="FILE",
        help="file of the picture (default: %(default)s)",
    )
    picture.add_argument("--no-picture", action="store_true", help="do not draw the picture")
    demo.set_defaults(run=_demo)

    bench = commands.add_parser(
        "bench",
        help="time layers of well-known networks, images and arrays next to other libraries",
        description="Time pooling layers of well-known networks, and pooling of images and other arrays, "
        "next to other libraries and a memory copy.",
        epilog=_BENCH_EPILOG,
        formatter_class=layout,
    )
    bench.add_argument("--quick", action="store_true", help="run only the smallest case of each class")
    bench.add_argument(
        "--case", metavar="PATTERN", help="run only cases whose name, network, class or suite matches"
    )
    bench.add_argument(
        "--threads", type=_counts, metavar="N[,N]", help="numbers of threads (default: 1 and all cores)"
    )
    bench.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device (default: %(default)s)"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    bench.add_argument("--update", action="store_true", help="keep that file's results of other cases")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw a chart (SVG)")
    bench.add_argument("--list", action="store_true", help="list the cases and exit")
    bench.add_argument(
        "--random", type=int, metavar="N", help="time N random calls next to PyTorch instead of the cases"
    )
    bench.add_argument("--seed", type=int, default=1, help="seed of the random calls (default: %(default)s)")
    bench.set_defaults(run=_bench)

    explore = commands.add_parser(
        "explore",
        help="show windows moving over an input in the browser",
        description="Open a page that shows the windows of a pool, their elements and the output.",
        epilog=_EXPLORE_EPILOG,
        formatter_class=layout,
    )
    explore.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    explore.add_argument("--port", type=int, metavar="N", help="port (default: 7667, or a free one)")
    explore.add_argument("--no-browser", action="store_true", help="do not open a browser")
    explore.add_argument("--state", default="", metavar="STATE", help="initial settings of the page")
    explore.add_argument(
        "--export", type=Path, metavar="FILE", help="write the page as one HTML file and exit"
    )
    explore.set_defaults(run=_explore)
    add_commands(commands)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be comma-separated integers; got {text!r}") from None


def _info(_: argparse.Namespace) -> int:
    print(ndpool.show_config())
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    failures = run_all()
    drawn = arguments.no_picture or _draw(arguments.output)
    return int(failures > 0 or not drawn)


def _draw(path: Path) -> bool:
    picture = pool_picture(_DEMO_PLANE, kernel_size=3, stride=2, padding=1)
    if not _write("picture", path, picture):
        return False
    print(f"Picture of a 3x3 max pool with stride 2 and padding 1: {path.resolve()}")
    return True


def _write(what: str, path: Path, text: str) -> bool:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"ndpool: cannot write the {what} to {path}: {error.strerror}", file=sys.stderr)
        return False
    return True


def _explore(arguments: argparse.Namespace) -> int:
    from ndpool import _explore as explore

    if arguments.export is None:
        explore.serve(arguments.host, arguments.port, arguments.state, not arguments.no_browser)
        return 0
    try:
        print(f"Page of one state: {explore.export(arguments.export, arguments.state).resolve()}")
    except OSError as error:
        print(f"ndpool: cannot write the page to {arguments.export}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _results(path: Path | None) -> dict[str, Any]:
    """The contents of a results file."""
    if path is None:
        raise ValueError("bench: --update needs a results file: --json FILE")
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"bench: --update found no results in {path}: {error}") from None
    return found


def _bench_random(arguments: argparse.Namespace, threads: Sequence[int]) -> int:
    from ndpool._bench import cuda_random, random_calls, report

    if arguments.random < 1:
        raise ValueError(f"bench: --random must be at least 1; got --random {arguments.random}")
    cuda = arguments.device == "cuda"
    calls: Any = cuda_random if cuda else random_calls
    how: Any = arguments.quick if cuda else threads
    try:
        document = calls.run(arguments.random, arguments.seed, how, report.progress_bar(sys.stderr))
    except ImportError:
        print("ndpool: bench: --random needs PyTorch; install ndpool[torch]", file=sys.stderr)
        return 1
    written = not arguments.json or _write("results", arguments.json, report.as_json(document))
    print(calls.text(document))
    failures = calls.failures(document)
    for failure in failures:
        print(f"ndpool: bench: {failure}", file=sys.stderr)
    return int(bool(failures) or not written)


def _bench(arguments: argparse.Namespace) -> int:
    from ndpool import _bench as bench

    cuda = arguments.device == "cuda"
    if cuda and arguments.threads:
        raise ValueError("bench: --threads applies to the CPU only; got --device cuda")
    cases = bench.select(arguments.case, arguments.quick, bench.cuda.ALL_CASES if cuda else None)
    if arguments.list:
        print(bench.report.listing(cases))
        return 0
    for path in filter(None, (arguments.json, arguments.plot)):
        if not path.parent.is_dir():  # fail before measuring
            raise ValueError(f"bench: cannot write {path.name}: no directory {path.parent}")
    threads, report = arguments.threads or bench.all_threads(), bench.report
    if arguments.random is not None:
        return _bench_random(arguments, threads)
    before = _results(arguments.json) if arguments.update else None
    how: Any = (arguments.quick, report.progress_bar(sys.stderr))
    device_report: Any = bench.cuda_report if cuda else report
    try:
        document = bench.cuda.run(cases, *how) if cuda else bench.run(cases, threads, *how)
    except RuntimeError as error:
        print(f"ndpool: {error}", file=sys.stderr)
        return 1
    if before is not None:
        document = report.updated(before, document)
    # Write the files first: printing may fail if the reader of a pipe has exited.
    written = [
        _write(what, path, text(document))
        for what, path, text in (
            ("results", arguments.json, report.as_json),
            ("chart", arguments.plot, device_report.chart),
        )
        if path
    ]
    print(f"{device_report.table(document)}\n\n{device_report.summary(document)}")
    failures = device_report.failures(document)
    for failure in failures:
        print(f"ndpool: bench: {failure}", file=sys.stderr)
    return int(bool(failures) or not all(written))
