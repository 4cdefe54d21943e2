"""The structure of the package: imports go one way, tests use few private modules, engines no intrinsics."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ndpool"

# From the public functions down to the kernels: a module imports from lower layers only. A folder stands for
# all of its modules.
LAYERS = [
    ["__main__"],
    ["_cli"],
    ["_cli_files"],
    ["_explore", "_examples", "plot"],
    ["_bench", "_drawing", "_picture"],
    ["torch", "onnx", "__init__"],
    ["_onnx_graph"],
    ["nn", "_explain", "_config", "_pyramid"],
    ["files"],
    ["_levels"],
    ["functional", "general"],
    ["_run"],
    ["adapters"],
    ["_dispatch"],
    ["frameworks"],
    ["_cache"],
    ["_triton"],
    ["_record"],
    ["_native"],
    ["_lowering"],
    ["geometry", "_policy", "_call"],
    ["_plan", "_arguments", "reductions", "_signatures", "_core"],
]
# The same inside PyTorch's folder: each imports from those after it.
TORCH = ["__init__", "prepared", "operators", "operator_checks", "autograd", "kernels"]
TORCH += ["cuda", "cpu", "exporting", "tensors"]
# Libraries that only these may import.
FRAMEWORKS = {
    "torch": ["frameworks/torch", "torch", "_triton", "_bench", "adapters/cupy"],
    "triton": ["_triton"],
    "jax": ["frameworks/jax"],
    "dask": ["frameworks/dask"],
    "cupy": ["adapters/cupy", "_bench"],
    "xarray": ["adapters/xarray"],
    "PIL": ["adapters/images", "_explore"],
    "onnx": ["onnx", "_onnx_graph"],
}
PRIVATE = {  # of ndpool's private modules, what tests and fuzzing may import
    "_native": None,  # the core's switches: instruction sets, threads, recording
    "_cli": None,
    "_cli_files": None,
    "_explore": None,
    "_bench": None,
    "_examples": None,
    "_picture": None,
    "_cache": ["test_call_cache.py", "gpu_*"],
    "_call": [
        "passes.py",
        "test_arrays.py",
        "test_call_cache.py",
        "test_extensions.py",
        "test_torch.py",
        "gpu_*",
    ],
    "_plan": ["passes.py", "test_extensions.py"],
    "_run": ["test_torch_modules.py"],
    "_dispatch": ["test_arrays.py", "test_dask.py", "test_extensions.py", "test_xarray.py"],
    "_policy": ["test_arguments.py"],
    "_record": ["gpu_*"],
    "_triton": ["gpu_*"],
    "frameworks": [
        "passes.py",
        "fences.py",
        "test_dask.py",
        "test_fences.py",
        "test_torch.py",
        "*jax*",
        "gpu_*",
    ],
}


def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, at any depth, type checking aside."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules() -> dict[str, Path]:
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def layer(name: str) -> int:
    """The layer of a module, or of anything in it."""
    top = name.split(".")[0]
    return next(i for i, names in enumerate(LAYERS) if top in names)


def inner(name: str) -> list[str]:
    """The parts of a dotted name below ndpool; empty for what is elsewhere or the package itself."""
    parts = name.split(".")
    return parts[1:] if parts[0] == "ndpool" else []


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_down(name):
    own = layer(name)
    for target in imported(modules()[name]):
        parts = inner(target)
        if not parts or not any(parts[0] in names for names in LAYERS):
            # The package itself: for those above its functions only; `explain` finds functions by name.
            assert target != "ndpool" or own <= layer("__init__") or name == "_explain", f"{name}: {target}"
            continue
        same = parts[0] == name.split(".")[0]
        assert same or layer(parts[0]) > own, f"{name} imports {target}"


def test_pytorchs_folder_has_a_direction():
    for name in TORCH:
        for target in imported(PACKAGE / "frameworks" / "torch" / f"{name}.py"):
            parts = inner(target)
            if parts[:2] == ["frameworks", "torch"] and len(parts) > 2 and parts[2] in TORCH:
                assert TORCH.index(parts[2]) > TORCH.index(name), f"{name} imports {target}"
    assert {path.stem for path in (PACKAGE / "frameworks" / "torch").glob("*.py")} == set(TORCH)


def test_frameworks_know_no_sibling():
    names = {path.stem for path in (PACKAGE / "frameworks").iterdir()} - {"__init__", "__pycache__"}
    for path in (PACKAGE / "frameworks").rglob("*.py"):
        own = path.relative_to(PACKAGE / "frameworks").parts[0].removesuffix(".py")
        for target in imported(path):
            parts = inner(target)
            assert parts[:1] != ["frameworks"] or parts[1] == own or parts[1] not in names, (path, target)


def test_adapters_know_no_sibling():
    names = {path.stem for path in (PACKAGE / "adapters").glob("*.py")} - {"__init__", "_base"}
    for name in names:
        for target in imported(PACKAGE / "adapters" / f"{name}.py"):
            assert inner(target)[:1] != ["adapters"] or inner(target)[1] == "_base", (name, target)


@pytest.mark.parametrize("library", FRAMEWORKS)
def test_libraries_stay_where_they_belong(library):
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if any(place == allowed or place.startswith(allowed + "/") for allowed in FRAMEWORKS[library]):
            continue
        assert not any(name.split(".")[0] == library for name in imported(path)), place


def test_tests_use_few_private_modules():
    for folder in ("tests", "fuzz"):
        for path in (ROOT / folder).glob("*.py"):
            for target in imported(path):
                for part in inner(target)[:1]:
                    if part not in PRIVATE:
                        assert not part.startswith("_") or part == "_core", (path.name, target)
                    elif PRIVATE[part] is not None:
                        assert any(path.match(name) for name in PRIVATE[part]), (path.name, target)


def test_no_function_takes_ten_positional_arguments():
    """What travels together travels as one value. Triton kernels and public signatures are flat by nature."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            if not any(ast.unparse(d).startswith("triton.jit") for d in node.decorator_list):
                assert len(node.args.posonlyargs + node.args.args) < 10, f"{path.name}: {node.name}"


def test_intrinsics_and_compilers_are_in_one_file():
    """Engines are written in the names of simd.h, which knows GCC from Clang."""
    particular = re.compile(
        r"\b(_mm\d*_\w+|__m(mask)?\d+\w*|__builtin_(shuffle|shufflevector|convertvector)|asm|vector_size"
        r"|__clang__|__GNUC__|_Pragma)\b|#\s*pragma (?!once\b)"
    )
    found = {
        path.name: particular.search(path.read_text())
        for path in (ROOT / "csrc").rglob("*")
        if path.suffix in (".h", ".cpp") and path.parent.name != "python"
    }
    assert len(found) > 20
    assert [name for name, match in found.items() if match] == ["simd.h"], found
