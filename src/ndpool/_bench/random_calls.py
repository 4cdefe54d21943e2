"""Random calls over the whole family, next to PyTorch in the same layout: `ndpool bench --random N`.

The benchmark's cases are layers of known networks; these calls are arbitrary. Each is drawn from a
seed, its answer is compared with PyTorch's, and then both are timed in turns. `run` measures, `text` reports
the distribution of the ratios and the slowest calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import exp, log, prod
from random import Random
from typing import Any, NamedTuple

import ndpool

FORMAT = "ndpool random calls 2"
FAMILIES = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "lp_pool")
DTYPES = ("float32", "float32", "float32", "float64", "bfloat16", "float16")
LARGEST = 2**22  # elements of an input
SLOW = 0.9  # a ratio below this counts as slower than PyTorch
Progress = Callable[[int, int, str], None]


class Drawn(NamedTuple):
    """One random call; PyTorch's function of the same name takes the same arguments."""

    function: str
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool
    arguments: dict[str, Any]
    mode: str  # "forward", "indices" or "training": forward and backward

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        layout = " channels-last" if self.channels_last else ""
        return f"{self.function}({given}) of {self.shape} {self.dtype}{layout}, {self.mode}"


def draw(rng: Random) -> Drawn:
    """A call of any function, rank, size, window, dtype, layout and direction that PyTorch has, too."""
    family, n = rng.choice(FAMILIES), rng.choice((1, 2, 2, 3))
    batch, channels = rng.choice((1, 1, 2, 4, 8, 32)), rng.choice((1, 3, 4, 8, 16, 31, 32, 64, 100, 256))
    most, limit = max(8, (LARGEST / (batch * channels)) ** (1 / n)), 224 if n > 1 else 20_000
    sizes = tuple(min(limit, int(exp(rng.uniform(log(7), log(most))))) for _ in range(n))
    arguments: dict[str, Any]
    if family.startswith("adaptive"):
        arguments = {"output_size": _short(_per_axis(rng, n, (1, 2, 3, 5, 7)))}
    else:
        kernel = tuple(map(min, _per_axis(rng, n, (1, 2, 2, 3, 3, 3, 4, 5, 7)), sizes))
        stride = [s or k for s, k in zip(_per_axis(rng, n, (1, 2, 2, 0)), kernel, strict=True)]
        arguments = {"kernel_size": _short(kernel), "stride": _short(stride)}
        if family == "lp_pool":
            arguments = {"norm_type": rng.choice((1.0, 2.0, 2.0, 3.0)), **arguments}
        else:
            shares = _per_axis(rng, n, (0, 0.5, 1))
            arguments["padding"] = _short(
                [int(share * (k // 2)) for share, k in zip(shares, kernel, strict=True)]
            )
        fits = all(2 * k - 1 <= size for k, size in zip(kernel, sizes, strict=True))
        if family == "max_pool" and fits and rng.random() < 0.15:
            arguments["dilation"] = 2
        arguments["ceil_mode"] = rng.random() < 0.2
    modes = ["forward", "training"] + (["indices"] if "max" in family else [])
    dtype, last, mode = rng.choice(DTYPES), n > 1 and rng.random() < 0.4, rng.choice(modes)
    drawn = Drawn(f"{family}{n}d", (batch, channels, *sizes), dtype, last, arguments, mode)
    return drawn if _supported(drawn) else draw(rng)


def _per_axis(rng: Random, n: int, values: Sequence[Any]) -> Sequence[Any]:
    """One of the values for all axes or, in half the draws, one for each."""
    return [rng.choice(values)] * n if rng.random() < 0.5 else rng.choices(values, k=n)


def _short(values: Sequence[int]) -> Any:
    """The values as a caller would write them: a single number where all are equal."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def measure(drawn: Drawn, seconds: float = 0.02) -> dict[str, Any]:
    """The seconds of both, least of several turns, or what differs between their answers."""
    import torch

    x, grad = _data(drawn)
    homes = {"ndpool": ndpool, "PyTorch": torch.nn.functional}
    calls = {name: _call(home, drawn, x, grad) for name, home in homes.items()}
    result: dict[str, Any] = {"call": str(drawn), "function": drawn.function, "mode": drawn.mode}
    expected, terms = calls["PyTorch"], None
    if drawn.mode == "training" and x.itemsize == 2:
        # PyTorch adds gradients of half types in half precision: its float32 is the reference. Where terms of
        # opposite signs cancel, the rounding of both remains: their magnitudes are the scale.
        expected = _call(homes["PyTorch"], drawn, x.float(), grad.float())
        terms = _call(homes["PyTorch"], drawn, x.float(), grad.float().abs())()
    if wrong := _difference(calls["ndpool"](), expected(), terms):
        return result | {"wrong": wrong}
    spans = {name: _span(call) for name, call in calls.items()}
    rounds = {name: max(1, int(seconds / 10 / span)) for name, span in spans.items()}
    order = list(calls)
    for turn in range(7):
        for name in order if turn % 2 else order[::-1]:
            call, n = calls[name], rounds[name]
            start = time.perf_counter()
            for _ in range(n):
                call()
            spans[name] = min(spans[name], (time.perf_counter() - start) / n)
    return result | {"seconds": {name: float(f"{span:.4g}") for name, span in spans.items()}}


def _supported(drawn: Drawn) -> bool:
    """Whether PyTorch has this function for the dtype; it lacks some of the half types."""
    import torch

    small = torch.ones((1, 1, *[16] * (len(drawn.shape) - 2)), dtype=getattr(torch, drawn.dtype))
    try:
        getattr(torch.nn.functional, drawn.function)(small, **drawn.arguments)
    except NotImplementedError:
        return False
    return True


def _data(drawn: Drawn) -> tuple[Any, Any]:
    import torch

    seed = torch.Generator().manual_seed(prod(drawn.shape))
    x = torch.randn(drawn.shape, generator=seed).to(getattr(torch, drawn.dtype))
    if drawn.channels_last:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        x = x.contiguous(memory_format=formats[x.dim()])
    if drawn.function.startswith("lp"):
        x = x.abs()
    y = getattr(torch.nn.functional, drawn.function)(x, **drawn.arguments)
    grad = torch.randn(y.shape, generator=seed).to(x.dtype)
    return x, torch.empty_like(y).copy_(grad)


def _call(home: Any, drawn: Drawn, x: Any, grad: Any) -> Callable[[], Any]:
    import torch

    function, given = getattr(home, drawn.function), drawn.arguments
    if drawn.mode == "indices":
        return lambda: function(x, **given, return_indices=True)
    if drawn.mode == "forward":
        return lambda: function(x, **given)
    leaf = x.detach().requires_grad_()
    return lambda: torch.autograd.grad(function(leaf, **given), leaf, grad)[0]


def _span(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-7)


def _difference(ours: Any, theirs: Any, terms: Any = None) -> str:
    """What differs beyond rounding, or nothing; `terms`: sums of the magnitudes of what was added."""
    import torch

    for name, a, b in zip(("values", "indices"), *map(_pair, (ours, theirs)), strict=False):
        if a.shape != b.shape:
            return f"{name}: shape {tuple(a.shape)}, not {tuple(b.shape)}"
        rtol, atol = (3e-2, 3e-2) if a.itemsize == 2 else (1e-4, 1e-5)
        if name == "indices":
            same = torch.equal(a, b)
        elif terms is not None:
            same = bool(((a.to(b.dtype) - b).abs() <= rtol * terms + 1e-3).all())
        else:
            same = torch.allclose(a.to(b.dtype), b, rtol, atol)
        if not same:
            return f"{name} differ"
    return ""


def _pair(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def run(n: int, seed: int, threads: Iterable[int] = (1,), progress: Progress | None = None) -> dict[str, Any]:
    """Measure `n` random calls for each number of threads; the result is JSON-serialisable."""
    import torch

    before = torch.get_num_threads(), ndpool.get_num_threads()
    results = []
    try:
        for count in threads:
            torch.set_num_threads(count)
            ndpool.set_num_threads(count)
            rng = Random(seed)
            for i in range(n):
                drawn = draw(rng)
                if progress is not None:
                    progress(i, n, str(drawn))
                results.append(measure(drawn) | {"threads": count})
    finally:
        torch.set_num_threads(before[0])
        ndpool.set_num_threads(before[1])
    return {"format": FORMAT, "seed": seed, "calls": n, "torch": torch.__version__, "results": results}


def failures(document: dict[str, Any]) -> list[str]:
    """The calls whose answers differ from PyTorch's."""
    return [f"{r['call']}: {r['wrong']}" for r in document["results"] if "wrong" in r]


def text(document: dict[str, Any]) -> str:
    """The distribution of the ratios PyTorch / ndpool, by function and mode, and the slowest twenty calls."""
    blocks = []
    for threads in sorted({r["threads"] for r in document["results"]}):
        rows = [(_ratio(r), r) for r in document["results"] if r["threads"] == threads and "seconds" in r]
        title = f"{len(rows)} random calls, seed {document['seed']}, {threads} thread{'s'[: threads > 1]}"
        lines = [f"{title}: {_line([ratio for ratio, _ in rows])}", ""]
        lines.append(f"{'function':24} {'mode':10} {'calls':>5}  x PyTorch   slower than {SLOW}")
        for key in sorted({(r["function"], r["mode"]) for _, r in rows}):
            ratios = [ratio for ratio, r in rows if (r["function"], r["mode"]) == key]
            lines.append(
                f"{key[0]:24} {key[1]:10} {len(ratios):5}  {_mean(ratios):9.2f}   {_slower(ratios):.0%}"
            )
        lines += ["", "slowest:"]
        for ratio, r in sorted(rows, key=lambda row: row[0])[:20]:
            ours = r["seconds"]["ndpool"] * 1e6
            lines.append(f"  {ratio:5.2f} x  {ours:9.1f} us  {r['call']}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def markdown(document: dict[str, Any]) -> str:
    """A table by family and mode: geometric mean and share of slower calls, for each number of threads."""
    threads = sorted({r["threads"] for r in document["results"]})
    head = [f"{n} thread{'s'[: n > 1]} | slower than {SLOW} x" for n in threads]
    lines = [f"| functions | mode | {' | '.join(head)} |", "|---" * (2 + 2 * len(threads)) + "|"]
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for r in document["results"]:
        if "seconds" in r:
            key = (r["function"][:-2], r["mode"])
            groups.setdefault(key, {}).setdefault(r["threads"], []).append(_ratio(r))
    for (family, mode), ratios in sorted(groups.items()):
        cells = [f"{_mean(ratios[n]):.2f} | {_slower(ratios[n]):.0%}" for n in threads]
        lines.append(f"| `{family}1d/2d/3d` | {mode} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", sentence(document)])


def sentence(document: dict[str, Any]) -> str:
    """The distribution in one sentence."""
    parts = []
    for n in sorted({r["threads"] for r in document["results"]}):
        ratios = [_ratio(r) for r in document["results"] if r["threads"] == n and "seconds" in r]
        parts.append(
            f"on {n} thread{'s'[: n > 1]} {_slower(ratios):.0%} run at less than {SLOW} times PyTorch's "
            f"speed, and the geometric mean is {_mean(ratios):.1f} times"
        )
    return f"Of {document['calls']} random calls (seed {document['seed']}), {'; '.join(parts)}."


def _ratio(result: dict[str, Any]) -> float:
    seconds: dict[str, float] = result["seconds"]
    return seconds["PyTorch"] / seconds["ndpool"]


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _slower(ratios: list[float]) -> float:
    return sum(ratio < SLOW for ratio in ratios) / len(ratios)


def _line(ratios: list[float]) -> str:
    ordered = sorted(ratios)
    tenth, median = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
    return (
        f"geometric mean {_mean(ratios):.2f} x PyTorch, {_slower(ratios):.1%} slower than {SLOW} x, "
        f"slowest tenth below {tenth:.2f}, median {median:.2f}"
    )
