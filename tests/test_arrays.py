"""Arrays of other libraries: by DLPack or `__array__`, PIL images, memory maps, and what is refused.

array_api_strict has nothing but the array API standard, so what works with it works with every library that
follows the standard.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import cases
import ndpool
import oracle
from helpers import assert_close, assert_exact, hard_values, run_python
from ndpool import geometry
from ndpool._call import INDEX64, NO_EXTRA, Call, Unpool
from ndpool._dispatch import framework_of
from ndpool.reductions import REDUCTIONS

xp = pytest.importorskip("array_api_strict", reason="the strict array API is not installed")
DRAWS = 40


def put(a):
    return xp.asarray(a) if isinstance(a, np.ndarray) else a


def back(a):
    assert isinstance(a, type(xp.asarray(0)))
    return np.from_dlpack(a)


@pytest.mark.parametrize("name", cases.NAMES)
def test_arrays_of_the_standard_equal_the_oracle(name):
    """Every function comes back as its kind; mlx#1512: any array type, adaptive and 3-D included."""
    rng, seen = np.random.default_rng(100 + cases.NAMES.index(name)), 0
    while seen < DRAWS:
        case = cases.draw(rng, name, beyond=True)
        dtype = case.values.dtype
        if dtype.name in ("float16", "bfloat16") or (dtype == np.bool_ and "avg" in name):
            continue  # the standard has no halves, and no average of truth values
        seen += 1
        kwargs = {key: put(a) for key, a in case.kwargs.items()}
        x = xp.from_dlpack(case.array()) if case.layout != "readonly" else xp.asarray(case.array())
        result = getattr(ndpool, name)(x, *map(put, case.args), **kwargs)
        cases.assert_same(tuple(map(back, cases.as_tuple(result))), case.call_oracle(), case)


def test_general_functions():
    x = hard_values((3, 9, 10), np.float32, special=0)
    y = xp.asarray(x)
    for reduce in ("max", "min", "avg", "sum", "lp"):
        asked = {"axes": (0, 2), "reduce": reduce, "stride": 1, "padding": "same"}
        assert_exact(back(ndpool.pool(y, 3, **asked)), ndpool.pool(x, 3, **asked))
        assert_exact(
            back(ndpool.adaptive_pool(y, (4,), reduce=reduce)), ndpool.adaptive_pool(x, (4,), reduce=reduce)
        )
    values, indices = ndpool.pool(y, (2, 2), return_indices=True)
    want = ndpool.unpool(*ndpool.pool(x, (2, 2), return_indices=True), (9, 10))
    assert_exact(back(ndpool.unpool(values, indices, (9, 10))), want)
    assert_exact(back(ndpool.unpool(values, back(indices), (9, 10))), want)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_adaptive_sizes_that_do_not_divide(size):
    """tensorflow/addons#2321: 16 to 3 works; values, indices and shapes, also of more outputs than inputs."""
    x = hard_values((2, 3, size), np.float64, special=0)
    for out in range(1, 20):
        got = ndpool.adaptive_max_pool1d(xp.asarray(x), out, return_indices=True)
        assert_exact(tuple(map(back, got)), oracle.adaptive_max_pool(x, [out]))
        average = back(ndpool.adaptive_avg_pool1d(xp.asarray(x), out))
        assert_exact(average, ndpool.adaptive_avg_pool1d(x, out))
        assert_close(average, oracle.adaptive_avg_pool(x, [out]), size, np.abs(x).max())


def test_nothing_is_copied():
    x = xp.asarray(np.zeros((1, 64, 64)))
    assert ndpool.explain(ndpool.max_pool2d, x, 2).copies == ()
    assert ndpool.explain(ndpool.max_pool2d, Plain(np.zeros((1, 4, 4))), 2).copies == (
        "input through __array__",
    )


def test_out_and_dtype():
    x = xp.asarray(np.arange(16.0).reshape(1, 4, 4))
    out = xp.zeros((1, 2, 2), dtype=xp.float64), xp.zeros((1, 2, 2), dtype=xp.int64)
    assert ndpool.max_pool2d(x, 2, return_indices=True, out=out) is out
    assert back(out[0]).tolist() == [[[5, 7], [13, 15]]] == back(out[1]).tolist()
    single = xp.zeros((1, 2, 2), dtype=xp.float64)
    assert ndpool.avg_pool2d(x, 2, out=single) is single
    assert back(single).tolist() == [[[2.5, 4.5], [10.5, 12.5]]]
    for dtype in (xp.float32, "float32", np.float32):
        assert ndpool.pool(x, (2, 2), dtype=dtype).dtype == xp.float32
    with pytest.raises(TypeError, match=r"pool: the result must have a dtype that array_api_strict.* has"):
        ndpool.pool(x, (2, 2), dtype="float16")
    with pytest.raises(TypeError, match="pool: dtype must be a NumPy dtype; got dtype='yes'"):
        ndpool.pool(x, (2, 2), dtype="yes")
    with pytest.raises(TypeError, match=r"max_pool2d: out must be an array whose memory .*; got list"):
        ndpool.max_pool2d(x, 2, out=[1])
    with pytest.raises(ValueError, match=r"max_pool2d: out must have shape \(1, 2, 2\)"):
        ndpool.max_pool2d(x, 2, out=x)


