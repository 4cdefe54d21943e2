"""Processes that measure cases and may die or hang: what they were at is lost, all other results are kept.

Peers run foreign code on the device, which can end a process or never return. A process that dies, or that
does not finish in time, is replaced by a new one. Used by `cuda`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any, NamedTuple

_START = 120.0  # seconds for the start of a process, in which it imports its libraries
_END = 10.0  # seconds for the end of processes
_parent: Any = None  # the connection of a worker to the process that started it


class Lost(NamedTuple):
    """What takes the place of a result."""

    reason: str


def limit(seconds: float | None) -> None:
    """In a worker: from now on the task may take so long; None while it waits for other workers."""
    if _parent is not None:
        _parent.send(("limit", seconds))


def _serve(connection: Any, start: Callable[..., None], setting: tuple[Any, ...]) -> None:
    global _parent
    _parent = connection
    start(*setting)
    connection.send(("started", None))
    while (job := connection.recv()) is not None:
        task, item = job
        try:
            answer = ("done", task(item))
        except Exception as error:  # of a library that the task calls
            answer = ("done", Lost(f"{type(error).__name__}: {error}".splitlines()[0][:200]))
        connection.send(answer)


class _Worker:
    """A process and its task; `number` is None while it has none."""

    def __init__(self, start: Callable[..., None], setting: tuple[Any, ...]) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, start, setting), daemon=True)
        self.process.start()
        other.close()  # so that the end of the process is seen here
        self.number: int | None = None
        self.started = self.ended = False
        self.allow(_START)

    def allow(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.until = None if seconds is None else time.monotonic() + seconds

    def give(self, number: int, job: tuple[Any, Any], seconds: float) -> None:
        self.number = number
        self.allow(seconds)
        with suppress(OSError):  # it has died; `answers` says so
            self.connection.send(job)

    def answers(self) -> list[Any]:
        """The result of the task or `Lost`, if there is one yet."""
        try:
            while self.connection.poll():
                kind, value = self.connection.recv()
                if kind == "done":
                    self.allow(None)
                    return [value]
                self.started = self.started or kind == "started"
                self.allow(value)
        except (EOFError, OSError):
            self.end(_END)
            return [Lost(f"its process died with exit code {self.process.exitcode}")]
        if self.until is not None and time.monotonic() > self.until:
            self.end(0)
            return [Lost(f"its process did not finish in {self.seconds:.0f} s")]
        return []

    def end(self, seconds: float) -> None:
        """Give the process so long to end by itself. One that a driver holds up is not waited for."""
        self.ended = True
        self.process.join(seconds)
        self.process.kill()
        self.connection.close()


class Workers:
    """`n` processes that call ``start(*setting)`` first; a context manager that ends them."""

    def __init__(self, n: int, start: Callable[..., None], setting: tuple[Any, ...]) -> None:
        self._n, self._start, self._setting = n, start, setting
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with suppress(OSError):
                worker.connection.send(None)
        until = time.monotonic() + _END
        for worker in self._workers:
            worker.end(max(0.0, until - time.monotonic()) if worker.number is None else 0)

    def map(
        self, task: Callable[[Any], Any], items: Sequence[Any], seconds: float
    ) -> Iterator[tuple[int, Any]]:
        """Numbers of the items and their results, in the order in which they finish; `Lost` for some."""
        waiting, missing = deque(enumerate(items)), len(items)
        while missing:
            while len(self._workers) < min(self._n, missing):
                self._workers.append(_Worker(self._start, self._setting))
            for worker in self._workers:
                if worker.number is None and worker.started and waiting:
                    number, item = waiting.popleft()
                    worker.give(number, (task, item), seconds)
            wait([worker.connection for worker in self._workers], timeout=0.5)
            for worker in tuple(self._workers):
                for answer in worker.answers():
                    if worker.ended:
                        self._workers.remove(worker)
                    its, worker.number = worker.number, None
                    if its is None and not waiting:
                        continue  # it died between two tasks
                    # One that dies at its start loses what it would have been given.
                    number = waiting.popleft()[0] if its is None else its
                    missing -= 1
                    yield number, answer
