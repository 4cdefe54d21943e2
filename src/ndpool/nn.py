"""Pooling layers for any array: PyTorch's names, constructor arguments, attributes and repr.

A layer is a small immutable value: it stores its arguments and passes them to the function of the same name
in ``ndpool.functional`` when it is called. Layers compare and hash by type and arguments, and they pickle;
``dataclasses.replace(layer, stride=1)`` makes a modified copy. Arguments that are invalid for every input
raise on creation, with the message of the function. Nothing is computed here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from ndpool import functional as F
from ndpool import geometry
from ndpool._arguments import (
    check_flags,
    check_ints,
    check_range,
    check_ratio,
    is_list,
    show,
)
from ndpool._policy import check_divisor, check_norm

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]

Array = TypeVar("Array")
Size: TypeAlias = int | Sequence[int]
AdaptiveSize: TypeAlias = int | Sequence[int | None] | None
Ratio: TypeAlias = float | Sequence[float]


def _tuple(value: Any, ndim: int) -> tuple[Any, ...]:
    return tuple(value) if is_list(value) else (value,) * ndim


def _hashable(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, eq=False, repr=False)
class _Layer:
    """Base of all layers; a private base documents, after its summary, the parameters that it adds."""

    _ndim: ClassVar[int]
    _function: ClassVar[Callable[..., Any]]
    _shown: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        # help() shows only the class's own docstring, so append the parameters of its base classes.
        if "_ndim" in vars(cls) and cls.__doc__:
            summary, _, example = inspect.cleandoc(cls.__doc__).partition("\n\n")
            bases = [inspect.cleandoc(base.__doc__ or "") for base in reversed(cls.__mro__[1:-1])]
            parameters = "\n".join(filter(None, (text.partition("\n\n")[2] for text in bases)))
            cls.__doc__ = (
                f"{summary}\n\nParameters\n----------\n{parameters}\n\nExamples\n--------\n{example}\n"
            )

    def __post_init__(self) -> None:
        self._check(type(self).__name__)

    def _check(self, name: str) -> None:
        """Raise for arguments that are invalid for every input."""
        flags = ("return_indices", "ceil_mode", "count_include_pad")
        check_flags(name, **{flag: getattr(self, flag) for flag in flags if hasattr(self, flag)})

    def __call__(self, input: Array) -> Array | Any:
        """Pool `input`; a layer with ``return_indices=True`` returns the pair (values, indices)."""
        return self._function(input, **self._arguments)

    @property
    def _arguments(self) -> dict[str, Any]:
        names: tuple[str, ...] = self.__match_args__
        return {name: getattr(self, name) for name in names}

    def _key(self) -> tuple[Any, ...]:
        return type(self), *map(_hashable, self._arguments.values())

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, _Layer) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in self._shown)})"


@dataclass(frozen=True, eq=False, repr=False)
class _Sliding(_Layer):
    """A sliding window.

    kernel_size : int or sequence of int
        Window size, one number for all axes or one for each.
    stride : int or sequence of int, default None
        Step between windows; None means `kernel_size`.
    padding : int or sequence of int, default 0
        Padding on both sides, ``padding <= kernel_size // 2`` whatever the dilation. It is never the maximum
        and adds 0 to a sum.
    """

    kernel_size: Size
    stride: Size | None = None
    padding: Size = 0
    _shown: ClassVar[tuple[str, ...]] = ("kernel_size", "stride", "padding")
    _as_tuples: ClassVar[bool] = False  # whether sizes become tuples, as in PyTorch

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = self.kernel_size if self.stride is None else self.stride
        sizes: dict[str, Any] = {"kernel_size": self.kernel_size, "stride": stride, "padding": self.padding}
        if self._as_tuples:
            sizes = {name: _tuple(size, self._ndim) for name, size in sizes.items()}
        vars(self).update(sizes)

    def _check(self, name: str) -> None:
        super()._check(name)
        window = (self.kernel_size, self.stride, self.padding, getattr(self, "dilation", 1))
        geometry.check_window(name, self._ndim, *window)


@dataclass(frozen=True, eq=False, repr=False)
class _MaxPool(_Sliding):
    """Max pooling over a sliding window.

    dilation : int or sequence of int, default 1
        Step between the elements of a window.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    """

    dilation: Size = 1
    return_indices: bool = False
    ceil_mode: bool = False
    _shown: ClassVar[tuple[str, ...]] = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class MaxPool1d(_MaxPool):
    """Max pooling along the last axis, of (N, C, L) or (C, L) arrays.

    >>> import numpy as np
    >>> MaxPool1d(2)(np.array([[3, 1, 4, 1, 5, 9]]))
    array([[3, 4, 9]])
    """

    _ndim = 1
    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """Max pooling over the last two axes, of (N, C, H, W) or (C, H, W) arrays.

    >>> import numpy as np
    >>> MaxPool2d(2)
    MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
    >>> MaxPool2d(2)(np.arange(16).reshape(1, 4, 4))
    array([[[ 5,  7],
            [13, 15]]])
    """

    _ndim = 2
    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """Max pooling over the last three axes, of (N, C, D, H, W) or (C, D, H, W) arrays.

    >>> import numpy as np
    >>> MaxPool3d((1, 2, 2))(np.zeros((1, 3, 5, 8, 8))).shape
    (1, 3, 5, 4, 4)
    """

    _ndim = 3
    _function = staticmethod(F.max_pool3d)


@dataclass(frozen=True, eq=False, repr=False)
class _AvgPool(_Sliding):
    """Average pooling over a sliding window.

    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    count_include_pad : bool, default True
        Whether padding counts in the divisor.
    """

    ceil_mode: bool = False
    count_include_pad: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class _AvgPoolWithDivisor(_AvgPool):
    """Average pooling with a custom divisor.

    divisor_override : int, default None
        Divisor used instead of the window size; 1 gives sums.
    """

    divisor_override: int | None = None

    def _check(self, name: str) -> None:
        super()._check(name)
        check_divisor(name, self.divisor_override)


class AvgPool1d(_AvgPool):
    """Average pooling along the last axis, of (N, C, L) or (C, L) arrays.

    >>> import numpy as np
    >>> AvgPool1d(2)(np.array([[3.0, 1.0, 4.0, 1.0, 5.0, 9.0]]))
    array([[2. , 2.5, 7. ]])
    """

    _ndim = 1
    _function = staticmethod(F.avg_pool1d)
    _as_tuples = True


class AvgPool2d(_AvgPoolWithDivisor):
    """Average pooling over the last two axes, of (N, C, H, W) or (C, H, W) arrays.

    >>> import numpy as np
    >>> AvgPool2d(2)(np.arange(16.0).reshape(1, 4, 4))
    array([[[ 2.5,  4.5],
            [10.5, 12.5]]])
    """

    _ndim = 2
    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPoolWithDivisor):
    """Average pooling over the last three axes, of (N, C, D, H, W) or (C, D, H, W) arrays.

    >>> import numpy as np
    >>> AvgPool3d(2, divisor_override=1)(np.ones((1, 2, 2, 2)))
    array([[[[8.]]]])
    """

    _ndim = 3
    _function = staticmethod(F.avg_pool3d)


@dataclass(frozen=True, eq=False, repr=False)
class _LPPool(_Layer):
    """Lp pooling over a sliding window.

    norm_type : float
        The power p of ``sum(x ** p) ** (1 / p)``, not 0; ``inf`` gives the largest magnitude.
    kernel_size : int or sequence of int
        Window size, one number for all axes or one for each.
    stride : int or sequence of int, default None
        Step between windows; None means `kernel_size`.
    ceil_mode : bool, default False
        Keep a partial last window if it starts inside the input or its leading padding.
    """

    norm_type: float
    kernel_size: Size
    stride: Size | None = None
    ceil_mode: bool = False
    _shown: ClassVar[tuple[str, ...]] = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def _check(self, name: str) -> None:
        super()._check(name)
        check_norm(name, self.norm_type)
        geometry.check_window(name, self._ndim, self.kernel_size, self.stride, 0, 1)

    def __call__(self, input: Array) -> Array | Any:
        """Pool `input` with a float p, so that integers are not truncated, as in PyTorch's layers."""
        return self._function(input, **self._arguments | {"norm_type": float(self.norm_type)})


