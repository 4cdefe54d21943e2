"""`patch` and `unpatch`: PyTorch's pooling functions lead to ndpool, for a block or for good.

The attributes of `torch.nn.functional` and `torch` are replaced by routes while at least one patch is held,
and put back as they were after the last. A route asks ndpool for the tensors that it serves, else PyTorch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch.onnx import is_in_onnx_export
from torch.overrides import handle_torch_function, has_torch_function

import ndpool
from ndpool.torch._onnx import AVERAGES, average
from ndpool.torch.modules import served

F = torch.nn.functional
Function = Callable[..., Any]

_lock = RLock()
_held = 0
# Read by every route, so that one kept beyond its patch leads to PyTorch again, also in compiled code.
_active = False
_originals: dict[tuple[ModuleType, str], Function] = {}


class Patch:
    """A patch that is held; leaving its `with` block gives it back."""

    def __init__(self) -> None:
        self._held = False
        self.__enter__()

    def __enter__(self) -> Patch:
        if not self._held:
            _hold()
            self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            self._held = False
            unpatch()


def patch() -> Patch:
    """
    Route PyTorch's pooling functions to ndpool, in every thread, until `unpatch` or a `with` block's end.

    All pooling of `torch.nn.functional` and of `torch` itself is routed, and with it every module that calls
    it. Code that holds a function from before (``from torch.nn.functional import max_pool2d``) keeps
    PyTorch's. Tensors that ndpool does not serve, and arguments that it refuses, go on to PyTorch, whose
    errors stay the same. Models compiled by `torch.compile` notice and compile again. TorchScript cannot
    compile a route: call `torch.jit.script` outside.

    Patches can be nested: PyTorch's own functions come back when as many were given back as were taken.

    Returns
    -------
    Patch
        To be used in a `with` statement, or ignored.

    Examples
    --------
    >>> import torch, ndpool.torch
    >>> original = torch.nn.functional.max_pool2d
    >>> with ndpool.torch.patch():
    ...     y = torch.nn.functional.max_pool2d(torch.arange(16.0).reshape(1, 4, 4), 2)
    >>> y
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    >>> torch.nn.functional.max_pool2d is original
    True
    """
    return Patch()


def unpatch() -> None:
    """
    Give one `patch` back; with the last, PyTorch's pooling functions are its own again.

    Without a patch nothing happens.

    Examples
    --------
    >>> import torch, ndpool.torch
    >>> original = torch.nn.functional.avg_pool2d
    >>> _ = ndpool.torch.patch()
    >>> torch.nn.functional.avg_pool2d is original
    False
    >>> ndpool.torch.unpatch()
    >>> torch.nn.functional.avg_pool2d is original
    True
    """
    global _held, _active
    with _lock:
        _held = max(_held - 1, 0)
        if _held or not _originals:
            return
        _active = False
        routes = [getattr(owner, name) for owner, name in _originals]
        for (owner, name), original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()
        _forget(routes)


def _hold() -> None:
    global _held, _active
    with _lock:
        _held += 1
        if _held > 1:
            return
        for owner, name, function, indices in _table():
            _originals[owner, name] = original = getattr(owner, name)
            setattr(owner, name, _route(original, getattr(ndpool, function), indices, owner is F))
        _active = True


def _table() -> list[tuple[ModuleType, str, str, bool]]:
    """(module, attribute, ndpool's function, whether indices always come back)."""
    names = [
        f"{kind}_pool{n}d"
        for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg", "fractional_max")
        for n in (1, 2, 3)
    ]
    names.remove("fractional_max_pool1d")
    rows: list[tuple[ModuleType, str, str, bool]] = [(F, name, name, False) for name in names]
    rows += [(F, f"{name}_with_indices", name, True) for name in names if "max" in name]
    rows += [(F, f"max_unpool{n}d", f"max_unpool{n}d", False) for n in (1, 2, 3)]
    rows += [
        (torch, name, name, False)
        for name in ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "adaptive_avg_pool1d")
    ]
    rows.append((torch, "max_pool1d_with_indices", "max_pool1d", True))
    rows.append((torch, "adaptive_max_pool1d", "adaptive_max_pool1d", True))
    return rows


@cache
def _route(original: Function, function: Function, indices: bool, own_flag: bool) -> Function:
    """The function that replaces `original`; made once, so that compiled code knows it again."""
    # PyTorch's arguments are ndpool's positional ones. What only ndpool has is as unknown as without a patch.
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    flag = known.index("return_indices") if "return_indices" in known else len(known)
    names = frozenset(known if own_flag else known[:flag])
    divided = original in AVERAGES

    @wraps(original)
    def route(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if _active and served(x) and len(args) <= len(names) and names.issuperset(kwargs):
            ours, more = args, kwargs
            if indices and len(args) > flag:
                ours = (*args[:flag], True, *args[flag + 1 :])
            elif indices:
                more = {**kwargs, "return_indices": True}
            try:
                return function(*ours, **more)
            except (TypeError, ValueError):
                # PyTorch takes it after all, or says in its own words why not.
                return original(*args, **kwargs)
        if divided and is_in_onnx_export():
            return average(original, *args, **kwargs)
        if has_torch_function((x,)):
            # PyTorch's function would hand the route to the subclass in its own place.
            return handle_torch_function(original, (x,), *args, **kwargs)
        return original(*args, **kwargs)

    return route


def _forget(routes: list[Function]) -> None:
    """A compiler that was first imported under a patch took the routes for PyTorch's functions."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not rules.get_torch_obj_rule_map().keys().isdisjoint(routes):
        rules.clear_lru_cache()
