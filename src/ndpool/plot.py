"""Plots of the windows of a pool and of benchmark results (needs matplotlib).

Windows come from `geometry`, values from `pool` and `adaptive_pool`, and benchmark means from the reports;
`_drawing` draws them. Functions return a new figure and do not touch pyplot or other global state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce as fold
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool import geometry
from ndpool._arguments import check_int, is_list, show
from ndpool.general import Ints, Padding, adaptive_pool, pool
from ndpool.reductions import find

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("ndpool.plot needs matplotlib: pip install 'ndpool[plot]'") from error

from ndpool._drawing import DARK, LIGHT, Axis, WindowPicture, draw_bars

__all__ = ["benchmark", "windows"]

MAX_CELLS = 40  # along one axis, padding included
MAX_WINDOWS = 64  # per picture

Position = int | Sequence[int]


def windows(
    x: Any,
    kernel_size: Ints | None = None,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    output_size: int | Sequence[int | None] | None = None,
    reduce: str = "max",
    count_include_pad: bool = True,
    norm_type: float = 2.0,
    outputs: Iterable[Position] | None = None,
    indices: bool = False,
    divisors: bool = False,
    dark: bool = False,
    ax: Axes | None = None,
) -> Figure:
    """
    Draw the input, windows and output of a pool.

    In 1-D, each window is a bar below the input; in 2-D, windows are outlined in the input and the output is
    drawn next to it. Padding is hatched. A filled circle, or a filled part of a bar, marks the maximum or
    minimum of the window of that colour.

    Parameters
    ----------
    x : array, int or tuple of int
        The input, with one or two axes; or only its size, to draw the windows without values.
    kernel_size, stride, padding, dilation, ceil_mode
        A sliding window, as in `ndpool.windows` and `ndpool.pool`.
    output_size : int or sequence of int or None
        An adaptive window, as in `ndpool.adaptive_pool`; instead of `kernel_size`.
    reduce, count_include_pad, norm_type
        Reduction applied to each window, as in `ndpool.pool`.
    outputs : iterable of int or of pair of int, optional
        The outputs whose windows are drawn; all by default.
    indices : bool
        Show the flat index of every input element, and of the maximum or minimum below each output.
    divisors : bool
        Show the divisor below each output.
    dark : bool
        Use colours for a dark background.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default a new figure is created.

    Returns
    -------
    matplotlib.figure.Figure
        Displayed by notebooks; ``savefig`` writes it to a file.

    Examples
    --------
    >>> import numpy as np, ndpool.plot
    >>> figure = ndpool.plot.windows(np.array([1, 3, 2, 5, 4, 0]), 3, stride=2, padding=1, indices=True)
    >>> [text.get_text() for text in figure.axes[0].texts if str(text.get_gid()).startswith("output")]
    ['3', '5', '5']
    >>> figure = ndpool.plot.windows((5, 7), output_size=(2, 3))
    """
    data, sizes = _input(x)
    if (kernel_size is None) == (output_size is None):
        raise ValueError(
            "plot.windows: exactly one of kernel_size and output_size must be given; "
            f"got kernel_size={kernel_size!r}, output_size={output_size!r}"
        )
    reduction = find("plot.windows", reduce)
    options: dict[str, Any] = {"reduce": reduce, "norm_type": norm_type, "axes": tuple(range(len(sizes)))}
    function: Any
    size: Any
    if kernel_size is not None:
        pads: Any = [padding] if len(sizes) == 1 and _is_pair(padding) else padding
        rule = (kernel_size, stride, pads, dilation, ceil_mode)
        plan = geometry.sliding("plot.windows", sizes, *rule, count_include_pad, strict=False)
        padded = geometry.sliding(
            "plot.windows", sizes, *rule, strict=False
        )  # its bounds include the padding
        function, size = pool, kernel_size
        options |= {"stride": stride, "padding": pads, "dilation": dilation, "ceil_mode": ceil_mode}
        options["count_include_pad"] = count_include_pad
    else:
        if (stride, padding, dilation, ceil_mode) != (None, 0, 1, False):
            raise ValueError(
                "plot.windows: stride, padding, dilation and ceil_mode must not be given with output_size; "
                f"got stride={stride!r}, padding={padding!r}, dilation={dilation!r}, ceil_mode={ceil_mode!r}"
            )
        plan = padded = geometry.adaptive("plot.windows", sizes, output_size, strict=False)
        function, size = adaptive_pool, output_size
    axes = [_axis(axis) for axis in padded.axes]
    chosen = _outputs(outputs, plan.out)
    result = winners = None
    if data is not None:
        answer = function(data, size, return_indices=reduction.has_index, **options)
        result, winners = answer if reduction.has_index else (answer, None)
    shares = [[axis.window(o).share for o in range(axis.out)] for axis in plan.axes]
    shown_divisors = fold(np.multiply.outer, map(np.asarray, shares)) if divisors else None
    theme = DARK if dark else LIGHT
    picture = WindowPicture(axes, data, result, winners, chosen, indices, shown_divisors, theme)
    return picture.draw(ax)


def _input(x: Any) -> tuple[NDArray[Any] | None, tuple[int, ...]]:
    """The array, or None if only sizes were given, and the sizes."""
    if isinstance(x, int) or (isinstance(x, tuple) and all(isinstance(size, int) for size in x)):
        data, sizes = None, ((x,) if isinstance(x, int) else x)
    else:
        data = np.asarray(x)
        sizes = data.shape
    if len(sizes) not in (1, 2):
        raise ValueError(f"plot.windows: x must have one or two axes; got shape {sizes}")
    return data, sizes


def _is_pair(padding: object) -> bool:
    return isinstance(padding, tuple) and len(padding) == 2 and all(isinstance(p, int) for p in padding)


def _outputs(outputs: Iterable[Position] | None, out: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The outputs to draw, checked against the output sizes and the limit."""
    if outputs is None:
        count = prod(out)
        chosen = product(*map(range, out)) if count <= MAX_WINDOWS else []
    else:
        if not isinstance(outputs, Iterable):
            raise TypeError(f"plot.windows: outputs must be a list of positions; got outputs={outputs!r}")
        positions = [o if is_list(o) else (o,) for o in outputs]
        chosen = [tuple(check_int("plot.windows", "outputs", i) for i in o) for o in positions]  # type: ignore[union-attr]
        count = len(chosen)
        for o in chosen:
            if len(o) != len(out) or not all(0 <= i < size for i, size in zip(o, out, strict=True)):
                raise ValueError(f"plot.windows: outputs must exist; got {show(o)} with output sizes {out}")
    if count > MAX_WINDOWS:
        raise ValueError(
            f"plot.windows: too many windows, select some by outputs; got {count} (limit {MAX_WINDOWS})"
        )
    return list(chosen)


