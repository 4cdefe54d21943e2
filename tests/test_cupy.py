"""The way of CuPy arrays to tensors and back, without a GPU; gpu_checks_cupy.py has the checks on one.

A small module stands in for CuPy: NumPy arrays behind CuPy's methods, which the adapter turns into CPU
tensors. What is checked is the adapter; streams and kernels need the GPU.
"""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import cases
import ndpool
from helpers import assert_exact, hard_values
from ndpool._native import BUILT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
DRAWS = 25


class ndarray:
    """An array with the methods of CuPy's that the adapter uses."""

    __module__ = "cupy"

    def __init__(self, values, dtype=None, memory=None, strides=None):
        if dtype is not None:  # a new array of this shape
            values = np.ndarray(values, dtype, memory and memory.buffer, 0, strides)
        self.values = values

    def __getattr__(self, name):
        return getattr(self.values, name)

    def __getitem__(self, key):
        return ndarray(self.values[key])

    def __setitem__(self, key, value):
        self.values[key.values if isinstance(key, ndarray) else key] = value

    def __ge__(self, other):
        return ndarray(self.values >= other)

    @property
    def data(self):
        return SimpleNamespace(device_id=0, ptr=self.values.ctypes.data)

    def view(self, dtype):
        return ndarray(self.values.view(dtype))

    def astype(self, dtype):
        return ndarray(self.values.astype(dtype))

    def __dlpack__(self, stream=None):
        assert stream == -1
        assert self.values.dtype.name not in ("bool", "bfloat16")  # which CuPy does not export everywhere
        assert min(self.values.strides, default=0) >= 0
        return torch.utils.dlpack.to_dlpack(cases.to_torch(self.values))

    @property
    def __array__(self):
        raise AssertionError("copied to the CPU")


class Memory:
    """Memory of CuPy's allocator."""

    allocated: list[int] = []  # noqa: RUF012

    def __init__(self, size):
        self.buffer = np.empty(size, np.uint8)
        self.ptr = self.buffer.ctypes.data
        self.allocated.append(size)


class Generator:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def random(self, shape):
        return ndarray(self.rng.random(shape))


class RandomState:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def random_sample(self, shape):
        return ndarray(self.rng.random_sample(shape))


class Stream:
    """A stream of PyTorch, of which one is current."""

    now = 0
    seen: list[int] = []  # noqa: RUF012

    def __init__(self, pointer=0, device=0):
        self.ptr = pointer


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, with streams that PyTorch without CUDA lacks."""
    module = ModuleType("cupy")
    module.ndarray = ndarray
    module.from_dlpack = lambda capsule: ndarray(torch.from_dlpack(capsule).numpy())
    module.ascontiguousarray = lambda x: ndarray(np.ascontiguousarray(x.values))
    module.random = SimpleNamespace(Generator=Generator, RandomState=RandomState)
    current = Stream()
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1, free=lambda address: None),
        alloc=Memory,
        get_current_stream=lambda device=0: current,
        current=current,
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.delitem(sys.modules, "ndpool.adapters.cupy", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: Stream.now, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(Stream.now))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def set_stream(stream):
        Stream.now = stream.ptr
        Stream.seen.append(stream.ptr)

    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    Stream.now = 0
    Stream.seen.clear()
    adapters = sys.modules["ndpool.adapters"]
    yield module
    adapters._known.pop(ndarray, None)
    sys.modules.pop("ndpool.adapters.cupy", None)


def put(a):
    return ndarray(a) if isinstance(a, np.ndarray) else a


def back(a):
    assert isinstance(a, ndarray)
    return a.values


@pytest.mark.parametrize("name", cases.NAMES)
def test_equal_to_the_oracle(cupy, name):
    rng = np.random.default_rng(9000 + cases.NAMES.index(name))
    for _ in range(DRAWS):
        case = cases.draw(rng, name, beyond=True)
        if case.values.dtype == np.bool_ and "avg" in name:
            continue
        kwargs = {key: put(a) for key, a in case.kwargs.items()}
        result = getattr(ndpool, name)(put(case.array()), *map(put, case.args), **kwargs)
        cases.assert_same(tuple(map(back, cases.as_tuple(result))), case.call_oracle(), case)


def test_nothing_is_copied(cupy):
    x = np.zeros((1, 8, 8), np.float32)
    assert ndpool.explain(ndpool.max_pool2d, ndarray(x), 2).copies == ()
    assert ndpool.explain(ndpool.max_pool2d, ndarray(x[:, ::-1]), 2).copies == (
        "input with negative strides",
    )


def test_calls_run_on_the_current_stream(cupy):
    """PyTorch changes its stream for a call only where CuPy's differs, and always changes it back."""
    x = ndarray(np.zeros((1, 8, 8), np.float32))
    ndpool.max_pool2d(x, 2)
    cupy.cuda.current.ptr = 1  # another name of the default stream
    ndpool.max_pool2d(x, 2)
    assert Stream.seen == []
    cupy.cuda.current.ptr = 77
    values, indices = ndpool.max_pool2d(x, 2, return_indices=True)
    ndpool.max_unpool2d(values, indices, 2)
    ndpool.unpool(values, indices, (8, 8))
    ndpool.fractional_max_pool2d(x, 2, 3)
    with pytest.raises(ValueError, match="padding must be at most half"):
        ndpool.max_pool2d(x, 3, padding=2)
    assert Stream.seen == [77, 0] * 5


