"""Checks of single arguments: numbers, sequences, axes and ranks.

`geometry`, `_policy` and the public functions call them before anything is computed. Every message names the
function called, the argument, its value and the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

GENERAL = ("pool", "adaptive_pool")  # functions with rules of their own, beyond PyTorch's
LIMIT = 2**31 - 1  # of every integer argument; sizes of arrays may be larger
MAX_AXES = 6
MAX_WINDOWS = 2**27  # in a table or a list with one entry per window


# Whether a value stands for a size that is not known yet, as a tracer's does; added by frameworks.
symbols: list[Callable[[object], bool]] = []

_INPUT_NAMES = {"pool": "x", "adaptive_pool": "x", "unpool": "values"}


def input_name(fn: str) -> str:
    """The parameter name of the array that a function pools."""
    return _INPUT_NAMES.get(fn, "input")


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


check_rank = lru_cache(4096)(check_shape)  # for shapes of plain integers


def normalize_axes(fn: str, axes: object, ndim: int, n_axes: int) -> tuple[int, ...]:
    """The pooled axes of a general function as non-negative numbers."""
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


def count_axes(fn: str, name: str, value: object, axes: object) -> int:
    """The number of pooled axes of a general function: as many as `axes` or `value` has entries."""
    if isinstance(axes, Sequence):
        return len(axes)
    if axes is not None:
        return 1
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not 1 <= len(value) <= MAX_AXES:
            raise ValueError(f"{fn}: {name} must have 1 to {MAX_AXES} entries; got {name}={show(value)}")
        return len(value)
    raise ValueError(
        f"{fn}: {name} must have one entry per pooled axis unless axes is given; got {name}={show(value)}"
    )


def check_sizes(fn: str, name: str, value: object, n: int) -> tuple[int, ...]:
    """`n` sizes of at least 1."""
    return tuple(check_range(fn, name, size, 1) for size in check_ints(fn, name, value, n, single=False))


def check_size(fn: str, size: object) -> int:
    """The size of a pooled axis: any that an array may have."""
    value = check_int(fn, "size", size)
    if not 1 <= value < 2**63:
        raise ValueError(f"{fn}: size must be from 1 to {2**63 - 1}; got size={show(value)}")
    return value


def check_flag(fn: str, name: str, value: object) -> bool:
    """The truth value of a flag."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{fn}: {name} must be true or false; got {name}={show(value)}") from None


def check_flags(fn: str, **flags: object) -> None:
    for name, value in flags.items():
        check_flag(fn, name, value)


def check_ratio(fn: str, output_ratio: object, n: int) -> tuple[float, ...]:
    """One ratio per axis; the upper limit follows from the kernel, which must fit into the input."""
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


def check_count(fn: str, name: str, count: int) -> None:
    if count > MAX_WINDOWS:
        raise MemoryError(f"{fn}: {name} asks for a table of {count} windows (limit {MAX_WINDOWS})")


def check_padding(fn: str, padding: object, n: int, strict: bool) -> tuple[tuple[int, int], ...] | str:
    """(before, after) per axis, or the name of a padding rule."""
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
    """One integer per axis, from an integer or a sequence; with `single`, a sequence of one is for all."""
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
    if type(value).__name__ == "SymInt":  # symbolic sizes of PyTorch's compiler stay symbolic
        return value  # type: ignore[return-value]
    if any(symbolic(value) for symbolic in symbols):
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
    """An argument as text for a message, shortened; Python refuses to write ints of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return "an int of thousands of digits"
    except Exception:  # of a deep list, or of an object of the caller
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."
