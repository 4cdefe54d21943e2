"""Pyramids: levels by definition, in memory and as OME-Zarr, each from the one before, in bounded memory."""

import os
from itertools import pairwise, product

import numpy as np
import pytest

import ndpool
from helpers import assert_close, assert_exact, hard_values, not_sanitized, plain, run_python

REDUCERS = {"avg": np.mean, "max": np.max, "min": np.min}


def next_level(x, factors, reduce):
    """The level after `x` by definition: each block, cut off at the end, reduced to a value."""
    out = np.empty([-(-n // f) for n, f in zip(x.shape, factors, strict=True)], x.dtype)
    for at in product(*map(range, out.shape)):
        block = x[tuple(slice(o * f, (o + 1) * f) for o, f in zip(at, factors, strict=True))]
        out[at] = REDUCERS[reduce](block.astype(np.float64) if reduce == "avg" else block)
    return out


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("reduce", REDUCERS)
def test_levels_by_definition(reduce, dtype):
    """The reduction that is asked for is the one that runs (ome-zarr-py#254, fractal-tasks-core#42)."""
    x = plain((13, 22), dtype) if dtype.startswith("f") else hard_values((13, 22), dtype)
    levels = ndpool.pyramid(x, 4, reduce)
    assert levels[0] is x
    for above, level in pairwise(levels):
        want = next_level(above, (2, 2), reduce)
        if reduce == "avg" and dtype.startswith("f"):
            assert_close(level, want, 4, 4.0)
        else:
            assert_exact(level, want)  # averages of integers are truncated towards zero
    assert [level.shape for level in levels] == [(13, 22), (7, 11), (4, 6), (2, 3)]


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_labels_stay_labels(reduce):
    """Max and min never invent a label; averages would (acquire-zarr#101)."""
    labels = np.random.default_rng(0).choice([0, 7, 1000], (9, 30, 41)).astype("uint16")
    levels = ndpool.pyramid(labels, 3, reduce)
    assert all(set(np.unique(level)) <= {0, 7, 1000} for level in levels)
    assert_exact(levels[2], next_level(next_level(labels, (2, 2, 2), reduce), (2, 2, 2), reduce))


@pytest.mark.parametrize(
    ("shape", "options", "want"),
    [
        ((100, 75), {"levels": 3}, [(100, 75), (50, 38), (25, 19)]),
        ((100, 75), {"levels": 1}, [(100, 75)]),
        ((5, 2), {"levels": 99}, [(5, 2), (3, 1), (2, 1), (1, 1)]),
        ((1, 1), {"levels": 5}, [(1, 1)]),
        ((600, 300), {}, [(600, 300), (300, 150), (150, 75)]),
        ((256, 256), {}, [(256, 256)]),
        ((10, 20, 30), {"levels": 2}, [(10, 20, 30), (5, 10, 15)]),
        ((4, 10, 20, 30), {"levels": 2}, [(4, 10, 20, 30), (4, 5, 10, 15)]),
        ((2, 4, 10, 20, 30), {"levels": 2}, [(2, 4, 10, 20, 30), (2, 4, 5, 10, 15)]),
        ((20, 30, 3), {"levels": 2, "axes": (0, 1)}, [(20, 30, 3), (10, 15, 3)]),
        ((20, 30, 3), {"levels": 2, "dims": "yxc"}, [(20, 30, 3), (10, 15, 3)]),
        ((20, 30, 3), {"levels": 2, "dims": "yxc", "axes": "x"}, [(20, 30, 3), (20, 15, 3)]),
        ((10, 20, 30), {"levels": 3, "factor": (1, 2, 3)}, [(10, 20, 30), (10, 10, 10), (10, 5, 4)]),
        ((10, 100), {"levels": 4, "factor": 4}, [(10, 100), (3, 25), (1, 7), (1, 2)]),
        ((0, 20, 30), {"levels": 2, "axes": (-2, -1)}, [(0, 20, 30), (0, 10, 15)]),
    ],
    ids=str,
)
def test_shapes(shape, options, want):
    assert [level.shape for level in ndpool.pyramid(np.zeros(shape, "float32"), **options)] == want


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"levels": 0}, ValueError, "levels must be from 1 to"),
        ({"levels": 2.0}, TypeError, "levels must be an integer; got levels=2.0"),
        ({"factor": 1}, ValueError, "factor must be at least 2 along one of the axes; got factor=1"),
        ({"factor": 0}, ValueError, "factor must be from 1 to"),
        ({"factor": (2, 2, 2)}, ValueError, "factor must .* 2"),
        ({"reduce": "sum"}, ValueError, r"reduce must keep the range of the values .*; got reduce='sum'"),
        ({"reduce": "nearest"}, ValueError, "reduce must be one of .*; got reduce='nearest'"),
        ({"axes": "t"}, ValueError, "axes must be among y, x; got axes='t'"),
        ({"axes": (0, 5)}, ValueError, "axes"),
        ({"dims": "zyx"}, ValueError, "dims must name the 2 axes"),
        ({"store": "p.npy"}, ValueError, r"store must end in .zarr or .zarr.zip; got 'p.npy'"),
        ({"store": "p.zarr", "ome_version": "1"}, ValueError, "ome_version must be 0.4 or 0.5"),
        ({"store": "p.zarr", "dims": "ab"}, ValueError, "dims must name the 2 axes with different letters"),
        ({"store": "p.zarr", "dims": "zy"}, ValueError, "must have 2 to 5 axes, x and y among them"),
        ({"store": "p.zarr", "scale": {"x": 0}}, ValueError, r"scale must be positive .*scale\['x'\]=0"),
        (
            {"store": "p.zarr", "chunks": (4,)},
            ValueError,
            r"chunks must be 2 integers, .*; got chunks=\(4,\)",
        ),
        ({"store": "p.zarr", "chunks": 0}, ValueError, "chunks must be at least 1; got chunks=0"),
        ({"store": "p.zarr", "chunks": 2.5}, ValueError, "chunks must be 2 integers, .*; got chunks=2.5"),
        ({"store": "p.zarr", "scale": 2}, TypeError, "scale must be a mapping by axis; got scale=2"),
        (
            {"store": "p.zarr", "scale": {"z": 2}},
            ValueError,
            r"scale must be for the axes y, x; got scale\['z'\]",
        ),
        (
            {"store": "p.zarr", "units": {"t": "s"}},
            ValueError,
            r"units must be for the axes .*; got units\['t'\]",
        ),
    ],
    ids=str,
)
def test_wrong_arguments(options, kind, message, tmp_path, monkeypatch):
    if "store" in options:
        pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=f"pyramid: .*{message}" if "axes" not in message else message):
        ndpool.pyramid(np.zeros((8, 8), "float32"), **options)
    assert os.listdir(tmp_path) == []


