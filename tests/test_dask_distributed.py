"""Dask arrays on a cluster of two workers, one of which dies; threads in workers; resident memory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ndpool
from helpers import HANG, not_sanitized, run_python

da = pytest.importorskip("dask.array", reason="Dask arrays need dask[array]")
distributed = pytest.importorskip("distributed", reason="a cluster needs distributed")

# A cluster logs and warns about what these tests provoke.
pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def client():
    import dask

    quiet = {"logging.distributed": "critical", "distributed.worker.daemon": True}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def held_up(block, gate, block_id):
    """The block; the last one once the file `gate` exists."""
    while block_id == (1, 1, 3, 3) and not os.path.exists(gate):
        time.sleep(0.01)
    return block


def test_two_workers_and_one_that_is_killed(client, tmp_path):
    """The result is that of NumPy, also if a worker dies while it pools."""
    x = np.random.default_rng(0).standard_normal((2, 4, 256, 256)).astype(np.float32)
    lazy = da.from_array(x, chunks=(1, 2, 64, 64))
    values, indices = ndpool.max_pool2d(lazy, 3, 1, 1, return_indices=True)
    average = ndpool.avg_pool2d(lazy, 5, 2, 2)
    back = ndpool.max_unpool2d(*ndpool.max_pool2d(lazy, 2, return_indices=True), 2)
    got = client.gather(client.compute([values, indices, average, back]))
    want = (
        *ndpool.max_pool2d(x, 3, 1, 1, return_indices=True),
        ndpool.avg_pool2d(x, 5, 2, 2),
        ndpool.max_unpool2d(*ndpool.max_pool2d(x, 2, return_indices=True), 2),
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)

    assert set(client.run(threads_of_a_kernel).values()) == {1}

    gate = tmp_path / "gate"
    blocks = lazy.map_blocks(held_up, str(gate), dtype=x.dtype)
    pending = client.compute(ndpool.avg_pool2d(blocks, 3, 1, 1))
    pids = client.run(os.getpid)
    deadline = time.monotonic() + HANG
    while not any("avg_pool2d" in str(key) for keys in client.has_what().values() for key in keys):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not pending.done()
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    gate.touch()
    np.testing.assert_array_equal(pending.result(timeout=HANG), ndpool.avg_pool2d(x, 3, 1, 1))
    assert set(client.run(os.getpid).values()) != set(pids.values())


def threads_of_a_kernel():
    """Threads that a call in a worker process uses."""
    import ndpool

    block = np.zeros((4, 1024, 1024), np.float32)
    return ndpool.explain(ndpool.avg_pool2d, block, 3, 1, 1).forward.threads


@not_sanitized
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_resident_memory_stays_below_a_few_chunks():
    """Half a GiB, disjoint and overlapping, in at most 6 chunks per thread (dask#3671, dask-image#386).

    The script ends with an error as soon as the limit is passed. It also takes 16 GiB.
    """
    for case, chunk in (("mean", 8), ("max", 16)):
        limit = (125 + 2 * 6 * chunk) / 1024  # MiB: Python with its modules, then two threads
        options = ["--gib", "0.5", "--chunk", "2", "--case", case, "--limit", str(limit)]
        assert "peak" in run_python(ROOT / "benchmarks" / "dask_memory.py", *options)
