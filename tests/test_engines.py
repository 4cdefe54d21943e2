"""Sizes that bring in every engine of the core, on every instruction set, against PyTorch.

The drawn calls elsewhere are small; here rows, channels and planes are as long and as many as it takes for
the vector paths, with NaN, infinities and both zeros in a few places, and in none.
"""

from __future__ import annotations

import numpy as np
import pytest

import ndpool
from ndpool._native import core

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SLIDING = [
    ((2, 3, 130, 300), (2,)),  # long rows, one after the other
    ((1, 2, 65, 257), (3, 2, 1)),
    ((1, 2, 40, 1030), (3, 2, 1)),  # rows of several pages
    ((2, 2, 31, 520), (2, 2, 1)),
    ((40, 9, 14, 14), (2,)),  # planes that are one strip
    ((40, 9, 13, 13), (3, 2)),
    ((9, 40, 28, 28), (3, 2, 1)),
    ((1, 17, 33, 40), (3, 1, 1)),
    ((2, 17, 20, 20), (5, 1, 2)),
    ((1, 300, 9, 11), (2,)),
    ((2, 480, 9, 9), (3, 2, 1)),
    ((1, 64, 23, 21), (3, 2, 1)),
    ((1, 145, 11, 10), (7, 1, 3)),
]
ADAPTIVE = [
    ((5, 33, 7, 7), 1),  # planes side by side
    ((2, 40, 14, 14), 1),
    ((3, 19, 10, 10), 1),
    ((2, 3, 56, 60), 1),
    ((1, 72, 61, 53), 6),
    ((2, 300, 21, 20), (7, 3)),
    ((1, 1100, 12, 13), 1),
]


@pytest.fixture(params=core.isa_names())
def isa(request):
    before = core.isa()
    assert core.set_isa(request.param)
    assert core.isa() == request.param
    yield request.param
    core.set_isa(before)


def data(shape, dtype, last, odd):
    rng = np.random.default_rng(len(shape) + shape[-1])
    x = rng.integers(-60, 60, shape).astype(np.float32)
    if odd:
        for value in (np.nan, np.inf, -np.inf, -0.0, -0.0, 0.0):
            x[rng.random(shape) < 2e-3] = value
    t = torch.from_numpy(x).to(dtype)
    return t.contiguous(memory_format=torch.channels_last) if last else t


def same(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.is_floating_point:
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num(77.0), want.nan_to_num(77.0)
        assert torch.equal(got.signbit(), want.signbit())
    assert torch.equal(got, want)


@pytest.mark.parametrize("odd", [False, True], ids=["tame", "odd"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_maxima(isa, dtype, last, odd):
    for shape, args in SLIDING:
        x = data(shape, dtype, last, odd)
        want, where = torch.nn.functional.max_pool2d(x, *args, return_indices=True)
        same(ndpool.max_pool2d(x, *args), want)
        got, index = ndpool.max_pool2d(x, *args, return_indices=True)
        same(got, want)
        assert torch.equal(index, where), (shape, args)
    for shape, size in ADAPTIVE:
        x = data(shape, dtype, last, odd)
        want, where = torch.nn.functional.adaptive_max_pool2d(x, size, return_indices=True)
        same(ndpool.adaptive_max_pool2d(x, size), want)
        got, index = ndpool.adaptive_max_pool2d(x, size, return_indices=True)
        same(got, want)
        assert torch.equal(index, where), (shape, size)


@pytest.mark.parametrize("odd", [False, True], ids=["tame", "odd"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_averages(isa, dtype, last, odd):
    calls = [("avg_pool2d", shape, args) for shape, args in SLIDING]
    calls += [("adaptive_avg_pool2d", shape, (size,)) for shape, size in ADAPTIVE]
    for name, shape, args in calls:
        x = data(shape, dtype, last, odd)
        want = getattr(torch.nn.functional, name)(x, *args)
        got = getattr(ndpool, name)(x, *args)
        assert got.dtype == dtype
        # Whole numbers add up without rounding: what is left is the division.
        torch.testing.assert_close(got, want, rtol=2e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_nothing_but_negative_zeros_adds_up_to_zero(isa, dtype, last):
    more = [((2, 9, 7, 7), (1, 2)), ((3, 7, 7, 7), (3, 2, 1))]
    calls = [("avg_pool2d", shape, args) for shape, args in SLIDING + more]
    calls += [("adaptive_avg_pool2d", shape, (size,)) for shape, size in ADAPTIVE]
    for name, shape, args in calls:
        x = data(shape, dtype, last, odd=False)
        same(
            getattr(ndpool, name)(-torch.zeros_like(x), *args),
            getattr(torch.nn.functional, name)(-torch.zeros_like(x), *args),
        )


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_gradients(isa, last):
    for shape, args in SLIDING:
        x = data(shape, torch.float32, last, odd=False).requires_grad_()
        grads = []
        for module in (torch.nn.functional, ndpool):
            y = module.max_pool2d(x, *args)
            grads += torch.autograd.grad(y, x, torch.arange(1.0, 1 + y.numel()).reshape(y.shape) % 97)
        assert torch.equal(grads[0], grads[1]), (shape, args)
