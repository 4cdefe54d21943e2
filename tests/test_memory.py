"""Memory: no copy of the input, no unneeded buffers, results in the input's layout, all kinds of views.

NumPy reports its allocations to tracemalloc, which reveals hidden copies; allocations of the core show in the
high-water mark of a new process.
"""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import ndpool
import passes
from cases import DTYPES, LAYOUTS, as_tuple, moved, readonly, reversed_strides
from helpers import assert_exact, hard_values, not_sanitized, run_python
from ndpool import geometry
from ndpool.reductions import REDUCTIONS

SHAPE = (2, 16, 96, 128)
VIEWS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: moved(x, 1, -1),
    "strided rows": lambda x: np.repeat(x, 2, 2)[:, :, ::2],
    "strided columns": lambda x: np.repeat(x, 2, 3)[..., ::2],
    "reversed": reversed_strides,
    "transposed": lambda x: moved(x, -1, -2),
    "broadcast": lambda x: np.broadcast_to(x[:1, :1], SHAPE),
    "read-only": readonly,
}
CALLS = {
    "max": lambda x: ndpool.max_pool2d(x, 3, 2, 1),
    "max 2x2": lambda x: ndpool.max_pool2d(x, 2),
    "max 9x9/1": lambda x: ndpool.max_pool2d(x, 9, 1, 4),
    "max ceil": lambda x: ndpool.max_pool2d(x, 5, 3, ceil_mode=True),
    "min dilated": lambda x: ndpool.pool(x, (3, 3), reduce="min", dilation=2, padding=((3, 0), (0, 1))),
    "avg": lambda x: ndpool.avg_pool2d(x, 3, 2, 1),
    "avg ceil": lambda x: ndpool.avg_pool2d(x, 7, 5, ceil_mode=True, count_include_pad=False),
    "avg to f8": lambda x: ndpool.avg_pool2d(x, 2, dtype="f8"),
    "lp": lambda x: ndpool.lp_pool2d(x, 2.0, 3),
    "adaptive max": lambda x: ndpool.adaptive_max_pool2d(x, (50, 30)),
    "adaptive avg": lambda x: ndpool.adaptive_avg_pool2d(x, 7),
}


