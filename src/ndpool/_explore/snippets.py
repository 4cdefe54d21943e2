"""The Python code for a state, with ndpool, with PyTorch and with NumPy alone.

Each snippet is a complete program that assigns the output to `y`; the tests run all three and compare. Where
PyTorch has no equivalent, its snippet is empty and its note says why.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isinf, prod

import numpy as np
from numpy.typing import NDArray

import ndpool
from ndpool import geometry
from ndpool._explore.state import State
from ndpool.reductions import REDUCTIONS

_NAMED = {"max": "max_pool", "avg": "avg_pool", "lp": "lp_pool"}


def snippets(state: State, plan: geometry.Plan, x: NDArray[np.float64]) -> dict[str, dict[str, str]]:
    """The code and note of each library for pooling `x`."""
    batched, plane = (_data(state, x, lead) for lead in ("1, 1, ", ""))
    torch, note = _torch(state, plan)
    if torch:
        head = "import numpy as np\nimport torch\nimport torch.nn.functional as F\n\n"
        torch = f"{head}x = torch.from_numpy({batched})\n{torch}"
    return {
        "ndpool": {
            "code": f"import numpy as np\nimport ndpool\n\nx = {batched}\n{_ndpool(state)}",
            "note": "",
        },
        "torch": {"code": torch, "note": note},
        "numpy": {"code": f"import numpy as np\n\nx = {plane}\n{_numpy(state, plan)}", "note": ""},
    }


def _data(state: State, x: NDArray[np.float64], lead: str) -> str:
    """An expression for the input; `lead` is the text of its leading axes of size 1."""
    shape = f"({lead}{', '.join(map(str, state.size))}{',' if not lead and state.dims == 1 else ''})"
    if state.data == "random":
        return f"np.random.default_rng({state.seed}).integers(-9, 10, {shape}).astype(float)"
    if state.data == "ramp":
        return f"np.arange({prod(state.size)}.0)" + (f".reshape{shape}" if lead or state.dims > 1 else "")
    rows = [f"[{', '.join(map(_literal, row.tolist()))}]" for row in x.reshape(-1, state.size[-1])]
    indent = "\n" + " " * (5 + len("np.array("))
    listed = f"[{f',{indent}'.join(rows)}]" if state.dims == 2 else rows[0]
    return f"np.array({listed}, float)" + (f".reshape{shape}" if lead else "")


def _literal(value: float) -> str:
    if value != value:
        return "np.nan"
    if isinf(value):
        return "np.inf" if value > 0 else "-np.inf"
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _norm(value: float) -> str:
    return repr(value).replace("inf", "float('inf')") if isinf(value) else f"{value:g}"


def _collapse(values: tuple[int, ...]) -> str:
    """One number if all are the same, else a tuple."""
    return str(values[0]) if len(set(values)) == 1 else str(values)


def _torch_padding(state: State) -> tuple[int, ...] | None:
    """The padding if PyTorch supports it: symmetric and at most half the kernel; else None."""
    if state.padding == "valid":
        return (0,) * state.dims
    if isinstance(state.padding, str):
        return None
    fits = all(a == b and a <= k // 2 for (a, b), k in zip(state.padding, state.kernel, strict=True))
    return tuple(a for a, _ in state.padding) if fits else None


def _in_torch(state: State) -> bool:
    """Whether PyTorch has a function for this pool."""
    if state.mode == "adaptive":
        return state.reduce in ("max", "avg")
    pads = _torch_padding(state)
    if state.reduce == "max":
        return pads is not None
    if pads is None or set(state.dilation) != {1}:
        return False
    return state.reduce == "avg" and (state.dims == 2 or state.divisor_override is None)


def _window(state: State, pads: tuple[int, ...] | None = None) -> list[str]:
    """The arguments of a sliding-window function after the kernel; `pads` replaces the padding."""
    pads = _torch_padding(state) or () if pads is None else pads
    parts = [] if state.stride is None else [f"stride={_collapse(state.stride)}"]
    if any(pads):
        parts.append(f"padding={_collapse(pads)}")
    if set(state.dilation) != {1}:
        parts.append(f"dilation={_collapse(state.dilation)}")
    if state.ceil_mode:
        parts.append("ceil_mode=True")
    if state.reduce == "avg":
        if any(pads) and not state.count_include_pad:
            parts.append("count_include_pad=False")
        if state.divisor_override is not None:
            parts.append(f"divisor_override={state.divisor_override}")
    return parts


def _named(state: State, module: str, x: str = "x", pads: tuple[int, ...] | None = None) -> str:
    """A call of a function that ndpool and PyTorch share."""
    name = "max_pool" if state.reduce == "min" else _NAMED[state.reduce]
    indices = ["return_indices=True"] if REDUCTIONS[state.reduce].has_index and pads is None else []
    if state.mode == "adaptive":
        parts = [x, _collapse(state.output_size), *indices]
        return f"{module}.adaptive_{name}{state.dims}d({', '.join(parts)})"
    norm = [_norm(state.norm_type)] if state.reduce == "lp" else []
    parts = [x, *norm, _collapse(state.kernel), *_window(state, pads), *indices]
    return f"{module}.{name}{state.dims}d({', '.join(parts)})"


def _ndpool(state: State) -> str:
    has_index = REDUCTIONS[state.reduce].has_index
    if _in_torch(state):
        call = _named(state, "ndpool")
    else:
        adaptive = state.mode == "adaptive"
        parts = ["x", str(state.output_size if adaptive else state.kernel), f'reduce="{state.reduce}"']
        parts += [f"norm_type={_norm(state.norm_type)}"] if state.reduce == "lp" else []
        parts += [] if adaptive else _general(state)
        parts += ["return_indices=True"] if has_index else []
        call = f"ndpool.{'adaptive_' if adaptive else ''}pool({', '.join(parts)})"
    return f"{'y, i' if has_index else 'y'} = {call}\n"


def _general(state: State) -> list[str]:
    parts = [] if state.stride is None else [f"stride={_collapse(state.stride)}"]
    if isinstance(state.padding, str):
        parts.append(f'padding="{state.padding}"')
    elif any(map(any, state.padding)):
        even = all(a == b for a, b in state.padding)
        pads = _collapse(tuple(a for a, _ in state.padding)) if even else str(list(state.padding))
        parts.append(f"padding={pads}")
    if set(state.dilation) != {1}:
        parts.append(f"dilation={_collapse(state.dilation)}")
    if state.ceil_mode:
        parts.append("ceil_mode=True")
    if state.reduce == "avg" and not state.count_include_pad:
        parts.append("count_include_pad=False")
    if state.reduce == "avg" and state.divisor_override is not None:
        parts.append(f"divisor_override={state.divisor_override}")
    return parts


def _torch(state: State, plan: geometry.Plan) -> tuple[str, str]:
    """The code and note; no code if PyTorch has no equivalent."""
    if _in_torch(state):
        return f"{'y, i' if REDUCTIONS[state.reduce].has_index else 'y'} = {_named(state, 'F')}\n", ""
    if state.mode == "adaptive" and state.reduce != "min":
        return "", f"PyTorch cannot: it has no adaptive {'Lp' if state.reduce == 'lp' else 'sum'} pooling."
    if not REDUCTIONS[state.reduce].has_index and set(state.dilation) != {1}:
        return "", "PyTorch cannot: only its max pooling supports dilation."
    negated = "PyTorch has no min pooling; this negates the max pooling of -x."
    if state.reduce == "min" and (state.mode == "adaptive" or _torch_padding(state) is not None):
        return f"y, i = {_named(state, 'F', '-x')}\ny = -y\n", negated
    if state.reduce == "lp":
        return _torch_norm(state, plan)
    notes, head = [], ""
    pads = _torch_padding(state)
    if pads is None:
        if reason := _why_not_padded_first(state, plan):
            return "", f"PyTorch cannot: {reason}"
        around = [p for axis in reversed(plan.axes) for p in (-axis.bounds[0], axis.bounds[1] - axis.size)]
        fill = {"max": ", value=float('-inf')", "min": ", value=float('inf')"}.get(state.reduce, "")
        head = f"x = F.pad(x, {tuple(around)}{fill})\n"
        lost = ", so indices would refer to the padded input" if fill else ""
        notes.append(f"PyTorch does not support this padding: the input is padded first{lost}.")
        pads = (0,) * state.dims
    if state.reduce == "min":
        return f"{head}y = -{_named(state, 'F', '-x', pads)}\n", " ".join([negated, *notes])
    if state.reduce == "max":
        return f"{head}y = {_named(state, 'F', 'x', pads)}\n", " ".join(notes)
    code, note = _torch_sum(state, pads)
    return head + code, " ".join([*notes, note]).strip()


def _why_not_padded_first(state: State, plan: geometry.Plan) -> str:
    """Why padding the input first would give a different result; empty if it would not."""
    sizes = tuple(axis.bounds[1] - axis.bounds[0] for axis in plan.axes)
    outs = ndpool.output_size(sizes, state.kernel, state.stride, 0, state.dilation, state.ceil_mode)
    if outs != plan.out:
        return "in ceil mode, windows would also start in padding that was added first."
    if state.reduce == "avg" and not state.count_include_pad and state.divisor_override is None:
        return "average pooling excludes padding only if it is symmetric and at most half the kernel."
    return ""


def _torch_norm(state: State, plan: geometry.Plan) -> tuple[str, str]:
    """Lp pooling of magnitudes; padding, also that of ceil mode, is added first as zeros."""
    around = [p for axis in reversed(plan.axes) for p in (-axis.origin, max(0, axis.end - axis.size))]
    pad, note = "", "PyTorch's Lp pooling takes no magnitudes."
    if any(around):
        if not 0 < state.norm_type < inf:
            return "", "PyTorch cannot: its Lp pooling has no padding."
        pad = f"x = F.pad(x, {tuple(around)})\n"
        note += " It has no padding, and scales windows that ceil mode clips: the input is padded first."
    call = _named(replace(state, ceil_mode=False), "F", "x.abs()", (0,) * state.dims)
    return f"{pad}y = {call}\n", note


def _torch_sum(state: State, pads: tuple[int, ...]) -> tuple[str, str]:
    """Sum and average pooling with a divisor, through `avg_pool2d` with `divisor_override`."""
    if state.reduce == "avg" and (state.dims == 2 or state.divisor_override is None):
        return f"y = {_named(state, 'F', pads=pads)}\n", ""
    divisor = state.divisor_override if state.reduce == "avg" else 1
    note = (
        "PyTorch has no sum pooling; this is average pooling with divisor 1." if state.reduce == "sum" else ""
    )
    stride = state.stride or state.kernel
    parts = [_collapse(state.kernel), f"stride={_collapse(stride)}", f"padding={_collapse(pads)}"]
    x, y = "x", ""
    if state.dims == 1:
        note = f"{note} Only 2-D and 3-D average pooling accept a divisor.".strip()
        parts = [f"(1, {state.kernel[0]})", f"stride=(1, {stride[0]})", f"padding=(0, {pads[0]})"]
        x, y = "x[:, :, None]", "[:, :, 0]"
    if not any(pads):
        parts.pop()
    parts += ["ceil_mode=True"] if state.ceil_mode else []
    return f"y = F.avg_pool2d({', '.join([x, *parts, f'divisor_override={divisor}'])}){y}\n", note


def _numpy(state: State, plan: geometry.Plan) -> str:
    return _numpy_adaptive(state) if state.mode == "adaptive" else _numpy_sliding(state, plan)


def _numpy_adaptive(state: State) -> str:
    lines = []
    for name, size, out in zip(
        ("rows", "columns")[-state.dims :], state.size, state.output_size, strict=True
    ):
        lines.append(
            f"{name} = [slice(o * {size} // {out}, -(-(o + 1) * {size} // {out})) for o in range({out})]\n"
        )
    norm = _norm(state.norm_type)
    part = "x[c]" if state.dims == 1 else "x[r, c]"
    value = {
        "max": f"{part}.max()",
        "min": f"{part}.min()",
        "sum": f"{part}.sum()",
        "avg": f"{part}.mean()",
        "lp": f"(abs({part}) ** {norm}).sum() ** (1 / {norm})",
    }[state.reduce]
    if state.reduce == "lp" and isinf(state.norm_type):
        value = f"abs({part}).{'max' if state.norm_type > 0 else 'min'}()"
    inner = f"[{value} for c in columns]"
    lines.append(f"y = np.array({inner if state.dims == 1 else f'[{inner} for r in rows]'})\n")
    return "".join(lines)


def _numpy_sliding(state: State, plan: geometry.Plan) -> str:
    # After the input: the padding that windows reach, then the elements beyond it that they overlap.
    stride = state.stride or state.kernel
    pads, over, spans = [], [], []
    for axis in plan.axes:
        after = axis.bounds[1] - axis.size
        behind = max(0, axis.end - axis.size)
        pads.append((-axis.bounds[0], min(after, behind)))
        over.append((0, max(0, behind - after)))
        spans.append((axis.kernel - 1) * axis.step + 1)
    whole = [(before, a + b) for (before, a), (_, b) in zip(pads, over, strict=True)]
    steps = ", ".join(
        f"::{step}" for step in (stride if set(state.dilation) == {1} else (*stride, *state.dilation))
    )
    padded = any(map(any, whole))
    view = ["", f"def windows(a, fill=0, pad={whole}):" if padded else "def windows(a):"]
    view += ["    a = np.pad(a, pad, constant_values=fill)"] if padded else []
    view += [f"    return np.lib.stride_tricks.sliding_window_view(a, {tuple(spans)})[{steps}]", "", ""]
    return "\n".join(view) + _numpy_reduce(state, padded, pads, over)


def _numpy_reduce(
    state: State, padded: bool, pads: list[tuple[int, int]], over: list[tuple[int, int]]
) -> str:
    axes = ", axis=(-2, -1))" if state.dims == 2 else ", axis=-1)"
    p, norm = state.norm_type, _norm(state.norm_type)
    if state.reduce in ("max", "min"):
        fill = "-np.inf" if state.reduce == "max" else "np.inf"
        return f"y = np.{state.reduce}(windows(x{f', {fill}' if padded else ''}){axes}\n"
    if state.reduce == "sum":
        return f"y = np.sum(windows(x){axes}\n"
    if state.reduce == "lp" and isinf(p):
        fill = ", np.inf" if padded and p < 0 else ""
        return f"y = np.{'max' if p > 0 else 'min'}(windows(abs(x){fill}){axes}\n"
    if state.reduce == "lp":
        return f"y = np.sum(windows(abs(x) ** {norm}){axes} ** (1 / {norm})\n"
    counted = ""
    if state.divisor_override is not None:
        count = str(state.divisor_override)
    elif any(map(any, pads)) and not state.count_include_pad:
        counted, count = f"n = np.sum(windows(np.ones_like(x)){axes}  # elements of the input\n", "n"
    elif any(map(any, over)):
        ones = "np.ones_like(x)"
        if any(map(any, pads)):
            ones = f"np.pad({ones}, {pads}, constant_values=1)"
        counted = f"counted = {ones}  # the input and its padding\n"
        counted += f"n = np.sum(windows(counted, pad={over}){axes}\n"
        count = "n"
    else:
        count = str(prod(state.kernel))
    return f"{counted}y = np.sum(windows(x){axes} / {count}\n"
