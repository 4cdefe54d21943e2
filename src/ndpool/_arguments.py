"""Arguments: what they may be, and what is said when they are not.

The checks that need no window: numbers, sequences, axes, ranks. `geometry` and the public functions call
them before anything is computed; every message names the function called, the argument, its value and the
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from numbers import Integral, Real
from operator import index
from typing import Any

import numpy as np

LIMIT = 2**31 - 1  # of every argument; sizes of arrays may be larger
MAX_AXES = 6
MAX_WINDOWS = 2**27  # that are written out one by one, in a table or a list


def input_name(fn: str) -> str:
    """What a function calls the array it pools."""
    return {"pool": "x", "adaptive_pool": "x", "unpool": "values"}.get(fn, "input")


def check_shape(fn: str, shape: tuple[int, ...], n_axes: int) -> tuple[int, ...]:
    """The pooled axes of a named function: the last ones, after a channel axis and perhaps a batch axis."""
    ndim = len(shape)
    if ndim not in (n_axes + 1, n_axes + 2):
        raise ValueError(
            f"{fn}: input must have {n_axes + 1} axes, or {n_axes + 2} with a batch; got shape {shape}"
        )
    # PyTorch's functions differ in which leading axes may be empty.
    if fn in ("adaptive_avg_pool1d", "adaptive_avg_pool2d"):
        free = ndim - n_axes
    else:
        free = ndim - n_axes - 1 if fn.startswith(("max_pool", "avg_pool", "lp_pool")) else 1
    if 0 in shape[free:]:
        raise ValueError(f"{fn}: input must not be empty except for its batch; got shape {shape}")
    return tuple(range(ndim - n_axes, ndim))


check_rank = lru_cache(4096)(check_shape)  # for sizes that are numbers and can be remembered


def normalize_axes(fn: str, axes: object, ndim: int, n_axes: int) -> tuple[int, ...]:
    """The pooled axes of a general function as positive numbers."""
    if not 1 <= n_axes <= MAX_AXES:
        raise ValueError(f"{fn}: axes must be 1 to {MAX_AXES} axes; got {n_axes}")
    if n_axes > ndim:
        raise ValueError(f"{fn}: axes must exist; got {n_axes} axes to pool for an array with {ndim}")
    if axes is None:
        return tuple(range(ndim - n_axes, ndim))
    result = []
    for axis in check_ints(fn, "axes", axes, n_axes):
        if not -ndim <= axis < ndim:
            raise ValueError(f"{fn}: axes must be from {-ndim} to {ndim - 1}; got axes={axes!r}")
        result.append(axis % ndim)
    if len(set(result)) < n_axes:
        raise ValueError(f"{fn}: axes must differ; got axes={axes!r}")
    return tuple(result)


def check_sizes(fn: str, name: str, value: object, n: int) -> tuple[int, ...]:
    """`n` sizes of at least 1."""
    return tuple(check_range(fn, name, size, 1) for size in check_ints(fn, name, value, n, single=False))


def check_size(fn: str, size: object) -> int:
    """The size of a pooled axis: any that an array may have."""
    value = check_int(fn, "size", size)
    if not 1 <= value < 2**63:
        raise ValueError(f"{fn}: size must be from 1 to {2**63 - 1}; got size={show(value)}")
    return value


def check_divisor(fn: str, divisor: object) -> int:
    """A divisor of one's own: any integer but zero; None is 0, the window's own."""
    if divisor is None:
        return 0
    value = check_int(fn, "divisor_override", divisor)
    if value == 0 or not -(2**63) <= value < 2**63:
        raise ValueError(
            f"{fn}: divisor_override must be a 64-bit integer other than 0; "
            f"got divisor_override={show(value)}"
        )
    return value


def check_sign(fn: str, divisor: int, unsigned: bool) -> None:
    """An unsigned average has no negative divisor."""
    if divisor < 0 and unsigned:
        raise ValueError(
            f"{fn}: divisor_override must be positive for unsigned integers; got divisor_override={divisor}"
        )


def wrong_index(fn: str, index: int, sizes: tuple[int, ...]) -> ValueError:
    """The error for an index outside the plane of an unpooling's output."""
    hint = "; pass output_size= with the sizes that were pooled" if fn.startswith("max_unpool") else ""
    return ValueError(
        f"{fn}: indices must lie in the plane of the output; got index {index} with "
        f"output sizes {tuple(sizes)} (limit {prod(sizes) - 1}){hint}"
    )


def check_overlap(fn: str, name: str, shape: Any, strides: Any, item: int) -> None:
    """An array to write to has memory of its own for every element."""
    if overlaps_itself(shape, strides, item):
        raise ValueError(
            f"{fn}: {name} must not overlap itself; got strides={tuple(strides)} with shape {tuple(shape)}"
        )


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
    # More elements than there is memory for; else they are few enough to be looked at.
    if prod(n for _, n in axes) * item > item + sum(stride * (n - 1) for stride, n in axes):
        return True
    places = np.zeros(1, np.int64)
    for stride, n in axes:
        places = np.add.outer(places, stride * np.arange(n, dtype=np.int64)).ravel()
    places.sort()
    return bool((np.diff(places) < item).any())


