"""`patch` and `unpatch`: replace PyTorch's pooling functions by ndpool's, for a block or permanently.

While at least one patch is active, the pooling functions in `torch.nn.functional` and `torch` are replaced by
wrappers, called routes; the last `unpatch` restores them. A route calls ndpool for supported tensors and
PyTorch for all others.
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
from torch.overrides import handle_torch_function, has_torch_function

import ndpool
from ndpool.torch.modules import supported

F = torch.nn.functional
Function = Callable[..., Any]

_lock = RLock()
_depth = 0  # patches that are active
# Read by every route, so that a route that outlives its patch calls PyTorch again, also in compiled code.
_active = False
_originals: dict[tuple[ModuleType, str], Function] = {}


class Patch:
    """An active patch; leaving its `with` block undoes it."""

    def __init__(self) -> None:
        self._entered = False
        self.__enter__()

    def __enter__(self) -> Patch:
        if not self._entered:
            _install()
            self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._entered = False
            unpatch()


def patch() -> Patch:
    """
    Replace PyTorch's pooling functions by ndpool's until `unpatch` or the end of a `with` block.

    The patch applies to all threads and covers the pooling functions of `torch.nn.functional` and `torch`,
    and every module that calls them. Functions imported earlier (``from torch.nn.functional import
    max_pool2d``) remain PyTorch's. Tensors that ndpool does not support and arguments that it rejects are
    passed on to PyTorch, so error messages do not change. Models compiled by `torch.compile` are recompiled.
    TorchScript cannot compile the replacements: call `torch.jit.script` outside the patch.

    Patches can be nested: the last `unpatch` restores PyTorch's functions.

    Returns
    -------
    Patch
        A context manager; may be ignored.

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
    Undo one `patch`; undoing the last one restores PyTorch's pooling functions.

    Does nothing if no patch is active.

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
    global _depth, _active
    with _lock:
        _depth = max(_depth - 1, 0)
        if _depth or not _originals:
            return
        _active = False
        routes = [getattr(owner, name) for owner, name in _originals]
        for (owner, name), original in _originals.items():
            setattr(owner, name, original)
        _originals.clear()
        _clear_dynamo_cache(routes)


def _install() -> None:
    global _depth, _active
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        for owner, name, function, indices in _table():
            _originals[owner, name] = original = getattr(owner, name)
            setattr(owner, name, _route(original, getattr(ndpool, function), indices, owner is F))
        _active = True


def _table() -> list[tuple[ModuleType, str, str, bool]]:
    """(module, attribute, ndpool's function, whether it always returns indices)."""
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
def _route(original: Function, function: Function, indices: bool, has_flag: bool) -> Function:
    """The replacement of `original`; cached, so that compiled code is not recompiled for a new object."""
    # PyTorch's arguments are ndpool's positional ones; ndpool's additional arguments remain unknown.
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    flag = known.index("return_indices") if "return_indices" in known else len(known)
    names = frozenset(known if has_flag else known[:flag])

    @wraps(original)
    def route(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if _active and supported(x) and len(args) <= len(names) and names.issuperset(kwargs):
            ours, more = args, kwargs
            if indices and len(args) > flag:
                ours = (*args[:flag], True, *args[flag + 1 :])
            elif indices:
                more = {**kwargs, "return_indices": True}
            try:
                return function(*ours, **more)
            except (TypeError, ValueError):
                # PyTorch may support the arguments, or raises its own error.
                return original(*args, **kwargs)
        if has_torch_function((x,)):
            # Pass PyTorch's function to the subclass; calling it would pass the route instead.
            return handle_torch_function(original, (x,), *args, **kwargs)
        return original(*args, **kwargs)

    return route


def _clear_dynamo_cache(routes: list[Function]) -> None:
    """If the compiler was first imported under a patch, it has cached routes as PyTorch's functions."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not rules.get_torch_obj_rule_map().keys().isdisjoint(routes):
        rules.clear_lru_cache()
