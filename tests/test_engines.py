"""Sizes that reach every engine of the core, on every instruction set, compared with PyTorch.

Random calls elsewhere are small; here rows, channels and planes are large enough for the vector paths, with
and without a few NaNs, infinities and zeros of both signs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
import pytest

import ndpool
from ndpool._native import core

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("poisoned")]

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32]
SLIDING = [
    ((2, 3, 130, 300), (2,)),  # long contiguous rows
    ((1, 2, 65, 257), (3, 2, 1)),
    ((1, 2, 40, 1030), (3, 2, 1)),  # rows of several pages
    ((2, 2, 31, 520), (2, 2, 1)),
    ((40, 9, 14, 14), (2,)),  # planes of a single strip
    ((40, 9, 13, 13), (3, 2)),
    ((9, 40, 28, 28), (3, 2, 1)),
    ((11, 7, 7, 7), (3, 2, 1)),  # planes of short rows
    ((11, 7, 7, 9), (2,)),
    ((5, 9, 15, 31), (2, 2, 1)),
    ((5, 9, 14, 16), (3, 2, 1)),
    ((1, 3, 5, 3), (3, 2)),
    ((1, 17, 33, 40), (3, 1, 1)),
    ((2, 17, 20, 20), (5, 1, 2)),
    ((1, 300, 9, 11), (2,)),
    ((2, 480, 9, 9), (3, 2, 1)),
    ((1, 64, 23, 21), (3, 2, 1)),
    ((1, 145, 11, 10), (7, 1, 3)),
]
LONG = [  # several blocks of rows
    ((2, 3, 70, 300), (4, 1, 2)),
    ((1, 2, 80, 130), (17, 1, 8)),
    ((2, 9, 28, 28), (21, 1, 10)),
    ((1, 1, 100, 260), (31, 1, 15)),
]
DILATED = [
    ((3, 9, 33, 32), (3, 2, 1, 1, True)),  # no dilation, but a partial last window
    ((2, 3, 130, 300), (3, 2, 1, 2)),
    ((2, 2, 31, 520), (2, 2, 1, 3)),
    ((40, 9, 14, 14), (2, 2, 0, 2)),
    ((9, 40, 28, 28), (3, 2, 1, 2)),
    ((8, 9, 28, 28), (3, (1, 2), 1, (2, 3))),
    ((8, 9, 27, 29), (3, (2, 1), 1, (3, 2))),
    ((1, 17, 33, 40), (3, 1, 1, 2)),
    ((1, 17, 33, 40), (3, 1, 1, (1, 3))),
    ((2, 5, 33, 90), (3, 2, 1, 9)),
    ((1, 64, 23, 21), (2, 2, 1, 5)),
]
ADAPTIVE = [
    ((5, 33, 7, 7), 1),  # planes side by side
    ((2, 40, 14, 14), 1),
    ((3, 19, 10, 10), 1),
    ((2, 3, 56, 60), 1),
    ((3, 7, 12, 40), 1),
    ((2, 3, 20, 100), 1),
    ((2, 5, 28, 28), 7),  # window widths that divide a vector
    ((2, 5, 16, 56), (2, 7)),
    ((1, 3, 16, 164), (4, 41)),
    ((1, 3, 17, 136), (2, 17)),
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


def data(shape, dtype, last, special):
    rng = np.random.default_rng(len(shape) + shape[-1])
    x = rng.integers(-60, 60, shape).astype(np.float32)
    if special:
        for value in (np.nan, np.inf, -np.inf, -0.0, -0.0, 0.0):
            x[rng.random(shape) < 2e-3] = value
        x[0, 0], x[-1, -1] = -np.inf, -0.0
        x[0, -1] = rng.choice(np.float32([-1, -0.0, 0.0]), shape[2:])
    t = torch.from_numpy(x).to(dtype)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if last else t


def assert_same(got, want, signs=True):
    """Equal to the bit, NaN like NaN; without `signs` a zero may have either sign."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.is_floating_point:
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num(77.0), want.nan_to_num(77.0)
        assert not signs or torch.equal(got.signbit(), want.signbit())
    assert torch.equal(got, want)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_max_pooling(isa, dtype, last, special):
    """microsoft/onnxruntime#29637: dilated windows that start in the padding, values and indices."""
    for shape, args in SLIDING + DILATED + LONG:
        x = data(shape, dtype, last, special)
        want, where = torch.nn.functional.max_pool2d(x, *args, return_indices=True)
        assert_same(ndpool.max_pool2d(x, *args), want, signs=False)
        got, index = ndpool.max_pool2d(x, *args, return_indices=True)
        assert_same(got, want)
        assert torch.equal(index, where), (shape, args)
    for shape, size in ADAPTIVE:
        x = data(shape, dtype, last, special)
        want, where = torch.nn.functional.adaptive_max_pool2d(x, size, return_indices=True)
        assert_same(ndpool.adaptive_max_pool2d(x, size), want, signs=False)
        got, index = ndpool.adaptive_max_pool2d(x, size, return_indices=True)
        assert_same(got, want)
        assert torch.equal(index, where), (shape, size)


