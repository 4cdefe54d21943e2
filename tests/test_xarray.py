"""xarray: named dimensions, coordinates, attributes, lazy data and data sets."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

import cases
import ndpool
from helpers import assert_exact, hard_values
from ndpool._dispatch import package_of

xr = pytest.importorskip("xarray", reason="xarray is not installed")


def field(shape=(6, 8, 9), dims=("time", "y", "x"), dtype=np.float64, seed=0):
    """An array with coordinates of several kinds."""
    data = hard_values(shape, dtype, seed, special=0)
    sizes = dict(zip(dims, shape, strict=True))
    coords = {
        "time": np.datetime64("2001-01-01", "ns") + np.arange(sizes["time"]) * np.timedelta64(6, "h"),
        "y": np.arange(sizes["y"]) * 10,
        "x": np.linspace(0, 1, sizes["x"], dtype=np.float32),
        "label": ("x", [f"column {i}" for i in range(sizes["x"])]),
        "area": (("y", "x"), np.arange(float(sizes["y"] * sizes["x"])).reshape(sizes["y"], sizes["x"])),
        "level": 850,
    }
    units = {"units": "m", "long_name": "northing"}
    x = xr.DataArray(data, coords, dims, "temperature", {"units": "K"})
    x["y"].attrs = units
    return x


CALLS = {
    "max": lambda x, axes: ndpool.pool(x, 2, axes=axes),
    "hop": lambda x, axes: ndpool.pool(x, 3, stride=2, axes=axes, reduce="avg"),
    "same": lambda x, axes: ndpool.pool(x, 3, stride=1, padding="same", axes=axes, reduce="sum"),
    "padded": lambda x, axes: ndpool.pool(x, 4, padding=2, axes=axes, ceil_mode=True, reduce="min"),
    "dilated": lambda x, axes: ndpool.pool(x, 2, dilation=2, axes=axes),
    "adaptive": lambda x, axes: ndpool.adaptive_pool(x, 4, axes=axes, reduce="avg"),
}
WINDOWS = {  # of the same calls, along an axis of some size
    "max": lambda n: ndpool.windows(n, 2),
    "hop": lambda n: ndpool.windows(n, 3, stride=2),
    "same": lambda n: [range(max(i - 1, 0), min(i + 2, n)) for i in range(n)],
    "padded": lambda n: ndpool.windows(n, 4, padding=2, ceil_mode=True),
    "dilated": lambda n: ndpool.windows(n, 2, dilation=2),
    "adaptive": lambda n: ndpool.adaptive_windows(n, 4),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("axes", "numbers"), [(("y", "x"), (1, 2)), (("x", "time"), (2, 0)), ("time", 0), ((0, "x"), (0, 2))]
)
def test_names_are_numbers(name, axes, numbers):
    """xarray#9696: window and hop along named dimensions; coordinates are means over the windows."""
    x = field()
    got = CALLS[name](x, axes)
    assert_exact(got.data, CALLS[name](x.data, numbers))
    assert (got.dims, got.name, got.attrs) == (x.dims, "temperature", {"units": "K"})
    pooled = [x.dims[a] for a in np.atleast_1d(numbers)]
    for dim in x.dims:
        if dim not in pooled:
            assert got[dim].identical(x[dim].drop_vars(set(x[dim].coords) - {dim} - set(got[dim].coords)))
            continue
        windows = [list(window) for window in WINDOWS[name](x.sizes[dim])]
        if dim == "time":
            ticks = x[dim].data.view(np.int64)
            want = np.array([sum(int(t) for t in ticks[w]) // len(w) for w in windows]).view("M8[ns]")
            assert (got[dim].data == want).all()
        else:
            want = [x[dim].data[w].astype(float).mean() for w in windows]
            np.testing.assert_allclose(got[dim], want, rtol=1e-6)
    assert got["y"].attrs == x["y"].attrs
    assert ("label" in got.coords) == ("x" not in pooled)  # labels have no mean
    assert got["level"] == 850
    assert got["area"].shape == (got.sizes["y"], got.sizes["x"])


def test_coordinates_agree_with_coarsen():
    """Where `coarsen` does the same, so do we: values, coordinates of one and two dimensions, times."""
    x = field().drop_vars("label")
    for windows in ({"y": 2, "x": 3}, {"time": 2}, {"time": 3, "x": 2}):
        want = x.coarsen(windows, boundary="trim").max()
        got = ndpool.pool(x, tuple(windows.values()), axes=tuple(windows))
        assert got.drop_vars("time").equals(want.drop_vars("time"))
        # The mean of times is exact here, and goes through floats there.
        distance = np.abs(got["time"].data.astype("M8[ns]") - want["time"].data.astype("M8[ns]"))
        assert distance.max() <= np.timedelta64(1, "us")


@pytest.mark.parametrize("name", [name for name in cases.NAMES if "max_unpool" not in name])
def test_named_functions_pool_the_last_dimensions(name):
    rng = np.random.default_rng(cases.NAMES.index(name))
    for _ in range(10):
        case = cases.draw(rng, name, beyond=True)
        if case.values.dtype.name == "bfloat16" or (case.values.dtype == np.bool_ and "avg" in name):
            continue
        dims = tuple("abcde"[: case.values.ndim])
        x = xr.DataArray(case.array(), dims=dims, coords={dims[0]: np.arange(case.values.shape[0])})
        kwargs = {key: xr.DataArray(a) if isinstance(a, np.ndarray) else a for key, a in case.kwargs.items()}
        got = cases.as_tuple(getattr(ndpool, name)(x, *case.args, **kwargs))
        assert all(part.dims == dims and dims[0] in part.coords for part in got)
        cases.assert_same(tuple(part.data for part in got), case.call_oracle(), case)


def test_indices_and_unpooling():
    x = field()
    values, indices = ndpool.pool(x, 2, axes=("y", "x"), return_indices=True)
    assert_exact(indices.data, ndpool.pool(x.data, (2, 2), return_indices=True)[1])
    assert (indices.dims, indices.name, indices.attrs) == (x.dims, x.name, {})
    assert indices.coords.equals(values.coords)
    want = ndpool.unpool(values.data, indices.data, (8, 9))
    for got in (
        ndpool.unpool(values, indices, (8, 9), axes=("y", "x")),
        ndpool.unpool(values, indices.data, (8, 9)),
        ndpool.max_unpool2d(values, indices, 2, output_size=x.shape),
    ):
        assert_exact(got.data, want)
        assert (got.dims, got.name, got.attrs) == (x.dims, x.name, x.attrs)
        assert set(got.coords) == {"time", "level"}
    with pytest.raises(ValueError, match=r"unpool: indices must have the input's dimensions"):
        ndpool.unpool(values, indices.transpose("time", "x", "y"), (8, 9))


def test_fractional_windows_differ_from_plane_to_plane():
    x = field()
    got, indices = ndpool.fractional_max_pool2d(x, 2, 3, return_indices=True, generator=0)
    want = ndpool.fractional_max_pool2d(x.data, 2, 3, return_indices=True, generator=0)
    assert_exact((got.data, indices.data), want)
    assert set(got.coords) == {"time", "level"} == set(indices.coords)


def test_times():
    """Means of times and durations are exact for any year; a missing time gives a missing mean."""
    ticks = np.array([-(2**62), -(2**62) + 1, 3, 2**62, 2**62 + 3, 2**62 + 4])
    for kind in ("M8[ns]", "m8[ns]"):
        x = xr.DataArray(np.zeros(6), {"t": ticks.view(kind)}, ["t"])
        got = ndpool.pool(x, 3, axes="t")["t"].data.view(np.int64)
        assert got.tolist() == [sum(map(int, part)) // 3 for part in (ticks[:3], ticks[3:])]
    times = np.array(["2000-01-01", "NaT", "2000-01-03", "2000-01-05"], "M8[s]")
    x = xr.DataArray(np.zeros(4), {"when": ("t", times)}, ["t"])
    got = ndpool.pool(x, 2, axes="t")["when"].data
    assert np.isnat(got[0])
    assert got[1] == np.datetime64("2000-01-04")


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_dates_of_other_calendars(calendar):
    cftime = pytest.importorskip("cftime", reason="cftime is not installed")
    dates = [cftime.datetime(2000, 2, 27 + i, calendar=calendar) for i in range(2)]
    dates += [cftime.datetime(2000, 3, 1 + i, calendar=calendar) for i in range(4)]
    x = xr.DataArray(np.zeros(6), {"time": dates}, ["time"])
    got = ndpool.pool(x, 2, axes="time")["time"].data
    assert [date.isoformat() for date in got] == [
        "2000-02-27T12:00:00",
        "2000-03-01T12:00:00",
        "2000-03-03T12:00:00",
    ]


def test_coordinates_without_a_mean_are_dropped():
    dates = np.array([datetime.date(2000, 1, 1)] * 4, object)
    x = xr.DataArray(
        np.arange(4.0),
        {"flag": ("t", [True, False, True, True]), "thing": ("t", np.array([{}, [], 1, ""], object))},
        ["t"],
    ).assign_coords(day=("t", dates))
    assert set(ndpool.pool(x, 2, axes="t").coords) == {"day"}
    long = x.assign_coords(t=("t", np.arange(4, dtype=np.longdouble)))
    assert ndpool.pool(long, 2, axes="t")["t"].values.tolist() == [0.5, 2.5]
    stacked = field().drop_vars("label").stack(place=("y", "x"))
    got = ndpool.pool(stacked, 2, axes="place")
    assert set(got.coords) == {"time", "level", "area", "x", "y"}  # no longer an index
    kept = ndpool.pool(stacked, 2, axes="time")
    assert kept.indexes["place"].equals(stacked.indexes["place"])


def test_windows_without_elements_have_no_coordinate():
    """Dilated windows may contain padding alone."""
    x = xr.DataArray(np.arange(3.0)[None], {"t": [1, 2, 3]}, ["c", "t"])
    x = x.assign_coords(when=("t", np.array([0, 0, 0], "M8[ns]")))
    call = {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 4, "ceil_mode": True}
    try:
        got = ndpool.max_pool1d(x, **call)
    except ValueError:
        call = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}
        got = ndpool.max_pool1d(x, **call)
    empty = np.isneginf(got.data[0])
    assert (np.isnan(got["t"].data) == empty).all()
    assert (np.isnat(got["when"].data) == empty).all()


def test_out_and_dtype():
    x = field()
    out = xr.zeros_like(x[:, :4, :4])
    assert ndpool.pool(x, 2, axes=("y", "x"), out=out) is out
    assert_exact(out.data, ndpool.pool(x.data, (2, 2)))
    assert ndpool.pool(x, 2, axes=("y", "x"), dtype="float32").dtype == np.float32


def test_other_arrays_inside():
    """Whatever is inside goes to its own framework."""
    xp = pytest.importorskip("array_api_strict", reason="the strict array API is not installed")
    x = field().copy(data=xp.asarray(field().data))
    got = ndpool.pool(x, 2, axes=("y", "x"))
    assert isinstance(got.data, type(x.data))
    assert_exact(np.from_dlpack(got.data), ndpool.pool(field().data, (2, 2)))


def test_lazy_arrays_stay_lazy():
    """xarray#9890: a stride-1 mean along a time axis of Dask chunks, without computing anything."""
    dask = pytest.importorskip("dask", reason="Dask is not installed")
    x = field().chunk({"time": 2, "y": 3})
    x = x.assign_coords(area=x["area"].chunk({"y": 3}))

    def compute(*args, **kwargs):
        raise AssertionError("computed")

    with dask.config.set(scheduler=compute):
        if package_of(type(x.data)) is None:
            with pytest.raises(TypeError, match="pool: x must not be lazy"):
                ndpool.pool(x, 3, axes="time")
            return
        got = ndpool.pool(x, 3, stride=1, axes="time", reduce="avg")
        area = ndpool.pool(x, 2, axes=("y", "x"))["area"]
        unnamed = ndpool.pool(x.rename(None), 3, axes="time", return_indices=True)
    assert [y.name for y in unnamed] == [None, None]  # not Dask's own
    assert dask.is_dask_collection(got)
    assert dask.is_dask_collection(area)
    np.testing.assert_allclose(
        got.compute().data, ndpool.pool(field().data, 3, stride=1, axes=0, reduce="avg")
    )
    assert area.compute().equals(ndpool.pool(field(), 2, axes=("y", "x"))["area"])


def test_data_sets():
    x = field()
    data = xr.Dataset(
        {"t": x, "mask": x > 0, "index": ("time", np.arange(6)), "note": ((), "text")}, attrs={"title": "all"}
    )
    got = ndpool.pool(data, 2, axes=("y", "x"))
    assert list(got) == list(data)
    assert got.attrs == data.attrs
    assert got["t"].equals(ndpool.pool(x, 2, axes=("y", "x")))
    assert got["mask"].equals(ndpool.pool(x > 0, 2, axes=("y", "x")))
    assert got["index"].identical(data["index"])
    assert set(got.coords) == {"time", "y", "x", "area", "level"}
    values, indices = ndpool.adaptive_pool(data, 2, axes=("y",), return_indices=True)
    assert list(indices) == ["t", "mask"]
    assert indices["t"].equals(ndpool.adaptive_pool(x, 2, axes="y", return_indices=True)[1])
    assert values["t"].equals(ndpool.adaptive_pool(x, 2, axes="y"))
    assert indices.attrs == {}


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [
        (ValueError, lambda x: ndpool.pool(x, 2, axes=("y", "z")), r"pool: axes must be dimensions of .*'z'"),
        (ValueError, lambda x: ndpool.pool(x, 2, axes=("y", "y")), "pool: axes must differ"),
        (ValueError, lambda x: ndpool.pool(x, 2, axes=("y", 1)), "pool: axes must differ"),
        (ValueError, lambda x: ndpool.pool(x, 2, axes=3), "pool: axes must be from -3 to 2"),
        (TypeError, lambda x: ndpool.pool(x, 2, axes=(1.5,)), "pool: axes must be an integer"),
        (
            TypeError,
            lambda x: ndpool.pool(x.data, 2, axes="y"),
            "pool: axes must be an integer; got axes='y'",
        ),
        (ValueError, lambda x: ndpool.max_pool3d(x, 2), "max_pool3d: input must have 4 axes"),
        (TypeError, lambda x: ndpool.pool(x.astype(str), 2, axes="y"), "pool: x must have a supported dtype"),
        (TypeError, lambda x: ndpool.pool(x.to_dataset(), (2, 2)), "pool: axes must be names of dimensions"),
        (TypeError, lambda x: ndpool.max_pool2d(x.to_dataset(), 2), "max_pool2d: axes must be names of"),
        (
            ValueError,
            lambda x: ndpool.pool(x.to_dataset(), 2, axes="z"),
            "pool: axes must be dimensions of a",
        ),
        (
            ValueError,
            lambda x: ndpool.pool(x.to_dataset().assign(row=x[:, :, 0]), 2, axes=("y", "x")),
            r"pool: every variable must have all .* variable 'row'",
        ),
        (TypeError, lambda x: ndpool.pool(x.to_dataset(), 2, axes="y", out=x), "pool: out must not be given"),
        (
            TypeError,
            lambda x: ndpool.fractional_max_pool2d(x.to_dataset(), 2, 2),
            "input must be a DataArray",
        ),
        (TypeError, lambda x: ndpool.max_unpool2d(x.to_dataset(), x, 2), "input must be a DataArray"),
        (TypeError, lambda x: ndpool.unpool(x.to_dataset(), x, (2,)), "values must be a DataArray"),
    ],
)
def test_errors(error, call, text):
    with pytest.raises(error, match=text):
        call(field())


def test_input_is_unchanged():
    x = field()
    before = x.copy(deep=True)
    ndpool.pool(x, 2, axes=("y", "x"), return_indices=True)
    ndpool.pool(x.to_dataset(), 2, axes=("y", "x"))
    assert x.identical(before)
