"""Everything the page draws for a state: input, windows, output, sizes and code, all computed by ndpool.

The server sends an answer as JSON; the export embeds one in its page. Numbers are sent as text because JSON
has no NaN and the page does no arithmetic.
"""

from __future__ import annotations

from itertools import product
from math import isfinite, isinf, isnan, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ndpool
from ndpool import geometry
from ndpool._explore.snippets import snippets
from ndpool._explore.state import State
from ndpool.reductions import REDUCTIONS

_MINUS, _TIMES, _SPACE = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{NO-BREAK SPACE}"
_WORDS = {"max": "Maximum", "min": "Minimum", "avg": "Average", "sum": "Sum", "lp": "Lp norm"}


def answer(state: State) -> dict[str, Any]:
    """Everything the page shows for a state; raises `ValueError` if the pool is invalid."""
    x = data(state)
    has_index = REDUCTIONS[state.reduce].has_index
    y, index = pooled(state, x, return_indices=True) if has_index else (pooled(state, x), None)
    plan = _plan(state, True)
    axes = [_axis(axis, name) for axis, name in zip(plan.axes, _names(state), strict=True)]
    at = min(state.at, y.size - 1)
    return {
        "state": str(state),
        "controls": state.controls(),
        "dims": state.dims,
        "mode": state.mode,
        "reduce": state.reduce,
        "norm": show(state.norm_type),
        "taps": prod(state.kernel),
        "fill": _fill(state),
        "axes": axes,
        "input": _numbers(x),
        "shades": _shades(x),
        "output": _numbers(y),
        "outputShades": _shades(y, x),
        "index": None if index is None else index.ravel().tolist(),
        "divisor": divisors(state),
        "at": at,
        "play": state.play,
        "formula": [_formula(state, axis) for axis in axes],
        "code": snippets(state, plan, x),
        "summary": _summary(state, y.shape),
    }


def data(state: State) -> NDArray[np.float64]:
    """The input, as created by the first lines of the snippets."""
    if state.data == "random":
        return np.random.default_rng(state.seed).integers(-9, 10, state.size).astype(float)
    if state.data == "ramp":
        return np.arange(float(prod(state.size))).reshape(state.size)
    x = np.zeros(state.size)
    plane = x.reshape(-1, state.size[-1])
    for row, values in zip(plane, state.values, strict=False):
        known = values[: row.size]
        row[: len(known)] = known
    return x


def pooled(state: State, x: NDArray[Any], **options: Any) -> Any:
    """The output of the state's pool, with additional `options`."""
    options |= {"reduce": state.reduce, "norm_type": state.norm_type}
    if state.mode == "adaptive":
        return ndpool.adaptive_pool(x, state.output_size, **options)
    return ndpool.pool(
        x,
        state.kernel,
        stride=state.stride,
        padding=state.padding,
        dilation=state.dilation,
        ceil_mode=state.ceil_mode,
        count_include_pad=state.count_include_pad,
        divisor_override=state.divisor_override if state.reduce == "avg" else None,
        **options,
    )


def divisors(state: State) -> list[int] | None:
    """The divisor of each output, or None if the reduction does not divide."""
    reduction = REDUCTIONS[state.reduce]
    if not reduction.divides or reduction.norm:
        return None
    plan = _plan(state, state.count_include_pad)
    if state.divisor_override is not None and state.mode == "sliding":
        return [state.divisor_override] * prod(plan.out)
    shares = [[axis.window(o).share for o in range(axis.out)] for axis in plan.axes]
    return [prod(share) for share in product(*shares)]


def show(value: float, digits: int = 3) -> str:
    """A number formatted for people, with `digits` significant digits."""
    if isnan(value):
        return "NaN"
    text = "∞" if isinf(value) else f"{abs(value):.{digits}g}"
    return _MINUS + text if value < 0 else text


def _plan(state: State, include: bool) -> geometry.Plan:
    if state.mode == "adaptive":
        return geometry.adaptive("adaptive_pool", state.size, state.output_size, strict=False)
    window = (state.kernel, state.stride, state.padding, state.dilation, state.ceil_mode, include)
    return geometry.sliding("pool", state.size, *window, strict=False)


