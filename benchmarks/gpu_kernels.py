"""What each GPU kernel is worth: the benchmark's cases with all kernels, and without one of them at a time.

``python benchmarks/gpu_kernels.py table networks windows random`` times large batches and layers of networks,
which are the cases of the benchmark, gradients of large windows, and random cases; in each, every kernel that
the case would run is left out in turn, so that the next one in the order of selection takes its place.
``--variants`` names kernels to leave out, or constants of `tuning.py` and their values, joined by ``+``.
``--plain`` only times the cases next to PyTorch. ``size`` prints how many kernels there are, their lines, and
the longest signature.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ndpool._bench import cuda, cuda_random
from ndpool._bench.case import Case
from ndpool._bench.cases import CASES
from ndpool._bench.cuda_cases import CUDA_CASES, WINDOW_CASES
from ndpool._bench.cuda_peers import Call, Contestant, Data, installed
from ndpool._bench.cuda_report import rows
from ndpool._bench.report import geometric_mean

# The functions that select a kernel.
SELECTION: dict[str, tuple[tuple[str, str], ...]] = {
    "segment": (("forward", "segments"),),
    "channels_last": (("forward", "rows_of_channels"), ("forward", "_few_lanes")),
    "planes": (("forward", "whole_planes"),),
    "region": (("backward", "region_backward"),),
    "scatter": (("backward", "_scatters"), ("backward", "_few_outputs")),
    "column": (("backward", "column_backward"),),
    "runs": (("backward", "_runs_are_long"),),
    "scan": (("backward", "scan_backward"),),
    "walk": (("backward", "walk_backward"),),
    "block": (("backward", "blocks_backward"),),
    "plane backward": (("backward", "whole_planes"),),
}


def name_of(variant: str) -> str:
    """The name of a variant as a contestant."""
    return variant if "=" in variant else f"without {variant}"


class Without(Contestant):
    """ndpool without one of its kernels."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.name, self.used = name_of(kernel), False
        # Constants alone make a difference everywhere; with a kernel, only where that would run.
        self.varied = all("=" in part for part in kernel.split("+"))
        self.modules = {name: import_module(f"ndpool._triton.{name}") for name in ("forward", "backward")}
        self.cuda = import_module("ndpool.frameworks.torch.cuda")
        self.cache = import_module("ndpool._cache").cache
        self.replaced: dict[tuple[Any, str], Any] = {}
        for part in kernel.split("+"):
            if "=" in part:
                constant, value = part.split("=")
                self.replaced[import_module("ndpool._triton.tuning"), constant] = ast.literal_eval(value)
                continue
            for module, name in SELECTION[part]:
                home = self.modules[module]
                self.replaced[home, name] = self.none(getattr(home, name))

    def none(self, select: Callable[..., Any]) -> Callable[..., Any]:
        """The function that selects nothing, and notes where the original would have."""

        def replaced(*args: Any, **options: Any) -> Any:
            found = select(*args, **options)
            self.used = self.used or bool(found)
            return None

        return replaced

    @contextmanager
    def missing(self) -> Iterator[None]:
        """Select as if the kernel did not exist, past all caches."""
        fresh = {
            (self.cuda, "backward"): lru_cache(1024)(self.modules["backward"].backward.__wrapped__),
            (self.cuda, "_launched"): lru_cache(1024)(self.cuda._launched.__wrapped__),
        }
        new = self.replaced | fresh
        old = {(module, name): getattr(module, name) for module, name in new}
        for (module, name), value in new.items():
            setattr(module, name, value)
        self.cache.clear()
        try:
            yield
        finally:
            for (module, name), value in old.items():
                setattr(module, name, value)
            self.cache.clear()

    def calls(self, case: Case, data: Data) -> list[Call]:
        """The calls, each without the kernel; raises where the case does not run it."""
        self.used = self.varied
        with self.missing():
            made = super().calls(case, data)
            made[0]()
        if not self.used:
            raise ValueError("not used")

        def call(inner: Call) -> Any:
            with self.missing():
                return inner()

        return [partial(call, one) for one in made]


def all_contestants(variants: tuple[str, ...], names: tuple[str, ...]) -> Any:
    """The contestants of the benchmark, and the variants of ndpool."""
    ready, missing = installed(names)
    return (*ready, *map(Without, variants)), missing


def start_worker(variants: tuple[str, ...], *setting: Any) -> None:
    """A worker that knows all contestants."""
    cuda.installed = lru_cache(1)(partial(all_contestants, variants))
    _start(*setting)


_start = cuda._start_worker


def run(cases: tuple[Case, ...], variants: tuple[str, ...]) -> dict[str, Any]:
    """Times of the cases with all kernels, and of those variants that make a difference to them."""
    cuda._start_worker = partial(start_worker, variants)
    return cuda.run(cases, peers=("PyTorch", *map(name_of, variants)))


def text(document: dict[str, Any]) -> str:
    """Shares of a copy of every case; for each kernel, how much longer cases take without it."""
    lines = []
    for row in rows(document):
        factors = ", ".join(f"{name} {row.over(name) or 0:.2f}" for name in row.times if name != "ndpool")
        lines.append(f"{row.share() or 0:5.0%}  {row.name:60} {factors}")
    names = {name for row in rows(document) for name in row.times} - {"ndpool", "PyTorch"}
    for name in sorted(names):
        found = sorted((row.over(name) or 0, row.name) for row in rows(document) if name in row.times)
        if found:
            mean = geometric_mean(factor for factor, _ in found)
            won = sum(factor > 1.1 for factor, _ in found)
            lost = sum(factor < 0.95 for factor, _ in found)
            most = ", ".join(f"{which} {factor:.2f}" for factor, which in found[-3:])
            lines.append(
                f"{name}: {mean:.2f} x as long over {len(found)} cases, {won} by more than 10 %, "
                f"{lost} shorter by more than 5 %; most: {most}; least: {found[0][1]} {found[0][0]:.2f}"
            )
    return "\n".join(lines)


def size() -> str:
    """Kernels, lines and signatures of the package's Triton code."""
    home = Path(import_module("ndpool._triton").__file__ or "").parent
    kernels: list[tuple[int, str]] = []
    lines = 0
    for path in sorted(home.rglob("*.py")):
        source = path.read_text()
        lines += source.count("\n")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                kernels.append((len(node.args.args), node.name))
    longest = max(kernels)
    return f"{len(kernels)} kernels, {lines} lines, longest signature {longest[0]} ({longest[1]})"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("table", "networks", "windows", "random", "size"), nargs="+")
    parser.add_argument("--plain", action="store_true", help="time the cases only, next to PyTorch")
    parser.add_argument(
        "--variants",
        nargs="+",
        default=list(SELECTION),
        help="kernels to leave out, or NAME=VALUE of tuning.py",
    )
    parser.add_argument("--case", nargs="+", default=[""], help="only cases whose names contain one of these")
    parser.add_argument("--number", type=int, default=100, help="of random cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=2, help="of random cases (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="keep the results, after each part")
    options = parser.parse_args()
    documents: dict[str, Any] = {}
    for what in options.what:
        if what == "size":
            print(size())
            continue
        cases = {"table": CUDA_CASES, "networks": CASES, "windows": WINDOW_CASES}.get(what)
        cases = cases or cuda_random.draw(options.number, options.seed)
        chosen = tuple(case for case in cases if any(part in case.name for part in options.case))
        documents[what] = run(chosen, () if options.plain else tuple(options.variants))
        if options.json:
            options.json.write_text(json.dumps(documents, indent=1))
        print(text(documents[what]), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
