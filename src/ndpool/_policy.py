"""The rules all frameworks share: result dtypes, `out=`, indices, divisors, norms and random samples.

Frameworks describe their arrays (`Described`: shape, dtype name, strides, device) and get a decision or an
error that names the function called. No framework and no arithmetic on arrays here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from ndpool._arguments import GENERAL, LIMIT, check_int, show
from ndpool.reductions import REDUCTIONS, Reduction

# Every supported dtype; its place is its number in the kernels.
DTYPES = (
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    + ("float16", "bfloat16", "float32", "float64")
)  # fmt: skip
FIRST_FLOAT = DTYPES.index("float16")
UNSIGNED = frozenset(name for name in DTYPES if name.startswith("u"))
_FLOATS = frozenset(DTYPES[FIRST_FLOAT:])


class Described(NamedTuple):
    """An array as the rules see it."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # None: no two elements share memory
    itemsize: int = 1  # in the unit of the strides
    device: str = "cpu"
    stored: str = ""  # the dtype in memory, where its byte order is foreign
    fault: str = ""  # what keeps the array from being written to
    fault_type: type[Exception] = ValueError


class Kind(NamedTuple):
    """How a framework names and describes its arrays."""

    name: str  # "a NumPy array"
    describe: Callable[[Any], Described | None]  # None for what is no array of the framework
    overlap: Callable[[Any, Any], bool]  # whether two arrays share memory


class Arithmetic(NamedTuple):
    """How a reduction of one dtype is computed."""

    reduction: Reduction  # what the kernels reduce with
    result: str  # the dtype the caller gets
    magnitudes: bool = False  # of |x|
    power: int = 0  # of integers, whose powers are added up as integers


def arithmetic(
    fn: str, reduction: Reduction, own: str, asked: str | None, divisor: int, norm: float
) -> Arithmetic:
    """The kernels' reduction and the result's dtype for an input of dtype `own`."""
    # General functions give the true norm, the root of the sum of |x|**p; the named ones have PyTorch's rule.
    magnitudes = False
    if reduction.norm and (abs(norm) == inf or (fn in GENERAL and norm % 2 != 0)):
        magnitudes = True
    if reduction.norm and abs(norm) == inf:
        reduction = REDUCTIONS["max" if norm > 0 else "min"]
    result = result_dtype(fn, reduction, own, asked)
    if divisor < 0 and (result in UNSIGNED or result == "bool"):
        raise ValueError(
            f"{fn}: divisor_override must be positive for unsigned integers; got divisor_override={divisor}"
        )
    power = 0
    if reduction.norm and isinstance(norm, int) and own not in _FLOATS:
        if not 0 < norm <= LIMIT:
            raise ValueError(
                f"{fn}: norm_type must be from 1 to {LIMIT} for integers to an integer power; "
                f"got norm_type={norm}"
            )
        power = norm
    return Arithmetic(reduction, result, magnitudes and not (own in UNSIGNED or own == "bool"), power)


def result_dtype(fn: str, reduction: Reduction, own: str, asked: str | None) -> str:
    """The dtype of a result: the input's, a wider one for sums of integers, or the one asked for."""
    if asked is None:
        if reduction.has_index or own in _FLOATS:
            return own
        if reduction.norm:
            return "float32"
        if not reduction.divides:
            return "uint64" if own in UNSIGNED else "int64"
        if own == "bool":
            raise TypeError(f"{fn}: the average of dtype=bool is not a bool; ask for another with dtype=")
        return own
    integers = own not in _FLOATS and asked != "bool" and not reduction.norm
    if reduction.has_index or asked in _FLOATS or integers:
        return asked
    raise TypeError(f"{fn}: a {reduction.name} of dtype={own} cannot be given as dtype={asked}")


def check_dtype(fn: str, name: str, dtype: str, shown: object = None) -> int:
    """The kernels' number of a dtype, by its name; `shown` is the dtype for the message."""
    if dtype not in DTYPES:
        raise TypeError(
            f"{fn}: {name} must have a supported dtype; got dtype={shown or dtype} "
            f"(supported: {', '.join(DTYPES)})"
        )
    return DTYPES.index(dtype)


def check_divisor(fn: str, divisor: object) -> int:
    """A given divisor: any 64-bit integer but zero. None gives 0, which stands for the window's own."""
    if divisor is None:
        return 0
    value = check_int(fn, "divisor_override", divisor)
    if value == 0 or not -(2**63) <= value < 2**63:
        raise ValueError(
            f"{fn}: divisor_override must be a 64-bit integer other than 0; "
            f"got divisor_override={show(value)}"
        )
    return value


def check_norm(fn: str, norm_type: object) -> float:
    """The power of an Lp pooling. An int stays one: integers to an integer power are added as integers."""
    if isinstance(norm_type, bool) or not isinstance(norm_type, Real):
        raise TypeError(f"{fn}: norm_type must be a number; got norm_type={norm_type!r}")
    try:
        value = float(norm_type)
        unusable = value == 0 or value != value
    except OverflowError:
        unusable = True
    if unusable:
        raise ValueError(
            f"{fn}: norm_type must be a number other than 0, in the range of float; "
            f"got norm_type={show(norm_type)}"
        )
    return int(norm_type) if isinstance(norm_type, Integral) else float(norm_type)


