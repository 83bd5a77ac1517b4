"""Files that another program reads while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memwatch.client.errors import CommandError

MODE = 0o644


def write_atomically(path: Path, text: str) -> None:
    """Replace a file at once; a reader sees the old or the new text. Readers skip the hidden file beside it."""
    fresh = ""
    try:
        descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, MODE)
        os.replace(fresh, path)
    except OSError as error:
        if fresh and os.path.exists(fresh):
            os.unlink(fresh)
        raise CommandError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from None
