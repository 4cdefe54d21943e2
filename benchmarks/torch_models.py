"""End to end: inference and a training step of whole models on the CPU, before and after `accelerate`.

Both contestants run in one process, in shuffled order, after their answers were compared; medians and
quartiles are printed and, with --json, written together with what they were measured on.

    python benchmarks/torch_models.py --json results.json
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import random
import sys
from collections.abc import Callable
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
CONTESTANTS = ("torch", "ndpool")


def infer(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward, with nothing kept."""
    with torch.inference_mode():
        return [model(x)]


def train(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Forward and backward; the answer is the output and every gradient."""
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def check(models: dict[str, torch.nn.Module], step: Callable[..., Any], x: torch.Tensor) -> None:
    """No timing of wrong answers; also the warm-up."""
    wanted, got = ([t.clone() for t in step(models[name], x)] for name in CONTESTANTS)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


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
            times[name].append(perf_counter() - start)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = quantiles(times, n=4)
    return {"median_s": median, "low_quartile_s": low, "high_quartile_s": high, "runs": len(times)}


def run(name: str, seconds: float) -> list[dict[str, Any]]:
    """Both modes of one model; a row of results for each."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
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
            "model": name,
            "input": shape,
            "dtype": "float32",
            "mode": mode,
            "swapped": swapped,
        }
        row |= {who: summary(times[who]) for who in CONTESTANTS}
        row["speedup"] = row["torch"]["median_s"] / row["ndpool"]["median_s"]
        if step is train:
            row["saved_for_backward_bytes"] = kept
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
    return "  ".join(parts)


def processor() -> str:
    """The name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = (
        [row for row in info.read_text().splitlines() if row.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0].partition(":")[2].strip() if names else platform.processor()


def setting() -> dict[str, Any]:
    """What the results were measured on."""
    config = ndpool.show_config()
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": config["cores"],
        "instruction set": config["instruction set"],
        "threads": {"torch": torch.get_num_threads(), "ndpool": ndpool.get_num_threads()},
        "versions": {
            "ndpool": config["ndpool"],
            "torch": torch.__version__,
            "numpy": config["numpy"],
            "python": config["python"],
        },
    }


FORMAT = "ndpool models 1"


def main() -> None:
    """Read the options, run the models, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--threads", type=int, help="threads of both; each one's default if not given")
    parser.add_argument("--seconds", type=float, default=12, help="time for each model and mode")
    parser.add_argument("--only", choices=CASES, help="one model only")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
        ndpool.set_num_threads(options.threads)
    about = setting()
    results = [row for name in CASES if options.only in (None, name) for row in run(name, options.seconds)]
    if options.json:
        document = {"format": FORMAT} | about | {"results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
