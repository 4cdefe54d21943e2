"""Tensors as the framework sees them: dtypes, memory, memory formats, and what watches them.

The bottom of this folder: every other module here uses it, and it uses none of them. No pooling.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled, is_inference_mode_enabled
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _is_tracing as is_tracing
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._C._functorch import is_legacy_batchedtensor as is_legacy_batch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from ndpool._call import INDEX64, OFFSET8, OFFSET32
from ndpool._native import BUILT, core
from ndpool._policy import DTYPES, FIRST_FLOAT, Described, Kind, check_dtype

CODES: dict[torch.dtype, int] = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in DTYPES}
FLOATS = frozenset(dtype for dtype, code in CODES.items() if code >= FIRST_FLOAT)
EXTRA_DTYPES = {OFFSET8: torch.uint8, OFFSET32: torch.int32, INDEX64: torch.int64}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
PLAIN_TYPES = {Tensor, torch.nn.Parameter}
_SPATIAL = {3: (2,), 4: (3, 2), 5: (4, 3, 2)}

# Whether the core reads tensors itself: then it checks, too, what `plain` and `undifferentiated` check.
EXCHANGED = (
    BUILT
    and hasattr(Tensor, "__dlpack_c_exchange_api__")
    and core.set_tensors(
        (Tensor, torch.nn.Parameter),
        Tensor.__dlpack_c_exchange_api__,
        (dispatch_modes, is_tracing, transforms_active),
        forward_ad,
        is_grad_enabled,
        is_legacy_batch,
    )
)


def traced(x: Tensor) -> bool:
    """Whether a compiler, a dispatch mode or a tensor subclass must see operators instead of kernels."""
    return (
        is_dynamo_compiling()
        or type(x) not in PLAIN_TYPES
        or dispatch_modes() > 0
        or is_tracing()
        or x.is_meta
    )


def transformed() -> bool:
    """Whether a function transform or forward-mode differentiation is active."""
    return transforms_active() or forward_ad._current_level >= 0


def differentiated(x: Tensor) -> bool:
    """Whether a derivative may be asked for, in any mode."""
    return (x.requires_grad and is_grad_enabled()) or transformed()


def plain(x: Tensor) -> bool:
    """Whether a tensor is nothing but its memory, apart from reverse-mode differentiation."""
    return not (
        is_dynamo_compiling()
        or type(x) not in PLAIN_TYPES
        or dispatch_modes() > 0
        or is_tracing()
        or transforms_active()
        or forward_ad._current_level >= 0
        or x.is_neg()
    )


def check_tensor(fn: str, x: Tensor, name: str = "input") -> int:
    """The kernels' number of a tensor's dtype; strided tensors of a supported dtype have one."""
    code = CODES.get(x.dtype)
    if code is None:
        check_dtype(fn, name, str(x.dtype).removeprefix("torch."))
    if x.layout is not torch.strided:
        raise TypeError(f"{fn}: {name} must be a strided tensor; got layout={x.layout}")
    return code  # type: ignore[return-value]


def _describe(x: Any) -> Described | None:
    if not isinstance(x, Tensor):
        return None
    dtype = str(x.dtype).removeprefix("torch.")
    if x.layout is not torch.strided:
        return Described(tuple(x.shape), dtype, fault="be sparse", fault_type=TypeError)
    fault = "require a gradient" if x.requires_grad else ""
    return Described(tuple(x.shape), dtype, x.stride(), 1, str(x.device), fault=fault)


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0


KIND = Kind("a tensor", _describe, _overlap)


class NoMemoryError(ValueError):
    """A tensor whose storage is too small for its elements, or missing; `renamed` adds the function."""


class TensorMemoryError(MemoryError, RuntimeError):
    """Memory that PyTorch could not allocate: a MemoryError as for arrays, a RuntimeError as from PyTorch."""


FAILURES = (ValueError, MemoryError, RuntimeError)
_NO_MEMORY = ("can't allocate memory", "calculation overflowed")  # in messages of PyTorch


def renamed(fn: str, error: Exception) -> Exception:
    """A failure below, in the name of the function called."""
    if isinstance(error, ValueError):
        return error if str(error).startswith(f"{fn}: ") else ValueError(f"{fn}: {error}")
    lacking = type(error) is RuntimeError and any(text in str(error) for text in _NO_MEMORY)
    if lacking or type(error) is MemoryError:
        return TensorMemoryError(f"{fn}: {error}")
    return error


def extent(x: Tensor) -> int:
    """The bytes from the first element of a tensor to the end of its last."""
    return (sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1) * x.itemsize


def check_memory(x: Tensor) -> None:
    """Check that storage lies under every element: a caller can free it, or shrink it, under a tensor."""
    size = x.untyped_storage().nbytes()
    needed = extent(x) + x.storage_offset() * x.itemsize
    if size < needed and x.numel() and not x._is_zerotensor():
        raise NoMemoryError(
            f"a tensor's memory was freed or shrunk; its storage has {size} bytes (limit: at least {needed})"
        )


def memory(x: Tensor) -> Any:
    """The tensor as the core takes it: address, shape and strides. The caller keeps it alive."""
    check_memory(x)
    address = x.data_ptr()
    if not address and x.numel():
        raise NoMemoryError(
            f"a tensor has no memory of its own, as fake ones have none; got {type(x).__name__}"
        )
    return address, x.shape, x.stride()


def writable(target: Tensor, x: Tensor) -> bool:
    """Whether a kernel can write straight into a target: plain memory, apart from the input's."""
    if type(target) not in PLAIN_TYPES or target.requires_grad or target.is_neg() or not target.data_ptr():
        return False
    if target.is_inference() and not is_inference_mode_enabled():
        return False
    (begin, end), (x_begin, x_end) = (
        (memory.data_ptr(), memory.data_ptr() + memory.nbytes())
        for memory in (target.untyped_storage(), x.untyped_storage())
    )
    if target.device != x.device or begin + extent(target) + target.storage_offset() * target.itemsize > end:
        return False
    return (end <= x_begin or x_end <= begin) and target.data_ptr() % target.itemsize == 0


