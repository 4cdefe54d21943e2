"""Compile the GPU kernels without a GPU, to find what Triton rejects.

The interpreter runs kernels as Python and does not check types: there, a variable may change its type in a
loop. Here, calls with meta tensors compile what they would launch, without running it.
``python tests/gpu_compile.py --draws 500`` compiles many random calls; test_gpu.py compiles a few.
``--sizes 300`` compiles nothing: it counts the kernels that images of so many sizes need.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ndpool import geometry
from ndpool._call import INDEX64, NO_EXTRA, OFFSET8, Call
from ndpool._triton import unpool as unpooling
from ndpool._triton.kernels import indexing
from ndpool.frameworks.torch import cuda
from ndpool.reductions import REDUCTIONS

HOPPER = GPUTarget("cuda", 90, 32)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
PARTS = ("values", "offsets", "indices", "backward")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class Driver:
    """The current device, as far as the compiler queries it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER


class Stopped(Exception):
    """The requested compilation stage was reached."""


@contextmanager
def counting() -> Iterator[set[str]]:
    """Launches record the key of Triton's kernel cache, and do nothing else."""
    made: set[str] = set()
    run, start = JITFunction.run, cuda._on_device

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        *_, binder = self.device_caches[0]
        _, specialization, compiled = binder(*args, debug=False, **options)
        made.add(f"{self.__name__} {specialization} {sorted(compiled.items())}")

    driver.set_active(Driver())  # type: ignore[arg-type]
    JITFunction.run = note
    cuda._on_device = lambda launch, *tensors: launch(*tensors)
    try:
        yield made
    finally:
        JITFunction.run, cuda._on_device = run, start


@contextmanager
def compiling(whole: bool) -> Iterator[Counter[str]]:
    """Launches only compile: to machine code, or up to the first stage, which checks types."""
    made: Counter[str] = Counter()
    run, add_stages, early, start = JITFunction.run, CUDABackend.add_stages, indexing.USE_PDL, cuda._on_device

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        made[self.__name__] += 1
        with suppress(Stopped):
            compiled = run(self, *args, grid=grid, warmup=True, **options)
            # Assemblers of CUDA 12 negate operands of such comparisons on Hopper.
            assert ".NaN.f16" not in compiled.asm["ptx"], f"{self.__name__} compares in float16"

    def first_stage(self: Any, stages: dict[str, Any], *args: Any) -> None:
        def stop(*_: Any) -> None:
            raise Stopped

        add_stages(self, stages, *args)
        for name in list(stages)[1:]:
            stages[name] = stop

    driver.set_active(Driver())  # type: ignore[arg-type]
    JITFunction.run = compile_only
    indexing.USE_PDL = tl.constexpr(True)  # as on a Hopper GPU
    cuda._on_device = lambda launch, *tensors: launch(*tensors)
    if not whole:
        CUDABackend.add_stages = first_stage
    try:
        yield made
    finally:
        JITFunction.run, CUDABackend.add_stages, indexing.USE_PDL = run, add_stages, early
        cuda._on_device = start


