"""The general functions beyond PyTorch, compared with the oracle: any axes, padding, dtype and reduction.

Also accumulation, NaN and infinity, large windows, unpooling without a kernel, and the backward kernels,
which equal the oracle's gradients and are the adjoints of the forward kernels.
"""

from __future__ import annotations

from itertools import permutations, product
from math import inf, prod

import numpy as np
import pytest

import ndpool
import oracle
import passes
from cases import BOOL, DTYPES, HALVES, INTEGERS, LAYOUTS, SINGLES
from helpers import (
    GEOMETRIES,
    assert_close,
    assert_exact,
    epsilon,
    hard_values,
    inner,
    on_axes,
    plain,
    plans,
    small,
)
from ndpool import geometry
from ndpool.reductions import REDUCTIONS

pytestmark = pytest.mark.usefixtures("poisoned")
FLOATS = HALVES + SINGLES


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)])
def test_one_to_six_axes(n, lead):
    """tflearn/tflearn#258, pytorch#18728: up to six pooled axes after any number of leading axes."""
    x = hard_values((*lead, *[(7, 6, 5, 4, 3, 3)[a] for a in range(n)]), np.float64, n)
    window, stride, padding = [(a[:n]) for a in [(3, 2, 2, 3, 1, 2), (2, 1, 2, 2, 1, 1), (1, 1, 0, 1, 0, 1)]]
    arguments = {"stride": stride, "padding": padding, "ceil_mode": True}
    for reduce in ("max", "min"):
        got = ndpool.pool(x, window, reduce=reduce, return_indices=True, **arguments)
        assert_exact(got, getattr(oracle, f"{reduce}_pool")(x, window, **arguments))
        assert_exact(ndpool.pool(x, window, reduce=reduce, **arguments), got[0])
    clean = plain(x.shape)
    assert_exact(
        ndpool.pool(clean, window, reduce="sum", **arguments), oracle.sum_pool(clean, window, **arguments)
    )
    got = ndpool.pool(clean, window, reduce="avg", count_include_pad=False, **arguments)
    assert_close(got, oracle.avg_pool(clean, window, count_include_pad=False, **arguments), prod(window), 4)
    outs = (3, 4, 2, 3, 5, 2)[:n]
    assert_exact(ndpool.adaptive_pool(x, outs, return_indices=True), oracle.adaptive_max_pool(x, outs))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_any_axes_in_any_order(n):
    """scikit-image/scikit-image#3491, tensorflow/tensorflow#2660: indices follow the order of the axes."""
    x = hard_values((4, 5, 6, 3), np.float32)
    window, outs = (2, 3, 2)[:n], (3, 2, 4)[:n]
    for axes in permutations(range(4), n):
        signed = tuple(a - 4 * (at % 2) for at, a in enumerate(axes))
        got = ndpool.pool(x, window, axes=signed, stride=1, return_indices=True)
        assert_exact(got, on_axes(oracle.max_pool, x, axes, window, 1))
        got = ndpool.adaptive_pool(x, outs, axes=signed, reduce="max", return_indices=True)
        assert_exact(got, on_axes(oracle.adaptive_max_pool, x, axes, outs))
        back = ndpool.unpool(*got, [x.shape[a] for a in axes], axes=signed)
        want = np.moveaxis(got[0], axes, range(-n, 0)), np.moveaxis(got[1], axes, range(-n, 0))
        want = oracle.max_unpool(*want, [x.shape[a] for a in axes])
        assert_exact(back, np.moveaxis(want, range(-n, 0), axes))


def test_an_int_applies_to_all_axes():
    x = plain((6, 8, 3))
    assert_exact(ndpool.pool(x, 2, axes=(0, 1)), ndpool.pool(x, (2, 2), axes=(-3, -2)))
    assert_exact(ndpool.pool(x, 2, axes=0), on_axes(oracle.max_pool, x, [0], [2])[0])
    assert_exact(
        ndpool.adaptive_pool(x, (None, 2), axes=(1, 0))[:, :, 0], ndpool.adaptive_pool(x[..., 0], (2, 8))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "reversed"])
