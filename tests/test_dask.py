"""Dask arrays: lazy, equal to NumPy whatever the chunks, few tasks, nothing computed while a graph is built.

Random calls are the fuzzer's. `NDPOOL_DASK_CASES` sets how many are drawn.
"""

from __future__ import annotations

import importlib
import os
import pickle
import threading
import time

import numpy as np
import pytest

import ndpool
from cases import as_tuple
from fuzz.call import invoke
from fuzz.check import equal
from fuzz.draw import draw
from helpers import hard_values
from ndpool import _dispatch

dask = pytest.importorskip("dask", reason="Dask arrays need dask")
da = pytest.importorskip("dask.array", reason="Dask arrays need dask[array]")

framework = importlib.import_module("ndpool.frameworks.dask")
tasks = importlib.import_module("ndpool.frameworks.dask.tasks")

CASES = int(os.environ.get("NDPOOL_DASK_CASES", "300"))
SLICES = 4  # tests that share them


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def draw_chunks(rng, shape, most=150):
    """Chunks of any kind, not many more than `most` in all."""
    chunks = []
    for size in rng.permutation(len(shape)):
        n = shape[size]
        kind = rng.integers(5)
        if n < 2 or kind == 0 or most < 2:
            own = (n,)
        elif kind == 1:
            own = (1,) * n if n <= most else (n,)
        elif kind == 2:
            each = int(rng.integers(1, n + 1))
            own = (each,) * (n // each) + ((n % each,) if n % each else ())
        else:
            cuts = np.unique(rng.integers(1, n, min(n - 1, int(rng.integers(1, 6)))))
            own = tuple(np.diff([0, *cuts, n]).tolist())
            if kind == 4 and rng.random() < 0.3:
                own = (*own[:1], 0, *own[1:])
        if len(own) > most:
            own = (n,)
        most //= len(own)
        chunks.append((size, own))
    return tuple(own for _, own in sorted(chunks))


def compute(result):
    """The arrays of a result, after checks of what it declares; blocks are computed one by one."""
    got = []
    for lazy in as_tuple(result):
        assert isinstance(lazy, da.Array)
        array = lazy.compute()
        assert array.dtype == lazy.dtype == lazy._meta.dtype
        assert lazy._meta.shape == (0,) * lazy.ndim
        assert array.shape == lazy.shape
        for along in lazy.chunks:
            assert 0 not in along or along == (0,)
        blocks = dask.get(lazy.__dask_graph__(), list(dask.core.flatten(lazy.__dask_keys__())))
        sizes = [
            tuple(along[i] for along, i in zip(lazy.chunks, at, strict=True))
            for at in np.ndindex(lazy.numblocks)
        ]
        assert [block.shape for block in blocks] == sizes
        got.append(array)
    return tuple(got)


def check_case(seed, monkeypatch):
    rng = np.random.default_rng([seed, 1])
    case = draw(seed, 1)
    case.framework, x = "numpy", case.values
    if case.reduce in ("sum", "avg", "lp") and x.dtype.kind == "f" and rng.random() < 0.7:
        x = (rng.standard_normal(x.shape) * 10.0 ** rng.integers(-3, 4, x.shape)).astype(x.dtype)
    if case.swapped:
        x = x.astype(x.dtype.newbyteorder())
    monkeypatch.setattr(framework, "EDGE_BYTES", int(rng.choice([0, 1 << 18])))
    monkeypatch.setattr(tasks, "SPLIT_BYTES", int(rng.choice([0, 1 << 20])))
    monkeypatch.setattr(framework, "BAND_BYTES", int(rng.choice([1, 100, 1 << 20])))
    lazy = da.from_array(x, chunks=draw_chunks(rng, x.shape))
    places = None
    if case.indices is not None:
        places = da.from_array(case.indices, chunks=draw_chunks(rng, x.shape))
    want = as_tuple(invoke(case, x, case.indices))
    equal(f"{case} in chunks {lazy.chunks}", compute(invoke(case, lazy, places)), want)


@pytest.mark.parametrize("part", range(SLICES))
def test_random_calls_equal_numpy(part, monkeypatch):
    """Any function, shape, chunks and arguments (dask#6102, dask#10274, xarray-multiscale#1)."""
    for seed in range(part, CASES, SLICES):
        try:
            check_case(seed, monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {seed}") if hasattr(error, "add_note") else None
            raise


def test_sums_at_the_edges_have_the_order_of_the_whole(monkeypatch):
    """Also where all windows of a part are clipped: padding counts as taps when the order is chosen."""
    monkeypatch.setattr(tasks, "SPLIT_BYTES", 0)
    rng = np.random.default_rng(0)
    for k in (4, 5, 6, 7):
        x = (rng.standard_normal((8, 11, 22)) * 10.0 ** rng.integers(-3, 4, (8, 11, 22))).astype(np.float32)
        want = ndpool.avg_pool2d(x, k, 1, k // 2)
        for chunks in ((8, 3, 5), (3, 8, 9), (8, 10, 20), (8, 1, 22)):
            got = ndpool.avg_pool2d(da.from_array(x, chunks=chunks), k, 1, k // 2)
            equal(f"kernel {k}, chunks {chunks}", compute(got), (want,))


def test_windows_that_step_over_the_input():
    """PyTorch gives them an index outside the input; a part of the plane has no such place."""
    x = hard_values((2, 3, 9), np.float32, special=0)
    for kernel, dilation in (((2, 3), (4, 1)), ((3, 2), (1, 10)), ((2, 2), (4, 10))):
        padding = tuple(n // 2 for n in kernel)
        want = ndpool.max_pool2d(x, kernel, 1, padding, dilation, return_indices=True)
        for chunks in ((1, 1, 1), (2, 2, 4)):
            lazy = da.from_array(x, chunks=chunks)
            got = ndpool.max_pool2d(lazy, kernel, 1, padding, dilation, return_indices=True)
            equal(f"dilation {dilation}", compute(got), want)


def refuse(*args, **kwargs):
    raise AssertionError("a graph was computed while it was built")


CALLS = {
    "max": lambda x: ndpool.max_pool2d(x, 3, 2, 1, return_indices=True),
    "avg": lambda x: ndpool.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "lp": lambda x: ndpool.lp_pool2d(x, 2, 3),
    "adaptive max": lambda x: ndpool.adaptive_max_pool2d(x, (4, 7)),
    "adaptive avg": lambda x: ndpool.adaptive_avg_pool2d(x, 5),
    "fractional": lambda x: ndpool.fractional_max_pool2d(x, 2, output_ratio=0.5, generator=1),
    "unpool": lambda x: ndpool.max_unpool2d(*ndpool.max_pool2d(x, 2, return_indices=True), 2),
    "pool": lambda x: ndpool.pool(x, (3, 2), axes=(2, 0), padding="same", reduce="sum", dtype="float64"),
    "adaptive pool": lambda x: ndpool.adaptive_pool(x, 3, axes=1, reduce="min"),
    "layer": lambda x: ndpool.nn.MaxPool2d(3, 1, 1)(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_computed_while_a_graph_is_built(name):
    x = da.from_array(hard_values((2, 3, 16, 12), np.float32), chunks=(1, 2, 5, 4)) + 1
    with dask.config.set(scheduler=refuse):
        lazy = CALLS[name](x)
        with pytest.raises(AssertionError, match="while it was built"):
            as_tuple(lazy)[0].compute()
    equal(name, compute(lazy), as_tuple(CALLS[name](x.compute())))


@pytest.mark.parametrize("name", CALLS)
def test_equal_calls_share_their_keys_and_others_do_not(name):
    x = da.from_array(hard_values((2, 3, 16, 12), np.float32), chunks=(1, 2, 5, 4))
    names = [array.name for call in CALLS.values() for array in as_tuple(call(x))]
    assert len(set(names)) == len(names)
    assert [array.name for call in CALLS.values() for array in as_tuple(call(x))] == names
    other = [array.name for array in as_tuple(CALLS[name](x + 1))]
    assert not {*other} & {*names}


def tasks_added(result, x):
    graphs = [array.dask.to_dict() for array in as_tuple(result)]
    return len(set().union(*graphs) - set(x.dask.to_dict()))


LARGE = {  # arrays of 10,000 output chunks and more
    "2x2 avg": ((51200, 51200), lambda x: ndpool.pool(x, (2, 2), reduce="avg")),
    "3x3 max": ((51200, 51200), lambda x: ndpool.pool(x, (3, 3), stride=1, padding=1)),
    "3x3 max, indices": (
        (51200, 51200),
        lambda x: ndpool.pool(x, (3, 3), stride=1, padding=1, return_indices=True),
    ),
    "3x3x3 max": ((22 * 512,) * 3, lambda x: ndpool.pool(x, (3, 3, 3), stride=1, padding=1)),
    "adaptive": ((51200, 51200), lambda x: ndpool.adaptive_pool(x, (30001, 30002), reduce="avg")),
}


@pytest.mark.parametrize("name", LARGE)
def test_graphs_are_small_and_quickly_built(name):
    """At most five tasks per output chunk (ngff-zarr#48). CPU time, which other processes do not add to."""
    shape, call = LARGE[name]
    x = da.zeros(shape, chunks=512, dtype=np.float32)
    times = []
    for _ in range(3):
        start = time.process_time()
        result = call(x)
        times.append(time.process_time() - start)
    n = as_tuple(result)[0].npartitions
    assert n >= 10_000
    assert tasks_added(result, x) <= 5 * n
    assert min(times) < 2


def test_disjoint_windows_take_one_task_per_chunk():
    x = da.zeros((4096, 4096), chunks=1024, dtype=np.float32)
    assert tasks_added(ndpool.pool(x, (2, 2), reduce="avg"), x) == 16


def test_chunks_follow_those_of_the_input():
    """Chunks that were equal stay equal, as Zarr needs them."""
    x = da.zeros((2, 1000, 1000), chunks=(1, 250, 200), dtype=np.float32)
    assert ndpool.pool(x, (3, 3), stride=1, padding=1).chunks == x.chunks
    assert ndpool.pool(x, (2, 2)).chunks[1:] == ((125,) * 4, (100,) * 5)
    assert ndpool.pool(x, (3, 3), stride=1).chunks[1] == (250, 250, 250, 248)
    assert ndpool.max_pool2d(x, 3, 2, 1).chunks[1:] == ((125,) * 4, (100,) * 5)


def test_a_chunk_without_a_window_is_merged():
    """No chunk of size zero (dask#10274)."""
    x = da.from_array(np.arange(10.0), chunks=((1, 1, 1, 1, 1, 5),))
    y = ndpool.pool(x, 3, axes=0)
    assert y.chunks == ((1, 1, 1),)
    np.testing.assert_array_equal(y.compute(), [2, 5, 8])


def test_a_window_over_many_chunks():
    """Stride 1, window 200, chunks of 50: the right length and values (confusius#191)."""
    x = np.random.default_rng(0).random(1000)
    for reduce in ("max", "avg"):
        got = ndpool.pool(da.from_array(x, chunks=50), 200, axes=0, stride=1, reduce=reduce)
        equal(reduce, compute(got), (ndpool.pool(x, 200, axes=0, stride=1, reduce=reduce),))
    assert got.shape == (801,)


def test_the_halo_is_exactly_what_windows_reach():
    """Asymmetric and not doubled: (k - 1) * d inputs, on the sides where windows are (dask#12082)."""
    x = da.zeros((1000,), chunks=100, dtype=np.float32)
    for stride, padding, before, after in ((1, ((0, 4),), 0, 4), (1, ((4, 0),), 4, 0), (1, 2, 2, 2)):
        y = ndpool.pool(x, (3,), dilation=2, stride=stride, padding=padding)
        pools = [task for key, task in y.dask.to_dict().items() if key[0] == y.name]
        middle = next(task[0] for task in pools if task[0].spans[0].first == 500)
        (span,) = middle.spans
        assert (span.begin, span.begin + span.plan.size) == (500 - before, 600 + after)


def test_unknown_sizes_are_refused_along_pooled_axes_only():
    x = np.random.default_rng(0).random((7, 8, 8)).astype(np.float32)
    lazy = da.from_array(x, chunks=(2, 4, 4))
    chosen = lazy[lazy[:, 0, 0] > 0.3]
    want = ndpool.avg_pool2d(x[x[:, 0, 0] > 0.3], 3, 2, 1)
    np.testing.assert_array_equal(ndpool.avg_pool2d(chosen, 3, 2, 1).compute(), want)
    norms = ndpool.lp_pool2d(x[x[:, 0, 0] > 0.3], 2, 2)
    np.testing.assert_array_equal(ndpool.lp_pool2d(chosen, 2, 2).compute(), norms)
    unknown = chosen.transpose(1, 2, 0)
    message = (
        r"must have known sizes along the axes .*; got shape .*nan.*; compute_chunk_sizes\(\) finds them"
    )
    for call in (
        lambda: ndpool.avg_pool2d(unknown, 2),
        lambda: ndpool.pool(unknown, 2, axes=-1),
        lambda: ndpool.adaptive_pool(unknown, 2, axes=-1),
        lambda: ndpool.fractional_max_pool2d(chosen, 2, (3, 3)),
        lambda: ndpool.unpool(unknown, unknown.astype(int), (9,)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    known = ndpool.avg_pool2d(unknown.compute_chunk_sizes(), 2)
    assert known.shape == (8, 4, len(want) // 2)


def test_errors_come_before_anything_is_computed():
    x = da.zeros((1, 8, 8), chunks=4, dtype=np.float32)
    with dask.config.set(scheduler=refuse):
        with pytest.raises(TypeError, match="pool: out must not be given for a Dask array"):
            ndpool.pool(x, (2, 2), out=np.zeros((1, 4, 4), np.float32))
        with pytest.raises(
            TypeError, match="max_pool2d: input must have a supported dtype; got dtype=complex64"
        ):
            ndpool.max_pool2d(x.astype(np.complex64), 2)
        with pytest.raises(TypeError, match="avg_pool2d: the average of dtype=bool is not a bool"):
            ndpool.avg_pool2d(x.astype(bool), 2)
        with pytest.raises(TypeError, match="max_unpool2d: indices must be a Dask array; got ndarray"):
            ndpool.max_unpool2d(x, np.zeros(x.shape, int), 2)
        with pytest.raises(TypeError, match="masked array"):
            ndpool.max_pool2d(da.ma.masked_array(x, x > 0), 2)
        with pytest.raises(ValueError, match="padding must be at most half the kernel"):
            ndpool.max_pool2d(x, 3, padding=2)
        with pytest.raises(TypeError, match="_random_samples must be a NumPy array; got Array"):
            ndpool.fractional_max_pool2d(x, 2, 3, _random_samples=da.zeros((1, 1, 2), dtype=np.float32))


@pytest.mark.parametrize("edge_bytes", [0, 1 << 18])
@pytest.mark.parametrize("size", [0, 19, 21])
def test_blocks_of_other_sizes_than_declared_are_refused(size, edge_bytes, monkeypatch):
    """Neighbours would take their elements for others, in a window over both."""
    monkeypatch.setattr(framework, "EDGE_BYTES", edge_bytes)
    blocks = {("x", i): np.zeros(size if i == 2 else 20) for i in range(5)}
    y = ndpool.pool(da.Array(blocks, "x", ((20,) * 5,), dtype=np.float64), (3,), stride=1, padding=1)
    for at in (1, 2, 3):
        with pytest.raises(
            ValueError, match=rf"pool: x must have blocks of the sizes .*; got .*\({size},\) for \(20,\)"
        ):
            dask.get(y.__dask_graph__(), (y.name, at))


def test_a_wrong_index_is_found_in_whichever_block():
    values = da.ones((1, 2, 2), chunks=1)
    for wrong in (-1, 16):
        indices = da.from_array(np.array([[[0, 3], [5, wrong]]]), chunks=1)
        for limit in (1, 1 << 20):
            framework.BAND_BYTES, kept = limit, framework.BAND_BYTES
            try:
                result = ndpool.unpool(values, indices, (4, 4))
                with pytest.raises(ValueError, match=f"unpool: indices must lie .*; got index {wrong} "):
                    result.compute()
            finally:
                framework.BAND_BYTES = kept


def test_an_unpooled_plane_larger_than_a_block_is_made_in_bands(monkeypatch):
    monkeypatch.setattr(framework, "BAND_BYTES", 1000)
    x = hard_values((3, 20, 30), np.float32, special=0)
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    lazy = (da.from_array(a, chunks=(3, 4, 7)) for a in (values, indices))
    result = ndpool.max_unpool2d(*lazy, 2)
    assert result.chunks == ((1, 1, 1), (6, 7, 7), (30,))
    equal("unpool", compute(result), (ndpool.max_unpool2d(values, indices, 2),))


def test_tasks_pickle_without_the_compiled_plan():
    lazy = da.from_array(hard_values((2, 3, 16, 12), np.float32), chunks=(1, 2, 5, 4))
    for call in CALLS.values():
        got = as_tuple(call(lazy))
        again = pickle.loads(pickle.dumps(got))
        for a, b in zip(got, again, strict=True):
            assert a.name == b.name
            np.testing.assert_array_equal(a.compute(), b.compute())
    plan = ndpool.geometry.plan("f", (9,), (3, 2, 1, 1, False), True)
    ndpool.max_pool1d(np.zeros((1, 9)), 3, 2, 1)
    for axis, other in zip(plan.axes, pickle.loads(pickle.dumps(plan)).axes, strict=True):
        assert repr(axis) == repr(other)


def test_tasks_carry_their_own_windows_only():
    """Tables of irregular windows are cut: a graph does not grow with the product of chunks and windows."""
    x = da.zeros((1 << 20,), chunks=1 << 16, dtype=np.float32)
    y = ndpool.adaptive_pool(x, (700_001,))
    pools = [task for key, task in y.dask.to_dict().items() if key[0] == y.name]
    assert max(len(pickle.dumps(task)) for task in pools) < 2 * 16 * y.chunksize[0]


def test_bfloat16_blocks():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 is a dtype of ml_dtypes")
    x = hard_values((2, 9, 9), ml_dtypes.bfloat16)
    lazy = da.from_array(x, chunks=(1, 4, 5))
    want = ndpool.avg_pool2d(x, 3, 2, 1)
    got = ndpool.avg_pool2d(lazy, 3, 2, 1)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.compute().astype(float), want.astype(float))


class Device:
    """An array of another kind, as CuPy's is: NumPy's functions hand it over, and nothing converts it."""

    __array_priority__ = 20
    __array_ufunc__ = None

    def __init__(self, values):
        self.values = values

    def __array_function__(self, function, types, args, kwargs):
        assert function.__name__ in ("empty_like", "concatenate"), function
        if function is np.concatenate:
            return Device(np.concatenate([a.values for a in args[0]], **kwargs))
        (like,) = args
        return Device(np.empty_like(like.values, **kwargs))

    def __array__(self, *args, **kwargs):
        raise TypeError("not to be converted implicitly")

    shape, dtype, ndim, size, nbytes = (
        property(lambda self, name=name: getattr(self.values, name))
        for name in ("shape", "dtype", "ndim", "size", "nbytes")
    )

    def __getitem__(self, place):
        return Device(self.values[place])

    def __setitem__(self, place, value):
        self.values[place] = value.values

    def __floordiv__(self, other):
        return Device(self.values // other)

    def __mul__(self, other):
        return Device(self.values * other)

    def __iadd__(self, other):
        self.values += getattr(other, "values", other)
        return self

    def copy(self):
        return Device(self.values.copy())

    def astype(self, dtype, **kwargs):
        return Device(self.values.astype(dtype, **kwargs))

    def reshape(self, *shape):
        return Device(self.values.reshape(*shape))


class DeviceFramework:
    plain, traced = staticmethod(lambda x: False), None

    @staticmethod
    def run(call, x):
        out = call.out
        if out is not None:
            out = tuple(a.values for a in out) if isinstance(out, tuple) else out.values
        got = _dispatch.framework_of("f", x.values).run(call._replace(out=out), x.values)
        return tuple(map(Device, got)) if isinstance(got, tuple) else Device(got)


@pytest.mark.parametrize("split", [0, 1 << 20])
def test_blocks_of_another_kind_stay_what_they_are(split, monkeypatch):
    """Blocks may be CuPy's (dask#12082): each is pooled by its own framework, and so is the meta."""
    monkeypatch.setattr(framework, "EDGE_BYTES", 0)
    monkeypatch.setattr(tasks, "SPLIT_BYTES", split)
    package = Device.__module__.partition(".")[0]
    monkeypatch.setitem(_dispatch.FRAMEWORKS, (package, "Device"), lambda: DeviceFramework)
    monkeypatch.delitem(_dispatch.packages, Device, raising=False)
    x = hard_values((20, 31), np.float32)
    blocks = {
        ("x", i, j): Device(x[8 * i : 8 * i + 8, 8 * j : 8 * j + 8]) for i in range(3) for j in range(4)
    }
    lazy = da.Array(blocks, "x", ((8, 8, 4), (8, 8, 8, 7)), meta=Device(np.empty((0, 0), np.float32)))
    result = ndpool.pool(lazy, (3, 3), stride=1, padding=1, return_indices=True)
    want = ndpool.pool(x, (3, 3), stride=1, padding=1, return_indices=True)
    for array, need in zip(result, want, strict=True):
        assert type(array._meta) is Device
        assert array.dtype == need.dtype
        starts = [np.cumsum([0, *along]) for along in array.chunks]
        for at in np.ndindex(array.numblocks):
            block = dask.get(array.__dask_graph__(), (array.name, *at))
            assert type(block) is Device
            place = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, at, strict=True))
            equal("block", (block.values, block.values), (need[place], need[place]))
    _dispatch.packages.pop(Device, None)
    _dispatch.loaded.pop(package, None)


def test_inputs_are_not_changed():
    x = hard_values((3, 40, 40), np.float32)
    kept = x.copy()
    lazy = da.from_array(x, chunks=(1, 16, 16))
    dask.compute(ndpool.max_pool2d(lazy, 3, 1, 1, return_indices=True))
    np.testing.assert_array_equal(x, kept)


def test_tasks_of_a_scheduler_run_on_one_thread(restore_settings):
    """Inside a scheduler's thread a kernel uses that thread alone; in the main thread it uses all."""
    from ndpool._native import core

    core.set_num_threads(2)
    y = ndpool.avg_pool2d(da.zeros((8, 1024, 1024), chunks=(4, -1, -1), dtype=np.float32), 3, 1, 1)
    task = next(task[0] for key, task in y.dask.to_dict().items() if key[0] == y.name)
    threads = []

    def recorded(*blocks):
        core.set_recording(True)
        task(*blocks)
        threads.append(core.recorded()[0][3])
        core.set_recording(False)

    block = np.zeros((4, 1024, 1024), np.float32)
    recorded(block)
    worker = threading.Thread(target=recorded, args=(block,))
    worker.start()
    worker.join()
    assert threads == [2, 1]
    assert ndpool.explain(ndpool.avg_pool2d, block, 3, 1, 1).forward.threads == 2  # nothing of it stays
