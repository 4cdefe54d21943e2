"""CONTRIBUTING's recipes, followed: a framework for a toy array type, and a new window rule."""

from __future__ import annotations

import inspect
from itertools import product
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

import ndpool
from ndpool import _dispatch
from ndpool._call import INDEX64, Call, Saved
from ndpool._plan import AxisPlan, Plan, irregular
from ndpool.reductions import REDUCTIONS


class Grid(SimpleNamespace):
    """A toy array: `shape`, and `values` as a dict from index to number."""

    @classmethod
    def of(cls, array):
        values = {at: float(v) for at, v in np.ndenumerate(array)}
        return cls(shape=array.shape, values=values)

    def numpy(self):
        return np.array([self.values[at] for at in np.ndindex(*self.shape)]).reshape(self.shape)


class ToyFramework:
    """What a file in `frameworks/` has to define."""

    plain = staticmethod(lambda x: False)  # no prepared calls
    traced = None  # sizes are always numbers
    quick = None

    @staticmethod
    def run(call, x):
        fn, reduction, plan = call.function, call.reduction, call.plan
        shape = list(x.shape)
        for axis, out in zip(call.axes, plan.out, strict=True):
            shape[axis] = out
        values, indices = {}, {}
        for at in np.ndindex(*shape):
            windows = [axis.window(at[a]) for axis, a in zip(plan.axes, call.axes, strict=True)]
            taps = []
            for place in product(*[[w.start + t * w.step for t in range(w.taps)] for w in windows]):
                where = dict(zip(call.axes, place, strict=True))
                value = x.values[tuple(where.get(a, i) for a, i in enumerate(at))]
                index = 0
                for i, size in zip(place, plan.sizes, strict=True):
                    index = index * size + i
                taps.append((value, index))
            found = [value for value, _ in taps]
            if reduction.has_index:
                values[at] = max(found) if reduction.name == "max" else min(found)
                indices[at] = next(index for value, index in taps if value == values[at])
            elif reduction.norm:
                raise TypeError(f"{fn}: Lp pooling of a Grid is not supported")
            else:
                by = (call.divisor or prod(w.share for w in windows)) if reduction.divides else 1
                values[at] = sum(found) / by
        result = Grid(shape=tuple(shape), values=values)
        return (result, Grid(shape=tuple(shape), values=indices)) if call.extra == INDEX64 else result

    @staticmethod
    def unpool(call, values, indices):
        shape = list(values.shape)
        for axis, size in zip(call.axes, call.sizes, strict=True):
            shape[axis] = size
        result = dict.fromkeys(np.ndindex(*shape), 0.0)
        for at, value in values.values.items():
            places = np.unravel_index(int(indices.values[at]), call.sizes)
            where = dict(zip(call.axes, places, strict=True))
            result[tuple(int(where.get(a, i)) for a, i in enumerate(at))] = value
        return Grid(shape=tuple(shape), values=result)


@pytest.fixture
def toys(monkeypatch):
    """The one row of the dispatch table."""
    package = Grid.__module__.partition(".")[0]
    monkeypatch.setitem(_dispatch.FRAMEWORKS, (package, "Grid"), lambda: ToyFramework)
    yield
    _dispatch.packages.pop(Grid, None)
    _dispatch.loaded.pop(package, None)


CALLS = {
    "max": lambda x: ndpool.max_pool2d(x, 3, 2, 1, return_indices=True),
    "dilated max": lambda x: ndpool.max_pool2d(x, 2, 1, dilation=2, ceil_mode=True),
    "average": lambda x: ndpool.avg_pool2d(x, (3, 2), 2, 1, True, False),
    "average with a divisor": lambda x: ndpool.avg_pool2d(x, 2, divisor_override=-3),
    "adaptive max": lambda x: ndpool.adaptive_max_pool2d(x, (4, None), return_indices=True),
    "adaptive average": lambda x: ndpool.adaptive_avg_pool2d(x, 4),
    "min along a first axis": lambda x: ndpool.pool(x, 2, reduce="min", axes=0),
    "sum with same padding": lambda x: ndpool.pool(x, (3,), reduce="sum", stride=2, padding="same"),
    "unpool": lambda x: ndpool.max_unpool2d(*ndpool.max_pool2d(x, 2, return_indices=True), 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_framework_is_one_file_and_one_row(name, toys):
    x = np.random.default_rng(0).permutation(2 * 7 * 6).reshape(2, 7, 6).astype(float)
    want, got = CALLS[name](x), CALLS[name](Grid.of(x))
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got)), strict=True):
        np.testing.assert_array_equal(b.numpy(), a)
    assert len(inspect.getsource(ToyFramework).splitlines()) <= 60


def test_arguments_are_checked_before_a_framework_sees_them(toys):
    x = Grid.of(np.zeros((1, 4, 4)))
    with pytest.raises(ValueError, match="max_pool2d: padding must be at most half the kernel"):
        ndpool.max_pool2d(x, 3, padding=2)
    with pytest.raises(TypeError, match="lp_pool2d: Lp pooling of a Grid is not supported"):
        ndpool.lp_pool2d(x, 2, 2)


def test_unknown_arrays_are_refused_without_the_row():
    with pytest.raises(TypeError, match=r"max_pool2d: input must be an array .*; got .*Grid"):
        ndpool.max_pool2d(Grid.of(np.zeros((1, 4, 4))), 2)


def trailing(size: int, kernel: int) -> AxisPlan:
    """A new window rule: every output covers the `kernel` inputs up to its own place."""
    ends = np.arange(1, size + 1)
    starts = np.maximum(ends - kernel, 0)
    return irregular(size, starts, ends - starts)


def trailing_by_definition(x, kernel, reduce):
    """The same for the oracle, along the last axis."""
    rows = [x[..., max(0, o - kernel + 1) : o + 1] for o in range(x.shape[-1])]
    return np.stack([getattr(np, reduce)(row, axis=-1) for row in rows], axis=-1)


@pytest.mark.parametrize(
    ("reduce", "name"), [("max", "max"), ("min", "min"), ("avg", "mean"), ("sum", "sum")]
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_window_rule_needs_no_kernel(kind, reduce, name):
    x = np.random.default_rng(1).permutation(3 * 19).reshape(3, 19).astype(float)
    want = trailing_by_definition(x, 4, name)
    call = Call("f", REDUCTIONS[reduce], (1,), Plan([trailing(19, 4)]))
    if kind == "numpy":
        framework = _dispatch.framework_of("f", x)
        np.testing.assert_allclose(framework.run(call, x), want, rtol=1e-15)
        offsets = None
        if reduce in ("max", "min"):
            offsets = framework.run(call._replace(extra=call.offsets), x)[1]
        grad = framework.backward(call, Saved(offsets), np.ones_like(want))
    else:
        torch = pytest.importorskip("torch")
        tensor = torch.from_numpy(x).requires_grad_()
        y = _dispatch.framework_of("f", tensor).run(call, tensor)
        np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-15)
        grad = torch.autograd.grad(y.sum(), tensor)[0].numpy()
    step = 1e-3
    for i in range(19):
        moved = x.copy()
        moved[:, i] += step
        slope = (trailing_by_definition(moved, 4, name).sum(1) - want.sum(1)) / step
        np.testing.assert_allclose(grad[:, i], slope, atol=1e-8)
