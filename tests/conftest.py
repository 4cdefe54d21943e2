"""Shared fixtures, and the list of tests that may be skipped in CI."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from fences import poisoned_results

# Otherwise PyTorch's compiler first compiles a program to see whether the processor's vectors can be used.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Otherwise PyTorch's threads stay awake after every call, and take processors from other workers. Its library
# reads this when it is loaded; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Background jobs may start with SIGINT ignored, which processes that tests start and interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter

    interpreter.accelerate()


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Small calls do not benefit from threads, and unpooling races for repeated indices (pytorch#78249)."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def frozen_modules() -> None:
    """Exempt imported modules from garbage collection, which would visit a million objects each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill results that the package allocates with a pattern, so that unwritten elements are detected."""
    with poisoned_results():
        yield


@pytest.fixture
def restore_settings() -> Iterator[None]:
    """Restore the instruction set and the number of threads after the test."""
    from ndpool._native import core

    isa, threads = core.isa(), core.num_threads()
    yield
    core.set_isa(isa)
    core.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that no worker is left alone with them at the end."""
    part, parts = map(int, os.environ.get("NDPOOL_PART", "0/1").split("/"))  # of `make test-gpu`
    items[:] = items[part::parts]
    items.sort(key=lambda item: "test_gpu.py" not in item.nodeid)


# (test, reason) as regular expressions: skips allowed in CI, which has no GPU. Any other skip means a missing
# installation or a test that no longer runs, and fails the run.
SKIPPED_IN_CI = [
    (r"gpu_checks\.py::", r"needs a GPU|needs two GPUs|a row has no such format"),
    (r"gpu_checks_cupy\.py::", r"CuPy is not installed"),
    (r"adapters/cupy\.py::", r"unable to import module"),
    (r"test_docs\.py::", r"not installed: .*(jax|tensorflow|cupy|cv2|skimage|scipy)"),
    (r"test_matrix\.py::", r"not installed: (jax|dask)"),
    (r"test_arguments\.py::", r"tensors have no negative strides"),
    (r"test_cli_files\.py::", r"the file system has no sparse files"),
    (
        r"test_nn\.py::",
        r"there is no fractional pooling in one dimension|layers have no divisor in one dimension",
    ),
    (r"test_torch\.py::", r"arrays have no gradients"),
    (r"test_torch_modules\.py::", r"PyTorch has no such module or argument in one dimension"),
]
_skipped: list[tuple[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid, report.longrepr[2]))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid + "::", report.longrepr[2]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") != "true" or hasattr(session.config, "workerinput"):
        return
    unexpected = [
        f"{test}: {reason}"
        for test, reason in _skipped
        if not any(re.search(t, test) and re.search(r, reason) for t, r in SKIPPED_IN_CI)
    ]
    if unexpected:
        print("\nSkipped, but not listed in tests/conftest.py:", *unexpected, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
