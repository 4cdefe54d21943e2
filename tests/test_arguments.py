"""Geometry, the harder corners: exact cuts, half-precision samples, ranks as PyTorch, hostile arguments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import ndpool
from ndpool import _arguments, _policy, geometry
from ndpool._policy import overlaps_itself

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
F = torch.nn.functional
HUGE = 10**5000


def sliding(sizes=(9, 9), kernel=2, stride=None, padding=0, dilation=1, ceil=False, strict=True):
    return geometry.sliding("f", sizes, kernel, stride, padding, dilation, ceil, strict=strict)


def test_cuts_take_exactly_the_cells_that_windows_touch():
    """With dilation and padding the first cell is not always the first window's."""
    for size, k, s, d in product(range(1, 12), range(1, 7), (1, 2, 3), (1, 2, 3, 5)):
        for p in range(k // 2 + 1):
            if size + 2 * p <= (k - 1) * d:
                continue
            axis = sliding((size,), k, s, p, d).axes[0]
            cells = [
                [i for i in range(o * s - p, o * s - p + k * d, d) if 0 <= i < size] for o in range(axis.out)
            ]
            for o0, o1 in ((a, b) for b in range(1, axis.out + 1) for a in range(b)):
                touched = [i for row in cells[o0:o1] for i in row]
                part, where = axis.cut(o0, o1)
                if touched:
                    assert (where.start, where.stop) == (min(touched), max(touched) + 1)
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
            continue  # PyTorch's rounding left the input
        plan = geometry.fractional(
            "f", (1, size), samples[0].double().numpy().astype(host), (1, k), (1, out), None
        )
        assert plan.axes[1].starts[0].tolist() == first
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(("size", "out"), [(70000, 100), (65494, 2185), (65494, 3073)])
def test_sizes_beyond_the_range_of_the_samples_are_refused(size, out):
    with pytest.raises(ValueError, match=r"f: input size .* beyond the range of float16"):
        geometry.fractional("f", (1, size), np.full((1, 2), 0.01, np.float16), 1, (1, out), None)


CALLS = {
    "max_pool": lambda f, x: f(x, 2),
    "avg_pool": lambda f, x: f(x, 2),
    "lp_pool": lambda f, x: f(x, 2, 2),
    "adaptive_max_pool": lambda f, x: f(x, 2),
    "adaptive_avg_pool": lambda f, x: f(x, 2),
    "fractional_max_pool": lambda f, x: f(x, 2, output_size=2),
    "max_unpool": lambda f, x: f(x, torch.zeros(x.shape, dtype=torch.int64), 2),
}


@pytest.mark.parametrize(
    ("name", "n"), [c for c in product(CALLS, (1, 2, 3)) if c != ("fractional_max_pool", 1)]
)
def test_ranks_and_empty_axes_are_refused_as_by_pytorch(name, n):
    fn = f"{name}{n}d"
    for ndim in range(n - 1, n + 4):
        for shape in product((0, 4), repeat=ndim):
            try:
                CALLS[name](getattr(F, fn), torch.zeros(shape))
            except (RuntimeError, IndexError, ValueError):
                with pytest.raises(ValueError, match=f"^{fn}: input must"):
                    _arguments.check_rank(fn, shape, n)
            else:
                _arguments.check_rank(fn, shape, n)


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
    for value in (HUGE, -HUGE, float("nan"), 0, 0.0):
        with pytest.raises(ValueError, match=r"^f: norm_type"):
            _policy.check_norm("f", value)
    for value in (0, 2**63, HUGE):
        with pytest.raises(ValueError, match=r"^f: divisor_override"):
            _policy.check_divisor("f", value)
    assert [_policy.check_divisor("f", value) for value in (-2, 2**62)] == [-2, 2**62]


def test_absurd_numbers_of_windows_are_refused_before_memory_is_taken():
    """pytorch#91553: no argument kills the interpreter."""
    with pytest.raises(MemoryError, match=r"^f: output_size asks for a table of 2147483647 windows"):
        geometry.adaptive("f", (10,), 2**31 - 1)
    with pytest.raises(MemoryError, match=r"^windows: size"):
        ndpool.windows(2**31 - 1, 1)


def test_shared_tables_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        geometry.adaptive("f", (10,), 7).axes[0].starts[0] = 5


def test_empty_windows_are_found_on_huge_axes_at_once():
    far = 2**31 - 1
    assert ndpool.output_size(far - 1, 3, 1, [(far, far)], far) == far - 1
    with pytest.raises(ValueError, match=f"window {far - 22} contains none"):
        ndpool.output_size(far - 12, 3, 1, [(far - 20, far)], far - 10)


def strided(shape, strides, dtype="float64"):
    """An array of these strides, counted in elements, in memory of its own."""
    item = np.dtype(dtype).itemsize
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    memory = np.zeros(high - low + 1, dtype)
    return as_strided(memory[-low:], shape, [item * s for s in strides])


def test_arrays_that_overlap_themselves_are_known_exactly():
    """Every small shape and stride, against the addresses themselves."""
    for shape in ((3,), (2, 3), (3, 2), (2, 2, 3), (1, 4), (0, 3)):
        for strides in product(range(-7, 8), repeat=len(shape)):
            places = np.zeros(1, int)
            for n, stride in zip(shape, strides, strict=True):
                places = np.add.outer(places, np.arange(n) * stride).ravel()
            for item in (1, 2, 4):
                gaps = np.diff(np.sort(places))
                assert overlaps_itself(shape, strides, item) == bool((gaps < item).any()), (shape, strides)


def test_huge_arrays_that_overlap_themselves_are_known_at_once():
    assert overlaps_itself((2**40, 2**20), (1, 1), 1)
    assert overlaps_itself((2**62,), (0,), 8)
    assert not overlaps_itself((2**20, 2**20), (2**23, 8), 8)
    assert not overlaps_itself((3, 2**40, 2), (2**44, 16, 8), 8)


@pytest.mark.parametrize("strides", [(3, 0), (0, 1), (1, 1), (2, 1), (-1, 1), (0, 0)])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_out_must_not_overlap_itself(framework, strides):
    """What is written to one element would change another."""
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
    """Adaptive windows differ in size: their norm is that of what each holds. A power has a limit."""
    x = make(np.arange(1, 8).reshape(1, 7))
    got = ndpool.adaptive_pool(x, (3,), reduce="lp", norm_type=2)
    assert np.allclose(got, np.sqrt([[1 + 4 + 9, 9 + 16 + 25, 25 + 36 + 49]]))
    for norm in (2**31, 10**30, -2):
        with pytest.raises(ValueError, match=rf"norm_type must be from 1 to {2**31 - 1} .* norm_type={norm}"):
            ndpool.lp_pool1d(x, norm, 2)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_norms_have_no_divisor(make):
    """It was ignored where a derivative was asked for, and for integers on tensors."""
    x = make(np.arange(1.0, 9).reshape(1, 8))
    with pytest.raises(ValueError, match="divisor_override is for averages; got it with reduce='lp'"):
        ndpool.pool(x, (2,), reduce="lp", divisor_override=3)
