"""Files: every format, streamed within bounded memory, equals the same call on the whole array.

What can go wrong with files is tested here for the functions, and in ``test_cli_files.py`` for the command.
"""

import asyncio
import errno
import json
import os
import zipfile

import numpy as np
import pytest

import ndpool
from helpers import assert_exact, hard_values, not_sanitized, run_python

DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64", ">f4", ">i2"]


def save(folder, x, name="in.npy"):
    path = folder / name
    np.save(path, x)
    return path


def streamed(function, source, target, *args, memory, **kwargs):
    """The result with as little memory as possible, from a first guess."""
    while True:
        try:
            path = function(source, target, *args, memory=memory, overwrite=True, **kwargs)
        except MemoryError:
            memory *= 2
        else:
            return np.load(path)


def draw(rng):
    """An array and the arguments of a pooling that is valid for it."""
    shape = tuple(int(n) for n in rng.integers(1, 14, rng.integers(1, 5)))
    n_axes = int(rng.integers(1, len(shape) + 1))
    axes = [int(a) for a in rng.permutation(len(shape))[:n_axes]]
    dtype = str(rng.choice(DTYPES))
    x = hard_values(shape, np.dtype(dtype).newbyteorder("="), int(rng.integers(1 << 30))).astype(dtype)
    reduce = str(rng.choice(["max", "min", "avg", "sum", "lp"]))
    if dtype == "bool" and reduce in ("avg", "lp"):
        reduce = "max"
    options = {"reduce": reduce, "axes": axes}
    if reduce == "avg" and np.dtype(dtype).kind in "iu" and rng.random() < 0.5:
        options["dtype"] = "float32"
    if rng.random() < 0.3:
        sizes = [int(rng.integers(1, 9)) for _ in axes]
        return x, ndpool.files.adaptive_pool, ndpool.adaptive_pool, sizes, options
    window = [int(rng.integers(1, 5)) for _ in axes]
    options["stride"] = [int(rng.integers(1, 5)) for _ in axes]
    options["dilation"] = [int(rng.integers(1, 4)) for _ in axes]
    options["padding"] = [(int(rng.integers(0, w)), int(rng.integers(0, w))) for w in window]
    options["ceil_mode"] = bool(rng.random() < 0.5)
    if reduce == "avg":
        options["count_include_pad"] = bool(rng.random() < 0.5)
    return x, ndpool.files.pool, ndpool.pool, window, options


@pytest.mark.parametrize("seed", range(6))
def test_tiles_equal_the_whole(seed, tmp_path):
    """Random calls with a memory of a few windows: the same bits as on the whole array."""
    rng, compared = np.random.default_rng(seed), 0
    while compared < 40:
        x, of_file, of_array, window, options = draw(rng)
        if rng.random() < 0.3:
            x = np.asfortranarray(x)
        try:
            want = of_array(x, window, **options)
        except ValueError:
            continue
        source = save(tmp_path, x)
        got = streamed(of_file, source, tmp_path / "out.npy", window, memory=64, **options)
        assert_exact(got, want)
        compared += 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy", "out.npy"]


FORMATS = ["npy", "npz", "zarr", "zarr.zip", "tif", "nc", "h5"]
NEEDS = {"zarr": "zarr", "zip": "zarr", "tif": "tifffile", "nc": "netCDF4", "h5": "netCDF4", "png": "PIL"}


