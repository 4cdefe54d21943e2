"""The text of the page's files."""

from pathlib import Path


def asset(name: str) -> str:
    """The text of a file in this directory."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
