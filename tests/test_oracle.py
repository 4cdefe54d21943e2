"""Compares the oracle with PyTorch; all other tests trust the oracle.

Random calls of every named function, all small sliding and adaptive geometries, hand-written corner cases,
features beyond PyTorch, and gradients. Cases where PyTorch contradicts itself or the rule are in the list of
peculiarities; a test per entry fails as soon as PyTorch's behaviour changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import inf, nan, prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oracle
from cases import (
    BOOL,
    DTYPES,
    HALVES,
    INTEGERS,
    LAYOUTS,
    NAMES,
    Case,
    assert_same,
    draw,
    from_torch,
    same_bits,
    to_torch,
    torch_dtypes,
)

torch = pytest.importorskip("torch")
F, zeros = torch.nn.functional, torch.zeros
pytestmark = pytest.mark.torch
REFERENCE = "2.13"
DRAWS = 300
RANKED = [(name[:-2], int(name[-2])) for name in NAMES]


@dataclass(frozen=True)
class Peculiarity:
    """PyTorch behaviour that violates the rule: the reason, a check that it persists, the affected cases."""

    name: str
    reason: str
    shows: Callable[[], bool]
    spoils: Callable[[Case], bool] = lambda case: False
    gradient_only: bool = False
    version: str = "2.13.0"


def raises(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether PyTorch raises an error."""
    try:
        call(*args, **kwargs)
    except (RuntimeError, TypeError):
        return True
    return False


def supports(name: str, dtype: Any) -> bool:
    """Whether a function of PyTorch supports a dtype."""
    family, n = name[:-2], int(name[-2])
    x = to_torch(np.zeros((1, 1, *[4] * n), dtype))
    more = {
        "max_pool": ([2], {"return_indices": True}),
        "lp_pool": ([2, 2], {}),
        "max_unpool": ([torch.zeros(x.shape, dtype=torch.int64), 2], {}),
        "fractional_max_pool": ([2, 2], {"_random_samples": x.reshape(-1)[:n].reshape(1, 1, n)}),
    }
    args, kwargs = more.get(family, ([2], {}))
    return not raises(getattr(F, name), x, *args, **kwargs)


def channels_last(x: Any) -> Any:
    """The tensor in PyTorch's channels-last memory format."""
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)


def loses_depth(case: Case) -> bool:
    """Whether a channels-last 3-D max pool has a window without a value above the lowest."""
    lowest = oracle.extremum_of_nothing(case.values.dtype, least=False)
    return (
        case.name == "max_pool3d" and case.layout != "contiguous" and bool((case.solve()[0] == lowest).any())
    )


def wrong_format(case: Case) -> bool:
    """Whether an unbatched volume may have the strides of a channels-last batch of images."""
    return case.name in ("max_pool3d", "lp_pool3d") and case.values.ndim == 4 and case.layout != "contiguous"


def has_empty_window(case: Case) -> bool:
    """Whether a window of the case contains no element."""
    plan = oracle.sliding_plan(case.values.shape, **case.operands()) if case.family == "max_pool" else []
    return any(not window.positions for axis in plan for window in axis)


def empty_window_has_gradient() -> bool:
    """Whether a window with a tap on either side of the first row adds its gradient to the second row."""
    x = zeros(1, 3, 3, requires_grad=True)
    F.max_pool2d(x, (1, 2), stride=(3, 1), padding=(0, 1), dilation=(1, 4)).sum().backward()
    return x.grad.tolist() == [[[0, 0, 0], [1, 0, 0], [0, 0, 0]]]