def materialized(x: Tensor) -> Tensor:
    """The tensor with its values in memory: not lazily negated, not an implicit zero."""
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if x._is_zerotensor() else x


def is_channels_last(shape: Any, stride: Any, n_axes: int = 0) -> bool:
    """Whether PyTorch considers these strides channels-last; a signal counts as an image of one row.

    Without a batch axis, only volumes have the format.
    """
    if n_axes and n_axes == len(shape) - 1:
        if n_axes != 3 or stride[-1] < stride[0]:
            return False
        shape, stride = (1, *shape), (max(n * step for n, step in zip(shape, stride, strict=True)), *stride)
    spatial = _SPATIAL.get(len(shape))
    # Contiguous tensors fail this first test.
    if spatial is None or stride[-1] < stride[1] or stride[1] == 0:
        return False
    least = 0
    for axis in (1, *spatial, 0):
        step = stride[axis]
        if shape[axis] == 0 or step < least or (axis == 0 and least == stride[1]):
            return False
        least = step * shape[axis] if shape[axis] > 1 else step
    return True


def channels_last(x: Tensor, axes: Any) -> bool:
    """Whether a pooling of these axes should give a channels-last result."""
    return is_channels_last(x.shape, x.stride(), len(axes))


def empty(like: Tensor, shape: Any, dtype: torch.dtype, channels_last: bool, n_axes: int = 0) -> Tensor:
    """A new tensor on the device of `like`; `vmap` may add too many axes for a memory format."""
    if channels_last and n_axes and n_axes == len(shape) - 1:
        return empty(like, (1, *shape), dtype, True).squeeze(0)
    if not channels_last or len(shape) not in _SPATIAL:
        return torch.empty(shape, dtype=dtype, device=like.device)
    if len(shape) == 3:
        n, c, size = shape
        return torch.empty((n, size, c), dtype=dtype, device=like.device).transpose(1, 2)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=FORMATS[len(shape)])


def zeroed(x: Tensor) -> Tensor:
    """A new CPU tensor, filled with zeros by the core: PyTorch's threads do not exist in a forked child."""
    core.zero(x.data_ptr(), x.numel() * x.element_size())
    return x


def pooled_last(ndim: int, axes: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """The order of axes that puts the pooled ones last, and their places then."""
    order = [a for a in range(ndim) if a not in axes] + list(axes)
    return order, tuple(range(ndim - len(axes), ndim))