FEW = [  # few windows: many elements each, few channels, a single row
    ((1, 8, 14, 224), (2, 2)),
    ((2, 3, 60, 75), (3, 2)),
    ((3, 20, 33, 41), (1, 1)),
    ((1, 70, 19, 30), (2, 3)),
    ((2, 1, 1, 700), (1, 3)),
    ((4, 64, 1, 20), (1, 1)),
]


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_few_large_windows(isa, dtype, last, special):
    """Indices are searched for (the first of equals, the last NaN), gradients scattered in rising order."""
    for shape, size in FEW:
        x = data(shape, dtype, last, special).requires_grad_()
        want, where = torch.nn.functional.adaptive_max_pool2d(x, size, return_indices=True)
        got, index = ndpool.adaptive_max_pool2d(x, size, return_indices=True)
        assert_same(got, want)
        assert torch.equal(index, where), (shape, size)
        up = (torch.arange(1.0, 1 + want.numel()) % 7).reshape(want.shape).to(dtype)  # sums are exact
        expected, grad = (torch.autograd.grad(y, x, up)[0] for y in (want, got))
        assert torch.equal(grad, expected), (shape, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "args", [(2, 2, 1), (3, 2, 1), (3, 3, 1), (4, 4, 1), (5, 5, 2), (7, 7, 3), (7, 2, 3)]
)
def test_single_rows(isa, dtype, args):
    """A row without neighbours in memory: vectors may reach over neither of its ends."""
    for length in (7, 19, 95, 2899):
        x = data((1, 1, length), torch.float32, False, False).abs().to(dtype)
        want = torch.nn.functional.max_pool1d(x.to(torch.float64), *args)
        assert_same(ndpool.max_pool1d(x, *args).to(torch.float64), want, signs=False)
        got, index = ndpool.max_pool1d(x, *args, return_indices=True)
        assert_same(got.to(torch.float64), want, signs=False)
        assert_same(x[0, 0][index[0, 0]].to(torch.float64), want[0, 0])


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "float32"])
def test_windows_of_more_rows_than_a_byte_counts(isa, name):
    """The best comes early and late, in rows that vectors may read beyond and in those they may not."""
    for tall, wide in product((255, 256, 257, 300, 513, 700), (1, 3, 70, 400, 1300)):
        x = np.random.default_rng(tall).integers(0, 100, (2, tall, wide)).astype(name)
        x[0, 5], x[1, tall - 3] = 101, 101
        for columns in {1, wide}:
            kernel = (tall, columns)
            folded = x.reshape(2, tall, wide // columns, columns)
            for reduce in ("max", "min"):
                want = getattr(np, reduce)(folded, axis=(1, 3))[:, None]
                got = ndpool.pool(x, kernel, reduce=reduce, axes=(1, 2))
                assert np.array_equal(got, want), (kernel, wide)
            got, index = ndpool.max_pool2d(x, kernel, return_indices=True)
            assert np.array_equal(got, folded.max((1, 3))[:, None])
            rows, within = np.divmod(index, wide)
            first = folded.transpose(0, 2, 1, 3).reshape(2, wide // columns, -1).argmax(2)[:, None]
            assert np.array_equal(rows * columns + within % columns, first), (kernel, wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_long_window_in_a_row(isa, dtype):
    """The same bits whether the array ends with the row or not."""
    x = torch.randn(70_003, generator=torch.Generator().manual_seed(7), dtype=dtype)
    for n in (33, 100, 511, 700, 5000, 70_003):
        row = x[-n:].clone()[None, None]
        want = ndpool.avg_pool1d(torch.cat((row, row), 2), n)[..., :1]
        for got in (ndpool.adaptive_avg_pool1d(row, 1), ndpool.avg_pool1d(row, n)):
            assert torch.equal(got, want), n
        assert torch.equal(ndpool.max_pool1d(row, n, 3), row.amax(2, keepdim=True))


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_long_sums_have_one_order(isa, last):
    """Rows of more than 512 elements are sums of blocks, the same in every layout and in every batch."""
    for length in (33, 100, 2311):
        x = torch.from_numpy(np.random.default_rng(3).random((3, 17, 1, length), np.float32))
        y = x.contiguous(memory_format=torch.channels_last) if last else x
        for size in ((1, 1), (1, 3)):
            planes = x.flatten(0, 1)[:, None]
            alone = torch.stack([ndpool.adaptive_avg_pool2d(plane, size) for plane in planes])
            assert torch.equal(ndpool.adaptive_avg_pool2d(y, size).reshape(alone.shape), alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_max_pooling_of_empty_windows(isa, dtype):
    """Dilation so large that taps skip all three rows, in many small planes."""
    for shape in ((50, 1, 3, 100), (7, 2, 3, 300), (50, 1, 3, 20)):
        x = (data(shape, torch.float32, False, False) + 60).to(dtype)
        for kernel, columns in ((2, 1), (2, 2), ((2, 3), 1), ((2, 3), 2)):
            args = (kernel, 2, 1, (4, columns))
            want, where = torch.nn.functional.max_pool2d(x, *args, return_indices=True)
            assert_same(ndpool.max_pool2d(x, *args), want)
            got, index = ndpool.max_pool2d(x, *args, return_indices=True)
            assert_same(got, want)
            assert torch.equal(index, where)


@lru_cache(None)
def ranks(shape, name, *args):
    """Numbers from 0 to 127 with PyTorch's maxima: valid for every dtype with that range."""
    x = np.random.default_rng(shape[-1]).integers(0, 128, shape)
    want, where = getattr(torch.nn.functional, name)(torch.from_numpy(x).float(), *args, return_indices=True)
    return x, want.numpy().astype(np.int64), where.numpy()


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"])
def test_max_pooling_of_integers(isa, name, last):
    """pytorch#109586, deeplearning4j#8943: negative values, both layouts, with and without indices."""
    info = np.iinfo(name)
    values = np.arange(128) - (64 if info.min < 0 else 0)
    values[0], values[-1] = info.min, info.max
    values = values.astype(name)
    calls = [("max_pool2d", shape, *args) for shape, args in SLIDING + DILATED + LONG]
    calls += [("adaptive_max_pool2d", shape, size) for shape, size in ADAPTIVE]
    for function, shape, *args in calls:
        x, want, where = ranks(shape, function, *args)
        x = values[x]
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if last else x
        got, index = getattr(ndpool, function)(x, *args, return_indices=True)
        assert got.dtype == x.dtype
        assert np.array_equal(got, values[want]), (function, shape, args)
        assert np.array_equal(index, where), (function, shape, args)
        assert np.array_equal(getattr(ndpool, function)(x, *args), got), (function, shape, args)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_average_pooling(isa, dtype, last, special):
    calls = [("avg_pool2d", shape, args) for shape, args in SLIDING + LONG]
    calls += [("adaptive_avg_pool2d", shape, (size,)) for shape, size in ADAPTIVE]
    for name, shape, args in calls:
        x = data(shape, dtype, last, special)
        want = getattr(torch.nn.functional, name)(x, *args)
        got = getattr(ndpool, name)(x, *args)
        assert got.dtype == dtype
        # Sums of integers are exact, so only the division rounds.
        torch.testing.assert_close(got, want, rtol=2e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
def test_integer_averages_equal_64_bit_sums(isa, name, last):
    """pytorch#139115: extreme values, divisors of both signs, wrapping."""
    low, high = np.iinfo(name).min, np.iinfo(name).max
    calls = [
        (shape, {"kernel_size": args[0], "stride": args[1] if args[1:] else None}) for shape, args in SLIDING
    ]
    calls += [((2, 3, 70, 90), {"kernel_size": (31, 33), "stride": 1, "padding": (15, 16)})]
    calls += [((2, 3, 70, 90), {"kernel_size": 6, "stride": 5, "padding": 2, "ceil_mode": True})]
    calls += [((1, 2, 300, 310), {"kernel_size": (290, 300)})]
    calls += [
        ((2, 5, 33, 40), {"kernel_size": 3, "divisor_override": by})
        for by in (2, 5, 1 << 40, -1, -5)[: 5 if low else 3]
    ]
    for shape, options in calls:
        rng = np.random.default_rng(shape[-1])
        x = rng.choice([low, high, high - 1, low + 1, (low + high) // 2, high], shape).astype(name)
        x[..., : shape[-1] // 2] = high
        if last:
            x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        want = ndpool.avg_pool2d(x.astype(np.int64), **options).astype(name)
        np.testing.assert_array_equal(ndpool.avg_pool2d(x, **options), want, err_msg=f"{shape} {options}")
    for shape, size in ADAPTIVE:
        x = np.random.default_rng(1).integers(low, high, shape, dtype=name, endpoint=True)
        want = ndpool.adaptive_avg_pool2d(x.astype(np.int64), size).astype(name)
        np.testing.assert_array_equal(ndpool.adaptive_avg_pool2d(x, size), want)


IMAGE_WINDOWS = [  # kernel, stride, padding: pairs, one pass, doubling, rows that come and go, one by one
    *((2, 2, 0), (2, 2, 1), (2, 1, 0), (3, 1, 1), (3, 1, 0), ((3, 2), 1, 1), (3, 2, 1), (4, 4, 0), (4, 2, 1)),
    *((6, 2, 0), (8, 4, 2), (9, 1, 4), (9, 9, 0), (5, 3, 2), ((1, 70), (1, 70), 0), ((16, 16), 1, 8)),
    *(((2, 130), (1, 40), 0), ((40, 1), (1, 1), 0), ((30, 3), 30, 0), ((3, 31), (1, 2), (1, 15))),
]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 17, 130])
@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16"])
def test_integer_averages_of_images(isa, name, channels):
    """Interleaved channels, odd sizes, a view with gaps and a reversed one."""
    info, rng = np.iinfo(name), np.random.default_rng(channels)
    x = rng.choice([info.min, info.max, info.max - 1, 0, 1, 99], (61, 2 * 141, channels)).astype(name)
    x[:20, :90] = info.max
    x[20:40, :90] = info.min
    for view in (x[:, :141], x[:, ::2], x[::-1, 140::-1]):
        for kernel, stride, padding in IMAGE_WINDOWS:
            given = {"window": kernel, "stride": stride, "padding": padding, "reduce": "avg", "axes": (0, 1)}
            for counts in (True, False):
                want = ndpool.pool(view.astype(np.int64), **given, count_include_pad=counts).astype(name)
                got = ndpool.pool(view, **given, count_include_pad=counts)
                np.testing.assert_array_equal(got, want, err_msg=f"{given} {counts}")


def test_integer_averages_divide_every_sum_exactly():
    """Sums of 257 bytes are all numbers of 16 bits; products replace their quotients."""
    sums = np.arange(65536)
    x = np.zeros((1, 65536, 257), np.uint8)
    x[0] = sums[:, None] // 257 + (np.arange(257) < sums[:, None] % 257)
    for by in (*range(1, 260), 641, 1000, 4095, 4096, 32767, 40000, 65534, 65535, 65536):
        got = ndpool.avg_pool2d(x, (1, 257), divisor_override=by)[0, :, 0]
        np.testing.assert_array_equal(got, (sums // by).astype(np.uint8), err_msg=str(by))


@pytest.mark.parametrize("name", ["uint16", "int16"])
def test_integer_averages_divide_large_sums_exactly(isa, name):
    """Sums next to multiples of the divisor, up to the largest that 31 bits hold."""
    high, rng = np.iinfo(name).max, np.random.default_rng(5)
    for taps in (4, 9, 81, 1000, 32761):
        for by in (taps, 3, 7, 641, 65537, 1 << 30, (1 << 31) - 1, -taps)[: 8 if name == "int16" else 7]:
            quotients = rng.integers(0, 1 + taps * high // abs(by), 8)
            sums = np.clip((quotients[:, None] * abs(by) + (-1, 0, 1)).ravel(), 0, taps * high)
            sums = np.append(sums, taps * high)
            x = (sums[:, None] // taps + (np.arange(taps) < sums[:, None] % taps)).astype(name)
            signs = (1, -1) if np.iinfo(name).min else (1,)
            for sign in signs:
                got = ndpool.avg_pool2d((x * sign).astype(name)[None], (1, taps), divisor_override=by)
                want = sign * np.sign(by) * (sums // abs(by))
                np.testing.assert_array_equal(got[0, :, 0], want.astype(name), err_msg=f"{taps} {by}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduce", ["avg", "max"])
def test_first_and_last_axes_give_the_same_bits(isa, dtype, reduce):
    """Windows along a first axis are rows folded down, along a last axis rows folded across."""
    rng = np.random.default_rng(8)
    for lanes in (70, 300, 1100):
        x = rng.random((640, lanes)).astype(dtype)
        x[rng.random(x.shape) < 1e-4] = np.nan
        for kernel, stride in ((2, 2), (6, 6), (30, 30), (50, 50), (3, 1), (7, 1), (31, 1), (600, 40)):
            given = {"window": kernel, "stride": stride, "reduce": reduce}
            got = ndpool.pool(x, **given, axes=(0,))
            want = ndpool.pool(np.ascontiguousarray(x.T), **given, axes=(1,)).T
            np.testing.assert_array_equal(got, want, err_msg=f"{lanes} {given}")


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients(isa, dtype, last):
    for shape, args in SLIDING + DILATED:
        x = data(shape, dtype, last, special=False).requires_grad_()
        grads = []
        for module in (torch.nn.functional, ndpool):
            y = module.max_pool2d(x, *args)
            up = (torch.arange(1.0, 1 + y.numel()) % 7).reshape(y.shape).to(dtype)  # sums are exact
            grads += torch.autograd.grad(y, x, up)
        assert torch.equal(grads[0], grads[1]), (shape, args)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_whole_planes(isa, dtype, last):
    """One value per plane, the quotient to the bit: small planes, large ones in parts, few and many lanes."""
    for shape in (
        (3, 5, 7, 7),
        (2, 3, 200, 301),
        (2, 40, 33, 9),
        (1, 2, 1, 1),
        (4, 3, 9, 1),
        (1, 70, 90, 40),
    ):
        x = data(shape, dtype, last, False).requires_grad_()
        up = torch.arange(-3.0, shape[0] * shape[1] - 3).reshape(*shape[:2], 1, 1).to(dtype)
        wide = up.to(torch.float64 if dtype == torch.float64 else torch.float32)
        calls = {
            shape[2] * shape[3]: lambda x: ndpool.adaptive_avg_pool2d(x, 1),
            -7: lambda x, shape=shape: ndpool.avg_pool2d(x, shape[2:], divisor_override=-7),
            (shape[2] + 2) * (shape[3] + 2): lambda x, shape=shape: ndpool.avg_pool2d(
                x, (shape[2] + 2, shape[3] + 2), padding=1
            ),
        }
        for by, call in calls.items():
            (grad,) = torch.autograd.grad(call(x), x, up)
            assert torch.equal(grad, (wide / by).to(dtype).expand(shape)), (shape, by)
            assert grad.stride() == x.stride()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_few_planes_of_short_rows(isa, dtype):
    """Planes that do not fill a vector side by side, and the last ones of many: each gets its own result."""
    for planes, (sizes, args) in product(
        (3, 4, 5, 7, 9, 13, 21, 70), [((9, 8), (4, 2, 1)), ((6, 31), (5, 3, 2)), ((11, 5), (4, 4, 2))]
    ):
        x = data((1, planes, *sizes), dtype, False, special=False)
        got = ndpool.max_pool2d(x, *args, return_indices=True)
        alone = [ndpool.max_pool2d(x[:, k : k + 1], *args, return_indices=True) for k in range(planes)]
        for part, which in zip(got, zip(*alone, strict=True), strict=True):
            assert torch.equal(part, torch.cat(which, 1)), (planes, sizes)
        assert torch.equal(ndpool.max_pool2d(x, *args), got[0])
        mean = ndpool.avg_pool2d(x, *args)
        assert torch.equal(
            mean, torch.cat([ndpool.avg_pool2d(x[:, k : k + 1], *args) for k in range(planes)], 1)
        )
        if dtype.is_floating_point:
            x.requires_grad_()
            for name in ("max_pool2d", "avg_pool2d"):
                y = getattr(ndpool, name)(x, *args)
                up = (torch.arange(1.0, 1 + y.numel()) % 7).reshape(y.shape).to(dtype)
                (grad,) = torch.autograd.grad(y, x, up)
                (want,) = torch.autograd.grad(
                    getattr(torch.nn.functional, name)(x.double(), *args), x, up.double()
                )
                if name == "max_pool2d":  # sums of small integers
                    assert torch.equal(grad, want.to(dtype)), (planes, sizes)
                else:
                    torch.testing.assert_close(grad, want.to(dtype))


PIECES = [  # planes that are pooled side by side, in pieces where they are large or few
    ("max_pool1d", (4, 3, 20_000), (4, 4, 1)),
    ("max_pool1d", (1, 5, 70_001), (5, 3, 2)),
    ("max_pool2d", (2, 4, 3_001, 9), (4, 2, 1)),
    ("max_pool2d", (1, 6, 9, 2_003), ((9, 3), (9, 2))),
    ("max_pool3d", (2, 3, 37, 38, 20), (2, (1, 1, 2), (1, 0, 0), 1, True)),
    ("avg_pool2d", (1, 9, 2_500, 7), ((5, 3), (2, 2), (2, 1))),
    ("avg_pool2d", (1, 9, 2_500, 7), ((5, 3), (2, 2), (2, 1), False, False)),  # divisors differ: in one piece
    ("avg_pool3d", (2, 4, 7, 37, 36), (5, (1, 2, 2))),
    ("avg_pool3d", (1, 6, 90, 11, 13), (3, 2, 1)),
    ("lp_pool2d", (2, 4, 1_714, 9), (2.0, (4, 3), (2, 1))),
    ("lp_pool2d", (2, 4, 1_714, 9), (3.0, (3, 2), (2, 1), True)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("case", PIECES, ids=str)
def test_pieces_of_planes(isa, restore_settings, case, dtype):
    """Each number of threads cuts planes in another way, and none changes a result."""
    name, shape, args = case
    kinds = ["forward"] + ["indices"] * name.startswith("max")
    if name.startswith("lp") and not dtype.is_floating_point:
        return
    x = data(shape, dtype, False, special=False)
    x = x.abs() if name.startswith("lp") else x  # no roots of negative sums
    function, reference = getattr(ndpool, name), getattr(torch.nn.functional, name)
    more = {"indices": {"return_indices": True}, "forward": {}}
    first = {}
    for threads in (1, 2, 3, 8):
        ndpool.set_num_threads(threads)
        found = {kind: function(x, *args, **more[kind]) for kind in kinds}
        if dtype.is_floating_point:
            leaf = x.detach().requires_grad_()
            y = function(leaf, *args)
            up = (torch.arange(1.0, 1 + y.numel()) % 7).reshape(y.shape).to(dtype)
            (found["gradient"],) = torch.autograd.grad(y, leaf, up)
        if first:
            for kind, results in found.items():
                for got, want in zip(*map(tuple_of, (results, first[kind])), strict=True):
                    assert torch.equal(got, want), (kind, threads)
        first = first or found
    if "indices" in first and dtype != torch.bfloat16:
        values, indices = reference(x, *args, return_indices=True)
        assert torch.equal(first["indices"][0], values)
        assert torch.equal(first["indices"][1], indices)
    if dtype == torch.float64:
        leaf = leaf.detach().requires_grad_()
        y = reference(leaf, *args)
        torch.testing.assert_close(function(leaf, *args), y)
        torch.testing.assert_close(first["gradient"], torch.autograd.grad(y, leaf, up)[0])


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_disjoint_windows(isa, dtype, last):
    """Every gradient goes to one input, as it is; zeros of either sign become positive."""
    for shape, args in [
        ((3, 20, 29, 31), (5,)),
        ((2, 3, 40, 9), (7,)),
        ((1, 70, 13, 12), (4, 6, 1)),
        ((4, 17, 8, 8), (2, 4)),
    ]:
        x = data(shape, dtype, last, special=False).requires_grad_()
        y = ndpool.max_pool2d(x, *args)
        up = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        up.view(-1)[::5] = -0.0
        for g in (up, up.mT.contiguous().mT):
            (grad,) = torch.autograd.grad(y, x, g, retain_graph=True)
            (want,) = torch.autograd.grad(torch.nn.functional.max_pool2d(x, *args), x, up)
            assert torch.equal(grad, want), (shape, args)
            assert not torch.signbit(grad[grad == 0]).any()


@pytest.mark.parametrize("stride", [3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_averages_with_stride_3_and_more(isa, dtype, stride):
    """Short rows, rows of several tiles; windows that leave gaps, overlap, or reach over the ends."""
    shapes = [(1, 2, 7), (2, 3, 50), (1, 1, 1000), (1, 2, 70_001), (1, 2, 9, 131)]
    for shape, kernel, padding in product(shapes, (2, stride, 5, 19), (0, 1, 2)):
        if min(shape[2:]) + 2 * padding < kernel or 2 * padding > kernel:
            continue
        grads = []
        for module, compute in ((torch.nn.functional, torch.float64), (ndpool, dtype)):
            x = torch.zeros(shape, dtype=compute, requires_grad=True)
            y = getattr(module, f"avg_pool{len(shape) - 2}d")(x, kernel, stride, padding)
            up = (torch.arange(1.0, 1 + y.numel()) % 7).reshape(y.shape)  # sums are exact, and divided once
            grads += torch.autograd.grad(y, x, up.to(compute))
        torch.testing.assert_close(grads[1], grads[0].to(dtype), msg=f"{shape} {kernel} {padding}")


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "uint16", "int16"])
def test_every_second_and_every_fourth_element(isa, name):
    """Maxima and minima of narrow integers along rows, of every length of a few vectors."""
    rng = np.random.default_rng(12)
    info = None if name == "bool" else np.iinfo(name)
    for length, stride in product((*range(5, 140, 9), 1021), (2, 4)):
        x = rng.integers(0, 2, (3, length)) if info is None else rng.integers(info.min, info.max, (3, length))
        x = x.astype(name)
        for window, reduce in product((2, 4, 5), ("max", "min")):
            want = np.lib.stride_tricks.sliding_window_view(x, window, axis=1)[:, ::stride]
            want = want.max(-1) if reduce == "max" else want.min(-1)
            got = ndpool.pool(x, window, stride=stride, reduce=reduce, axes=(1,))
            assert np.array_equal(got, want), (length, stride, window, reduce)


@pytest.mark.parametrize("channels", [16, 17, 32, 33, 47, 48, 64, 65])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_few_channels(isa, dtype, channels):
    """The same bits for channels that lie side by side, in registers or not, as for single planes."""
    rng = np.random.default_rng(channels)
    for sizes, args in [((9, 8), (4, 2, 1)), ((7, 9), (3, 3)), ((6, 7, 5), (3, 2, 1)), ((5, 4, 6), (2,))]:
        x = rng.standard_normal((2, *sizes, channels)).astype(dtype)
        function = getattr(ndpool, f"avg_pool{len(sizes)}d")
        got = function(np.moveaxis(x, -1, 1), *args)
        for c in range(0, channels, 5):
            assert np.array_equal(got[:1, c], function(np.ascontiguousarray(x[:1, ..., c]), *args)), (
                sizes,
                c,
            )


BOXES = [  # planes, rows and channels that are pooled in several pieces
    ((1, 2, 300, 401), (3, 2)),
    ((1, 1, 257, 700), (5, 1)),
    ((2, 1, 64, 3000), (4, 3)),
    ((1, 1, 3, 90_000), ((2, 7), (1, 2))),
    ((1, 640, 40, 24), (7, 2)),
    ((30, 20, 17, 19), (3, 2)),
]


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_norms(isa, dtype, last):
    """Values and gradients of L2 pooling, in ceil mode too, for arrays of several boxes."""
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3}[dtype]
    for (shape, args), ceil in product(BOXES, (False, True)):
        x = data(shape, dtype, last, False).abs()
        want = torch.nn.functional.lp_pool2d(truth := x.double().requires_grad_(), 2.0, *args, ceil)
        grad = data(want.shape, dtype, last, False)
        (slope,) = torch.autograd.grad(want, truth, grad.double())
        got = ndpool.lp_pool2d(leaf := x.requires_grad_(), 2.0, *args, ceil)
        (found,) = torch.autograd.grad(got, leaf, grad)
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
        magnitude = slope.abs().max().item()
        torch.testing.assert_close(found.double(), slope, rtol=8 * tolerance, atol=tolerance * magnitude)


@pytest.mark.parametrize("norm", [0.5, 1.0, 1.5, 2.5, 3.0, 4.0, 7.0, 8.0, 9.0, 12.0, -1.0, -2.0, -3.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_norms_of_any_exponent(isa, dtype, norm):
    """Whole, broken and negative exponents; zeros, infinities, NaN and negative elements among the rest."""
    x = torch.randn((3, 5, 21, 37), generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    if norm % 2:  # otherwise powers of either sign cancel
        x = x.abs()
    x[0] = x[0].abs()
    special = torch.tensor([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 1e-3]).to(dtype)
    x[1, :, :7, ::2] = special[:, None]
    x[1, 0] = x[1, 0].abs()
    args = (norm, (2, 3), (1, 2))
    want = torch.nn.functional.lp_pool2d(x.double(), *args)
    got = ndpool.lp_pool2d(x, *args)
    if dtype == torch.bfloat16:  # sums are rounded by PyTorch, and its overflows are those of float32
        want = torch.nn.functional.lp_pool2d(x.float(), *args)
    elif dtype == torch.float32:
        small = torch.nn.functional.lp_pool2d(x, *args)
        want = torch.where(small.isfinite() & (small != 0), want, small.double())
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=0, equal_nan=True)


@pytest.mark.parametrize("norm", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_norms_of_any_exponent(isa, dtype, norm):
    x = torch.rand((2, 6, 13, 30), generator=torch.Generator().manual_seed(5), dtype=dtype) + 0.1
    for args in ((3, 2), (4, 1), ((1, 5), 5)):
        slopes = []
        for module, leaf in ((ndpool, x.clone()), (torch.nn.functional, x.double())):
            y = module.lp_pool2d(leaf.requires_grad_(), norm, *args)
            slopes += torch.autograd.grad((y * torch.arange(y.shape[-1])).sum(), leaf)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_windows_with_gaps(isa, dtype):
    """Strides longer than the window, on long and short rows and single planes, with and without indices."""
    for shape in ((1, 2, 1, 3001), (20, 1, 3, 130), (1, 1, 67, 91), (4, 6, 31, 30)):
        x = data(shape, dtype, False, special=False)
        for kernel, stride in product((1, 2, 3, 4, 5, 8, 9, 13, 20, 33), (0, 1, 3, 14)):
            if kernel > shape[3]:
                continue
            window = ((min(kernel, shape[2], 3), kernel), (2, kernel + stride))
            truth = x.double() if x.dtype.is_floating_point else x.to(torch.int64).double()
            want, where = torch.nn.functional.max_pool2d(truth, *window, ceil_mode=True, return_indices=True)
            got, index = ndpool.max_pool2d(x, *window, ceil_mode=True, return_indices=True)
            assert torch.equal(got.double(), want), (shape, window)
            assert torch.equal(index, where), (shape, window)
            assert torch.equal(ndpool.max_pool2d(x, *window, ceil_mode=True).double(), want), (shape, window)
            if dtype in (torch.float32, torch.float64):
                mean = ndpool.avg_pool2d(x, *window, ceil_mode=True).double()
                wanted = torch.nn.functional.avg_pool2d(truth, *window, ceil_mode=True)
                torch.testing.assert_close(mean, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_indices_of_long_windows_in_a_row(isa, dtype):
    """Windows of one long row, found one by one; the first of equal elements, the last NaN."""
    x = data((1, 3, 1, 9000), dtype, False, special=dtype.is_floating_point)[:, :2]
    truth = x if x.dtype.is_floating_point else x.to(torch.int64).double()
    for size in (1, 2, 7, 100, 450, 1000, 3001):
        want, where = torch.nn.functional.adaptive_max_pool2d(truth, (1, size), return_indices=True)
        got, index = ndpool.adaptive_max_pool2d(x, (1, size), return_indices=True)
        assert torch.equal(index, where), size
        assert_same(got.to(truth.dtype), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_channels_last_volumes(isa, dtype):
    """Boxes of several depths, on one thread and on two."""
    for shape, args in [
        ((1, 200, 7, 18, 19), (3, 1, 1)),
        ((1, 130, 9, 20, 13), (3, 2, 1)),
        ((2, 96, 5, 33, 9), (2, 1)),
    ]:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(6)).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last_3d).requires_grad_()
        want = torch.nn.functional.max_pool3d(x.double(), *args)
        up = torch.arange(want.numel()).remainder(5).reshape(want.shape).double()
        (slope,) = torch.autograd.grad(want, x, up)
        for threads in (1, 2):
            ndpool.set_num_threads(threads)
            (found,) = torch.autograd.grad(ndpool.max_pool3d(x, *args), x, up.to(dtype))
            assert torch.equal(found, slope), (shape, threads)


@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "NHWC"])
def test_norms_of_long_windows_that_are_cut_off(isa, last):
    """The same bits in both layouts, whichever engine takes them."""
    x = torch.rand((1, 16, 8, 2500), generator=torch.Generator().manual_seed(2))
    want = ndpool.lp_pool2d(x, 2.0, (2, 33), (1, 5), True)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(ndpool.lp_pool2d(x, 2.0, (2, 33), (1, 5), True), want)
    assert torch.equal(ndpool.lp_pool2d(x[..., :2498], 2.0, (2, 33), (1, 5)), want[..., :494])


def test_norms_of_windows_around_the_input(isa):
    """Gradients where the first inputs belong to no window, and where hardly any tap meets the input."""
    for size, window, geometry in [
        (12, 3, {"stride": 3, "dilation": 50, "padding": 45}),
        (400, 2, {"stride": 1, "dilation": 300}),
        (400, 200, {"stride": 1}),
    ]:
        x = torch.rand(2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        leaf = x.requires_grad_()
        ndpool.pool(leaf, window, reduce="lp", axes=(1,), **geometry).sum().backward()
        truth = x.detach().requires_grad_()
        sums = ndpool.pool(truth * truth, window, reduce="sum", axes=(1,), **geometry)
        sums[sums > 0].sqrt().sum().backward()
        torch.testing.assert_close(leaf.grad, truth.grad)


@pytest.mark.parametrize("args", [(5, 1), (3, 2), ((1, 40), (1, 3)), (7, 4)], ids=str)
def test_norms_do_not_depend_on_boxes(isa, args):
    """The same bits for a part of an array, for other layouts and for every number of threads."""
    x = torch.rand((3, 300, 500), generator=torch.Generator().manual_seed(1))
    kernel, stride = ((n, n) if isinstance(n, int) else n for n in args)
    want = ndpool.lp_pool2d(x, 2.0, kernel, stride)
    first = [4 * s for s in stride]
    part = ndpool.lp_pool2d(x[1:2, first[0] : 60, first[1] : 90], 2.0, kernel, stride)
    rows, columns = part.shape[1:]
    assert torch.equal(part, want[1:2, 4 : 4 + rows, 4 : 4 + columns])
    channels = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert torch.equal(ndpool.lp_pool2d(channels, 2.0, kernel, stride), want)
    before = ndpool.get_num_threads()
    try:
        ndpool.set_num_threads(3)
        assert torch.equal(ndpool.lp_pool2d(x, 2.0, kernel, stride), want)
    finally:
        ndpool.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sparse_gradients_of_halves_are_rounded_once(dtype):
    """Gradients that meet in one input add up in float32, also after their sum has come to zero."""
    x = torch.zeros(4, 100, dtype=dtype)
    x[:, 50] = 1  # the maximum of all three windows
    x.requires_grad_()
    y = ndpool.max_pool1d(x, 60, 20)
    tiny, small = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).eps / 4
    grad = torch.tensor([[1, -1, 0.25], [tiny, -0.0, -tiny], [1, small, -1], [small, 3, small]], dtype=dtype)
    y.backward(grad)
    wanted = torch.zeros(4, 100)
    wanted[:, 50] = grad.float().cumsum(1)[:, -1]
    assert torch.equal(x.grad, wanted.to(dtype))
    assert not torch.signbit(x.grad).any()
    assert ndpool.explain(ndpool.max_pool1d, x, 60, 20).backward.engine == "max_backward_scatter"


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2**50), (2, 2**50), (4, 2**62), (5, 2**62), (5, -(2**62)), (6, -(2**62)), (10, 2**63 - 1)],
)
def test_the_core_refuses_plans_whose_indices_could_overflow(place, value):
    """No array is so large; sizes of scratch memory computed from such plans would wrap."""
    from ndpool._native import core

    axis = [10, 1, 2, 2, 1, 0, 0, 10, None, None, 2, 0]
    core.Plan([tuple(axis)])
    axis[place] = value
    with pytest.raises(RuntimeError, match="bad axis"):
        core.Plan([tuple(axis)])


@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum", "lp"])
@pytest.mark.parametrize("name", ["float32", "float64", "int16", "uint8", "uint32", "bool"])
def test_axes_of_single_elements(isa, name, reduce):
    """Windows of one element along an axis leave it as it is; those along other axes see no difference."""
    if reduce in ("avg", "lp") and name in ("bool", "uint32"):
        return
    rng = np.random.default_rng(3)
    x = rng.integers(0, 200, (6, 21, 5, 33)).astype(name)
    views = [x, x[:, ::2], np.swapaxes(x, 1, 3), x[..., ::-1], x[:, :, :1], x[..., :1]]
    rtol = 1e-6 if reduce == "lp" else 0  # sums of whole numbers are exact in any order
    how = {"reduce": reduce} | ({"norm_type": 3} if reduce == "lp" else {})
    for view, axes in product(views, [(0,), (1,), (2,), (3,), (0, 2), (1, 3)]):
        every = tuple(range(4))
        window, stride = [1] * 4, [1] * 4
        for axis in axes:
            window[axis], stride[axis] = min(3, view.shape[axis]), 2
        want = ndpool.pool(
            view, [window[a] for a in axes], stride=[stride[a] for a in axes], axes=axes, **how
        )
        got = ndpool.pool(view, window, stride=stride, axes=every, **how)
        np.testing.assert_allclose(got, want, rtol)
        single = [a for a in every if a not in axes]
        for axis in single:  # every second element of it
            stride[axis] = 2
        got = ndpool.pool(view, window, stride=stride, axes=every, **how)
        every_second = tuple(slice(None, None, 2) if a in single else slice(None) for a in every)
        np.testing.assert_allclose(got, want[every_second], rtol)
    copies = ndpool.pool(views[1], (1, 1), axes=(1, 2), **how)
    np.testing.assert_allclose(copies, views[1].astype(copies.dtype), rtol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_and_indices_beside_axes_of_single_elements(isa, dtype):
    for last, (kernel, stride) in product(
        (False, True),
        [((1, 3, 3), (1, 2, 1)), ((3, 1, 3), (1, 1, 3)), ((2, 2, 1), 1), ((1, 1, 4), (2, 1, 2))],
    ):
        x = data((2, 5, 8, 9, 13), dtype, last, special=False)
        got, want = (
            module.max_pool3d(x, kernel, stride, return_indices=True)
            for module in (ndpool, torch.nn.functional)
        )
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
        for name in ("max_pool3d", "avg_pool3d"):
            slopes = []
            for module, leaf in ((ndpool, x.clone()), (torch.nn.functional, x.double())):
                y = getattr(module, name)(leaf.requires_grad_(), kernel, stride)
                up = (torch.arange(1.0, 1 + y.numel()) % 7).reshape(y.shape).to(y.dtype)
                slopes += torch.autograd.grad(y, leaf, up)
            tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_short_axes_that_are_contiguous_together(isa, name):
    """Along a first or middle axis, the axes behind it form one row, however short each is."""
    rng = np.random.default_rng(4)
    for shape, axis, window in [
        ((5, 8, 7, 3), 0, 3),
        ((22, 733, 16), 0, 8),
        ((3, 9, 31, 5), 1, 4),
        ((40, 2, 2), 0, 5),
    ]:
        x = rng.integers(0, 200, shape).astype(name)
        for stride in (1, 2, window):
            windows = np.lib.stride_tricks.sliding_window_view(x, window, axis)
            windows = windows[(slice(None),) * axis + (slice(None, None, stride),)]
            for reduce, of in (("max", np.max), ("min", np.min), ("sum", np.sum)):
                got = ndpool.pool(x, window, stride=stride, axes=axis, reduce=reduce)
                np.testing.assert_array_equal(got, of(windows, -1).astype(got.dtype))
            got = ndpool.pool(x, window, stride=stride, axes=axis, reduce="avg")
            want = windows.astype(np.float64).mean(-1)
            want = np.trunc(want) if got.dtype.kind in "iu" else want
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16"])
def test_integer_averages_of_short_rows(isa, name):
    rng = np.random.default_rng(5)
    low, high = np.iinfo(name).min, np.iinfo(name).max
    for shape, axes, window in [
        ((37, 29, 16), (2,), 16),
        ((500, 12), (1,), 4),
        ((8, 90, 4), (0, 2), (2, 4)),
        ((70, 31), (1,), 31),
    ]:
        x = rng.integers(low, high, shape, name, endpoint=True)
        for stride in (window, 1):
            want = ndpool.pool(x.astype(np.float64), window, stride=stride, axes=axes, reduce="avg")
            got = ndpool.pool(x, window, stride=stride, axes=axes, reduce="avg")
            same = ndpool.pool(
                x[::-1][::-1].copy(), window, stride=stride, axes=axes, reduce="avg", dtype="float64"
            )
            np.testing.assert_array_equal(
                got, np.trunc(want) if got.dtype.kind in "iu" else want.astype(got.dtype)
            )
            np.testing.assert_allclose(same, want, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_threads_share_the_channels_of_single_outputs(isa, restore_settings, dtype):
    for shape in ((1, 100, 12, 18, 28), (1, 512, 4, 50, 40), (2, 98, 7, 60, 60)):
        x = data(shape, dtype, True, special=True)
        first = None
        for threads in (1, 2, 3, 8):
            ndpool.set_num_threads(threads)
            found = [
                *ndpool.adaptive_max_pool3d(x, 1, return_indices=True),
                ndpool.adaptive_max_pool3d(x, (1, 1, 2)),
                ndpool.adaptive_avg_pool3d(x, 1),
            ]
            first = first or found
            for got, want in zip(found, first, strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        want = torch.nn.functional.adaptive_max_pool3d(x, 1, return_indices=True)
        torch.testing.assert_close(first[0], want[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(first[1], want[1])


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, 1.5])
def test_gradients_of_norms_where_they_are_zero(isa, norm):
    """Zero where the norm is zero; elsewhere PyTorch's, also of zeros among others in a window."""
    x = torch.rand((1, 3, 8, 12), generator=torch.Generator().manual_seed(6), dtype=torch.float64) + 0.1
    x[:, 1, :4] = 0
    x[:, 2, ::3] = 0
    x.requires_grad_()
    (got,) = torch.autograd.grad(ndpool.lp_pool2d(x, norm, 2).sum(), x)
    (want,) = torch.autograd.grad(torch.nn.functional.lp_pool2d(x, norm, 2).sum(), x)
    assert not got[:, 1, :4].any()
    where = torch.ones_like(got, dtype=torch.bool)
    where[:, 1, :4] = False
    torch.testing.assert_close(got[where], want[where])


VOLUMES = [
    ((2, 3, 9, 21, 40), 3, 1, 1),
    ((1, 2, 40, 33, 70), (3, 5, 2), 1, (1, 2, 0)),
    ((1, 1, 70, 12, 35), (9, 2, 3), (2, 1, 1), (4, 1, 1)),
    ((2, 40, 6, 10, 12), 5, 1, 2),  # short rows
    ((3, 20, 7, 9, 37), 5, 2, 2),
    ((1, 2, 20, 50, 300), (4, 3, 3), (1, 2, 1), (2, 1, 0)),  # several boxes along both axes
    ((1, 1, 12, 300, 64), (2, 7, 1), 1, 0),
]


@pytest.mark.parametrize("last", [False, True], ids=["NCDHW", "NDHWC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_volumes(isa, restore_settings, dtype, last):
    """Maxima of overlapping windows along three axes, with NaN, on several threads, into strided results."""
    for shape, kernel, stride, padding in VOLUMES:
        x = data(shape, dtype, last, special=True)
        want = torch.nn.functional.max_pool3d(x, kernel, stride, padding)
        for threads in (1, 3):
            ndpool.set_num_threads(threads)
            got = ndpool.max_pool3d(x, kernel, stride, padding)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            low = ndpool.pool(-x, kernel, stride=stride, padding=padding, axes=(2, 3, 4), reduce="min")
            torch.testing.assert_close(-low, want, rtol=0, atol=0, equal_nan=True)
        out = torch.full((*want.shape[:-1], 2 * want.shape[-1]), 7.0, dtype=dtype)
        ndpool.max_pool3d(x, kernel, stride, padding, out=out[..., ::2])
        torch.testing.assert_close(out[..., ::2], want, rtol=0, atol=0, equal_nan=True)
        assert (out[..., 1::2] == 7).all()


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "bool"])
def test_volumes_of_integers(isa, name):
    rng = np.random.default_rng(8)
    for shape, kernel, stride, _ in VOLUMES:
        x = rng.integers(0, 2 if name == "bool" else 120, shape).astype(name)
        for view in (x, x[:, :, ::-1, :, ::2], np.moveaxis(x, 1, -1).copy().swapaxes(-1, 1)):
            for reduce, of in (("max", np.max), ("min", np.min)):
                window = (kernel,) * 3 if isinstance(kernel, int) else kernel
                steps = (stride,) * 3 if isinstance(stride, int) else stride
                window = tuple(map(min, window, view.shape[2:]))
                taken = np.lib.stride_tricks.sliding_window_view(view, window, (2, 3, 4))
                want = of(taken[:, :, :: steps[0], :: steps[1], :: steps[2]], (-3, -2, -1))
                got = ndpool.pool(view, window, stride=steps, axes=(2, 3, 4), reduce=reduce)
                np.testing.assert_array_equal(got, want)
                dilated = ndpool.pool(
                    view, (2, 2, 2), stride=1, dilation=(3, 2, 1), axes=(2, 3, 4), reduce=reduce
                )
                ends = [slice(0, n - d) for n, d in zip(view.shape[2:], (3, 2, 1), strict=True)]
                starts = [slice(d, None) for d in (3, 2, 1)]
                corners = [view[(..., *corner)] for corner in product(*zip(ends, starts, strict=True))]
                np.testing.assert_array_equal(dilated, of(np.stack(corners), 0))


def test_volumes_whose_inner_boxes_are_the_largest(isa, restore_settings):
    """Padding that is longer than a box: the second box is still smaller than those behind it."""
    x = np.random.default_rng(9).random((1, 41, 12, 8192), np.float32)
    rows = ndpool.pool(x, (3, 3), stride=1, padding=1, axes=(2, 3))
    want = ndpool.pool(rows, 6, stride=4, padding=[(5, 5)], axes=1)
    for threads in (1, 3):
        ndpool.set_num_threads(threads)
        for _ in range(4):
            got = ndpool.pool(
                x, (6, 3, 3), stride=(4, 1, 1), padding=[(5, 5), (1, 1), (1, 1)], axes=(1, 2, 3)
            )
            np.testing.assert_array_equal(got, want)


def test_norms_of_long_windows_do_not_depend_on_threads(isa, restore_settings):
    """Windows that an end of the input clips: where several boxes split an axis, zeros would pad it."""
    before = core.set_serial_bytes(1)
    try:
        for shape in ((2, 257), (1, 257), (3, 700)):
            x = np.random.default_rng(10).random(shape)
            how = {"stride": (3, 1), "padding": [(0, 0), (27, 14)], "ceil_mode": True, "norm_type": 2}
            found = []
            for threads in (1, 2, 3, 8):
                ndpool.set_num_threads(threads)
                found.append(ndpool.pool(x, (1, 34), reduce="lp", **how))
            assert all(np.array_equal(f, found[0]) for f in found), shape
    finally:
        core.set_serial_bytes(before)


PLANES = [
    ((3, 90, 70), (31, 5), (2, 3)),
    ((2, 61, 300), (13, 2), (2, 1)),
    ((1, 200, 3), (100, 3), (2, 3)),  # a short row, pooled whole
    ((1, 40, 9, 60), (9, 20), (1, 2)),
]


@pytest.mark.parametrize(
    "name", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32"]
)
def test_planes_of_overlapping_windows(isa, name):
    """Maxima, and sums of integers, whose rows overlap much and whose strides are larger than one."""
    rng = np.random.default_rng(11)
    for shape, window, stride in PLANES:
        low, high = (-100, 100) if name[0] != "u" else (0, 200)
        x = rng.integers(low, high, shape).astype(name)
        if name.endswith("64"):
            x *= 1 << 50
        for view in (x, x[..., ::-1, :], np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)):
            taken = np.lib.stride_tricks.sliding_window_view(view, window, (-2, -1))
            taken = taken[..., :: stride[0], :: stride[1], :, :]
            for reduce, of in (("max", np.max), ("min", np.min), ("sum", np.sum)):
                if reduce == "sum" and name == "float32":
                    continue
                want = of(taken, (-2, -1))
                got = ndpool.pool(view, window, stride=stride, axes=(-2, -1), reduce=reduce)
                np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("name", ["uint8", "int16", "int32", "int64"])
def test_averages_of_integers_whose_windows_overlap(isa, name):
    """Cut off towards zero as without overlap, whatever divides them, or kept as floats."""
    rng = np.random.default_rng(12)
    for shape, kernel, stride, padding in VOLUMES:
        x = rng.integers(0 if name[0] == "u" else -100, 100, shape).astype(name)
        for given in ({}, {"count_include_pad": False}, {"divisor_override": 7}):
            got = ndpool.avg_pool3d(x, kernel, stride, padding, **given)
            want = torch.nn.functional.avg_pool3d(
                torch.from_numpy(x).double(), kernel, stride, padding, **given
            ).numpy()
            np.testing.assert_array_equal(got, np.trunc(want + np.sign(want) * 1e-9).astype(name))
        kept = ndpool.pool(x, kernel, stride=stride, axes=(2, 3, 4), reduce="avg", dtype="float32")
        want = torch.nn.functional.avg_pool3d(torch.from_numpy(x).double(), kernel, stride)
        np.testing.assert_allclose(kept, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduce", ["sum", "avg"])
def test_large_integers_as_floats_keep_their_order(isa, reduce):
    """Sums that float64 rounds: the same bits where the windows at an end are pooled alone."""
    x = np.random.default_rng(13).integers(-(1 << 62), 1 << 62, (16, 24))
    given = {"reduce": reduce, "stride": (1, 2), "axes": (0, 1), "dtype": "float64"}
    whole = ndpool.pool(x, (8, 8), padding=[(4, 4), (0, 0)], **given)
    for n in range(1, 5):
        part = ndpool.pool(x[: 3 + n], (8, 8), padding=[(4, 0), (0, 0)], **given)
        np.testing.assert_array_equal(part, whole[:n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_only_window_of_a_plane(restore_settings, dtype):
    """With stride 1: the bits of the same window in a larger plane, for every instruction set and layout."""
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    windows = [(7, 7), (8, 8), (2, 7), (13, 3), (1, 31), (4, 1), (5, 17), (33, 2), (6, 64), (9, 65)]
    for number, window in enumerate(windows):
        for batch, channels in ((1, 1), (3, 7), (2, 40), (1, 300)):
            large = data((batch, channels, window[0] + 2, window[1] + 3), dtype, False, special=False) / 7
            whole = large[:, :, : window[0], : window[1]]
            given = {"divisor_override": 5} if number % 3 == 2 else {}
            want = torch.nn.functional.avg_pool2d(whole.double(), window, 1, **given)
            first = None
            for name in core.isa_names():
                core.set_isa(name)
                for view in (
                    whole,
                    whole.contiguous(),
                    whole.contiguous(memory_format=torch.channels_last),
                    large.contiguous(memory_format=torch.channels_last)[:, :, : window[0], : window[1]],
                ):
                    got = ndpool.avg_pool2d(view, window, 1, **given)
                    if first is None:
                        first = got
                        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
                    assert torch.equal(got, first), (window, name)
                assert torch.equal(ndpool.avg_pool2d(large, window, 1, **given)[:, :, :1, :1], first)
                out = torch.full((batch, 2 * channels, 1, 1), 7.0, dtype=dtype)
                ndpool.avg_pool2d(whole.contiguous(), window, 1, **given, out=out[:, ::2])
                assert torch.equal(out[:, ::2], first)
                assert (out[:, 1::2] == 7).all()
        if window[0] == 1:
            row = ndpool.avg_pool1d(whole[:, :, 0].contiguous(), window[1], 1)
            assert given or torch.equal(row, first[:, :, 0])


@pytest.fixture
def one_byte():
    """The smallest calls use all threads, too."""
    before = core.set_serial_bytes(1)
    yield
    core.set_serial_bytes(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_sums_of_volumes(restore_settings, one_byte, dtype):
    """Overlapping windows: the same bits for every instruction set, layout, number of threads and part."""
    how = [{}, {"count_include_pad": False}, {"divisor_override": 7}, {"ceil_mode": True}]
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for number, (shape, kernel, stride, padding) in enumerate(VOLUMES):
        x = data(shape, dtype, False, special=False) / 7
        given = how[number % 4]
        want = torch.nn.functional.avg_pool3d(x.double(), kernel, stride, padding, **given)
        first = None
        for name in core.isa_names():
            core.set_isa(name)
            for view in (
                x,
                x.contiguous(memory_format=torch.channels_last_3d),
                x.flip(2).contiguous().flip(2),
            ):
                for threads in (1, 3):
                    ndpool.set_num_threads(threads)
                    got = ndpool.avg_pool3d(view, kernel, stride, padding, **given)
                    if first is None:
                        first = got
                        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
                    assert torch.equal(got, first), (shape, name, threads)
            out = torch.full((*want.shape[:-1], 2 * want.shape[-1]), 7.0, dtype=dtype)
            ndpool.avg_pool3d(x, kernel, stride, padding, **given, out=out[..., ::2])
            assert torch.equal(out[..., ::2], first)
            assert (out[..., 1::2] == 7).all()
            # The first windows along the first axis, alone: their kernel is cropped, as it begins in padding.
            depth, *inner = (kernel,) * 3 if isinstance(kernel, int) else kernel
            pads = (padding,) * 3 if isinstance(padding, int) else padding
            alone = [(pads[0], 0), *((n, n) for n in pads[1:])]
            part = {"stride": stride, "axes": (2, 3, 4), "reduce": "avg", "padding": alone, **given}
            if name == core.isa_names()[0] and "ceil_mode" not in given:
                few = ndpool.pool(x[:, :, : depth - pads[0]], (depth, *inner), **part)
                assert torch.equal(few[:, :, 0], first[:, :, 0]), shape
