"""Files that another program reads while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memwatch.cli.errors import CommandError
from memwatch.core.runtime.file_remedies import remedy_to_write

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
        why = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot write {path}: {why}; {remedy_to_write(error)}") from None
