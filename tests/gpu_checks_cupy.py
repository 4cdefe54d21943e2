"""CuPy arrays on a GPU: every function, dtype, layout and stream, equal to the oracle.

Not collected by name; ``make test-gpu`` runs it where CuPy and a GPU are. The same checks of the way to the
tensors and back, without a GPU, are in test_cupy.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

import cases
import gpu_checks
import gpu_draws
import ndpool
import oracle

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DRAWS = 20


def has_bfloat16():
    """Whether this CuPy has arrays of bfloat16."""
    try:
        return bool(cupy.zeros(2, ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16)
    except (TypeError, ValueError):
        return False


BFLOAT16 = has_bfloat16()


def put(a):
    """An array of CuPy with the strides of one of NumPy, negative ones included."""
    if not isinstance(a, np.ndarray):
        return a
    turned = tuple(slice(None, None, -1 if step < 0 else 1) for step in a.strides)
    a = a[turned]
    if not a.size or 0 in a.strides:
        return cupy.asarray(np.ascontiguousarray(a))[turned]
    base = np.lib.stride_tricks.as_strided(a, (_extent(a),), (a.itemsize,))
    return cupy.ndarray(a.shape, a.dtype, cupy.asarray(base.copy()).data, a.strides)[turned]


def _extent(a):
    return (sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) // a.itemsize) + 1


def back(a):
    assert isinstance(a, cupy.ndarray)
    return cupy.asnumpy(a)


def run(case, x):
    kwargs = {key: put(a) for key, a in case.kwargs.items()}
    return cases.as_tuple(getattr(ndpool, case.name)(x, *map(put, case.args), **kwargs))


def unsigned_zeros(a):
    return np.where(a == 0, np.zeros((), a.dtype), a)


@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_the_oracle(name):
    rng = np.random.default_rng(9000 + cases.NAMES.index(name))
    for _ in range(DRAWS):
        case = cases.draw(rng, name, beyond=True)
        dtype = case.values.dtype
        if (dtype == np.bool_ and "avg" in name) or (dtype.name == "bfloat16" and not BFLOAT16):
            continue
        want = case.call_oracle()
        if "max" in name and len(want) == 1:  # without indices a zero may have either sign
            want = tuple(map(unsigned_zeros, want))
        for _ in range(2):  # as tensors, then by the kernels alone
            have = tuple(map(back, run(case, put(case.array()))))
            if "max" in name and len(want) == 1:
                have = tuple(map(unsigned_zeros, have))
            cases.assert_same(have, want, case)


@pytest.mark.parametrize(("name", "shape", "args"), gpu_checks.CASES, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_the_cases_of_tensors(name, shape, args, last):
    """The list that reaches every kernel: through CuPy the same bits as through tensors."""
    x = torch.from_numpy(np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32) / 4).cuda()
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    y = cupy.from_dlpack(x)
    assert y.data.ptr == x.data_ptr()
    function = getattr(ndpool, name)
    try:
        want = cases.as_tuple(function(x, *args))
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            function(y, *args)
        return
    for _ in range(3):  # as tensors, then by the kernels alone, on memory used before
        got = cases.as_tuple(function(y, *args))
        for have, need in zip(got, want, strict=True):
            assert isinstance(have, cupy.ndarray)
            assert have.strides == tuple(step * need.itemsize for step in need.stride())
            np.testing.assert_array_equal(back(have), need.cpu().numpy())


def test_drawn_general_calls():
    rng = np.random.default_rng(3)
    for _ in range(60):
        draw = gpu_draws.draw(rng, "cuda")
        if draw.x.dtype is torch.bfloat16:
            continue
        function = getattr(ndpool, draw.function)
        want = function(draw.x, draw.window, **draw.options)
        got = function(cupy.from_dlpack(draw.x), draw.window, **draw.options)
        np.testing.assert_array_equal(back(got), want.cpu().numpy(), err_msg=str(draw))


def test_nothing_is_copied():
    """The input is read in place, the result is the memory that the kernel wrote."""
    x = cupy.arange(2 * 64 * 64, dtype=cupy.float32).reshape(2, 64, 64)
    assert ndpool.explain(ndpool.max_pool2d, x, 2).copies == ()
    assert ndpool.explain(ndpool.max_pool2d, x[:, ::-1], 2).copies == ("input with negative strides",)
    inside = import_module("ndpool.adapters").adapter_of("f", x).open("f", "x", x)
    assert (inside.data_ptr(), inside.is_cuda) == (x.data.ptr, True)
    assert ndpool.explain(ndpool.max_pool2d, x, 2).forward.device.startswith("cuda")


def test_out():
    x = cupy.asarray(np.random.default_rng(0).random((2, 8, 8), dtype=np.float32))
    out = cupy.empty((2, 4, 4), cupy.float32), cupy.empty((2, 4, 4), cupy.int64)
    assert ndpool.max_pool2d(x, 2, return_indices=True, out=out) is out
    want = oracle.max_pool(back(x), [2, 2])
    np.testing.assert_array_equal(back(out[0]), want[0])
    np.testing.assert_array_equal(back(out[1]), want[1])
    with pytest.raises(ValueError, match="out must not have negative strides"):
        ndpool.max_pool2d(x, 2, out=out[0][:, ::-1])
    with pytest.raises(TypeError, match="out must be a CuPy array; got ndarray"):
        ndpool.max_pool2d(x, 2, out=np.empty((2, 4, 4), np.float32))


def test_dtypes_asked_for():
    x = cupy.arange(16, dtype=cupy.int32).reshape(1, 4, 4)
    for dtype in ("float32", np.float64, cupy.float16, np.dtype("int16")):
        got = ndpool.pool(x, (2, 2), reduce="sum", dtype=dtype)
        assert got.dtype == np.dtype(dtype)
        assert back(got).tolist() == [[[10, 18], [42, 50]]]
    flags = x > 6
    assert ndpool.max_pool2d(flags, 2).dtype == np.bool_
    assert back(ndpool.max_pool2d(flags, 2)).tolist() == [[[False, True], [True, True]]]
    with pytest.raises(TypeError, match="pool: dtype must be a supported NumPy dtype; got dtype='yes'"):
        ndpool.pool(x, (2, 2), dtype="yes")
    with pytest.raises(TypeError, match="max_pool2d: input must have a supported dtype; got dtype=complex64"):
        ndpool.max_pool2d(x.astype(cupy.complex64), 2)


def test_generators():
    x = cupy.asarray(np.random.default_rng(0).random((2, 3, 20, 20)))
    for make in (cupy.random.default_rng, cupy.random.RandomState):
        once, again, other = (
            back(ndpool.fractional_max_pool2d(x, 3, 7, generator=make(seed))) for seed in (5, 5, 6)
        )
        assert (once == again).all()
        assert (once != other).any()
    assert (
        back(ndpool.fractional_max_pool2d(x, 3, 7, generator=1))
        == back(ndpool.fractional_max_pool2d(x, 3, 7, generator=1))
    ).all()


class Slow:
    """Work that keeps a stream busy for a while, and the array that it writes at its end."""

    def __init__(self, shape):
        self.busy = cupy.ones((4096, 4096), cupy.float32)
        self.x = cupy.zeros(shape, cupy.float32)
        self.values = cupy.asarray(np.random.default_rng(0).random(shape, dtype=np.float32))
        cupy.cuda.Device().synchronize()

    def __call__(self):
        for _ in range(8):
            self.busy = self.busy @ self.busy * 1e-4
        self.x[...] = self.values
        return self.x


@pytest.mark.parametrize("kind", ["own", "non-blocking", "null", "per thread"])
def test_streams(kind):
    """A call waits for what its stream did before, and what follows on the stream waits for the call."""
    make = {
        "own": lambda: cupy.cuda.Stream(),
        "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
        "null": lambda: cupy.cuda.Stream.null,
        "per thread": lambda: cupy.cuda.Stream.ptds,
    }
    shape = (2, 3, 64, 66)
    want = oracle.max_pool(np.random.default_rng(0).random(shape, dtype=np.float32), [3, 3], 2, 1)
    before = torch.cuda.current_stream()
    for _ in range(3):
        slow = Slow(shape)
        with make[kind]() as stream:
            x = slow()
            values, indices = ndpool.max_pool2d(x, 3, 2, 1, return_indices=True)
            doubled = values * 2
            x[...] = 0  # after the call has read it
            restored = ndpool.max_unpool2d(values, indices, 3, 2, 1, output_size=shape)
        assert torch.cuda.current_stream() == before
        stream.synchronize()
        np.testing.assert_array_equal(back(values), want[0])
        np.testing.assert_array_equal(back(indices), want[1])
        np.testing.assert_array_equal(back(doubled), want[0] * 2)
        assert float(restored.max()) == want[0].max()


def test_stream_of_pytorch_is_restored_after_an_error():
    before = torch.cuda.current_stream()
    with cupy.cuda.Stream(non_blocking=True), pytest.raises(ValueError, match="padding must be at most"):
        ndpool.max_pool2d(cupy.zeros((1, 4, 4)), 3, padding=2)
    assert torch.cuda.current_stream() == before


def test_threads_with_streams_of_their_own():
    x = cupy.asarray(np.random.default_rng(1).random((4, 8, 40, 40), dtype=np.float32))
    want = oracle.max_pool(cupy.asnumpy(x), [2, 2])[0]
    cupy.cuda.Device().synchronize()

    def work(_):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results = [ndpool.max_pool2d(x, 2) for _ in range(20)]
            stream.synchronize()
            return [cupy.asnumpy(result) for result in results]

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(work, range(8)):
            for result in results:
                np.testing.assert_array_equal(result, want)


REPEATED = [
    lambda x: ndpool.max_pool2d(x, 2),
    lambda x: ndpool.max_pool2d(x, 3, 2, 1, return_indices=True),
    lambda x: ndpool.avg_pool2d(x, 15, 1, 7),  # two kernels
    lambda x: ndpool.max_pool2d(x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), 2),
    lambda x: ndpool.pool(x, (2, 2), reduce="lp"),
]


@pytest.mark.parametrize("call", REPEATED)
def test_repeated_calls_make_no_tensor(call, monkeypatch):
    """The second call starts the kernels of the first, on memory of CuPy's own allocator."""
    x = cupy.asarray(np.random.default_rng(1).random((4, 8, 40, 40), dtype=np.float32))
    want = [back(y) for y in cases.as_tuple(call(x))]
    monkeypatch.setattr("ndpool.adapters.cupy.from_dlpack", None)
    for _ in range(20):
        got = cases.as_tuple(call(x))
        for have, need in zip(got, want, strict=True):
            np.testing.assert_array_equal(back(have), need)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        for have, need in zip(cases.as_tuple(call(x)), want, strict=True):
            np.testing.assert_array_equal(back(have), need)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_thread_that_has_done_nothing_else(kind):
    """A new thread has no CUDA context of its own; memory that was freed needs no call that makes one."""
    values = np.random.default_rng(1).random((4, 8, 40, 40), dtype=np.float32)
    x = cupy.asarray(values) if kind == "array" else torch.from_numpy(values).cuda()
    want = oracle.max_pool(values, [2, 2])[0]
    for _ in range(3):
        ndpool.max_pool2d(x, 2)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(ndpool.max_pool2d, x, 2).result()
    np.testing.assert_array_equal(back(got) if kind == "array" else got.cpu().numpy(), want)


