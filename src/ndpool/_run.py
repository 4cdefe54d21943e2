"""One way through: every public pooling function arrives here with its arguments.

A call that was made before is found in the cache of prepared calls. Any other becomes a `Call`, with its plan
from `geometry`, and goes to the framework of its array. An array without a framework goes to its adapter,
which comes back here with what is inside. Nothing here depends on a framework.
"""

from __future__ import annotations

from typing import Any

from ndpool import geometry
from ndpool._arguments import (
    check_flag,
    check_ints,
    check_rank,
    check_shape,
    check_sizes,
    count_axes,
    normalize_axes,
)
from ndpool._call import INDEX64, NO_EXTRA, PLAIN, Asked, Call, Function, Unpool
from ndpool._dispatch import Framework, framework_of, loaded, package_of
from ndpool._policy import check_divisor
from ndpool.adapters import adapter_of


def run(
    function: Function, x: Any, arguments: tuple[Any, ...], indices: Any = False, asked: Asked = PLAIN
) -> Any:
    """Pool an array. `arguments` are those of `geometry.plan`; a general function's end with its axes."""
    # Kept short: call overhead dominates on small arrays.
    if indices is not False:
        indices = check_flag(function.name, "return_indices", indices)
    package = package_of(type(x))
    if package is None:
        return adapter_of(function.name, x).pool(run, function, x, arguments, indices, asked)
    framework: Framework = loaded[package]
    key = arguments if asked is PLAIN else (*arguments, asked.divisor, asked.norm)
    if asked.dtype is None and asked.out is None and framework.quick is not None:
        result = framework.quick(function, x, key, indices)
        if result is not None:
            return result
    if asked.dtype is None and (framework.plain is None or framework.plain(x)):
        prepared = framework.recall(function, x, key, indices)
        if prepared is None:
            call = _call(framework, function, x, arguments, indices, asked)
            prepared = framework.prepare(call._replace(out=None), x) or False
            framework.remember(function, x, key, indices, prepared)
        if prepared:
            result = prepared(x, asked.out)
            if result is not None:
                return result
    return framework.run(_call(framework, function, x, arguments, indices, asked), x)


def _call(
    framework: Framework,
    function: Function,
    x: Any,
    arguments: tuple[Any, ...],
    indices: bool,
    asked: Asked,
) -> Call:
    name, reduction, n_axes = function
    traced = framework.traced is not None and framework.traced(x)
    strict = n_axes > 0
    if strict:
        axes = check_shape(name, x.shape, n_axes) if traced else check_rank(name, x.shape, n_axes)
        sizes = x.shape[-n_axes:]
    else:
        *arguments, given = arguments  # type: ignore[assignment]
        n_axes = count_axes(name, "output_size" if len(arguments) == 1 else "window", arguments[0], given)
        axes = normalize_axes(name, given, len(x.shape), n_axes)
        sizes = tuple([x.shape[a] for a in axes])
    if traced:
        plan, windows = None, geometry.flatten(name, sizes, arguments, strict)
    else:
        plan, windows = geometry.plan(name, sizes, arguments, strict), ()
    if reduction.norm and plan is not None:
        divisor = geometry.norm_divisor(name, plan)
    else:
        divisor = 0 if asked.divisor is None else check_divisor(name, asked.divisor)
    if indices and not reduction.has_index:
        raise ValueError(f"{name}: return_indices is for max and min; got it with reduce={reduction.name!r}")
    extra = INDEX64 if indices else NO_EXTRA
    return Call(name, reduction, axes, plan, extra, asked.dtype, asked.out, divisor, asked.norm, windows)


def run_fractional(
    function: Function, x: Any, arguments: tuple[Any, ...], indices: Any, samples: Any, generator: Any
) -> Any:
    """Max pooling over windows that random samples place; `arguments`: kernel, output size and ratio."""
    name, reduction, n_axes = function
    indices = check_flag(name, "return_indices", indices)
    if package_of(type(x)) is None:
        adapter = adapter_of(name, x)
        return adapter.fractional(run_fractional, function, x, arguments, indices, samples, generator)
    framework = framework_of(name, x)
    axes = check_shape(name, x.shape, n_axes)
    sizes = tuple([x.shape[a] for a in axes])
    outs = geometry.fractional_output(name, sizes, *arguments)
    kernel = check_ints(name, "kernel_size", arguments[0], n_axes, single=False)
    call = Call(name, reduction, axes, None, INDEX64 if indices else NO_EXTRA, windows=(*kernel, *outs))
    return framework.fractional(call, x, samples, generator)


def run_unpool(function: str, values: Any, indices: Any, n_axes: int, arguments: tuple[Any, ...]) -> Any:
    """Values at their indices in planes of zeros; `arguments` are those of `geometry.unpool_size`."""
    if package_of(type(values)) is None:
        adapter = adapter_of(function, values)
        return adapter.unpool(run_unpool, function, values, indices, n_axes, arguments)
    framework = framework_of(function, values)
    axes = check_shape(function, values.shape, n_axes)
    sizes = geometry.unpool_size(function, values.shape[-n_axes:], *arguments)
    return framework.unpool(Unpool(function, axes, sizes), values, indices)


def run_general_unpool(values: Any, indices: Any, output_size: Any, axes: Any) -> Any:
    """The same along any axes, to given sizes."""
    if package_of(type(values)) is None:
        adapter = adapter_of("unpool", values)
        return adapter.general_unpool(run_general_unpool, values, indices, output_size, axes)
    framework = framework_of("unpool", values)
    n_axes = count_axes("unpool", "output_size", output_size, axes)
    at = normalize_axes("unpool", axes, len(values.shape), n_axes)
    sizes = check_sizes("unpool", "output_size", output_size, n_axes)
    return framework.unpool(Unpool("unpool", at, sizes), values, indices)