def check_out(
    fn: str, kind: Kind, out: Any, indices: bool, shape: tuple[int, ...], dtype: str, device: str = "cpu"
) -> tuple[Any, ...]:
    """The arrays to write to, checked: values, and indices where they are asked for."""
    if indices and not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(f"{fn}: out must be a pair (values, indices); got {type(out).__name__}")
    targets = out if indices else (out,)
    for i, target in enumerate(targets):
        name, want = ("out[1]", "int64") if i else ("out", dtype)
        got = kind.describe(target)
        if got is None:
            raise TypeError(f"{fn}: {name} must be {kind.name}; got {type(target).__name__}")
        if got.fault:
            raise got.fault_type(f"{fn}: {name} must not {got.fault}")
        if got.shape != shape:
            raise ValueError(f"{fn}: {name} must have shape {shape}; got shape {got.shape}")
        if (got.stored or got.dtype) != want:
            raise TypeError(f"{fn}: {name} must have dtype {want}; got dtype={got.stored or got.dtype}")
        if got.device != device:
            raise ValueError(f"{fn}: {name} must be on device {device}; got device={got.device}")
        if got.strides is not None and overlaps_itself(shape, got.strides, got.itemsize):
            raise ValueError(
                f"{fn}: {name} must not overlap itself; got strides={got.strides} with shape {shape}"
            )
    if indices and kind.overlap(*targets):
        raise ValueError(f"{fn}: out must be two arrays that share no memory; got overlapping ones")
    return targets


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Whether two elements of an array share memory; strides and the size of an item in the same unit."""
    if 0 in shape:
        return False
    axes = sorted((abs(stride), n) for stride, n in zip(strides, shape, strict=True) if n > 1)
    extent, unclear = item, 0
    for i, (stride, n) in enumerate(axes, 1):
        if stride < extent:  # this axis reaches into what the axes before it cover
            unclear = i
        extent += stride * (n - 1)
    axes = axes[:unclear]
    # More elements than there is memory for; otherwise few enough to compare their addresses.
    if prod(n for _, n in axes) * item > item + sum(stride * (n - 1) for stride, n in axes):
        return True
    places = np.zeros(1, np.int64)
    for stride, n in axes:
        places = np.add.outer(places, stride * np.arange(n, dtype=np.int64)).ravel()
    places.sort()
    return bool((np.diff(places) < item).any())


def check_indices(fn: str, kind: Kind, values: Described, indices: Any) -> None:
    """An integer index for every value to unpool; whether each lies in the plane is checked as it is read."""
    got = kind.describe(indices)
    if got is None or got.fault_type is TypeError:
        raise TypeError(f"{fn}: indices must be {kind.name}; got {type(indices).__name__}")
    if got.dtype not in DTYPES[1:FIRST_FLOAT]:
        raise TypeError(f"{fn}: indices must be integers; got dtype={got.dtype}")
    if got.shape != values.shape:
        raise ValueError(f"{fn}: indices must have the input's shape {values.shape}; got shape {got.shape}")
    if got.device != values.device:
        raise ValueError(f"{fn}: indices must be on the input's device {values.device}; got {got.device}")


def wrong_index(fn: str, index: int, sizes: tuple[int, ...]) -> ValueError:
    """The error for an index outside the plane of an unpooling's output."""
    hint = "; pass output_size= with the sizes that were pooled" if fn.startswith("max_unpool") else ""
    return ValueError(
        f"{fn}: indices must lie in the plane of the output; got index {index} with "
        f"output sizes {tuple(sizes)} (limit {prod(sizes) - 1}){hint}"
    )


def samples_like(shape: Sequence[int], dtype: str, n_axes: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the random samples for an input: (batch, channels, axes), also without a batch."""
    batch = shape[0] if len(shape) == n_axes + 2 else 1
    return (batch, shape[-n_axes - 1], n_axes), dtype if dtype in _FLOATS else "float64"


def check_samples(fn: str, kind: Kind, like: Described, n_axes: int, samples: Any) -> tuple[int, ...]:
    """Given samples for an input `like` this: their shape. PyTorch ignores surplus batches, and so do we."""
    wanted, dtype = samples_like(like.shape, like.dtype, n_axes)
    got = kind.describe(samples)
    if got is None:
        raise TypeError(f"{fn}: _random_samples must be {kind.name}; got {type(samples).__name__}")
    if len(got.shape) != 3 or got.shape[1:] != wanted[1:] or got.shape[0] < wanted[0]:
        raise ValueError(
            f"{fn}: _random_samples must have shape {wanted}, or more along the first axis; "
            f"got shape {got.shape}"
        )
    if got.dtype != dtype if like.dtype in _FLOATS else got.dtype not in _FLOATS:
        raise TypeError(f"{fn}: _random_samples must be floating point like the input; got dtype={got.dtype}")
    if got.device != like.device:
        raise ValueError(
            f"{fn}: _random_samples must be on the input's device {like.device}; got {got.device}"
        )
    return wanted
