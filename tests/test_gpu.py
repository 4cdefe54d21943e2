"""The GPU kernels in Triton's interpreter, on CPU tensors: gpu_checks.py in fresh processes.

The interpreter must be selected before Triton is imported, and nothing else should run in it.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import run_python

pytestmark = pytest.mark.torch
if find_spec("torch") is None or find_spec("triton") is None:
    pytest.skip(
        "PyTorch and Triton, whose interpreter runs GPU kernels, are not both there", allow_module_level=True
    )


HERE = Path(__file__).parent
# Every process takes seconds to start, so there are as few as keep two workers busy.
FIRST = "oracle or zeros_of_both or is_written or each_kind"
PARTS = [FIRST, "every_case", f"not every_case and not ({FIRST})"]


@pytest.mark.parametrize("part", PARTS)
def test_kernels(part):
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:warnings", "-o", "addopts=", "-k", part]
    file = str(HERE / "gpu_checks.py")
    code = f"import sys, pytest; sys.exit(pytest.main({[*options, '--import-mode=importlib', file]!r}))"
    print(run_python(code, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES=""))


def test_defaults_are_not_plain_strings():
    """Triton 3.6 fails if the default of an argument is a plain string; 3.9 accepts it."""
    files = sorted((HERE.parent / "src/ndpool/_triton/kernels").glob("*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            defaults = node.args.defaults if isinstance(node, ast.FunctionDef) else []
            plain = [d for d in defaults if isinstance(d, ast.Constant) and isinstance(d.value, str)]
            assert not plain, f"{file.name}: {node.name}"


def test_kernels_compile():
    """Without a GPU: what once failed to compile, and a few random calls."""
    print(run_python(HERE / "gpu_compile.py", "--draws", "5", CUDA_VISIBLE_DEVICES=""))


def test_machine_code():
    """What once failed to compile, through Triton's own assembler."""
    spec = find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    if not (Path(spec.origin).parent / "backends/nvidia/bin/ptxas").exists():
        pytest.skip("Triton was installed without its assembler for NVIDIA's GPUs")
    print(run_python(HERE / "gpu_compile.py", "--draws", "0", "--whole", CUDA_VISIBLE_DEVICES=""))


def test_new_sizes_need_no_new_kernels():
    """Global pooling of 60 aligned sizes: at most three kernels, four channels-last; adaptive: six and four.

    Max pooling with small windows: up to five for values, three with offsets, and three for gradients.
    """
    print(run_python(HERE / "gpu_compile.py", "--sizes", "60", CUDA_VISIBLE_DEVICES=""))