def test_arguments_are_checked():
    x = xp.zeros((1, 4, 4))
    with pytest.raises(ValueError, match="max_pool2d: padding must be at most half the kernel"):
        ndpool.max_pool2d(x, 3, padding=2)
    with pytest.raises(TypeError, match=r"unpool: indices must be readable by numpy.from_dlpack; got"):
        ndpool.unpool(x, [1], (4,))
    with pytest.raises(TypeError, match="max_pool2d: input must have a supported dtype; got dtype=complex"):
        ndpool.max_pool2d(xp.zeros((1, 4, 4), dtype=xp.complex64), 2)


def test_results_stay_on_their_device():
    x = xp.ones((1, 4, 4), device=xp.Device("device1"))
    assert ndpool.max_pool2d(x, 2).device == x.device


def test_layers():
    x = xp.asarray(np.arange(16.0).reshape(1, 4, 4))
    assert back(ndpool.nn.MaxPool2d(2)(x)).tolist() == [[[5, 7], [13, 15]]]


class Plain:
    """An array by `__array__` alone: there is no way back."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class Exported:
    """An array by DLPack alone."""

    def __init__(self, values, device=(1, 0)):
        self.values, self.device_ = values, device

    def __dlpack__(self, **kwargs):
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device_


@pytest.mark.parametrize("kind", [Plain, Exported])
def test_arrays_without_a_way_back_give_numpy_arrays(kind):
    x = np.arange(32.0).reshape(2, 4, 4)
    got = ndpool.max_pool2d(kind(x), 2, return_indices=True)
    assert_exact(got, ndpool.max_pool2d(x, 2, return_indices=True))
    assert_exact(ndpool.max_unpool2d(kind(got[0]), kind(got[1]), 2), ndpool.max_unpool2d(*got, 2))


@pytest.mark.parametrize("device", [(2, "CUDA"), (8, "Metal"), (10, "ROCm"), (99, "99")])
def test_memory_of_other_devices_is_refused(device):
    x = Exported(np.zeros((1, 4, 4)), (device[0], 0))
    for call in (
        lambda: ndpool.max_pool2d(x, 2),
        lambda: ndpool.max_unpool2d(x, x, 2),
        lambda: ndpool.fractional_max_pool2d(x, 2, 2),
    ):
        with pytest.raises(
            TypeError, match=rf"input must be in memory that the CPU reads; .* on device {device[1]}"
        ):
            call()


def test_unreadable_arrays_are_refused():
    class Broken(Plain):
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("no")

    with pytest.raises(TypeError, match=r"pool: x must be readable by numpy.asarray; got .*Broken \(no\)"):
        ndpool.pool(Broken(0), (2,))


@pytest.mark.parametrize("value", [[[1, 2]], ((1, 2),), range(4)])
def test_lists_are_refused_with_advice(value):
    with pytest.raises(
        TypeError, match=r"max_pool1d: input must be an array .*convert it first, numpy.asarray\(input\)"
    ):
        ndpool.max_pool1d(value, 2)
    with pytest.raises(TypeError, match=r"unpool: values must be an array .*numpy.asarray\(values\)"):
        ndpool.unpool(value, value, (4,))


@pytest.mark.parametrize("value", [None, 3, "text", b"bytes", {1: 2}, np.float64(3), np.ndarray, object()])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(TypeError, match=r"max_pool1d: input must be an array .*; got "):
        ndpool.max_pool1d(value, 2)


def test_lazy_arrays_are_not_computed():
    """An array of Dask that ndpool does not know, as a data frame, would be computed by reading it."""

    def compute(self, dtype=None, copy=None):
        raise AssertionError("computed")

    kind = type("Frame", (), {"__module__": "dask.dataframe", "__array__": compute})
    with pytest.raises(TypeError, match=r"pool: x must not be lazy, .*; got dask.dataframe.Frame"):
        ndpool.pool(kind(), (2,))


def test_data_frames():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1.0, 5.0, 2.0, 4.0], "b": [0.0, 1.0, 2.0, 3.0]})
    assert ndpool.pool(frame, 2, axes=0).tolist() == [[5, 1], [4, 3]]
    assert ndpool.pool(frame["a"], (2,)).tolist() == [5, 4]
    with pytest.raises(TypeError, match="pool: x must have a supported dtype; got dtype="):
        ndpool.pool(pandas.Series(["a", "b"], dtype=object), (2,))


def test_no_library_is_imported():
    found = run_python(
        "import sys, numpy, ndpool\n"
        "ndpool.max_pool2d(numpy.ones((1, 4, 4)), 2)\n"
        "print(*sorted({'xarray', 'PIL', 'cupy', 'torch'} & sys.modules.keys()))"
    )
    assert found.strip() == ""


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_maps(tmp_path, mode):
    """A map, read-only too, is read in place; the result is a plain array."""
    x = hard_values((2, 9, 10), np.float32, special=0)
    path = tmp_path / "x.npy"
    np.save(path, x)
    before = os.stat(path).st_mtime_ns, path.read_bytes()
    mapped = np.load(path, mmap_mode=mode)
    assert isinstance(mapped, np.memmap)
    for call in (
        lambda a: ndpool.max_pool2d(a, 3, 2, 1, return_indices=True),
        lambda a: ndpool.avg_pool2d(a[:, ::2], 2),
        lambda a: ndpool.adaptive_avg_pool2d(a, 3),
        lambda a: ndpool.fractional_max_pool2d(a, 2, 3, generator=0),
        lambda a: ndpool.pool(a, 2, axes=0, reduce="sum"),
        lambda a: ndpool.unpool(a, np.zeros(a.shape, int), (9, 10)),
    ):
        got = cases.as_tuple(call(mapped))
        assert all(type(part) is np.ndarray for part in got)
        assert_exact(got, call(x))
    assert ndpool.explain(ndpool.max_pool2d, mapped, 2).copies == ()
    assert (os.stat(path).st_mtime_ns, path.read_bytes()) == before


def test_results_into_a_memory_map(tmp_path):
    x = hard_values((2, 9, 10), np.float32, special=0)
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, (2, 4, 5))
    assert ndpool.max_pool2d(x, 2, out=out) is out
    out.flush()
    assert_exact(np.load(tmp_path / "y.npy"), ndpool.max_pool2d(x, 2))
    closed = np.load(tmp_path / "y.npy", mmap_mode="r")
    with pytest.raises(ValueError, match="max_pool2d: out must not be read-only"):
        ndpool.max_pool2d(x, 2, out=closed)


MODES = ["1", "L", "LA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16", "I;16B"]


@pytest.fixture(scope="module")
def pillow():
    return pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def picture(pillow, mode, size=(13, 10)):
    """A random image of a mode, and its pixels."""
    rng = np.random.default_rng(0)
    blank = np.asarray(pillow.new(mode, size))
    data = rng.integers(0, 2 if mode == "1" else 200, blank.shape)
    if mode == "1":
        image = pillow.fromarray(data.astype(np.uint8) * 255).convert("1")
    else:
        image = pillow.frombytes(mode, size, data.astype(blank.dtype).tobytes())
    return image, np.asarray(image)


@pytest.mark.parametrize("mode", MODES)
def test_images_stay_images(pillow, mode):
    image, pixels = picture(pillow, mode)
    native = pixels.astype(pixels.dtype.newbyteorder("="))
    image.info["dpi"] = (300, 300)
    for call in (
        lambda x, axes: ndpool.pool(x, 2, axes=axes, reduce="min"),
        lambda x, axes: ndpool.pool(x, (2, 3), axes=axes, ceil_mode=True),
        lambda x, axes: ndpool.adaptive_pool(x, 4, axes=axes),
        lambda x, axes: ndpool.pool(x, 1, axes=axes),
    ):
        got = call(image, (0, 1))
        assert (got.mode, got.info) == (mode, {"dpi": (300, 300)})
        assert_exact(np.asarray(got).astype(native.dtype), call(native, (0, 1)))
    assert np.array_equal(np.asarray(image), pixels)
    if mode != "1":
        got = ndpool.pool(image, 2, axes=(0, 1), reduce="avg")
        assert_exact(np.asarray(got).astype(native.dtype), ndpool.pool(native, 2, axes=(0, 1), reduce="avg"))


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "F"])
def test_named_functions_pool_height_and_width(pillow, mode):
    image, pixels = picture(pillow, mode)
    planes = np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels[None]

    def joined(planes):
        return np.moveaxis(planes, 0, -1) if pixels.ndim == 3 else planes[0]

    for call in (
        lambda x: ndpool.max_pool2d(x, 3, 2, 1),
        lambda x: ndpool.avg_pool2d(x, 2),
        lambda x: ndpool.adaptive_avg_pool2d(x, (3, 4)),
        lambda x: ndpool.fractional_max_pool2d(x, 2, 4, generator=1),
        ndpool.nn.MaxPool2d(2),
    ):
        got = call(image)
        assert got.mode == mode
        assert_exact(np.asarray(got), joined(call(planes)))
    values, indices = ndpool.max_pool2d(image, 2, return_indices=True)
    want = ndpool.max_pool2d(planes, 2, return_indices=True)
    assert values.mode == mode
    assert_exact(indices, joined(want[1]))
    got = ndpool.max_unpool2d(values, indices, 2, output_size=(10, 13))
    assert_exact(np.asarray(got), joined(ndpool.max_unpool2d(*want, 2, output_size=(10, 13))))
    both = ndpool.pool(image, (2, 2), return_indices=True)
    assert_exact(np.asarray(both[0]), np.asarray(values))
    assert_exact(both[1], indices)
    assert_exact(np.asarray(ndpool.unpool(*both, (10, 13))), np.asarray(got))


def test_results_that_are_no_image_are_arrays(pillow):
    image, pixels = picture(pillow, "RGB")
    assert_exact(ndpool.pool(image, (2, 2), reduce="sum"), ndpool.pool(pixels, 2, axes=(0, 1), reduce="sum"))
    got = ndpool.pool(image, (2, 2), reduce="avg", dtype="float32")
    assert_exact(got, ndpool.pool(pixels, 2, axes=(0, 1), reduce="avg", dtype="float32"))
    assert_exact(ndpool.pool(image, 3, axes=2), ndpool.pool(pixels, 3, axes=2))
    out = np.zeros((5, 6, 3), np.uint8)
    assert ndpool.pool(image, (2, 2), out=out) is out
    assert_exact(out, ndpool.pool(pixels, 2, axes=(0, 1)))


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_palettes_are_refused(pillow, mode):
    image = pillow.new("P", (4, 4))
    image = image if mode == "P" else image.convert("PA")
    with pytest.raises(TypeError, match=rf"pool: x must not have a palette, .*mode='{mode}'"):
        ndpool.pool(image, 2, axes=(0, 1))
    with pytest.raises(TypeError, match="max_pool2d: input must not have a palette"):
        ndpool.max_pool2d(image, 2)


def test_images_have_two_axes(pillow):
    image, _ = picture(pillow, "L")
    with pytest.raises(TypeError, match="max_pool3d: an image has two axes to pool"):
        ndpool.max_pool3d(image, 2)
    with pytest.raises(TypeError, match="max_pool2d: out must not be given for an image"):
        ndpool.max_pool2d(image, 2, out=np.zeros((5, 6), np.uint8))


def test_files_of_images(pillow, tmp_path):
    """An opened file is an image of a class of its own."""
    image, pixels = picture(pillow, "RGB")
    image.save(tmp_path / "x.png")
    with pillow.open(tmp_path / "x.png") as opened:
        assert type(opened) is not pillow.Image
        got = ndpool.pool(opened, 2, axes=(0, 1))
    assert_exact(np.asarray(got), ndpool.pool(pixels, 2, axes=(0, 1)))


def test_cupy_arrays_need_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where the library behind the adapter is missing
    monkeypatch.delitem(sys.modules, "ndpool.adapters.cupy", raising=False)
    kind = type("ndarray", (SimpleNamespace,), {"__module__": "cupy"})
    with pytest.raises(ImportError, match="max_pool2d: CuPy arrays need PyTorch with CUDA"):
        ndpool.max_pool2d(kind(shape=(1, 4, 4)), 2)


def test_blocks_of_larger_arrays():
    """dask#12082: the blocks of a chunked array may be of any kind."""
    x = hard_values((2, 8, 9), np.float32, special=0)
    call = {"axes": (1, 2)}
    framework = framework_of("pool", xp.asarray(x))
    plan = geometry.plan("pool", (8, 9), (2, None, 0, 1, False, True), False)
    for extra in (NO_EXTRA, INDEX64):
        made = Call("pool", REDUCTIONS["max"], (1, 2), plan, extra)
        got = cases.as_tuple(framework.run(made, xp.asarray(x)))
        want = cases.as_tuple(ndpool.pool(x, 2, return_indices=extra == INDEX64, **call))
        assert_exact(tuple(map(back, got)), want)
    got = framework.unpool(Unpool("unpool", (1, 2), (8, 9)), *map(xp.asarray, want))
    assert_exact(back(got), ndpool.unpool(*want, (8, 9)))
    out = xp.zeros((2, 4, 4), dtype=xp.float32)
    assert framework.run(made._replace(extra=NO_EXTRA, out=out), xp.asarray(x)) is out
    assert_exact(back(out), want[0])
    samples = np.random.default_rng(0).random((1, 2, 2)).astype(np.float32)
    drawn = Call("fractional_max_pool2d", REDUCTIONS["max"], (1, 2), None, windows=(2, 2, 3, 4))
    got = framework.fractional(drawn, xp.asarray(x), xp.asarray(samples), None)
    assert_exact(back(got), ndpool.fractional_max_pool2d(x, 2, (3, 4), _random_samples=samples))
