"""What the functions of one family share: their records, and their signatures for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ndpool._call import Function
from ndpool._signatures import AdaptiveMaxPool, FractionalMaxPool, MaxPool
from ndpool.reductions import REDUCTIONS


def family(kind: str, reduce: str) -> tuple[Function, Function, Function]:
    """The functions of a kind of pooling in one, two and three dimensions."""
    one, two, three = (Function(f"{kind}_pool{n}d", REDUCTIONS[reduce], n) for n in (1, 2, 3))
    return one, two, three


def _unchanged(function: Callable[..., Any]) -> Any:
    return function


# The signature of a function with return_indices for type checkers: True makes it return a pair.
typed_max_pool = cast(Callable[[Callable[..., Any]], MaxPool], _unchanged)
typed_adaptive_max_pool = cast(Callable[[Callable[..., Any]], AdaptiveMaxPool], _unchanged)
typed_fractional_max_pool = cast(Callable[[Callable[..., Any]], FractionalMaxPool], _unchanged)
