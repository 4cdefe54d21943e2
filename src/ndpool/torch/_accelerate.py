"""`accelerate` and `restore`: the pooling modules of a model change their class, in place, and back.

A module keeps its identity: its place in the model, its hooks, buffers, mode and every reference to it stay,
also where it is shared or is the model itself. Only PyTorch's own classes change, to their subclasses here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ndpool.torch.modules import COUNTERPARTS, Classes, Pool, Unpool


class Entry(NamedTuple):
    """A pooling module of a model."""

    name: str  # its place in the model; empty for the model itself
    kind: str  # its class
    reason: str = ""  # why it was left as it is


@dataclass(frozen=True)
class Report:
    """What `accelerate` or `restore` did to a model; prints as a list."""

    swapped: tuple[Entry, ...]
    left: tuple[Entry, ...]

    def __str__(self) -> str:
        lines = [f"swapped {_counted(self.swapped)}", *_listed(self.swapped)]
        if self.left:
            lines += [f"left {_counted(self.left)}", *_listed(self.left)]
        return "\n".join(lines)


def accelerate(model: torch.nn.Module) -> Report:
    """
    Let ndpool compute every pooling module of a model.

    The modules change in place from PyTorch's classes to their subclasses in `ndpool.torch`; names, hooks,
    state and references stay. What is left as it is, with the reason, stands in the report: instances of
    other subclasses, whose behaviour is their own, modules whose `forward` was replaced on the instance, and
    scripted ones. Pooling that a model calls as a function is reached by `patch`.

    A `state_dict` is the same before and after. A model saved whole names ndpool's classes: `restore` it
    first if it is to be loaded where ndpool is not. `torch.compile` and `torch.export` see ndpool's
    operators. TorchScript knows PyTorch's modules only: `torch.jit.script` restores a model by itself, and
    what `torch.jit.trace` or `torch.fx.symbolic_trace` records is PyTorch's pooling. So is what
    `torch.onnx.export` writes.

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
    Undo `accelerate`: give every pooling module of a model PyTorch's own class again.

    Parameters
    ----------
    model : torch.nn.Module
        A model, or a single pooling module.

    Returns
    -------
    Report
        `swapped` and `left`: the name and class of each of ndpool's modules.

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
    """Why a pooling module keeps its class; empty if it does not."""
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if type(module) in classes:
        dilated = isinstance(module, Unpool) and module.dilation != 1
        return "PyTorch has no dilation for it" if dilated else ""
    base = next(cls for cls in classes if isinstance(module, cls))
    own = "of its own" if type(module).forward is base.forward else "that overrides forward"
    return f"a subclass of {base.__name__} {own}"


def _counted(entries: tuple[Entry, ...]) -> str:
    return f"{len(entries)} pooling module{'' if len(entries) == 1 else 's'}"


def _listed(entries: tuple[Entry, ...]) -> list[str]:
    names = [entry.name or "(the model)" for entry in entries]
    width = max(map(len, names), default=0)
    return [
        f"  {name:<{width}}  {entry.kind}{entry.reason and ': ' + entry.reason}"
        for name, entry in zip(names, entries, strict=True)
    ]