def test_wrong_inputs(tmp_path):
    with pytest.raises(ValueError, match=r"pyramid: store must say where the pyramid of a file goes; got 'a"):
        ndpool.pyramid("a.npy", 2)
    with pytest.raises(TypeError, match=r"average of dtype=bool"):
        ndpool.pyramid(np.zeros((8, 8), bool), 2)
    with pytest.raises(ValueError, match=r"pyramid: axes must say what to pool"):
        ndpool.pyramid(np.zeros((2,) * 6), 2)


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((0, 8)), {}, "pyramid: pooled axes must not be empty"),
        (np.zeros((8, 8), complex), {}, "pyramid: array must have a supported dtype; got dtype=complex128"),
        (np.zeros((8, 8), bool), {}, "pyramid: the average of dtype=bool .*; ask for reduce='max' or 'min'"),
        ([[1, 2], [3, 4]], {}, "pyramid: array must be an array; got list"),
        (np.zeros((8, 8)), {"dims": 5}, "pyramid: dims must be the names of the axes; got dims=5"),
        (np.zeros((8, 8)), {"dims": "xx"}, "pyramid: dims must name the 2 axes of the array; got dims="),
        (np.zeros((8, 8)), {"dims": ("xy", "")}, r"pyramid: axes must say what to pool .*dims=\('xy', ''\)"),
        (np.zeros((8, 8)), {"axes": 0.5}, "pyramid: axes must be an integer; got axes=0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_name_the_function(array, options, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        ndpool.pyramid(array, 2, **options)
    if not options and isinstance(array, np.ndarray):
        pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            ndpool.pyramid(array, 2, store=tmp_path / "p.zarr")
        assert os.listdir(tmp_path) == []


def test_too_many_axes(tmp_path):
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    with pytest.raises(
        ValueError, match=r"pyramid: OME-Zarr images must have 2 to 5 axes, .*\(2, 2, 2, 2, 2, 2\)"
    ):
        ndpool.pyramid(np.zeros((2,) * 6), 2, store=tmp_path / "p.zarr")


@pytest.mark.parametrize(
    ("names", "options", "pooled"),
    [
        (("y", "x", "c"), {}, (0, 1)),
        (("c", "y", "x"), {}, (1, 2)),
        (("time", "lat", "lon"), {}, (1, 2)),
        (("time", "lat", "lon"), {"axes": "lat"}, (1,)),
        (("row", "column", "band"), {}, (0, 1, 2)),
    ],
    ids=str,
)
def test_names_of_xarray(names, options, pooled, tmp_path):
    """Axes that have names are those of the names, in memory and as OME-Zarr: no colour is pooled."""
    xarray = pytest.importorskip("xarray", reason="needs xarray")
    x = plain((12, 14, 10), np.float32)
    named = xarray.DataArray(x, dims=names)
    want = ndpool.pyramid(x, 3, axes=pooled)
    for level, expected in zip(ndpool.pyramid(named, 3, **options), want, strict=True):
        assert level.dims == names
        assert_exact(level.values, expected)
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    order = (2, 0, 1) if names[2] == "c" else (0, 1, 2)
    for level, expected in zip(
        ndpool.pyramid(named, 3, store=tmp_path / "p.zarr", **options), want, strict=True
    ):
        assert_exact(level[...], np.ascontiguousarray(expected.transpose(order)))


def test_tensors():
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    x = hard_values((9, 14), "float32", special=0)
    for got, want in zip(ndpool.pyramid(torch.from_numpy(x), 3), ndpool.pyramid(x, 3), strict=True):
        assert isinstance(got, torch.Tensor)
        assert_exact(got.numpy(), want)


class Counted:
    """An array that counts the elements read from it."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, 0

    def __getitem__(self, where):
        found = self.array[where]
        self.read += found.size
        return found


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("suffix", ["zarr", "zarr.zip"])
def test_ome_zarr(suffix, version, tmp_path):
    """Each level from the one before: level 0 is read once (dask-image#136, ome-zarr-py#215)."""
    zarr = pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    x = hard_values((2, 9, 50, 61), "int16", 3)
    counted = Counted(x)
    levels = ndpool.pyramid(
        counted,
        4,
        store=tmp_path / f"p.{suffix}",
        ome_version=version,
        chunks=np.array((1, 4, 16, 16)),
        memory="64KiB",
        scale={"z": 2.0, "y": np.float32(0.5), "x": 0.5},
        units={"z": "micrometer"},
    )
    assert counted.read == x.size
    assert os.listdir(tmp_path) == [f"p.{suffix}"]
    for got, want in zip(levels, ndpool.pyramid(x, 4), strict=True):
        assert_exact(got[...], want)
        assert got.metadata.zarr_format == {"0.4": 2, "0.5": 3}[version]
    store = str(tmp_path / f"p.{suffix}")
    group = zarr.open_group(zarr.storage.ZipStore(store) if suffix.endswith("zip") else store, mode="r")
    attributes = dict(group.attrs)
    if version == "0.5":
        attributes = attributes["ome"]
        assert attributes["version"] == "0.5"
        assert group["1"].metadata.dimension_names == ("c", "z", "y", "x")
    scales = attributes["multiscales"][0]
    assert scales.get("version", "0.5") == version
    assert scales["name"] == "p"
    assert scales["type"] == "mean"
    assert scales["axes"] == [
        {"name": "c", "type": "channel"},
        {"name": "z", "type": "space", "unit": "micrometer"},
        {"name": "y", "type": "space"},
        {"name": "x", "type": "space"},
    ]
    assert [entry["path"] for entry in scales["datasets"]] == ["0", "1", "2", "3"]
    assert scales["datasets"][0]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1.0, 2.0, 0.5, 0.5]}
    ]
    # The centre of a pixel of level 2 is that of four pixels in a row.
    assert scales["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1.0, 8.0, 2.0, 2.0]},
        {"type": "translation", "translation": [0.0, 3.0, 0.75, 0.75]},
    ]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_reader_of_ome_zarr(version, tmp_path):
    """What the `ome-zarr` package reads is what was written."""
    io = pytest.importorskip("ome_zarr.io", reason="the reference reader is ome-zarr")
    reader = pytest.importorskip("ome_zarr.reader", reason="the reference reader is ome-zarr")
    x = hard_values((2, 33, 47), "uint16", 3)
    ndpool.pyramid(x, 3, "max", store=tmp_path / "p.zarr", dims="cyx", ome_version=version, scale={"x": 0.25})
    (node,) = reader.Reader(io.parse_url(str(tmp_path / "p.zarr")))()
    want = ndpool.pyramid(x, 3, "max", axes=(1, 2))
    for got, expected in zip(node.data, want, strict=True):
        assert_exact(got.compute(), expected)
    assert [axis["name"] for axis in node.metadata["axes"]] == ["c", "y", "x"]
    transforms = node.metadata["coordinateTransformations"]
    assert [t[0]["scale"] for t in transforms] == [[1, 1, 0.25], [1, 2, 0.5], [1, 4, 1]]
    assert [t[1]["translation"] for t in transforms[1:]] == [[0, 0.5, 0.125], [0, 1.5, 0.375]]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_metadata_is_valid(version, tmp_path):
    """The models of the specification accept the metadata."""
    name = "ome_zarr_models.v" + version.replace(".", "")
    models = pytest.importorskip(name, reason="the models are in ome-zarr-models")
    zarr = pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    ndpool.pyramid(np.zeros((3, 5, 40, 40), "uint8"), 3, store=tmp_path / "p.zarr", ome_version=version)
    image = models.Image.from_zarr(zarr.open_group(str(tmp_path / "p.zarr"), mode="r"))
    assert len(image.datasets[0]) == 3