def test_results_outlive_everything():
    """A result keeps its memory; freed ones are used again in the order of their stream."""
    x = cupy.asarray(np.random.default_rng(1).random((4, 8, 64, 64), dtype=np.float32))
    want = oracle.max_pool(cupy.asnumpy(x), [2, 2])[0]
    kept = ndpool.max_pool2d(x, 2)
    del x
    for _ in range(50):
        ndpool.max_pool2d(cupy.zeros((4, 8, 64, 64), cupy.float32), 2)
    np.testing.assert_array_equal(back(kept), want)


def test_managed_memory():
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        x = cupy.arange(64, dtype=cupy.float32).reshape(1, 8, 8)
    try:
        got = ndpool.max_pool2d(x, 2)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        pytest.skip(f"PyTorch does not take managed memory: {error}")
    assert back(got)[0, 0, 0] == 9


def test_layers_and_empty_batches():
    x = cupy.asarray(np.random.default_rng(1).random((2, 3, 8, 8), dtype=np.float32))
    np.testing.assert_array_equal(back(ndpool.nn.MaxPool2d(2)(x)), back(ndpool.max_pool2d(x, 2)))
    assert ndpool.max_pool2d(x[:0], 2).shape == (0, 3, 4, 4)


def test_arrays_of_other_kinds_are_refused():
    x = cupy.zeros((1, 4, 4))
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    with pytest.raises(TypeError, match="max_unpool2d: indices must be a CuPy array; got ndarray"):
        ndpool.max_unpool2d(values, cupy.asnumpy(indices), 2)
    with pytest.raises(ValueError, match="max_unpool2d: indices must lie in the plane"):
        ndpool.max_unpool2d(values, indices + 99, 2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_arrays_of_another_device():
    with cupy.cuda.Device(1):
        x = cupy.asarray(np.random.default_rng(1).random((2, 3, 8, 8), dtype=np.float32))
    got = ndpool.max_pool2d(x, 2)
    assert got.device.id == 1
    with cupy.cuda.Device(1):
        np.testing.assert_array_equal(back(got), oracle.max_pool(back(x), [2, 2])[0])
