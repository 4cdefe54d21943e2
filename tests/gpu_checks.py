"""The Triton kernels, on a GPU if there is one, else in Triton's interpreter (``TRITON_INTERPRET=1``).

Not collected by name: ``make test-gpu`` runs it on a GPU, test_gpu.py in the interpreter, in fresh processes.
Expected values come from the oracle, or from PyTorch on the CPU for cases chosen to reach each kernel.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import inf, nan
from pkgutil import iter_modules

import numpy as np
import pytest
import torch
import triton

import cases
import gpu_draws
import ndpool
import ndpool.torch
import oracle
from fences import pages, poisoned_results
from ndpool import _record, geometry
from ndpool._cache import cache
from ndpool._call import Call
from ndpool._triton import backward, decompose, driver, launch, planes, segments, strip, tuning
from ndpool._triton import kernels as triton_sources
from ndpool._triton.kernels.indexing import Lanes
from ndpool._triton.memory import layout_of
from ndpool.frameworks.torch import cuda, kernels, tensors
from ndpool.reductions import REDUCTIONS

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DRAWS = 12 if GPU else 2
F = torch.nn.functional
# The first forward-mode derivative in a process makes PyTorch import a deprecated module.
# Poisoned memory uses PyTorch's deterministic mode, which warns about other functions.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(deterministic|Deterministic):UserWarning"),
]
gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU")


@pytest.fixture(autouse=True, scope="module")
def triton_kernels():
    """Send CPU tensors to the CUDA kernels where the interpreter replaces a GPU."""
    if GPU:
        yield
        return
    assert os.environ.get("TRITON_INTERPRET") == "1"
    patch = pytest.MonkeyPatch()
    patch.setattr(kernels, "triton_only", True)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def poisoned():
    """Fill new tensors with NaN or extremes, so that an element that no kernel wrote is detected."""
    with poisoned_results():
        yield


def put(a):
    return cases.to_torch(a).to(DEVICE) if isinstance(a, np.ndarray) else a


def run(case, x):
    kwargs = {key: put(a) for key, a in case.kwargs.items()}
    result = getattr(ndpool, case.name)(x, *map(put, case.args), **kwargs)
    return result if isinstance(result, tuple) else (result,)


def real(a):
    return a.astype(np.float64) if isinstance(a, np.ndarray) and oracle.is_float(a.dtype) else a


@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_the_oracle(name):
    """Values and indices of random calls, every dtype and layout; gradients in float64.

    pytorch#107412, pytorch#139115: integers in one, two and three dimensions. pytorch#62250, pytorch#38986.
    """
    rng = np.random.default_rng(7000 + cases.NAMES.index(name))
    for _ in range(DRAWS):
        case = cases.draw(rng, name, beyond=True)
        if case.values.dtype == np.bool_ and "avg" in name:
            continue
        got = run(case, cases.to_torch(case.array()).to(DEVICE))
        have, want = tuple(cases.from_torch(t.cpu()) for t in got), case.call_oracle()
        if "max" in name and len(want) == 1:  # without indices a zero may have either sign
            have, want = ((np.where(a == 0, np.zeros((), a.dtype), a),) for (a,) in (have, want))
        cases.assert_same(have, want, case)
        values = rng.uniform(0.5, 3, case.values.shape) if "lp" in name else case.values.astype(np.float64)
        dilation = case.named.get("dilation", 1)
        if not np.isfinite(values).all() or oracle.entries(dilation, case.n) != [1] * case.n:
            continue  # the oracle's gradient does not support windows without elements
        kwargs = {key: real(a) for key, a in case.kwargs.items()}
        again = replace(case, values=values, args=tuple(map(real, case.args)), kwargs=kwargs)
        x = cases.to_torch(again.array()).to(DEVICE).requires_grad_()
        y = run(again, x)[0]
        grad = rng.integers(-9, 10, y.shape).astype(np.float64)
        y.backward(put(grad))
        want = again.oracle_gradient(grad)
        np.testing.assert_allclose(x.grad.cpu().numpy(), want, rtol=1e-9, atol=1e-9, err_msg=str(again))


# At least one case for every path through the kernels: vectors along rows, along channels and none, unrolled
# and looped rows and columns, whole planes, few outputs, tables.
CASES = [
    ("max_pool2d", (2, 4, 6, 8), (2,)),
    # Lanes that fill their programs; rows of windows that leave input out or overlap.
    ("max_pool2d", (2, 4, 8, 16), (2,)),
    ("avg_pool2d", (2, 4, 7, 8), (2,)),
    ("avg_pool2d", (1, 1, 8, 4), (2, (3, 4))),
    ("max_pool2d", (2, 4, 7, 9), (3, 2)),
    ("max_pool2d", (1, 4, 7, 12), (3, 2, 1)),
    ("max_pool2d", (1, 3, 5, 7), (3, 2, 1)),
    ("max_pool2d", (1, 4, 7, 8), (7, 1, 3)),
    ("max_pool2d", (1, 2, 4, 24), ((3, 21), 1, (1, 10))),
    ("max_pool2d", (1, 4, 7, 8), (7, 2, 3)),
    ("max_pool2d", (1, 4, 6, 8), (11, 1, 5)),
    ("max_pool2d", (1, 4, 6, 8), (3, 1, 1, 2)),
    # Gradients scattered into zeros: dilated windows, and short rows with an odd stride.
    ("max_pool2d", (1, 4, 13, 14), (2, 5, 0, 2)),
    ("max_pool2d", (2, 2, 9, 12), (3,)),
    ("max_pool2d", (2, 4, 13, 14), (9, 3, 4)),
    ("max_pool3d", (1, 2, 9, 8, 11), (5, 2, 2)),
    ("avg_pool2d", (2, 4, 6, 8), (2,)),
    ("avg_pool2d", (1, 4, 6, 8), (3, 1, 1)),
    # Rows that are not aligned.
    ("avg_pool2d", (1, 3, 5, 7), (3, 1, 1)),
    ("max_pool2d", (1, 3, 7, 9), (5, 1, 2)),
    ("avg_pool2d", (1, 4, 7, 8), (3, 2, 1, True, False)),
    ("max_pool1d", (2, 3, 140), (3, 2, 1)),
    ("max_pool3d", (1, 4, 4, 4, 8), (2,)),
    ("avg_pool3d", (1, 4, 4, 4, 8), (2,)),
    ("max_pool3d", (1, 2, 4, 3, 8), (3, 2, 1)),
    ("avg_pool3d", (1, 2, 4, 3, 8), (3, 2, 1)),
    # Gradients by runs: volumes, strides, rows in several blocks.
    ("max_pool3d", (1, 2, 6, 5, 7), (5, 1, 2)),
    ("max_pool3d", (1, 2, 7, 5, 7), ((7, 3, 5), 1, (3, 1, 2))),
    ("max_pool2d", (1, 2, 17, 19), ((15, 14), (2, 1), (7, 7))),
    ("max_pool2d", (1, 1, 8, 270), ((7, 9), 1, (3, 4))),
    # Windows of one plane of a volume: its first axis has no part in offsets, but in addresses.
    ("max_pool3d", (1, 4, 3, 9, 12), ((1, 5, 5), 1, (0, 2, 2))),
    ("max_pool3d", (1, 2, 5, 9, 11), ((1, 5, 5), (2, 1, 1), (0, 2, 2))),
    ("max_pool3d", (1, 2, 3, 14, 16), ((1, 13, 13), 1, (0, 6, 6))),
    ("max_pool3d", (1, 2, 5, 14, 16), ((1, 13, 13), (2, 1, 1), (0, 6, 6))),
    # Several planes of a volume at a time, the first or last of them beside it.
    ("max_pool3d", (1, 4, 7, 11, 12), (4, 2, 1)),
    ("max_pool3d", (1, 2, 10, 9, 13), (7, 3, 2)),
    ("max_pool3d", (1, 3, 9, 10, 11), ((5, 3, 7), (3, 2, 1), (1, 0, 3))),
    ("max_pool3d", (1, 2, 14, 9, 11), ((8, 4, 5), (2, 2, 3), (4, 2, 2))),
    # One plane of inputs in several planes of outputs.
    ("max_pool3d", (1, 2, 1, 6, 16), (8, (2, 2, 1), (4, 4, 0), 1, True)),
    # Gradients scattered into zeros: few outputs of overlapping padded windows, and of dilated ones.
    ("max_pool3d", (1, 6, 7, 15, 13), ((7, 7, 5), (2, 7, 4), (3, 3, 2))),
    ("max_pool3d", (1, 2, 9, 7, 17), ((4, 3, 3), (1, 3, 3), 0, 2)),
    ("max_pool3d", (1, 1, 11, 15, 20), ((11, 6, 9), (1, 3, 9), (5, 0, 0))),
    # Sums backward along one axis first.
    ("avg_pool2d", (1, 2, 20, 24), (19, 1, 9)),
    ("avg_pool2d", (1, 2, 19, 23), (13, 2, 6)),
    ("avg_pool3d", (1, 2, 9, 8, 11), (7, (2, 1, 3), 3)),
    ("adaptive_avg_pool2d", (2, 4, 7, 7), (1,)),
    ("adaptive_max_pool2d", (2, 4, 7, 7), (1,)),
    # Planes that do not fill the last vector.
    ("adaptive_avg_pool2d", (1, 3, 5, 7), (1,)),
    ("adaptive_max_pool2d", (1, 3, 5, 7), (1,)),
    ("adaptive_avg_pool2d", (1, 4, 16, 16), (2,)),
    ("adaptive_max_pool2d", (1, 4, 16, 16), (2,)),
    ("adaptive_avg_pool2d", (1, 4, 11, 13), (3,)),
    ("adaptive_max_pool2d", (1, 4, 11, 13), (2,)),
    ("adaptive_max_pool2d", (1, 4, 5, 6), (4,)),
    # Several passes, windows with very many taps, rows too long for a warp.
    ("max_pool2d", (1, 4, 6, 8), (9, 1, 4)),
    ("avg_pool2d", (1, 4, 6, 8), (9, 1, 4, False, False)),
    ("max_pool1d", (1, 2, 150), (70, 1)),
    ("adaptive_avg_pool2d", (1, 4, 34, 12), (2,)),
    ("adaptive_max_pool2d", (1, 4, 34, 12), (2,)),
    ("adaptive_avg_pool2d", (1, 2, 4, 264), (2,)),
    ("adaptive_max_pool2d", (1, 2, 4, 264), (2,)),
    # Rows too long for one load: windows in several steps.
    ("adaptive_avg_pool1d", (1, 2, 403), (9,)),
    ("adaptive_max_pool1d", (1, 2, 403), (9,)),
    ("adaptive_avg_pool1d", (1, 2, 2504), (9,)),
    ("adaptive_avg_pool2d", (1, 2, 34, 40), (2,)),
    ("adaptive_max_pool2d", (1, 2, 34, 40), (2,)),
    ("adaptive_max_pool2d", (1, 2, 35, 41), (2,)),
    # Segments of contiguous rows; several rows of outputs from one row of inputs.
    ("adaptive_max_pool2d", (1, 4, 11, 27), (3,)),
    ("adaptive_max_pool2d", (2, 2, 1, 7), ((3, 2),)),
    ("adaptive_avg_pool3d", (2, 2, 1, 1, 9), ((2, 3, 2),)),
    ("adaptive_avg_pool3d", (1, 4, 3, 7, 13), (2,)),
    # Regions of inputs that are contained in the same windows, in planes that are not aligned.
    ("adaptive_avg_pool2d", (3, 1, 25, 27), (4,)),
    ("avg_pool2d", (1, 1, 32, 32), (8, 9)),
    # Too few planes with too many regions.
    ("adaptive_avg_pool3d", (2, 1, 58, 2, 19), (5,)),
    # Channels-last: whole planes of few channels, and enough rows to be cut into pieces.
    ("adaptive_avg_pool2d", (2, 3, 24, 24), (1,)),
    ("adaptive_max_pool2d", (2, 4, 24, 24), (1,)),
    ("adaptive_avg_pool2d", (2, 26, 9, 11), (1,)),
]


LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced")
# The smallest subset that starts every kernel in every layout it supports: what the sanitizers run.
KINDS = [
    (*case, layout)
    for case, layouts in [
        (("max_pool2d", (2, 4, 6, 8), (2,)), LAYOUTS[:3]),
        (("avg_pool2d", (2, 4, 7, 8), (2,)), LAYOUTS[:2]),
        (("max_pool2d", (1, 4, 7, 8), (7, 1, 3)), LAYOUTS[:3]),
        (("max_pool2d", (1, 4, 7, 8), (7, 2, 3)), LAYOUTS[:2]),
        (("max_pool2d", (2, 4, 13, 14), (9, 3, 4)), ("channels_last",)),
        (("max_pool2d", (1, 1, 8, 270), ((7, 9), 1, (3, 4))), ("contiguous",)),
        (("max_pool3d", (1, 1, 11, 15, 20), ((11, 6, 9), (1, 3, 9), (5, 0, 0))), ("contiguous",)),
        (("max_pool3d", (1, 6, 7, 15, 13), ((7, 7, 5), (2, 7, 4), (3, 3, 2))), LAYOUTS[:2]),
        (("max_pool3d", (1, 2, 6, 5, 7), (5, 1, 2)), LAYOUTS[:2]),
        (("max_pool3d", (1, 2, 7, 5, 7), ((7, 3, 5), 1, (3, 1, 2))), ("contiguous",)),
        (("max_pool3d", (1, 4, 3, 9, 12), ((1, 5, 5), 1, (0, 2, 2))), ("contiguous",)),
        (("max_pool3d", (1, 2, 5, 14, 16), ((1, 13, 13), (2, 1, 1), (0, 6, 6))), ("contiguous",)),
        (("max_pool2d", (1, 2, 4, 24), ((3, 21), 1, (1, 10))), LAYOUTS[:3]),
        (("max_pool2d", (1, 4, 6, 8), (3, 1, 1, 2)), LAYOUTS[:2]),
        (("max_pool2d", (1, 4, 13, 14), (2, 5, 0, 2)), ("channels_last",)),
        (("max_pool2d", (1, 4, 6, 8), (11, 1, 5)), ("channels_last",)),
        (("max_pool2d", (1, 2, 17, 19), ((15, 14), (2, 1), (7, 7))), ("contiguous",)),
        (("max_pool3d", (1, 4, 4, 4, 8), (2,)), LAYOUTS[:2]),
        (("adaptive_max_pool2d", (2, 4, 7, 7), (1,)), LAYOUTS[:2]),
        (("adaptive_max_pool2d", (1, 3, 5, 7), (1,)), ("contiguous",)),
        (("adaptive_avg_pool2d", (1, 4, 16, 16), (2,)), ("channels_last",)),
        (("adaptive_avg_pool2d", (1, 4, 11, 13), (3,)), ("contiguous",)),
        (("adaptive_max_pool2d", (1, 4, 11, 13), (2,)), ("contiguous",)),
        (("adaptive_max_pool2d", (1, 4, 5, 6), (4,)), ("contiguous",)),
        (("avg_pool2d", (1, 4, 6, 8), (9, 1, 4, False, False)), ("channels_last", "transposed")),
        (("max_pool1d", (1, 2, 150), (70, 1)), ("contiguous",)),
        (("adaptive_avg_pool2d", (1, 4, 34, 12), (2,)), ("contiguous",)),
        (("adaptive_max_pool2d", (1, 4, 34, 12), (2,)), ("contiguous", "transposed")),
        (("adaptive_avg_pool2d", (1, 2, 4, 264), (2,)), ("contiguous",)),
        (("adaptive_max_pool2d", (1, 2, 4, 264), (2,)), LAYOUTS[:2]),
        (("adaptive_max_pool2d", (1, 2, 34, 40), (2,)), ("channels_last",)),
        (("adaptive_avg_pool1d", (1, 2, 403), (9,)), ("contiguous",)),
        (("adaptive_max_pool1d", (1, 2, 403), (9,)), ("contiguous",)),
        (("adaptive_avg_pool2d", (2, 3, 24, 24), (1,)), LAYOUTS[:2]),
        (("adaptive_max_pool2d", (2, 4, 24, 24), (1,)), LAYOUTS[:2]),
    ]
    for layout in layouts
]


def forget_kernels():
    """Kernels are chosen anew."""
    cuda._launched.cache_clear()
    backward.backward.cache_clear()
    cache.clear()


@pytest.fixture(params=[True, False], ids=["lanes by rows", "programs by rows"])
def short_rows(request, monkeypatch):
    """Most rows here are so short that lanes are numbered by rows, too: also without that."""
    if not request.param:
        monkeypatch.setattr(tuning, "SHORT_LANES", 0)
    forget_kernels()
    yield
    forget_kernels()


@pytest.mark.parametrize(("name", "shape", "args", "layout"), KINDS, ids=str)
def test_each_kind(name, shape, args, layout, short_rows):
    """`test_every_case` for these."""
    test_every_case(name, shape, args, layout)


def test_kinds_start_every_kernel(monkeypatch):
    """KINDS starts every kernel, with every combination of flags that any case starts it with."""
    started = set()

    def note(self, *_):
        constants = self.constants()
        flags = (
            "CHANNELS",
            "COLUMNS",
            "HAS_INDEX",
            "KIND",
            "LOOP_H",
            "LOOP_W",
            "LOOP",
            "PARTS",
            "ALONG",
            "WALK",
            "RUNS",
            "SINGLE",
        )
        by_rows = any(isinstance(one, Lanes) and one.strips is not None for one in self._arguments)
        known = ((flag, bool(constants[flag])) for flag in flags if flag in constants)
        started.add((self.name, ("lanes by rows", by_rows), *known))

    monkeypatch.setattr(launch.Prepared, "__call__", note)
    kinds, others, found = set(), set(), set()
    for lanes in (tuning.SHORT_LANES, 0):
        monkeypatch.setattr(tuning, "SHORT_LANES", lanes)
        forget_kernels()  # prepared calls bypass `Prepared.__call__`
        for case in KINDS:
            start(*case)
        kinds |= started
        started.clear()
        for case in CASES:
            for layout in LAYOUTS[:2] if len(case[1]) > 3 else LAYOUTS[:1]:
                start(*case, layout)
        others |= started
        started.clear()
    forget_kernels()
    assert others <= kinds
    for module in iter_modules(triton_sources.__path__):
        names = vars(import_module(f"{triton_sources.__name__}.{module.name}"))
        found |= {name.removesuffix("_kernel") for name in names if name.endswith("_kernel")}
    assert found - {name for name, *_ in kinds} == {"claim", "settle"}  # started directly


def start(name, shape, args, layout):
    """Run the calls of one case only for the kernels that they start."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    x = torch.zeros(shape, device=DEVICE)
    if layout == "channels_last":
        x = x.contiguous(memory_format=formats[len(shape)])
    elif layout == "transposed":
        x = x.mT.contiguous().mT
    if "max" in name:
        getattr(ndpool, name)(x, *args, return_indices=True)
    getattr(ndpool, name)(x, *args)
    x.requires_grad_()
    y = getattr(ndpool, name)(x, *args)
    torch.autograd.grad(y, x, torch.zeros_like(y))


