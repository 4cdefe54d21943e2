"""Notes that a call leaves while it is explained: which kernels it started, and what it copied.

Frameworks look at `recording` first, so that a call that nobody explains pays for one look alone.
"""

from __future__ import annotations

recording = False
kernels: list[tuple[str, str, str]] = []
copies: list[str] = []


def note_kernel(direction: str, name: str, where: str) -> None:
    """A kernel is started: for which direction, its name, and the device."""
    kernels.append((direction, name, where))


def note_copy(what: str) -> None:
    """Memory is copied that a kernel cannot read or write as it lies."""
    copies.append(what)
