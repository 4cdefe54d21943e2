"""The processes of the GPU benchmark: one that dies or hangs loses its own task alone."""

import os
import time

from ndpool._bench.cuda_workers import Lost, Workers, limit

prepared: list[int] = []


def start(number):
    prepared.append(number)


def task(item):
    if item == "die":
        os._exit(3)
    if item == "hang":
        limit(0.2)
        time.sleep(60)
    if item == "raise":
        raise ValueError("wrong\nsecond line")
    limit(None)
    return None if item == "nothing" else (item, prepared[0])


def die(*_):
    os._exit(4)


def test_what_dies_or_hangs_is_lost_alone():
    items = ["a", "die", "b", "hang", "c", "raise", "d", "nothing"]
    with Workers(2, start, (7,)) as workers:
        for _ in range(2):  # the processes, and those in place of the lost ones, serve a second list
            found = dict(workers.map(task, items, 60.0))
            assert [found[n] for n in (0, 2, 4, 6)] == [("a", 7), ("b", 7), ("c", 7), ("d", 7)]
            assert found[1] == Lost("its process died with exit code 3")
            assert "did not finish in 0 s" in found[3].reason
            assert found[5] == Lost("ValueError: wrong")
            assert found[7] is None
            assert len(found) == len(items)
        processes = [worker.process for worker in workers._workers]
    for process in processes:
        process.join(60)
        assert not process.is_alive()


def test_processes_that_cannot_start():
    with Workers(2, die, ()) as workers:
        found = dict(workers.map(task, ["a", "b", "c"], 60.0))
    assert found == dict.fromkeys(range(3), Lost("its process died with exit code 4"))