def all_cases():
    """Every case in every layout; in the interpreter only some of the slow ones."""
    for i, case in enumerate(CASES):
        for layout in LAYOUTS:
            row = layout == "channels_last" and len(case[1]) == 3  # which has no such format
            if not row and (*case, layout) not in KINDS and (GPU or i % 3 == 0 or layout in LAYOUTS[:2]):
                yield *case, layout


@pytest.mark.parametrize(("name", "shape", "args", "layout"), list(all_cases()), ids=str)
def test_every_case(name, shape, args, layout):
    """pytorch#67239, pytorch#80748: every layout gives the same result, and channels-last is preserved."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, shape, generator=draw).float()
    x[:, 1:] *= torch.randint(1, 99, x[:, 1:].shape, generator=draw)  # few ties
    if layout == "channels_last":
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=last)
    elif layout == "transposed":
        x = x.mT.contiguous().mT
    elif layout == "sliced":
        wide = torch.full((shape[0] + 1, 2 * shape[1], *shape[2:-1], 2 * shape[-1] + 1), nan)
        view = wide[1:, ::2, ..., 1::2]
        view.copy_(x)
        x = view
    has_index = "max" in name
    theirs = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    if layout == "sliced":  # a copy to a device would pack it
        base = wide.to(DEVICE).requires_grad_()
        ours = base[1:, ::2, ..., 1::2]
    else:
        base = ours = x.to(DEVICE).requires_grad_()
    got = getattr(ndpool, name)(ours, *args, **({"return_indices": True} if has_index else {}))
    want = getattr(F, name)(theirs, *args, **({"return_indices": True} if has_index else {}))
    if has_index:
        assert torch.equal(got[1].cpu(), want[1])
        assert torch.equal(got[0].detach().cpu(), want[0].detach())
        assert torch.equal(getattr(ndpool, name)(ours.detach(), *args).cpu(), want[0].detach())
        got, want = got[0], want[0]
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    grad = torch.randint(-9, 9, want.shape, generator=torch.Generator().manual_seed(1)).float()
    (g,) = torch.autograd.grad(got, ours, grad.to(DEVICE))
    torch.testing.assert_close(g.cpu(), torch.autograd.grad(want, theirs, grad)[0])
    if layout == "channels_last":
        assert got.is_contiguous(memory_format=last)
        assert g.is_contiguous(memory_format=last)


@pytest.mark.parametrize(
    ("name", "shape", "args"), [case for case in CASES if case[0].startswith("adaptive")], ids=str
)
def test_many_windows(monkeypatch, name, shape, args):
    """`test_every_case` with the block shapes of windows and planes that fill a device."""
    forget = (cuda._launched.cache_clear, backward.backward.cache_clear, cache.clear)
    for limit in ("FEW_LANES", "FEW_PLANES"):
        monkeypatch.setattr(tuning, limit, 0)
    [clear() for clear in forget]
    try:
        test_every_case(name, shape, args, "contiguous")
    finally:
        [clear() for clear in forget]


class Fenced:
    """Tensors in their own memory, flush against a protected page before or after them."""

    def __init__(self, behind):
        self._behind = behind

    def like(self, x):
        """Poisoned memory with the tensor's shape, strides and dtype."""
        inside = pages(x.nbytes)
        offset = len(inside) - x.nbytes if self._behind else 0
        flat = torch.frombuffer(inside.data, dtype=x.dtype, count=x.numel(), offset=offset)
        return flat.as_strided(x.shape, x.stride())

    def empty(self, x, shape, dtype, channels_last, *n_axes):
        """Replacement for the kernels' own `empty`."""
        return self.like(tensors.empty(torch.empty(0), shape, dtype, channels_last, *n_axes))


