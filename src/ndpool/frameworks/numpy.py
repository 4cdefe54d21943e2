"""NumPy arrays: allocation, and the call of the compiled core.

Reached through `_dispatch`. The input is copied only if its memory is misaligned or of foreign byte order.
Results have the memory layout of the input.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool import geometry
from ndpool._arguments import input_name
from ndpool._cache import has_large_tables, recall, remember, run_prepared
from ndpool._call import INDEX64, NO_EXTRA, OFFSET8, OFFSET32, Call, Saved, Unpool
from ndpool._native import core, core_plan
from ndpool._plan import with_sizes
from ndpool._policy import (
    DTYPES,
    FIRST_FLOAT,
    FLOAT_NAMES,
    Arithmetic,
    Described,
    Kind,
    arithmetic,
    check_dtype,
    check_indices,
    check_out,
    check_samples,
    samples_like,
    wrong_index,
)
from ndpool._record import note_copy
from ndpool.reductions import REDUCTIONS, Reduction

__all__ = [
    "backward",
    "fractional",
    "plain",
    "prepare",
    "quick",
    "recall",
    "remember",
    "run",
    "traced",
    "unpool",
]

plain = None  # prepared calls may always run
quick = run_prepared
traced = None  # sizes are always numbers

# bfloat16 is the dtype of another package and is added when its first array arrives.
_CODES = {np.dtype(name): code for code, name in enumerate(DTYPES) if name != "bfloat16"}
_BFLOAT16 = DTYPES.index("bfloat16")
_INT64 = np.dtype("int64")
_EXTRA_DTYPES: dict[int, np.dtype[Any]] = {
    OFFSET8: np.dtype("uint8"),
    OFFSET32: np.dtype("int32"),
    INDEX64: _INT64,
}
_SMALL = 4096  # elements of a result that is allocated like a kept array

# In NumPy itself before 1.25.
_TOO_HARD: type[Exception] = getattr(np, "exceptions", np).TooHardError


def run(call: Call, x: NDArray[Any]) -> Any:
    """Pool `x`, into `call.out` where it is given."""
    fn = call.function
    x, code = _native(fn, input_name(fn), x)
    own = DTYPES[code]
    asked = None if call.dtype is None else _dtype_name(fn, call.dtype)
    how = arithmetic(fn, call.reduction, own, asked, call.divisor, call.norm)
    if how.magnitudes:
        note_copy("magnitudes of the input")
        # The least integer has no magnitude of its own dtype.
        x = np.abs(x.astype(np.float64) if own not in FLOAT_NAMES and how.result in FLOAT_NAMES else x)
    result = x.dtype if how.result == own else _dtype_of(how.result, call.dtype)
    shape = with_sizes(x.shape, call.axes, call.plan.out)
    indices = call.extra == INDEX64
    targets = () if call.out is None else check_out(fn, KIND, call.out, indices, shape, how.result)
    got: tuple[NDArray[Any], ...]
    try:
        if how.power:
            got = (_integer_norm(call, how, x, result),)
        else:
            dtype = x.dtype if how.reduction.has_index else result  # what the kernel writes
            got = _forward(call, how.reduction, x, (shape, dtype), targets)
    except (MemoryError, ValueError) as error:
        raise _renamed(fn, error) from None
    if got[0].dtype != result:
        note_copy("result to its dtype")
        got = (got[0].astype(result), *got[1:])
    if targets:
        for i, target in enumerate(targets):
            if target is not got[i]:
                note_copy("result to out")
                target[...] = got[i]
        return call.out
    return got if len(got) > 1 else got[0]


def prepare(call: Call, x: NDArray[Any]) -> Any:
    """The call for arrays of this dtype and layout, ready to run again."""
    reduction, code, item = call.reduction, _CODES.get(x.dtype, _BFLOAT16), x.itemsize
    if type(x) is not np.ndarray or code == _BFLOAT16 or any(s % item for s in x.strides):
        return None
    how = arithmetic(call.function, reduction, DTYPES[code], None, call.divisor, call.norm)
    shape = with_sizes(x.shape, call.axes, call.plan.out)
    if how != (reduction, DTYPES[code], False, 0) or not prod(shape) or has_large_tables(call.plan):
        return None
    try:
        like = _empty(x, shape, x.dtype)
        source, target = ((0, a.shape, tuple(s // item for s in a.strides)) for a in (x, like))
        layout = (core_plan(call.plan), reduction.op, source, target, code, call.axes)
        core_run = core.Call(*layout, call.extra, reduction.divides, False, call.divisor, call.norm).run
    except (MemoryError, ValueError):  # `run` raises it again, in the name of the function
        return None
    if call.extra == NO_EXTRA and like.size <= _SMALL:
        return _prepared_small(core_run, like)

    def prepared(x: NDArray[Any], out: Any) -> Any:
        if out is not None:
            return None
        try:
            y, extra = _empty(x, shape, x.dtype), None
            if call.extra != NO_EXTRA:
                extra = _empty(x, shape, _EXTRA_DTYPES[call.extra])
        except MemoryError as error:
            raise _renamed(call.function, error) from None
        if not core_run(x, y, extra):
            return None
        return y if extra is None else (y, extra)

    return prepared


def _prepared_small(core_run: Any, like: NDArray[Any]) -> Any:
    dtype = like.dtype

    def prepared(x: NDArray[Any], out: Any) -> Any:
        if out is None:
            y = np.empty_like(like)
            return y if core_run(x, y, None) else None
        if not (type(out) is np.ndarray and out.dtype == dtype and out.flags.writeable):
            return None
        if np.may_share_memory(out, x):
            return None
        return out if core_run(x, out, None) else None

    return prepared


def _integer_norm(call: Call, how: Arithmetic, x: NDArray[Any], result: np.dtype[Any]) -> NDArray[Any]:
    """Integers to an integer power: powers and their mean stay integers, as in PyTorch; the root is float."""
    note_copy("powers of the input")
    powers = (x if x.dtype == np.uint64 else x.astype(np.int64)) ** how.power
    scaled = not call.divisor  # a clipped window is scaled up to a full one
    reduction = REDUCTIONS["avg" if scaled else "sum"]
    inner = Call(call.function, reduction, call.axes, call.plan)
    sums = run(inner, powers) * (call.plan.taps if scaled else 1)
    with np.errstate(invalid="ignore"):
        root: NDArray[Any] = (sums.astype(np.float64) ** (1 / how.power)).astype(result)
    return root


def _forward(
    call: Call,
    reduction: Reduction,
    x: NDArray[Any],
    made: tuple[tuple[int, ...], np.dtype[Any]],
    targets: tuple[NDArray[Any], ...],
) -> tuple[NDArray[Any], ...]:
    """Values of the shape and dtype `made`, and the extra array; in the targets where the core can write."""
    shape, dtype = made
    y, extra = _target(targets[0], dtype, x, shape) if targets else _empty(x, shape, dtype), None
    if call.extra != NO_EXTRA:
        kind = _EXTRA_DTYPES[call.extra]
        extra = _target(targets[1], kind, x, shape) if targets else _empty(x, shape, kind)
    got = (y,) if extra is None else (y, extra)
    if not y.size:
        return got
    plan = call.plan.core or core_plan(call.plan)
    how = (call.extra, reduction.divides, call.divisor, call.norm)
    op, code, y_code = reduction.op, _CODES[x.dtype], _CODES[dtype]
    if code == _BFLOAT16 or y_code == _BFLOAT16:
        x, y = _raw(x), _raw(y)
    if not core.forward(plan, op, x, code, call.axes, y, y_code, extra, *how):
        # Misaligned memory (a field of packed records, say): the one layout that needs copies.
        note_copy("misaligned arrays")
        new = [a if a is None or a.flags.aligned else np.empty_like(a) for a in (y, extra)]
        values: Any = new[0]
        if not core.forward(plan, op, x.copy(), code, call.axes, values, y_code, new[1], *how):
            raise RuntimeError("ndpool core: a packed copy was refused")
        for target, got_new in zip((y, extra), new, strict=True):
            if target is not None and target is not got_new:
                target[...] = got_new
    return got


def backward(call: Call, saved: Saved, grad: NDArray[Any]) -> NDArray[Any]:
    """The gradient of the input, gathered over the windows that contain each element."""
    grad, code = _native(call.function, "grad", grad)
    if code < FIRST_FLOAT:
        raise TypeError(f"{call.function}: grad must be floating point; got dtype={grad.dtype}")
    result = _empty(grad, with_sizes(grad.shape, call.axes, call.plan.sizes), grad.dtype)
    if not result.size:
        return result
    if not grad.size:
        result[...] = 0
        return result
    kind = NO_EXTRA
    if saved.offsets is not None:
        kind = OFFSET8 if saved.offsets.dtype == np.uint8 else OFFSET32
    how = (call.reduction.divides, call.divisor, call.norm)

    def done(grad: Any, offsets: Any, y: Any, x: Any) -> bool:
        arrays = (_raw(grad), code, call.axes, _raw(result), offsets, kind, _raw(y))
        return core.backward(core_plan(call.plan), call.reduction.op, *arrays, *how, _raw(x))

    y, x = (None if a is None else np.asarray(a, grad.dtype) for a in (saved.y, saved.x))
    arrays = (grad, saved.offsets, y, x)
    if not done(*arrays):
        note_copy("misaligned arrays")
        if not done(*(a if a is None else a.copy() for a in arrays)):
            raise RuntimeError("ndpool core: a packed copy was refused")
    return result


def unpool(call: Unpool, values: NDArray[Any], indices: Any) -> NDArray[Any]:
    """Values at their indices in planes of zeros; of repeated indices the last in row-major order wins."""
    fn = call.function
    values, code = _native(fn, input_name(fn), values)
    check_indices(fn, KIND, Described(values.shape, DTYPES[code]), indices)
    if indices.dtype == np.uint64 and indices.size and indices.max() >> 63:
        raise wrong_index(fn, int(indices.max()), call.sizes)
    indices = indices.astype(np.int64, copy=False)
    order = tuple(a for a in range(values.ndim) if a not in call.axes) + call.axes
    shape = with_sizes(values.shape, call.axes, call.sizes)
    try:
        result = np.zeros_like(values, shape=shape, order="K", subok=False)
    except (MemoryError, ValueError) as error:
        raise _renamed(fn, error) from None
    wide, narrow, places = (a.transpose(order) for a in (result, values, indices))
    n_axes = len(call.axes)
    done, bad = core.unpool(_raw(wide), _raw(narrow), places, code, n_axes, True)
    if not done:
        note_copy("arrays whose planes are not evenly strided, or misaligned")
        packed, narrow, places = (np.array(a, order="C") for a in (wide, narrow, places))
        done, bad = core.unpool(_raw(packed), _raw(narrow), places, code, n_axes, True)
        if not done:
            raise RuntimeError("ndpool core: a packed copy was refused")
        wide[...] = packed
    if bad is not None:
        raise wrong_index(fn, bad, call.sizes)
    return result


def fractional(call: Call, x: NDArray[Any], samples: Any, generator: Any) -> Any:
    """Max pooling over windows that random samples place."""
    fn, n_axes = call.function, len(call.axes)
    x, code = _native(fn, input_name(fn), x)
    wanted, dtype = samples_like(x.shape, DTYPES[code], n_axes)
    if samples is None:
        kind = x.dtype if dtype == DTYPES[code] else _dtype_of(dtype)
        drawn = geometry.draw_samples(fn, wanted, kind, generator)
    else:
        check_samples(fn, KIND, Described(x.shape, DTYPES[code]), n_axes, samples)
        drawn = samples[: wanted[0]]
    sizes, places = x.shape[-n_axes:], drawn.reshape(-1, n_axes)
    plan = geometry.fractional(fn, sizes, places, call.windows[:n_axes], call.windows[n_axes:], None)
    return run(call._replace(plan=plan), x)


def _renamed(fn: str, error: Exception) -> Exception:
    """An error of NumPy or the core in the name of the function called."""
    kind = ValueError if isinstance(error, ValueError) and "too big" not in str(error) else MemoryError
    return kind(f"{fn}: {error}")


def _native(fn: str, name: str, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The array in native byte order, and the kernels' number of its dtype."""
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{fn}: {name} must not be a masked array, its mask would be lost; fill it first")
    code = _CODES.get(x.dtype)
    if code is None:
        code = check_dtype(fn, name, x.dtype.name, x.dtype)
        if not x.dtype.isnative:
            note_copy(f"{name} to native byte order")
            x = x.astype(x.dtype.newbyteorder("="))
        _CODES.setdefault(x.dtype, code)
    return x, code


