"""The table of reductions: the name of each, its number in the kernels and what it needs.

`general` looks a reduction up by name; frameworks pass its `op` to a kernel. The arithmetic itself is in
`csrc/reducers.h` and in `_triton`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reduction:
    """One way to turn a window into a value."""

    name: str
    op: int  # its number in the kernels
    has_index: bool = False  # the result is an element of the window: it has an index and keeps any dtype
    divides: bool = False  # the sum is divided, by the size of the window or by a given divisor
    norm: bool = False  # takes norm_type


REDUCTIONS = {
    reduction.name: reduction
    for reduction in (
        Reduction("max", 0, has_index=True),
        Reduction("min", 1, has_index=True),
        Reduction("sum", 2),
        Reduction("avg", 2, divides=True),
        Reduction("lp", 3, divides=True, norm=True),
    )
}


def find(fn: str, name: object) -> Reduction:
    """The reduction of that name, or an error that lists them."""
    if not isinstance(name, str) or name not in REDUCTIONS:
        raise ValueError(f"{fn}: reduce must be one of {', '.join(REDUCTIONS)}; got reduce={name!r}")
    return REDUCTIONS[name]
