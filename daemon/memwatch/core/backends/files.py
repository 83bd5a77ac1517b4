"""Read files and folders of other software: up to a limit, and empty if they do not exist."""

from __future__ import annotations

import os
from pathlib import Path

from memwatch.core.runtime.regular_file import read_regular

MAX_NAMES = 50


def read_head(path: Path, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of a file. Empty if it does not exist or cannot be read."""
    try:
        return read_regular(path, max_bytes)
    except OSError:
        return b""


def list_names(folder: Path, ending: str) -> list[str]:
    """Return the sorted names in a folder that end with `ending`. Empty if the folder does not exist."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(ending))[:MAX_NAMES]
