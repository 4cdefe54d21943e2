"""Reruns one case and prints a program that reproduces its call without the fuzzer."""

from __future__ import annotations

from typing import Any

import numpy as np

from fences import packed
from fuzz.case import Case
from fuzz.work import prepare, run_case
from oracle import Array


def array_code(name: str, values: Array, layout: Any, framework: str, filled: bool = True) -> str:
    """Code that creates an array of this shape, dtype and strides, and fills it with the values."""
    real = values.dtype.kind not in "iub"
    dtype = "ml_dtypes.bfloat16" if values.dtype.name == "bfloat16" else f"np.{values.dtype.name}"
    strides = layout.strides(values.shape, values.dtype.itemsize)
    reach = [(size - 1) * step for size, step in zip(values.shape, strides, strict=True)]
    first = -sum(r for r in reach if r < 0) + layout.shift
    total = first + sum(r for r in reach if r > 0) + values.dtype.itemsize
    lines = [
        f"{name} = np.ndarray({values.shape}, {dtype}, np.zeros({total}, np.uint8).data, {first}, {strides})"
    ]
    if filled:
        data = (values.astype(np.float64) if real else values).ravel().tolist()
        lines.append(f"{name}[...] = np.array({data}).astype({dtype}).reshape({values.shape})")
    if framework == "torch":
        bf16 = values.dtype.name == "bfloat16"
        view = ".view(np.int16)).view(torch.bfloat16)" if bf16 else ")"
        lines.append(f"{name} = torch.from_numpy({name}{view}")
    return "\n".join(lines)


def program(case: Case) -> str:
    """A program that reproduces the call of the case."""
    lines = ["import ml_dtypes, numpy as np, torch", "from numpy import inf, nan", "import ndpool"]
    lines += ["from ndpool._native import core", f"core.set_isa(core.isa_names()[{case.isa}])"]
    lines += [f"ndpool.set_num_threads({case.threads})"]
    lines.append(array_code("x", case.values, case.layout, case.framework))
    arguments = ["x"]
    if case.indices is not None:
        lines.append(array_code("indices", case.indices, case.indices_layout, case.framework))
        arguments.append("indices")
    for key, value in case.kwargs.items():
        if key == "_random_samples":
            lines.append(array_code("samples", value, packed(value.ndim), case.framework))
            arguments.append("_random_samples=samples")
        elif key == "dtype":
            arguments.append(f"dtype={'torch' if case.framework == 'torch' else 'np'}.{value}")
        else:
            arguments.append(f"{key}={value!r}")
    call = f"ndpool.{case.function}({', '.join(arguments)}"
    lines.append(f"print({call}))")
    if case.out:
        from fuzz.check import expected

        want = expected(case)
        targets = [want.values] + [want.indices] * bool(case.kwargs.get("return_indices"))
        names = ["out", "out_indices"][: len(targets)]
        for name, target, layout in zip(names, targets, case.out, strict=False):
            lines.append(array_code(name, target, layout, case.framework, filled=False))
        given = names[0] if len(names) == 1 else f"({', '.join(names)})"
        lines.append(f"print({call}, out={given}))")
    return "\n".join(lines)


def rerun(seed: int) -> int:
    """Describe the case, print its program, and run the case."""
    from fuzz.draw import draw

    isas = prepare()
    case = draw(seed, isas)
    hidden = ("values", "plans", "indices", "kwargs")
    for name, value in vars(case).items():
        if name not in hidden and value not in (None, "", False):
            print(f"# {name} = {value}")
    if case.values.size <= 2000:
        print(program(case))
    print(
        f"# {case.framework} {case.function} of {case.dtype.name}{case.shape} with {case.kwargs}", flush=True
    )
    failure = run_case(case).get("failure")
    print("FAILED: " + failure if failure else "passed")
    return 1 if failure else 0