def needs(*suffixes):
    for suffix in suffixes:
        if (module := NEEDS.get(suffix.rpartition(".")[2])) is not None:
            pytest.importorskip(module, reason=f"{suffix} files need {module}")
            if module == "netCDF4":
                pytest.importorskip("xarray", reason="NetCDF files are read through xarray")


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
def test_every_format_to_every_format(first, second, tmp_path):
    needs(first, second)
    x = hard_values((3, 21, 17), "float32", 3, special=0)
    a, b = tmp_path / f"a.{first}", tmp_path / f"b.{second}"
    ndpool.files.pool(save(tmp_path, x), a, 1)
    assert ndpool.files.pool(a, b, (3, 2), stride=2, padding=1, reduce="avg", memory="300KiB") == b
    got = np.load(ndpool.files.pool(b, tmp_path / "out.npy", 1))
    assert_exact(got, ndpool.pool(x, (3, 2), stride=2, padding=1, reduce="avg"))
    names = {"in.npy", a.name, b.name, "out.npy"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "float32", "float64"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_dtypes_survive(suffix, dtype, tmp_path):
    needs(suffix)
    x = hard_values((9, 14), dtype, 5, special=0.1)
    path = ndpool.files.pool(save(tmp_path, x), tmp_path / f"a.{suffix}", 2)
    assert_exact(np.load(ndpool.files.pool(path, tmp_path / "b.npy", 1)), ndpool.pool(x, (2, 2)))


@pytest.mark.parametrize("dtype", ["bool", "float16", "uint64"])
@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr", "zarr.zip", "tif"])
def test_rarer_dtypes(suffix, dtype, tmp_path):
    needs(suffix)
    x = hard_values((9, 14), dtype, 5)
    call = ndpool.files.pool, save(tmp_path, x), tmp_path / f"a.{suffix}", 2
    if (suffix, dtype) == ("tif", "bool"):
        with pytest.raises(TypeError, match=r"TIFF files must have whole bytes; got dtype=bool"):
            call[0](*call[1:])
        assert os.listdir(tmp_path) == ["in.npy"]
        return
    assert_exact(
        np.load(ndpool.files.pool(call[0](*call[1:]), tmp_path / "b.npy", 1)), ndpool.pool(x, (2, 2))
    )


@pytest.mark.parametrize("suffix", ["npy", "zarr", "tif"])
def test_both_integers_of_64_bits(suffix, tmp_path):
    """NumPy has two types of that size; TIFF files are read as the other one."""
    needs(suffix, "zarr")
    x = hard_values((9, 14), "int64", 5).astype(np.longlong)
    path = ndpool.files.pool(x, tmp_path / f"a.{suffix}", 2)
    zarr = ndpool.files.pool(path, tmp_path / "b.zarr", 1)
    assert_exact(np.load(ndpool.files.pool(zarr, tmp_path / "b.npy", 1)), ndpool.pool(x, (2, 2)))
    assert_exact(
        ndpool.pyramid(x, 2, "max", store=tmp_path / "p.zarr")[1][...], ndpool.pool(x, (2, 2), ceil_mode=True)
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_format_has_bfloat16(suffix, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 is a dtype of ml_dtypes")
    needs(suffix, "zarr")
    x = np.ones((8, 8), ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match=r"pool: files must have a dtype of NumPy; got dtype=bfloat16"):
        ndpool.files.pool(x, tmp_path / f"no.{suffix}", 2)
    with pytest.raises(TypeError, match=r"pyramid: files must have a dtype of NumPy; got dtype=bfloat16"):
        ndpool.pyramid(x, 2, store=tmp_path / "no.zarr")
    assert os.listdir(tmp_path) == []
    path = ndpool.files.pool(x, tmp_path / f"out.{suffix}", 2, dtype="float32")
    assert np.load(ndpool.files.pool(path, tmp_path / "b.npy", 1)).dtype == np.float32


def test_npy_keeps_its_order(tmp_path):
    x = np.asfortranarray(hard_values((30, 40), "float32"))
    path = ndpool.files.pool(save(tmp_path, x), tmp_path / "b.npy", 2, memory=4000)
    got = np.load(path)
    assert got.flags.f_contiguous
    assert_exact(got, ndpool.pool(x, (2, 2)))


def test_npz_by_key(tmp_path):
    x, z = hard_values((8, 8), "int16", 1), hard_values((6, 6), "int16", 2)
    np.savez(tmp_path / "plain.npz", x=x, z=z)
    np.savez_compressed(tmp_path / "packed.npz", x=x, z=z)
    for name in ("plain.npz", "packed.npz"):
        path = ndpool.files.pool(tmp_path / name, tmp_path / "out.npz", 2, key="z", overwrite=True)
        with np.load(path) as got:
            assert_exact(got["z"], ndpool.pool(z, (2, 2)))
        for key in (None, "y"):
            with pytest.raises(ValueError, match=rf"pool: key must name one .* \(x, z\); got key={key!r}"):
                ndpool.files.pool(tmp_path / name, tmp_path / "no.npy", 2, key=key)
    with pytest.raises(MemoryError, match=r"pool: memory must hold all of .*packed.npz, because compressed"):
        ndpool.files.pool(tmp_path / "packed.npz", tmp_path / "no.npy", 2, key="x", memory=100)


@pytest.mark.parametrize("chunks", [(1, 5, 7), (3, 16, 16), (2, 64, 64)])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_chunks(chunks, zarr_format, tmp_path):
    """Any chunks, smaller than the window or larger than the tiles, give the same result."""
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = hard_values((3, 40, 50), "float32", 7)
    array = zarr.create_array(
        str(tmp_path / "in.zarr"), shape=x.shape, chunks=chunks, dtype=x.dtype, zarr_format=zarr_format
    )
    array[...] = x
    options = {"stride": 2, "padding": 2, "dilation": 2, "reduce": "avg"}
    want = ndpool.pool(x, (4, 3), **options)
    for target in ("out.zarr", "out.npy"):
        ndpool.files.pool(tmp_path / "in.zarr", tmp_path / target, (4, 3), memory="200KiB", **options)
    assert_exact(np.load(tmp_path / "out.npy"), want)
    got = zarr.open_array(str(tmp_path / "out.zarr"), mode="r")
    assert_exact(got[...], want)
    assert got.metadata.zarr_format == zarr_format
    assert got.chunks == tuple(min(c, n) for c, n in zip(chunks, want.shape, strict=True))


def test_zarr_groups(tmp_path):
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    group = zarr.create_group(str(tmp_path / "in.zarr"))
    x = hard_values((8, 8), "int32")
    for name in ("a", "deep/b"):
        group.create_array(name, shape=x.shape, dtype=x.dtype)[...] = x
    source = tmp_path / "in.zarr"
    for at, key in ((source, "deep/b"), (source, "a"), (source / "deep", None), (source / "a", None)):
        assert_exact(
            np.load(ndpool.files.pool(at, tmp_path / "o.npy", 2, key=key, overwrite=True)),
            ndpool.pool(x, (2, 2)),
        )
    with pytest.raises(ValueError, match=r"key must name one of the arrays in .* \(a\); got key='c'"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2, key="c")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"a folder must be a Zarr array or group"):
        ndpool.files.pool(tmp_path / "folder", tmp_path / "no.npy", 2)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"compression": "zlib"},
        {"compression": "zlib", "tile": (16, 16)},
        {"compression": "zlib", "rowsperstrip": 3},
        {"bigtiff": True, "byteorder": ">"},
        {"bigtiff": True, "tile": (16, 32)},
    ],
    ids=str,
)
def test_tiff(how, tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="TIFF files need tifffile")
    pytest.importorskip("zarr", reason="compressed TIFF files are read through zarr")
    x = hard_values((4, 50, 70), "uint16", 9)
    tifffile.imwrite(tmp_path / "in.tif", x, photometric="minisblack", metadata={"axes": "ZYX"}, **how)
    path = ndpool.files.pool(tmp_path / "in.tif", tmp_path / "out.tif", 2, reduce="avg", memory="100KiB")
    with tifffile.TiffFile(path) as file:
        assert file.series[0].axes == "ZYX"
        assert_exact(file.asarray(), ndpool.pool(x, (2, 2), reduce="avg"))
    path = ndpool.files.pool(path, tmp_path / "z.npy", 2, axes="z")
    assert np.load(path).shape == (2, 25, 35)


