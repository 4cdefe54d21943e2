"""The contestants on a CUDA device (ndpool, PyTorch eager and compiled, JAX, CuPy) and their data.

`calls` does the untimed set-up and returns one call per set of the data; `answer` converts the result of a
call to PyTorch tensors of shape (batch, channels, *sizes).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ndpool
from ndpool._bench.case import Case
from ndpool._bench.peers import Jax
from ndpool._config import own_version

Call = Callable[[], Any]
_OVERFLOW = 3 * 2**28  # bytes; successive calls together move at least this much, to overflow the cache
_SETS = 12


class Data:
    """The tensors of a case: enough sets of them to overflow the cache."""

    def __init__(self, case: Case, sets: int | None = None) -> None:
        self.torch: Any = import_module("torch")
        self.sets = sets or max(1, min(_SETS, -(-_OVERFLOW // case.moved)))
        # Generated on the device: host generation would take longer than all the timing.
        self.generator = self.torch.Generator("cuda").manual_seed(0)
        pairs = [
            (self._random(case, case.shape), self._random(case, case.out_shape)) for _ in range(self.sets)
        ]
        self.x, self.grad = zip(*pairs, strict=True)

    def _random(self, case: Case, shape: tuple[int, ...]) -> Any:
        dtype = getattr(self.torch, case.dtype)
        a = self.torch.empty(shape, dtype=dtype, device="cuda")
        if dtype.is_floating_point:
            a.uniform_(-1, 1, generator=self.generator)
        else:
            info = self.torch.iinfo(dtype)
            a.random_(info.min, info.max + 1, generator=self.generator)
        if case.layout == "NHWC":
            formats = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}
            a = a.contiguous(memory_format=formats[len(shape)])
        return a


def _version() -> str:
    """The version of the package; of a checkout that runs without being installed, that of its pyproject."""
    project = Path(ndpool.__file__).parents[2] / "pyproject.toml"
    found = own_version()
    if found == "unknown" and project.exists():
        match = re.search(r'^version = "(.+)"', project.read_text(), re.MULTILINE)
        return match[1] if match else found
    return found


class Contestant:
    """A library that pools on the device, by default ndpool."""

    name = "ndpool"
    packages: tuple[str, ...] = ()
    captured = True  # whether a CUDA graph can capture its calls
    slack = 1.0  # factor on the allowed error

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        for package in self.packages:
            import_module(package)

    def version(self) -> str:
        """The version of the library."""
        if not self.packages:
            return _version()
        return str(import_module(self.packages[0]).__version__)

    def supports(self, case: Case) -> bool:
        """Whether the library supports this case."""
        return True

    def function(self, case: Case) -> Callable[..., Any]:
        """The function to call."""
        return getattr(ndpool, case.function)  # type: ignore[no-any-return]

    def calls(self, case: Case, data: Data) -> list[Call]:
        """One call per set of the data; in training, each call saves its tensors for backward."""
        function = self.function(case)
        return [self._call(case, function, *pair) for pair in zip(data.x, data.grad, strict=True)]

    def _call(self, case: Case, function: Callable[..., Any], x: Any, grad: Any) -> Call:
        given = dict(case.arguments)
        if case.mode == "indices":
            given["return_indices"] = True
        if case.mode in ("values", "indices"):
            return lambda: function(x, **given)
        leaf, differentiate = x.detach().requires_grad_(), self.torch.autograd.grad
        if case.mode == "offsets":
            return lambda: function(leaf, **given)
        y = function(leaf, **given)
        return lambda: differentiate(y, leaf, grad, retain_graph=True)[0]

    def answer(self, case: Case, raw: Any) -> tuple[Any, ...]:
        """The result of a call, detached."""
        return tuple(a.detach() for a in (raw if isinstance(raw, tuple) else (raw,)))


class Eager(Contestant):
    """PyTorch's functions."""

    name = "PyTorch"
    packages = ("torch",)
    slack = 64.0  # it adds gradients and norms of half types in half precision

    def function(self, case: Case) -> Callable[..., Any]:
        """The function of the same name."""
        return getattr(self.torch.nn.functional, case.function)  # type: ignore[no-any-return]