def test_files(tmp_path):
    """A pyramid of a file, and of a level of a pyramid; colours become channels."""
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    images = pytest.importorskip("PIL.Image", reason="PNG files need Pillow")
    x = hard_values((40, 60, 3), "uint8", 3)
    images.fromarray(x).save(tmp_path / "in.png")
    levels = ndpool.pyramid(tmp_path / "in.png", 3, store=tmp_path / "a.zarr")
    for got, want in zip(levels, ndpool.pyramid(x, 3, axes=(0, 1)), strict=True):
        assert_exact(got[...], np.ascontiguousarray(np.moveaxis(want, -1, 0)))
    again = ndpool.pyramid(tmp_path / "a.zarr", 2, store=tmp_path / "b.zarr", key="1")
    assert_exact(again[1][...], levels[2][...])
    assert_exact(ndpool.pyramid(tmp_path / "a.zarr", 2, store=tmp_path / "c.zarr")[1][...], levels[1][...])


def test_fortran_and_foreign_byte_order(tmp_path):
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    x = np.asfortranarray(hard_values((20, 33, 41), ">f4", special=0))
    np.save(tmp_path / "in.npy", x)
    levels = ndpool.pyramid(tmp_path / "in.npy", 3, store=tmp_path / "a.zarr", chunks=8, memory="64KiB")
    for got, want in zip(levels, ndpool.pyramid(x.astype("f4"), 3), strict=True):
        assert_exact(got[...], np.ascontiguousarray(want))


