"""NumPy arrays: dtypes, allocation, and the hand-over to the compiled core.

Reached through `_dispatch` only. Windows were made by `geometry`; here they become the core's plan once and
are kept with it. The input is never copied unless its memory is misaligned or of foreign byte order.
"""

from __future__ import annotations

from contextlib import suppress
from math import isinf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndpool import geometry
from ndpool._arguments import (
    check_divisor,
    check_integer_norm,
    check_overlap,
    check_rank,
    check_samples,
    check_sign,
    input_name,
    wrong_index,
)
from ndpool._explain import note_copy
from ndpool._native import INDEX64, NO_EXTRA, OFFSET8, OFFSET32, core, core_plan
from ndpool.geometry import Plan
from ndpool.reductions import REDUCTIONS, Reduction

_CODES = {
    np.dtype(name): code
    for code, name in enumerate(
        ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16"]
    )
} | {np.dtype("float32"): 11, np.dtype("float64"): 12}
_FIRST_FLOAT = 9
_BFLOAT16 = 10
_INT64 = np.dtype("int64")

# Its place before NumPy 1.25 was NumPy itself.
_TOO_HARD: type[Exception] = getattr(np, "exceptions", np).TooHardError

traced = None  # sizes are always numbers

_EXTRA_DTYPES: dict[int, np.dtype[Any]] = {
    OFFSET8: np.dtype("uint8"),
    OFFSET32: np.dtype("int32"),
    INDEX64: _INT64,
}


_recipes = core.Memo()
_recall = _recipes.get
_RECIPE_LIMIT = 4096  # elements of the result: what is larger takes longer than its arguments


def named(
    fn: str,
    n_axes: int,
    reduction: Reduction,
    x: NDArray[Any],
    window: tuple[Any, ...],
    return_indices: bool = False,
    dtype: Any = None,
    out: Any = None,
    divisor: Any = None,
    norm: float = 0.0,
) -> Any:
    """A named function from its arguments; a small plain call goes by a recipe."""
    if out is dtype is divisor is None and not return_indices and norm == 0 and type(x) is np.ndarray:
        recipe = _recall(fn, x, window)
        if recipe is None:
            recipe = _make_recipe(fn, n_axes, reduction, x, window)
        if recipe:
            run, like = recipe
            y = np.empty_like(like)
            if run(x, y, None):
                return y
    axes = check_rank(fn, x.shape, n_axes)
    plan = geometry.named(fn, x.shape[-n_axes:], window)
    divisor = check_divisor(fn, divisor)
    return pool(fn, plan, reduction, x, axes, bool(return_indices), dtype, out, divisor, norm)