def test_large_tiff_is_a_bigtiff(tmp_path, monkeypatch):
    tifffile = pytest.importorskip("tifffile", reason="TIFF files need tifffile")
    from ndpool.files import _targets

    monkeypatch.setattr(_targets, "BIGTIFF", 1000)
    x = hard_values((50, 70), "uint16", 9)
    for window, big in ((1, True), (4, False)):
        path = ndpool.files.pool(x, tmp_path / "out.tif", window, overwrite=True)
        with tifffile.TiffFile(path) as file:
            assert file.is_bigtiff is big
            assert_exact(file.asarray(), ndpool.pool(x, (window, window)))


@pytest.mark.parametrize("mode", ["1", "L", "I;16", "LA", "RGB", "RGBA"])
def test_png(mode, tmp_path):
    """Height and width are pooled, colours are not."""
    images = pytest.importorskip("PIL.Image", reason="PNG files need Pillow")
    shape = (20, 31) + ((len(mode),) if len(mode) > 1 and mode[0] != "I" else ())
    dtype = {"1": "bool", "I;16": "uint16"}.get(mode, "uint8")
    x = hard_values(shape, dtype, 4)
    images.fromarray(x).save(tmp_path / "in.png")
    path = ndpool.files.pool(tmp_path / "in.png", tmp_path / "out.png", 2)
    with images.open(path) as image:
        assert image.mode == mode
        assert_exact(np.asarray(image), ndpool.pool(x, (2, 2), axes=(0, 1)))


def test_tiff_of_one_axis(tmp_path):
    pytest.importorskip("tifffile", reason="TIFF files need tifffile")
    x = hard_values((20,), "uint16", 4)
    path = ndpool.files.pool(x, tmp_path / "out.tif", 2)
    assert_exact(np.load(ndpool.files.pool(path, tmp_path / "b.npy", 1)), ndpool.pool(x, (2,)))


def test_jpeg(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="JPEG files need Pillow")
    x = np.full((32, 48, 3), 90, "uint8")
    images.fromarray(x).save(tmp_path / "in.jpg")
    path = ndpool.files.adaptive_pool(tmp_path / "in.jpg", tmp_path / "out.jpeg", (4, 6), reduce="avg")
    with images.open(path) as image:
        assert (image.format, image.size) == ("JPEG", (6, 4))
        assert np.abs(np.asarray(image).astype(int) - 90).max() < 3


def test_what_an_image_cannot_hold(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="PNG files need Pillow")
    with pytest.raises(TypeError, match=r"PNG files must be height x width of bool, uint8, uint16.*float32"):
        ndpool.files.pool(np.ones((4, 4), "float32"), tmp_path / "no.png", 2)
    with pytest.raises(TypeError, match=r"JPEG files must be height x width of uint8"):
        ndpool.files.pool(np.ones((4, 4, 7), "uint8"), tmp_path / "no.jpg", 2, axes=(0, 1))
    images.new("P", (8, 8)).save(tmp_path / "palette.png")
    with pytest.raises(TypeError, match=r"must hold brightness or colours; got a palette image"):
        ndpool.files.pool(tmp_path / "palette.png", tmp_path / "no.png", 2)
    images.new("L", (80, 80)).save(tmp_path / "in.png")
    with pytest.raises(MemoryError, match=r"decoded at once; it needs 25600 bytes \(limit 10240\)"):
        ndpool.files.pool(tmp_path / "in.png", tmp_path / "no.png", 2, memory="10KiB")
    assert sorted(os.listdir(tmp_path)) == ["in.png", "palette.png"]