def test_every_dtype(dtype, layout):
    """pytorch#33086, pytorch#107412, pytorch#136110, pytorch#109586, deeplearning4j/deeplearning4j#8943.

    Max and min pooling keep the dtype with and without indices, also where min as negated max would be wrong
    (keras-team/keras#14355).
    """
    for n, shape in [(1, (3, 17)), (2, (2, 9, 11)), (3, (9, 4, 5, 6))]:
        x = LAYOUTS[layout](hard_values(shape, dtype, n), n)
        if dtype.kind == "i":
            x = x - np.array(100, dtype)  # all negative
        for reduce, window in product(("max", "min"), (2, 3)):
            want = getattr(oracle, f"{reduce}_pool")(x, [window] * n, 2, 1)
            got = ndpool.pool(x, [window] * n, stride=2, padding=1, reduce=reduce, return_indices=True)
            assert_exact(got, want)
            assert_exact(ndpool.pool(x, [window] * n, stride=2, padding=1, reduce=reduce), want[0])


PADDING = [((1, 0),), ((0, 2),), ((5, 3),), ((0, 0), (2, 1)), ((3, 4), (0, 1)), ((1, 0), (0, 1), (2, 2))]


@pytest.mark.parametrize("padding", PADDING, ids=str)
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_per_side(padding, dilation):
    """pytorch#17150, pytorch#3298: equal to padding first, also for more than half the window."""
    n, width = len(padding), 6 if max(max(padding)) > 2 else 3
    x = plain((2, *(9, 10, 8)[:n]))
    padded = [(0, 0), *padding]
    for reduce, fill in [("max", -np.inf), ("min", np.inf), ("sum", 0.0), ("avg", 0.0)]:
        arguments = {"reduce": reduce, "stride": 1, "dilation": dilation}
        whole = np.pad(x, padded, constant_values=fill)
        if width > whole.shape[-1] // dilation:
            continue
        got = ndpool.pool(x, (width,) * n, padding=padding, **arguments)
        assert_close(got, ndpool.pool(whole, (width,) * n, **arguments), width**n, 4)
    got = ndpool.pool(x, (width,) * n, padding=padding, stride=2, dilation=dilation, return_indices=True)
    assert_exact(got, oracle.max_pool(x, [width] * n, 2, padding, dilation))