def _make_recipe(fn: str, n_axes: int, reduction: Reduction, x: NDArray[Any], window: tuple[Any, ...]) -> Any:
    """A call and an array like its result, for input of this dtype and layout; False if it is not small."""
    recipe: Any = False
    axes = check_rank(fn, x.shape, n_axes)
    plan = geometry.named(fn, x.shape[-n_axes:], window)
    code, item = _CODES.get(x.dtype, -1), x.itemsize
    shape = _with_sizes(x.shape, axes, plan.out)
    kept = code != _BFLOAT16 and code >= (0 if reduction.picks else _FIRST_FLOAT)
    if kept and x.size and 0 < prod(shape) <= _RECIPE_LIMIT and not any(s % item for s in x.strides):
        like = _empty(x, shape, x.dtype)
        source, into = ((0, a.shape, tuple(s // item for s in a.strides)) for a in (x, like))
        how = (code, axes, NO_EXTRA, reduction.divides, False)
        with suppress(ValueError):  # told by the usual way, in the name of the function
            recipe = core.Call(core_plan(plan), reduction.op, source, into, *how).run, like
    _recipes.put(fn, x, window, recipe)
    return recipe


def pool(
    fn: str,
    plan: Plan,
    reduction: Reduction,
    x: NDArray[Any],
    axes: tuple[int, ...],
    return_indices: bool,
    dtype: Any,
    out: Any,
    divisor: int,
    norm: float,
) -> Any:
    """Reduce `x` over the windows of `plan`, into `out` where it is given."""
    x, code = _usable(fn, input_name(fn), x)
    if reduction.norm and not divisor:
        divisor = plan.norm_divisor
    if reduction.norm and isinf(norm):  # the extremum of the magnitudes
        note_copy("magnitudes of the input")
        reduction, x = REDUCTIONS["max" if norm > 0 else "min"], np.abs(x)
    if reduction.norm and isinstance(norm, int) and code < _FIRST_FLOAT:
        return _integer_norm(fn, plan, x, axes, dtype, out, divisor, norm)
    result = (
        x.dtype if reduction.picks and dtype is None else _result_dtype(fn, reduction, code, x.dtype, dtype)
    )
    check_sign(fn, divisor, result.kind == "u")
    shape = _with_sizes(x.shape, axes, plan.out)
    own = x.dtype if reduction.picks else result  # what the kernel writes
    targets = (None, None) if out is None else _check_out(fn, out, shape, result, return_indices)
    try:
        y = _target(targets[0], own, x, shape)
        indices = _target(targets[1], _INT64, x, shape) if return_indices else None
        kind = INDEX64 if return_indices else NO_EXTRA
        _forward(plan, reduction, x, code, axes, y, indices, kind, divisor, norm)
    except (MemoryError, ValueError) as error:
        raise _renamed(fn, error) from None
    if y.dtype != result:
        note_copy("result to its dtype")
        y = y.astype(result)
    if out is not None:
        for target, got in zip(targets, (y, indices), strict=True):
            if target is not None and target is not got:
                note_copy("result to out")
                target[...] = got
        return out
    return (y, indices) if return_indices else y


def _integer_norm(
    fn: str, plan: Plan, x: NDArray[Any], axes: tuple[int, ...], dtype: Any, out: Any, divisor: int, norm: int
) -> Any:
    """Integers to an integer power: powers and their mean stay integers, as in PyTorch; the root is float."""
    check_integer_norm(fn, norm)
    result = _result_dtype(fn, REDUCTIONS["lp"], _CODES[x.dtype], x.dtype, dtype)
    note_copy("powers of the input")
    powers = (x if x.dtype == np.uint64 else x.astype(np.int64)) ** norm
    if divisor and divisor == plan.norm_divisor:
        sums = pool(fn, plan, REDUCTIONS["sum"], powers, axes, False, None, None, 0, 0.0)
    else:
        sums = pool(fn, plan, REDUCTIONS["avg"], powers, axes, False, None, None, divisor, 0.0) * plan.taps
    with np.errstate(invalid="ignore"):
        root: NDArray[Any] = (sums.astype(np.float64) ** (1 / norm)).astype(result)
    if out is None:
        return root
    _check_out(fn, out, root.shape, result, False)[0][...] = root
    return out


def pool_offsets(
    plan: Plan, reduction: Reduction, x: NDArray[Any], axes: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values, and where in its window each was found: the one byte (or four) that backward needs."""
    x, code = _usable(reduction.name, "input", x)
    shape = _with_sizes(x.shape, axes, plan.out)
    kind = OFFSET8 if core_plan(plan).taps <= 256 else OFFSET32
    y, offsets = _empty(x, shape, x.dtype), _empty(x, shape, _EXTRA_DTYPES[kind])
    _forward(plan, reduction, x, code, axes, y, offsets, kind, 0, 0.0)
    return y, offsets


def pool_backward(
    plan: Plan,
    reduction: Reduction,
    grad: NDArray[Any],
    axes: tuple[int, ...],
    *,
    offsets: NDArray[Any] | None = None,
    x: NDArray[Any] | None = None,
    y: NDArray[Any] | None = None,
    divisor: int = 0,
    norm: float = 0.0,
) -> NDArray[Any]:
    """The gradient of the input, gathered; what else is given follows `reduction.backward_needs`."""
    grad, code = _usable(reduction.name, "grad", grad)
    if code < _FIRST_FLOAT:
        raise TypeError(f"{reduction.name}: gradients must be floating point; got dtype={grad.dtype}")
    result = _empty(grad, _with_sizes(grad.shape, axes, plan.sizes), grad.dtype)
    if reduction.norm:
        result[...] = x  # the kernel turns each input into its gradient
    if result.size and not grad.size:
        result[...] = 0
    elif result.size:
        kind = NO_EXTRA if offsets is None else OFFSET8 if offsets.dtype == np.uint8 else OFFSET32
        arrays = [grad, offsets, y]
        args = (kind, reduction.divides, divisor, norm)
        if not _backward(plan, reduction, arrays, code, axes, result, *args):
            note_copy("misaligned arrays")
            _backward(
                plan, reduction, [a if a is None else a.copy() for a in arrays], code, axes, result, *args
            )
    return result


def unpool(
    fn: str, values: NDArray[Any], indices: Any, sizes: tuple[int, ...], axes: tuple[int, ...]
) -> NDArray[Any]:
    """Zeros with every value at its index; of repeated indices the last in row-major order stays."""
    values, _ = _usable(fn, input_name(fn), values)
    indices = _check_indices(fn, values, indices, sizes)
    lead = tuple(a for a in range(values.ndim) if a not in axes)
    order = lead + axes
    shape = _with_sizes(values.shape, axes, sizes)
    try:
        result = np.zeros_like(values, shape=shape, order="K", subok=False)
    except (MemoryError, ValueError) as error:
        raise _renamed(fn, error) from None
    move(
        fn,
        result.transpose(order),
        values.transpose(order),
        indices.transpose(order),
        len(axes),
        scatter=True,
    )
    return result


def move(
    fn: str, wide: NDArray[Any], narrow: NDArray[Any], indices: NDArray[Any], n_axes: int, *, scatter: bool
) -> None:
    """Scatter `narrow` into `wide` by index, or gather `narrow` from it; pooled axes last, in place."""
    code = _CODES[wide.dtype]
    understood, bad = core.unpool(_raw(wide), _raw(narrow), indices, code, n_axes, scatter)
    if not understood:
        note_copy("arrays whose planes are not evenly strided, or misaligned")
        packed = [np.array(a, order="C") for a in (wide, narrow, indices)]  # also what is misaligned
        understood, bad = core.unpool(_raw(packed[0]), _raw(packed[1]), packed[2], code, n_axes, scatter)
        if not understood:
            raise RuntimeError("ndpool core: a packed copy was refused")
        if bad is None:
            (wide if scatter else narrow)[...] = packed[0 if scatter else 1]
    if bad is not None:
        raise wrong_index(fn, bad, wide.shape[wide.ndim - n_axes :])


def fractional(
    fn: str,
    n_axes: int,
    x: NDArray[Any],
    size: tuple[Any, ...],
    return_indices: bool,
    given: Any,
    generator: Any,
) -> Any:
    """Maxima over windows at the places that the random samples give."""
    axes = check_rank(fn, x.shape, n_axes)
    plan = geometry.fractional(fn, x.shape[-n_axes:], _samples(fn, x, given, n_axes, generator), *size)
    return pool(fn, plan, REDUCTIONS["max"], x, axes, return_indices, None, None, 0, 0.0)


def _samples(fn: str, x: NDArray[Any], given: Any, n_axes: int, generator: Any) -> NDArray[Any]:
    """Fractional windows' random samples as (planes, axes): the given ones, or new ones from a seed."""
    x, code = _usable(fn, input_name(fn), x)
    dtype = x.dtype if code >= _FIRST_FLOAT else np.dtype("float64")
    n_lead = x.ndim - n_axes
    # PyTorch's samples always carry the batch axis, also for an unbatched input.
    shape = (x.shape[0] if n_lead == 2 else 1, x.shape[n_lead - 1], n_axes)
    if given is None:
        drawn = _random(fn, generator).random(shape).astype(dtype)
        drawn[drawn >= 1] = 0  # a sample that a narrow type rounded up would leave the input
        return drawn.reshape(-1, n_axes)
    if not isinstance(given, np.ndarray):
        raise TypeError(f"{fn}: _random_samples must be a NumPy array; got {type(given).__name__}")
    check_samples(fn, given.shape, shape)
    if given.dtype != dtype if code >= _FIRST_FLOAT else given.dtype.kind != "f":
        raise TypeError(
            f"{fn}: _random_samples must be floating point like the input; got dtype={given.dtype}"
        )
    return given[: shape[0]].reshape(-1, n_axes)


def _renamed(fn: str, error: Exception) -> Exception:
    """What NumPy or the core could not do, in the name of the function called."""
    kind = ValueError if isinstance(error, ValueError) and "too big" not in str(error) else MemoryError
    return kind(f"{fn}: {error}")


def _random(fn: str, generator: Any) -> np.random.Generator:
    try:
        return np.random.default_rng(generator)
    except (TypeError, ValueError):
        raise TypeError(
            f"{fn}: generator must be a numpy.random.Generator or a seed of at least 0; got {generator!r}"
        ) from None


def _usable(fn: str, name: str, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The array in native byte order, and the kernels' number of its dtype."""
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{fn}: {name} must not be a masked array, its mask would be lost; fill it first")
    code = _CODES.get(x.dtype)
    if code is not None:
        return x, code
    native = x.dtype.newbyteorder("=")
    if native in _CODES:
        note_copy(f"{name} to native byte order")
        return x.astype(native), _CODES[native]
    if x.dtype.name == "bfloat16" and x.dtype.itemsize == 2:
        _CODES[x.dtype] = _BFLOAT16
        return x, _BFLOAT16
    known = ", ".join([d.name for d in _CODES if d.name != "bfloat16"] + ["bfloat16"])
    raise TypeError(f"{fn}: {name} has no pooling for dtype={x.dtype}; there is one for {known}")


def _result_dtype(fn: str, reduction: Reduction, code: int, own: np.dtype[Any], dtype: Any) -> np.dtype[Any]:
    """What a reduction of this dtype gives: its own, or the asked-for one where that loses no meaning."""
    if dtype is None:
        if reduction.norm and code < _FIRST_FLOAT:
            return np.dtype("float32")
        if not reduction.divides and code < _FIRST_FLOAT:
            return np.dtype("uint64") if own.kind == "u" else _INT64
        if code == 0:
            raise TypeError(f"{fn}: the average of dtype=bool is not a bool; ask for another with dtype=")
        return own
    try:
        asked: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(f"{fn}: dtype must be a NumPy dtype; got dtype={dtype!r}") from None
    if asked.subdtype is not None:
        raise TypeError(f"{fn}: dtype must be that of one element; got dtype={asked}")
    _, asked_code = _usable(fn, "dtype", np.empty(0, asked))
    real = asked_code >= _FIRST_FLOAT
    if reduction.picks or real or (code < _FIRST_FLOAT and asked_code != 0 and not reduction.norm):
        return asked
    raise TypeError(f"{fn}: a {reduction.name} of dtype={own} cannot be given as dtype={asked}")


def _check_out(
    fn: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], return_indices: bool
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The arrays to write to, after a look at each."""
    if return_indices and not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(f"{fn}: out must be a pair (values, indices); got {type(out).__name__}")
    pair = out if return_indices else (out, None)
    for name, target, want in (("out", pair[0], dtype), ("out[1]", pair[1], _INT64)):
        if name == "out[1]" and not return_indices:
            continue
        if not isinstance(target, np.ndarray):
            raise TypeError(f"{fn}: {name} must be a NumPy array; got {type(target).__name__}")
        if isinstance(target, np.ma.MaskedArray):
            raise TypeError(f"{fn}: {name} must not be a masked array, its mask would stay as it is")
        if target.shape != shape:
            raise ValueError(f"{fn}: {name} must have shape {shape}; got shape {target.shape}")
        if target.dtype != want:
            raise TypeError(f"{fn}: {name} must have dtype {want}; got dtype={target.dtype}")
        if not target.flags.writeable:
            raise ValueError(f"{fn}: {name} must be writable; got a read-only array")
        if not target.flags.c_contiguous:
            check_overlap(fn, name, shape, target.strides, target.itemsize)
    if return_indices and np.may_share_memory(*pair) and _share_memory(*pair):
        raise ValueError(f"{fn}: out must be two arrays that share no memory; got overlapping ones")
    return pair


def _share_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays overlap; also where strides make that too hard to tell."""
    try:
        return np.shares_memory(a, b, max_work=1 << 24)  # type: ignore[arg-type]
    except _TOO_HARD:
        return True


def _check_indices(fn: str, values: NDArray[Any], indices: Any, sizes: tuple[int, ...]) -> NDArray[np.int64]:
    if not isinstance(indices, np.ndarray) or isinstance(indices, np.ma.MaskedArray):
        raise TypeError(f"{fn}: indices must be a NumPy array; got {type(indices).__name__}")
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{fn}: indices must be integers; got dtype={indices.dtype}")
    if indices.shape != values.shape:
        raise ValueError(
            f"{fn}: indices must have the input's shape {values.shape}; got shape {indices.shape}"
        )
    if indices.dtype.kind == "u" and indices.dtype.itemsize == 8 and indices.size and indices.max() >> 63:
        raise wrong_index(fn, int(indices.max()), sizes)
    return indices.astype(np.int64, copy=False)


def _with_sizes(shape: tuple[int, ...], axes: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    n_lead = len(shape) - len(axes)
    if axes[0] == n_lead and axes == tuple(range(n_lead, len(shape))):
        return shape[:n_lead] + sizes
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


def _target(
    given: NDArray[Any] | None, dtype: np.dtype[Any], x: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """The given array where the kernel may write straight into it, else a new one in the layout of `x`."""
    if given is not None and given.dtype == dtype and not np.may_share_memory(given, x):
        return given
    return _empty(x, shape, dtype)


def _empty(x: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if x.flags.c_contiguous:
        return np.empty(shape, dtype)
    return np.empty_like(x, dtype=dtype, order="K", subok=False, shape=shape)


def _raw(x: Any) -> Any:
    """The array as something with a buffer: bfloat16 has none of its own."""
    return x.view(np.uint16) if x is not None and _CODES[x.dtype] == _BFLOAT16 else x


def _forward(
    plan: Plan,
    reduction: Reduction,
    x: NDArray[Any],
    code: int,
    axes: tuple[int, ...],
    y: NDArray[Any],
    extra: NDArray[Any] | None,
    kind: int,
    divisor: int,
    norm: float,
) -> None:
    if not y.size:
        return
    native = plan.core or core_plan(plan)
    if code == _BFLOAT16:
        x = x.view(np.uint16)
    how = (kind, reduction.divides, divisor, norm)
    if not core.forward(native, reduction.op, x, code, axes, _raw(y), _CODES[y.dtype], extra, *how):
        # Misaligned memory (a field of packed records, say): the one layout that needs copies.
        note_copy("misaligned arrays")
        new_y, new_extra = (a if a is None or a.flags.aligned else np.empty_like(a) for a in (y, extra))
        new = _raw(new_y)
        if not core.forward(
            native, reduction.op, x.copy(), code, axes, new, _CODES[y.dtype], new_extra, *how
        ):
            raise RuntimeError("ndpool core: a packed copy was refused")
        for target, got in ((y, new_y), (extra, new_extra)):
            if target is not None and got is not target:
                target[...] = got


def _backward(
    plan: Plan,
    reduction: Reduction,
    arrays: list[Any],
    code: int,
    axes: tuple[int, ...],
    result: NDArray[Any],
    kind: int,
    divides: bool,
    divisor: int,
    norm: float,
) -> bool:
    grad, offsets, y = arrays
    return core.backward(
        core_plan(plan),
        reduction.op,
        _raw(grad),
        code,
        axes,
        _raw(result),
        offsets,
        kind,
        _raw(y),
        divides,
        divisor,
        norm,
    )
