"""Writes the tables and charts of the documentation from the files in ``benchmarks/results``.

``results/NAME.json`` comes from ``ndpool bench --json`` or from a script beside this one with ``--json``. Its
table goes between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` in every page that has these marks; its
chart, if any, goes to ``results/NAME.svg``. ``bench:summary`` is the README's table, rows of all results,
with the chart ``docs/assets/speed.svg``. With ``--check`` nothing is written; the exit code is 1 if a file is
out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

from ndpool._bench import cuda, cuda_random, cuda_report, random_calls, report, runner

ROOT = Path(__file__).resolve().parents[1]
REPORTS: dict[str, Any] = {runner.FORMAT: report, cuda.FORMAT: cuda_report}
X = "\N{MULTIPLICATION SIGN}"

# As torch_models.py, jax_speed.py, cupy_speed.py and gpu_overhead.py write them.
MODELS, JAX, CUPY, OVERHEAD = "ndpool models 1", "ndpool jax 1", "ndpool cupy 1", "ndpool gpu overhead 1"

# The README's table: whole models, then classes of single calls, with the largest and the smallest speedups.
SUMMARY_MODELS = {
    "models": (
        ("SPPF", "inference"),
        ("ResNet stem and head", "training step"),
        ("VGG blocks", "training step"),
    ),
    "gpu_models": (
        ("ResNet stem and head, channels-last", "training step"),
        ("3-D U-Net encoder", "training step"),
    ),
}
SUMMARY_CLASSES = {
    "cpu": {
        "max 3x3 s2 NCHW": "max pooling 3x3, stride 2, forward",
        "global avg": "global average pooling, forward",
    },
    "gpu": {"max 3x3 s2 p1, backward": "max pooling 3x3, stride 2, backward"},
}
# The README's chart, CPU classes: common layers, and those in which ndpool gains least.
CHARTED = (
    "max 2x2 s2 NCHW",
    "max 3x3 s2 NCHW",
    "max 5x5 s1",
    "avg 2x2 s2",
    "adaptive avg",
    "global avg",
    "bwd max",
)
CHART = Path("docs", "assets", "speed.svg")


def models(document: dict[str, Any]) -> str:
    """The table of whole models, before and after; for a GPU also the memory."""
    device = any("peak_bytes" in row for row in document["results"])
    head = ["model", "input", "mode", "PyTorch", "accelerated", "speedup"]
    head += ["saved for backward", "peak memory"] if device else []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in document["results"]:
        before, after = (f"{row[who]['median_s'] * 1e3:.1f} ms" for who in ("torch", "ndpool"))
        cells = [row["model"], "x".join(map(str, row["input"])), row["mode"], before, after]
        cells.append(f"{row['speedup']:.2f}")
        if device:
            kept, peak = row.get("saved_for_backward_bytes"), row["peak_bytes"]
            cells.append(" to ".join(f"{kept[who] / 2**20:.0f}" for who in kept) + " MiB" if kept else "-")
            # Both ran in one process: its other memory is the same for both, and cancels.
            cells.append(f"{(peak['ndpool'] - peak['torch']) / 2**20:+.0f} MiB")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{models_machine(document)}, PyTorch {document['versions']['torch']}"])


def models_machine(document: dict[str, Any]) -> str:
    """Processor or GPU, and the threads of the former."""
    threads = document.get("threads")
    return f"{document['processor']}, {threads['torch']} threads" if threads else str(document["processor"])


def jax_table(document: dict[str, Any]) -> str:
    """The table of JAX: milliseconds next to `lax.reduce_window`."""
    lines = ["| window | case | mode | `lax.reduce_window` | ndpool | speedup |", "|---" * 6 + "|"]
    for row in document["rows"]:
        times = f"{row['reduce_window']:.3f} ms | {row['ndpool']:.3f} ms | {row['times']:.2f}"
        lines.append(f"| {row['group']} | {row['case']} | {row['mode']} | {times} |")
    about = document["about"]
    how = f"batches times {about['batch']}, {about['calls']} calls at a time"
    return "\n".join([*lines, "", f"{about['device']}, JAX {about['jax']}, {how}"])


def cupy_table(document: dict[str, Any]) -> str:
    """The tables of CuPy: host time next to tensors, and time next to filters."""
    lines = ["| host time of a call | stream | tensor | CuPy array |", "|---" * 4 + "|"]
    for row in document["overhead"]:
        cells = (f"`{row['call']}`", row["stream"], *(f"{row[key]:.1f} us" for key in ("tensor", "array")))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| filter | shape | cupyx.scipy.ndimage | ndpool | speedup |", "|---" * 5 + "|"]
    for row in document["filters"]:
        name = f"{row['reduce']} {row['kernel']}x{row['kernel']} stride {row['stride']}"
        shape, ratio = "x".join(map(str, row["shape"])), row["cupyx"] / row["ndpool"]
        lines.append(f"| {name} | {shape} | {row['cupyx']:.0f} us | {row['ndpool']:.0f} us | {ratio:.1f} |")
    named = {"torch": "PyTorch", "triton": "Triton"}
    versions = (f"{named.get(key, key)} {version}" for key, version in document["versions"].items())
    return "\n".join([*lines, "", f"{document['device']}, {', '.join(versions)}"])


def overhead_table(document: dict[str, Any]) -> str:
    """The table of compilation: seconds and kernels of many image sizes; a training run, and host times."""
    head = f"images of {document['sizes']} sizes, forward and backward"
    lines = [f"| {head} | contiguous | channels-last |", "|---" * 3 + "|"]
    waits = document["waits"]
    for name in [name for name in waits if not name.endswith("channels-last")]:
        both = (waits[name], waits[f"{name}, channels-last"])
        cells = (f"{row['first']['seconds']:.1f} s, {row['kernels']} kernels" for row in both)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    again = max(row["second"]["seconds"] for row in waits.values())
    starts = [max(row[which]["start"] for row in waits.values()) for which in ("first", "second")]
    epochs = {
        name: ", then ".join(f"{span:.2f} s" for span in spans[:2])
        for name, spans in document["train"].items()
    }
    ratios = {
        mode: [
            row["ratio"]
            for name, row in document["host"].items()
            if name.endswith(mode) and not name.startswith("lp")  # several kernels in PyTorch
        ]
        for mode in ("forward", "indices", "training")
    }
    usual = (f"{mode} {median(found):.2f}" for mode, found in ratios.items())
    text = (
        f"With kernels on disk, a second process waits for at most {again:.1f} s. Triton's initialization "
        f"adds up to {starts[0]:.1f} s to the first call, {starts[1]:.1f} s with kernels on disk. A "
        f"pyramid-pooling network on images of {document['images']} sizes takes {epochs['ndpool']} per "
        f"epoch, with initialization; PyTorch {epochs['PyTorch']}. Median host time of small calls, as a "
        f"multiple of PyTorch's: {', '.join(usual)}."
    )
    return "\n".join([*lines, "", text, "", f"{document['device']}, {document['versions']}"])


def summary(documents: dict[str, dict[str, Any]]) -> str:
    """The README's table: speedups of a few models and classes of every results file."""
    lines = [f"| | runs on | {X} PyTorch | {X} fastest alternative |", "|---|---|---|---|"]
    for name, chosen in SUMMARY_MODELS.items():
        rows = {(row["model"], row["mode"]): row for row in documents[name]["results"]}
        for model, mode in chosen:
            device = documents[name]["processor"]
            lines.append(f"| {model}, {mode} | {device} | {rows[model, mode]['speedup']:.2f} | |")
    for name, titles in SUMMARY_CLASSES.items():
        document = documents[name]
        device = document["device"] if "device" in document else document["machine"]["cpu"]
        ranges = REPORTS[document["format"]].speedups(document)
        lines += [f"| {title} | {device} | {' | '.join(ranges[group])} |" for group, title in titles.items()]
    cpu, gpu = documents["models"], documents["gpu_models"]
    machines = (
        f"{models_machine(cpu)}, PyTorch {cpu['versions']['torch']}, float32; "
        f"{models_machine(gpu)}, PyTorch {gpu['versions']['torch']}, models with bfloat16 autocast."
    )
    return "\n".join([*lines, "", machines])