@pytest.mark.parametrize(("kernel", "stride", "dilation"), list(product((1, 2, 3, 4, 5), (1, 2, 3), (1, 2))))
def test_same_padding(kernel, stride, dilation):
    """pytorch#3867: TensorFlow's SAME.

    There are ceil(size / stride) outputs. The total padding that they need is
    max((out - 1) * stride + dilation * (kernel - 1) + 1 - size, 0), half before and the odd element after.
    """
    for size in range(1, 13):
        out = -(-size // stride)
        total = max((out - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
        x = plain((2, size), seed=size)
        for name, before in [("same", total // 2), ("same_lower", total - total // 2)]:
            arguments = {"stride": stride, "dilation": dilation}
            pad = [(before, total - before)]
            if any(
                not window.positions
                for window in oracle.sliding_windows(size, kernel, stride, pad[0], dilation)
            ):
                continue
            want = oracle.max_pool(x, [kernel], padding=pad, **arguments)
            assert want[0].shape == (2, out)
            assert_exact(ndpool.pool(x, (kernel,), padding=name, return_indices=True, **arguments), want)
            assert ndpool.output_size(size, kernel, padding=name, **arguments) == out
            got = ndpool.pool(x, (kernel,), reduce="avg", padding=name, count_include_pad=False, **arguments)
            want = oracle.avg_pool(x, [kernel], padding=pad, count_include_pad=False, **arguments)
            assert_close(got, want, kernel, 4)
    assert_exact(ndpool.pool(x, (1,), padding="valid"), x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_dilated_averages_and_norms(n):
    """pytorch#14907, pytorch#5731: dilation for average pooling, dilation and padding for Lp pooling."""
    x = plain((2, 2, *(11, 10, 9)[:n]))
    for dilation, padding, ceil in product((1, 2, 3), (0, 1), (False, True)):
        arguments = {"stride": 2, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        want = oracle.avg_pool(x, [3] * n, **arguments)
        assert_close(getattr(ndpool, f"avg_pool{n}d")(x, 3, **arguments), want, 3**n, 4)
        assert_close(ndpool.pool(x, (3,) * n, reduce="avg", **arguments), want, 3**n, 4)
        want = oracle.lp_pool(np.abs(x), 2.0, [3] * n, **arguments)
        assert_close(getattr(ndpool, f"lp_pool{n}d")(np.abs(x), 2.0, 3, **arguments), want, 2 * 3**n)
        plan = oracle.sliding_plan(x.shape[2:], [3] * n, **arguments)
        want = oracle.total(x.astype(np.float64) ** 2, plan) ** 0.5
        assert_close(ndpool.pool(x, (3,) * n, reduce="lp", **arguments), want.astype(x.dtype), 2 * 3**n)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 9])
def test_divisors_in_narrow_planes(width, dtype):
    """Every window counts its own padding, also in planes of one row or column."""
    axis = list(product((1, 2, 3, 5), ((0, 0), (1, 1), (2, 1), (0, 5))))
    for down, across, stride, height in product(axis, axis, (1, 2, 3), (1, 9)):
        window, pads = zip(down, across, strict=True)
        plan = oracle.sliding_plan((height, width), window, stride, pads)
        if all(windows and all(w.positions for w in windows) for windows in plan):
            x = np.ones((height, width), dtype)
            got = ndpool.pool(x, window, reduce="avg", stride=stride, padding=pads)
            assert_close(got, oracle.avg_pool(x, window, stride, pads), prod(window))


@pytest.mark.parametrize("dtype", [*INTEGERS, BOOL], ids=str)
def test_sums_and_averages_of_integers(dtype):
    """pytorch#139115: sums promote like np.sum; averages truncate unless dtype is a float."""
    x = hard_values((3, 8, 9), dtype)
    sums = oracle.sum_pool(x, [2, 3])
    got = ndpool.pool(x, (2, 3), reduce="sum")
    assert got.dtype == x.sum().dtype
    assert_exact(got, sums)
    for real in (np.float32, np.float64):
        assert_exact(ndpool.pool(x, (2, 3), reduce="avg", dtype=real), (sums / 6).astype(real))
        assert_exact(ndpool.pool(x, (2, 3), reduce="sum", dtype=real), sums.astype(real))
    if dtype != BOOL:
        assert_exact(ndpool.pool(x, (2, 3), reduce="avg"), np.trunc(sums / 6).astype(dtype))


@pytest.mark.parametrize("name", ["pool", "adaptive_pool"])
def test_out_and_dtype(name):
    x = plain((2, 6, 8), np.float32)
    sizes = (2, 2) if name == "pool" else (3, 4)
    call = getattr(ndpool, name)
    for layout in ("contiguous", "transposed", "sliced", "reversed"):
        values, indices = (LAYOUTS[layout](np.zeros((2, 3, 4), dtype), 2) for dtype in ("f4", "i8"))
        assert call(x, sizes, out=values) is values
        assert_exact(values, call(x, sizes))
        pair = (values, indices)
        assert call(x, sizes, reduce="min", return_indices=True, out=pair) is pair
        assert_exact(pair, call(x, sizes, reduce="min", return_indices=True))
        wide = LAYOUTS[layout](np.zeros((2, 3, 4)), 2)
        assert call(x, sizes, reduce="avg", dtype="f8", out=wide) is wide
        assert_exact(wide, call(x.astype("f8"), sizes, reduce="avg"))
    assert_exact(call(x, sizes, dtype="f8"), call(x, sizes).astype("f8"))
    assert_exact(call(x, sizes, reduce="avg", dtype=">f8"), call(x.astype("f8"), sizes, reduce="avg"))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_accumulate_in_float32(dtype):
    """pytorch#104602: thousands of ones average to exactly 1, and large values do not overflow."""
    ones = np.ones((2, 16, 16, 16), dtype)
    big = np.full_like(ones, 60000)
    for layout in ("contiguous", "channels_last"):
        for x in (LAYOUTS[layout](ones, 3), LAYOUTS[layout](big, 3)):
            want = x[:, :1, :1, :1]
            assert_exact(ndpool.adaptive_avg_pool3d(x, 1), want)
            assert_exact(ndpool.avg_pool3d(x, 16), want)
            assert_exact(ndpool.pool(x, (16, 16), axes=(1, 3), reduce="avg")[:, :, :1], want)
    assert_exact(ndpool.pool(ones, (16,) * 3, reduce="sum"), np.full((2, 1, 1, 1), 4096, dtype))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 15, 16, 31])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity_stay_in_their_windows(k, dtype):
    """scipy/scipy#7818, scipy/scipy#9077, apache/mxnet#6191: no leaks, in either direction."""
    x = plain((3, 5, 70), dtype)
    x[0, 2, 33], x[1, 1, 40], x[1, 1, 41], x[2, 3, 20] = np.nan, np.inf, -np.inf, -np.inf
    for rows, stride in [(1, 1), (3, 2), (5, k)]:
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (rows, k), (1, 2))
        windows = windows[:, :, ::stride]
        with np.errstate(invalid="ignore"):
            sums = windows.sum((-2, -1))
        for reduce in REDUCTIONS:
            got = ndpool.pool(x, (rows, k), reduce=reduce, stride=(1, stride))
            if reduce in ("max", "min"):
                assert_exact(got, getattr(windows, reduce)((-2, -1)).astype(dtype))
                turned = ndpool.pool(x[:, ::-1, ::-1], (rows, k), reduce=reduce, stride=(1, stride))[
                    :, ::-1, ::-1
                ]
                assert (70 - k) % stride or np.array_equal(got, turned, equal_nan=True)
            else:
                assert_exact(
                    np.isnan(got), np.isnan(windows).any((-2, -1)) if reduce == "lp" else np.isnan(sums)
                )
                assert_exact(np.isfinite(got), np.isfinite(sums))


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7, 8, 9, (3, 7), (7, 3), (4, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.uint16, np.int16])
def test_images_with_a_few_channels(k, dtype):
    """Interleaved channels give the bits that each has alone, on rows of one vector and of several tiles."""
    kernel = (k, k) if isinstance(k, int) else k
    for channels, (height, width) in product(range(1, 6), [(9, 70), (33, 131), (12, 1500)]):
        x = plain((height, width, channels), dtype, channels + width)
        if dtype is np.float32:
            x[height // 2 :] = hard_values((height - height // 2, width, channels), dtype, width)
        for padding in [0, ((1, 1), (0, 1))]:
            options = {"stride": 1, "padding": padding, "axes": (0, 1)}
            want = ndpool.pool(x.astype(np.float64), kernel, **options).astype(dtype)
            assert_exact(ndpool.pool(x, kernel, **options), want)
            if dtype is np.float32:
                alone = [
                    ndpool.pool(x[..., c].copy(), kernel, reduce="avg", **options) for c in range(channels)
                ]
                assert_exact(ndpool.pool(x, kernel, reduce="avg", **options), np.stack(alone, -1))


@pytest.mark.parametrize("k", [3, 5, 7, 9, 13])
@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum"])
def test_stride_1_at_every_width(k, reduce):
    """Rows shorter and longer than vectors and tiles, with and without NaN and (asymmetric) padding."""
    for width in [*range(1, 36), *range(47, 67, 3), 80, 95, 96, 97, 130, 700]:
        height = 1 + width % 23
        x = plain((5, height, width), np.float32, width)
        x[2] = hard_values((height, width), np.float32, width)
        wider = np.full((5, height, width + 3), np.nan, np.float32)
        wider[:, :, 1:-2] = x
        for padding in [k // 2, ((k - 1, 1), (1, k - 1)), 0]:
            if padding == 0 and min(height, width) < k:
                continue
            options = {"reduce": reduce, "stride": 1, "padding": padding}
            if reduce in ("max", "min"):
                want = ndpool.pool(x.astype(np.float64), (k, k), **options).astype(np.float32)
            else:
                want = np.moveaxis(
                    ndpool.pool(np.moveaxis(x, 0, -1).copy(), (k, k), axes=(0, 1), **options), -1, 0
                )
            assert_exact(ndpool.pool(x, (k, k), **options), want)
            assert_exact(ndpool.pool(wider[:, :, 1:-2], (k, k), **options), want)


@pytest.mark.parametrize("k", [4, 6, 15, 16, 17, 21, 31, 32, 33, 63])
@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum"])
def test_large_windows_with_stride_1(k, reduce):
    """Several blocks of rows, widths around the ends of vectors and tiles; one order of additions."""
    sizes = [(1, 1), (14, 14), (k, k), (2 * k + 3, 15), (3 * k + 1, 17), (150, 33)]
    sizes += [(2 * k + 1, width) for width in (64, 255, 256, 257, 272, 513)] + [(k + 2, 1025), (k + 1, 1041)]
    for height, width in sizes:
        x = np.random.default_rng(width).standard_normal((3, height, width)).astype(np.float32)
        x[1] = hard_values((height, width), np.float32, width)
        x[1, : height // 2] = -np.abs(x[1, : height // 2])
        uneven = ((k - 1, 0), (1, k - 1))
        for window, padding in [
            ((k, k), k // 2),
            ((k, k), uneven),
            ((k, 5), (k // 2, 2)),
            ((4, k), (2, k // 2)),
        ]:
            options = {"reduce": reduce, "stride": 1, "padding": padding}
            if reduce == "avg":
                options["count_include_pad"] = width % 2 == 0
            view = np.full((3, height, width + 3), np.nan, np.float32)[:, :, 1:-2]
            view[:] = x
            if reduce in ("max", "min"):
                want = ndpool.pool(x.astype(np.float64), window, **options).astype(np.float32)
            else:
                last = np.moveaxis(x, 0, -1).copy()
                want = np.moveaxis(ndpool.pool(last, window, axes=(0, 1), **options), -1, 0)
            assert_exact(ndpool.pool(x, window, **options), want)
            assert_exact(ndpool.pool(view, window, **options), want)


@pytest.mark.parametrize("k", [4, 9, 16, 17, 31, 32])
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
def test_large_windows_of_bytes(k, reduce, dtype):
    for height, width in [(1, 64), (k, 113), (2 * k + 3, 255), (3 * k + 1, 256), (70, 321), (k + 1, 4097)]:
        x = hard_values((2, height, width), dtype, width)
        if dtype != np.bool_:
            x[1, :, ::3] = np.iinfo(dtype).min if reduce == "max" else np.iinfo(dtype).max
        view = np.ones((2, height, width + 5), dtype)[:, :, 4:-1]
        view[:] = x
        uneven = ((k - 1, 0), (1, k - 1))
        for window, padding in [((k, k), k // 2), ((k, k), uneven), ((k, 4), (k // 2, 2)), ((5, k), (2, 0))]:
            options = {"reduce": reduce, "stride": 1, "padding": padding}
            want = ndpool.pool(x.astype(np.int32), window, **options)
            outside = np.iinfo(np.int32).min if reduce == "max" else np.iinfo(np.int32).max
            assert (want != outside).all()
            assert_exact(ndpool.pool(x, window, **options), want.astype(dtype))
            assert_exact(ndpool.pool(view, window, **options), want.astype(dtype))


@pytest.mark.parametrize("k", [6, 16, 31])
@pytest.mark.parametrize("reduce", ["max", "avg"])
def test_large_windows_are_split_into_bands(k, reduce):
    """Threads split a plane into bands that overlap by a halo of rows."""
    x = np.random.default_rng(k).standard_normal((2, 1100, 300)).astype(np.float32)
    x[1, 700, 20] = np.nan
    options = {"reduce": reduce, "stride": 1, "padding": k // 2}
    before, answers = ndpool.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            ndpool.set_num_threads(threads)
            answers.append(ndpool.pool(x, (k, k), **options))
    finally:
        ndpool.set_num_threads(before)
    assert_exact(answers[1], answers[0])
    assert_exact(answers[2], answers[0])
    part = ndpool.pool(x[:, 600:800], (k, k), reduce=reduce, stride=1)
    assert_exact(answers[0][:, 600 + k // 2 :][:, : part.shape[1], k // 2 :][:, :, : part.shape[2]], part)
    first = [max(0, at + k // 2 - k + 1) for at in (700, 20)]
    contains_nan = np.zeros(answers[0].shape, bool)
    contains_nan[1, first[0] : 701 + k // 2, first[1] : 21 + k // 2] = True
    assert_exact(np.isnan(answers[0]), contains_nan)


@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum"])
def test_channels_last_is_bitwise_identical(k, reduce):
    sizes = [(1, 1), (2, 5), (7, 3), (30, 2), (4, 41)]
    for channels, (height, width) in product([4, 7, 16, 17, 64, 70, 530], sizes):
        x = plain((3, height, width, channels), np.float32, channels + width)
        x[1] = hard_values(x[1].shape, np.float32, channels)
        for padding in [k // 2, ((k - 1, 1), (1, k - 1))]:
            options = {"reduce": reduce, "stride": 1, "padding": padding}
            if reduce == "avg":
                options["count_include_pad"] = channels % 2 == 0
            want = np.moveaxis(ndpool.pool(np.moveaxis(x, -1, 1).copy(), (k, k), **options), 1, -1)
            assert_exact(ndpool.pool(x, (k, k), axes=(1, 2), **options), want)


def test_images_with_indivisible_sizes():
    """stackoverflow.com/questions/42463172, scikit-image/scikit-image#4940, mwcraig/reducer#194.

    Partial windows are dropped, or kept and computed from real pixels only, also band by band.
    """
    x = np.arange(35.0).reshape(7, 5)
    blocks = x[:6, :4].reshape(3, 2, 2, 2)
    assert_exact(ndpool.pool(x, (2, 2)), blocks.max((1, 3)))
    assert_exact(ndpool.pool(x, (2, 2), reduce="avg"), blocks.mean((1, 3)))
    whole = np.pad(x, [(0, 1), (0, 1)], constant_values=np.nan).reshape(4, 2, 3, 2)
    assert_exact(ndpool.pool(x, (2, 2), ceil_mode=True), np.nanmax(whole, (1, 3)))
    mean = ndpool.pool(x, (2, 2), ceil_mode=True, reduce="avg", count_include_pad=False)
    assert_exact(mean, np.nanmean(whole, (1, 3)))
    assert_exact(ndpool.pool(x, (2, 2), ceil_mode=True, reduce="avg"), mean)
    bands = [ndpool.pool(band, (2, 2), ceil_mode=True, reduce="avg") for band in np.split(x, [2, 6])]
    assert_exact(np.concatenate(bands), mean)
    assert ndpool.pool(x, (2, 2), stride=(3, 1)).shape == (2, 4)


@pytest.mark.parametrize("size", range(1, 13))
def test_round_trips(size):
    """pytorch#68589, pytorch#30658: unpooling restores every size, with and without a kernel."""
    x = np.random.default_rng(size).permutation(2 * size * 13).reshape(1, 2, size, 13) + 1.0
    windows = [w for w in product(range(1, 5), range(1, 5), range(3)) if 2 * w[2] <= w[0] <= size + 2 * w[2]]
    pooled = [(w, ndpool.max_pool2d(x, *w, return_indices=True)) for w in windows]
    pooled += [(None, ndpool.adaptive_max_pool2d(x, out, return_indices=True)) for out in (1, 2, 3, 5, 14)]
    for window, (values, indices) in pooled:
        back = ndpool.unpool(values, indices, x.shape[2:])
        assert_exact(back, oracle.max_unpool(values, indices, x.shape[2:]))
        assert_exact(np.unique(back[back > 0]), np.unique(values))
        assert_exact(back[back > 0], x[back > 0])
        if window:
            assert_exact(ndpool.max_unpool2d(values, indices, *window, output_size=x.shape), back)


def test_large_adaptive_windows():
    """flagos-ai/FlagGems#4915, pytorch#81409: indivisible ratios over 64, and large common sizes."""
    for size in (191, 4096):
        x = hard_values((2, size), np.float32)
        assert_exact(ndpool.adaptive_pool(x, (3,), return_indices=True), oracle.adaptive_max_pool(x, [3]))
        clean = plain((5, size, 3), np.float32)
        want = on_axes(oracle.adaptive_avg_pool, clean, [1], [3])[0]
        assert_close(ndpool.adaptive_pool(clean, (3,), axes=1, reduce="avg"), want, size, 4)
    x = np.random.default_rng(0).integers(0, 9, (1, 5877, 3697), np.int8).astype(np.float32)
    sums = np.concatenate([[0], x[0].sum(1, dtype=np.float64).cumsum()])
    windows = ndpool.adaptive_windows(5877, 2855)
    want = [(sums[w.stop] - sums[w.start]) / (len(w) * 3697) for w in windows]
    assert_close(ndpool.adaptive_avg_pool2d(x, (2855, 1))[0, :, 0], np.array(want, np.float32), 12000)


def test_adaptive_lp_pooling_is_the_norm_of_each_window():
    x = np.arange(1.0, 6.0)
    want = [np.hypot(1, 2), np.linalg.norm([2, 3, 4]), np.hypot(4, 5)]
    assert_close(ndpool.adaptive_pool(x, (3,), reduce="lp"), np.array(want), 3)


@pytest.mark.parametrize("norm", [1, 3, 1.0, 3.0, 2.5, 2.0, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.uint8])
def test_general_lp_pooling_is_a_true_norm(dtype, norm):
    """pytorch#184037: the root of the sum of |x|**p, whatever the sign, never scaled up; tensors agree."""
    x = np.arange(-7, 8).astype(dtype) if dtype != np.uint8 else np.arange(15, dtype=dtype)
    if dtype == np.int8:
        x[0] = -128
    magnitudes = np.abs(x.astype(float))
    calls = {
        lambda x: ndpool.pool(x, (4,), reduce="lp", norm_type=norm, ceil_mode=True): ndpool.windows(
            15, 4, ceil_mode=True
        ),
        lambda x: ndpool.adaptive_pool(x, (4,), reduce="lp", norm_type=norm): ndpool.adaptive_windows(15, 4),
    }
    for call, windows in calls.items():
        want = np.array([(magnitudes[w.start : w.stop] ** norm).sum() ** (1 / norm) for w in windows])
        got = call(x)
        assert got.dtype == (dtype if np.dtype(dtype).kind == "f" else np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-6)
        torch = pytest.importorskip("torch")
        tensor = torch.from_numpy(x)
        np.testing.assert_allclose(call(tensor), want, rtol=1e-6)
        np.testing.assert_allclose(torch.compile(call, backend="eager")(tensor), want, rtol=1e-6)
        if dtype == np.float64 and isinstance(norm, float):
            assert torch.autograd.gradcheck(call, torch.from_numpy(x + 0.25).requires_grad_())


def test_true_norms_of_integers_do_not_wrap():
    assert ndpool.pool(np.array([100, 3], np.int32), (2,), reduce="lp", norm_type=10) == 100
    for norm, want in ((inf, 128), (-inf, 5), (1, 133), (-1, 1 / (1 / 128 + 1 / 5))):
        got = ndpool.pool(np.array([-128, 5], np.int8), (2,), reduce="lp", norm_type=norm)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-6)
    got = ndpool.pool(np.array([2**63, 2**63], np.uint64), (2,), reduce="lp", norm_type=1)
    np.testing.assert_allclose(got, 2.0**64, rtol=1e-6)


@pytest.mark.parametrize("reduce", ["max", "min", "sum", "avg", "lp"])
def test_windows_far_larger_than_the_input(reduce):
    """pytorch#189664: tap counts do not overflow 64 bits; a window that would raises."""
    x, near = np.full((1, 1, 1), 8.0), ((2**20 - 1, 0),) * 3
    got = ndpool.pool(x, (2**20,) * 3, padding=near, reduce=reduce, norm_type=1.0)
    assert_close(got, x / 2.0**60 if reduce == "avg" else x, 1)
    got = ndpool.pool(x, (2**20,) * 3, padding=near, reduce=reduce, norm_type=1.0, count_include_pad=False)
    assert reduce == "lp" or np.array_equal(got, x)
    if reduce not in ("avg", "lp"):
        return
    with pytest.raises(ValueError, match=r"^pool: a window of 2\*\*63 elements or more has no"):
        ndpool.pool(x, (2**21,) * 3, padding=((2**21 - 1, 0),) * 3, reduce=reduce, norm_type=1.0)


def test_indices_in_windows_far_larger_than_the_input():
    x = np.full((1,) * 6, 3.0)
    for wide in (2, 41, 2**30):
        got = ndpool.pool(x, (wide,) * 6, padding=((wide - 1, 0),) * 6, return_indices=True)
        assert_exact(got, (x, np.zeros(x.shape, int)))


SIZES = (14, 11, 9)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_backward(n, name, layout, dtype):
    """pytorch#62250, pytorch#6765: gradients equal the oracle's and are adjoint to the forward pass."""
    sizes, axes = SIZES[-n:] if n < 3 else (6, 5, 7), tuple(range(1, n + 1))
    plan, truth = plans(GEOMETRIES[name], sizes)
    x = LAYOUTS[layout](hard_values((9, *sizes), dtype, special=0), n)
    v = small(x.shape, np.float64, 1)
    grad = LAYOUTS[layout](small((9, *plan.out), dtype, 2), n)
    for reduce in ("max", "min"):
        y, offsets = passes.with_offsets(reduce, plan, x, axes)
        values, indices = oracle.select(x, truth, least=reduce == "min")
        assert_exact(y, values)
        got = passes.backward(reduce, plan, grad, axes, offsets=offsets)
        assert_exact(got, oracle.max_pool_backward(grad, indices, sizes), signs=True)
        assert inner(got, v) == inner(grad, oracle.max_unpool_backward(v, indices, n))
    summed = passes.forward("sum", plan, v, axes)
    got = passes.backward("sum", plan, grad, axes)
    assert_exact(got, oracle.sum_backward(grad, truth, sizes).astype(dtype), signs=True)
    assert inner(got, v) == inner(grad, summed)
    shares = oracle.counts(truth, padded=True)
    for divisor in (0, -7):
        got = passes.backward("avg", plan, grad, axes, divisor)
        by = divisor or shares
        magnitude = oracle.sum_backward(np.abs(grad), truth, sizes, np.abs(by))
        assert_close(got, oracle.sum_backward(grad, truth, sizes, by).astype(dtype), plan.taps, magnitude)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("reduce", ["sum", "avg", "lp"])
def test_backward_over_more_rows_than_are_kept(reduce, padding):
    """81 slabs of outputs around an input: their rows are spread again for each input row."""
    sizes, kernel, axes = (17, 17, 3, 4), (9, 9, 2, 2), (1, 2, 3, 4)
    plan = geometry.sliding("f", sizes, kernel, 1, padding, 1, False, False, strict=False)
    truth = oracle.sliding_plan(sizes, list(kernel), 1, padding, 1, False)
    grad = small((3, *plan.out), np.float64, 2)
    rng = np.random.default_rng(7)
    x, y = rng.uniform(1, 2, (3, *sizes)), rng.uniform(1, 2, grad.shape)
    saved = {"x": x, "y": y, "norm": 2.0} if reduce == "lp" else {}
    got = passes.backward(reduce, plan, grad, axes, **saved)
    by = 1 if reduce == "sum" else oracle.counts(truth, padded=False)
    given, weights = (grad * plan.taps / y, x) if saved else (grad, None)
    magnitude = oracle.sum_backward(np.abs(given), truth, sizes, by, weights)
    assert_close(got, oracle.sum_backward(given, truth, sizes, by, weights), plan.taps, magnitude)


def test_lp_backward_of_other_layouts():
    """Powers with the same bits, whatever the strides of the input."""
    sizes = (40, 9)
    plan = geometry.sliding("f", sizes, (3, 2), 1, 0, 1, False, strict=False)
    x, grad = np.random.default_rng(1).standard_normal((20, *sizes)), small((20, *plan.out), np.float64, 2)
    y = passes.forward("lp", plan, x, (1, 2), 4.0)
    want = passes.backward("lp", plan, grad, (1, 2), norm=4.0, x=x, y=y)
    for other in (x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1], x.copy("F"), np.repeat(x, 2, 2)[..., ::2]):
        got = passes.backward("lp", plan, grad, (1, 2), norm=4.0, x=other, y=y)
        assert np.array_equal(got, want), other.strides


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, 2.5])
@pytest.mark.parametrize("name", ["strided", "dilated", "ceil", "gaps"])
def test_lp_backward(name, norm, dtype):
    """pytorch#6765: Lp gradients, 0 for windows of zeros."""
    kernel, stride, pad, dilation, ceil = GEOMETRIES[name]
    plan, _ = plans(GEOMETRIES[name], SIZES[:2])
    x = (small((2, *SIZES[:2]), np.float64, 3, low=1) / 2).astype(dtype)
    x[:, :6, :6] = 0
    grad = small((2, *plan.out), dtype, 4, low=1)
    y = passes.forward("lp", plan, x, (1, 2), norm)
    got = passes.backward("lp", plan, grad, (1, 2), norm=norm, x=x, y=y)
    want = oracle.lp_pool_backward(grad.astype(float), x, norm, [kernel] * 2, stride, ceil, pad, dilation)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(float), want, rtol=(2 * norm + 2) * epsilon(dtype) + 1e-6)


@pytest.mark.parametrize("taps", [127, 128, 255, 256, 257])
def test_offsets_of_wide_windows(taps):
    """pytorch#131659, pytorch#103785: offsets of up to 256 taps fit in a byte, including the last."""
    for window in [(1, taps), (taps, 1), (taps // 16, 16)] if taps % 16 == 0 else [(1, taps), (taps, 1)]:
        x = np.arange(2.0 * (window[0] + 3) * (window[1] + 2)).reshape(2, window[0] + 3, -1)
        plan = geometry.sliding("f", x.shape[1:], window, 1, 0, 1, False, strict=False)
        y, offsets = passes.with_offsets("max", plan, x, (1, 2))
        assert offsets.dtype == (np.uint8 if taps <= 256 else np.int32)
        assert (offsets == taps - 1).all()
        got = passes.backward("max", plan, np.ones_like(y), (1, 2), offsets=offsets)
        assert_exact(got, np.isin(x, y).astype(float))


def test_half_gradients_accumulate_in_float32():
    """tracel-ai/cubek#639: 4096 gradients of 1 sum to 4096, not 2048."""
    plan = geometry.adaptive("f", (1, 1), 64)
    for dtype in HALVES:
        got = passes.backward("avg", plan, np.ones((1, 64, 64), dtype), (1, 2))
        assert_exact(got, np.full((1, 1, 1), 4096, dtype))


@pytest.mark.parametrize("reduce", ["max", "min", "avg", "sum"])
def test_the_largest_windows(reduce):
    """Window, stride and dilation at their limits: a single tap of the window meets the input."""
    largest = 2**31 - 1
    x = np.arange(24.0).reshape(1, 4, 6)
    y = ndpool.pool(
        x, (largest, 1), stride=(largest, 1), dilation=(largest, 1), padding="same", reduce=reduce
    )
    row = x[:, 2:3]
    np.testing.assert_allclose(y, row / largest if reduce == "avg" else row, rtol=1e-12)
