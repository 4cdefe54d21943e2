"""The documentation of layers as `help()` shows it: `ndpool.nn` completes docstrings when it is imported."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from ndpool import nn


class Layers(griffe.Extension):
    """Put the finished docstrings in place of the ones in the source."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called for every class that griffe reads."""
        if cls.path.startswith("ndpool.nn.") and cls.name in nn.__all__ and cls.docstring is not None:
            cls.docstring.value = inspect.getdoc(getattr(nn, cls.name)) or ""