def _axis(axis: geometry.AxisPlan) -> Axis:
    """An axis with the taps of its windows, padding included."""
    if axis.size > MAX_CELLS or axis.out > MAX_CELLS:
        cells = max(axis.size, axis.out)
    else:
        if axis.regular:
            firsts = [axis.origin + o * axis.stride for o in range(axis.out)]
            taps = [range(first, first + (axis.kernel - 1) * axis.step + 1, axis.step) for first in firsts]
        else:
            found = [axis.window(o) for o in range(axis.out)]
            taps = [range(start, start + count) for start, count, _, _ in found]
        drawn = Axis(axis.size, axis.bounds, taps)
        lo, hi = drawn.extent
        cells = hi - lo
    if cells > MAX_CELLS:
        raise ValueError(
            f"plot.windows: an axis is too long to draw; got {cells} cells with padding (limit {MAX_CELLS})"
        )
    return drawn


def benchmark(
    results: dict[str, Any] | str | Path,
    *,
    threads: int | None = None,
    dark: bool = False,
    ax: Axes | None = None,
) -> Figure:
    """
    Draw benchmark results by class, ndpool next to other libraries.

    A bar is the geometric mean over the cases of a class: for a CPU, the time of a full call divided by the
    time of copying the same bytes, on a logarithmic scale; for a CUDA device, the fraction of the bandwidth
    of a copy.

    Parameters
    ----------
    results : dict, str or Path
        The file written by ``ndpool bench --json FILE``, or the dict read from it.
    threads : int, optional
        The number of threads to show (CPU only); by default the largest that was measured.
    dark : bool
        Use colours for a dark background.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on; by default a new figure is created.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import ndpool.plot
    >>> figure = ndpool.plot.benchmark("benchmarks/results/cpu.json")  # doctest: +SKIP
    """
    from ndpool._bench import cuda, cuda_report, report, runner

    document = results
    if isinstance(results, (str, Path)):
        document = json.loads(Path(results).read_text(encoding="utf-8"))
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if not isinstance(document, dict) or found not in (runner.FORMAT, cuda.FORMAT):
        raise ValueError(f"plot.benchmark: results must come from 'ndpool bench --json'; got {found!r}")
    theme = DARK if dark else LIGHT
    if found == cuda.FORMAT:
        if threads is not None:
            raise ValueError(
                f"plot.benchmark: threads must be None for results of a GPU; got threads={show(threads)}"
            )
        names, means = [name for name, _ in cuda_report.SERIES], cuda_report.class_means(document)
        labels = cuda_report.chart_title(document), cuda_report.chart_note(document)
        return draw_bars(names, means, *labels, theme, ax, shares=True)
    shown = max(document["threads"]) if threads is None else check_int("plot.benchmark", "threads", threads)
    if shown not in document["threads"]:
        measured = ", ".join(map(str, document["threads"]))
        raise ValueError(f"plot.benchmark: threads must be one of {measured}; got threads={show(shown)}")
    names = [name for name, _ in report.SERIES]
    means = report.class_means(document, shown)
    return draw_bars(names, means, report.chart_title(shown), report.chart_note(document), theme, ax)