def test_netcdf_is_decoded(tmp_path):
    """Packed values and missing ones mean what their attributes say; coordinates are averaged."""
    xarray = pytest.importorskip("xarray", reason="NetCDF files are read through xarray")
    pytest.importorskip("netCDF4", reason="NetCDF files need netCDF4")
    values = np.arange(48.0).reshape(4, 3, 4) / 2
    values[0, 0, 0] = np.nan
    coords = {"time": np.arange(4) * 6, "lat": [10.0, 20.0, 30.0], "lon": np.arange(4.0)}
    data = xarray.Dataset(
        {"sst": (("time", "lat", "lon"), values, {"units": "degC"}), "flag": ("time", np.arange(4))}, coords
    )
    packed = {"sst": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1, "zlib": True}}
    data.to_netcdf(tmp_path / "in.nc", encoding=packed)
    with pytest.raises(ValueError, match=r"key must name one of the arrays in .* \(sst, flag\)"):
        ndpool.files.pool(tmp_path / "in.nc", tmp_path / "no.nc", 2)
    path = ndpool.files.pool(
        tmp_path / "in.nc", tmp_path / "out.nc", 2, key="sst", axes=["time", "lon"], reduce="avg"
    )
    with xarray.open_dataset(path, decode_times=False) as got:
        assert got["sst"].dims == ("time", "lat", "lon")
        assert got["sst"].attrs["units"] == "degC"
        assert_exact(got["sst"].values, ndpool.pool(values, (2, 2), axes=(0, 2), reduce="avg"))
        assert np.isnan(got["sst"].values).sum() == 1
        np.testing.assert_array_equal(got["time"], [3.0, 15.0])
        np.testing.assert_array_equal(got["lat"], coords["lat"])
        np.testing.assert_array_equal(got["lon"], [0.5, 2.5])


@pytest.mark.parametrize(
    ("names", "want"),
    [(("y", "y"), ("dim_0", "dim_1")), (("a/b", "x"), "illegal"), (("a" * 500, "x"), "NC_MAX_NAME")],
    ids=["twice", "slash", "long"],
)
def test_names_of_axes_in_netcdf(names, want, tmp_path):
    """Names that both axes have are none; names that the format does not allow are refused."""
    netcdf = pytest.importorskip("netCDF4", reason="NetCDF files need netCDF4")
    pytest.importorskip("xarray", reason="NetCDF files are read through xarray")
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    zarr.create_array(str(tmp_path / "in.zarr"), shape=(4, 4), dtype="f4", dimension_names=names)[...] = 1
    if isinstance(want, str):
        with pytest.raises(ValueError, match=f"pool: NetCDF and HDF5 files must have names .*{want}.*; got "):
            ndpool.files.pool(tmp_path / "in.zarr", tmp_path / "no.nc", 2)
        assert os.listdir(tmp_path) == ["in.zarr"]
        return
    path = ndpool.files.pool(tmp_path / "in.zarr", tmp_path / "out.nc", 2)
    with netcdf.Dataset(path) as file:
        assert file["data"].dimensions == want


def test_hdf5_groups(tmp_path):
    netcdf = pytest.importorskip("netCDF4", reason="HDF5 files need netCDF4")
    pytest.importorskip("xarray", reason="HDF5 files are read through xarray")
    x = hard_values((8, 8), "int32")
    with netcdf.Dataset(tmp_path / "in.h5", "w") as file:
        group = file.createGroup("scans")
        group.createDimension("row", 8)
        group.createDimension("column", 8)
        group.createVariable("first", "i4", ("row", "column"))[...] = x
    path = ndpool.files.pool(tmp_path / "in.h5", tmp_path / "out.hdf5", 2, key="scans/first")
    with netcdf.Dataset(path) as file:
        assert_exact(np.asarray(file["first"][...]), ndpool.pool(x, (2, 2)))


def test_arrays_are_sources_too(tmp_path):
    x = hard_values((12, 10), "float64")
    for source in (x, np.load(save(tmp_path, x), mmap_mode="r")):
        path = ndpool.files.pool(source, tmp_path / "out.npy", 3, overwrite=True, memory="1KiB")
        assert_exact(np.load(path), ndpool.pool(x, (3, 3)))
    with pytest.raises(TypeError, match=r"pool: the input must be a path or an array; got list"):
        ndpool.files.pool([[1.0]], tmp_path / "no.npy", 1)
    with pytest.raises(TypeError, match=r"must not be a masked array"):
        ndpool.files.pool(np.ma.masked_equal(x, 0), tmp_path / "no.npy", 1)


def test_names_of_xarray_are_those_of_a_file(tmp_path):
    xarray = pytest.importorskip("xarray", reason="needs xarray")
    x = hard_values((12, 10, 3), "float32")
    named = xarray.DataArray(x, dims=("y", "x", "c"))
    for how in ({}, {"axes": ("y", "x")}):
        path = ndpool.files.pool(named, tmp_path / "out.npy", 2, overwrite=True, **how)
        assert_exact(np.load(path), ndpool.pool(x, (2, 2), axes=(0, 1)))


def test_lazy_arrays_that_cannot_be_written(tmp_path):
    """Unknown sizes, and masks, which would be lost."""
    da = pytest.importorskip("dask.array", reason="Dask is not installed")
    x = da.ones((8, 8), chunks=4)
    with pytest.raises(ValueError, match=r"pool: the input must have known sizes; got shape \(nan, 8\)"):
        ndpool.files.pool(x[x[:, 0] > 0], tmp_path / "no.npy", 2)
    with pytest.raises(TypeError, match=r"pool: the input must not be a masked array"):
        ndpool.files.pool(da.ma.masked_equal(x, 1), tmp_path / "no.npy", 2)
    assert os.listdir(tmp_path) == []


class Masked:
    """An array whose slices are masked arrays, as those of netCDF4 are."""

    shape, dtype = (8, 8), np.dtype("f4")

    def __init__(self, mask):
        self.mask = mask

    def __getitem__(self, where):
        return np.ma.masked_array(np.ones((8, 8), "f4"), self.mask)[where]


