"""Geometry: output sizes, windows and divisors, compared with PyTorch exhaustively over small sizes.

PyTorch's windows and divisors are found from the max pooling of a ramp and the average pooling of ones.
"""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest

import ndpool
from ndpool import geometry

torch = pytest.importorskip("torch")
F = torch.nn.functional

SIZES, KERNELS, STRIDES, DILATIONS = range(1, 25), range(1, 8), range(1, 5), range(1, 4)


def axis(size, k, s, p, d, ceil, include=True):
    return geometry.sliding("f", (size,), k, s, p, d, ceil, include, strict=True).axes[0]


def enumerate_windows(size, out, k, s, p, d):
    """The taps inside the input for every output, by enumeration."""
    taps = [[o * s - p + t * d for t in range(k)] for o in range(out)]
    return [[i for i in row if 0 <= i < size] for row in taps]


@pytest.mark.parametrize("size", SIZES)
def test_sliding_axes_equal_pytorch(size):
    """pytorch#88144: output sizes in both rounding modes, and every window, for all small arguments."""
    ramp = torch.arange(float(size)).view(1, 1, size)
    falling = -ramp
    for k, s, d in product(KERNELS, STRIDES, DILATIONS):
        for p, ceil in product(range(k // 2 + 1), (False, True)):
            try:
                highest, last = F.max_pool1d(ramp, k, s, p, d, ceil, True)
            except RuntimeError:
                with pytest.raises(ValueError, match="f: the window must fit"):
                    axis(size, k, s, p, d, ceil)
                continue
            plan = axis(size, k, s, p, d, ceil)
            assert plan.out == highest.shape[-1], (size, k, s, p, d, ceil)
            first = F.max_pool1d(falling, k, s, p, d, ceil, True)[1][0, 0].tolist()
            windows = enumerate_windows(size, plan.out, k, s, p, d)
            for o, taps in enumerate(windows):
                w = plan.window(o)
                assert w.taps == len(taps)
                if taps:
                    assert (w.start, w.start + (w.taps - 1) * d) == (taps[0], taps[-1])
                    assert (first[o], last[0, 0, o].item()) == (taps[0], taps[-1])
                else:
                    assert first[o] == w.start  # pytorch#114216: where PyTorch's index points


@pytest.mark.parametrize("size", SIZES)
def test_divisors_equal_pytorch(size):
    ones = torch.ones(1, 1, size, dtype=torch.float64)
    for k, s in product(KERNELS, STRIDES):
        for p, ceil, include in product(range(k // 2 + 1), (False, True), (False, True)):
            try:
                means = F.avg_pool1d(ones, k, s, p, ceil, include)[0, 0].tolist()
            except RuntimeError:
                continue
            plan = axis(size, k, s, p, 1, ceil, include)
            windows = [plan.window(o) for o in range(plan.out)]
            assert [w.taps / w.share for w in windows] == means, (size, k, s, p, ceil, include)


def test_adaptive_axes_equal_pytorch():
    """keras-team/keras#18191, pytorch#108197, hyperbolic_learning_library#40: all pairs to 40."""
    for size, out in product(range(1, 41), range(1, 41)):
        ramp = torch.arange(float(size)).view(1, 1, size)
        last = F.adaptive_max_pool1d(ramp, out, True)[1][0, 0].tolist()
        first = F.adaptive_max_pool1d(-ramp, out, True)[1][0, 0].tolist()
        want = [range(a, b + 1) for a, b in zip(first, last, strict=True)]
        assert ndpool.adaptive_windows(size, out) == want
        assert want == [range(o * size // out, -(-(o + 1) * size // out)) for o in range(out)]


def test_adaptive_tables_are_exact_beyond_64_bits():
    """pytorch#176784: o * size does not fit in 64 bits."""
    size, out = 2**62 + 1, 5
    windows = [geometry.adaptive("f", (size,), out).axes[0].window(o) for o in range(out)]
    assert [(w.start, w.start + w.taps) for w in windows] == [
        (o * size // out, -(-(o + 1) * size // out)) for o in range(out)
    ]


def test_same_padding_is_tensorflows():
    """pytorch#3867: ceil(size / stride) outputs; odd padding goes after the input, or before."""
    for size, k, s, d in product(range(1, 20), KERNELS, STRIDES, DILATIONS):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for mode, before in (("same", total // 2), ("same_lower", total - total // 2)):
            pairs = [(before, total - before)]
            try:
                want = geometry.sliding("f", (size,), k, s, pairs, d, False, strict=False)
            except ValueError:  # empty windows
                with pytest.raises(ValueError, match="contains none"):
                    geometry.sliding("f", (size,), k, s, mode, d, False, strict=False)
                continue
            got = geometry.sliding("f", (size,), k, s, mode, d, False, strict=False)
            one, other = got.axes[0], want.axes[0]
            assert one.origin == other.origin == -before
            assert (one.kernel, one.stride, one.step, one.bounds) == (other.kernel, s, d, other.bounds)
            assert got.out == want.out == (-(-size // s),)


def test_large_padding_raises_exactly_if_a_window_is_empty():
    """pytorch#3298, pytorch#17150: any padding on either side, as long as every window has an element."""
    for size, k, s, d in product((1, 2, 3, 5, 8), (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3, 4, 7)):
        for before, after, ceil in product(range(0, 12), (0, 1, 4, 11), (False, True)):
            span = size + before + after - (k - 1) * d - 1
            out = (-(-span // s) if ceil else span // s) + 1
            out -= ceil and (out - 1) * s >= size + before
            if out < 1:
                continue
            empty = [not taps for taps in enumerate_windows(size, out, k, s, before, d)]
            call = ("f", (size,), k, s, [(before, after)], d, ceil)
            if any(empty) and max(before, after) > k // 2:
                with pytest.raises(ValueError, match="contains none"):
                    geometry.sliding(*call, strict=False)
            else:
                assert geometry.sliding(*call, strict=False).out == (out,)


def result_or_none(function, *args, **kwargs):
    """The result of a call, or None if it raises."""
    try:
        return function(*args, **kwargs)
    except (ValueError, RuntimeError):
        return None


def test_output_size_and_windows_agree_with_pooling():
    """They succeed for exactly the arguments that pooling accepts, which include all that PyTorch accepts."""
    counts = {"pytorch": 0, "beyond": 0, "rejected": 0, "empty": 0}
    for size, k, s, d in product(range(1, 7), range(1, 6), range(1, 4), range(1, 5)):
        x = np.arange(1.0, size + 1)[None]
        tensor = torch.from_numpy(x)
        for p, ceil in product(range(5), (False, True)):
            window, case = (k, s, p, d, ceil), (size, k, s, p, d, ceil)
            general = {"stride": s, "padding": p, "dilation": d, "ceil_mode": ceil}
            pooled = result_or_none(ndpool.pool, x, (k,), **general)
            spans = result_or_none(ndpool.windows, size, *window)
            out = result_or_none(ndpool.output_size, size, *window)
            want = result_or_none(F.max_pool1d, tensor, *window)
            for got in (result_or_none(ndpool.max_pool1d, array, *window) for array in (x, tensor)):
                assert np.array_equal(got, want), case
            assert np.array_equal(result_or_none(ndpool.pool, tensor, (k,), **general), pooled), case
            if want is not None:
                assert np.array_equal(pooled, want), case
                counts["pytorch"] += 1
                counts["empty"] += -np.inf in pooled
            if pooled is None:
                assert spans is out is None, case
                counts["rejected"] += 1
            else:
                counts["beyond"] += want is None
                assert [max(x[0, list(span)], default=-np.inf) for span in spans] == pooled[0].tolist(), case
                assert out == len(spans)
    assert min(counts.values()) > 10, counts


def test_adaptive_windows_agree_with_pooling():
    for size, out in product(range(1, 9), [*range(-1, 12), None]):
        x = np.arange(1.0, size + 1)[None]
        spans = result_or_none(ndpool.adaptive_windows, size, out)
        pooled = result_or_none(ndpool.adaptive_pool, x, (out,))
        named = result_or_none(ndpool.adaptive_max_pool1d, x, (out,))
        assert np.array_equal(pooled, named)
        if out is not None:  # PyTorch supports None in 2-D and 3-D only
            assert np.array_equal(named, result_or_none(F.adaptive_max_pool1d, torch.from_numpy(x), (out,)))
        if pooled is None:
            assert spans is None
        else:
            assert [max(x[0, list(span)]) for span in spans] == pooled[0].tolist()


def test_large_input_sizes():
    """The input size may be larger than any other argument."""
    size, far = 2**40, 2**31 - 1
    assert ndpool.output_size(size, far) == len(ndpool.windows(size, far)) == 512
    assert ndpool.adaptive_windows(size, 2) == [range(0, size // 2), range(size // 2, size)]
    for function in (ndpool.output_size, ndpool.windows, ndpool.adaptive_windows):
        with pytest.raises(ValueError, match=rf"size must be from 1 to {2**63 - 1}; got size={2**63}"):
            function(2**63, 2)


def test_cut_gives_the_same_windows():
    rng = np.random.default_rng(0)
    small = [(k, s, d) for k, s, d in product(KERNELS, STRIDES, DILATIONS) if (k - 1) * d < 23]
    plans = [axis(23, k, s, p, d, True) for k, s, d in small for p in (0, k // 2)]
    plans += [
        geometry.adaptive("f", (size,), out).axes[0] for size, out in product((7, 16, 23), (2, 3, 5, 8, 30))
    ]
    samples = np.array([[0.1], [0.7]])
    starts = geometry.fractional("f", (23,), samples, 3, 9, None).axes[0]
    for plan in plans:
        o0 = int(rng.integers(plan.out))
        o1 = int(rng.integers(o0 + 1, plan.out + 1))
        part, where = plan.cut(o0, o1)
        assert (part.size, part.out) == (where.stop - where.start, o1 - o0)
        assert where.stop <= plan.size
        reached = [w for w in map(plan.window, range(o0, o1)) if w.taps]
        for o in range(o0, o1):
            whole, piece = plan.window(o), part.window(o - o0)
            assert piece[1:] == whole[1:]
            assert not whole.taps or piece.start + where.start == whole.start
        if plan.step == 1 and reached:  # no more input than needed
            assert where.start == min(w.start for w in reached)
            assert where.stop == max(w.start + w.taps for w in reached)
    part, where = starts.cut(2, 5)
    assert part.starts is not None
    assert starts.starts is not None
    assert (part.starts + where.start == starts.starts[:, 2:5]).all()
    with pytest.raises(ValueError, match="cut: outputs must be a range"):
        plans[0].cut(3, 3)


def taps_of(window):
    return [window.start + t * window.step for t in range(window.taps)]


def assert_transposed(plan, what):
    """Window i of the transposed plan is the outputs whose windows contain input i."""
    contain = [[] for _ in range(plan.size)]
    for o in range(plan.out):
        for i in taps_of(plan.window(o)):
            contain[i].append(o)
    back = plan.transposed()
    assert (back.size, back.out) == (plan.out, plan.size), what
    assert [taps_of(back.window(i)) for i in range(plan.size)] == contain, what
    assert back.kernel >= max(map(len, contain)), what


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13, 24])
def test_the_transposed_plan_gives_for_each_input_the_outputs_that_contain_it(size):
    for k, s, d, ceil in product(range(1, 8), range(1, 8), range(1, 7), (False, True)):
        for p in range(k // 2 + 1):
            try:
                plan = axis(size, k, s, p, d, ceil)
            except ValueError:
                continue
            assert_transposed(plan, (size, k, s, p, d, ceil))
    for out in range(1, 2 * size + 3):
        assert_transposed(geometry.adaptive("f", (size,), out).axes[0], (size, out))


@pytest.mark.parametrize("size", [1, 5, 13])
def test_phases_repeat_with_the_stride(size):
    for k, s, d, p in product(range(1, 7), range(1, 6), range(1, 5), range(4)):
        try:
            plan = axis(size, k, s, min(p, k // 2), d, False)
        except ValueError:
            continue
        firsts, counts, spacing = plan.phases()
        for i in range(size):
            n, phase = divmod(i, s)
            contain = range(firsts[phase] + n, firsts[phase] + n + counts[phase] * spacing, spacing)
            window = plan.transposed().window(i)
            assert [o for o in contain if 0 <= o < plan.out] == taps_of(window), (k, s, d, p, i)


def test_all_windows_at_once():
    for size, k, s, d in product((1, 5, 12), range(1, 6), range(1, 4), range(1, 4)):
        try:
            plan = axis(size, k, s, k // 2, d, True)
        except ValueError:
            continue
        starts, counts = plan.windows()
        for o, (start, count) in enumerate(zip(starts, counts, strict=True)):
            window = plan.window(o)
            assert window.taps == count, (size, k, s, d, o)
            assert not count or window.start == start, (size, k, s, d, o)


def small_plans():
    """Regular axes and parts of them, with padding on both sides, dilation and ceil mode; adaptive ones."""
    for size, k, s, d, ceil in product((1, 5, 12), range(1, 8), range(1, 5), range(1, 4), (False, True)):
        for p in range(k // 2 + 1):
            try:
                plan = axis(size, k, s, p, d, ceil)
            except ValueError:
                continue
            yield plan
            yield plan.cut(plan.out // 3, plan.out)[0]
    for size, out in product((1, 5, 12), range(1, 15)):
        yield geometry.adaptive("f", (size,), out).axes[0]


def test_tables_say_what_windows_say():
    """First inputs, taps, their numbers and divisors; for each input its outputs and its tap in them."""
    for plan in small_plans():
        inside = plan.trimmed()
        assert inside.tap_range() == (0, inside.kernel), plan
        first = [inside.origin + o * plan.stride for o in range(plan.out)]
        if plan.starts is not None:
            first = plan.starts.tolist()
        for o, (start, taps, lead, share) in enumerate(plan.table().tolist()):
            window = plan.window(o)
            assert inside.window(o)[1:3] == window[1:3], (plan, o)
            assert (taps, share) == (window.taps, max(1, window.share)), (plan, o)
            assert not taps or (start == window.start == first[o] + lead * plan.step), (plan, o)
        table, spacing, decrease = plan.transposed_table()
        for i, (o, count, tap, _) in enumerate(table.tolist()):
            contain = [o + n * spacing for n in range(count)]
            assert contain == [o for o in range(plan.out) if i in taps_of(plan.window(o))], (plan, i)
            for n, output in enumerate(contain if plan.regular else contain[:1]):
                assert i == first[output] + (tap - n * decrease) * plan.step, (plan, i, output)


def test_divided_windows():
    """Adjacent pieces of every window, none of them empty."""
    for size, out, n in product((13, 24), (1, 2, 3), (2, 3, 4)):
        plan = geometry.adaptive("f", (size,), out).axes[0]
        cut = plan.divided(n)
        assert cut is not None
        pieces = [taps_of(cut.window(o)) for o in range(cut.out)]
        assert all(pieces)
        for o in range(out):
            assert [*chain(*pieces[o * n : o * n + n])] == taps_of(plan.window(o)), (size, out, n)
    assert geometry.adaptive("f", (4,), 2).axes[0].divided(3) is None


def test_windows_of_each_plane_are_transposed_plane_by_plane():
    samples = np.random.default_rng(0).random((5, 2))
    for plan in geometry.fractional("f", (17, 23), samples, 3, (4, 9), None).axes:
        back = plan.transposed()
        assert back.starts.shape == back.counts.shape == (5, plan.size)
        for n in range(5):
            starts, counts = plan.starts[n], plan.counts[n]
            for i in range(plan.size):
                first, taps = back.starts[n, i], back.counts[n, i]
                outputs = [o for o in range(plan.out) if starts[o] <= i < starts[o] + counts[o]]
                assert list(range(first, first + taps)) == outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fractional_windows_equal_pytorch(dtype):
    rng = np.random.default_rng(1)
    for _ in range(300):
        h, w = rng.integers(3, 40, 2).tolist()
        kh, kw = int(rng.integers(1, h)), int(rng.integers(1, w))
        out = (int(rng.integers(1, h - kh + 2)), int(rng.integers(1, w - kw + 2)))
        samples = torch.from_numpy(rng.random((1, 2, 2))).to(dtype)
        plane = -torch.arange(float(h * w), dtype=dtype).view(1, 1, h, w).expand(1, 2, h, w)
        first = F.fractional_max_pool2d(plane, (kh, kw), out, None, True, samples)[1][0]
        plan = geometry.fractional("f", (h, w), samples[0].numpy(), (kh, kw), out, None)
        for plane_index in range(2):
            rows, columns = (a.starts[plane_index] for a in plan.axes)
            assert (first[plane_index].numpy() == rows[:, None] * w + columns).all()


def test_unpool_sizes_equal_pytorch():
    """pytorch#68589: default sizes, and the range of valid output sizes."""
    for size, k, s, p in product(range(1, 7), range(1, 5), range(1, 5), range(2)):
        values = torch.zeros(1, 1, size)
        indices = torch.zeros(1, 1, size, dtype=torch.int64)
        for asked in (None, *range(1, 30)):
            output_size = None if asked is None else (asked,)
            try:
                want = tuple(F.max_unpool1d(values, indices, k, s, p, output_size).shape[2:])
            except (RuntimeError, ValueError):
                want = (0,)
            if want == (0,):  # PyTorch may return an empty plane, in which no index is valid
                with pytest.raises(ValueError, match=r"^f: (output_size|padding)"):
                    geometry.unpool_size("f", (size,), k, s, p, output_size)
            else:
                assert geometry.unpool_size("f", (size,), k, s, p, output_size) == want


def test_unpool_restores_every_pooled_size():
    """Every input size of a pool is a valid output size of its unpooling, also after a dilated pool."""
    for size, k, s, d, p in product(range(1, 12), range(1, 5), range(1, 5), range(1, 4), range(3)):
        x = np.arange(1.0, size + 1)[None]
        for ceil in (False, True):
            pooled = result_or_none(ndpool.max_pool1d, x, k, s, p, d, ceil, True)
            if pooled is None or np.isinf(pooled[0]).any():
                continue
            back = ndpool.max_unpool1d(*pooled, k, s, p, x.shape, dilation=d)
            assert back.shape == x.shape
            assert set(back[back > 0]) == set(pooled[0][0])
            assert (back[back > 0] == x[back > 0]).all()


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_unpool_errors_suggest_a_fix(make):
    x = make(np.arange(81.0).reshape(1, 9, 9))
    values, indices = ndpool.max_pool2d(x, 3, dilation=2, return_indices=True)
    with pytest.raises(ValueError, match=r"index 40 .* \(limit 35\); pass output_size= with the sizes"):
        ndpool.max_unpool2d(values, indices, 3)
    with pytest.raises(ValueError, match=r"output_size=\(9, 9\) \(limits 4 to 8\); .* pass its dilation="):
        ndpool.max_unpool2d(values, indices, 3, output_size=x.shape)
    with pytest.raises(ValueError, match=r"output_size=\(9, 5\) \(limits 6 to 10\)"):
        ndpool.max_unpool2d(values, indices, 3, output_size=(9, 5), dilation=(3, 2))
    with pytest.raises(ValueError, match=r"output_size= be given; got sizes \(0, 0\) with padding=3"):
        ndpool.max_unpool2d(values, indices, 3, padding=3)
    assert ndpool.max_unpool2d(values, indices, 3, output_size=x.shape, dilation=2)[0, 4, 4] == 40


def test_public_helpers():
    assert ndpool.windows(5, 2, ceil_mode=True) == [range(0, 2), range(2, 4), range(4, 5)]
    assert ndpool.windows(5, 3, 1, (2, 0)) == [
        range(0, 1),
        range(0, 2),
        range(0, 3),
        range(1, 4),
        range(2, 5),
    ]
    assert ndpool.windows(7, 3, 2, 0, 2) == [range(0, 5, 2), range(2, 7, 2)]
    assert ndpool.output_size((112, 7), (3, 2), (2, 2), (1, 0), ceil_mode=True) == (57, 4)
    assert ndpool.output_size(2**40, 2) == 2**39
    assert ndpool.output_size((9, 9), 3, padding="same") == (3, 3)


def test_plan_cache_is_typed():
    assert geometry.sliding("f", (8, 8), 2, None, 0, 1, False, strict=True) is geometry.sliding(
        "f", (8, 8), 2, None, 0, 1, False, strict=True
    )
    for wrong in (2.0, True, (2.0, 2), (True, 2), "2", None):
        with pytest.raises(TypeError, match=r"^f: kernel_size must be an integer"):
            geometry.sliding("f", (8, 8), wrong, 2, 0, 1, False, strict=True)
