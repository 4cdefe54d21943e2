"""PyTorch's pooling modules, computed by ndpool.

Each is a subclass of PyTorch's module of the same name, from which it has everything but `forward`:
constructor, repr, state, pickling. A module raises when it is made if no input could make its arguments
right; one that `accelerate` swapped was made by PyTorch and raises when it is called. A tensor that ndpool
does not serve (quantized, sparse, nested, complex, a subclass of `torch.Tensor`) takes PyTorch's own way, and
so does one that TorchScript traces, unless for ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import strided
from torch._C import _is_tracing as is_tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_dynamo_compiling
from torch.onnx import is_in_onnx_export

import ndpool
from ndpool import geometry
from ndpool._arguments import check_flags
from ndpool._dispatch import framework_of
from ndpool._policy import check_divisor, check_norm
from ndpool.frameworks.torch.tensors import CODES
from ndpool.nn import check_fractional

# Import the framework now: a compiler that traces the first call could not import it.
for _tensor in (torch.empty(0), torch.nn.Parameter()):
    framework_of("ndpool.torch", _tensor)

_TRITON = find_spec("triton") is not None  # needed for CUDA tensors
# Compilers trace plain tensors with these classes; other subclasses may redefine operations.
_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)

Classes = dict[type[torch.nn.Module], type[torch.nn.Module]]
COUNTERPARTS: Classes = {}  # PyTorch's module -> ndpool's


def supported(x: Any) -> bool:
    """Whether ndpool pools this tensor; otherwise PyTorch does.

    Tensors on devices without kernels (MPS) are pooled on the CPU, by modules and functions alike.
    """
    return (
        type(x) in _KINDS
        and x.dtype in CODES
        and x.layout is strided
        and (not x.is_cuda or _TRITON)
        and not x.is_nested
        and (is_dynamo_compiling() or not is_tracing() or is_in_onnx_export())
    )


class Pool(torch.nn.Module):
    """Base class: passes a module's attributes to the corresponding ndpool function."""

    _function: ClassVar[Callable[..., Any]]
    _n_axes: ClassVar[int]
    kernel_size: Any
    stride: Any
    padding: Any
    ceil_mode: Any
    output_size: Any
    return_indices: Any

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "_function" in vars(cls):
            COUNTERPARTS[cls.__bases__[-1]] = cls
            cls._n_axes = int(cls.__name__[-2])
            cls.__init__ = _checked(cls.__init__)  # type: ignore[method-assign]

    def _check(self, name: str) -> None:
        """Raise for arguments that are invalid for every input."""
        flags = ("return_indices", "ceil_mode", "count_include_pad")
        check_flags(name, **{flag: getattr(self, flag) for flag in flags if hasattr(self, flag)})

    def forward(self, input: Any) -> Any:
        """Pool `input`; with `return_indices` the pair (values, indices)."""
        if supported(input):
            return self._function(input, *self._arguments())
        return super().forward(input)

    # Written out in each family: a loop over names takes as long as pooling a small tensor.
    def _arguments(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """TorchScript compiles PyTorch's module; the class changes permanently, as in `restore`."""
        if COUNTERPARTS.get(type(self).__bases__[-1]) is type(self):
            self.__class__ = type(self).__bases__[-1]
        return self


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor with the same signature that also checks the arguments."""

    @wraps(init)
    def checked(self: Pool, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._check(type(self).__name__)

    return checked


class MaxPool(Pool):
    """Max pooling over sliding windows."""

    dilation: Any

    def _check(self, name: str) -> None:
        super()._check(name)
        geometry.check_window(name, self._n_axes, self.kernel_size, self.stride, self.padding, self.dilation)

    def _arguments(self) -> tuple[Any, ...]:
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        return *window, self.ceil_mode, self.return_indices


class AvgPool(Pool):
    """Average pooling over sliding windows; the 1-D module has no divisor."""

    count_include_pad: Any
    divisor_override: Any

    def _check(self, name: str) -> None:
        super()._check(name)
        geometry.check_window(name, self._n_axes, self.kernel_size, self.stride, self.padding, 1)
        check_divisor(name, getattr(self, "divisor_override", None))

    def _arguments(self) -> tuple[Any, ...]:
        common = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return common if self._function is ndpool.avg_pool1d else (*common, self.divisor_override)


class LPPool(Pool):
    """Lp pooling; a module converts its power to float, even for integer tensors."""

    norm_type: Any

    def _check(self, name: str) -> None:
        super()._check(name)
        check_norm(name, self.norm_type)
        geometry.check_window(name, self._n_axes, self.kernel_size, self.stride, 0, 1)

    def _arguments(self) -> tuple[Any, ...]:
        return float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode


class AdaptivePool(Pool):
    """Adaptive pooling."""

    def _check(self, name: str) -> None:
        super()._check(name)
        geometry.check_adaptive(name, self._n_axes, self.output_size)


class AdaptiveMaxPool(AdaptivePool):
    """Adaptive max pooling."""

    def _arguments(self) -> tuple[Any, ...]:
        return self.output_size, self.return_indices


class AdaptiveAvgPool(AdaptivePool):
    """Adaptive average pooling."""

    def _arguments(self) -> tuple[Any, ...]:
        return (self.output_size,)


class FractionalMaxPool(Pool):
    """Fractional max pooling: windows at pseudo-random positions."""

    output_ratio: Any
    _random_samples: Any

    def _check(self, name: str) -> None:
        super()._check(name)
        check_fractional(name, self._n_axes, self.kernel_size, self.output_size, self.output_ratio)

    def _arguments(self) -> tuple[Any, ...]:
        size = (self.kernel_size, self.output_size, self.output_ratio)
        return *size, self.return_indices, self._random_samples


class Unpool(Pool):
    """Max unpooling; the output size may differ from call to call."""

    dilation: Any = 1  # default for swapped modules, which have no such attribute

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, *, dilation: Any = 1) -> None:
        super().__init__(kernel_size, stride, padding)
        if type(dilation) is not int or dilation != 1:  # what cannot be compared is refused by `_check`
            self.dilation = dilation

    def _check(self, name: str) -> None:
        geometry.check_unpool(name, self._n_axes, self.kernel_size, self.stride, self.padding, self.dilation)

    def forward(self, input: Any, indices: Any, output_size: Sequence[int] | None = None) -> Any:  # type: ignore[override]
        """Put each value of `input` where `indices` says, zeros elsewhere."""
        if supported(input):
            window = (self.kernel_size, self.stride, self.padding)
            return self._function(input, indices, *window, output_size, dilation=self.dilation)
        self._check_undilated("PyTorch unpools this tensor")
        return super(Pool, self).forward(input, indices, output_size)

    def _check_undilated(self, reason: str) -> None:
        if self.dilation != 1:
            name = type(self).__name__
            raise TypeError(f"{name}: dilation must be 1 where {reason}; got dilation={self.dilation}")

    def __prepare_scriptable__(self) -> torch.nn.Module:
        self._check_undilated("TorchScript compiles PyTorch's module")
        return super().__prepare_scriptable__()

    def extra_repr(self) -> str:
        """PyTorch's text, and the dilation if it is not 1."""
        shown: str = super(Pool, self).extra_repr()
        return shown if self.dilation == 1 else f"{shown}, dilation={self.dilation}"


class MaxPool1d(MaxPool, torch.nn.MaxPool1d):
    """`torch.nn.MaxPool1d` computed by ndpool. Parameters as in `ndpool.nn.MaxPool1d`."""

    _function = staticmethod(ndpool.max_pool1d)


class MaxPool2d(MaxPool, torch.nn.MaxPool2d):
    """`torch.nn.MaxPool2d` computed by ndpool. Parameters as in `ndpool.nn.MaxPool2d`."""

    _function = staticmethod(ndpool.max_pool2d)


class MaxPool3d(MaxPool, torch.nn.MaxPool3d):
    """`torch.nn.MaxPool3d` computed by ndpool. Parameters as in `ndpool.nn.MaxPool3d`."""

    _function = staticmethod(ndpool.max_pool3d)


class AvgPool1d(AvgPool, torch.nn.AvgPool1d):
    """`torch.nn.AvgPool1d` computed by ndpool. Parameters as in `ndpool.nn.AvgPool1d`."""

    _function = staticmethod(ndpool.avg_pool1d)


class AvgPool2d(AvgPool, torch.nn.AvgPool2d):
    """`torch.nn.AvgPool2d` computed by ndpool. Parameters as in `ndpool.nn.AvgPool2d`."""

    _function = staticmethod(ndpool.avg_pool2d)


class AvgPool3d(AvgPool, torch.nn.AvgPool3d):
    """`torch.nn.AvgPool3d` computed by ndpool. Parameters as in `ndpool.nn.AvgPool3d`."""

    _function = staticmethod(ndpool.avg_pool3d)


class LPPool1d(LPPool, torch.nn.LPPool1d):
    """`torch.nn.LPPool1d` computed by ndpool. Parameters as in `ndpool.nn.LPPool1d`."""

    _function = staticmethod(ndpool.lp_pool1d)


class LPPool2d(LPPool, torch.nn.LPPool2d):
    """`torch.nn.LPPool2d` computed by ndpool. Parameters as in `ndpool.nn.LPPool2d`."""

    _function = staticmethod(ndpool.lp_pool2d)


class LPPool3d(LPPool, torch.nn.LPPool3d):
    """`torch.nn.LPPool3d` computed by ndpool. Parameters as in `ndpool.nn.LPPool3d`."""

    _function = staticmethod(ndpool.lp_pool3d)


class AdaptiveMaxPool1d(AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """`torch.nn.AdaptiveMaxPool1d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveMaxPool1d`."""

    _function = staticmethod(ndpool.adaptive_max_pool1d)


class AdaptiveMaxPool2d(AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """`torch.nn.AdaptiveMaxPool2d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveMaxPool2d`."""

    _function = staticmethod(ndpool.adaptive_max_pool2d)


class AdaptiveMaxPool3d(AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """`torch.nn.AdaptiveMaxPool3d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveMaxPool3d`."""

    _function = staticmethod(ndpool.adaptive_max_pool3d)


class AdaptiveAvgPool1d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveAvgPool1d`."""

    _function = staticmethod(ndpool.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveAvgPool2d`."""

    _function = staticmethod(ndpool.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d` computed by ndpool. Parameters as in `ndpool.nn.AdaptiveAvgPool3d`."""

    _function = staticmethod(ndpool.adaptive_avg_pool3d)


class MaxUnpool1d(Unpool, torch.nn.MaxUnpool1d):
    """`torch.nn.MaxUnpool1d` computed by ndpool. Parameters as in `ndpool.nn.MaxUnpool1d`."""

    _function = staticmethod(ndpool.max_unpool1d)


class MaxUnpool2d(Unpool, torch.nn.MaxUnpool2d):
    """`torch.nn.MaxUnpool2d` computed by ndpool. Parameters as in `ndpool.nn.MaxUnpool2d`."""

    _function = staticmethod(ndpool.max_unpool2d)


class MaxUnpool3d(Unpool, torch.nn.MaxUnpool3d):
    """`torch.nn.MaxUnpool3d` computed by ndpool. Parameters as in `ndpool.nn.MaxUnpool3d`."""

    _function = staticmethod(ndpool.max_unpool3d)


class FractionalMaxPool2d(FractionalMaxPool, torch.nn.FractionalMaxPool2d):
    """`torch.nn.FractionalMaxPool2d` computed by ndpool. Parameters as in `ndpool.nn.FractionalMaxPool2d`."""

    _function = staticmethod(ndpool.fractional_max_pool2d)


class FractionalMaxPool3d(FractionalMaxPool, torch.nn.FractionalMaxPool3d):
    """`torch.nn.FractionalMaxPool3d` computed by ndpool. Parameters as in `ndpool.nn.FractionalMaxPool3d`."""

    _function = staticmethod(ndpool.fractional_max_pool3d)