SCRIPTS = {
    MODELS: models,
    JAX: jax_table,
    CUPY: cupy_table,
    OVERHEAD: overhead_table,
    cuda_random.FORMAT: cuda_random.markdown,
}


def generated(root: Path) -> dict[Path, str]:
    """Every generated file with the text that it must have."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    files = {page: page.read_text(encoding="utf-8") for page in pages}
    paths = sorted((root / "benchmarks" / "results").glob("*.json"))
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    tables = {}
    for path in paths:
        document = documents[path.stem]
        if document.get("format") in REPORTS:
            kind = REPORTS[document["format"]]
            files[path.with_suffix(".svg")] = kind.chart(document)
            tables[path.stem] = kind.markdown(document)
        elif document.get("format") in SCRIPTS:
            tables[path.stem] = SCRIPTS[document["format"]](document)
        elif document.get("format") == random_calls.FORMAT:
            tables[path.stem] = random_calls.markdown(document)
            tables[f"{path.stem} in short"] = random_calls.sentence(document)
    if {*SUMMARY_MODELS, *SUMMARY_CLASSES} <= tables.keys():
        tables["summary"] = summary(documents)
        files[root / CHART] = report.chart(documents["cpu"], CHARTED)
    for name, text in tables.items():
        begin, end = f"<!-- bench:{name} -->", "<!-- /bench -->"
        block = f"{begin}\n{text}\n{end}"
        marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        for page in pages:
            files[page] = marked.sub(lambda _, block=block: block, files[page])
    return files


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write, or check, every generated file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is out of date")
    check = parser.parse_args(argv).check
    stale = {
        path: text
        for path, text in generated(root).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.relative_to(root)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
