"""The commands ``ndpool pool`` and ``ndpool pyramid``: arguments to one call, and a progress bar.

`_cli` adds them to the parser and reports errors; everything else is in `ndpool.files` and `ndpool.pyramid`.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import ndpool

TERMINATED = 143

_FORMATS = """\
formats, by extension:
  .npy             streamed
  .npz             stored arrays are streamed, compressed ones must fit into --memory
  .zarr, .zip      Zarr folders and zips, chunk by chunk
  .tif, .tiff      TIFF and BigTIFF, by strips, tiles or pages; written without compression
  .png, .jpg       must fit into --memory
  .nc, .h5, .hdf5  NetCDF and HDF5, by chunks
"""

_EXITS = """\
exit codes: 0 success, 1 failure (a message says why; there is no output), 2 bad usage, 130 interrupted by
Ctrl-C, 143 terminated. A Zarr folder that is not finished stays as OUT.partial for --resume; nothing else
stays."""

_POOL_EPILOG = f"""\
The result equals that of ndpool.pool on the whole array, to the bit. OUT appears when it is complete.

{_FORMATS}
examples:
  ndpool pool scan.npy small.npy --kernel 2                      max over 2x2 blocks of the last two axes
  ndpool pool photo.png half.png --reduce avg --kernel 2         averages over height and width
  ndpool pool volume.tif volume.zarr --reduce avg --kernel 2,2,2
  ndpool pool sst.nc monthly.nc --key sst --axes time --kernel 30 --reduce avg
  ndpool pool scene.tif thumbnail.png --adaptive 256,256 --reduce avg
  ndpool pool huge.zarr out.zarr --kernel 3 --stride 1 --padding same --memory 4GiB --resume

{_EXITS}"""

_PYRAMID_EPILOG = f"""\
Every level is pooled from the one before; sizes are rounded up. OUT is an OME-Zarr folder (.zarr) or zip
(.zarr.zip), which appears when it is complete.

{_FORMATS}
examples:
  ndpool pyramid scan.tif scan.ome.zarr --levels 5
  ndpool pyramid labels.npy labels.zarr --reduce max --dims zyx --scale z=2,y=0.5,x=0.5
  ndpool pyramid stack.tif stack.zarr --factor 1,2,2 --axes z,y,x --ome-version 0.4