TRANSPOSED = zeros(1, 2, 2, dtype=torch.int64).mT
PECULIARITIES = [
    Peculiarity(
        "types",
        "No bool and no unsigned type beyond 8 bits in max pooling, few integers elsewhere, no half in 3-D "
        "average pooling; cases.torch_dtypes lists them (pytorch#33086, pytorch#107412, pytorch#143801).",
        lambda: all(supports(f"{f}{n}d", d) == (d in torch_dtypes(f, n)) for f, n in RANKED for d in DTYPES),
    ),
    Peculiarity(
        "integer_max_pool1d_needs_indices",
        "The kernel without indices supports only floats (pytorch#136110).",
        lambda: all(raises(F.max_pool1d, zeros(1, 4, dtype=d), 2) for d in (torch.uint8, torch.int64)),
    ),
    Peculiarity(
        "byte_planes",
        "Channels-last max pooling stores indices in a type as wide as the values: uint8 planes are limited "
        "to 127 elements.",
        lambda: (
            raises(F.max_pool2d, channels_last(zeros(1, 2, 8, 16, dtype=torch.uint8)), 2)
            and not raises(F.max_pool2d, zeros(1, 2, 8, 16, dtype=torch.uint8), 2)
        ),
    ),
    Peculiarity(
        "max_pool3d_loses_depth",
        "Channels-last and outside full vectors, the index of a window without a value above the lowest "
        "is its first position without the depth.",
        lambda: (
            F.max_pool3d(channels_last(zeros(1, 3, 2, 1, 2) - inf), 1, return_indices=True)[1][0, 0].tolist()
            == [[[0, 1]], [[0, 1]]]
        ),
        loses_depth,
    ),
    Peculiarity(
        "volume_taken_for_images",
        "Max pooling of an unbatched volume rejects the strides of a channels-last batch of images.",
        lambda: raises(F.max_pool3d, zeros(2, 4, 4, 3).permute(0, 3, 1, 2), 1),
        wrong_format,
    ),
    Peculiarity(
        "empty_window_gradient",
        "A dilated window without an element has an index outside itself and adds its gradient there; "
        "an index outside the plane is out of bounds (pytorch#114216).",
        empty_window_has_gradient,
        has_empty_window,
        gradient_only=True,
    ),
    Peculiarity(
        "adaptive_gradient_of_nothing",
        "Output size 0 gives an empty result, but no gradient of zeros (pytorch#78868).",
        lambda: raises(F.adaptive_avg_pool1d(zeros(1, 4, requires_grad=True), 0).sum().backward),
        lambda case: "adaptive" in case.name and 0 in case.solve()[0].shape[-case.n :],
        gradient_only=True,
    ),
    Peculiarity(
        "max_unpool_gradient_of_strided_indices",
        "Unpooling accepts indices with any strides, its gradient only contiguous ones.",
        lambda: raises(F.max_unpool2d(zeros(1, 2, 2, requires_grad=True), TRANSPOSED, 1).sum().backward),
        lambda case: "unpool" in case.name and not case.named["indices"].flags.c_contiguous,
        gradient_only=True,
    ),
    Peculiarity(
        "adaptive_avg_pool3d_half_sums",
        "Half types are summed in half precision, unlike in one and two dimensions (pytorch#104602).",
        lambda: F.adaptive_avg_pool3d(zeros(1, 2, 64, 64).half() + 1, (2, 1, 1)).unique().tolist() == [0.5],
        lambda case: case.name == "adaptive_avg_pool3d" and case.values.dtype in HALVES,
    ),
    Peculiarity(
        "adaptive_avg_pool_to_one_checks_nothing",
        "Output size 1 is computed as a mean, which accepts any rank and empty channels.",
        lambda: all(
            [raises(F.adaptive_avg_pool3d, zeros(shape), out) for out in (1, 2)] == [False, True]
            for shape in [(2, 0, 4, 4, 4), (4, 4, 4), (2, 2, 2, 4, 4, 4)]
        ),
    ),
    Peculiarity(
        "avg_pool3d_small_input",
        "A kernel larger than the input raises even if it fits with padding or ceil mode, unlike in 2-D.",
        lambda: (
            raises(F.avg_pool3d, zeros(1, 3, 3, 3), 4, padding=2)
            and raises(F.lp_pool3d, zeros(1, 3, 3, 3), 2, 4, ceil_mode=True)
            and not raises(F.avg_pool2d, zeros(1, 3, 3), 4, padding=2)
            and not raises(F.lp_pool2d, zeros(1, 3, 3), 2, 4, ceil_mode=True)
        ),
    ),
    Peculiarity(
        "fractional_max_pool3d_extra_element",
        "The 3-D function needs one element more than the windows cover, the 2-D function does not.",
        lambda: (
            raises(F.fractional_max_pool3d, zeros(1, 5, 5, 5), 2, 4)
            and not raises(F.fractional_max_pool2d, zeros(1, 5, 5), 2, 4)
        ),
    ),
    Peculiarity(
        "fractional_max_pool2d_single_ratio",
        "The 2-D function takes the length of the ratio before expanding a number to a pair.",
        lambda: (
            raises(F.fractional_max_pool2d, zeros(1, 5, 5), 2, output_ratio=0.5)
            and not raises(F.fractional_max_pool3d, zeros(1, 5, 5, 5), 2, output_ratio=0.5)
        ),
    ),
    Peculiarity(
        "fractional_max_pool_half_starts",
        "Window starts are computed in the dtype of the input: with 250 positions bfloat16 rounds beyond the "
        "end, and an internal assertion fails.",
        lambda: raises(
            F.fractional_max_pool2d,
            zeros(1, 250, 2).bfloat16(),
            1,
            (245, 2),
            _random_samples=(zeros(1, 1, 2) + 0.5).bfloat16(),
        ),
    ),
    Peculiarity(
        "lp_pool_integers",
        "The mean of integer powers truncates before the root if the norm is an int, not if it is a float.",
        lambda: (
            F.lp_pool1d(torch.tensor([[1, 2]]), 2, 2).item() == 2
            and F.lp_pool1d(torch.tensor([[1, 2]]), 2.0, 2).item() == pytest.approx(5**0.5)
        ),
    ),
    Peculiarity(
        "lp_pool_root_of_minus_infinity",
        "The power 1/2 is computed as a square root, which is NaN for -inf, except in float16.",
        lambda: (
            F.lp_pool1d(zeros(1, 1).half() - inf, 0.5, 1).item() == inf
            and F.lp_pool1d(zeros(1, 1) - inf, 0.5, 1).isnan().item()
        ),
    ),
]


