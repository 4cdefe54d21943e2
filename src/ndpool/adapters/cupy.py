"""CuPy arrays: pooled as CUDA tensors over the same memory, on CuPy's current stream.

A first call goes both ways by DLPack, without a copy; PyTorch allocates its results and works on CuPy's
current stream while it runs. Calls like one made before start its kernels directly, on memory that CuPy
allocates: no tensor is made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from threading import local
from typing import Any

import cupy
import numpy as np
import torch
from torch.utils import dlpack

from ndpool import _record
from ndpool._arguments import input_name
from ndpool._cache import typed_arguments
from ndpool._call import PLAIN, Asked, Function
from ndpool._dispatch import loaded
from ndpool._policy import DTYPES, check_dtype, samples_like
from ndpool._record import note_copy
from ndpool.adapters._base import Adapter

if torch.version.cuda is None:
    raise ImportError(f"PyTorch {torch.__version__}, which has no CUDA")
torch.cuda.init()  # type: ignore[no-untyped-call]  # before the first question for its streams

from_dlpack: Any = dlpack.from_dlpack
to_dlpack: Any = dlpack.to_dlpack  # type: ignore[attr-defined]
_external_stream: Any = torch.cuda.ExternalStream
_current_stream: Any = torch._C._cuda_getCurrentRawStream
_SAME: AbstractContextManager[Any] = nullcontext()
# dtypes that DLPack, or one of the libraries, may lack: passed as integers of the same size.
_AS_INTEGERS = {"bool": ("uint8", torch.bool), "bfloat16": ("int16", torch.bfloat16)}
_passed: dict[np.dtype[Any], Any] = {}  # the same by dtypes seen so far, whose names are slow
_INTEGERS = {torch.bool: torch.uint8, torch.bfloat16: torch.int16}
_streams: dict[tuple[int, int], Any] = {}
_MAX_STREAMS = 256
_again: dict[Any, Any] = {}  # calls made before, as `_repeated` makes them; False: those it does not support
_MAX_CALLS = 1024
_thread = local()


class CupyArrays(Adapter):
    """`cupy.ndarray`."""

    plain = True

    def open(self, fn: str, name: str, x: Any) -> Any:
        """A tensor over the memory of an array; PyTorch has no negative strides."""
        if not isinstance(x, cupy.ndarray):
            raise TypeError(f"{fn}: {name} must be a CuPy array; got {type(x).__name__}")
        return _tensor(fn, name, x)

    def open_out(self, fn: str, name: str, out: Any) -> Any:
        """The same, where a copy would not do."""
        if isinstance(out, cupy.ndarray) and min(out.strides, default=0) < 0:
            raise ValueError(f"{fn}: {name} must not have negative strides; got strides={out.strides}")
        return self.open(fn, name, out)

    def close(self, fn: str, x: Any, result: Any) -> Any:
        """An array over the memory of a tensor."""
        integers = _INTEGERS.get(result.dtype)
        if integers is None:
            return cupy.from_dlpack(to_dlpack(result))
        dtype = np.dtype(bool) if integers is torch.uint8 else _bfloat16(x)
        return cupy.from_dlpack(to_dlpack(result.view(integers))).view(dtype)

    def dtype(self, fn: str, x: Any, dtype: Any) -> Any:
        """The dtype of PyTorch with the name of one of NumPy."""
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError, SyntaxError):
            name = ""
        if name not in DTYPES:
            raise TypeError(f"{fn}: dtype must be a supported NumPy dtype; got dtype={dtype!r}")
        return getattr(torch, name)

    def scope(self, x: Any) -> AbstractContextManager[Any]:
        """PyTorch on CuPy's current stream of the array's device."""
        device = x.data.device_id
        if device == cupy.cuda.runtime.getDevice():
            pointer = cupy.cuda.get_current_stream().ptr
        else:
            pointer = cupy.cuda.get_current_stream(device).ptr
        pointer = 0 if pointer == 1 else pointer  # two names of the legacy default stream
        return _SAME if pointer == _current_stream(device) else OnStream(device, pointer)

    def pool(
        self,
        run: Any,
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        asked: Asked,
    ) -> Any:
        """A call like one made before starts its kernels; others go the usual way."""
        if asked.out is not None or asked.dtype is not None or _record.recording:
            return super().pool(run, function, x, arguments, indices, asked)
        given = arguments if asked is PLAIN else (*arguments, asked.divisor, asked.norm)
        layout = (x.shape, x.strides, x.dtype, x.data.device_id)
        key = (function.name, function.reduction.name, layout, typed_arguments(given), indices)
        again = _again.get(key)
        if again:
            result = again(x)
            if result is not None:
                return result
        fn = function.name
        inside = _tensor(fn, input_name(fn), x)
        with self.scope(x):
            result = run(function, inside, arguments, indices, asked)
            prepared = None if again is False else loaded["torch"].recall(function, inside, given, indices)
        result = self.closed(fn, x, result)
        if again is None and key[3] is not None:
            if len(_again) >= _MAX_CALLS:
                _again.clear()
            same = inside.data_ptr() == x.data.ptr  # not a copy
            _again[key] = (same and _repeated(getattr(prepared, "steps", ()), result)) or False
        return result

    def fractional(
        self,
        run: Any,
        function: Function,
        x: Any,
        arguments: tuple[Any, ...],
        indices: Any,
        samples: Any,
        generator: Any,
    ) -> Any:
        """CuPy's generators draw the samples themselves."""
        if samples is None and isinstance(generator, (cupy.random.Generator, cupy.random.RandomState)):
            n_axes = function.n_axes
            if x.ndim in (n_axes + 1, n_axes + 2) and x.dtype.name in DTYPES:
                shape, name = samples_like(x.shape, x.dtype.name, n_axes)
                samples = self.draw(generator, shape, np.dtype(x.dtype if name == x.dtype.name else name))
            generator = None
        return super().fractional(run, function, x, arguments, indices, samples, generator)

    @staticmethod
    def draw(generator: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Samples in [0, 1) of a dtype; narrow ones may round up to 1, which would leave the input."""
        drawn = generator.random(shape) if hasattr(generator, "random") else generator.random_sample(shape)
        drawn = drawn.astype(dtype)
        drawn[drawn >= 1] = 0
        return drawn


def _repeated(steps: Any, result: Any) -> Callable[[Any], Any] | None:
    """A call with this result as kernels on CuPy's memory: an array to a result, or None to decline.

    `steps` are shape, dtype and kernel of each kernel, which reads what the one before it wrote.
    """
    if not steps:
        return None
    kernels = [kernel for _, _, kernel in steps]
    if not all(hasattr(kernel, "start") for kernel in kernels):
        return None
    between = [prod(shape) * dtype.itemsize for shape, dtype, _ in steps[:-1]]
    new, *new_extra = [_new(y) for y in (result if type(result) is tuple else (result,))]
    several = cupy.cuda.runtime.getDeviceCount() > 1
    alloc, current_stream = cupy.cuda.alloc, cupy.cuda.get_current_stream
    starts: tuple[Any, ...] = ()  # of the kernels, once they are compiled

    def again(x: Any) -> Any:
        nonlocal starts
        data = x.data
        address = data.ptr
        if not starts and all(kernel.start for kernel in kernels):
            starts = tuple([kernel.start for kernel in kernels])  # at once: other threads read it
        if address % 16 or not starts or (several and data.device_id != cupy.cuda.runtime.getDevice()):
            return None
        if not hasattr(_thread, "ready"):
            cupy.cuda.runtime.free(0)  # makes the device's context that of this thread
            _thread.ready = True
        try:
            y = new()
            extra = new_extra[0]() if new_extra else y
            scratch = [alloc(size) for size in between]
        except MemoryError:
            return None  # PyTorch may hold what is missing, and its error names the function
        result = y.data.ptr
        if result % 16:
            return None
        stream = current_stream().ptr
        for start, memory in zip(starts, scratch, strict=False):
            start(stream, address, memory.ptr, memory.ptr)
            address = memory.ptr
        starts[-1](stream, address, result, extra.data.ptr if new_extra else result)
        return (y, extra) if new_extra else y

    return again


def _new(like: Any) -> Callable[[], Any]:
    """What allocates an array of this shape, dtype and memory layout."""
    shape, dtype, strides, size = like.shape, like.dtype, like.strides, like.nbytes
    packed = tuple(like.itemsize * prod(shape[a + 1 :]) for a in range(len(shape)))
    if strides == packed:  # flags do not look at the strides of axes of size 1
        return lambda: cupy.ndarray(shape, dtype)
    return lambda: cupy.ndarray(shape, dtype, cupy.cuda.alloc(size), strides)


class OnStream:
    """PyTorch's current stream is a given one inside a `with` block; a small `torch.cuda.stream`."""

    __slots__ = ("before", "device", "stream")

    def __init__(self, device: int, pointer: int) -> None:
        self.device = device
        stream = _streams.get((device, pointer))
        if stream is None:
            if len(_streams) >= _MAX_STREAMS:
                _streams.clear()
            stream = _streams[device, pointer] = _external_stream(pointer, device)
        self.stream = stream

    def __enter__(self) -> None:
        self.before = torch.cuda.current_stream(self.device)
        self._set(self.stream)

    def __exit__(self, *_: object) -> None:
        self._set(self.before)

    def _set(self, stream: Any) -> None:
        # Setting a stream also sets its device.
        device = torch.cuda.current_device()
        torch.cuda.set_stream(stream)
        if device != self.device:
            torch.cuda.set_device(device)


def _tensor(fn: str, name: str, x: Any) -> Any:
    dtype = x.dtype
    try:
        passed = _passed[dtype]
    except KeyError:
        check_dtype(fn, name, dtype.name)
        passed = _passed[dtype] = _AS_INTEGERS.get(dtype.name)
    if not x.flags.c_contiguous and min(x.strides, default=0) < 0:
        note_copy(f"{name} with negative strides")
        x = cupy.ascontiguousarray(x)
    # -1: both work on the same stream, there is nothing to wait for.
    if passed is None:
        return from_dlpack(x.__dlpack__(stream=-1))
    return from_dlpack(x.view(passed[0]).__dlpack__(stream=-1)).view(passed[1])


def _bfloat16(x: Any) -> np.dtype[Any]:
    """bfloat16 as the input has it, or as the package that gives it to NumPy."""
    if x.dtype.name == "bfloat16":
        return x.dtype  # type: ignore[no-any-return]
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
