"""The contestant interface, and ndpool's two contestants: full calls and kernels alone.

The other libraries are in `peers`. `prepare` does the untimed set-up and returns the call to time; `answer`
converts the result of that call to arrays of the shape of the case's result.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ndpool
from ndpool._bench.case import Case
from ndpool._call import OFFSET8, OFFSET32, Saved
from ndpool._call import Call as PoolCall
from ndpool._native import core, core_plan
from ndpool.reductions import REDUCTIONS

Call = Callable[[], Any]
Answer = tuple[NDArray[Any], ...]

_CORE_TYPES = {"float16": 9, "bfloat16": 10, "float32": 11, "float64": 12}


class Contestant:
    """A library that the runner checks and times."""

    name = ""
    packages: tuple[str, ...] = ()
    general = False  # whether it runs the calls of `pool` on arrays; otherwise the layers

    def __init__(self, threads: int) -> None:
        self.threads = threads
        for package in self.packages:
            import_module(package)

    @property
    def version(self) -> str:
        """The version of the library."""
        return str(getattr(import_module(self.packages[0]), "__version__", "unknown"))

    def runs(self, case: Case) -> bool:
        """Whether it takes part in this case."""
        return self.general == case.general and self.supports(case)

    def supports(self, case: Case) -> bool:
        """Whether the library supports this case, of those it is meant for."""
        raise NotImplementedError

    def tolerance(self, case: Case) -> float:
        """The largest allowed error of an element; 0 if answers must be equal."""
        return 0.0 if case.exact else case.tolerance

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """The call to time, with all untimed set-up done."""
        raise NotImplementedError

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result as arrays: values, values and indices, or the input gradient."""
        return (np.asarray(raw),)


class FullCall(Contestant):
    """ndpool as users call it: the call allocates its result."""

    name = "ndpool"

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        ndpool.set_num_threads(threads)

    def runs(self, case: Case) -> bool:
        """Layers and arrays."""
        return self.supports(case)

    def supports(self, case: Case) -> bool:
        """Everything."""
        return True

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """The public function; for training, what the framework runs."""
        numpy = _numpy_framework()
        function, given = getattr(ndpool, case.function), dict(case.arguments)
        if case.mode == "values":
            return lambda: function(x, **given)
        if case.mode == "indices":
            return lambda: function(x, **given, return_indices=True)
        if case.mode == "offsets":
            return lambda: numpy.run(_with_offsets(case), x)
        call, saved = _call(case), _saved(case, x)
        return lambda: numpy.backward(call, saved, grad)

    def answer(self, case: Case, raw: Any) -> Answer:
        """The result itself, with offsets converted to indices."""
        if case.mode == "offsets":
            return raw[0], _indices(case, raw[1])
        return raw if isinstance(raw, tuple) else (raw,)


class Kernel(FullCall):
    """ndpool with preallocated outputs: the time of the kernel alone."""

    name = "kernel"

    def prepare(self, case: Case, x: NDArray[Any], grad: NDArray[Any]) -> Call:
        """The same call with `out`, or the core's function where the public one has no `out`."""
        made = super().prepare(case, x, grad)()
        out = made if isinstance(made, tuple) else (made,)
        # An element that the kernel does not write must not pass the check.
        for array in out:
            if array.dtype.kind == "b":
                np.logical_not(array, out=array)
            else:
                array.fill(np.nan if array.dtype.kind not in "iu" else 85)
        function, given = getattr(ndpool, case.function), dict(case.arguments)
        if case.mode == "values":
            return lambda: function(x, **given, out=made)
        if case.mode == "indices":
            return lambda: function(x, **given, return_indices=True, out=made)
        reduction, dtype = REDUCTIONS[case.reduction], _CORE_TYPES[case.dtype]
        native, axes = core_plan(case.plan), case.axes
        kind = OFFSET8 if native.taps <= 256 else OFFSET32
        if case.mode == "offsets":
            into = (_raw(out[0]), dtype, out[1], kind, False, 0, 0.0)
            return lambda: core.forward(native, reduction.op, _raw(x), dtype, axes, *into) and made
        offsets = _saved(case, x).offsets
        rest = (offsets, kind if reduction.has_index else 0, None, reduction.divides, 0, 0.0)
        result = _raw(out[0])
        return lambda: core.backward(native, reduction.op, _raw(grad), dtype, axes, result, *rest) and made


def _numpy_framework() -> Any:
    # Imported late: it needs the compiled core, which the GPU benchmark does not.
    return import_module("ndpool.frameworks.numpy")


def _call(case: Case) -> PoolCall:
    return PoolCall(case.function, REDUCTIONS[case.reduction], case.axes, case.plan)


def _with_offsets(case: Case) -> PoolCall:
    call = _call(case)
    return call._replace(extra=call.offsets)


def _saved(case: Case, x: NDArray[Any]) -> Saved:
    has_index = REDUCTIONS[case.reduction].has_index
    return Saved(_numpy_framework().run(_with_offsets(case), x)[1] if has_index else None)


def _raw(x: NDArray[Any]) -> NDArray[Any]:
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def _indices(case: Case, offsets: NDArray[Any]) -> NDArray[Any]:
    """Indices in the plane from offsets in the window."""
    result: Any = 0
    taps = np.unravel_index(offsets.astype(np.int64), [a.kernel for a in case.plan.axes])
    for axis, (a, tap) in enumerate(zip(case.plan.axes, taps, strict=True), start=2):
        o = np.arange(a.out).reshape([-1 if axis == other else 1 for other in range(offsets.ndim)])
        result = result * a.size + a.origin + o * a.stride + tap * a.step
    return np.asarray(result)


NDPOOL: tuple[type[Contestant], ...] = (Kernel, FullCall)
