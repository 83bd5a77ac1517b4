"""Open a file of a model: one of the user who asks, or one that a served process names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

from memwatch.core.linux.user_files import UserPath
from memwatch.core.runtime.regular_file import NOT_REGULAR, NotRegularError, open_regular
from memwatch.planning.sizes import InvalidInputError

ModelPath: TypeAlias = Path | UserPath

# Headers of all files of one model: those of 50,000 tensors have 6 MB.
MAX_MODEL_HEADER_BYTES = 64 << 20


class HeaderLimit:
    """Limits of the headers of one model: bytes in all, and each file once.

    A folder may have thousands of names for one large header, and thousands of large headers.
    """

    def __init__(self) -> None:
        self._left: int = MAX_MODEL_HEADER_BYTES
        self._seen: set[tuple[int, int]] = set()

    def is_new(self, status: os.stat_result) -> bool:
        """Return False if a file was read under another name: its tensors would count twice."""
        key = status.st_dev, status.st_ino
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def begin_component(self) -> None:
        """Let files count again: two components of a pipeline may have the same."""
        self._seen.clear()

    def check_new(self, status: os.stat_result, name: str) -> None:
        if not self.is_new(status):
            raise InvalidInputError(f"{name}: is another name of a file that is already counted")

    def spend(self, count: int, name: str) -> None:
        """Raise InvalidInputError if the bytes of a header would be too many."""
        if count > self._left:
            most = MAX_MODEL_HEADER_BYTES
            raise InvalidInputError(f"{name}: at most {most} bytes of a model's headers are read")
        self._left -= count


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
