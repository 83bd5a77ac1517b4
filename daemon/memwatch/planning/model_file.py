"""Open a file of a model: one of the user who asks, or one that a served process names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

from memwatch.linux.user_files import UserPath
from memwatch.planning.sizes import InvalidInputError

ModelPath: TypeAlias = Path | UserPath


@contextmanager
def open_regular(path: ModelPath) -> Iterator[tuple[BufferedReader, os.stat_result]]:
    """Open a regular file; yield it and its status. Raises OSError, and InvalidInputError for any other kind."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = path.open_descriptor() if isinstance(path, UserPath) else os.open(path, flags)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(f"{path}: is not a regular file")
        yield file, status


def list_files(folder: ModelPath, pattern: str) -> list[ModelPath]:
    """Return the entries of a folder with matching names, in their order."""
    return sorted(folder.glob(pattern), key=str)


def read_small(path: ModelPath, most: int) -> bytes:
    """Return the content of a file. Raises OSError, and InvalidInputError for one of more than `most` bytes."""
    with open_regular(path) as (file, status):
        if status.st_size > most:
            raise InvalidInputError(f"{path}: is larger than {most} bytes, the most that is read")
        return file.read(most)
