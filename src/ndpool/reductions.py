"""The table of reductions: what each one is called, what it carries and what its backward needs.

`general` looks a reduction up by name, framework rooms hand its `op` to a kernel. No loops here: the
arithmetic of a reduction stands in `csrc/reducers.h`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reduction:
    """One way to turn a window into a value."""

    name: str
    op: int  # the kernels' number of it
    picks: bool = False  # the result is one of the elements: indices exist, any dtype is kept
    divides: bool = False  # the sum is divided by the window's share or by a given divisor
    norm: bool = False  # takes norm_type

    @property
    def backward_needs(self) -> tuple[str, ...]:
        """What must be kept from the forward pass, beside the plan."""
        return ("offsets",) if self.picks else ("input", "output") if self.norm else ()


REDUCTIONS = {
    reduction.name: reduction
    for reduction in (
        Reduction("max", 0, picks=True),
        Reduction("min", 1, picks=True),
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
