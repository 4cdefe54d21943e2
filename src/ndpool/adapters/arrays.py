"""Any other array: pooled as a NumPy array over the same memory, by DLPack, and returned as its kind.

The way back is the array's own namespace (`__array_namespace__`, the array API standard). What has none, as a
data frame, gives NumPy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ndpool._record import note_copy
from ndpool.adapters._base import Adapter

_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}
_HOST = (1, 3, 11, 13)  # devices of DLPack that the CPU reads: its own, pinned and managed memory


class Arrays(Adapter):
    """Arrays with `__dlpack__` or `__array__`."""

    plain = True

    def open(self, fn: str, name: str, x: Any) -> Any:
        """A NumPy array over the memory of `x`; a copy where only `__array__` gives one."""
        if isinstance(x, np.ndarray):
            return x
        kind = type(x)
        _check_device(fn, name, x)
        if hasattr(kind, "__dlpack__"):
            try:
                return np.from_dlpack(x)
            except (BufferError, TypeError, ValueError, RuntimeError):
                pass  # a dtype or a layout that DLPack or NumPy lacks
        got = f"{kind.__module__}.{kind.__qualname__}"
        if not hasattr(kind, "__array__"):
            raise TypeError(f"{fn}: {name} must be readable by numpy.from_dlpack; got {got}")
        try:
            result = np.asarray(x)
        except MemoryError:
            raise
        except Exception as error:
            raise TypeError(f"{fn}: {name} must be readable by numpy.asarray; got {got} ({error})") from error
        note_copy(f"{name} through __array__")
        return result

    def close(self, fn: str, x: Any, result: Any) -> Any:
        """The array of the namespace of `x` over the memory of the result, on the device of `x`."""
        namespace = _namespace(x)
        if namespace is None:
            return result
        try:
            y = namespace.from_dlpack(result)
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            try:
                y = namespace.asarray(result)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{fn}: the result must have a dtype that {type(x).__module__} has; "
                    f"got dtype={result.dtype}"
                ) from error
        device = getattr(x, "device", None)
        return y if device == getattr(y, "device", None) else y.to_device(device)

    def open_out(self, fn: str, name: str, out: Any) -> Any:
        """A NumPy array over the memory of `out`; there is no other way to write to it."""
        if isinstance(out, np.ndarray):
            return out
        _check_device(fn, name, out)
        try:
            return np.from_dlpack(out)
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{fn}: {name} must be an array whose memory numpy.from_dlpack gives; "
                f"got {type(out).__name__}"
            ) from None

    def dtype(self, fn: str, x: Any, dtype: Any) -> Any:
        """The NumPy dtype of that of a namespace."""
        try:
            return np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):
            pass
        namespace = _namespace(x)
        try:
            return np.from_dlpack(namespace.empty((1,), dtype=dtype)).dtype
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            return dtype  # the framework refuses it


def _namespace(x: Any) -> Any:
    method = getattr(type(x), "__array_namespace__", None)
    return None if method is None else method(x)


def _check_device(fn: str, name: str, x: Any) -> None:
    method = getattr(type(x), "__dlpack_device__", None)
    if method is None:
        return
    device = int(method(x)[0])
    if device not in _HOST:
        raise TypeError(
            f"{fn}: {name} must be in memory that the CPU reads; got {type(x).__module__}."
            f"{type(x).__qualname__} on device {_DEVICES.get(device, device)}: copy it to the CPU first"
        )
