"""All folders and links that the kernel passes on the way to a path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
