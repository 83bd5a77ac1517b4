"""Reading what others wrote: never more than a bound, and nothing where there is nothing."""

from __future__ import annotations

import os
from pathlib import Path

MOST_NAMES = 50


def head_of(path: Path, most_bytes: int) -> bytes:
    """The beginning of a file; empty where it is not there or may not be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def names_in(folder: Path, ending: str) -> list[str]:
    """The names in a folder that end so, in order; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(ending))[:MOST_NAMES]
