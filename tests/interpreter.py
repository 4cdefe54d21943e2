"""Makes Triton's interpreter several times faster. Its results and its checks stay the same.

conftest.py applies it wherever the interpreter replaces a GPU. Only bookkeeping is saved: the language is
patched once per kernel instead of once per call of a device function, overflow is not computed where nothing
checks it, and shapes and dtypes are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from triton import language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

patched: set[Any] = set()  # the language's modules, while a kernel runs


@lru_cache(None)
def modules(fn: Any) -> frozenset[Any]:
    """The language's modules that a kernel or device function sees."""
    return frozenset(value for value in fn.__globals__.values() if value is tl or value is tl.core)


def accelerate() -> None:
    """Replace the slow parts, in this process."""
    patch_language, run_grid = interpreter._patch_lang, interpreter.GridExecutor.__call__
    check_overflow, find_dtype = (
        TritonSemantic.binary_op_sanitize_overflow_impl,
        interpreter._get_np_dtype,
    )
    make_block_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    dtypes: dict[str, Any] = {}
    blocks: dict[tuple[int, ...], tuple[Any, Any]] = {}
    tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def run_patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = patch_language(self.fn)
        patched.update(modules(self.fn))
        try:
            return run_grid(self, *args, **kwargs)
        finally:
            patched.clear()
            scope.restore()

    def patch_once(fn: Any) -> Any:
        if modules(fn) <= patched:
            return interpreter._LangPatchScope()
        patched.update(modules(fn))
        return patch_language(fn)

    def check_if_debugging(self: Any, lhs: Any, rhs: Any, operation: Callable[..., Any]) -> None:
        if self.builder.options.debug:
            check_overflow(self, lhs, rhs, operation)

    def numpy_dtype(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        name = "pointer" if isinstance(element, tl.pointer_type) else element.name
        if name not in dtypes:
            dtypes[name] = find_dtype(element)
        return dtypes[name]

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple(getattr(size, "value", size) for size in shape)
        if key not in blocks:
            make_block_type(self, element_ty, shape)
            blocks[key] = self.shape, self.numel
        self.element_ty = element_ty
        self.shape, self.numel = blocks[key]
        self.name = f"<{key}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in tensors:
            make_tensor(self, handle, type)
            tensors[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensors[key]

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = run_patched
    interpreter._get_np_dtype = numpy_dtype
    TritonSemantic.binary_op_sanitize_overflow_impl = check_if_debugging
    tl.block_type.__init__ = block_type
    tl.tensor.__init__ = tensor
