"""The named functions: PyTorch's signatures, and PyTorch's results for tens of thousands of random calls.

Calls that PyTorch supports are compared with PyTorch, all others with the oracle.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import cases
import ndpool

pytestmark = pytest.mark.usefixtures("poisoned")
DRAWS = 1100  # per function: 22,000 in all


def results(case):
    return cases.as_tuple(getattr(ndpool, case.name)(case.array(), *case.args, **case.kwargs))


@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_the_oracle(name):
    rng = np.random.default_rng(cases.NAMES.index(name))
    for _ in range(DRAWS // 2):
        case = cases.draw(rng, name, beyond=True)
        if case.values.dtype == bool and "avg" in name:
            with pytest.raises(TypeError, match=f"{name}: the average of dtype=bool"):
                results(case)
        else:
            cases.assert_same(results(case), case.call_oracle(), case)


@pytest.mark.torch
@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_pytorch(name):
    """Values, indices, shapes and dtypes; PyTorch's known errors are listed in test_oracle.py."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # PyTorch's unpooling races for repeated indices (pytorch#78249)
    from test_oracle import spoiled

    rng = np.random.default_rng(1000 + cases.NAMES.index(name))
    judged = 0
    for _ in range(DRAWS):
        case = cases.draw(rng, name)
        wanted = case.call_oracle() if spoiled(case) else case.call_torch()
        cases.assert_same(results(case), wanted, case)
        judged += not spoiled(case)
    assert judged > DRAWS / 3


@pytest.mark.torch
@pytest.mark.parametrize("name", cases.NAMES)
def test_signature_starts_with_pytorchs(name):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn.functional, f"_{name}", None) or getattr(torch.nn.functional, name)
    ours = inspect.signature(getattr(ndpool, name)).parameters
    try:
        wanted = [(p.name, p.default) for p in inspect.signature(theirs).parameters.values()]
    except ValueError:  # built in: its first line of documentation is the signature
        line = theirs.__doc__.strip().partition("(")[2].partition(")")[0]
        wanted = [
            (key.strip(), eval(value) if value else inspect.Parameter.empty)
            for key, _, value in (part.partition("=") for part in line.split(","))
        ]
    positional = [(p.name, p.default) for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == wanted
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(wanted) :])


def test_worked_values():
    """Ties return the first index, NaNs the last, and -inf an index in the input."""
    x = np.array([[[1.0, 1.0, np.nan, np.nan], [1.0, 1.0, 0.0, np.nan]]])
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    assert np.isnan(values[0, 0, 1])
    assert indices.tolist() == [[[0, 7]]]
    assert ndpool.max_pool1d(np.full((1, 3), -np.inf), 3, padding=1, stride=1, return_indices=True)[
        1
    ].tolist() == [[0, 0, 1]]
    assert np.signbit(ndpool.max_pool1d(np.array([[-0.0, 0.0]]), 2, return_indices=True)[0]).all()
    assert not np.signbit(ndpool.max_pool1d(np.array([[0.0, -0.0]]), 2, return_indices=True)[0]).any()


def test_positional_flags():
    x = np.arange(16.0).reshape(1, 4, 4)
    assert len(ndpool.max_pool2d(x, 2, 2, 0, 1, False, True)) == 2
    assert len(ndpool.adaptive_max_pool2d(x, 2, True)) == 2
    assert len(ndpool.fractional_max_pool2d(x, 2, 2, None, True)) == 2


