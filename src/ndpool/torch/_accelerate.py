"""`accelerate` and `restore`: change the class of a model's pooling modules in place, and change it back.

A module keeps its identity: its name in the model, hooks, buffers, mode and all references to it, even if it
is shared or is the model itself. Only instances of PyTorch's own classes are changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ndpool.torch.modules import COUNTERPARTS, Classes, Pool, Unpool


class Entry(NamedTuple):
    """A pooling module of a model."""

    name: str  # qualified name in the model; empty for the model itself
    kind: str  # class name
    reason: str = ""  # why the module was not swapped


@dataclass(frozen=True)
class Report:
    """The modules that `accelerate` or `restore` swapped and left; prints as a list."""

    swapped: tuple[Entry, ...]
    left: tuple[Entry, ...]

    def __str__(self) -> str:
        lines = [f"swapped {_count(self.swapped)}", *_rows(self.swapped)]
        if self.left:
            lines += [f"left {_count(self.left)}", *_rows(self.left)]
        return "\n".join(lines)


def accelerate(model: torch.nn.Module) -> Report:
    """
    Compute every pooling module of a model with ndpool.

    Modules change in place from PyTorch's classes to their subclasses in `ndpool.torch`; names, hooks, state
    and references are unchanged. Other subclasses of PyTorch's modules, modules whose `forward` was replaced
    on the instance, and scripted modules are left unchanged; the report lists them with the reason. For
    pooling that a model calls as a function, use `patch`.

    The `state_dict` does not change. A model pickled as a whole refers to ndpool's classes: `restore` it
    first if it will be loaded where ndpool is not installed. `torch.compile` and `torch.export` record
    ndpool's operators. TorchScript supports only PyTorch's modules: `torch.jit.script` restores a model
    automatically, and `torch.jit.trace` and `torch.fx.symbolic_trace` record PyTorch's pooling.
    `torch.onnx.export` writes standard operators.

    Parameters
    ----------
    model : torch.nn.Module
        The model, or a single pooling module.

    Returns
    -------
    Report
        `swapped` and `left`: the name and class of each pooling module.

    Examples
    --------
    >>> import torch, ndpool.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    >>> print(ndpool.torch.accelerate(model))
    swapped 1 pooling module
      2  MaxPool2d
    >>> isinstance(model[2], ndpool.torch.MaxPool2d)
    True
    """
    return _swap("accelerate", model, undo=False)


def restore(model: torch.nn.Module) -> Report:
    """
    Undo `accelerate`: change every pooling module of a model back to PyTorch's class.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a single pooling module.

    Returns
    -------
    Report
        `swapped` and `left`: the name and class of each ndpool module.

    Examples
    --------
    >>> import torch, ndpool.torch
    >>> model = torch.nn.Sequential(ndpool.torch.MaxPool2d(2), ndpool.torch.AdaptiveAvgPool2d(1))
    >>> print(ndpool.torch.restore(model))
    swapped 2 pooling modules
      0  MaxPool2d
      1  AdaptiveAvgPool2d
    >>> type(model[0]) is torch.nn.MaxPool2d
    True
    """
    return _swap("restore", model, undo=True)


def _swap(fn: str, model: torch.nn.Module, *, undo: bool) -> Report:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{fn}: model must be a torch.nn.Module; got {type(model).__name__}")
    classes = {ours: theirs for theirs, ours in COUNTERPARTS.items()} if undo else COUNTERPARTS
    swapped, left = [], []
    for name, module in model.named_modules():
        kind = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            if not undo and module.original_name in {cls.__name__ for cls in classes}:
                left.append(Entry(name, module.original_name, "scripted"))
        elif any(isinstance(module, cls) for cls in classes) and isinstance(module, Pool) == undo:
            if reason := _reason(module, classes):
                left.append(Entry(name, kind.__qualname__, reason))
            else:
                module.__class__ = classes[kind]
                swapped.append(Entry(name, kind.__name__))
    return Report(tuple(swapped), tuple(left))


def _reason(module: torch.nn.Module, classes: Classes) -> str:
    """Why a pooling module is not swapped; empty if it is."""
    if "forward" in vars(module):
        return "forward was replaced on the instance"
    if type(module) in classes:
        dilated = isinstance(module, Unpool) and module.dilation != 1
        return "PyTorch's module has no dilation" if dilated else ""
    base = next(cls for cls in classes if isinstance(module, cls))
    overridden = "" if type(module).forward is base.forward else " that overrides forward"
    return f"a subclass of {base.__name__}{overridden}"


def _count(entries: tuple[Entry, ...]) -> str:
    return f"{len(entries)} pooling module{'' if len(entries) == 1 else 's'}"


def _rows(entries: tuple[Entry, ...]) -> list[str]:
    names = [entry.name or "(the model)" for entry in entries]
    width = max(map(len, names), default=0)
    return [
        f"  {name:<{width}}  {entry.kind}{entry.reason and ': ' + entry.reason}"
        for name, entry in zip(names, entries, strict=True)
    ]
