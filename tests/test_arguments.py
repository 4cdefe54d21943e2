"""Corner cases of arguments: exact cuts, half-precision samples, PyTorch's ranks, hostile values, `out`."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import ndpool
from ndpool import geometry

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
F = torch.nn.functional
HUGE = 10**5000


def sliding(sizes=(9, 9), kernel=2, stride=None, padding=0, dilation=1, ceil=False, strict=True):
    return geometry.sliding("f", sizes, kernel, stride, padding, dilation, ceil, strict=strict)


def test_cuts_contain_exactly_the_input_that_windows_need():
    """With dilation and padding, the first position needed is not always in the first window."""
    for size, k, s, d in product(range(1, 12), range(1, 7), (1, 2, 3), (1, 2, 3, 5)):
        for p in range(k // 2 + 1):
            if size + 2 * p <= (k - 1) * d:
                continue
            axis = sliding((size,), k, s, p, d).axes[0]
            windows = [
                [i for i in range(o * s - p, o * s - p + k * d, d) if 0 <= i < size] for o in range(axis.out)
            ]
            for o0, o1 in ((a, b) for b in range(1, axis.out + 1) for a in range(b)):
                needed = [i for window in windows[o0:o1] for i in window]
                part, where = axis.cut(o0, o1)
                if needed:
                    assert (where.start, where.stop) == (min(needed), max(needed) + 1)
                for o in range(o0, o1):
                    whole, piece = axis.window(o), part.window(o - o0)
                    assert piece == whole._replace(start=whole.start - where.start)


@pytest.mark.parametrize(
    ("dtype", "host"), [(torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16)]
)
def test_fractional_windows_in_half_precision_equal_pytorch(dtype, host):
    rng = np.random.default_rng(2)
    compared = 0
    for bound in (40, 400, 4000) * 60:
        size = int(rng.integers(1, bound))
        k = int(rng.integers(1, min(size, 5) + 1))
        out = int(rng.integers(1, size - k + 2))
        samples = torch.from_numpy(rng.random((1, 1, 2))).to(dtype)
        x = torch.zeros(1, 1, 1, size, dtype=dtype)
        try:
            first = F.fractional_max_pool2d(x, (1, k), (1, out), None, True, samples)[1].flatten().tolist()
        except RuntimeError:
            continue  # PyTorch's rounding reaches beyond the input
        plan = geometry.fractional(
            "f", (1, size), samples[0].double().numpy().astype(host), (1, k), (1, out), None
        )
        assert plan.axes[1].starts[0].tolist() == first
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(("size", "out"), [(70000, 100), (65494, 2185), (65494, 3073)])
def test_sizes_beyond_the_range_of_the_samples_raise(size, out):
    with pytest.raises(ValueError, match=r"f: input size .* beyond the range of float16"):
        geometry.fractional("f", (1, size), np.full((1, 2), 0.01, np.float16), 1, (1, out), None)


CALLS = {  # of a function, an input and indices
    "max_pool": lambda f, x, i: f(x, 2),
    "avg_pool": lambda f, x, i: f(x, 2),
    "lp_pool": lambda f, x, i: f(x, 2, 2),
    "adaptive_max_pool": lambda f, x, i: f(x, 2),
    "adaptive_avg_pool": lambda f, x, i: f(x, 2),
    "fractional_max_pool": lambda f, x, i: f(x, 2, output_size=2),
    "max_unpool": lambda f, x, i: f(x, i, 2),
}


@pytest.mark.parametrize(
    ("name", "n"), [c for c in product(CALLS, (1, 2, 3)) if c != ("fractional_max_pool", 1)]
)
def test_ranks_and_empty_axes_raise_where_pytorch_does(name, n):
    fn, call = f"{name}{n}d", CALLS[name]
    for ndim in range(n - 1, n + 4):
        for shape in product((0, 4), repeat=ndim):
            arrays = np.zeros(shape), np.zeros(shape, np.int64)
            tensors = tuple(map(torch.from_numpy, arrays))
            try:
                call(getattr(F, fn), *tensors)
            except (RuntimeError, IndexError, ValueError):
                for given in (arrays, tensors):
                    with pytest.raises(ValueError, match=f"^{fn}: input must"):
                        call(getattr(ndpool, fn), *given)
            else:
                for given in (arrays, tensors):
                    call(getattr(ndpool, fn), *given)


@pytest.mark.parametrize("name", ["kernel", "stride", "padding", "dilation"])
def test_wrong_arguments_name_the_function(name):
    """pytorch#189664, pytorch#91553: any Python object gives a clean error."""
    for value in (2**31, 2**63, 10**30, HUGE, -1, (2**63, 2), (2, 2, 2)):
        with pytest.raises(ValueError, match=r"^f: "):
            sliding(**{name: value})
    for value in (
        2.0,
        True,
        np.bool_(True),
        (2, True),
        b"\1\1",
        np.ones(2, int),
        np.array(1.5),
        torch.ones(2),
        1j,
    ):
        with pytest.raises(TypeError, match=r"^f: "):
            sliding(**{name: value})


