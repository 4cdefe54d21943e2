"""From an array's type to its framework.

A framework is imported when its first array arrives. Whoever made that array has imported the library behind
it, so ndpool never imports a library that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ndpool._arguments import input_name, is_list
from ndpool._call import Call, Function, Saved, Unpool


class Framework(Protocol):
    """What a module in `frameworks/` provides."""

    # Whether an array is nothing but its memory, so that prepared calls may run; None: always.
    plain: Callable[[Any], bool] | None
    # Whether the sizes of an array may be symbolic, so that its plan is made later; None: never.
    traced: Callable[[Any], bool] | None
    # Runs the prepared call of (function, array, arguments, indices), if there is one for a plain array;
    # otherwise None, as is a framework's that leaves all to `plain`, `recall` and `prepare`.
    quick: Callable[[Function, Any, tuple[Any, ...], bool], Any] | None

    def run(self, call: Call, x: Any) -> Any:
        """Pool `x`: values, or values and indices."""

    def fractional(self, call: Call, x: Any, samples: Any, generator: Any) -> Any:
        """Pool `x` over windows that random samples place; `call.windows` is kernel and output sizes."""

    def unpool(self, call: Unpool, values: Any, indices: Any) -> Any:
        """Values at their indices in planes of zeros."""

    def backward(self, call: Call, saved: Saved, grad: Any) -> Any:
        """The gradient of the input, where the framework differentiates."""

    def prepare(self, call: Call, x: Any) -> Callable[[Any, Any], Any] | None:
        """The call for arrays like `x`, ready to run again: (array, out) to a result, or None to decline."""

    # The cache of prepared calls, from `_cache`.
    def recall(self, function: Function, x: Any, arguments: tuple[Any, ...], indices: bool) -> Any:
        """The prepared call; None where there is none yet, False where there can be none."""

    def remember(
        self, function: Function, x: Any, arguments: tuple[Any, ...], indices: bool, prepared: Any
    ) -> None:
        """Keep a prepared call."""


def _numpy() -> Any:
    from ndpool.frameworks import numpy

    return numpy


def _torch() -> Any:
    from ndpool.frameworks import torch

    return torch


def _dask() -> Any:
    from ndpool.frameworks import dask

    return dask.Dask(framework_of)  # blocks are arrays of other frameworks


def _stored() -> Any:
    from ndpool.frameworks import stored

    return stored


def _jax() -> Any:
    from ndpool.frameworks import jax

    return jax


# (package, class) of an array or one of its base classes -> the import of its framework.
FRAMEWORKS: dict[tuple[str, str], Callable[[], Any]] = {
    ("numpy", "ndarray"): _numpy,
    ("torch", "Tensor"): _torch,
    ("dask", "Array"): _dask,
    ("jax", "Array"): _jax,
    ("jax", "Tracer"): _jax,  # what stands for an array inside jit, grad or vmap
    ("jaxlib", "ArrayImpl"): _jax,
}

_STORED = {("ndpool", "Source"): _stored}  # arrays in files, which `files` makes: no kind that callers pass

packages: dict[type, str | None] = {}  # of the types seen so far; None: of an adapter
# Package -> framework. All keys exist from the start: compiled code depends on the number of entries.
loaded: dict[str, Any] = {package: None for package, _ in (*FRAMEWORKS, *_STORED)}


def package_of(kind: type) -> str | None:
    """The package of a type of array, whose framework is then in `loaded`; None for any other type."""
    try:
        return packages[kind]
    except KeyError:
        pass
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        load = FRAMEWORKS.get((package, base.__name__)) or _STORED.get((package, base.__name__))
        if load is not None:
            loaded[package] = load()
            packages[kind] = package
            return package
    return None


# What torch.compiler.assume_constant_result does, without importing PyTorch: the compiler calls the function
# and does not trace it. Otherwise compiled code would depend on `packages`: every new type would compile it
# again, and a type added during compilation would raise an error.
package_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def framework_of(fn: str, x: object) -> Framework:
    """The framework of an array, or a TypeError that says what is supported."""
    kind = type(x)
    package = package_of(kind)
    framework: Framework = adapted(fn, x) if package is None else loaded[package]
    return framework


def adapted(fn: str, x: object) -> Any:
    """The framework of an array that is pooled as one of another kind: `adapters` puts theirs here."""
    raise unsupported(fn, x)


def unsupported(fn: str, x: object) -> TypeError:
    """The error for what is no array."""
    kind, name = type(x), input_name(fn)
    hint = f"; convert it first, numpy.asarray({name})" if is_list(x) else ""
    return TypeError(
        f"{fn}: {name} must be an array (of NumPy, PyTorch, JAX, Dask or any library with __dlpack__ or "
        f"__array__); got {kind.__module__}.{kind.__qualname__}{hint}"
    )