# Behaviour of older versions, if it is still present.
OLDER = [
    Peculiarity(
        "lp_pool_infinite_norm",
        "An infinite norm is computed like any other power and gives 1.",
        lambda: F.lp_pool1d(torch.tensor([[2.0, 3.0]]), inf, 2).item() != 3,
        lambda case: case.family == "lp_pool" and abs(case.named["norm_type"]) == inf,
        version="2.6.0",
    ),
]
PRESENT = PECULIARITIES + [p for p in OLDER if p.shows()]


@pytest.mark.skipif(not torch.__version__.startswith(REFERENCE), reason=f"lists PyTorch {REFERENCE}")
@pytest.mark.parametrize("peculiarity", PECULIARITIES, ids=lambda p: p.name)
def test_peculiarity_persists(peculiarity):
    """If this fails, PyTorch has changed: remove the entry, and its cases will be compared again."""
    assert peculiarity.shows(), f"gone since {peculiarity.version}: {peculiarity.reason}"


def spoiled(case: Case, gradient: bool = False) -> bool:
    """Whether a peculiarity affects the case, so that PyTorch is no reference for it."""
    return any(p.spoils(case) for p in PRESENT if gradient or not p.gradient_only)


@pytest.mark.parametrize("name", NAMES)
def test_random_calls(name):
    """Values, indices, shapes and dtypes of random calls."""
    rng = np.random.default_rng(NAMES.index(name))
    drawn = [draw(rng, name) for _ in range(DRAWS)]
    judged = [case for case in drawn if not spoiled(case)]
    assert len(judged) > DRAWS / 3
    for case in judged:
        assert_same(case.call_torch(), case.call_oracle(), case)