def test_slices_with_a_mask(tmp_path):
    ndpool.files.pool(Masked(False), tmp_path / "out.npy", 2)
    with pytest.raises(TypeError, match=r"pool: the input must not be a masked array"):
        ndpool.files.pool(Masked(True), tmp_path / "no.npy", 2)
    assert os.listdir(tmp_path) == ["out.npy"]


def test_default_axes(tmp_path):
    for shape, want in (((7,), (3,)), ((6, 9), (3, 4)), ((2, 6, 9), (2, 3, 4)), ((2, 2, 6, 9), (2, 2, 3, 4))):
        source = save(tmp_path, np.zeros(shape, "uint8"))
        assert np.load(ndpool.files.pool(source, tmp_path / "o.npy", 2, overwrite=True)).shape == want
    source = save(tmp_path, np.zeros((4, 6, 8), "uint8"))
    assert np.load(ndpool.files.pool(source, tmp_path / "o.npy", (2, 2, 2), overwrite=True)).shape == (
        2,
        3,
        4,
    )
    with pytest.raises(ValueError, match=r"axes must be axes of the input \(names: none\); got axes='lat'"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2, axes="lat")
    with pytest.raises(TypeError, match=r"pool: axes must be an integer; got axes=0.5"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2, axes=0.5)


def test_empty_arrays(tmp_path):
    source = save(tmp_path, np.zeros((0, 8, 8), "float32"))
    for suffix in ("npy", "npz", "zarr"):
        path = ndpool.files.pool(source, tmp_path / f"o.{suffix}", 2)
    assert np.load(tmp_path / "o.npy").shape == (0, 4, 4)
    source = save(tmp_path, np.zeros((0, 8), "float32"))
    with pytest.raises(ValueError, match=r"pool: "):
        ndpool.files.pool(source, path.with_name("no.npy"), 2)


def test_progress(tmp_path):
    x, told = np.zeros((64, 100), "float32"), []
    ndpool.files.pool(
        save(tmp_path, x), tmp_path / "o.npy", 2, memory=4000, progress=lambda *n: told.append(n)
    )
    assert len(told) > 5
    assert sorted(told) == told
    assert told[-1] == (x.nbytes, x.nbytes)


def test_each_input_is_read_once(tmp_path, monkeypatch):
    """Disjoint windows: no byte is read twice, whatever the tiles."""
    x, read = np.arange(64 * 100, dtype="float32").reshape(64, 100), []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: read.append(preadv(*a)) or read[-1])
    ndpool.files.pool(save(tmp_path, x), tmp_path / "o.npy", 2, memory=4000)
    assert sum(read) == x.nbytes


@not_sanitized
def test_memory_is_bounded(tmp_path):
    """A file of 600 MiB with a budget of 64 MiB: the process stays far below the size of the file."""
    path = tmp_path / "in.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(150, 1024, 1024)).flush()
    code = """if True:
        import re, sys, ndpool
        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        from ndpool import files
        before = peak()
        files.pool(sys.argv[1], sys.argv[2], (3, 3), stride=2, reduce="max", memory="64MiB")
        print(peak() - before)
    """
    grown = int(run_python(code, str(path), str(tmp_path / "out.npy")))
    assert grown < 80 << 20
    assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (150, 511, 511)


def test_memory_holds_at_least_a_window(tmp_path):
    source = save(tmp_path, np.zeros((1000, 50), "float32"))
    with pytest.raises(
        MemoryError, match=r"adaptive_pool: memory must hold the windows of 1 x 1 outputs; .*\(limit 1000\)"
    ):
        ndpool.files.adaptive_pool(source, tmp_path / "o.npy", 1, memory=1000)
    assert os.listdir(tmp_path) == ["in.npy"]
    for memory in ("much", "-1", "1XB", 0, 2.5, None):
        with pytest.raises(ValueError, match=r"pool: memory must be"):
            ndpool.files.pool(source, tmp_path / "o.npy", 2, memory=memory)


@pytest.mark.parametrize(
    "memory", [1 << 20, "1MiB", "1 MiB", "1048576", "1.0mib", "1048576B", "1.1MB", "9" * 400]
)
def test_sizes(memory, tmp_path):
    ndpool.files.pool(save(tmp_path, np.zeros((8, 8))), tmp_path / "o.npy", 2, memory=memory)


BAD = {
    "complex": (np.zeros((4, 4), "complex64"), TypeError, "supported dtype; got dtype=complex64"),
    "text": (np.array([["a", "b"], ["c", "d"]]), TypeError, "supported dtype; got dtype=<U1"),
    "object": (np.array([[{}, 1], [2, 3]], object), TypeError, "got dtype=object, Python objects"),
    "record": (np.zeros((4, 4), "i4,f4"), TypeError, "supported dtype"),
    "date": (np.zeros((4, 4), "M8[s]"), TypeError, r"supported dtype; got dtype=datetime64\[s\]"),
    "scalar": (np.float32(1), ValueError, "pool: "),
}


@pytest.mark.parametrize("what", BAD)
def test_wrong_dtype(what, tmp_path):
    x, kind, message = BAD[what]
    source = tmp_path / "in.npy"
    np.save(source, x, allow_pickle=True)
    with pytest.raises(kind, match=message):
        ndpool.files.pool(source, tmp_path / "no.npy", 2)
    assert os.listdir(tmp_path) == ["in.npy"]