def _dtype_name(fn: str, dtype: Any) -> str:
    """The name of a dtype asked for."""
    try:
        asked: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(f"{fn}: dtype must be a NumPy dtype; got dtype={dtype!r}") from None
    if asked.subdtype is not None:
        raise TypeError(f"{fn}: dtype must be that of one element; got dtype={asked}")
    check_dtype(fn, "dtype", asked.name, asked)
    return str(asked.name)


def _dtype_of(name: str, asked: Any = None) -> np.dtype[Any]:
    """The dtype of that name; bfloat16 is the one asked for."""
    dtype: np.dtype[Any] = np.dtype(asked).newbyteorder("=") if name == "bfloat16" else np.dtype(name)
    _CODES.setdefault(dtype, DTYPES.index(name))
    return dtype


def _describe(x: Any) -> Described | None:
    if not isinstance(x, np.ndarray):
        return None
    code = _CODES.get(x.dtype)
    name = x.dtype.name if code is None else DTYPES[code]  # the attribute is slow
    stored = "" if code is not None or x.dtype.isnative else str(x.dtype)
    fault, kind = "", ValueError
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        fault, kind = "be a masked array, its mask would stay as it is", TypeError  # type: ignore[assignment]
    elif not x.flags.writeable:
        fault = "be read-only"
    strides = None if x.flags.c_contiguous else x.strides
    return Described(x.shape, name, strides, x.itemsize, stored=stored, fault=fault, fault_type=kind)


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays share memory; True where their strides make that too hard to decide."""
    try:
        return np.may_share_memory(a, b) and np.shares_memory(a, b, max_work=1 << 24)  # type: ignore[arg-type]
    except _TOO_HARD:
        return True


KIND = Kind("a NumPy array", _describe, _overlap)


def _target(
    given: NDArray[Any], dtype: np.dtype[Any], x: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """The given array where the kernel can write straight into it, else a new one in the layout of `x`."""
    if given.dtype == dtype and not np.may_share_memory(given, x):
        return given
    return _empty(x, shape, dtype)


def _empty(x: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if x.flags.c_contiguous:
        return np.empty(shape, dtype)
    return np.empty_like(x, dtype=dtype, order="K", subok=False, shape=shape)


def _raw(x: Any) -> Any:
    """The array as something with a buffer: bfloat16 has none."""
    return x.view(np.uint16) if x is not None and _CODES[x.dtype] == _BFLOAT16 else x