class Kernel:
    """A compiled kernel that copies `count` bytes and notes the stream and addresses that it is given."""

    def __init__(self, count):
        self.count, self.started, self.start = count, [], None

    def compile(self):
        self.start = self._start

    def _start(self, stream, x, y, extra):
        self.started.append((stream, x, y, extra))
        ctypes.memmove(y, x, self.count)


@pytest.fixture
def repeated(cupy, monkeypatch):
    """Prepared calls with kernels, as those of CUDA tensors have: the first writes to scratch memory."""
    ndpool.max_pool2d(torch.zeros(1, 4, 4), 2)
    framework = sys.modules["ndpool.frameworks.torch"]
    recall, kernels = framework.recall, (Kernel(96), Kernel(96))

    def with_kernels(*call):
        prepared = recall(*call)
        if prepared:
            prepared = partial(prepared)  # which can have attributes
            prepared.steps = tuple(((2, 3, 4), torch.float32, kernel) for kernel in kernels)
        return prepared

    monkeypatch.setattr(framework, "recall", with_kernels)
    Memory.allocated.clear()
    return kernels


@pytest.mark.skipif(not BUILT, reason="prepared calls of CPU tensors need the core")
@pytest.mark.parametrize("indices", [False, True])
def test_repeated_calls_start_their_kernels(cupy, repeated, indices):
    """A call like one made before makes no tensor: kernels get CuPy's memory and current stream."""
    x = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8)
    want = ndpool.max_pool2d(x, 2, return_indices=indices)

    def call(x, window=2):
        return ndpool.max_pool2d(x, window, return_indices=indices)

    for _ in range(2):  # not compiled yet: as tensors
        assert_exact(tuple(map(back, cases.as_tuple(call(ndarray(x))))), cases.as_tuple(want))
    for kernel in repeated:
        kernel.compile()
    cupy.cuda.current.ptr = 77
    got = cases.as_tuple(call(ndarray(x)))
    assert_exact(back(got[0]).ravel(), x.ravel()[:24])  # what the kernels copied
    (first,), (last,) = (kernel.started for kernel in repeated)
    assert first[:2] == (77, x.ctypes.data)
    assert last == (77, first[2], got[0].data.ptr, got[-1].data.ptr)
    assert [(y.shape, y.dtype) for y in got] == [(y.shape, y.dtype) for y in cases.as_tuple(want)]
    assert Memory.allocated[-1:] == [96]
    assert Stream.seen == []
    # Other arguments, dtypes, layouts and alignments are other calls; so is one that is explained.
    call(ndarray(x), 3)
    call(ndarray(x), (2, 2))
    call(ndarray(x.astype(np.float64)))
    call(ndarray(x.swapaxes(1, 2)))
    call(ndarray(np.frombuffer(b"four" + x.tobytes(), np.float32, offset=4).reshape(x.shape)))
    ndpool.explain(ndpool.max_pool2d, ndarray(x), 2, return_indices=indices)
    with pytest.raises(TypeError, match="kernel_size"):
        call(ndarray(x), 2.0)
    with pytest.raises(TypeError, match="kernel_size"):
        call(ndarray(x), True)
    assert len(repeated[0].started) == 1