def header(version, descr, shape):
    """The beginning of an .npy file, as damage or malice may write it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


HEADERS = {
    "version": (header(9, "'<f4'", "(4, 4)"), ValueError, r"in.npy must be in version 1, 2 or 3 .*got 9\.0"),
    "negative": (header(1, "'<f4'", "(-4, 4)"), ValueError, r"in.npy is damaged; .* shape \(-4, 4\)"),
    "too large": (header(1, "'<f4'", f"({2**62}, {2**62})"), ValueError, "in.npy is truncated; it needs "),
    "arrays": (header(1, "('<f4', (2, 2))", "(4, 4)"), TypeError, r"in.npy must hold numbers; .*, arrays"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_damaged_header(what, tmp_path):
    first, kind, message = HEADERS[what]
    (tmp_path / "in.npy").write_bytes(first + bytes(1000))
    with pytest.raises(kind, match=f"pool: .*{message}"):
        ndpool.files.pool(tmp_path / "in.npy", tmp_path / "no.npy", 2)
    assert os.listdir(tmp_path) == ["in.npy"]


def test_empty_arrays_of_huge_planes(tmp_path):
    """Nothing is pooled, and nothing is allocated per window."""
    (tmp_path / "in.npy").write_bytes(header(1, "'<f4'", f"(0, {2**40}, {2**40})"))
    path = ndpool.files.pool(tmp_path / "in.npy", tmp_path / "out.npy", 2)
    assert path.stat().st_size < 1000


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "in.npy")
    with pytest.raises(ValueError, match=r"pool: the input must be a file or a Zarr folder; got .*in.npy"):
        ndpool.files.pool(tmp_path / "in.npy", tmp_path / "no.npy", 2)
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    (tmp_path / "in.zarr").write_text("no folder")
    with pytest.raises(ValueError, match=r"pool: \.zarr must be a folder, .*; got the file .*in.zarr"):
        ndpool.files.pool(tmp_path / "in.zarr", tmp_path / "no.npy", 2)


@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr.zip", "tif", "png", "jpg", "nc", "h5"])
@pytest.mark.parametrize("left", [0, 0.02, 0.5, 0.95])
def test_truncated_file(suffix, left, tmp_path):
    needs(suffix)
    if suffix in ("png", "jpg"):
        images = pytest.importorskip("PIL.Image", reason="images need Pillow")
        x = np.random.default_rng(0).integers(0, 256, (64, 64), "uint8")
        images.fromarray(x).save(tmp_path / f"in.{suffix}")
    else:
        x = np.random.default_rng(0).random((64, 64))
        ndpool.files.pool(x, tmp_path / f"in.{suffix}", 1)
    source = tmp_path / f"in.{suffix}"
    os.truncate(source, int(source.stat().st_size * left))
    with pytest.raises((ValueError, OSError)) as caught:
        ndpool.files.pool(source, tmp_path / "no.npy", 2)
    assert str(source) in f"{caught.value} {getattr(caught.value, 'filename', '')}"
    assert os.listdir(tmp_path) == [source.name]


def test_damaged_zarr(tmp_path):
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = np.random.default_rng(0).random((64, 64))
    source = ndpool.files.pool(x, tmp_path / "in.zarr", 1, chunks=32)
    os.truncate(source / "c" / "1" / "1", 20)
    with pytest.raises(ValueError, match=r"pool: cannot read .*in.zarr"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2)
    assert os.listdir(tmp_path) == ["in.zarr"]
    (source / "zarr.json").write_text("{")
    with pytest.raises(ValueError, match=r"pool: cannot read .*in.zarr"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2)
    (source / "zarr.json").rename(source / ".zarray")
    (source / ".zarray").write_text("null")
    with pytest.raises(ValueError, match=r"pool: cannot read .*in.zarr: TypeError"):
        ndpool.files.pool(source, tmp_path / "no.npy", 2)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    source = save(tmp_path, np.zeros((64, 100), "float32"))
    with pytest.raises(ValueError, match=r"pool: .*in.npy is truncated; it ended while it was read"):
        ndpool.files.pool(
            source, tmp_path / "no.npy", 2, memory=4000, progress=lambda *_: os.truncate(source, 200)
        )
    assert os.listdir(tmp_path) == ["in.npy"]


def test_output_exists(tmp_path):
    source = save(tmp_path, np.arange(16.0).reshape(4, 4))
    target = tmp_path / "out.npy"
    target.write_text("precious")
    with pytest.raises(FileExistsError, match=r"pool: the output exists; got .*out.npy"):
        ndpool.files.pool(source, target, 2)
    assert target.read_text() == "precious"
    with pytest.raises(ValueError, match=r"padding"):
        ndpool.files.pool(source, target, 2, padding=9, overwrite=True)
    assert target.read_text() == "precious"
    ndpool.files.pool(source, target, 2, overwrite=True)
    assert np.load(target).shape == (2, 2)


def test_only_zarr_folders_are_overwritten(tmp_path):
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    source = save(tmp_path, np.arange(16.0).reshape(4, 4))
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"pool: only a Zarr folder is overwritten"):
        ndpool.files.pool(source, tmp_path / "out.zarr", 2, overwrite=True)
    assert (tmp_path / "out.zarr" / "thesis.txt").read_text() == "precious"
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(FileExistsError, match=r"pool: only a file is overwritten"):
        ndpool.files.pool(source, tmp_path / "out.npy", 2, overwrite=True)


def test_output_is_the_input(tmp_path):
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    source = save(tmp_path, np.arange(16.0).reshape(4, 4))
    before = source.read_bytes()
    os.symlink(source, tmp_path / "link.npy")
    os.link(source, tmp_path / "hard.npy")
    for target in (
        source,
        tmp_path / "link.npy",
        tmp_path / "hard.npy",
        tmp_path / ".." / tmp_path.name / "in.npy",
    ):
        with pytest.raises(ValueError, match=r"pool: the output must not be the input"):
            ndpool.files.pool(source, target, 2, overwrite=True)
    assert source.read_bytes() == before
    zarr.create_group(str(tmp_path / "g.zarr")).create_array("a", shape=(4, 4), dtype="f4")[...] = 1
    inside = (
        (tmp_path / "g.zarr" / "a", tmp_path / "g.zarr"),
        (tmp_path / "g.zarr", tmp_path / "g.zarr" / "b.zarr"),
    )
    for a, b in inside:
        with pytest.raises(ValueError, match=r"neither of input and output may contain the other"):
            ndpool.files.pool(a, b, 2, overwrite=True)
    assert (tmp_path / "g.zarr" / "a" / "zarr.json").is_file()


@pytest.mark.parametrize("name", ["out", "out.xyz", "out.npy.gz"])
def test_unknown_extension(name, tmp_path):
    source = save(tmp_path, np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"pool: the output's extension must be one of \.npy, .*; got '"):
        ndpool.files.pool(source, tmp_path / name, 2)
    source.rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"pool: the format is found by the extension"):
        ndpool.files.pool(tmp_path / name, tmp_path / "no.npy", 2)


def test_missing_files(tmp_path):
    source = save(tmp_path, np.zeros((4, 4)))
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy"):
        ndpool.files.pool(tmp_path / "nothing.npy", tmp_path / "no.npy", 2)
    with pytest.raises(FileNotFoundError, match=r"pool: the output's folder must exist; got .*nowhere"):
        ndpool.files.pool(source, tmp_path / "nowhere" / "no.npy", 2)
    with pytest.raises(
        ValueError, match=r"pool: key names one of several arrays; got key='a' with a \.npy file"
    ):
        ndpool.files.pool(source, tmp_path / "no.npy", 2, key="a")


class Stopped(Exception):
    """Ends a run in the middle."""


def stop_after(n):
    told = []

    def progress(*at):
        told.append(at)
        if len(told) == n:
            raise Stopped

    return progress


def test_a_zarr_is_continued(tmp_path):
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = hard_values((64, 64), "float32")
    source, target, partial = save(tmp_path, x), tmp_path / "out.zarr", tmp_path / "out.zarr.partial"
    how = {"reduce": "avg", "chunks": 4, "memory": 6000}
    with pytest.raises(Stopped):
        ndpool.files.pool(source, target, 2, progress=stop_after(2), **how)
    assert partial.is_dir()
    assert not target.exists()
    done = {path: path.stat().st_mtime_ns for path in partial.rglob("c/*/*")}
    with pytest.raises(FileExistsError, match=r"an interrupted run left .*; resume continues it"):
        ndpool.files.pool(source, target, 2, **how)
    with pytest.raises(ValueError, match=r"resume must repeat the arguments .*; got other reduce"):
        ndpool.files.pool(source, target, 2, resume=True, **how | {"reduce": "max"})
    with open(partial / ".ndpool-journal", "a") as file:
        file.write('["", [[0')  # broken off
    for n in (5, 6):  # with other tiles, too, and broken off again
        with pytest.raises(Stopped):
            ndpool.files.pool(
                source, target, 2, resume=True, progress=stop_after(n), **how | {"memory": 4000}
            )
    ndpool.files.pool(source, target, 2, resume=True, **how)
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.zarr"]
    assert not (target / ".ndpool-journal").exists()
    assert_exact(zarr.open_array(str(target), mode="r")[...], ndpool.pool(x, (2, 2), reduce="avg"))
    for path, at in done.items():
        assert (target / path.relative_to(partial)).stat().st_mtime_ns == at  # written once


def test_continuing_notices_another_input(tmp_path):
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = hard_values((64, 64), "float32")
    source, target = save(tmp_path, x), tmp_path / "out.zarr"
    with pytest.raises(Stopped):
        ndpool.files.pool(source, target, 2, chunks=4, memory=6000, progress=stop_after(3))
    os.utime(source, (1, 1))
    with pytest.raises(ValueError, match=r"got other input"):
        ndpool.files.pool(source, target, 2, chunks=4, resume=True)
    ndpool.files.pool(source, target, 2, chunks=4, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.zarr"]


def test_a_finished_zarr_without_its_name_is_continued(tmp_path):
    """Another program took the name meanwhile: what was computed is not computed again."""
    pytest.importorskip("zarr", reason="Zarr files need zarr")
    source, target = save(tmp_path, hard_values((64, 64), "float32")), tmp_path / "out.zarr"
    with pytest.raises(FileExistsError, match=r"pool: the output exists"):
        ndpool.files.pool(source, target, 2, chunks=4, progress=lambda *_: target.mkdir(exist_ok=True))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("out.zarr.partial/c/*/*")}
    assert len(done) == 64
    target.rmdir()
    ndpool.files.pool(source, target, 2, chunks=4, resume=True)
    assert sorted(path.stat().st_mtime_ns for path in target.rglob("c/*/*")) == sorted(done.values())
    assert not (target / ".ndpool-journal").exists()


def test_a_zarr_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = hard_values((8, 8), "float32")
    target = ndpool.files.pool(x, tmp_path / "out.zarr", 1)
    rename = os.rename

    def refusing(a, b):
        if str(a).endswith(".partial") and b == target:
            raise PermissionError(1, "not now")
        rename(a, b)

    monkeypatch.setattr(os, "rename", refusing)
    with pytest.raises(PermissionError, match="not now"):
        ndpool.files.pool(x, target, 2, overwrite=True)
    assert_exact(zarr.open_array(str(target), mode="r")[...], x)
    assert sorted(os.listdir(tmp_path)) == ["out.zarr", "out.zarr.partial"]


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_two_runs_at_once(how, tmp_path):
    """The second refuses: it would remove or rename the folder that the first one writes to."""
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    x = hard_values((64, 64), "float32")
    target, refused = tmp_path / "out.zarr", []

    def second(*_):
        with pytest.raises(FileExistsError, match=r"pool: another run is writing .*out.zarr.partial"):
            ndpool.files.pool(x, target, 2, chunks=4, memory=6000, **{how: True})
        refused.append(how)

    ndpool.files.pool(x, target, 2, chunks=4, memory=6000, progress=second)
    assert len(refused) > 3
    assert_exact(zarr.open_array(str(target), mode="r")[...], ndpool.pool(x, (2, 2)))
    assert os.listdir(tmp_path) == ["out.zarr"]


@pytest.mark.parametrize("name", ["out.zarr", "out.zarr.zip"])
def test_zarr_has_ended_when_a_run_fails(name, tmp_path, monkeypatch):
    """A full disk: chunks that Zarr has begun in its own thread are not written after the run."""
    storage = pytest.importorskip("zarr.storage", reason="Zarr files need zarr")
    store = storage.LocalStore if name == "out.zarr" else storage.ZipStore
    begun, ended, original = [], [], store.set

    async def slow(self, key, value, **options):
        if "zarr.json" in key:
            return await original(self, key, value, **options)
        begun.append(key)
        if len(begun) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        await asyncio.sleep(0.05)
        ended.append(key)

    monkeypatch.setattr(store, "set", slow)
    with pytest.raises(OSError, match="No space left on device"):
        ndpool.files.pool(np.ones((64, 64)), tmp_path / name, 2, chunks=8)
    assert len(begun) == 16
    assert len(ended) == 15
    assert os.listdir(tmp_path) == []


def test_resume_needs_a_zarr_folder(tmp_path):
    source = save(tmp_path, np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"pool: resume is for Zarr folders; got 'o.npy'"):
        ndpool.files.pool(source, tmp_path / "o.npy", 2, resume=True)


@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr.zip", "tif", "nc"])
def test_a_failure_leaves_nothing(suffix, tmp_path):
    needs(suffix)
    source = save(tmp_path, np.zeros((64, 64), "float32"))
    with pytest.raises(Stopped):
        ndpool.files.pool(
            source, tmp_path / f"o.{suffix}", 2, memory=80_000, chunks=8, progress=stop_after(1)
        )
    assert os.listdir(tmp_path) == ["in.npy"]


def test_missing_packages(tmp_path):
    """Each format says what it needs (a fresh interpreter in which the package cannot be imported)."""
    save(tmp_path, np.zeros((4, 4), "uint8"))
    code = """if True:
        import sys, json
        for name in ("zarr", "tifffile", "PIL", "xarray", "netCDF4"):
            sys.modules[name] = None
        import ndpool
        told = []
        for suffix in ("zarr", "zip", "tif", "png", "nc"):
            try:
                ndpool.files.pool(sys.argv[1] + "/in.npy", sys.argv[1] + "/no." + suffix, 2)
            except ImportError as error:
                told.append(str(error))
        print(json.dumps(told))
    """
    told = json.loads(run_python(code, str(tmp_path)))
    for message, extra in zip(told, ("zarr", "zarr", "tiff", "image", "netcdf"), strict=True):
        assert message.startswith("pool: ")
        assert f"pip install 'ndpool[{extra}]'" in message
    assert os.listdir(tmp_path) == ["in.npy"]


def test_files_import_no_package():
    code = (
        "import sys, ndpool.files; print({'zarr', 'tifffile', 'PIL', 'xarray', 'dask'} & sys.modules.keys())"
    )
    assert run_python(code).strip() == "set()"


def test_result_npz_is_valid(tmp_path):
    path = ndpool.files.pool(np.arange(16.0).reshape(4, 4), tmp_path / "o.npz", 2)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["arr_0.npy"]


def test_settings_of_zarr_are_restored(tmp_path):
    zarr = pytest.importorskip("zarr", reason="Zarr files need zarr")
    before = zarr.config.get("async.concurrency")
    path = ndpool.files.pool(np.zeros((64, 64)), tmp_path / "a.zarr", 2, memory="64KiB", chunks=8)
    ndpool.files.pool(path, tmp_path / "b.zarr", 2, memory="64KiB")
    assert zarr.config.get("async.concurrency") == before
