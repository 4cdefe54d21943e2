"""Random poolings to export: drawn from a seed, run at two sizes, used by the tests of ONNX export.

`draw(seed)` gives the arguments of one pooling; `make_model` a PyTorch model with it. No ONNX here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import ndpool

SPATIAL = {1: (13,), 2: (9, 8), 3: (5, 6, 5)}
# Every function that is exported to ONNX, with a call: (number of pooled axes, positional arguments, others).
# The matrix of frameworks in the documentation may read its "export" column here.
EXPORTED: dict[str, tuple[int, tuple[Any, ...], dict[str, Any]]] = {
    **{f"max_pool{n}d": (n, (3, 2, 1, 1, True), {"return_indices": True}) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": (n, (3, 2, 1, True, False), {}) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": (n, (2, 3, 2, True), {}) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": (n, (4,), {"return_indices": True}) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": (n, (4,), {}) for n in (1, 2, 3)},
    "pool": (2, ((3, 2),), {"reduce": "min", "padding": ((1, 0), (0, 1)), "dilation": 2}),
    "adaptive_pool": (2, ((3, 5),), {"reduce": "sum"}),
}
# Pairs of a pooling and its inverse.
UNPOOLED = {f"max_unpool{n}d": n for n in (1, 2, 3)}
NOT_EXPORTED = ("fractional_max_pool2d", "fractional_max_pool3d")  # their windows are random
EXPORTERS = ("dynamo", "torchscript")  # of torch.onnx.export

FAMILIES = (
    "max_pool",
    "max_pool indices",
    "avg_pool",
    "lp_pool",
    "adaptive_max_pool",
    "adaptive_max_pool indices",
    "adaptive_avg_pool",
    "max_unpool",
    "pool",
    "pool indices",
    "adaptive_pool",
    "adaptive_pool indices",
)


@dataclass(frozen=True)
class Draw:
    """One pooling: a family, its number of pooled axes, arguments, and two shapes to run it on."""

    family: str
    n: int
    arguments: dict[str, Any]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def name(self) -> str:
        """The function."""
        name, *_ = self.family.split()
        return name if self.general else f"{name}{self.n}d"

    @property
    def general(self) -> bool:
        return self.family.startswith(("pool", "adaptive_pool"))

    @property
    def indices(self) -> bool:
        return self.family.endswith("indices")

    @property
    def layer(self) -> str:
        """The module of the same name, if there is one."""
        words = self.name[:-2].replace("lp", "LP").split("_")
        return "".join(word if word == "LP" else word.capitalize() for word in words) + self.name[-2:]

    def axes(self) -> tuple[int, ...]:
        """The pooled axes of the input."""
        rank = len(self.shapes[0])
        given = self.arguments.get("axes")
        return tuple(range(rank - self.n, rank)) if given is None else tuple(a % rank for a in given)

    def __call__(self, x: Any) -> tuple[Any, ...]:
        """The results of ndpool's function."""
        if self.family == "max_unpool":
            pool, given = getattr(ndpool, f"max_pool{self.n}d"), dict(self.arguments)
            values, indices = pool(x, **given, return_indices=True)
            return (getattr(ndpool, self.name)(values, indices, **given, output_size=list(x.shape)),)
        given = {**self.arguments, "return_indices": True} if self.indices else self.arguments
        result = getattr(ndpool, self.name)(x, **given)
        return result if isinstance(result, tuple) else (result,)


def draw(seed: int, families: tuple[str, ...] = FAMILIES) -> Draw:
    rng = random.Random(seed)
    family = families[seed % len(families)]
    n = rng.choice((1, 2, 2, 2, 3))
    lead = [rng.randint(1, 3), rng.randint(1, 4)]
    given: dict[str, Any] = {}
    general = family.startswith(("pool", "adaptive_pool"))
    least = [1] * n
    if family.startswith("adaptive"):
        outs: list[Any] = [rng.randint(1, 7) for _ in range(n)]
        if rng.random() < 0.2:
            outs[rng.randrange(n)] = None
        given["output_size"] = tuple(outs)
    else:
        least = _window(rng, family, n, given, general)
    if general:
        indices = family.endswith("indices")
        given["reduce"] = rng.choice(("max", "min") if indices else ("max", "min", "avg", "sum", "lp"))
        if given["reduce"] == "lp":
            given["norm_type"] = rng.choice((1, 2, 3.0, 2.5, float("inf")))
        if rng.random() < 0.3 and n == 2:
            given["axes"] = (1, 2)
    elif family == "lp_pool":
        given["norm_type"] = rng.choice((1, 2, 2.0, 4))
    if family == "avg_pool":
        given["count_include_pad"] = rng.random() < 0.5
        if n > 1 and rng.random() < 0.3:
            given["divisor_override"] = rng.choice((1, 3, -2, 7))
    if given.get("reduce") == "avg" and family == "pool":
        given["count_include_pad"] = rng.random() < 0.5
    shapes = []
    for _ in range(2):
        sizes = [max(low + rng.randint(0, 9), 3) for low in least]
        shapes.append((lead[0], *sizes, lead[1]) if "axes" in given else (*lead, *sizes))
    return Draw(family, n, given, (shapes[0], shapes[1]))


def _window(rng: random.Random, family: str, n: int, given: dict[str, Any], general: bool) -> list[int]:
    """Arguments of a sliding window; the least sizes that it fits into."""
    kernel = [rng.randint(1, 4) for _ in range(n)]
    unpool = family == "max_unpool"
    stride = kernel if rng.random() < 0.3 else [rng.randint(1, 4) for _ in range(n)]
    padding: list[Any] = [0 if family == "lp_pool" else rng.randint(0, k // 2) for k in kernel]
    dilated = (family.startswith("max_pool") or general) and rng.random() < 0.3
    dilation = [rng.randint(1, 3) if dilated else 1 for _ in range(n)]
    given["window" if general else "kernel_size"] = tuple(kernel)
    if stride is not kernel:
        given["stride"] = tuple(stride)
    if any(d > 1 for d in dilation):
        given["dilation"] = tuple(dilation)
    if not unpool and rng.random() < 0.4:
        given["ceil_mode"] = True
    if any(padding):
        if general and rng.random() < 0.5:
            padding = [(p, rng.randint(0, p)) for p in padding]
        given["padding"] = tuple(padding)
    return [(k - 1) * d + 2 for k, d in zip(kernel, dilation, strict=True)]


def make_every(n: int) -> Any:
    """A PyTorch model that calls every function with `n` pooled axes; its results one after the other."""
    import torch

    class Every(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            results = []
            for name, (own, args, kwargs) in EXPORTED.items():
                if own == n:
                    result = getattr(ndpool, name)(x, *args, **kwargs)
                    results += result if isinstance(result, tuple) else (result,)
            values, indices = getattr(ndpool, f"max_pool{n}d")(x, 3, 2, return_indices=True)
            return *results, getattr(ndpool, f"max_unpool{n}d")(values, indices, 3, 2, 0, x.shape)

    return Every()


def make_model(case: Draw, layers: bool) -> Any:
    """A PyTorch model with this pooling: a module of `ndpool.torch` if `layers`, a function otherwise."""
    import torch

    import ndpool.torch as nt

    if layers and not case.general and case.family != "max_unpool":
        given = dict(case.arguments)
        if case.indices:
            given["return_indices"] = True
        return getattr(nt, case.layer)(**given)

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return case(x)

    return Model()
