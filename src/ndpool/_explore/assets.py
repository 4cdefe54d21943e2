"""The files of the page, as text."""

from pathlib import Path


def asset(name: str) -> str:
    """A file that lies beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