def test_norms_and_divisors():
    x = np.full((1, 2), 2.0**62)
    for value in (HUGE, -HUGE, float("nan"), 0, 0.0):
        with pytest.raises(ValueError, match=r"^lp_pool1d: norm_type"):
            ndpool.lp_pool1d(x, value, 2)
    for value in (0, 2**63, HUGE):
        with pytest.raises(ValueError, match=r"^avg_pool1d: divisor_override"):
            ndpool.avg_pool1d(x, 2, divisor_override=value)
    assert ndpool.avg_pool1d(x, 2, divisor_override=-2) == -(2.0**62)
    assert ndpool.avg_pool1d(x, 2, divisor_override=2**62) == 2


def test_absurd_numbers_of_windows_raise_before_memory_is_allocated():
    """pytorch#91553: no argument kills the interpreter."""
    with pytest.raises(MemoryError, match=r"^f: output_size asks for a table of 2147483647 windows"):
        geometry.adaptive("f", (10,), 2**31 - 1)
    with pytest.raises(MemoryError, match=r"^windows: size"):
        ndpool.windows(2**31 - 1, 1)


def test_shared_tables_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        geometry.adaptive("f", (10,), 7).axes[0].starts[0] = 5


def test_empty_windows_are_found_quickly_on_huge_axes():
    far = 2**31 - 1
    assert ndpool.output_size(far - 1, 3, 1, [(far, far)], far) == far - 1
    with pytest.raises(ValueError, match=f"window {far - 22} contains none"):
        ndpool.output_size(far - 12, 3, 1, [(far - 20, far)], far - 10)


def strided(shape, strides, dtype="float64"):
    """A new array with these strides, counted in elements."""
    item = np.dtype(dtype).itemsize
    return strided_bytes(shape, [item * s for s in strides], dtype)


def strided_bytes(shape, strides, dtype):
    """A new array with these strides, counted in bytes."""
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True) if n]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    memory = np.zeros(high - low + np.dtype(dtype).itemsize, np.uint8)
    return np.ndarray(shape, dtype, memory.data, -low, strides)


OVERLAPS = "pool: out must not overlap itself"


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_out_is_checked_for_overlap_exactly(dtype):
    """Every small shape and stride, compared with the addresses of the elements."""
    item = np.dtype(dtype).itemsize
    for shape in ((3,), (2, 3), (3, 2), (2, 2, 3), (1, 4), (0, 3)):
        x = np.arange(prod(shape), dtype=dtype).reshape(shape)
        for strides in product(range(-7, 8), repeat=len(shape)):
            addresses = np.zeros(1, int)
            for n, stride in zip(shape, strides, strict=True):
                addresses = np.add.outer(addresses, np.arange(n) * stride).ravel()
            out = strided_bytes(shape, strides, dtype)
            if (np.diff(np.sort(addresses)) < item).any():
                with pytest.raises(ValueError, match=OVERLAPS):
                    ndpool.pool(x, (1,), out=out)
            else:
                assert np.array_equal(ndpool.pool(x, (1,), out=out), x), (shape, strides)