fences = pytest.mark.skipif(GPU or sys.platform != "linux", reason="fences the memory of a CPU")


@fences
@pytest.mark.parametrize("behind", [False, True])
def test_fences_hold(behind):
    """Reading next to a fenced tensor ends the process, reading inside it does not."""
    x = Fenced(behind).like(torch.empty(16))
    for at, ended in ((64 if behind else -1, True), (63 if behind else 0, False)):
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            ctypes.string_at(x.data_ptr() + at, 1)
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) == ended


@fences
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("name", "shape", "args"), CASES[::6], ids=str)
def test_nothing_beside_is_touched(monkeypatch, name, shape, args, last, behind):
    """An access outside an array ends the process: a memory checker that needs no GPU."""
    if last and len(shape) == 3:
        pytest.skip("a row has no such format")
    fenced, has_index = Fenced(behind), "max" in name
    monkeypatch.setattr(cuda, "empty", fenced.empty)
    drawn = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0)).float()
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    drawn = drawn.contiguous(memory_format=formats[len(shape)]) if last else drawn
    x = fenced.like(drawn).copy_(drawn)
    pool, want = getattr(ndpool, name), getattr(F, name)(drawn, *args)
    torch.testing.assert_close(pool(x, *args), want)
    if has_index:
        assert torch.equal(pool(x, *args, return_indices=True)[0], want)
    y = pool(x.requires_grad_(), *args)
    torch.autograd.grad(y, x, fenced.like(y.detach()).fill_(1))