def check_flag(fn: str, name: str, value: object) -> bool:
    """What counts as true or false."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{fn}: {name} must be true or false; got {name}={show(value)}") from None


def check_flags(fn: str, **flags: object) -> None:
    for name, value in flags.items():
        check_flag(fn, name, value)


def check_norm(fn: str, norm_type: object) -> float:
    """The power of an Lp pooling; an integer stays one, for integers to an integer power keep to integers."""
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


def check_integer_norm(fn: str, norm: int) -> None:
    """The power of integers that stay integers."""
    if not 0 < norm <= LIMIT:
        raise ValueError(
            f"{fn}: norm_type must be from 1 to {LIMIT} for integers to an integer power; "
            f"got norm_type={norm}"
        )


def check_ratio(fn: str, output_ratio: object, n: int) -> tuple[float, ...]:
    """One ratio per axis; what it may be at most, the window that has to fit says."""
    ratios: tuple[Any, ...] = (
        tuple(output_ratio) if isinstance(output_ratio, Sequence) else (output_ratio,) * n
    )
    if len(ratios) != n:
        raise ValueError(f"{fn}: output_ratio must have {n} entries; got output_ratio={output_ratio!r}")
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float, np.number)):
            raise TypeError(f"{fn}: output_ratio must be a number; got output_ratio={output_ratio!r}")
        if not 0 < ratio < LIMIT:
            raise ValueError(
                f"{fn}: output_ratio must be positive; got output_ratio={output_ratio!r} (limit {LIMIT})"
            )
    return tuple(float(ratio) for ratio in ratios)


def check_samples(fn: str, shape: Sequence[int], wanted: tuple[int, ...]) -> None:
    """Random samples are (batch, channels, axes), also without a batch; PyTorch ignores surplus batches."""
    if len(shape) != 3 or tuple(shape[1:]) != wanted[1:] or shape[0] < wanted[0]:
        raise ValueError(
            f"{fn}: _random_samples must have shape {wanted}, or more along the first axis; "
            f"got shape {tuple(shape)}"
        )


def check_count(fn: str, name: str, count: int) -> None:
    if count > MAX_WINDOWS:
        raise MemoryError(f"{fn}: {name} asks for a table of {count} windows (limit {MAX_WINDOWS})")


def check_padding(fn: str, padding: object, n: int, strict: bool) -> tuple[tuple[int, int], ...] | str:
    """(before, after) per axis, or the name of a rule that makes them."""
    if not strict:
        if isinstance(padding, str):
            if padding == "valid":
                return tuple((0, 0) for _ in range(n))
            if padding not in ("same", "same_lower"):
                raise ValueError(
                    f"{fn}: padding must be numbers, 'same', 'same_lower' or 'valid'; got padding={padding!r}"
                )
            return padding
        if isinstance(padding, Sequence) and any(isinstance(pair, Sequence) for pair in padding):
            if len(padding) != n or not all(
                isinstance(pair, Sequence) and len(pair) == 2 for pair in padding
            ):
                raise ValueError(
                    f"{fn}: padding must have {n} (before, after) pairs; got padding={padding!r}"
                )
            return tuple((check_int(fn, "padding", b), check_int(fn, "padding", a)) for b, a in padding)
    return tuple((p, p) for p in check_ints(fn, "padding", padding, n))


def check_ints(fn: str, name: str, value: object, n: int, *, single: bool = True) -> tuple[int, ...]:
    """One integer per axis, from an integer or a sequence; `single`: a sequence of one stands for all."""
    if type(value) is tuple and len(value) == n and set(map(type, value)) == {int}:
        return value
    if isinstance(value, Sequence) and is_list(value):
        if len(value) == n or (single and len(value) == 1):
            result = tuple(check_int(fn, name, item) for item in value)
            return result if len(result) == n else result * n
        raise ValueError(f"{fn}: {name} must be an integer or have {n} entries; got {name}={show(value)}")
    return (check_int(fn, name, value),) * n


def check_int(fn: str, name: str, value: object) -> int:
    if type(value) is int:
        return value
    if type(value).__name__ == "SymInt":  # a compiler's symbol stays one
        return value  # type: ignore[return-value]
    try:
        if not isinstance(value, (bool, np.bool_)):
            return index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"{fn}: {name} must be an integer; got {name}={show(value)}")


def check_range(fn: str, name: str, value: int, least: int) -> int:
    if not least <= value <= LIMIT:
        raise ValueError(f"{fn}: {name} must be from {least} to {LIMIT}; got {name}={show(value)}")
    return value


def is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def show(value: object) -> str:
    """An argument for a message; Python writes no ints of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return "an int of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."