@pytest.mark.parametrize(
    ("dtype", "shape", "strides", "overlaps"),
    [
        ("uint8", (2**36, 2**20), (1, 1), True),
        ("float64", (2**31,), (0,), True),
        ("float64", (2**20, 2**20), (2**23, 8), False),
        ("float64", (3, 2**40, 2), (2**44, 16, 8), False),
    ],
)
def test_huge_out_is_checked_for_overlap_quickly(dtype, shape, strides, overlaps):
    """No memory is touched: if `out[0]` passes, `out[1]` raises."""
    x = np.broadcast_to(np.zeros((), dtype), shape)
    out = as_strided(np.zeros(1, dtype), shape, strides)
    indices = as_strided(np.zeros(1, np.int64), shape, [0] * len(shape))
    name = "out" if overlaps else r"out\[1\]"
    with pytest.raises(ValueError, match=rf"pool: {name} must not overlap itself"):
        ndpool.pool(x, (1,), return_indices=True, out=(out, indices))


@pytest.mark.parametrize("strides", [(3, 0), (0, 1), (1, 1), (2, 1), (-1, 1), (0, 0)])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_out_must_not_overlap_itself(framework, strides):
    """Writing one element would change another."""
    x, own = np.arange(36.0).reshape(6, 6), np.zeros((3, 3))
    overlapping, indices = strided((3, 3), strides), np.zeros((3, 3), int)
    twice = strided((3, 3), strides, "int64")
    if framework == "torch":
        if min(strides) < 0:
            pytest.skip("tensors have no negative strides")
        x, own, indices = map(torch.from_numpy, (x, own, indices))
        memory = torch.zeros(9, dtype=torch.float64)
        overlapping = memory.as_strided((3, 3), strides)
        twice = memory.long().as_strided((3, 3), strides)
    for name, call in {
        "out": lambda: ndpool.pool(x, (2, 2), out=overlapping),
        "out ": lambda: ndpool.max_pool2d(x[None], 2, out=overlapping[None]),
        "out  ": lambda: ndpool.pool(x, (2, 2), out=(overlapping, indices), return_indices=True),
        r"out\[1\]": lambda: ndpool.pool(x, (2, 2), out=(own, twice), return_indices=True),
    }.items():
        with pytest.raises(
            ValueError, match=rf"pool(2d)?: {name.strip()} must not overlap itself; got strides="
        ):
            call()
    assert not np.asarray(overlapping).any()


def test_out_may_be_any_view_that_does_not_overlap_itself():
    x = np.arange(144.0).reshape(3, 4, 12)
    want = ndpool.pool(x, (2, 2))
    for strides in ((12, 6, 1), (1, 3, 6), (-12, 6, -1), (7, 50, 1), (2, 3, 8), (40, 3, 6)):
        out = strided(want.shape, strides)
        got = ndpool.pool(x, (2, 2), out=out)
        assert got is out
        assert np.array_equal(out, want), strides


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_integer_norms_are_the_same_for_arrays_and_tensors(make):
    """An adaptive norm is that of each window's elements, whatever its size; the power has a limit."""
    x = make(np.arange(1, 8).reshape(1, 7))
    got = ndpool.adaptive_pool(x, (3,), reduce="lp", norm_type=2)
    assert np.allclose(got, np.sqrt([[1 + 4 + 9, 9 + 16 + 25, 25 + 36 + 49]]))
    for norm in (2**31, 10**30, -2):
        with pytest.raises(ValueError, match=rf"norm_type must be from 1 to {2**31 - 1} .* norm_type={norm}"):
            ndpool.lp_pool1d(x, norm, 2)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_lp_pooling_has_no_divisor(make):
    """It must not be ignored silently, as it once was for derivatives and integer tensors."""
    x = make(np.arange(1.0, 9).reshape(1, 8))
    with pytest.raises(ValueError, match="divisor_override is for averages; got it with reduce='lp'"):
        ndpool.pool(x, (2,), reduce="lp", divisor_override=3)