@pytest.mark.parametrize("nans", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("shape", "outs"), [((1, 32, 9, 70), (2, 1)), ((1, 3, 2, 5, 300), (1, 2, 1))])
def test_ties_of_wide_windows(shape, outs, last, nans):
    """The first of equal elements is taken, and the last NaN, however many threads share a row."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randint(0, 99, shape, generator=draw).float()
    if nans:
        x[torch.rand(shape, generator=draw) < 0.02] = nan
    if last:
        x = x.contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    name = f"adaptive_max_pool{len(outs)}d"
    got = getattr(ndpool, name)(x.to(DEVICE), outs, return_indices=True)
    want = getattr(F, name)(x, outs, return_indices=True)
    assert torch.equal(got[1].cpu(), want[1])
    torch.testing.assert_close(got[0].cpu(), want[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("name", "shape", "args"),
    [
        ("avg_pool2d", (1, 4, 6, 8), (9, 1, 4, False, False)),
        ("avg_pool3d", (1, 2, 4, 4, 8), (4, 1, 2)),
        ("max_pool3d", (1, 2, 4, 3, 8), (4, 1, 2)),
        ("adaptive_avg_pool2d", (1, 2, 34, 40), (2,)),
        ("adaptive_max_pool2d", (1, 2, 34, 40), (2,)),
        ("adaptive_max_pool2d", (1, 2, 35, 41), (2,)),
        ("adaptive_avg_pool2d", (1, 2, 35, 41), (1,)),
        ("adaptive_max_pool2d", (1, 2, 34, 40), (1,)),
    ],
)
def test_several_kernels(monkeypatch, name, shape, args, layout):
    """The paths of large arrays: axis by axis, windows and planes cut into pieces."""
    with many_pieces(monkeypatch):
        test_every_case(name, shape, args, layout)


@contextmanager
def many_pieces(monkeypatch):
    """Small arrays take the paths of large ones."""
    monkeypatch.setattr(tuning, "PIECE", 1)
    monkeypatch.setattr(tuning, "LARGE_PLANE", 160)
    monkeypatch.setattr(tuning, "SHORT", 0)
    caches = (decompose.pieces.cache_clear, cuda._launched.cache_clear, cache.clear)
    for clear in caches:
        clear()
    try:
        yield
    finally:
        for clear in caches:
            clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("view", ["unaligned", "two leading axes", "gaps", "strided"])
def test_pieces_of_planes_in_other_arrays(monkeypatch, view, dtype):
    """Few large planes that begin anywhere, between others, or whose elements are no neighbours."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand((3, 4, 70, 41), generator=generator) * 100).round().to(DEVICE, dtype)
    x = {
        "unaligned": lambda: x.flatten()[1:-2869].view(11, 70, 41),
        "two leading axes": lambda: x[:, 1:3],
        "gaps": lambda: x[:, :, :, 3:36],
        "strided": lambda: x[..., ::2],
    }[view]()
    packed, grids = x.clone(memory_format=torch.contiguous_format), []
    for module in (planes, segments):
        monkeypatch.setattr(module, "launcher", noted(module.launcher, grids))
    with many_pieces(monkeypatch):
        average = ndpool.adaptive_avg_pool2d(x, 1)
        best = ndpool.adaptive_max_pool2d(x, 1, return_indices=True)
    want = F.adaptive_max_pool2d(packed.float(), 1, return_indices=True)
    assert torch.equal(best[0], want[0].to(dtype))
    assert torch.equal(best[1], want[1])
    torch.testing.assert_close(average, packed.double().mean((-2, -1), keepdim=True).to(dtype))
    if view in ("unaligned", "two leading axes"):
        assert max(grids) > x[..., 0, 0].numel(), "planes were not cut"


def noted(launcher, grids):
    """The function, which then also notes the number of programs."""

    def note(kernel, grid, *rest):
        grids.append(grid)
        return launcher(kernel, grid, *rest)

    return note


class Growing:
    """An integer for Python that changes each time it is read."""

    def __init__(self):
        self.value = 1

    def __index__(self):
        self.value += 1
        return self.value


def test_warmup():
    """Afterwards a training step of the same model prepares no kernel, and its statistics are unchanged."""

    def prepared():
        return cuda._launched.cache_info().misses, backward.backward.cache_info().misses

    layers = (torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(3))
    model = torch.nn.Sequential(*layers).to(DEVICE)
    ndpool.torch.accelerate(model)
    inputs = [torch.rand(1, 4, size, size, device=DEVICE) for size in (26, 34)]
    before = prepared()
    assert ndpool.torch.warmup(model, inputs) == 4
    between = prepared()
    assert all(a < b for a, b in zip(before, between, strict=True))
    assert all(module.training for module in model.modules())
    assert layers[0].num_batches_tracked == 0
    for x in inputs:
        model(x).square().sum().backward()
    assert prepared() == between
    calls = [(ndpool.max_pool2d, torch.rand(1, 4, 22, 22, device=DEVICE), 3)] * 2
    assert ndpool.torch.warmup(calls, training=False) == 1
    after = prepared()
    assert after[0] > between[0]
    assert after[1] == between[1]


@gpu_only
def test_kernels_are_loaded_once(monkeypatch):
    """Images of many sizes start the same kernels, each of which stays in the device's memory once."""
    utils, loaded = triton.runtime.driver.active.utils, []
    load = utils.load_binary

    def noted(name, *rest):
        loaded.append((name, *map(hash, rest)))
        return load(name, *rest)

    monkeypatch.setattr(utils, "load_binary", noted)
    for size in range(100, 140):
        ndpool.max_pool2d(torch.rand(2, 16, size, size, device=DEVICE), 6, 3)
    assert loaded
    assert len(loaded) == len(set(loaded)) <= 8


def test_launch_structures():
    """`CUlaunchConfig` and `CUlaunchAttribute` as the driver's header lays them out on 64-bit machines."""
    assert (ctypes.sizeof(driver._Config), ctypes.sizeof(driver._Attribute)) == (56, 72)
    places = {name: getattr(driver._Config, name).offset for name, _ in driver._Config._fields_}
    assert places == {
        "grid": 0,
        "block": 12,
        "shared": 24,
        "stream": 32,
        "attributes": 40,
        "n_attributes": 48,
    }
    assert driver._Attribute.value.offset == 8


def test_errors_do_not_depend_on_history():
    """2, 2.0 and True are equal: a cached call must not make the others legal."""
    x = torch.randn(1, 2, 8, 8).to(DEVICE)
    for good, wrong in ((2, 2.0), (1, True), ((2, 2), (2.0, 2)), ((1, 1), (1, True)), (2, np.float64(2))):
        assert ndpool.max_pool2d(x, good).shape
        with pytest.raises(TypeError, match="kernel_size must be an integer"):
            ndpool.max_pool2d(x, wrong)
    assert ndpool.adaptive_avg_pool2d(x, 1).shape
    with pytest.raises(TypeError, match="output_size must be an integer"):
        ndpool.adaptive_avg_pool2d(x, True)
    # Mutable arguments are not cached, even if they are hashable.
    changing, steps = torch.tensor(2), Growing()
    assert ndpool.max_pool2d(x, changing).shape[-1] == 4
    assert ndpool.max_pool2d(x, changing.fill_(4)).shape[-1] == 2
    assert [ndpool.max_pool2d(x, 2, steps).shape[-1] for _ in range(2)] == [4, 3]


