"""What works where: function x framework x device x what is asked for, found by running it.

Every cell is a small real call whose result is compared with the oracle; a wrong result raises. The results
are kept in ``docs/support/*.json``, one file per kind of device, and the tables of ``docs/support.md`` are
made from them. test_matrix.py runs the fast cells again, so that neither can be out of date.

    python tests/matrix.py --write                  # run everything on the CPU, then write file and page
    python tests/matrix.py --device cuda --json docs/support/cuda.json      # on a machine with a GPU
    python tests/matrix.py --page                   # write the page from the files
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cases
import ndpool
from cases import Case, as_tuple

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "docs" / "support"
PAGE = ROOT / "docs" / "support.md"
COLUMNS = ["forward", "indices", "gradient", "second derivative", "compile", "vmap", "export", "ONNX"]
FAST = COLUMNS[:4] + ["vmap"]
SHAPES = {1: (2, 3, 9), 2: (2, 3, 8, 7), 3: (1, 2, 5, 6, 5)}


def values(shape: tuple[int, ...]) -> Any:
    """Distinct positive numbers, far enough apart for finite differences, exact in float32."""
    rng = np.random.default_rng(0)
    return rng.permutation(int(np.prod(shape))).reshape(shape) / 16 + 1.0


def entries() -> dict[str, Case]:
    """A call of every named function."""
    found = {}
    for name in cases.NAMES:
        family, n = name[:-2], int(name[-2])
        x = values(SHAPES[n])
        kwargs: dict[str, Any] = {}
        args: tuple[Any, ...] = {
            "max_pool": (3, 2, 1),
            "avg_pool": (3, 2, 1),
            "lp_pool": (3.0, 2, 2, True),
            "adaptive_max_pool": ((3,) * n,),
            "adaptive_avg_pool": ((3,) * n,),
            "max_unpool": (),
            "fractional_max_pool": (2, (3,) * n),
        }[family]
        if family == "fractional_max_pool":
            samples = np.random.default_rng(1).random((x.shape[0], x.shape[1], n))
            kwargs["_random_samples"] = samples
        if family == "max_unpool":
            pooled = Case(f"max_pool{n}d", x, "contiguous", (2,), {"return_indices": True})
            x, indices = pooled.call_oracle()
            args, kwargs = (indices, 2), {"output_size": SHAPES[n][2:]}
        found[name] = Case(name, x, "contiguous", args, kwargs)
    return found


CASES = entries()
# The general functions in words of the named ones: (named function, arguments).
GENERAL: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "pool": ("max_pool2d", ((3, 3),), {"stride": 2, "padding": 1}),
    "adaptive_pool": ("adaptive_max_pool2d", ((3, 3),), {}),
    "unpool": ("max_unpool2d", (CASES["max_unpool2d"].args[0], SHAPES[2][2:]), {}),
}
FUNCTIONS = [*CASES, *GENERAL]


def case_of(function: str) -> Case:
    return CASES[GENERAL[function][0] if function in GENERAL else function]


def has_indices(function: str) -> bool:
    return "return_indices" in case_of(function).named


def call(
    function: str, put: Callable[[Any], Any], indices: bool = False, samples: Any = None
) -> Callable[[Any], Any]:
    """The call as a function of its array."""
    if function in GENERAL:
        _, arguments, named = GENERAL[function]
    else:
        arguments, named = CASES[function].args, CASES[function].kwargs
    args = [put(a) if isinstance(a, np.ndarray) else a for a in arguments]
    kwargs = {key: (samples or put)(a) if isinstance(a, np.ndarray) else a for key, a in named.items()}
    if indices:
        kwargs["return_indices"] = True
    return lambda x: getattr(ndpool, function)(x, *args, **kwargs)


class Probe:
    """A framework on a device: how its arrays are made and read. A check that it cannot have is None."""

    name = "NumPy"
    device = "cpu"
    packages: tuple[str, ...] = ("numpy",)

    often: Sequence[str] = tuple(FUNCTIONS)  # what the tests run again
    samples: Any = None  # how random samples are made, where not like other arrays

    gradient: Any = None
    second_derivative: Any = None
    compile: Any = None
    vmap: Any = None
    export: Any = None
    onnx: Any = None

    @classmethod
    def available(cls) -> bool:
        return all(map(importlib.util.find_spec, cls.packages))

    def context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def put(self, a: Any) -> Any:
        return a

    def get(self, a: Any) -> Any:
        return np.asarray(a)

    def check(self, column: str, function: str) -> str | None:
        """Run a cell: "yes", "no", or None where the question has no meaning. A wrong result raises."""
        if column == "indices":
            if not has_indices(function):
                return None
            check: Any = self.indices
        else:
            check = getattr(self, column.replace(" ", "_").lower())
        if check is None:
            return None
        try:
            with warnings.catch_warnings(), self.context():
                warnings.simplefilter("ignore")
                check(function, case_of(function))
        except AssertionError as error:
            raise AssertionError(f"{self.name} on {self.device}: {column} of {function}: {error}") from error
        except Exception:
            return "no"
        return "yes"

    def forward(self, function: str, case: Case) -> None:
        self.compare(call(function, self.put, samples=self.samples)(self.put(case.values)), case)

    def indices(self, function: str, case: Case) -> None:
        got = call(function, self.put, indices=True, samples=self.samples)(self.put(case.values))
        self.compare(got, replace(case, kwargs=case.kwargs | {"return_indices": True}))

    def compare(self, got: Any, case: Case) -> None:
        """Fail unless a result is the oracle's."""
        cases.assert_same(tuple(self.get(part) for part in as_tuple(got)), case.call_oracle(), case)


