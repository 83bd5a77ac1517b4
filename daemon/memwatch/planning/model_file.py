"""Files of a model, found and opened: those of the user who asks, or those that a served process names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

from memwatch.core.linux.user_files import UserFiles, UserPath
from memwatch.core.runtime.regular_file import NOT_REGULAR, NotRegularError, open_regular
from memwatch.planning.arguments import InvalidInputError

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


REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
# Folder of downloads below a user's home (huggingface_hub), and that of the image of TGI.
CACHES = (".cache/huggingface/hub", "/data")
MAX_PASSWD_BYTES = 1 << 20


def find_model(name: str, files: UserFiles, home: str, cwd: str) -> UserPath | None:
    """Return the folder or file of a model, None if it is not there or the process may not read it.

    `home` and `cwd`: folders of the process, below its root.
    """
    for path in candidates(name, home, cwd):
        found: UserPath | None = files.path(path)
        if found and REPOSITORY.fullmatch(name) and found.name.startswith("models--"):
            snapshot = find_snapshot(found)
            found = found / snapshot if snapshot else None
        if found and found.exists():
            return found
    return None


def candidates(name: str, home: str, cwd: str) -> Iterator[str]:
    if not name or "\0" in name:
        return
    if name.startswith("/"):
        yield name
        return
    if cwd:
        yield os.path.join(cwd, name)  # `//name` would be another root
    if REPOSITORY.fullmatch(name):
        folder = repository_folder(name)
        for cache in CACHES:
            yield f"{cache}/{folder}" if cache.startswith("/") else f"{home}/{cache}/{folder}"


def find_snapshot(folder: Path | UserPath, revision: str = "main") -> str:
    """Return the path to a branch, a tag or a commit in a folder of huggingface_hub, empty if it is not there."""
    try:
        with open_regular(folder / f"refs/{revision}") as (file, _):
            commit = file.read(64).decode("ascii", "replace").strip()
    except OSError:
        commit = revision
    return f"snapshots/{commit}" if COMMIT.fullmatch(commit) else ""


def repository_folder(name: str) -> str:
    """Return the name of a repository's folder in a cache of huggingface_hub."""
    return "models--" + name.replace("/", "--")


def find_home(files: UserFiles, uid: int | None) -> str:
    """Return the home of a user, from the file of that root; empty if it is not known."""
    data = files.path("etc/passwd").read(MAX_PASSWD_BYTES) or b""
    rows = [line.split(b":") for line in data.splitlines()]
    return next((os.fsdecode(row[5]) for row in rows if len(row) == 7 and row[2] == str(uid).encode()), "")