class LPPool1d(_LPPool):
    """Lp pooling along the last axis, of (N, C, L) or (C, L) arrays.

    >>> import numpy as np
    >>> LPPool1d(2, 2)(np.array([[3.0, 4.0, 6.0, 8.0]]))
    array([[ 5., 10.]])
    """

    _ndim = 1
    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """Lp pooling over the last two axes, of (N, C, H, W) or (C, H, W) arrays.

    >>> import numpy as np
    >>> LPPool2d(2, 2)(np.full((1, 2, 4), 1.5))
    array([[[3., 3.]]])
    """

    _ndim = 2
    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """Lp pooling over the last three axes, of (N, C, D, H, W) or (C, D, H, W) arrays.

    >>> import numpy as np
    >>> LPPool3d(1, 2)(np.ones((1, 2, 2, 2)))
    array([[[[8.]]]])
    """

    _ndim = 3
    _function = staticmethod(F.lp_pool3d)


@dataclass(frozen=True, eq=False, repr=False)
class _AdaptivePool(_Layer):
    """Windows that follow from the output size: output o covers floor(o*s/n) up to ceil((o+1)*s/n).

    output_size : int, None or sequence of int or None
        Output size, one number for all axes or one for each; None keeps the input's.
    """

    output_size: AdaptiveSize
    _shown: ClassVar[tuple[str, ...]] = ("output_size",)

    def _check(self, name: str) -> None:
        super()._check(name)
        geometry.check_adaptive(name, self._ndim, self.output_size)


