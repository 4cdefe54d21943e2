"""What goes wrong with files, in the form of ndpool's other errors; sizes in bytes; optional packages.

The libraries behind the formats raise errors of many kinds. All that reach the caller are `OSError` (the
system refused), `ValueError` (the file is damaged or not what its name says), `TypeError`, `MemoryError` and
`ImportError`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**i for i, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}iB": 1024**i for i, prefix in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)


def parse_bytes(fn: str, name: str, size: object) -> int:
    """A number of bytes, or a text such as ``"512MiB"``."""
    if isinstance(size, int) and not isinstance(size, bool):
        found = size
    else:
        match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
        units = {unit.lower(): value for unit, value in _UNITS.items()}
        if match is None or match[2].lower() not in units:
            raise ValueError(f"{fn}: {name} must be a size such as '512MiB' or '2GB'; got {name}={size!r}")
        found = int(min(float(match[1]) * units[match[2].lower()], sys.maxsize))
    if found < 1:
        raise ValueError(f"{fn}: {name} must be at least one byte; got {name}={size!r}")
    return found


def needs(fn: str, module: str, extra: str, what: str) -> Any:
    """An optional package, or an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{fn}: {what} need the package {package}; install it with `pip install 'ndpool[{extra}]'` "
            f"({error})"
        ) from None


@contextmanager
def readable(fn: str, path: object) -> Iterator[None]:
    """Errors of a library that cannot read a file, as a ValueError that names it."""
    try:
        yield
    except (ImportError, MemoryError, GeneratorExit):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # it names the file and the reason
        if isinstance(error, (ValueError, TypeError)) and str(error).startswith(f"{fn}: "):
            raise
        reason = str(error).strip().partition("\n")[0] or "no reason given"
        raise ValueError(f"{fn}: cannot read {path}: {type(error).__name__}: {reason}") from error


def check_dtype(fn: str, dtype: np.dtype[Any]) -> None:
    """Refuse a dtype that no format has: bfloat16, which would be written as bytes without a meaning."""
    if dtype.kind == "V":
        raise TypeError(
            f"{fn}: files must have a dtype of NumPy; got dtype={dtype} (float32 holds its values)"
        )


def check_fits(fn: str, path: object, nbytes: int, memory: int, why: str) -> None:
    """Refuse an array that must be in memory as a whole and is too large."""
    if nbytes > memory:
        raise MemoryError(
            f"{fn}: memory must hold all of {path}, because {why}; it needs {nbytes} bytes (limit {memory})"
        )
