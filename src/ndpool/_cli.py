"""The command ``ndpool``: reads the arguments, prints, and turns outcomes into exit codes.

What it shows comes from public calls, from the list in ``_examples`` and from the drawing in ``_picture``.
Exit codes: 0 success, 1 failure, 2 bad usage; 130 after Ctrl-C and 141 when the reader of a pipe has gone.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

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

the same from Python:
  >>> import numpy as np, ndpool
  >>> ndpool.max_pool2d(np.random.rand(1, 3, 32, 32), 2).shape
  (1, 3, 16, 16)
  >>> print(ndpool.show_config())

exit codes: 0 success, 1 failure (a check failed, a file could not be written), 2 bad usage"""

_DEMO_EPILOG = """\
Each example prints its title, the code that runs, and what expressions give after it. A result that is
not the expected one is marked FAILED and makes the exit code 1."""

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
    return parser


def _info(_: argparse.Namespace) -> int:
    print(ndpool.show_config())
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    failures = run_all()
    drawn = arguments.no_picture or _draw(arguments.output)
    return int(failures > 0 or not drawn)


def _draw(path: Path) -> bool:
    try:
        path.write_text(pool_picture(_PICTURED, kernel_size=3, stride=2, padding=1), encoding="utf-8")
    except OSError as error:
        print(f"ndpool: cannot write the picture to {path}: {error.strerror}", file=sys.stderr)
        return False
    print(f"Picture of a 3x3 max pool with stride 2 and padding 1: {path.resolve()}")
    return True
