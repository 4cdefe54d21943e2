"""The frame of a run that writes a file: the place of the result, the journal of a Zarr folder, the end.

`files` and `_pyramid` write inside of `output`. Whatever ends the run, Ctrl-C included, is handled here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ndpool.files._sources import extension
from ndpool.files._target import Place, is_zarr
from ndpool.files._zarr import Journal, in_use, journal_of


class How(NamedTuple):
    """How to read and write, apart from what is computed."""

    key: str | None
    chunks: Any
    memory: int
    overwrite: bool
    resume: bool
    progress: Any


@contextmanager
def output(
    fn: str, source: Any, target: Any, how: How, request: dict[str, Any]
) -> Iterator[tuple[Place, Journal | None]]:
    """A place to write to, which gets its name at the end, and the journal of a Zarr folder.

    A Zarr folder that was begun stays, under the name of the place, for another run to continue.
    """
    folder = extension(Path(target)) == ".zarr"
    if how.resume and not folder:
        raise ValueError(f"{fn}: resume is for Zarr folders; got {Path(target).name!r}")
    with Place(fn, target, source, overwrite=how.overwrite, folder=folder) as place:
        journal = None
        try:
            if folder:
                journal = _journal(fn, place, how, request)
                place.keep = False
            yield place, journal
            place.commit()
            if journal is not None:
                journal.close()
                journal_of(place.path).unlink(missing_ok=True)
        except BaseException as error:
            if journal is not None:
                journal.close()
                place.keep = journal.begun
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = str(place.path)
            raise


def _journal(fn: str, place: Place, how: How, request: dict[str, Any]) -> Journal:
    left = place.partial.exists()
    if left and in_use(place.partial):
        raise FileExistsError(f"{fn}: another run is writing {place.partial}; wait for it or end it")
    if left and not (how.resume or how.overwrite):
        raise FileExistsError(
            f"{fn}: an interrupted run left {place.partial}; resume continues it, overwrite starts again"
        )
    resume = left and how.resume and is_zarr(place.partial) and journal_of(place.partial).exists()
    if left and not resume:
        if not (is_zarr(place.partial) or journal_of(place.partial).exists()):
            raise FileExistsError(f"{fn}: only what ndpool left is overwritten; got {place.partial}")
        shutil.rmtree(place.partial)
    return Journal(fn, place.partial, request, resume)