def peak(call):
    """The result of a call, and the peak of bytes allocated in addition to it."""
    call()  # warm-up: plans and scratch memory are cached
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return result, most - before - sum(a.nbytes for a in as_tuple(result))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", CALLS)
def test_no_copy_of_the_input(name, view):
    """scikit-image/scikit-image#7092, pydata/xarray#10921: for any view, padding and ceil mode."""
    x = VIEWS[view](hard_values(SHAPE, np.float32))
    result, extra = peak(lambda: CALLS[name](x))
    assert extra < 0.05 * (x.nbytes + result.nbytes)
    assert_exact(result, CALLS[name](np.ascontiguousarray(x)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_no_copy_for_any_dtype(dtype):
    x = moved(hard_values(SHAPE, dtype), 1, -1)
    for call in (CALLS["max"], lambda x: ndpool.pool(x, (2, 2), reduce="sum"), CALLS["adaptive max"]):
        result, extra = peak(lambda call=call: call(x))
        assert extra < 0.05 * (x.nbytes + result.nbytes)


def test_no_index_buffer_without_return_indices():
    """pytorch#41099, pytorch#103785: no int64 without `return_indices`, one byte per output for backward."""
    x = hard_values(SHAPE, np.float32)
    values, extra = peak(lambda: ndpool.max_pool2d(x, 2))
    assert extra < 0.01 * values.nbytes
    pair, extra = peak(lambda: ndpool.max_pool2d(x, 2, return_indices=True))
    assert pair[1].nbytes == 2 * values.nbytes
    assert extra < 0.01 * values.nbytes
    plan = geometry.sliding("f", SHAPE[2:], 2, None, 0, 1, False, strict=True)
    (_, offsets), extra = peak(lambda: passes.with_offsets("max", plan, x, (2, 3)))
    assert offsets.nbytes == values.size
    assert extra < 0.01 * values.nbytes


def test_nothing_is_allocated_for_out():
    x = hard_values(SHAPE, np.float32)
    for reduce in ("max", "avg"):
        out = np.empty((2, 16, 48, 64), np.float32)
        result, extra = peak(lambda reduce=reduce, out=out: ndpool.pool(x, (2, 2), reduce=reduce, out=out))
        assert result is out
        assert extra + out.nbytes < 0.05 * out.nbytes


HIGH_WATER = """
import re, numpy as np, ndpool

def mark():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

ndpool.set_num_threads({threads})
ndpool.max_pool2d(np.ones((1, 2000, 600), np.uint8), 3, 1, 1)
x = np.zeros({shape}, np.{dtype}) + 1
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")  # resets the mark
before = mark()
y = {call}
print(mark() - before, y.nbytes, x.nbytes)
"""


@not_sanitized
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "dtype", "call", "share"),
    [
        ((1, 1024, 1024), "float32", "ndpool.max_pool2d(x, 99, 1, 49)", 0.5),
        ((1, 2048, 2048), "uint8", "ndpool.pool(x, (99, 99), reduce='min', stride=1, padding=49)", 0.5),
        ((1, 4096, 4096), "float32", "ndpool.max_pool2d(x, 3, 2, 1)", 0.05),
        ((1, 4095, 4095), "float32", "ndpool.avg_pool2d(x, 4, ceil_mode=True)", 0.05),
        ((1, 16, 4000, 400), "uint8", "ndpool.max_pool3d(x, 3, 1, 1)", 0.05),
        ((64, 512, 512), "float32", "ndpool.adaptive_avg_pool2d(x, 7)", 0.05),
    ],
)
def test_high_water_mark(shape, dtype, call, share, threads):
    """kornia/kornia#4729: little scratch memory, even for a window of 99 with stride 1."""
    code = HIGH_WATER.format(shape=shape, dtype=dtype, call=call, threads=threads)
    grown, out, size = map(int, run_python(code).split())
    # Thread stacks and allocator rounding do not depend on the size.
    assert grown - out < share * size + 2**20


@not_sanitized
def test_plan_cache_is_bounded():
    """Pooling signals of many lengths does not keep the tables of all of them."""
    code = """
import numpy as np, ndpool
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
for size in range(100_000, 100_100):
    ndpool.adaptive_max_pool1d(np.ones((1, 7), np.float32), size)
print(resident() - before)
"""
    assert int(run_python(code)) < 32 * 2**20


