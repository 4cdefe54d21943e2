"""`explain` reports the engine of a call; every engine is reached on every instruction set."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ndpool
import passes
from cases import moved
from helpers import hard_values
from ndpool._native import core
from ndpool.geometry import adaptive, sliding
from ndpool.reductions import REDUCTIONS

pytestmark = pytest.mark.usefixtures("restore_settings")
SETS = core.isa_names()
WIDE = "avx512"  # some engines need its masks
OWN = [isa for isa in SETS if isa != "baseline"] or SETS  # baseline x86 has the general engines alone


def image(*shape, dtype=np.float32, last=False):
    x = hard_values(shape, dtype)
    return moved(x, 1, -1) if last else x


def backward(reduce, plan, x, axes=(2, 3)):
    """The gradient of a pool, for use with `explain`."""
    if not REDUCTIONS[reduce].has_index:
        grad = np.ones((*x.shape[:2], *plan.out), x.dtype)
        saved = {"norm": 2.0, "x": x, "y": grad} if reduce == "lp" else {}
        return passes.backward(reduce, plan, grad, axes, **saved)
    y, offsets = passes.with_offsets(reduce, plan, x, axes)
    return passes.backward(reduce, plan, np.ones_like(y), axes, offsets=offsets)


def windows(sizes, kernel, stride=None, padding=0):
    return sliding("f", sizes, kernel, stride, padding, 1, False, strict=False)


# engine -> (instruction sets that have it, a call that uses it)
FORWARD = {
    "direct": (OWN, lambda: (ndpool.max_pool2d, image(2, 3, 64, 96), 2)),
    "small_planes": ([WIDE], lambda: (ndpool.max_pool2d, image(11, 7, 14, 14), 3, 2, 1)),
    "blocks": (OWN, lambda: (ndpool.adaptive_max_pool2d, image(2, 3, 56, 60), 7)),
    "channels_last": (OWN, lambda: (ndpool.max_pool2d, image(1, 64, 23, 21, last=True), 3, 2, 1)),
    "tracks": (OWN, lambda: (ndpool.max_pool2d, image(1, 64, 23, 21, last=True), 5, 1, 2)),
    "strips": ([WIDE], lambda: (ndpool.max_pool2d, image(1, 2, 64, 80), 3, 1, 1)),
    "long_max": ([WIDE], lambda: (ndpool.max_pool2d, image(1, 1, 100, 260), 31, 1, 15)),
    "longer_sums": ([WIDE], lambda: (ndpool.avg_pool2d, image(1, 1, 100, 260), 31, 1, 15)),
    "sliding": (SETS, lambda: (ndpool.max_pool2d, image(1, 2, 40, 50, dtype=np.float64), 5, 1, 2)),
    "single_sums": (OWN, lambda: (ndpool.avg_pool2d, image(2, 40, 7, 7), 7, 1)),
    "integers": (OWN, lambda: (ndpool.avg_pool2d, image(1, 2, 40, 50, dtype=np.uint8), 3, 1, 1)),
    "rows": (SETS, lambda: (ndpool.avg_pool2d, image(1, 2, 40, 50), 5, 3)),
    "side_by_side": (SETS, lambda: (ndpool.avg_pool2d, image(8, 8, 20, 20), 5, 3)),
    "norms": (SETS, lambda: (ndpool.lp_pool2d, image(1, 2, 64, 96), 2.0, 3, 2)),
    "axis_by_axis": (OWN, lambda: (ndpool.max_pool3d, image(2, 30, 64, 80), 3, 1, 1)),
}
BACKWARD = {
    "max_backward": (OWN, lambda x: backward("max", windows((24, 40), 2), x)),
    "max_backward_channels_last": (
        OWN,
        lambda x: backward("max", windows((24, 40), 2, 1), moved(np.repeat(x, 8, axis=1), 1, -1)),
    ),
    "max_backward_scatter": (SETS, lambda x: backward("max", adaptive("f", (24, 40), (5, 7)), x)),
    "sum_backward": (SETS, lambda x: backward("avg", windows((24, 40), 3, 2, 1), x[:1, :1])),
    "fill": (SETS, lambda x: backward("avg", adaptive("f", (24, 40), (1, 1)), x)),
    "side_by_side": (SETS, lambda x: backward("avg", windows((24, 20), 3, 2, 1), x[..., :20])),
    "norms": (SETS, lambda x: backward("lp", windows((24, 40), 3, 2, 1), x[:1, :1])),
}


@pytest.mark.parametrize("engine", FORWARD)
@pytest.mark.parametrize("isa", SETS)
def test_every_forward_engine_is_reached(isa, engine):
    assert core.set_isa(isa)
    having, call = FORWARD[engine]
    found = ndpool.explain(*call())
    assert [step.direction for step in found.steps] == ["forward"]
    assert found.copies == ()
    assert (found.forward.engine == engine) == (isa in having)
    assert found.forward.instruction_set == isa


@pytest.mark.parametrize("engine", BACKWARD)
@pytest.mark.parametrize("isa", SETS)
def test_every_backward_engine_is_reached(isa, engine):
    assert core.set_isa(isa)
    having, call = BACKWARD[engine]
    found = ndpool.explain(call, image(2, 16, 24, 40))
    assert (found.backward.engine == engine) == (isa in having)
    assert found.backward.instruction_set == isa


def test_every_engine_is_listed():
    """The sources of the core define one name per engine."""
    text = "".join(path.read_text() for path in (Path(__file__).parents[1] / "csrc").glob("**/*.h"))
    names = set(re.findall(r'constexpr const char\* engine = "(\w+)"', text))
    assert names == set(FORWARD) | set(BACKWARD)


def test_every_set_has_every_type():
    for isa in SETS:
        core.set_isa(isa)
        for dtype in ("bool", "uint8", "int16", "uint32", "int64", "float16", "float64"):
            found = ndpool.explain(ndpool.max_pool2d, image(1, 2, 40, 50, dtype=dtype), 2)
            assert found.forward.instruction_set == isa


def test_threads():
    core.set_num_threads(3)
    assert ndpool.explain(ndpool.max_pool2d, image(1, 3, 20, 20), 2).forward.threads == 1
    assert ndpool.explain(ndpool.max_pool2d, image(4, 64, 112, 112), 2).forward.threads == 3
    before = core.set_serial_bytes(0)
    try:
        assert ndpool.explain(ndpool.max_pool2d, image(1, 3, 20, 20), 2).forward.threads == 3
    finally:
        core.set_serial_bytes(before)


def test_copies():
    x = image(2, 3, 8, 8)
    assert ndpool.explain(ndpool.max_pool2d, x[:, ::-1, :, ::2], 2).copies == ()
    assert ndpool.explain(ndpool.max_pool2d, x.astype(">f4"), 2).copies == ("input to native byte order",)
    packed = np.zeros(x.shape, np.dtype([("tag", "u1"), ("value", "f4")]))["value"]
    assert ndpool.explain(ndpool.max_pool2d, packed, 2).copies == ("misaligned arrays",)
    out = x[..., :4, :4]
    assert ndpool.explain(ndpool.max_pool2d, x, 2, out=out).copies == ("result to out",)


def test_names_layers_and_unpooling():
    x = image(2, 3, 8, 8)
    found = ndpool.explain("max_pool2d", x, 2)
    assert found.function == "max_pool2d"
    assert ndpool.explain(ndpool.nn.MaxPool2d(2), x).function == "MaxPool2d"
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    assert [s.direction for s in ndpool.explain("max_unpool2d", values, indices, 2).steps] == ["unpool"]
    assert ndpool.explain(ndpool.max_pool2d, x[:0], 2).steps == ()
    with pytest.raises(ValueError, match="function='nothing'"):
        ndpool.explain("nothing", x)
    with pytest.raises(TypeError, match="explain: function must be a function"):
        ndpool.explain(3, x)


def test_repr():
    text = repr(ndpool.explain(ndpool.max_pool2d, image(1, 2, 40, 50), 2))
    assert text.splitlines()[0] == "max_pool2d"
    assert f"forward: direct, {core.isa()}, 1 thread" in text
    assert text.endswith("copies: none")


def test_an_error_stops_the_recording():
    with pytest.raises(ValueError, match="padding"):
        ndpool.explain(ndpool.max_pool2d, image(1, 2, 8, 8), 2, padding=9)
    assert len(ndpool.explain(ndpool.max_pool2d, image(1, 2, 8, 8), 2).steps) == 1


def test_nested_explanations():
    def both(x):
        ndpool.max_pool2d(x, 2)
        assert len(ndpool.explain(ndpool.max_pool2d, x, 2).steps) == 1
        return ndpool.avg_pool2d(x, 2)

    assert len(ndpool.explain(both, image(1, 2, 8, 8)).steps) == 2


@pytest.mark.torch
def test_tensors_and_their_gradients():
    torch = pytest.importorskip("torch")
    x = torch.rand(2, 16, 24, 40, requires_grad=True)
    found = ndpool.explain(ndpool.max_pool2d, x, 2)
    assert [step.direction for step in found.steps] == ["forward", "backward"]
    assert found.backward.engine == "max_backward"
    assert ndpool.explain(ndpool.max_pool2d, x.detach(), 3, 2, 1).backward is None
    half = torch.rand(2, 16, 24, 40).to(torch.bfloat16)
    assert ndpool.explain(ndpool.max_pool2d, half, 3, 2, 1).copies == ()
    assert hard_values((2,), ml_dtypes.bfloat16).itemsize == half.element_size()