def _axis(axis: geometry.AxisPlan, name: str) -> dict[str, Any]:
    """The position of every tap of every window, including taps in the padding and beyond it."""
    taps = []
    for o in range(axis.out):
        window, first, count = axis.window(o), axis.origin + o * axis.stride, axis.kernel
        if not axis.regular:
            first, count = window.start, window.taps
        taps.append([first + t * axis.step for t in range(count)])
    before, after = -axis.bounds[0], axis.bounds[1] - axis.size
    return {"name": name, "size": axis.size, "out": axis.out, "before": before, "after": after, "taps": taps}


def _names(state: State) -> tuple[str, ...]:
    return ("rows", "columns") if state.dims == 2 else ("positions",)


def _fill(state: State) -> str:
    """The value that padding counts as."""
    if REDUCTIONS[state.reduce].has_index:
        return f"{_MINUS}∞" if state.reduce == "max" else "∞"
    return "" if state.reduce == "lp" and not (isfinite(state.norm_type) and state.norm_type > 0) else "0"


def _numbers(x: NDArray[Any]) -> dict[str, Any]:
    flat = x.ravel().tolist()
    texts = {"text": [show(v) for v in flat], "full": [show(v, 7) for v in flat]}
    return {"shape": list(x.shape), "exact": [repr(v) for v in flat], **texts}


def _shades(x: NDArray[Any], within: NDArray[Any] | None = None) -> list[float]:
    """The tint of each cell, from 0 to 1: its value relative to the range of the input."""
    finite = [a[np.isfinite(a)] for a in (x, x if within is None else within)]
    known = np.concatenate(finite) if finite else x
    if not known.size or known.max() == known.min():
        return [0.0] * x.size
    low, high = known.min() / 2, known.max() / 2  # halved because the range itself may overflow
    shade = np.clip((x / 2 - low) / (high - low), 0, 1)
    return [round(float(s), 3) for s in np.where(np.isnan(shade), 0.5, shade).ravel()]


def _formula(state: State, axis: dict[str, Any]) -> dict[str, Any]:
    size, before, after, name = axis["size"], axis["before"], axis["after"], axis["name"]
    if state.mode == "adaptive":
        return {"axis": name, "size": size, "out": axis["out"]}
    a = _names(state).index(name)
    kernel, dilation = state.kernel[a], state.dilation[a]
    stride = (state.stride or state.kernel)[a]
    top = f"{size} + {before} + {after} {_MINUS} {dilation} · ({kernel} {_MINUS} 1) {_MINUS} 1"
    span = size + before + after - dilation * (kernel - 1) - 1
    by_formula = (-(-span // stride) if state.ceil_mode else span // stride) + 1
    note = ""
    if by_formula != axis["out"]:
        note = f"Not {by_formula}: the last window would start beyond the input and its leading padding."
    return {
        "axis": name,
        "round": "ceil" if state.ceil_mode else "floor",
        "top": top,
        "bottom": str(stride),
        "note": note,
        "out": axis["out"],
    }


def _times(values: tuple[int, ...]) -> str:
    return f"{_SPACE}{_TIMES}{_SPACE}".join(map(str, values))


def _summary(state: State, shape: tuple[int, ...]) -> str:
    """The state in one sentence, also for screen readers."""
    kind = _WORDS[state.reduce] + (f" with p = {show(state.norm_type)}" if state.reduce == "lp" else "")
    if state.mode == "adaptive":
        return f"{kind} of adaptive windows: input {_times(state.size)}, output {_times(shape)}."
    parts = [
        f"window {_times(state.kernel)}",
        f"stride{_SPACE}{_times(state.stride or state.kernel)}",
    ]
    if isinstance(state.padding, str):
        parts.append(f'padding "{state.padding}"')
    elif any(map(any, state.padding)):
        sides = (f"{a}" if a == b else f"{a} before and {b} after" for a, b in state.padding)
        parts.append(f"padding {f' {_TIMES} '.join(sides)}")
    if set(state.dilation) != {1}:
        parts.append(f"dilation {_times(state.dilation)}")
    if state.ceil_mode:
        parts.append("ceil mode")
    return f"{kind} of a sliding {', '.join(parts)}: input {_times(state.size)}, output {_times(shape)}."