class Compiled(Eager):
    """PyTorch's functions, compiled for static shapes."""

    name = "torch.compile"

    def function(self, case: Case) -> Callable[..., Any]:
        """The compiled function; buffers are not donated because backward runs more than once."""
        self.torch._dynamo.reset()
        import_module("torch._functorch.config").donated_buffer = False  # type: ignore[attr-defined]
        return self.torch.compile(super().function(case), dynamic=False, fullgraph=True)  # type: ignore[no-any-return]


class JaxCuda(Contestant):
    """JAX, compiled, in the layout of the case."""

    name = "JAX"
    packages = ("jax",)
    captured = False

    def __init__(self) -> None:
        super().__init__()
        jax: Any = import_module("jax")
        if jax.default_backend() != "gpu":
            raise ImportError("JAX without CUDA")
        jax.config.update("jax_enable_x64", True)

    def _peer(self, case: Case) -> Jax:
        peer = object.__new__(Jax)
        peer.channels_last = case.layout == "NHWC"
        return peer

    def supports(self, case: Case) -> bool:
        """The same cases as on the CPU."""
        return self._peer(case).supports(case)

    def calls(self, case: Case, data: Data) -> list[Call]:
        """`reduce_window` or its transpose."""
        jax: Any = import_module("jax")
        pool = self._peer(case).pool(case)
        made: list[Call] = []
        run, back = jax.jit(pool), jax.jit(lambda a, g: jax.vjp(pool, a)[1](g)[0])
        for pair in zip(data.x, data.grad, strict=True):
            moved = (t.movedim(1, -1) if case.layout == "NHWC" else t for t in pair)
            x, grad = (jax.dlpack.from_dlpack(t) for t in moved)
            made.append(partial(run, x) if case.mode == "values" else partial(back, x, grad))
        return made

    def answer(self, case: Case, raw: Any) -> tuple[Any, ...]:
        """The result as a tensor with axis 1 for the channels."""
        t = self.torch.from_dlpack(raw.block_until_ready())
        return (t.movedim(-1, 1) if case.layout == "NHWC" else t,)


class CuPy(Contestant):
    """CuPy: filters for stride 1, block reductions for disjoint windows."""

    name = "CuPy"
    packages = ("cupy",)
    captured = False

    def supports(self, case: Case) -> bool:
        """Contiguous arrays of floats and uint8, values only."""
        known = ("float32", "float64", "uint8") if case.reduction == "max" else ("float32", "float64")
        fits = case.is_same or case.tiles
        return case.dtype in known and case.layout == "NCHW" and case.mode == "values" and fits

    def calls(self, case: Case, data: Data) -> list[Call]:
        """A filter over the pooled axes, or a reshape and a reduction over every second axis."""
        cupy: Any = import_module("cupy")
        return [self._call_on(case, cupy.from_dlpack(x)) for x in data.x]

    def _call_on(self, case: Case, x: Any) -> Call:
        window, maximum = case.window, case.reduction == "max"
        assert window is not None
        if case.tiles:
            blocks = list(case.shape[:2])
            for out, k in zip(case.plan.out, window.kernel, strict=True):
                blocks += [out, k]
            view, axes = x.reshape(blocks), tuple(range(3, len(blocks), 2))
            return lambda: (view.max if maximum else view.mean)(axis=axes)
        ndimage: Any = import_module("cupyx.scipy.ndimage")
        size = (1, 1, *window.kernel)
        if not maximum:
            return lambda: ndimage.uniform_filter(x, size, mode="constant")
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        return lambda: ndimage.maximum_filter(x, size, mode="constant", cval=least)

    def answer(self, case: Case, raw: Any) -> tuple[Any, ...]:
        """The result as a tensor."""
        return (self.torch.from_dlpack(raw),)


_KINDS = {kind.name: kind for kind in (Contestant, Eager, Compiled, JaxCuda, CuPy)}
NAMES = tuple(_KINDS)


@cache
def installed(names: tuple[str, ...] = NAMES) -> tuple[tuple[Contestant, ...], dict[str, str]]:
    """The contestants of these names that are installed, and a note for each that is not."""
    ready: list[Contestant] = []
    missing: dict[str, str] = {}
    for name, kind in _KINDS.items():
        try:
            ready += [kind()] if name in names else []
        except ImportError as error:
            missing[name] = f"not installed: {error}"
    return tuple(ready), missing