@pytest.mark.parametrize("view", ["channels last", "transposed", "contiguous"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_results_keep_the_layout(n, view):
    """pytorch#80748, pytorch#67239: the axes of every result have the memory order of the input."""
    shape = (2, 10, *(9, 8, 7)[:n])
    x = {"channels last": moved(np.ones(shape), 1, -1), "transposed": moved(np.ones(shape), -1, -2)}
    x = x.get(view, np.ones(shape))

    def order(a):
        return np.argsort([-s for s in a.strides], kind="stable").tolist()

    names = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")
    results = [getattr(ndpool, f"{name}{n}d")(x, 2) for name in names] + [
        getattr(ndpool, f"lp_pool{n}d")(x, 2, 2)
    ]
    values, indices = getattr(ndpool, f"max_pool{n}d")(x, 2, return_indices=True)
    results += [values, indices, getattr(ndpool, f"max_unpool{n}d")(values, indices, 2)]
    results += [ndpool.pool(x, (2,) * n, reduce=reduce) for reduce in REDUCTIONS]
    assert {tuple(order(a)) for a in results} == {tuple(order(x))}


def packed_field(x):
    """The same values as a misaligned field of packed records."""
    records = np.zeros(x.shape, np.dtype([("tag", "u1"), ("value", x.dtype)]))
    records["value"] = x
    return records["value"]


HARD_VIEWS = {
    "packed": packed_field,
    "packed and reversed": lambda x: packed_field(x[..., ::-1])[..., ::-1],
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()) if x.dtype.kind in "iuf" else x,
    "zero strides": lambda x: np.broadcast_to(x[:, :1, :1, :1], x.shape),
    "read-only": readonly,
    "from bytes": lambda x: np.frombuffer(b"-" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", HARD_VIEWS)
def test_unusual_views(view, dtype):
    x = HARD_VIEWS[view](hard_values((2, 9, 8, 9), dtype))
    copy = x.astype(x.dtype.newbyteorder("="), order="C") if dtype.kind in "iuf" else x.copy()
    before = x.tobytes()
    calls = [
        lambda x: ndpool.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: ndpool.max_pool3d(x, 2),
        lambda x: ndpool.adaptive_max_pool2d(x, (3, 5)),
        lambda x: ndpool.pool(x, (2, 2), reduce="sum"),
        lambda x: ndpool.avg_pool2d(x, 2, dtype="f4"),
        lambda x: ndpool.max_unpool2d(x, np.arange(2 * 9 * 72).reshape(x.shape) % 72, 1),
    ]
    for call in calls:
        assert_exact(call(x), call(copy))
    assert x.tobytes() == before


def test_unusual_views_as_indices_and_out():
    x = hard_values((2, 9, 8, 9), np.float32, special=0)
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    want = ndpool.max_unpool2d(values, indices, 2, output_size=x.shape)
    for view in HARD_VIEWS.values():
        if view is not HARD_VIEWS["zero strides"]:
            assert_exact(ndpool.max_unpool2d(values, view(indices), 2, output_size=x.shape), want)
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        assert_exact(ndpool.max_unpool2d(values, indices.astype(dtype), 2, output_size=x.shape), want)
    target = np.zeros(values.shape, np.dtype([("tag", "u1"), ("value", "f4"), ("at", "i8")]))
    pair = target["value"], target["at"]
    assert ndpool.max_pool2d(x, 2, return_indices=True, out=pair) is pair
    assert_exact(pair, (values, indices))
    assert not target["tag"].any()


@pytest.mark.parametrize("reduce", ["max", "min", "sum", "avg"])
def test_out_may_overlap_the_input(reduce):
    """In place, shifted and reversed: the result is the same as without overlap."""
    for window, padding in [((3, 3), 1), ((5, 1), ((2, 2), (0, 0))), ((1, 1), 0)]:
        base = hard_values((2, 41, 60), np.float64, special=0)
        want = ndpool.pool(base[:, :40], window, reduce=reduce, stride=1, padding=padding)
        for rows in (slice(0, 40), slice(1, 41), slice(39, None, -1)):
            memory = base.copy()
            out = memory[:, rows]
            got = ndpool.pool(memory[:, :40], window, reduce=reduce, stride=1, padding=padding, out=out)
            assert got is out
            assert_exact(np.ascontiguousarray(out), want)


def test_indices_may_overlap_the_input():
    x = np.random.default_rng(0).integers(0, 99, (1, 8, 8))
    values, indices = ndpool.max_pool2d(x, 3, 1, 1, return_indices=True)
    for at, want in ((0, values), (1, indices)):
        memory = x.copy()
        out = [np.zeros_like(x), np.zeros_like(x)]
        out[at] = memory[:, ::-1]
        ndpool.max_pool2d(memory, 3, 1, 1, return_indices=True, out=tuple(out))
        assert_exact(out[at], want)
        assert_exact(out[1 - at], indices if at == 0 else values)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_not_changed(layout):
    x = LAYOUTS[layout](hard_values((2, 9, 12, 14), np.float32), 2)
    before = x.tobytes()
    for call in CALLS.values():
        call(x)
    assert x.tobytes() == before