def test_threads_share_prepared_calls():
    cache.clear()
    xs = [torch.randn(1, 2, 8, n + 8) for n in range(12)]
    ours = [x.to(DEVICE) for x in xs]
    with ThreadPoolExecutor(4 if GPU else 1) as threads:  # the interpreter has one
        made = list(threads.map(lambda k: ndpool.max_pool2d(ours[k % 12], 2).cpu(), range(120)))
    for k, y in enumerate(made):
        assert torch.equal(y, F.max_pool2d(xs[k % 12], 2))
    assert len(cache) == 12
    cache.clear()


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "max_pool3d", "avg_pool3d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("odd", [0, 1])
def test_no_cliffs(name, dtype, odd):
    """Windows of stride 1 and any length use the strip kernel, in one or more passes, without a copy."""
    n, reduction = int(name[-2]), REDUCTIONS[name[:3]]
    x, axes = torch.empty((8, 64, *[32 - odd] * n), dtype=dtype, device="meta"), tuple(range(2, 2 + n))
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for last in (False, True):
        x = x.contiguous(memory_format=formats[n]) if last else x
        for k in range(2, 32):
            plan = geometry.plan(name, x.shape[2:], (k, 1, k // 2, 1, False), True)
            call = Call(name, reduction, axes, plan, dtype=dtype)
            found = cuda.launches(call, x, last, torch.device("cpu"))
            assert found is not None, (k, last)
            assert all(run._kernel is strip.strip_forward_kernel for _, _, run in found), (k, last)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("args", [(2, 2, 0), (3, 2, 1), (5, 1, 2)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_few_kernels_for_all_sizes(name, args, last):
    """Compile-time constants depend on classes of sizes only: 720 sizes need few kernels."""
    made = set()
    for batch in (1, 8, 64):
        for size in range(40, 280):
            x = torch.empty((batch, 64, size, size), device="meta")
            x = x.contiguous(memory_format=torch.channels_last) if last else x
            plan = geometry.plan(name, x.shape[2:], (*args, 1, False), True)
            call = Call(name, REDUCTIONS[name[:3]], (2, 3), plan, dtype=x.dtype)
            [(_, _, run)] = cuda.launches(call, x, last, torch.device("cpu"))
            made.add((run._kernel, run._options["num_warps"], str(tuple(map(launch.sample, run._arguments)))))
    assert len(made) <= 12


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["sum", "rows", "part"])
@pytest.mark.parametrize(
    ("name", "sizes", "args"),
    [
        ("avg_pool1d", (40,), (9, 1, 4, False, False)),
        ("avg_pool2d", (9, 11), (3, 1, 1, False, False)),
        ("avg_pool3d", (5, 6, 7), (3, 1, 1, False, False)),
    ],
)
def test_gradients_with_gaps_of_averages_with_several_divisors(name, sizes, args, kind, last):
    """Expanded gradients, and those of a part of a larger result."""
    x = torch.randn((2, 3, *sizes), generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    if last and len(sizes) > 1:
        x = x.contiguous(memory_format=torch.channels_last if len(sizes) == 2 else torch.channels_last_3d)
    ours, theirs = (t.detach().requires_grad_() for t in (x.to(DEVICE), x))
    got, want = getattr(ndpool, name)(ours, *args), getattr(F, name)(theirs, *args)
    for y in (got, want):
        if kind == "sum":
            y.sum().backward()
        elif kind == "rows":
            y.backward(torch.arange(3.0, device=y.device).view(1, 3, *[1] * len(sizes)).expand(y.shape))
        else:
            more = torch.ones((2, 4, *y.shape[2:]), device=y.device)
            joined = torch.cat([y, more], 1)
            (joined * torch.arange(7.0, device=y.device).view(1, 7, *[1] * len(sizes))).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("name", "sizes"), [("max_pool2d", (8, 16)), ("avg_pool3d", (4, 4, 8))])
def test_gradients_row_by_row(monkeypatch, name, sizes, last):
    """The path of large arrays: every row of windows is a plane, written in memory order."""
    monkeypatch.setattr(tuning, "LARGE_RESULT", 0)
    backward.backward.cache_clear()
    x = torch.randint(-9, 9, (2, 4, *sizes), generator=torch.Generator().manual_seed(0)).float()
    if last:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        x = x.contiguous(memory_format=formats[len(sizes)])
    ours, theirs = (t.detach().requires_grad_() for t in (x.to(DEVICE), x))
    got, want = getattr(ndpool, name)(ours, 2), getattr(F, name)(theirs, 2)
    grad = torch.randint(-9, 9, want.shape, generator=torch.Generator().manual_seed(1)).float()
    (g,) = torch.autograd.grad(got, ours, grad.to(DEVICE))
    assert torch.equal(g.cpu(), torch.autograd.grad(want, theirs, grad)[0])
    backward.backward.cache_clear()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("sizes", "args"),
    [
        ((9, 11), (3, 1, 1)),
        ((12, 20), (5, 2, 2)),
        ((10, 9), ((5, 4), (2, 1), (2, 1), 1, True)),
        ((5, 150), ((3, 9), 1, (1, 4))),
        ((75, 8), ((3, 9), 1, (1, 4))),
        ((4, 136), ((3, 8), (1, 3), (1, 4))),
        ((5, 6, 7), (3, 1, 1)),
        ((7, 6, 8), ((3, 5, 3), (2, 1, 2), (1, 2, 0))),
        ((11, 7, 9), ((7, 5, 4), (2, 2, 1), (3, 2, 2))),
        ((1, 6, 16), (8, (2, 2, 1), (4, 4, 0), 1, True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [0, 1, 2**18])
def test_gradients_by_runs(monkeypatch, sizes, args, last, columns):
    """Any window, stride and padding; many ties, NaN, and windows of -inf: which elements windows share.

    Chunks of long axes, one image at a time. With `columns` by columns, where so many lanes fill the device.
    """
    for limit in ("SCAN_OVERLAP", "WALK_OVERLAP"):
        monkeypatch.setattr(tuning, limit, 2)
    monkeypatch.setattr(tuning, "WALK_SCRATCH", 1)
    least = 1 if columns else 10**9
    for limit, value in {"OVERLAP": (least, least), "EACH": least, "STRIDED": least}.items():
        monkeypatch.setattr(tuning, f"COLUMN_{limit}", value)
    monkeypatch.setattr(tuning, "COLUMN_ROWS", ((99, 99), (99, 99)))
    monkeypatch.setattr(tuning, "COLUMN_CHANNELS", (99, 99))
    monkeypatch.setattr(tuning, "COLUMN_DEEP", (99, 99))
    monkeypatch.setattr(tuning, "COLUMN_LANES", columns)
    backward.backward.cache_clear()
    cache.clear()  # prepared calls
    draw, n = torch.Generator().manual_seed(0), len(sizes)
    x = torch.randint(-3, 3, (2, 3, *sizes), generator=draw).float()
    x[0, 0], x[1, 1, 2:5, 2:5], x[1, 2, -1] = -inf, nan, inf
    theirs = x.requires_grad_()  # contiguous: PyTorch takes other elements of -inf in channels-last volumes
    ours = x.detach().to(DEVICE)
    if last:
        ours = ours.contiguous(memory_format={2: torch.channels_last, 3: torch.channels_last_3d}[n])
    ours.requires_grad_()
    names, name = [], f"max_pool{n}d"
    monkeypatch.setattr(_record, "recording", True)
    monkeypatch.setattr(_record, "note_kernel", lambda *note: names.append(note[:2]))
    got, want = getattr(ndpool, name)(ours, *args), getattr(F, name)(theirs, *args)
    grad = torch.randint(-9, 9, want.shape, generator=draw).float()
    (g,) = torch.autograd.grad(got, ours, grad.to(DEVICE))
    assert ("backward", "column" if columns else "walk" if last else "scan") in names
    assert torch.equal(g.cpu(), torch.autograd.grad(want, theirs, grad)[0])
    backward.backward.cache_clear()
    cache.clear()


@pytest.mark.parametrize(
    ("shape", "args"),
    [
        ((2, 3, 13, 22), (4,)),
        ((1, 5, 11, 23), (3, 5)),
        ((1, 3, 9, 8, 10), (3,)),
        ((1, 3, 9, 8, 10), ((2, 3, 3), 3, (1, 0, 1))),
    ],
    ids=str,
)
def test_gradients_of_single_channels(monkeypatch, shape, args):
    """Disjoint windows of few channels, whose gradients are scattered into zeros."""
    monkeypatch.setattr(tuning, "SATURATED", 1)
    forget_kernels()
    draw, name, names = torch.Generator().manual_seed(0), f"max_pool{len(shape) - 2}d", []
    theirs = torch.randint(-99, 99, shape, generator=draw).float().requires_grad_()
    ours = theirs.detach().to(DEVICE)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)]
    ours = ours.contiguous(memory_format=last).requires_grad_()
    monkeypatch.setattr(_record, "recording", True)
    monkeypatch.setattr(_record, "note_kernel", lambda *note: names.append(note[:2]))
    got, want = getattr(ndpool, name)(ours, *args), getattr(F, name)(theirs, *args)
    grad = torch.randint(-9, 9, want.shape, generator=draw).float()
    (g,) = torch.autograd.grad(got, ours, grad.to(DEVICE))
    assert ("backward", "scatter") in names
    assert torch.equal(g.cpu(), torch.autograd.grad(want, theirs, grad)[0])
    forget_kernels()


def assert_same_values(got, want, *, signs=False):
    """Equal or both NaN; `signs` also compares the signs of zeros."""
    same = (got == want) & (got.signbit() == want.signbit()) if signs else got == want
    assert (same | (got.isnan() & want.isnan())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("args", [(3, 2, 1), (5, 1, 2)])
def test_hard_values(dtype, args):
    """NaN wins, the last NaN counts; ties return the first index, windows of -inf their first element."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.choice([nan, -inf, -inf, -inf, 0.0, -0.0, 1.0], (2, 4, 8, 16))).to(dtype)
    x[0, 0] = -inf
    got = ndpool.max_pool2d(x.to(DEVICE), *args, return_indices=True)
    want = F.max_pool2d(x, *args, return_indices=True)
    assert torch.equal(got[1].cpu(), want[1])
    assert_same_values(got[0].cpu(), want[0], signs=True)
    assert_same_values(ndpool.max_pool2d(x.to(DEVICE), *args).cpu(), want[0])


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "odd"])
@pytest.mark.parametrize("args", [(3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 1, 3), (7, 2, 3)], ids=str)
@pytest.mark.parametrize("large", [False, True])
def test_zeros_of_both_signs(monkeypatch, args, layout, large):
    """With indices a zero has the sign of the element at its index; without them either sign is allowed."""
    forget = (cuda._launched.cache_clear, cache.clear)
    if large:
        monkeypatch.setattr(tuning, "SATURATED", 1)
        [clear() for clear in forget]
    draw = torch.Generator().manual_seed(0)
    shape = (1, 2, 8, 7 if layout == "odd" else 8)
    drawn = ([-2.0, -1.0, -1.0, 0.0, -0.0], [-1.0, -0.0], [nan, -0.0, 0.0, *[-1.0] * 60], [-1.0, -2.0, 0.0])
    whole = torch.cat([torch.tensor(v)[torch.randint(0, len(v), shape, generator=draw)] for v in drawn])
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    for dtype in dtypes if GPU else dtypes[args[0] // 2 % 2 :][:1]:
        x = whole.to(dtype)
        index = F.max_pool2d(x.float(), *args, return_indices=True)[1]
        want = x.flatten(2).gather(2, index.flatten(2)).view(index.shape)
        if layout == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        if not GPU and sys.platform == "linux":
            fenced = Fenced(behind=large)
            monkeypatch.setattr(cuda, "empty", fenced.empty)
            x = fenced.like(x).copy_(x)
        assert_same_values(ndpool.max_pool2d(x.to(DEVICE), *args).cpu(), want)
        assert_same_values(
            ndpool.max_pool2d(x.to(DEVICE), *args, return_indices=True)[0].cpu(), want, signs=True
        )
    if large:
        [clear() for clear in forget]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "args",
    [
        (2.0, 5, 5),
        (2.0, (13, 4), (14, 4)),
        (2.0, 5, 2),
        (2.0, 3, 1),
        (2.0, (7, 6), 1, True),
        (2.0, (3, 2), (2, 3), True),
        (2.0, (15, 17)),
        (2.0, (3, 1), 1),
        (3.0, 2),
    ],
    ids=str,
)
def test_norms(last, args):
    """In one kernel and in several, as PyTorch computes them in float64."""
    x = torch.rand(2, 4, 15, 17, generator=torch.Generator().manual_seed(0)) + 0.5
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
    ours = x.detach().to(DEVICE).requires_grad_()
    got, want = ndpool.lp_pool2d(ours, *args), F.lp_pool2d(x.double(), *args).float()
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    (g,) = torch.autograd.grad(got.sum(), ours)
    torch.testing.assert_close(g.cpu(), torch.autograd.grad(want.sum(), x)[0])


@pytest.mark.parametrize("last", [False, True])
def test_sums_of_negative_zeros(last):
    """They start with 0, as PyTorch's do, in every kernel."""
    calls = [("avg_pool2d", (8, 8), (2,)), ("avg_pool2d", (8, 8), (3, 1, 1, False, False))]
    calls += [("adaptive_avg_pool2d", (4, 4), (1,)), ("adaptive_avg_pool2d", (9, 10), (2,))]
    for name, sizes, args in [*calls, ("adaptive_avg_pool2d", (24, 24), (1,))]:
        x = torch.full((1, 4, *sizes), -0.0)
        x = (x.contiguous(memory_format=torch.channels_last) if last else x).to(DEVICE)
        assert not getattr(ndpool, name)(x, *args).signbit().any(), (name, sizes, args)
    x = torch.full((1, 4, 8, 8), -0.0).to(DEVICE)
    assert not ndpool.pool(x, (2, 2), reduce="sum").signbit().any()


def test_axes_far_apart():
    """Leading axes between the pooled ones, which no layout supports without a copy."""
    x = torch.randint(-9, 9, (2, 4, 2, 4, 2, 4, 2), generator=torch.Generator().manual_seed(0)).float()
    want = x.unfold(1, 2, 2).unfold(3, 2, 2).unfold(5, 2, 2).amax((-3, -2, -1))
    assert torch.equal(ndpool.pool(x.to(DEVICE), (2, 2, 2), axes=(1, 3, 5)).cpu(), want)


def test_notes_of_a_call(monkeypatch):
    """Kernels by direction, and copies: what `explain` reports, also for cached calls."""
    kernels_, copies = [], []
    monkeypatch.setattr(_record, "recording", True)
    monkeypatch.setattr(_record, "note_kernel", lambda *note: kernels_.append(note))
    monkeypatch.setattr(_record, "note_copy", copies.append)
    x = torch.randn(1, 1, 12, 16).to(DEVICE).requires_grad_()
    where = str(x.device)
    for _ in range(2):
        kernels_.clear()
        y, indices = ndpool.max_pool2d(x.detach(), 2, return_indices=True)
        ndpool.max_pool2d(x.detach(), 13, 1, 6)  # axis by axis
        assert kernels_ == [("forward", "strip", where)] * 3
        kernels_.clear()
        torch.autograd.grad(ndpool.max_pool2d(x, 2).sum(), x)
        torch.autograd.grad(ndpool.avg_pool2d(x, 3, 1, 1).sum(), x)
        assert [kernel[:2] for kernel in kernels_] == [
            ("forward", "strip"),
            ("backward", "block"),
            ("forward", "strip"),
            ("backward", "strip"),
        ]
        kernels_.clear()
        ndpool.max_unpool2d(y, indices, 2)
        assert kernels_ == [("unpool", "claim", where), ("unpool", "settle", where)]
    copies.clear()
    ndpool.pool(torch.zeros(2, 2, 2, 2, 2, 2, 2).to(DEVICE), (2, 2, 2), axes=(1, 3, 5))
    assert len(copies) == 1
    assert "packed" in copies[0]


@gpu_only
@pytest.mark.parametrize("name", ["max_pool3d", "avg_pool3d"])
def test_looped_rows_of_volumes(name):
    """Gradients of windows with more rows than fit into registers; Triton once failed to compile them."""
    x = torch.randint(-99, 99, (4, 16, 64, 8, 28), generator=torch.Generator().manual_seed(0)).float()
    ours, theirs = (t.detach().requires_grad_() for t in (x.to(DEVICE), x))
    got, want = getattr(ndpool, name)(ours, 8, 2, 2), getattr(F, name)(theirs, 8, 2, 2)
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    grad = torch.randint(-9, 9, want.shape, generator=torch.Generator().manual_seed(1)).float()
    (g,) = torch.autograd.grad(got, ours, grad.to(DEVICE))
    torch.testing.assert_close(g.cpu(), torch.autograd.grad(want, theirs, grad)[0])


@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum", "lp"])
@pytest.mark.parametrize("window", ["sliding", "adaptive"])
def test_gradients_of_axes_far_apart(reduce, window):
    """No layout supports three leading axes between pooled ones: the gradient must still be written."""
    x = torch.randint(1, 9, (2, 3, 2, 3, 2, 3), generator=torch.Generator().manual_seed(0)).double()
    moved = x.permute(0, 2, 4, 1, 3, 5).contiguous()
    grads = []
    for t, axes in ((x, (1, 3, 5)), (moved, (3, 4, 5))):
        leaf = t.to(DEVICE).requires_grad_()
        if window == "sliding":
            y = ndpool.pool(leaf, (2, 2, 2), axes=axes, reduce=reduce)
        else:
            y = ndpool.adaptive_pool(leaf, (2, 2, 2), axes=axes, reduce=reduce)
        grads.append(torch.autograd.grad((y * y).sum(), leaf)[0].cpu())
    torch.testing.assert_close(grads[0].permute(0, 2, 4, 1, 3, 5), grads[1])
    assert grads[0].any()


@pytest.mark.parametrize("part", range(4))
def test_every_element_is_written(part):
    """Any rank, pooled axes, layout and reduction, against the oracle, in poisoned memory."""
    for seed in range(part, 48, 4):
        rng = np.random.default_rng(seed)
        call = gpu_draws.draw(rng, DEVICE)
        try:
            gpu_draws.check(rng, call, DEVICE)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {call}") from error


def test_leading_axes_around_channels():
    """pytorch#67239: axes that are contiguous in memory are merged, even if not adjacent in the shape."""
    x = torch.randint(-9, 9, (2, 4, 3, 8, 5), generator=torch.Generator().manual_seed(0)).float()
    x = x.contiguous(memory_format=torch.channels_last_3d)
    got = ndpool.pool(x.to(DEVICE), (3,), stride=2, axes=(3,))
    assert torch.equal(got.cpu(), x.unfold(3, 3, 2).amax(-1))
    found = layout_of((3,), x.shape, x.stride(), x.shape, x.stride())
    assert found is not None
    assert found.channels
    assert found.sizes == (4, 5, 6)


def test_derivatives():
    """Second order, forward mode and vmap use the same kernels."""
    size = 64 if GPU else 12
    x = (torch.randperm(size, generator=torch.Generator().manual_seed(0)).double() / 7).to(DEVICE)
    x = x.reshape(1, 2, 2, -1).requires_grad_()
    for pool in (lambda x: ndpool.max_pool2d(x, 2, 1), lambda x: ndpool.avg_pool2d(x, 2, 1)):
        assert torch.autograd.gradcheck(pool, (x,), check_forward_ad=GPU)
        mapped = torch.func.vmap(pool)(x.detach()[None])
        assert torch.equal(mapped[0], pool(x.detach()))
    if GPU:
        assert torch.autograd.gradgradcheck(lambda x: ndpool.max_pool2d(x, 2, 1), (x,))


def test_gradients_that_meet():
    """Windows of fractional pooling overlap: their gradients are added."""
    x = (
        torch.randint(0, 9, (2, 3, 8, 9), generator=torch.Generator().manual_seed(0))
        .double()
        .requires_grad_()
    )
    y, samples = x.detach().to(DEVICE).requires_grad_(), torch.full((2, 3, 2), 0.4, dtype=torch.float64)
    how = {"output_size": (5, 6)}
    want = F.fractional_max_pool2d(x, 3, **how, _random_samples=samples)
    got = ndpool.fractional_max_pool2d(y, 3, **how, _random_samples=samples.to(DEVICE))
    assert torch.equal(got.detach().cpu(), want.detach())
    grad = torch.randint(-9, 9, want.shape, generator=torch.Generator().manual_seed(1)).double()
    (g,) = torch.autograd.grad(got, y, grad.to(DEVICE))
    assert torch.equal(g.cpu(), torch.autograd.grad(want, x, grad)[0])


def test_unpooling():
    """pytorch#78249, pytorch#132041: of repeated indices the last wins, an index outside the plane raises."""
    values = torch.arange(24.0).reshape(1, 2, 3, 4).to(DEVICE)
    indices = torch.randint(0, 9, (1, 2, 3, 4), generator=torch.Generator().manual_seed(0))
    want = oracle.max_unpool(values.cpu().numpy(), indices.numpy(), (6, 8))
    got = ndpool.max_unpool2d(values, indices.to(DEVICE), 2)
    assert np.array_equal(got.cpu().numpy(), want)
    with pytest.raises(ValueError, match="indices must lie in the plane"):
        ndpool.max_unpool2d(values, (indices + 48).to(DEVICE), 2)


def test_unchecked_indices(monkeypatch):
    """Trusted indices need no synchronization; a value with an index outside the plane is dropped."""
    monkeypatch.setenv("NDPOOL_TRUST_INDICES", "1")
    values, indices = torch.ones(1, 1, 1, 2).to(DEVICE), torch.tensor([[[[1, 99]]]]).to(DEVICE)
    got = ndpool.max_unpool2d(values, indices, 2)
    assert got.flatten().tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64] if GPU else [torch.float32])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [((7, 7), 1), ((9, 11), 3), ((33, 40), 2) if GPU else ((16, 17), 1)])
def test_hard_values_of_large_windows(dtype, last, sizes):
    """The same rules where lanes are merged in different ways, and the resulting gradients."""
    (h, w), out = sizes
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.choice([nan, -inf, -inf, -0.0, 0.0, -0.0, -1.0], (2, 4, h, w))).to(dtype)
    x[0, :, :, : w // 2] = -inf
    x[1, 0] = -inf
    x[1, 1] = torch.from_numpy(rng.choice([0.0, -0.0], (h, w))).to(dtype)
    x[1, 2:] = -x[1, 2:].nan_to_num(neginf=-3).abs()
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    ours, theirs = (t.detach().requires_grad_() for t in (x.to(DEVICE), x))
    got, want = (
        pool(t, out, return_indices=True)
        for pool, t in ((ndpool.adaptive_max_pool2d, ours), (F.adaptive_max_pool2d, theirs))
    )
    assert torch.equal(got[1].cpu(), want[1])
    assert_same_values(got[0].detach().cpu(), want[0], signs=True)
    assert_same_values(ndpool.adaptive_max_pool2d(ours.detach(), out).cpu(), want[0])
    grad = torch.ones_like(want[0])
    (g,) = torch.autograd.grad(got[0], ours, grad.to(DEVICE))
    assert torch.equal(g.cpu(), torch.autograd.grad(want[0], theirs, grad)[0])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("straight", [False, True])
def test_out(last, straight):
    """Results are written into `out` directly if its layout matches, else copied."""
    x = torch.randn(2, 4, 8, 8).to(DEVICE)
    form = torch.channels_last if last else torch.contiguous_format
    x = x.contiguous(memory_format=form)
    pair = tuple(torch.zeros(2, 4, 4, 4, dtype=t, device=DEVICE) for t in (torch.float32, torch.int64))
    if straight == last:
        pair = tuple(t.contiguous(memory_format=torch.channels_last) for t in pair)
    assert ndpool.max_pool2d(x, 2, return_indices=True, out=pair) is pair
    want = F.max_pool2d(x.cpu(), 2, return_indices=True)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(pair, want, strict=True))
    assert ndpool.avg_pool2d(x, 2, out=pair[0]) is pair[0]
    torch.testing.assert_close(pair[0].cpu(), F.avg_pool2d(x.cpu(), 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("rising", [False, True])
def test_whole_planes_of_integers(dtype, reduce, rising):
    """Planes next to better ones, which must not leak, and planes full of the identity."""
    draw = torch.Generator().manual_seed(0)
    levels = 5 * (torch.arange(16) if rising else 15 - torch.arange(16)).view(4, 4, 1)
    x = (torch.randint(0, 5, (4, 4, 49), generator=draw) + levels).to(dtype)
    x[1, 1] = x[2, 2, 9:] = getattr(torch.iinfo(dtype), {"max": "min", "min": "max"}[reduce])
    want = getattr(x, f"a{reduce}")(2)
    first = (x == want[..., None]).int().argmax(2)
    planes = x.to(DEVICE).view(4, 4, 7, 7)
    values, index = ndpool.pool(planes, (7, 7), reduce=reduce, axes=(2, 3), return_indices=True)
    assert torch.equal(values.cpu().flatten(1), want)
    assert torch.equal(index.cpu().flatten(1), first)
    assert torch.equal(ndpool.pool(planes, (7, 7), reduce=reduce, axes=(2, 3)).cpu().flatten(1), want)


def repeated():
    """Every function as a callable that returns differentiable values, with the shape of its input."""
    draw = torch.Generator().manual_seed(0)
    for name, shape, args in CASES:
        yield pytest.param(getattr(ndpool, name), shape, args, id=f"{name}{shape}{args}")
    for n in (1, 2, 3):
        calls = {f"lp_pool{n}d": partial(_lp, getattr(ndpool, f"lp_pool{n}d"))}
        for reduce in ("min", "sum"):
            axes = tuple(range(2, n + 2))
            calls[f"{reduce}{n}d"] = partial(ndpool.pool, window=(3,) * n, reduce=reduce, axes=axes)
        places = torch.randint(0, 50, (4, 32, *(32,) * n), generator=draw)
        calls[f"max_unpool{n}d"] = partial(_unpool, getattr(ndpool, f"max_unpool{n}d"), places)
        if n > 1:
            fractional = partial(getattr(ndpool, f"fractional_max_pool{n}d"), kernel_size=2, output_size=5)
            calls[f"fractional{n}d"] = partial(_fractional, fractional, torch.full((4, 32, n), 0.3))
        for name, call in calls.items():
            yield pytest.param(call, (2, 4, *(8,) * n), (), id=name)


def _lp(function, x):
    return function(x.abs() + 0.1, 3.0, 3, 2)


def _unpool(function, places, x):
    return function(x, places.to(x.device), 2)


def _fractional(function, samples, x):
    return function(x, _random_samples=samples.to(x))


@gpu_only
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("function", "shape", "args"), list(repeated()))
def test_same_bits_on_every_run(function, shape, args, asked):
    """pytorch#50198, pytorch#110698, pytorch#85425: gradients too, in both layouts."""
    x = torch.randn(4, 32, *(4 * n for n in shape[2:]), device=DEVICE)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    torch.use_deterministic_algorithms(asked)
    try:
        for form in {torch.contiguous_format, formats.get(x.dim(), torch.contiguous_format)}:
            leaf, first = x.contiguous(memory_format=form).requires_grad_(), None
            for _ in range(100 if asked else 50):
                y = function(leaf, *args)
                (g,) = torch.autograd.grad(y, leaf, y.detach().cos())
                first = first or (y, g)
                assert torch.equal(first[0], y)
                assert torch.equal(first[1], g)
    finally:
        torch.use_deterministic_algorithms(False)


@gpu_only
def test_more_pairs_of_input_and_output_than_32_bits():
    """pytorch#176784: sizes whose product overflows."""
    x = torch.randint(-99, 99, (2, 2, 60000, 1), device="cuda").float().requires_grad_()
    for name in ("adaptive_max_pool2d", "adaptive_avg_pool2d"):
        ours = getattr(ndpool, name)(x, (50000, 1))
        y = x.detach().cpu().requires_grad_()
        theirs = getattr(F, name)(y, (50000, 1))
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
        (g,) = torch.autograd.grad(ours.sum(), x)
        torch.testing.assert_close(g.cpu(), torch.autograd.grad(theirs.sum(), y)[0])


@gpu_only
def test_training_with_mixed_precision():
    torch.use_deterministic_algorithms(False)  # as in most training
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.MaxPool2d(3, 2, 1), torch.nn.AdaptiveAvgPool2d(3))
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(72, 2)).cuda()
    x, start, losses = torch.randn(4, 3, 30, 30, device="cuda"), model.state_dict(), []
    start = {key: value.clone() for key, value in start.items()}
    for swap in (False, True):
        model.load_state_dict(start)
        if swap:
            assert len(ndpool.torch.accelerate(model).swapped) == 2
        steps, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
        for _ in range(3):
            steps.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(steps)
            scaler.update()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@gpu_only
