"""Notes for `explain`: which kernels ran, and which whole arrays were copied.

The core and the frameworks record what they do while an explanation is under way. On a path that every call
takes, a framework checks `recording` first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ndpool._native import BUILT, core

recording = 0  # explanations under way, in any thread
_lock = threading.Lock()
_local = threading.local()


@dataclass(frozen=True)
class Step:
    """One run of a kernel."""

    direction: str
    engine: str
    instruction_set: str | None
    threads: int | None
    device: str = "cpu"

    def __str__(self) -> str:
        if self.device != "cpu":
            return f"{self.direction}: {self.engine} on {self.device}"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.direction}: {self.engine}, {self.instruction_set}, {threads}"


class Recorder:
    """Records the calls of this thread inside a `with` block; recorders may be nested."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.copies: list[str] = []

    def __enter__(self) -> Recorder:
        self._outer: Recorder | None = getattr(_local, "recorder", None)
        if self._outer is not None:
            self._outer.collect()
        _local.recorder = self
        _count(1)
        _set_core_recording(True)
        return self

    def __exit__(self, *_: object) -> None:
        self.collect()
        _set_core_recording(self._outer is not None)
        _count(-1)
        _local.recorder = self._outer

    def collect(self) -> None:
        """Take over the core's steps so far, so that they keep their order among those of the GPU."""
        if BUILT:
            self.steps += [Step(*step) for step in core.recorded()]
            core.set_recording(True)


def _set_core_recording(on: bool) -> None:
    if BUILT:
        core.set_recording(on)


def _count(change: int) -> None:
    global recording
    with _lock:
        recording += change


def note_copy(what: str) -> None:
    """Note that a framework copies a whole array."""
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is not None:
        recorder.copies.append(what)


def note_kernel(direction: str, engine: str, device: str) -> None:
    """Note that a framework launches a kernel that is not the core's."""
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is not None:
        recorder.collect()
        recorder.steps.append(Step(direction, engine, None, None, device))
