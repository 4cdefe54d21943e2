"""The command ``ndpool``: reads the arguments, prints, and turns outcomes into exit codes.

What it shows comes from public calls, from the list in ``_examples`` and from the drawing in ``_picture``.
Exit codes: 0 success, 1 failure, 2 bad usage; 130 after Ctrl-C and 141 when the reader of a pipe has gone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import ndpool
from ndpool._examples import run_all
from ndpool._picture import pool_picture

_DESCRIPTION = "Pooling for every array: PyTorch's pooling semantics, to the index, on NumPy."

_EPILOG = """\
examples:
  ndpool demo                       run everything; the picture goes to ndpool-demo.svg
  ndpool demo --output pool.svg     put the picture elsewhere
  ndpool demo --no-picture          write no file
  ndpool info                       instruction set, threads, versions
  ndpool bench --quick              time a case of every kind next to the libraries that are installed
  ndpool explore                    see windows move, in the browser

the same from Python:
  >>> import numpy as np, ndpool
  >>> ndpool.max_pool2d(np.random.rand(1, 3, 32, 32), 2).shape
  (1, 3, 16, 16)
  >>> print(ndpool.show_config())

exit codes: 0 success, 1 failure (a check failed, a file could not be written), 2 bad usage"""

_DEMO_EPILOG = """\
Each example prints its title, the code that runs, and what expressions give after it. A result that is
not the expected one is marked FAILED and makes the exit code 1."""

_BENCH_EPILOG = """\
Every answer is checked before it is timed. "x floor" is the time of the kernel over that of copying the same
bytes; "x PyTorch" and "x best peer" say how many times faster a whole call is than theirs. Peers: PyTorch,
oneDNN, ONNX Runtime, JAX, OpenCV, SciPy, scikit-image and NumPy, as far as they are installed.

examples:
  ndpool bench --list                         the cases and their classes
  ndpool bench --case resnet --threads 1      the cases with that word in name, network or class
  ndpool bench --json run.json --plot run.svg
  ndpool bench --device cuda                  on a GPU, next to PyTorch, torch.compile, JAX and CuPy

exit codes: 1 if an answer of ndpool was wrong or a file could not be written"""

_EXPLORE_EPILOG = """\
The page is for this machine alone unless --host says otherwise; Ctrl-C stops it (exit code 0). Its address
holds all that was chosen; --state takes such an address, or the part behind its "#".

examples:
  ndpool explore
  ndpool explore --state 'reduce=avg&size=7x9&kernel=3&stride=2&padding=same'
  ndpool explore --export windows.html --state 'mode=adaptive&size=10x7&output_size=3'"""

# A window whose maximum is negative although it holds padding, and an element that wins two windows.
_PICTURED = np.array(
    [
        [3.0, -1.0, 4.0, 1.0, -5.0, 9.0],
        [-2.0, -6.0, 7.0, 3.0, 5.0, 8.0],
        [-9.0, -7.0, 5.0, 3.0, 2.0, 3.0],
        [-8.0, -4.0, 6.0, 2.0, 6.0, 4.0],
    ]
)


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's own arguments) and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends, and would complain about the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("ndpool: interrupted", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"ndpool: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="ndpool", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=layout
    )
    parser.add_argument("--version", action="version", version=f"ndpool {version('ndpool')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="say what this installation runs on")
    info.set_defaults(run=_info)

    demo = commands.add_parser(
        "demo",
        help="run the worked examples, check every result, draw a picture of one pool",
        description="Run the worked examples on NumPy alone, check every result, and draw one pool.",
        epilog=_DEMO_EPILOG,
        formatter_class=layout,
    )
    picture = demo.add_mutually_exclusive_group()
    picture.add_argument(
        "--output",
        type=Path,
        default=Path("ndpool-demo.svg"),
        metavar="FILE",
        help="where the picture goes (default: %(default)s)",
    )
    picture.add_argument("--no-picture", action="store_true", help="draw no picture")
    demo.set_defaults(run=_demo)

    bench = commands.add_parser(
        "bench",
        help="time pooling layers of well-known networks next to other libraries",
        description="Time pooling layers of well-known networks next to other libraries and next to a copy.",
        epilog=_BENCH_EPILOG,
        formatter_class=layout,
    )
    bench.add_argument("--quick", action="store_true", help="the smallest case of every class, in a minute")
    bench.add_argument("--case", metavar="PATTERN", help="only cases whose name, network or class matches")
    bench.add_argument(
        "--threads", type=_counts, metavar="N[,N]", help="numbers of threads (default: 1 and all cores)"
    )
    bench.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to pool (default: %(default)s)"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    bench.add_argument("--update", action="store_true", help="keep what that file has of other cases")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw a chart (SVG)")
    bench.add_argument("--list", action="store_true", help="show the cases and stop")
    bench.set_defaults(run=_bench)

    explore = commands.add_parser(
        "explore",
        help="see windows move over an input, in the browser",
        description="Open a page that shows where windows lie, what they hold and what they give.",
        epilog=_EXPLORE_EPILOG,
        formatter_class=layout,
    )
    explore.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    explore.add_argument("--port", type=int, metavar="N", help="port (default: 7667, or a free one)")
    explore.add_argument("--no-browser", action="store_true", help="open no browser")
    explore.add_argument("--state", default="", metavar="STATE", help="what the page shows first")
    explore.add_argument(
        "--export", type=Path, metavar="FILE", help="write the state as one HTML file and stop"
    )
    explore.set_defaults(run=_explore)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers with commas between them, not {text!r}") from None


def _info(_: argparse.Namespace) -> int:
    print(ndpool.show_config())
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    failures = run_all()
    drawn = arguments.no_picture or _draw(arguments.output)
    return int(failures > 0 or not drawn)


def _draw(path: Path) -> bool:
    picture = pool_picture(_PICTURED, kernel_size=3, stride=2, padding=1)
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
    """What a results file holds."""
    if path is None:
        raise ValueError("bench: --update needs a results file: --json FILE")
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"bench: --update found no results in {path}: {error}") from None
    return found


def _bench(arguments: argparse.Namespace) -> int:
    from ndpool import _bench as bench

    cuda = arguments.device == "cuda"
    if cuda and arguments.threads:
        raise ValueError("bench: --threads is for the CPU; got it with --device cuda")
    cases = bench.select(arguments.case, arguments.quick, bench.cuda.ALL_CASES if cuda else None)
    if arguments.list:
        print(bench.report.listing(cases))
        return 0
    for path in filter(None, (arguments.json, arguments.plot)):
        if not path.parent.is_dir():  # told now, and not when all is measured
            raise ValueError(f"bench: no directory {path.parent} to write {path.name} to")
    threads, report = arguments.threads or bench.all_threads(), bench.report
    before = _results(arguments.json) if arguments.update else None
    how: Any = (arguments.quick, report.progress_bar(sys.stderr))
    told: Any = bench.cuda_report if cuda else report
    try:
        document = bench.cuda.run(cases, *how) if cuda else bench.run(cases, threads, *how)
    except RuntimeError as error:
        print(f"ndpool: {error}", file=sys.stderr)
        return 1
    if before is not None:
        document = report.updated(before, document)
    # The files first: whoever reads the table may be gone by now.
    written = [
        _write(what, path, text(document))
        for what, path, text in (
            ("results", arguments.json, report.as_json),
            ("chart", arguments.plot, told.chart),
        )
        if path
    ]
    print(f"{told.table(document)}\n\n{told.summary(document)}")
    failures = told.failures(document)
    for failure in failures:
        print(f"ndpool: bench: {failure}", file=sys.stderr)
    return int(bool(failures) or not all(written))