{_EXITS}"""


def add_commands(commands: Any) -> None:
    """Add the parsers of both commands."""
    layout = argparse.RawDescriptionHelpFormatter
    pool = commands.add_parser(
        "pool",
        help="pool an array in a file, also one larger than memory",
        description="Pool an array in a file into another file, within bounded memory.",
        epilog=_POOL_EPILOG,
        formatter_class=layout,
    )
    _add_files(pool)
    pool.add_argument(
        "--reduce", default="max", metavar="NAME", help="max, min, avg, sum or lp (default: max)"
    )
    windows = pool.add_mutually_exclusive_group(required=True)
    windows.add_argument(
        "--kernel", type=_integers, metavar="N[,N]", help="window size, for all axes or each"
    )
    windows.add_argument(
        "--adaptive",
        type=_output_sizes,
        metavar="N[,N]",
        help="output size instead of a window; - keeps an axis",
    )
    pool.add_argument(
        "--stride", type=_integers, metavar="N[,N]", help="step between windows (default: kernel)"
    )
    pool.add_argument(
        "--padding", type=_padding, metavar="PAD", help="N[,N], before:after pairs, same, same_lower or valid"
    )
    pool.add_argument("--dilation", type=_integers, metavar="N[,N]", help="step inside a window (default: 1)")
    pool.add_argument("--ceil-mode", action="store_true", default=None, help="keep partial last windows")
    pool.add_argument(
        "--exclude-pad", action="store_false", dest="count_include_pad", default=None,
        help="averages do not count padding",
    )  # fmt: skip
    pool.add_argument("--divisor", type=int, dest="divisor_override", metavar="N", help="divisor of averages")
    pool.add_argument(
        "--norm", type=float, dest="norm_type", metavar="P", help="p of --reduce lp (default: 2)"
    )
    pool.add_argument("--dtype", metavar="DTYPE", help="dtype of the result, such as float32")
    _add_axes(pool, "the last two, or y and x where the file names its axes")
    _add_running(pool)
    pool.set_defaults(run=_pool)

    pyramid = commands.add_parser(
        "pyramid",
        help="write the multiscale levels of an image, volume or label file as OME-Zarr",
        description="Write the multiscale levels of an array in a file as OME-Zarr, within bounded memory.",
        epilog=_PYRAMID_EPILOG,
        formatter_class=layout,
    )
    _add_files(pyramid)
    pyramid.add_argument(
        "--levels", type=int, metavar="N", help="levels, the first included (default: to 256)"
    )
    pyramid.add_argument("--reduce", default="avg", metavar="NAME", help="avg, max or min (default: avg)")
    pyramid.add_argument("--factor", type=_integers, default=2, metavar="N[,N]", help="(default: 2)")
    pyramid.add_argument(
        "--dims", metavar="NAMES", help="names of all axes, such as tczyx (default: the file's)"
    )
    pyramid.add_argument("--scale", type=_pairs(float), metavar="X=SIZE,..", help="pixel sizes by axis")
    pyramid.add_argument("--units", type=_pairs(str), metavar="X=UNIT,..", help="units by axis")
    pyramid.add_argument("--ome-version", default="0.5", metavar="V", help="0.5 or 0.4 (default: 0.5)")
    _add_axes(pyramid, "x, y and z")
    _add_running(pyramid)
    pyramid.set_defaults(run=_pyramid)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="file to read")
    parser.add_argument("target", metavar="OUT", help="file to write")


def _add_axes(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--axes", type=_axes, metavar="A[,A]", help=f"numbers or names (default: {default})")
    parser.add_argument("--key", "--dataset", metavar="NAME", help="array in a file with several")
    parser.add_argument("--chunks", type=_integers, metavar="N[,N]", help="chunks of a Zarr output")


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", default="1GiB", metavar="SIZE", help="for data (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted Zarr output")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--quiet", action="store_true", help="no progress bar")
    shown.add_argument("--progress", action="store_true", help="a progress bar also outside of a terminal")


def _integers(text: str) -> Any:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be comma-separated integers; got {text!r}") from None
    return numbers if "," in text else numbers[0]


def _output_sizes(text: str) -> Any:
    sizes = [None if part == "-" else _integers(part) for part in text.split(",")]
    return sizes if "," in text or sizes == [None] else sizes[0]


def _padding(text: str) -> Any:
    if text in ("same", "same_lower", "valid"):
        return text
    if ":" not in text:
        return _integers(text)
    pairs = [tuple(_integers(",".join(part.split(":")))) for part in text.split(",") if ":" in part]
    if len(pairs) != len(text.split(",")) or any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"must be before:after pairs; got {text!r}")
    return pairs


def _axes(text: str) -> Any:
    return [int(part) if part.lstrip("-").isdecimal() else part for part in text.split(",")]


def _pairs(kind: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    def parse(text: str) -> dict[str, Any]:
        try:
            return {name: kind(value) for name, value in (part.split("=") for part in text.split(","))}
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be axis=value pairs; got {text!r}") from None

    return parse


_SLIDING = ("stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")


def _pool(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("axes", "norm_type", "dtype")}
    sliding = {name: getattr(arguments, name) for name in _SLIDING}
    options = {name: value for name, value in given.items() if value is not None}
    asked = {name: value for name, value in sliding.items() if value is not None}
    if arguments.adaptive is not None and asked:
        names = ", ".join(sorted(asked))
        raise ValueError(f"pool: adaptive windows have a size only; got --adaptive with {names}")
    with _running(arguments) as how:
        function: Any = ndpool.files.pool if arguments.adaptive is None else ndpool.files.adaptive_pool
        window = arguments.kernel if arguments.adaptive is None else arguments.adaptive
        files = (arguments.source, arguments.target)
        function(*files, window, reduce=arguments.reduce, **options, **asked, **how)
    return 0


def _pyramid(arguments: argparse.Namespace) -> int:
    with _running(arguments) as how:
        ndpool.pyramid(
            arguments.source,
            arguments.levels,
            arguments.reduce,
            arguments.factor,
            axes=arguments.axes,
            store=arguments.target,
            dims=arguments.dims,
            scale=arguments.scale,
            units=arguments.units,
            ome_version=arguments.ome_version,
            **how,
        )
    return 0


@contextmanager
def _running(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The arguments that say how to run. SIGTERM ends the run as Ctrl-C does and leaves as little behind."""

    def terminate(*_: object) -> None:
        raise SystemExit(TERMINATED)

    if arguments.threads is not None:
        ndpool.set_num_threads(arguments.threads)
    shown = arguments.progress or (sys.stderr.isatty() and not arguments.quiet)
    how = {name: getattr(arguments, name) for name in ("key", "chunks", "memory", "overwrite", "resume")}
    bar = Bar(sys.stderr) if shown else None
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with _without_remarks():
            yield how | {"progress": bar}
    except SystemExit:
        print("ndpool: terminated", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if bar is not None:
            bar.end()


@contextmanager
def _without_remarks() -> Iterator[None]:
    """No warnings and log records of the libraries behind the formats: an error is told in one line."""
    handler, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(handler)  # where there is none, records go to stderr
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(handler)


class Bar:
    """A line with the share that is done, the rate and the time left, redrawn a few times per second."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._started, self._drawn, self._open = clock(), -1.0, False

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes were pooled."""
        now = self._clock()
        if now - self._drawn < 0.1 and done < total:
            return
        self._drawn, self._open = now, True
        passed = max(now - self._started, 1e-9)
        share = done / total if total else 1.0
        rate = done / passed
        left = _duration((total - done) / rate) if rate else "?"
        line = f"[{'#' * int(24 * share):<24}] {share:4.0%}  {_amount(done)} of {_amount(total)}"
        line += f"  {rate / 1e6:.0f} MB/s  {left} left"
        self._stream.write(f"\r\x1b[K{line}" if self._stream.isatty() else f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._open and self._stream.isatty():
            self._stream.write("\n")
            self._stream.flush()


def _amount(n: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000  # type: ignore[assignment]
    return f"{n:.3g} TB"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