def weights(case: Case) -> Any:
    return np.random.default_rng(2).integers(1, 5, case.call_oracle()[0].shape).astype(float)


def close(got: Any, want: Any, slack: float) -> None:
    np.testing.assert_allclose(got, want, rtol=slack, atol=slack)


def curvature(case: Case, v: Any, step: float = 1e-4) -> Any:
    """The derivative along `v` of the gradient of sum(weights * y**2), by differences of the oracle's."""

    def slope(x: Any) -> Any:
        moved = replace(case, values=x)
        return moved.oracle_gradient(2 * weights(case) * moved.solve()[0])

    return (slope(case.values + step * v) - slope(case.values - step * v)) / (2 * step)


def direction(case: Case) -> Any:
    return np.random.default_rng(3).integers(-3, 4, case.values.shape).astype(float)


def stacked(case: Case) -> list[Case]:
    """Three calls that differ in their values."""
    return [replace(case, values=case.values * scale) for scale in (1, 2, 0.5)]


class Torch(Probe):
    name, packages = "PyTorch", ("torch",)

    def put(self, a: Any) -> Any:
        return cases.to_torch(a).to(self.device)

    def get(self, a: Any) -> Any:
        return cases.from_torch(a.cpu())

    def gradient(self, function: str, case: Case) -> None:
        import torch

        x, g = self.put(case.values.copy()).requires_grad_(), weights(case)
        (got,) = torch.autograd.grad(call(function, self.put)(x), x, self.put(g))
        close(self.get(got), case.oracle_gradient(g), 1e-9)

    def second_derivative(self, function: str, case: Case) -> None:
        import torch

        x, v = self.put(case.values.copy()).requires_grad_(), direction(case)
        y = call(function, self.put)(x)
        (slope,) = torch.autograd.grad((self.put(weights(case)) * y * y).sum(), x, create_graph=True)
        (got,) = torch.autograd.grad((slope * self.put(v)).sum(), x)
        close(self.get(got), curvature(case, v), 1e-4)

    def compile(self, function: str, case: Case) -> None:
        import torch

        compiled = torch.compile(call(function, self.put), fullgraph=True, backend="aot_eager")
        try:
            self.compare(compiled(self.put(case.values)), case)
        finally:
            torch._dynamo.reset()

    def vmap(self, function: str, case: Case) -> None:
        import torch

        several = stacked(case)
        x = torch.stack([self.put(one.values) for one in several])
        for got, one in zip(torch.func.vmap(call(function, self.put))(x), several, strict=True):
            self.compare(got, one)

    def module(self, function: str, put: Callable[[Any], Any]) -> Any:
        import torch

        run = call(function, put)

        class Module(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return run(x)

        return Module()

    def export(self, function: str, case: Case) -> None:
        import torch

        x = self.put(case.values)
        program = torch.export.export(self.module(function, self.put), (x,))
        self.compare(program.module()(x), case)

    def onnx(self, function: str, case: Case) -> None:
        """By the newer exporter, in float32, run by ONNX Runtime."""
        import onnxruntime
        import torch

        def put(a: Any) -> Any:
            return self.put(a.astype(np.float32) if a.dtype == np.float64 else a)

        x = put(case.values)
        program = torch.onnx.export(self.module(function, put), (x,), dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
        (got,) = session.run(None, {session.get_inputs()[0].name: x.cpu().numpy()})
        close(got, case.call_oracle()[0], 1e-5)


class TorchCuda(Torch):
    device = "cuda"
    onnx = None  # ONNX Runtime runs what the CPU exports

    @classmethod
    def available(cls) -> bool:
        return super().available() and importlib.import_module("torch").cuda.is_available()


class Jax(Probe):
    name, packages = "JAX", ("jax",)
    often = ("max_pool2d", "adaptive_avg_pool2d", "pool")  # each is compiled

    @classmethod
    def available(cls) -> bool:
        if not super().available():
            return False
        try:
            return bool(importlib.import_module("jax").devices(cls.device))
        except RuntimeError:
            return False

    def context(self) -> AbstractContextManager[Any]:
        jax = importlib.import_module("jax")
        wide = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
        return wide(True)

    def put(self, a: Any) -> Any:
        jax = importlib.import_module("jax")
        return jax.device_put(a, jax.devices(self.device)[0])

    def gradient(self, function: str, case: Case) -> None:
        jax, g = importlib.import_module("jax"), weights(case)
        _, pull = jax.vjp(call(function, self.put), self.put(case.values))
        close(self.get(pull(self.put(g))[0]), case.oracle_gradient(g), 1e-9)

    def second_derivative(self, function: str, case: Case) -> None:
        jax, v, w = importlib.import_module("jax"), direction(case), self.put(weights(case))
        run = call(function, self.put)
        slope = jax.grad(lambda x: (w * run(x) ** 2).sum())
        got = jax.jvp(slope, (self.put(case.values),), (self.put(v),))[1]
        close(self.get(got), curvature(case, v), 1e-4)

    def compile(self, function: str, case: Case) -> None:
        jax = importlib.import_module("jax")
        self.compare(jax.jit(call(function, self.put))(self.put(case.values)), case)

    def vmap(self, function: str, case: Case) -> None:
        jax, several = importlib.import_module("jax"), stacked(case)
        x = self.put(np.stack([one.values for one in several]))
        for got, one in zip(jax.vmap(call(function, self.put))(x), several, strict=True):
            self.compare(got, one)

    def export(self, function: str, case: Case) -> None:
        jax, export = importlib.import_module("jax"), importlib.import_module("jax.export")
        x = self.put(case.values)
        program = export.export(jax.jit(call(function, self.put)))(jax.ShapeDtypeStruct(x.shape, x.dtype))
        self.compare(export.deserialize(program.serialize()).call(x), case)


class JaxCuda(Jax):
    device = "cuda"


class Cupy(Probe):
    name, device, packages = "CuPy", "cuda", ("cupy", "torch")

    @classmethod
    def available(cls) -> bool:
        return super().available() and TorchCuda.available()

    def put(self, a: Any) -> Any:
        return importlib.import_module("cupy").asarray(a)

    def get(self, a: Any) -> Any:
        return importlib.import_module("cupy").asnumpy(a)


class Dask(Probe):
    name, packages = "Dask", ("dask",)
    samples = np.asarray

    def put(self, a: Any) -> Any:
        return importlib.import_module("dask.array").from_array(a, chunks=(1, 2, *(4,) * (a.ndim - 2)))

    def get(self, a: Any) -> Any:
        return a.compute(scheduler="synchronous")


class Xarray(Probe):
    name, packages = "xarray", ("xarray",)

    def put(self, a: Any) -> Any:
        return importlib.import_module("xarray").DataArray(a)


class ArrayApi(Probe):
    name, packages = "array API", ("array_api_strict",)

    def put(self, a: Any) -> Any:
        return importlib.import_module("array_api_strict").asarray(a)

    def get(self, a: Any) -> Any:
        return np.from_dlpack(a)


PROBES: list[type[Probe]] = [Probe, Torch, Jax, Dask, Xarray, ArrayApi, TorchCuda, JaxCuda, Cupy]


def cells(probe: Probe, columns: Sequence[str], functions: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Function, column and answer of a framework's cells."""
    for function in functions:
        for column in columns:
            answer = probe.check(column, function)
            if answer is not None:
                yield function, column, answer


def measure(device: str) -> dict[str, Any]:
    """All cells of the frameworks that are installed, as a results file has them."""
    document: dict[str, Any] = {"device": device, "versions": {}, "frameworks": {}}
    for kind in PROBES:
        if kind.device != device or not kind.available():
            continue
        table: dict[str, dict[str, str]] = {}
        for function, column, answer in cells(kind(), COLUMNS, FUNCTIONS):
            table.setdefault(function, {})[column] = answer
        document["frameworks"][kind.name] = table
        document["versions"][kind.name] = importlib.import_module(kind.packages[0]).__version__
        print(f"{kind.name} on {device}: done", file=sys.stderr)
    return document


def page() -> str:
    """The text of the page, with tables from the results files."""
    head = PAGE.read_text(encoding="utf-8").partition("<!-- matrix -->")[0]
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FILES.glob("*.json"))]
    lines = ["<!-- matrix -->", "| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for document in documents:
        for name, table in document["frameworks"].items():
            lines.append(f"| {title(name, document)} | {' | '.join(summary(table, c) for c in COLUMNS)} |")
    for document in documents:
        for name, table in document["frameworks"].items():
            used = [column for column in COLUMNS if any(column in row for row in table.values())]
            lines += ["", f"## {title(name, document)} {document['versions'][name]}", ""]
            lines += [f"| | {' | '.join(used)} |", "|---" * (len(used) + 1) + "|"]
            for function, row in table.items():
                marks = [{"yes": "yes", "no": "-"}.get(row.get(column, ""), "") for column in used]
                lines.append(f"| `{function}` | {' | '.join(marks)} |")
    return head + "\n".join([*lines, "<!-- /matrix -->"]) + "\n"


def title(name: str, document: dict[str, Any]) -> str:
    return f"{name}, {'CUDA' if document['device'] == 'cuda' else 'CPU'}"


def summary(table: dict[str, dict[str, str]], column: str) -> str:
    """Of the functions that can have it, how many do."""
    answers = [row[column] for row in table.values() if column in row]
    works = answers.count("yes")
    if not answers:
        return ""
    return "all" if works == len(answers) else f"{works} of {len(answers)}" if works else "-"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--write", action="store_true", help="write the results file and the page")
    parser.add_argument("--page", action="store_true", help="write the page from the results files")
    asked = parser.parse_args()
    path = asked.json or (FILES / f"{asked.device}.json" if asked.write else None)
    if path or not asked.page:
        text = json.dumps(measure(asked.device), indent=1) + "\n"
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            print(text)
    if asked.page or asked.write:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