@pytest.mark.skipif(not BUILT, reason="prepared calls of CPU tensors need the core")
def test_repeated_calls_start_all_kernels_or_none(cupy, repeated):
    """A thread may call while another one notes the kernels that are compiled now."""
    x = ndarray(np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8))
    ndpool.max_pool2d(x, 2)
    depth = 0

    class Interrupted(Kernel):
        @property
        def start(self):
            nonlocal depth
            depth += 1
            if depth == 2:  # all are compiled, and the first is noted
                ndpool.max_pool2d(x, 2)
            return self._start

        @start.setter
        def start(self, value):
            pass

    for kernel in repeated:
        kernel.compile()
    repeated[1].__class__ = Interrupted
    for _ in range(2):
        ndpool.max_pool2d(x, 2)
    first, last = (kernel.started for kernel in repeated)
    assert len(first) == len(last) == 3


@pytest.mark.skipif(not BUILT, reason="prepared calls of CPU tensors need the core")
def test_repeated_calls_without_memory_are_made_by_pytorch(cupy, repeated, monkeypatch):
    def none(size):
        raise MemoryError

    monkeypatch.setattr(cupy.cuda, "alloc", none)
    x = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8)
    for kernel in repeated:
        kernel.compile()
    for _ in range(2):
        assert_exact(back(ndpool.max_pool2d(ndarray(x), 2)), ndpool.max_pool2d(x, 2))
    assert not repeated[1].started


def test_repeated_calls_keep_the_strides_of_axes_of_size_1(cupy):
    """Flags call (2, 4, 1, 1) packed, whatever the last two strides are."""
    adapter = import_module("ndpool.adapters.cupy")
    channels_last = np.empty((2, 1, 1, 4), np.float32).transpose(0, 3, 1, 2)
    for like in (channels_last, np.empty((2, 4, 1, 1), np.float32)):
        got = adapter._new(ndarray(like))()
        assert (got.shape, got.strides, got.dtype) == (like.shape, like.strides, like.dtype)


def test_out_and_dtype(cupy):
    x = hard_values((2, 8, 8), np.float32, special=0)
    out = ndarray(np.empty((2, 4, 4), np.float32)), ndarray(np.empty((2, 4, 4), np.int64))
    assert ndpool.max_pool2d(ndarray(x), 2, return_indices=True, out=out) is out
    assert_exact(tuple(map(back, out)), ndpool.max_pool2d(x, 2, return_indices=True))
    for dtype in ("float64", np.float16, np.dtype("int32")):
        got = ndpool.pool(ndarray(x.astype(np.int32)), (2, 2), reduce="sum", dtype=dtype)
        assert_exact(back(got), ndpool.pool(x.astype(np.int32), (2, 2), reduce="sum", dtype=dtype))
    flags = np.zeros((1, 2, 2), bool)
    assert ndpool.max_pool2d(ndarray(x > 0), 2, out=ndarray(np.empty((2, 4, 4), bool))).dtype == np.bool_
    assert back(ndpool.max_pool2d(ndarray(flags), 2)).tolist() == [[[False]]]
    for error, call in {
        "pool: dtype must be a supported NumPy dtype; got dtype='yes'": {"dtype": "yes"},
        "pool: out must be a CuPy array; got ndarray": {"out": x},
    }.items():
        with pytest.raises(TypeError, match=error):
            ndpool.pool(ndarray(x), (2, 2), **call)
    with pytest.raises(ValueError, match="pool: out must not have negative strides"):
        ndpool.pool(ndarray(x), (2, 2), out=ndarray(np.empty((2, 4, 4), np.float32)[:, ::-1]))
    with pytest.raises(TypeError, match="pool: x must have a supported dtype; got dtype=complex64"):
        ndpool.pool(ndarray(x.astype(np.complex64)), (2, 2))


@pytest.mark.parametrize("make", [Generator, RandomState])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_generators(cupy, make, dtype):
    import ml_dtypes

    x = hard_values((2, 3, 20, 20), getattr(ml_dtypes, dtype, dtype), special=0)
    once, again, other = (
        back(ndpool.fractional_max_pool2d(ndarray(x), 3, 7, generator=make(seed))) for seed in (5, 5, 6)
    )
    assert_exact(once, again)
    assert (once != other).any()
    with pytest.raises(TypeError, match="max_unpool2d: indices must be a CuPy array; got ndarray"):
        ndpool.max_unpool2d(ndarray(x), x.astype(int), 2)


def test_pytorch_without_cuda_is_named(cupy, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        ImportError, match=r"max_pool2d: CuPy arrays need PyTorch with CUDA.*which has no CUDA"
    ):
        ndpool.max_pool2d(ndarray(np.zeros((1, 4, 4))), 2)
