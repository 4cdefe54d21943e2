"""Random cases for a CUDA device: `ndpool bench --device cuda --random N --seed S`.

The cases of `cuda_cases` are layers of known networks; these are arbitrary. `draw` gives the cases, `run`
times each next to PyTorch, and every sixth next to `torch.compile`; `text` reports means and the slowest
cases.
"""

from __future__ import annotations

from math import exp, log, prod
from random import Random
from typing import Any

from ndpool._bench import cuda
from ndpool._bench.case import Case
from ndpool._bench.cuda_report import Row, failures, machine_line, rows
from ndpool._bench.report import geometric_mean
from ndpool._bench.runner import Progress

__all__ = ["FORMAT", "draw", "failures", "markdown", "run", "text"]

FORMAT = "ndpool bench cuda random 1"

_FAMILIES = ("max_pool", "max_pool", "avg_pool", "lp_pool", "adaptive_max_pool", "adaptive_avg_pool")
_LARGEST = 2**26  # elements of an input or an output
_SMALL = 2**18  # elements of an input below which a call is mostly a launch; most of them are left out
_COMPILED = 6  # one case of so many is compiled, which takes much longer than everything else
_WORST = 10


def draw(n: int, seed: int) -> tuple[Case, ...]:
    """`n` cases of any function, size, window, dtype, layout and direction; the same for the same seed."""
    rng = Random(seed)
    made: list[Case] = []
    while len(made) < n:
        case = _draw(rng, f"random {len(made):03}")
        if case is not None:
            made.append(case)
    return tuple(made)


def _draw(rng: Random, name: str) -> Case | None:
    family, rank = rng.choice(_FAMILIES), rng.choice((1, 2, 2, 3))
    shape = (_size(rng, 256), _size(rng, 2048), *(_size(rng, 512) for _ in range(rank)))
    arguments: dict[str, Any]
    if family.startswith("adaptive"):
        outs = [rng.choice((1, 2, 3, 5, 6, 7, 14, size, _size(rng, 64))) for size in shape[2:]]
        arguments = {"output_size": tuple(outs if rng.random() < 0.3 else outs[:1] * rank)}
    else:
        arguments = _window(rng, family, rank)
    modes = ("values", "backward", "indices") if "max" in family else ("values", "backward")
    layout = "NHWC" if rank > 1 and rng.random() < 0.45 else "NCHW"
    dtype, mode = rng.choice(("float32", "bfloat16", "float16")), rng.choice(modes)
    how = (f"{family}{rank}d", arguments, shape, dtype, layout, mode)
    case = Case(name, "random", f"{family}, {mode}", *how)
    try:
        n_out = prod(case.out_shape)
    except ValueError:  # a window that does not fit
        return None
    if prod(shape) < _SMALL and rng.random() < 0.8:
        return None
    return case if max(n_out, prod(shape)) <= _LARGEST else None


def _size(rng: Random, most: int) -> int:
    """From 1 to `most`, small and large ones equally often."""
    return round(exp(rng.uniform(0, log(most))))


def _window(rng: Random, family: str, rank: int) -> dict[str, Any]:
    def each(value: Any) -> tuple[int, ...]:
        found = [value() for _ in range(rank)]
        return tuple(found if rng.random() < 0.3 else found[:1] * rank)

    kernel = each(lambda: rng.choice((1, 2, 2, 2, 3, 3, 3, 4, 5, 7, 9, rng.randint(1, 16))))
    strides = each(lambda: rng.choice((0, 0, 1, 1, 2, 2, 3, 4)))  # 0: the kernel
    given: dict[str, Any] = {"norm_type": 2.0} if family == "lp_pool" else {}
    given |= {"kernel_size": kernel, "stride": tuple(s or k for s, k in zip(strides, kernel, strict=True))}
    if family != "lp_pool":
        given["padding"] = tuple(rng.choice((0, k // 2)) for k in kernel)
    elif rank == 1:
        given |= {name: given[name][0] for name in ("kernel_size", "stride")}  # PyTorch takes no tuples here
    given["ceil_mode"] = rng.random() < 0.2
    if family == "max_pool" and rng.random() < 0.15:
        given["dilation"] = rng.choice((2, 3))
    if family == "avg_pool" and rng.random() < 0.3:
        given["count_include_pad"] = False
    return given


def run(n: int, seed: int, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Measure random cases; the document is that of `cuda.run`, and also names the seed."""
    cases = draw(n, seed)
    compiled = cases[::_COMPILED]
    document = cuda.run([case for case in cases if case not in compiled], quick, progress, peers=("PyTorch",))
    both = cuda.run(compiled, quick, progress, peers=("PyTorch", "torch.compile"))
    document["results"] = sorted(document["results"] + both["results"], key=lambda result: result["name"])
    return document | {"format": FORMAT, "seed": seed, "versions": both["versions"]}


def text(document: dict[str, Any]) -> str:
    """Share of a copy and factors over PyTorch and `torch.compile`, by direction; the slowest cases."""
    calls = {r["name"]: _call(r) for r in document["results"]}
    lines = [f"{len(calls)} random cases, seed {document['seed']}; {machine_line(document)}", ""]
    for title, own in _directions(document).items():
        lines += [*_lines(title, own, calls), ""]
    return "\n".join(lines)


def _directions(document: dict[str, Any]) -> dict[str, list[Row]]:
    """The cases that were timed, forward and backward."""
    modes = {r["name"]: r["mode"] for r in document["results"]}
    found: dict[str, list[Row]] = {"forward": [], "backward": []}
    for row in rows(document):
        found["backward" if modes[row.name] == "backward" else "forward"].append(row)
    return {title: own for title, own in found.items() if own}


def markdown(document: dict[str, Any]) -> str:
    """The documentation's table: means by direction, and how many cases are slower than each peer."""
    lines = [
        "| | cases | share of copy | x PyTorch | slower | slowest | x torch.compile | slower | slowest |",
        "|---" * 9 + "|",
    ]
    for title, own in _directions(document).items():
        cells = [title, str(len(own)), f"{geometric_mean(row.share() for row in own):.0%}"]
        for peer in ("PyTorch", "torch.compile"):
            factors = [row.over(peer) or 0.0 for row in own if peer in row.times]
            if not factors:
                cells += ["-"] * 3
                continue
            slower = f"{sum(factor < 1 for factor in factors)} of {len(factors)}"
            cells += [f"{geometric_mean(factors):.1f}", slower, f"{min(factors):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", machine_line(document)])


def _call(result: dict[str, Any]) -> str:
    layout = " channels-last" if result["layout"] == "NHWC" else ""
    return f"{result['call']} of {tuple(result['shape'])} {result['dtype']}{layout}, {result['mode']}"


def _lines(title: str, own: list[Row], calls: dict[str, str]) -> list[str]:
    lines = [f"{title}: {len(own)} cases, {geometric_mean(row.share() for row in own):.0%} of a copy"]
    for peer, limit in (("PyTorch", 1.0), ("torch.compile", 0.97)):
        found = sorted((row.over(peer) or 0.0, row) for row in own if peer in row.times)
        if not found:
            continue
        mean = geometric_mean(factor for factor, _ in found)
        slower = sum(factor < limit for factor, _ in found)
        lines.append(f"  {mean:.2f} x {peer} over {len(found)}, {slower} below {limit}; slowest:")
        for factor, row in found[:_WORST]:
            times = f"{row.times['ndpool'] * 1e6:8.1f} us, {row.share():4.0%} of a copy"
            lines.append(f"    {factor:5.2f} x {times}  {calls[row.name]}")
    return lines