@pytest.mark.parametrize("name", NAMES)
def test_random_gradients(name):
    """Gradients of random calls in float64."""
    rng = np.random.default_rng(NAMES.index(name))
    judged = 0
    for case in (draw(rng, name).in_float64() for _ in range(DRAWS)):
        if "lp" in name:
            case = replace(case, values=rng.uniform(0.5, 3, case.values.shape))
        if spoiled(case, gradient=True):
            continue
        judged += 1
        grad = rng.integers(-9, 10, case.solve()[0].shape).astype(np.float64)
        got, want = case.torch_gradient(grad), case.oracle_gradient(grad)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(
            got, want, rtol=1e-11, atol=0 if "max" in name else 1e-11, err_msg=str(case)
        )
    assert judged > DRAWS / 2


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("size", range(1, 8))
def test_every_small_sliding_geometry(size, ceil):
    """Windows of one axis, from the maxima of a rising and a falling row, and averages (pytorch#88144)."""
    rising = torch.arange(1.0, size + 1)
    x = torch.stack([rising, -rising])
    for k, s, d in product(range(1, 5), range(1, 4), range(1, 4)):
        for p in range(k // 2 + 1):
            if oracle.output_size(size, k, s, (p, p), d, ceil) < 1:
                assert raises(F.max_pool1d, x, k, s, p, d, ceil)
                continue
            got = F.max_pool1d(x, k, s, p, d, ceil, return_indices=True)
            for have, need in zip(got, oracle.max_pool(x.numpy(), [k], s, p, d, ceil), strict=True):
                np.testing.assert_array_equal(have.numpy(), need, f"{k=} {s=} {p=} {d=}")
            for include in (True, False) if d == 1 else ():
                mean = oracle.avg_pool(x.numpy(), [k], s, p, ceil, include)
                np.testing.assert_allclose(F.avg_pool1d(x, k, s, p, ceil, include).numpy(), mean, rtol=1e-6)


@pytest.mark.parametrize("size", range(1, 14))
def test_every_small_adaptive_geometry(size):
    """Windows of one axis for all output sizes up to twice the input, and 0 (keras#18191)."""
    rising = torch.arange(1.0, size + 1)
    x = torch.stack([rising, -rising])
    for out in range(2 * size + 1):
        got = F.adaptive_max_pool1d(x, out, return_indices=True)
        for have, need in zip(got, oracle.adaptive_max_pool(x.numpy(), out), strict=True):
            np.testing.assert_array_equal(have.numpy(), need, f"{out=}")
        mean = oracle.adaptive_avg_pool(x.numpy(), out)
        np.testing.assert_allclose(F.adaptive_avg_pool1d(x, out).numpy(), mean, rtol=1e-6)


LOW = int(np.iinfo(np.int64).min)
SAMPLES = np.array([[[0.0, 0.5]]], np.float32)
GRID = [[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
PICKED = [[0, 1, 3], [8, 9, 11], [12, 13, 15]]
HARD: list[tuple[str, str, Any, tuple[Any, ...], Any, Any]] = [
    ("first_of_ties", "max_pool1d", [1.0, 3, 3, 1], (4,), [3], [1]),
    ("last_nan", "max_pool1d", [9.0, nan, 1, nan, 8], (5,), [nan], [3]),
    ("nan_in_its_windows_only", "max_pool1d", [1.0, nan, 2, 3], (2, 1), [nan, nan, 3], [1, 1, 3]),
    ("first_zero_negative", "max_pool1d", [-0.0, 0.0], (2,), [-0.0], [0]),
    ("first_zero_positive", "max_pool1d", [0.0, -0.0], (2,), [0.0], [0]),
    ("all_minus_infinity", "max_pool1d", [-inf] * 4, (3, 1, 1), [-inf] * 4, [0, 0, 1, 2]),
    ("all_integer_minimum", "max_pool1d", [LOW] * 3, (2, 2, 1), [LOW] * 2, [0, 1]),
    ("empty_window", "max_pool1d", [1.0, 2, 3], (2, 1, 1, 4), [-inf], [3]),
    ("empty_window_of_integers", "max_pool1d", [1, 2, 3], (2, 1, 1, 4), [LOW], [3]),
    (
        "empty_window_along_one_axis",
        "max_pool2d",
        [[1.0], [2]],
        (2, 1, 1, (1, 2)),
        [[-inf]] * 3,
        [[1], [1], [2]],
    ),
    ("ceil_keeps_partial", "max_pool1d", [1.0, 2, 3, 4, 5], (2, 2, 0, 1, True), [2, 4, 5], [1, 3, 4]),
    ("ceil_drops_all_padding", "max_pool1d", [1.0, 2, 3], (2, 2, 1, 1, True), [1, 3], [0, 2]),
    ("ceil_divides_by_rest", "avg_pool1d", [1.0, 2, 3, 4, 5], (2, 2, 0, True), [1.5, 3.5, 5], None),
    ("ceil_counts_padding_only", "avg_pool1d", [12.0] * 4, (4, 3, 1, True), [9, 8], None),
    ("truncation", "avg_pool1d", [-3, 0, 3, 0], (2,), [-1, 1], None),
    ("negative_divisor", "avg_pool2d", [[-7, 7]], (1, 1, 0, False, True, -2), [[3, -3]], None),
    ("output_beyond_input", "adaptive_max_pool1d", [5.0, 7], (5,), [5, 5, 7, 7, 7], [0, 0, 1, 1, 1]),
    ("mean_beyond_input", "adaptive_avg_pool1d", [5.0, 7], (5,), [5, 5, 6, 7, 7], None),
    ("lp_of_partial", "lp_pool1d", [3.0, 4, 5], (2, 2, 2, True), [5, 50**0.5], None),
    ("lp_of_negative_sum", "lp_pool1d", [-2.0, 1, 2, 1], (3, 2), [nan, 9 ** (1 / 3)], None),
    ("last_of_repeats", "max_unpool1d", [1.0, 2, 3, 4], (np.array([[1, 0, 1, 3]]), 1), [2, 3, 0, 4], None),
    ("samples_reversed", "fractional_max_pool2d", GRID, (1, 3, None, True, SAMPLES), PICKED, PICKED),
]


@pytest.mark.parametrize(
    ("name", "x", "args", "values", "indices"), [h[1:] for h in HARD], ids=[h[0] for h in HARD]
)
def test_hard_case(name, x, args, values, indices):
    """PyTorch and the oracle both give the listed result."""
    x = np.array([x])
    x = x.astype(np.float32) if oracle.is_float(x.dtype) else x
    asked = {"return_indices": True} if indices is not None and "fractional" not in name else {}
    case = Case(name, x, "contiguous", args, asked)
    want = (np.array([values]).astype(x.dtype),)
    if indices is not None:
        want += (np.array([indices], np.int64),)
    assert_same(case.call_oracle(), want, case)
    assert_same(case.call_torch(), want, case)


def random_array(*shape: int, seed: int = 0) -> Any:
    """Normally distributed numbers in float64."""
    return np.random.default_rng(seed).normal(size=shape)


GEOMETRIES = [([3, 2], 1, (1, 0), 1, False), ([2, 3], (2, 3), 1, (3, 2), True), ([3, 3], None, 1, 1, True)]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_min_is_max_of_negated(geometry):
    """Minima and their indices, including NaN."""
    x = random_array(2, 3, 8, 7).round(1)
    x[x > 1.5] = nan
    kernel, stride, padding, dilation, ceil = geometry
    values, indices = F.max_pool2d(
        torch.from_numpy(-x), kernel, stride, padding, dilation, ceil, return_indices=True
    )
    got = oracle.min_pool(x, kernel, stride, padding, dilation, ceil)
    np.testing.assert_array_equal(got[0], -values.numpy())
    np.testing.assert_array_equal(got[1], indices.numpy())


def unfolded(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """The windows of a plane as columns of `F.unfold`, padded with 0."""
    columns = F.unfold(
        torch.from_numpy(x)[:, None], kernel, dilation, padding, kernel if stride is None else stride
    )
    return columns.numpy()


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [g[:4] for g in GEOMETRIES])
def test_sums_means_and_powers_over_dilated_windows(kernel, stride, padding, dilation):
    """Reductions that PyTorch lacks, compared with reductions of its unfolded windows (pytorch#14907)."""
    x = np.abs(random_array(2, 8, 7))
    columns = unfolded(x, kernel, stride, padding, dilation)
    real = unfolded(np.ones_like(x), kernel, stride, padding, dilation).sum(1)
    pairs = {
        "sum": (oracle.sum_pool(x, kernel, stride, padding, dilation), columns.sum(1)),
        "avg": (oracle.avg_pool(x, kernel, stride, padding, dilation=dilation), columns.mean(1)),
        "real": (
            oracle.avg_pool(x, kernel, stride, padding, count_include_pad=False, dilation=dilation),
            columns.sum(1) / real,
        ),
        "lp": (
            oracle.lp_pool(x, 3, kernel, stride, padding=padding, dilation=dilation),
            (columns**3).sum(1) ** (1 / 3),
        ),
    }
    for key, (have, need) in pairs.items():
        np.testing.assert_allclose(have.reshape(need.shape), need, rtol=1e-12, err_msg=key)


@pytest.mark.parametrize("ceil", [False, True])
def test_padding_by_sides(ceil):
    """(before, after) pairs equal padding first, except that indices refer to the input (pytorch#17150)."""
    x, pads, kernel, stride = random_array(2, 3, 5, 6), [(2, 0), (1, 3)], [3, 4], 2
    padded = F.pad(torch.from_numpy(x), (*pads[1], *pads[0]), value=-inf)
    values, indices = oracle.max_pool(x, kernel, stride, pads, 1, ceil)
    size = [
        oracle.output_size(n, k, stride, p, 1, ceil)
        for n, k, p in zip(x.shape[-2:], kernel, pads, strict=True)
    ]
    assert values.shape[-2:] == tuple(size)
    want, at = F.max_pool2d(padded, kernel, stride, ceil_mode=ceil, return_indices=True)
    want, at = want[..., : size[0], : size[1]].numpy(), at[..., : size[0], : size[1]].numpy()
    row, column = at // padded.shape[-1] - pads[0][0], at % padded.shape[-1] - pads[1][0]
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(indices, row * x.shape[-1] + column)
    zeros = F.pad(torch.from_numpy(x), (*pads[1], *pads[0]))
    means = F.avg_pool2d(zeros, kernel, stride, ceil_mode=ceil)[..., : size[0], : size[1]].numpy()
    np.testing.assert_allclose(oracle.avg_pool(x, kernel, stride, pads, ceil), means, rtol=1e-12)


def test_four_axes():
    """Four pooled axes, compared with two 2-D pools (tflearn#258)."""
    x, kernel, stride, pad = random_array(2, 5, 4, 6, 5), [2, 3, 2, 3], [1, 2, 2, 1], [1, 0, 1, 1]

    def twice(pool: Callable[..., Any]) -> Any:
        inner = pool(torch.from_numpy(x.reshape(-1, 1, 6, 5)), kernel[2:], stride[2:], pad[2:]).numpy()
        swapped = np.moveaxis(inner.reshape(2, 5, 4, *inner.shape[-2:]), (1, 2), (3, 4))
        outer = pool(torch.from_numpy(swapped.reshape(-1, 1, 5, 4)), kernel[:2], stride[:2], pad[:2]).numpy()
        return np.moveaxis(outer.reshape(*swapped.shape[:3], *outer.shape[-2:]), (3, 4), (1, 2))

    values, indices = oracle.max_pool(x, kernel, stride, pad)
    np.testing.assert_array_equal(values, twice(F.max_pool2d))
    np.testing.assert_array_equal(
        np.take_along_axis(x.reshape(2, -1), indices.reshape(2, -1), -1).ravel(), values.ravel()
    )
    np.testing.assert_allclose(
        oracle.avg_pool(x, kernel, stride, pad), twice(F.avg_pool2d), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("dtype", [BOOL, *INTEGERS], ids=str)
def test_integers_beyond_pytorch(dtype):
    """Every integer dtype gives the results of int64, and sums promote as in NumPy (pytorch#33086)."""
    rng = np.random.default_rng(dtype.num)
    x = (
        rng.integers(0, 2, (2, 3, 7, 6))
        if dtype == BOOL
        else rng.integers(*ends(dtype), (2, 3, 7, 6), endpoint=True)
    )
    wide, x = torch.from_numpy(x), x.astype(dtype)
    values, indices = oracle.max_pool(x, [3, 2], 2, 1)
    want, at = F.max_pool2d(wide, (3, 2), 2, 1, return_indices=True)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values.astype(np.int64), want.numpy())
    np.testing.assert_array_equal(indices, at.numpy())
    least = -F.max_pool2d(-wide, (3, 2), 2, 1).numpy()
    np.testing.assert_array_equal(oracle.min_pool(x, [3, 2], 2, 1)[0].astype(np.int64), least)
    sums = oracle.sum_pool(x, [3, 2], 2, 1)
    assert sums.dtype == np.sum(x).dtype
    np.testing.assert_array_equal(sums, F.avg_pool2d(wide, (3, 2), 2, 1, divisor_override=1).numpy())
    means = oracle.avg_pool(x, [3, 2], 2, 1, count_include_pad=False)
    np.testing.assert_array_equal(
        means, F.avg_pool2d(wide, (3, 2), 2, 1, count_include_pad=False).numpy().astype(dtype)
    )


def ends(dtype: Any) -> tuple[int, int]:
    """The range of a dtype, limited so that sums fit in int64."""
    return max(int(np.iinfo(dtype).min), -(2**40)), min(int(np.iinfo(dtype).max), 2**40)


def test_extremum_of_nothing():
    """The maximum and minimum of an empty window in every dtype."""
    for dtype in DTYPES:
        empty = oracle.max_pool(np.ones((1, 3), dtype), [2], 1, 1, 4)[0]
        lowest = False if dtype == BOOL else -inf if oracle.is_float(dtype) else np.iinfo(dtype).min
        assert empty.dtype == dtype
        assert empty.tolist() == [[lowest]]
        highest = True if dtype == BOOL else inf if oracle.is_float(dtype) else np.iinfo(dtype).max
        assert oracle.min_pool(np.ones((1, 3), dtype), [2], 1, 1, 4)[0].tolist() == [[highest]]


@pytest.mark.parametrize("include", [True, False])
def test_mean_of_nothing(include):
    """The average of an empty window is 0 for any divisor, and has no gradient."""
    geometry = {"kernel": [2], "stride": 1, "padding": 1, "count_include_pad": include, "dilation": 4}
    assert oracle.avg_pool(np.ones((1, 3)), **geometry).tolist() == [[0]]
    assert oracle.avg_pool_backward(np.ones((1, 1)), (3,), **geometry).tolist() == [[0, 0, 0]]


def test_fractional_windows_stay_inside():
    """Rounding in the sample's dtype moves no window beyond the input, where PyTorch's assertion fails."""
    for size, kernel, out in [(250, 1, 245), (250, 3, 218), (300, 2, 260)]:
        windows = oracle.fractional_windows(size, kernel, out, ml_dtypes.bfloat16(0.75))
        assert len(windows) == out
        assert max(window.positions[-1] for window in windows) == size - 1


@pytest.mark.parametrize("norm", [1, 2, 3, 2.5, 4])
def test_lp_gradient_of_zero_window(norm):
    """Where a window sums to zero the gradient is 0, elsewhere PyTorch's (pytorch#6765)."""
    x = np.array([[[0.0, 0, 0, 2, 3, 1]]])
    case = Case("lp_pool1d", x, "contiguous", (norm, 2), {})
    grad = np.array([[[1.0, 2, 3]]])
    want = case.oracle_gradient(grad)
    np.testing.assert_allclose(case.torch_gradient(grad), want, rtol=1e-12)
    assert want[0, 0, :2].tolist() == [0, 0]


def test_half_gradients_accumulate_in_float32():
    """4096 gradients of 1 in half precision sum to 4096 (cubek#639)."""
    for dtype in HALVES:
        grad = np.ones((1, 64, 64), dtype)
        for got in (
            oracle.max_pool_backward(grad, np.zeros(grad.shape, np.int64), (1, 1)),
            oracle.adaptive_avg_pool_backward(grad, (1, 1), [64, 64]),
        ):
            assert got.dtype == dtype
            assert got.tolist() == [[[4096.0]]]


def test_random_cases_are_reproducible_and_cover_everything():
    """A seed determines a case, and cases cover every function, dtype, layout and rare property."""
    first, second = (draw(np.random.default_rng(7), beyond=True) for _ in range(2))
    assert repr(first) == repr(second)
    assert same_bits(first.array(), second.array()).all()
    rng = np.random.default_rng(0)
    drawn = [draw(rng, beyond=True) for _ in range(3000)]
    assert {case.name for case in drawn} == set(NAMES)
    assert {case.values.dtype for case in drawn} == set(DTYPES)
    assert {case.layout for case in drawn} == set(LAYOUTS)
    seen = {
        "empty batch": any(case.values.size == 0 for case in drawn),
        "no batch": any(case.values.ndim == case.n + 1 for case in drawn),
        "empty window": any(has_empty_window(case) for case in drawn),
        "None": any(
            None in case.operands()["output_size"] for case in drawn if case.family == "adaptive_max_pool"
        ),
        "larger": any(
            prod(c.solve()[0].shape) > c.values.size for c in drawn if c.family == "adaptive_avg_pool"
        ),
        "empty output": any(case.solve()[0].size == 0 < case.values.size for case in drawn),
        "negative strides": any(min(case.array().strides) < 0 for case in drawn),
        "zero strides": any(0 in case.array().strides for case in drawn),
        "read-only": any(not case.array().flags.writeable for case in drawn),
        "keywords only": any(not case.args for case in drawn),
        "positional only": any(not case.kwargs for case in drawn),
    }
    assert [what for what, found in seen.items() if not found] == []


def test_layouts_keep_the_values():
    """A layout changes strides, not values; broadcast layouts repeat the first element."""
    x = random_array(2, 3, 4, 5)
    for layout, lay in LAYOUTS.items():
        want = {"broadcast_first": x[:1], "broadcast_last": x[..., :1]}.get(layout, x)
        np.testing.assert_array_equal(lay(x, 2), np.broadcast_to(want, x.shape))
    assert LAYOUTS["channels_last"](x, 2).strides[1] == x.itemsize
    assert LAYOUTS["transposed"](x, 2).strides[2] == x.itemsize
    assert max(LAYOUTS["reversed"](x, 2).strides) < 0
    assert not LAYOUTS["readonly"](x, 2).flags.writeable


def test_bfloat16_round_trip():
    """Conversion to tensors keeps the bits of every bfloat16 for any strides."""
    x = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)
    for view in (x, x[::-1], x[:, ::2], x.T):
        assert to_torch(view).dtype == torch.bfloat16
        np.testing.assert_array_equal(from_torch(to_torch(view)).view(np.uint16), view.view(np.uint16))


MEAN = Case("avg_pool1d", np.array([[1, 2, 3, 4]], np.float32), "contiguous", (2,), {})
BEST = Case("max_pool1d", np.array([[0, nan]], np.float32), "contiguous", (1,), {})


def test_assert_same_detects_signs_of_zero_beside_indices():
    index = np.array([[0, 1]])
    for zero, same in ((0.0, True), (-0.0, False)):
        got = np.array([[zero, nan]], np.float32)
        with contextlib.nullcontext() if same else pytest.raises(AssertionError):
            assert_same((got, index), (BEST.values, index), BEST)
        assert_same((got,), (BEST.values,), BEST)


@pytest.mark.parametrize(
    ("case", "got"),
    [
        (BEST, np.array([[0, 0]], np.float32)),
        (BEST, np.array([[0, nan]], np.float64)),
        (BEST, np.array([0, nan], np.float32)),
        (BEST, np.array([[np.nextafter(np.float32(0), np.float32(1)), nan]], np.float32)),
        (MEAN, np.array([[1.5, 3.50001]], np.float32)),
        (MEAN, np.array([[1.5, nan]], np.float32)),
        (MEAN, np.array([[inf, 3.5]], np.float32)),
    ],
)
def test_assert_same_detects_differences(case, got):
    """NaN, dtype, shape, the last bit of a maximum, more than rounding of an average."""
    want = case.call_oracle()
    assert_same(want, want, case)
    with pytest.raises(AssertionError):
        assert_same((got,), want, case)


def test_assert_same_allows_rounding():
    """The last bit of an average may differ."""
    want = MEAN.call_oracle()
    assert_same((np.nextafter(want[0], np.float32(inf)),), want, MEAN)
