"""Number of CPU threads, and a summary of the installation."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from ndpool._arguments import check_int, show


def set_num_threads(n: int) -> None:
    """
    Set the maximum number of CPU threads per call.

    Parameters
    ----------
    n : int
        From 1 to 1024. Results are bitwise identical for every number.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.set_num_threads(2)
    >>> ndpool.get_num_threads()
    2
    """
    from ndpool._native import MAX_THREADS, core

    count = check_int("set_num_threads", "n", n)
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"set_num_threads: n must be from 1 to {MAX_THREADS}; got n={show(count)}")
    core.set_num_threads(count)


def get_num_threads() -> int:
    """
    Return the maximum number of CPU threads per call, by default all cores available to the process.

    `NDPOOL_NUM_THREADS` sets another default. Worker processes default to one.
    """
    from ndpool._native import core

    return core.num_threads()


class Config(dict[str, object]):
    """A configuration that prints as a table."""

    def __str__(self) -> str:
        width = max(len(key) for key in self)
        return "\n".join(f"{key:<{width}}  {_text(value)}" for key, value in self.items())


def own_version() -> str:
    """The version of the installed package; "unknown" where the sources run without being installed."""
    try:
        return version("ndpool")
    except PackageNotFoundError:
        return "unknown"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def show_config() -> Config:
    """
    Return the configuration: versions, instruction set, threads, and the frameworks loaded in this process.

    Returns
    -------
    Config
        A dict that prints as a table.

    Examples
    --------
    >>> import ndpool
    >>> ndpool.show_config()["instruction set"] in ndpool.show_config()["instruction sets available"]
    True
    """
    import numpy as np

    from ndpool._dispatch import FRAMEWORKS
    from ndpool._native import core

    return Config(
        {
            "ndpool": own_version(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "instruction set": core.isa(),
            "instruction sets available": tuple(core.isa_names()),
            "threads": core.num_threads(),
            "cores": os.cpu_count(),
            "frameworks supported": tuple(sorted({package for package, _ in FRAMEWORKS})),
            "frameworks loaded": tuple(
                name for name in ("torch", "jax", "cupy", "dask") if name in sys.modules
            ),
        }
    )