def test_dask_arrays_are_written_block_by_block(tmp_path):
    """Any object with slices: a Dask array is computed a tile at a time."""
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    da = pytest.importorskip("dask.array", reason="Dask is not installed")
    x = hard_values((4, 60, 70), "float32", special=0)
    levels = ndpool.pyramid(da.from_array(x, chunks=(2, 20, 30)), 3, store=tmp_path / "a.zarr")
    for got, want in zip(levels, ndpool.pyramid(x, 3), strict=True):
        assert_exact(got[...], want)
    assert levels[0].chunks == (2, 20, 30)


def test_a_pyramid_is_continued(tmp_path):
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    x = hard_values((64, 64), "float32", special=0)
    want = ndpool.pyramid(x, 4)
    how = {"store": tmp_path / "a.zarr", "chunks": 8, "memory": 12_000}
    stops = 0
    for n in range(1, 60):
        told = []

        def progress(done, total, told=told, n=n):
            told.append(done / total)
            if len(told) == n:
                raise KeyboardInterrupt

        try:
            levels = ndpool.pyramid(x, 4, resume=True, progress=progress, **how)
        except KeyboardInterrupt:
            stops += 1
            assert os.listdir(tmp_path) == ["a.zarr.partial"]
        else:
            break
    assert stops > 5
    assert told[-1] == 1
    for got, expected in zip(levels, want, strict=True):
        assert_exact(got[...], expected)
    assert os.listdir(tmp_path) == ["a.zarr"]