def test_beyond_32_bits():
    """pytorch#68418: more than 2**31 elements, contiguous and channels-last, forward and backward."""
    for last in (False, True):
        x = torch.empty((2, 3, 20000, 20000), dtype=torch.uint8, device="cuda").random_(0, 200)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        assert torch.equal(ndpool.max_pool2d(x, 2)[1], F.max_pool2d(x[1].half(), 2).to(torch.uint8))
        del x
    x = torch.randn((1, 70000, 32768), dtype=torch.float16, device="cuda", requires_grad=True)
    y = ndpool.avg_pool1d(x, 2)
    (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert (g == 0.5).all()
    assert torch.equal(y[0, -1], F.avg_pool1d(x[:, -1].detach(), 2)[0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device():
    """Kernels, tables and cached calls belong to the tensor's device, not to the current one."""
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            for name, args in (
                ("max_pool2d", (3, 2, 1)),
                ("adaptive_avg_pool2d", (4,)),
                ("max_pool2d", (9, 1, 4)),
            ):
                x = torch.randn(2, 4, 25, 27).requires_grad_()
                y = x.detach().to(device).requires_grad_()
                want, got = getattr(F, name)(x, *args), getattr(ndpool, name)(y, *args)
                assert got.device == y.device
                torch.testing.assert_close(got.detach().cpu(), want.detach())
                ones = torch.ones_like(want)
                g = torch.autograd.grad(got, y, ones.to(device))[0]
                torch.testing.assert_close(g.cpu(), torch.autograd.grad(want, x, ones)[0])


@gpu_only
@pytest.mark.parametrize("args", [(2,), (9, 1, 4), (3, 2, 1)])
def test_dependent_launches(args):
    """They wait for all earlier work: long kernels, memsets, other streams; also in CUDA graphs."""
    x, long = torch.randn(4, 16, 32, 32, device="cuda"), torch.randn(2**25, device="cuda")
    want, main, side = F.max_pool2d(x, *args), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def calls():
        buffer = torch.zeros_like(x)
        zeros = ndpool.max_pool2d(buffer, *args)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffer.copy_(x + (long * 2).sin_()[0] * 0)
        torch.cuda.current_stream().wait_stream(side)
        y = ndpool.max_pool2d(buffer, *args)
        z = ndpool.max_pool2d(y, 2)
        buffer.fill_(-7)  # after a kernel that reads it
        return zeros, y, z, ndpool.max_pool2d(buffer, *args)

    with torch.cuda.stream(main):
        found = [calls() for _ in range(10)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main):
            found.append(calls())
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    for zeros, y, z, last in found:
        assert not zeros.any()
        assert torch.equal(y, want)
        assert torch.equal(z, F.max_pool2d(want, 2))
        assert (last == -7).all()


@gpu_only
def test_graphs_streams_and_compilers():
    torch.use_deterministic_algorithms(False)
    side = torch.cuda.Stream()
    torch.cuda.set_stream(side)
    x = torch.randn(4, 8, 32, 32, device="cuda", requires_grad=True)

    def step(x):
        y = ndpool.max_pool2d(x, 3, 2, 1)
        return y, torch.autograd.grad(y.sum(), x)[0]

    want = step(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        got = step(x)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, got, want))
    compiled = torch.compile(lambda x: ndpool.max_pool2d(x, 3, 2, 1) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(x), want[0] * 2)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], want[1] * 2)
    with torch.autocast("cuda", torch.bfloat16):
        assert ndpool.max_pool2d(x.bfloat16(), 2).dtype == torch.bfloat16
    torch.cuda.set_stream(torch.cuda.default_stream())