def like(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """A meta tensor."""
    x = torch.empty(shape, dtype=dtype, device="meta")
    if layout == "channels_last" and len(shape) in FORMATS:
        return x.contiguous(memory_format=FORMATS[len(shape)])
    return x.mT.contiguous().mT if layout == "transposed" else x


def call(
    shape: tuple[int, ...],
    plan: geometry.Plan,
    reduce: str = "max",
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    divisor: int = 0,
    parts: Sequence[str] = PARTS,
) -> None:
    """Launch what pooling of the last axes needs: values, offsets, indices, gradients."""
    x = like(shape, dtype, layout)
    last = layout == "channels_last" and len(shape) in FORMATS
    n, reduction = len(plan.axes), REDUCTIONS[reduce]
    axes = tuple(range(len(shape) - n, len(shape)))
    result = dtype if dtype.is_floating_point or reduction.has_index else torch.int64
    norm = 2.0 if reduction.norm else 0.0
    made = Call(reduce, reduction, axes, plan, dtype=result, divisor=divisor, norm=norm)
    kinds = {"values": NO_EXTRA}
    if reduction.has_index:
        kinds |= {"offsets": made.offsets, "indices": INDEX64}
    for part, kind in kinds.items():
        if part in parts:
            cuda.pool(made._replace(extra=kind), x, last)
    if not dtype.is_floating_point or reduction.norm or "backward" not in parts:
        return
    grad = like((*shape[:-n], *plan.out), dtype, "channels_last" if last else "contiguous")
    if reduction.has_index:
        kind = torch.uint8 if made.offsets == OFFSET8 else torch.int32
        cuda.max_backward(made, grad, torch.empty_like(grad, dtype=kind), last)
    else:
        cuda.sum_backward(made, grad, last)


# Functions whose kernels support any image size: reduction, output size, sizes from and below.
SIZED = {
    "adaptive average to 7": ("avg", 7, 24, 257),
    "adaptive max to 7": ("max", 7, 24, 257),
    "adaptive average to 3": ("avg", 3, 24, 257),
    "global average": ("avg", 1, 65, 257),
    "global max": ("max", 1, 65, 257),
    "global average of small planes": ("avg", 1, 9, 65),
    "global max of small planes": ("max", 1, 9, 65),
}


def kernels_of_sizes(
    name: str, layout: str, dtype: torch.dtype, part: str, n: int, aligned: bool
) -> dict[str, set[str]]:
    """The kernels that images of n sizes need; offsets of 8 and of 32 bits separately.

    Aligned images have 64 channels, others a random number that may not fit full vectors. Regular windows,
    which have their own kernels, are left out, and so are whole planes of up to 64 elements.
    """
    reduce, out, least, end = SIZED[name]
    rng, found = np.random.default_rng(5), {}
    for _ in range(n):
        sizes = tuple(map(int, rng.integers(least, end, 2)))
        shape = (int(rng.integers(2, 65)), 64 if aligned else int(rng.integers(2, 600)), *sizes)
        if out > 1 and not any(size % out for size in sizes):
            continue
        plan = geometry.adaptive("adaptive_pool", sizes, out, strict=False)
        bits = "" if reduce != "max" or part not in ("offsets", "backward") else 8 if plan.taps <= 256 else 32
        with counting() as made:
            call(shape, plan, reduce, dtype, layout, parts=(part,))
        found.setdefault(f"{part}{bits}", set()).update(made)
    return found


# Regular windows of contiguous images. A row's length modulo a vector chooses one of three kernels; for
# values of small windows, so does whether there are enough outputs for longer strips.
WINDOWS = {"2x2": (2, 2, 0, 1, False), "3x3": (3, 2, 1, 1, False), "5x5": (5, 1, 2, 1, False)}
MOST = {
    "values": {"2x2": 3, "3x3": 5, "5x5": 3},
    "offsets": {"2x2": 3, "3x3": 3, "5x5": 3},
    "backward": {"2x2": 3, "3x3": 3, "5x5": 2},
}


def count_windows(n: int) -> int:
    """Print how many kernels max pooling of n sizes needs; return how many rows exceed their limit."""
    failures = 0
    for (name, args), part in product(WINDOWS.items(), MOST):
        rng = np.random.default_rng(6)
        with counting() as made:
            for _ in range(n):
                shape = (int(rng.integers(1, 17)), 64, *map(int, rng.integers(24, 257, 2)))
                call(shape, geometry.plan("max_pool2d", shape[2:], args, True), parts=(part,))
        many = len(made) > MOST[part][name]
        failures += many
        print(f"max {name}, {part}: {len(made)}{' TOO MANY' * many}", flush=True)
    return failures


# Kernels that aligned arrays may need, and any arrays: unaligned rows and planes are a second class. Among
# those of contiguous rows the length of windows chooses, and whether they are too few to fill the device.
MOST_SIZED = {
    ("adaptive", "contiguous"): (6, 10),
    ("adaptive", "channels_last"): (4, 9),
    ("global", "contiguous"): (3, 7),
    ("global", "channels_last"): (4, 10),
}
MOST_BACKWARD = 3, 4


def count(n: int) -> int:
    """Print how many kernels n sizes need; return how many rows exceed their limit."""
    failures = 0
    for (name, (reduce, *_)), layout in product(SIZED.items(), ("contiguous", "channels_last")):
        parts = PARTS if reduce == "max" else ("values", "backward")
        for dtype, aligned in product((torch.float32, torch.bfloat16), (True, False)):
            cells = {}
            for part in parts:
                cells |= kernels_of_sizes(name, layout, dtype, part, n, aligned)
            forward = MOST_SIZED[name.split()[0], layout]
            limits = {cell: MOST_BACKWARD if "backward" in cell else forward for cell in cells}
            many = any(len(made) > limits[cell][not aligned] for cell, made in cells.items())
            failures += many
            kind = "aligned" if aligned else "any"
            told = ", ".join(f"{cell} {len(made)}" for cell, made in cells.items())
            print(f"{name}, {layout}, {dtype}, {kind}: {told}{' TOO MANY' * many}", flush=True)
    return failures


def unpool(dtype: torch.dtype) -> None:
    values = torch.empty((4, 8), dtype=dtype, device="meta")
    unpooling.unpool(values, values.to(torch.int64), 32)


# Calls that once failed to compile: shape, function, arguments, part.
REFUSED = [
    ((4, 16, 64, 8, 28), "max_pool3d", (8, 2, 2), "backward"),
    ((4096, 64, 112, 112), "max_pool2d", (7, 1, 3), "offsets"),  # addresses of 64 bits
]


def refused_once() -> None:
    for shape, name, args, part in REFUSED:
        n = int(name[-2])
        plan = geometry.plan(name, shape[-n:], (*args, 1, False), True)
        call(shape, plan, name[:3], parts=(part,))


def compare_float16() -> None:
    """Maxima and minima of float16: in the strip, plane, segment and channels-last kernels."""
    windows = [geometry.plan("max_pool2d", (112, 112), (7, 2, 3, 1, False), True)]
    windows += [geometry.adaptive("adaptive_pool", (112, 112), out, strict=False) for out in (1, 5)]
    for plan, layout, reduce in product(windows, ("contiguous", "channels_last"), ("max", "min")):
        call((16, 16, 112, 112), plan, reduce, torch.float16, layout, parts=("values",))


def draw(rng: np.random.Generator) -> dict[str, Any]:
    """Random arguments of `call`: windows up to 16 along 1 to 3 axes, small and large sizes."""
    n = int(rng.integers(1, 4))
    most = (4096, 300, 80)[n - 1] if rng.random() < 0.6 else (40, 24, 16)[n - 1]
    sizes = [int(rng.integers(1, most + 1)) for _ in range(n)]
    sizes[-1] += int(-sizes[-1] % 8) if rng.random() < 0.4 else 0
    leads = [int(rng.choice([1, 2, 8, 64])), int(rng.choice([1, 3, 4, 16, 64, 192]))]
    while True:
        if rng.random() < 0.25:
            outs = tuple(max(1, size // int(rng.integers(1, 16))) for size in sizes)
            plan = geometry.adaptive("adaptive_pool", tuple(sizes), outs, strict=False)
            break
        same = rng.random() < 0.6
        kernel = [int(rng.integers(1, 17))] * n if same else [int(rng.integers(1, 17)) for _ in sizes]
        stride = [int(rng.choice([1, 2, 3, k, rng.integers(1, 17)])) for k in kernel]
        stride = stride[:1] * n if same else stride
        pad = [k // 2 if rng.random() < 0.5 else 0 for k in kernel]
        dilation = [1 if rng.random() < 0.9 else int(rng.integers(1, 4))] * n
        ceil, include = (bool(flag) for flag in rng.random(2) < 0.4)
        how = (*map(tuple, (kernel, stride, pad, dilation)), ceil, include)
        try:
            plan = geometry.sliding("pool", tuple(sizes), *how, strict=False)
            break
        except ValueError:
            sizes = [size + 8 for size in sizes]
    reduce = str(rng.choice(["max", "max", "min", "avg", "avg", "sum", "lp"]))
    kinds = FLOATS if reduce == "lp" or rng.random() < 0.8 else WHOLE
    return {
        "shape": (*leads, *sizes),
        "plan": plan,
        "reduce": reduce,
        "dtype": kinds[int(rng.integers(len(kinds)))],
        "layout": str(
            rng.choice(["contiguous", "contiguous", "channels_last", "channels_last", "transposed"])
        ),
        "divisor": 7 if reduce == "avg" and rng.random() < 0.1 else 0,
    }


def describe(drawn: dict[str, Any]) -> str:
    windows = [(a.kernel, a.stride, a.origin, a.step, a.regular) for a in drawn["plan"].axes]
    return f"{ {key: value for key, value in drawn.items() if key != 'plan'} } windows {windows}"


def main() -> int:
    """Compile what once failed, then random calls until their number or the time is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no draw after this time")
    parser.add_argument("--whole", action="store_true", help="to machine code, with ptxas; slow")
    parser.add_argument("--sizes", type=int, default=0, help="count the kernels of so many sizes instead")
    options = parser.parse_args()
    if options.sizes:
        return 1 if count(options.sizes) + count_windows(options.sizes) else 0
    failures, begun, done = 0, time.monotonic(), 0
    with compiling(options.whole) as made:
        refused_once()
        unpool(torch.float32)
        if options.whole:
            compare_float16()
        for seed in range(options.seed, options.seed + options.draws):
            if time.monotonic() - begun > options.seconds:
                break
            drawn = draw(np.random.default_rng(seed))
            done += 1
            try:
                call(**drawn)
            except Exception:
                failures += 1
                print(f"seed {seed}: {describe(drawn)}\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{done} draws, {failures} failures, {sum(made.values())} kernels: {dict(made)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