@dataclass(frozen=True, eq=False, repr=False)
class _AdaptiveMaxPool(_AdaptivePool):
    """Max pooling over adaptive windows.

    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    """

    return_indices: bool = False


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Adaptive max pooling over the last axis, to a fixed output length.

    >>> import numpy as np
    >>> AdaptiveMaxPool1d(2)(np.array([[3, 1, 4, 1, 5]]))
    array([[4, 5]])
    """

    _ndim = 1
    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Adaptive max pooling over the last two axes, to a fixed output size.

    >>> import numpy as np
    >>> AdaptiveMaxPool2d((7, None))(np.zeros((1, 3, 56, 60))).shape
    (1, 3, 7, 60)
    """

    _ndim = 2
    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Adaptive max pooling over the last three axes, to a fixed output size.

    >>> import numpy as np
    >>> AdaptiveMaxPool3d(1)(np.arange(24).reshape(1, 2, 3, 4))
    array([[[[23]]]])
    """

    _ndim = 3
    _function = staticmethod(F.adaptive_max_pool3d)


class AdaptiveAvgPool1d(_AdaptivePool):
    """Adaptive average pooling over the last axis, to a fixed output length.

    >>> import numpy as np
    >>> AdaptiveAvgPool1d(2)(np.array([[3.0, 1.0, 5.0]]))
    array([[2., 3.]])
    """

    _ndim = 1
    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptivePool):
    """Adaptive average pooling over the last two axes, to a fixed output size.

    >>> import numpy as np
    >>> AdaptiveAvgPool2d(1)(np.arange(9.0).reshape(1, 3, 3))
    array([[[4.]]])
    """

    _ndim = 2
    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptivePool):
    """Adaptive average pooling over the last three axes, to a fixed output size.

    >>> import numpy as np
    >>> AdaptiveAvgPool3d((2, 7, 7))(np.zeros((1, 4, 5, 30, 40))).shape
    (1, 4, 2, 7, 7)
    """

    _ndim = 3
    _function = staticmethod(F.adaptive_avg_pool3d)


@dataclass(frozen=True, eq=False, repr=False)
class _MaxUnpool(_Sliding):
    """Unpooling of a max pooling that returned its indices; takes the arguments of that pooling.

    dilation : int or sequence of int, default 1
        Step between the elements of a window. Keyword-only.
    """

    dilation: Size = field(default=1, kw_only=True)
    _as_tuples = True

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self)["dilation"] = _tuple(self.dilation, self._ndim)

    def _check(self, name: str) -> None:
        geometry.check_unpool(name, self._ndim, self.kernel_size, self.stride, self.padding, self.dilation)

    @property
    def _arguments(self) -> dict[str, Any]:
        return super()._arguments | {"dilation": self.dilation}

    def __repr__(self) -> str:
        # PyTorch's layers have no dilation to show.
        suffix = ")" if set(_tuple(self.dilation, 1)) == {1} else f", dilation={self.dilation})"
        return super().__repr__().removesuffix(")") + suffix

    def __call__(self, input: Array, indices: Any, output_size: Sequence[int] | None = None) -> Array:  # type: ignore[override]
        """Put each value of `input` at its index, with zeros everywhere else.

        `output_size` is the shape before pooling, or its pooled axes: several sizes pool to the same one.
        """
        unpooled: Array = self._function(input, indices, output_size=output_size, **self._arguments)
        return unpooled


class MaxUnpool1d(_MaxUnpool):
    """Put the values of a 1-D max pooling back at their indices, with zeros everywhere else.

    >>> import numpy as np
    >>> values, indices = MaxPool1d(2, return_indices=True)(np.array([[3.0, 1.0, 4.0, 1.0, 5.0, 9.0]]))
    >>> MaxUnpool1d(2)(values, indices)
    array([[3., 0., 4., 0., 0., 9.]])
    """

    _ndim = 1
    _function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """Put the values of a 2-D max pooling back at their indices, with zeros everywhere else.

    >>> import numpy as np
    >>> values, indices = MaxPool2d(2, return_indices=True)(np.arange(15.0).reshape(1, 3, 5))
    >>> MaxUnpool2d(2)(values, indices, output_size=(3, 5))
    array([[[0., 0., 0., 0., 0.],
            [0., 6., 0., 8., 0.],
            [0., 0., 0., 0., 0.]]])
    """

    _ndim = 2
    _function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """Put the values of a 3-D max pooling back at their indices, with zeros everywhere else.

    >>> import numpy as np
    >>> values, indices = MaxPool3d(2, return_indices=True)(np.arange(8.0).reshape(1, 2, 2, 2))
    >>> MaxUnpool3d(2)(values, indices).ravel()
    array([0., 0., 0., 0., 0., 0., 0., 7.])
    """

    _ndim = 3
    _function = staticmethod(F.max_unpool3d)


def check_fractional(
    name: str, ndim: int, kernel_size: Any, output_size: Any = None, output_ratio: Any = None
) -> None:
    """Raise for arguments of fractional max pooling that are invalid for every input."""
    for size in check_ints(name, "kernel_size", kernel_size, ndim, single=False):
        check_range(name, "kernel_size", size, 1)
    if (output_size is None) == (output_ratio is None):
        raise ValueError(
            f"{name}: exactly one of output_size and output_ratio must be given; "
            f"got output_size={show(output_size)}, output_ratio={show(output_ratio)}"
        )
    if output_size is not None:
        for size in check_ints(name, "output_size", output_size, ndim, single=False):
            check_range(name, "output_size", size, 0)
    elif not all(0 < ratio < 1 for ratio in check_ratio(name, output_ratio, ndim)):
        raise ValueError(
            f"{name}: output_ratio must lie between 0 and 1; got output_ratio={show(output_ratio)}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class _FractionalMaxPool(_Layer):
    """Max pooling over windows at pseudo-random places (Graham, "Fractional max-pooling", 2014).

    kernel_size : int or sequence of int
        Window size, one number for all axes or one for each.
    output_size : int or sequence of int, default None
        Output size; give either this or `output_ratio`.
    output_ratio : float or sequence of float, default None
        Output size as a fraction of the input size, between 0 and 1.
    return_indices : bool, default False
        Also return the int64 index of each maximum in the flattened plane.
    _random_samples : array, default None
        Numbers in [0, 1), one for every sample, channel and axis, that fix where the windows start.
    """

    kernel_size: Size
    output_size: Size | None = None
    output_ratio: Ratio | None = None
    return_indices: bool = False
    _random_samples: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("kernel_size", "output_size", "output_ratio")
        given = {name: getattr(self, name) for name in names}
        vars(self).update(
            {name: value if value is None else _tuple(value, self._ndim) for name, value in given.items()}
        )

    def _check(self, name: str) -> None:
        super()._check(name)
        check_fractional(name, self._ndim, self.kernel_size, self.output_size, self.output_ratio)


class FractionalMaxPool2d(_FractionalMaxPool):
    """Fractional max pooling over the last two axes.

    >>> import numpy as np
    >>> FractionalMaxPool2d(2, output_ratio=0.7)(np.zeros((1, 3, 20, 30))).shape
    (1, 3, 14, 21)
    """

    _ndim = 2
    _function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """Fractional max pooling over the last three axes.

    >>> import numpy as np
    >>> FractionalMaxPool3d(2, output_size=(3, 5, 7))(np.zeros((1, 3, 8, 10, 12))).shape
    (1, 3, 3, 5, 7)
    """

    _ndim = 3
    _function = staticmethod(F.fractional_max_pool3d)
