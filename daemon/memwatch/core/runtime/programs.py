"""Programs that are found on PATH, without those that another user could have put there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

# The kernel's limit (path_resolution(7)).
MAX_LINKS = 40


def walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder and link on the way to an absolute path, from the root on, and at last its target.

    Raise OSError where the path ends early, after everything before.
    """
    here, links = Path("/"), 0
    yield here, here.lstat()
    waiting = list(reversed(path.parts[1:]))
    while waiting:
        if (name := waiting.pop()) == "..":
            here = here.parent
            continue
        found = (here / name).lstat()
        yield here / name, found
        if not stat.S_ISLNK(found.st_mode):
            here /= name
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(here / name))
        here = Path("/") if target.is_absolute() else here
        waiting += reversed([part for part in target.parts if part != "/"])


def is_writable_by_others(found: os.stat_result) -> bool:
    """Return True if group or others may write. The mode of a link has no meaning."""
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


ROOT = 0


class Program(Struct, frozen=True):
    """The path of a program, or None. `rejected` describes the first candidate that root must not run, if any."""

    path: str | None
    rejected: str = ""


def find_program(name: str, search_path: str | None = None, uid: int | None = None) -> Program:
    """Find a program in the folders of `search_path`, PATH by default. Relative and empty entries never count.

    For root (`uid` 0; the effective user by default) only a program counts that no other user can replace.
    """
    rejected = ""
    for file in _candidates(name, search_path):
        why = why_unsafe(file) if (os.geteuid() if uid is None else uid) == ROOT else ""
        if not why:
            return Program(str(file))
        rejected = rejected or f"found {file}, which root must not run: {why}"
    return Program(None, rejected)


def why_unsafe(file: Path) -> str:
    """Return how another user could replace the file, empty if only root can.

    Everything on the way to it must belong to root, writable by root only. A sticky folder such as /tmp does not
    qualify: other users may have created the entry.
    """
    try:
        for path, found in walk(file):
            if found.st_uid != ROOT:
                return f"{path} belongs to uid {found.st_uid}"
            if is_writable_by_others(found):
                return f"other users may write to {path}"
    except OSError as error:
        return f"{file} cannot be checked ({error.strerror})"
    return ""


def safe_search_path(search_path: str | None = None, uid: int | None = None) -> str:
    """Return the folders of `search_path` in which `find_program` finds programs, for the PATH of a child."""
    as_root = (os.geteuid() if uid is None else uid) == ROOT
    folders = [folder for folder in _folders(search_path) if not as_root or not why_unsafe(Path(folder))]
    return os.pathsep.join(folders)


def _candidates(name: str, search_path: str | None) -> Iterator[Path]:
    for folder in _folders(search_path):
        file = Path(folder, name)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            yield file


def _folders(search_path: str | None) -> list[str]:
    text = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    return [folder for folder in text.split(os.pathsep) if os.path.isabs(folder)]
