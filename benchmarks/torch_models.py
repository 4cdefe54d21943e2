"""End to end: inference and a training step of whole models, before and after `accelerate`.

Both contestants run in one process, in shuffled order, after their answers were compared; medians and
quartiles are printed and, with --json, written together with what they were measured on. On a GPU the models
are larger and run with automatic mixed precision, and the peak of the memory is told too.

    python benchmarks/torch_models.py --json results.json
    python benchmarks/torch_models.py --device cuda --json results.json
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import platform
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch

import ndpool
import ndpool.torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from models import SPPF, ResNetStem, VGGBlocks, saved_bytes

CASES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "VGG blocks": (lambda: VGGBlocks((64, 64, 128)), (4, 64, 112, 112)),
    "ResNet stem and head": (lambda: ResNetStem(64), (8, 3, 224, 224)),
    "SPPF": (lambda: SPPF(512, 512), (8, 512, 20, 20)),
}


class UNetEncoder3d(torch.nn.Sequential):
    """The way down of a 3-D U-Net: two convolutions a level, and a pool between levels."""

    def __init__(self, widths: tuple[int, ...] = (1, 32, 64, 128)) -> None:
        layers: list[torch.nn.Module] = []
        for n_in, n_out in pairwise(widths):
            for n in (n_in, n_out):
                layers += [torch.nn.Conv3d(n, n_out, 3, padding=1, bias=False), torch.nn.BatchNorm3d(n_out)]
                layers.append(torch.nn.ReLU())
            layers.append(torch.nn.MaxPool3d(2))
        super().__init__(*layers)


CUDA_CASES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "ResNet stem and head": (lambda: ResNetStem(64), (256, 3, 224, 224)),
    "VGG blocks": (lambda: VGGBlocks((3, 64, 128, 256)), (64, 3, 224, 224)),
    "3-D U-Net encoder": (UNetEncoder3d, (4, 1, 64, 128, 128)),
}
CONTESTANTS = ("torch", "ndpool")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
cuda = False  # set by --device


def infer(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward, with nothing kept."""
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=cuda):
        return [model(x)]


def train(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward and backward; the answer is the output and every gradient."""
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
        y = model(x)
        loss = y.float().square().mean()
    loss.backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def check(models: dict[str, torch.nn.Module], step: Callable[..., Any], x: torch.Tensor) -> None:
    """No timing of wrong answers; also the warm-up."""
    wanted, got = ([t.clone() for t in step(models[name], x)] for name in CONTESTANTS)
    # Convolutions in bfloat16 differ from run to run by more than the pools.
    rtol, atol = (2e-2, 3e-2) if cuda else (1e-4, 1e-5)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol * b.abs().max().item())


def measure(
    models: dict[str, torch.nn.Module], step: Callable[..., Any], x: torch.Tensor, seconds: float
) -> dict[str, list[float]]:
    """Times of each contestant, in rounds of shuffled order, until the seconds are spent."""
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    order, end = list(CONTESTANTS), perf_counter() + seconds
    while perf_counter() < end or len(times["torch"]) < 5:
        random.shuffle(order)
        for name in order:
            start = perf_counter()
            step(models[name], x)
            if cuda:
                torch.cuda.synchronize()
            times[name].append(perf_counter() - start)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = quantiles(times, n=4)
    return {"median_s": median, "low_quartile_s": low, "high_quartile_s": high, "runs": len(times)}


def peak(model: torch.nn.Module, step: Callable[..., Any], x: torch.Tensor) -> int:
    """Bytes of the device that were in use at most."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(model, x)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def run(name: str, seconds: float, last: bool = False) -> list[dict[str, Any]]:
    """Both modes of one model; a row of results for each."""
    make, shape = (CUDA_CASES if cuda else CASES)[name]
    torch.manual_seed(0)
    device = "cuda" if cuda else "cpu"
    model, x = make().to(device), torch.randn(shape).to(device)
    if last:
        # Weights of single channels have both formats; a model of volumes takes one for volumes.
        model, x = (t.to(memory_format=FORMATS[len(shape)]) for t in (model, x))
    models = {"torch": model, "ndpool": copy.deepcopy(model)}
    swapped = [entry.kind for entry in ndpool.torch.accelerate(models["ndpool"]).swapped]
    kept = {who: saved_bytes(models[who], x) for who in CONTESTANTS}
    rows = []
    for mode, step in (("inference", infer), ("training step", train)):
        for m in models.values():
            m.train(step is train)
        check(models, step, x)
        times = measure(models, step, x, seconds)
        row: dict[str, Any] = {
            "model": f"{name}, channels-last" if last else name,
            "input": shape,
            "dtype": "bfloat16, automatic" if cuda else "float32",
            "mode": mode,
            "swapped": swapped,
        }
        row |= {who: summary(times[who]) for who in CONTESTANTS}
        row["speedup"] = row["torch"]["median_s"] / row["ndpool"]["median_s"]
        if step is train:
            row["saved_for_backward_bytes"] = kept
        if cuda:
            row["peak_bytes"] = {who: peak(models[who], step, x) for who in CONTESTANTS}
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of results for people."""
    parts = [f"{row['model']:<21} {row['mode']:<14}"]
    for who in CONTESTANTS:
        low, median, high = (
            row[who][f"{key}_s"] * 1e3 for key in ("low_quartile", "median", "high_quartile")
        )
        parts.append(f"{who} {median:8.2f} ms ({low:.2f} to {high:.2f})")
    parts.append(f"{row['speedup']:.2f}x")
    if kept := row.get("saved_for_backward_bytes"):
        parts.append(f"kept {kept['torch'] / 2**20:.1f} -> {kept['ndpool'] / 2**20:.1f} MiB")
    if top := row.get("peak_bytes"):
        parts.append(f"peak {top['torch'] / 2**20:.0f} -> {top['ndpool'] / 2**20:.0f} MiB")
    return "  ".join(parts)


def processor() -> str:
    """The name of the processor, where the system tells it."""
    if cuda:
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = (
        [row for row in info.read_text().splitlines() if row.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0].partition(":")[2].strip() if names else platform.processor()


def setting() -> dict[str, Any]:
    """What the results were measured on."""
    about: dict[str, Any] = {"machine": platform.machine(), "processor": processor()}
    if not cuda:  # which needs no compiled core
        config = ndpool.show_config()
        about |= {key: config[key] for key in ("cores", "instruction set")}
        about["threads"] = {"torch": torch.get_num_threads(), "ndpool": ndpool.get_num_threads()}
    packages = {name: version(name) for name in ("ndpool", "numpy")}
    about["versions"] = packages | {"torch": torch.__version__, "python": platform.python_version()}
    return about


FORMAT = "ndpool models 1"


def main() -> None:
    """Read the options, run the models, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--threads", type=int, help="threads of both; each one's default if not given")
    parser.add_argument("--seconds", type=float, default=12, help="time for each model and mode")
    parser.add_argument("--only", choices={*CASES, *CUDA_CASES}, help="one model only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    global cuda
    cuda = torch.backends.cudnn.benchmark = options.device == "cuda"
    if options.threads:
        torch.set_num_threads(options.threads)
        ndpool.set_num_threads(options.threads)
    about = setting()
    results = []
    for name in CUDA_CASES if cuda else CASES:
        for last in (False, True) if cuda else (False,):
            if options.only in (None, name):
                results += run(name, options.seconds, last)
    if options.json:
        document = {"format": FORMAT} | about | {"results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