@not_sanitized
def test_memory_is_bounded(tmp_path):
    """A volume of 128 MiB with a budget of 24 MiB (ome-zarr-py#215)."""
    pytest.importorskip("zarr", reason="OME-Zarr needs zarr")
    x = np.lib.format.open_memmap(tmp_path / "in.npy", mode="w+", dtype="float32", shape=(32, 1024, 1024))
    x[:, 500] = 1
    x.flush()
    code = """if True:
        import re, sys, ndpool
        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        ndpool.pyramid(sys.argv[1] + "/in.npy", 2, store=sys.argv[1] + "/w.zarr", axes="x", factor=1024,
                       chunks=(32, 64, 64), memory="24MiB")
        before = peak()
        ndpool.pyramid(sys.argv[1] + "/in.npy", 4, store=sys.argv[1] + "/p.zarr", chunks=64, memory="24MiB")
        print(before, peak())
    """
    before, after = map(int, run_python(code, str(tmp_path)).split())
    assert after - before < 40 << 20
    assert after < 192 << 20


@pytest.mark.parametrize("reduce", REDUCERS)
def test_levels_of_dask_arrays_are_lazy_and_equal(reduce):
    """dask-image#136: a pyramid of a chunked array computes nothing by itself."""
    da = pytest.importorskip("dask.array", reason="needs Dask")
    dask = pytest.importorskip("dask", reason="needs Dask")
    x = plain((37, 50), np.float32)

    def forbidden(*args, **kwargs):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=forbidden):
        levels = ndpool.pyramid(da.from_array(x, chunks=(9, 16)), 4, reduce)
    for lazy, level in zip(levels, ndpool.pyramid(x, 4, reduce), strict=True):
        assert isinstance(lazy, da.Array)
        assert_exact(lazy.compute(scheduler="sync"), level)