def test_fractional_calls_are_reproducible():
    """pytorch#183249: a seed or a generator makes a call reproducible."""
    x = np.random.default_rng(0).random((2, 3, 20, 20))
    once = ndpool.fractional_max_pool2d(x, 3, 7, generator=5)
    assert (once == ndpool.fractional_max_pool2d(x, 3, 7, generator=5)).all()
    assert (once == ndpool.fractional_max_pool2d(x, 3, 7, generator=np.random.default_rng(5))).all()
    assert (once != ndpool.fractional_max_pool2d(x, 3, 7, generator=6)).any()


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "lp_pool2d"])
def test_empty_batches_and_outputs(name):
    """pytorch#64306, pytorch#78868: empty inputs give empty outputs."""
    args = (2, 2) if name == "lp_pool2d" else (2,)
    assert getattr(ndpool, name)(np.zeros((0, 3, 4, 4)), *args).shape == (0, 3, 2, 2)
    if "adaptive" in name:
        assert getattr(ndpool, name)(np.zeros((2, 3, 4, 4)), 0).shape == (2, 3, 0, 0)
        assert ndpool.adaptive_avg_pool2d(np.zeros((2, 3, 4, 4)), (0, None)).shape == (2, 3, 0, 4)


def test_negative_divisors_need_a_signed_result():
    """An unsigned quotient would wrap around silently, so it raises."""
    x = np.full((1, 2, 2), 8, "uint8")
    with pytest.raises(ValueError, match=r"^avg_pool2d: divisor_override must be positive.*=-2"):
        ndpool.avg_pool2d(x, 2, divisor_override=-2)
    assert ndpool.avg_pool2d(x, 2, divisor_override=-2, dtype="float32").item() == -16
    assert ndpool.avg_pool2d(x.astype("int8"), 2, divisor_override=-2).item() == -16


@pytest.mark.parametrize("flag", ["ceil_mode", "count_include_pad"])
def test_flags_must_be_bool(flag):
    with pytest.raises(TypeError, match=rf"^avg_pool2d: {flag} must be true or false; got {flag}=array"):
        ndpool.avg_pool2d(np.ones((1, 4, 4)), 2, **{flag: np.zeros(2)})


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((40, 40, 12), (9, 2), (1, 2), (4, 0)),  # many distinct kinds of rows in a plane
        ((60, 24, 9), (8, 3), (1, 2), (4, 1)),
        ((40, 50, 2), (22, 2), (22, 2), 0),  # planes with fewer outputs than a vector has elements
        ((200, 14, 4), (7, 2), (7, 2), 0),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8])
def test_many_small_planes(shape, kernel, stride, padding, dtype):
    x = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    whole = ndpool.max_pool2d(x, kernel, stride, padding)
    memory = np.zeros(whole.size + 64, dtype)
    out = memory[: whole.size].reshape(whole.shape)
    ndpool.pool(x, kernel, axes=(1, 2), stride=stride, padding=padding, out=out)
    assert not memory[whole.size :].any()  # nothing is written beyond the results
    for result in (whole, out):
        for plane, got in zip(x, result, strict=True):
            np.testing.assert_array_equal(got, ndpool.max_pool2d(plane[None], kernel, stride, padding)[0])


def test_averages_of_many_channels_and_uneven_windows():
    """Windows narrower than the widest must not use more scratch memory than the widest."""
    x = np.random.default_rng(5).integers(-50, 50, (1, 13, 53, 4096)).astype(np.float32)
    y = ndpool.adaptive_avg_pool2d(np.moveaxis(x, -1, 1), (2, 6))
    for i, rows in enumerate([slice(0, 7), slice(6, 13)]):
        for j in range(6):
            columns = slice(j * 53 // 6, -(-(j + 1) * 53 // 6))
            np.testing.assert_allclose(y[0, :, i, j], x[0, rows, columns].mean((0, 1)), rtol=1e-6, atol=1e-6)


def test_averages_of_windows_without_elements():
    """pytorch#14907, #114216: dilated windows may contain no element; their average is 0 in any layout."""
    x = np.ones((2, 3, 2, 40), np.float32)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    for stride in (1, 2):
        options = {"kernel_size": 2, "stride": (1, stride), "padding": (1, 0), "dilation": (3, 1)}
        for array in (x, last, x.astype(np.float64), x.astype(np.uint8)):
            np.testing.assert_array_equal(ndpool.avg_pool2d(array, **options), 0)
