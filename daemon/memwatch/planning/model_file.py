"""Open a file of a model: one of the user who asks, or one that a served process names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

from memwatch.linux.user_files import UserPath
from memwatch.planning.sizes import InvalidInputError
from memwatch.runtime.regular_file import NOT_REGULAR, NotRegularError, open_regular

ModelPath: TypeAlias = Path | UserPath


@contextmanager
def open_model(path: ModelPath) -> Iterator[tuple[BufferedReader, os.stat_result]]:
    """Open a regular file; yield it and its status. Raises OSError, and InvalidInputError for any other kind."""
    try:
        with open_regular(path) as found:
            yield found
    except NotRegularError:
        raise InvalidInputError(f"{path}: {NOT_REGULAR}") from None


def list_files(folder: ModelPath, pattern: str) -> list[ModelPath]:
    """Return the entries of a folder with matching names, in their order."""
    return sorted(folder.glob(pattern), key=str)


def read_small(path: ModelPath, most: int) -> bytes:
    """Return the content of a file. Raises OSError, and InvalidInputError for one of more than `most` bytes."""
    with open_model(path) as (file, status):
        if status.st_size > most:
            raise InvalidInputError(f"{path}: is larger than {most} bytes, the most that is read")
        return file.read(most)
