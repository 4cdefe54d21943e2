"""What all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fences import poisoned_results


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Small calls gain nothing from threads, and unpooling races where indices repeat (pytorch#78249)."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Results that the package allocates hold a pattern, so that an element nobody wrote is seen."""
    with poisoned_results():
        yield
