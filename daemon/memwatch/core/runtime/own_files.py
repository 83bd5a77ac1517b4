"""Open files of the daemon: no link that another user prepared is followed, and no file of another user written.

An error has the remedy for its cause.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

ROOT = 0
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ForeignFileError(OSError):
    """The path is not a regular file of this user or root with a single name. `strerror` completes "FILE …"."""


def open_own(path: Path, flags: int, mode: int = 0o600, folder: int | None = None) -> int:
    """Open a file, or create it. Raise ForeignFileError for a link, a device, or a file of another user.

    `folder`: descriptor of the folder that the path begins in, if it is not that of this process.
    """
    try:
        descriptor = _open(path, flags, mode, folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            why = "is a link" if error.errno == errno.ELOOP else "is not a file"
            raise ForeignFileError(error.errno, why, str(path)) from None
        raise
    why = why_foreign(os.fstat(descriptor))
    if not why:
        return descriptor
    os.close(descriptor)
    raise ForeignFileError(errno.EPERM, why, str(path))


def _open(path: Path, flags: int, mode: int, folder: int | None) -> int:
    try:
        return os.open(path, flags | _FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return os.open(path, flags | _FLAGS | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)


def why_foreign(found: os.stat_result) -> str:
    """Return why a file is not ours to write, empty if it is. Root's files count as ours."""
    if not stat.S_ISREG(found.st_mode):
        return "is a link" if stat.S_ISLNK(found.st_mode) else "is not a file"
    if found.st_uid not in (ROOT, os.geteuid()):
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} names (hard links)"
    return ""


def free_name(path: Path) -> Path:
    """Return the path, or if it exists, the first free one of `PATH.1`, `PATH.2`, …"""
    number, free = 0, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def remedy_to_read(error: OSError, reader: str = "this user") -> str:
    """Return what to do if a file cannot be read by `reader`."""
    if isinstance(error, FileNotFoundError):
        return "check the name"
    if isinstance(error, IsADirectoryError):
        return "name a file in it"
    if isinstance(error, PermissionError):
        return f"let {reader} read it"
    return "check the disk, or name another file"


def remedy_to_write(error: OSError) -> str:
    """Return what to do if a file cannot be created or written."""
    if isinstance(error, FileNotFoundError):
        return "name a file in a folder that exists"
    if isinstance(error, IsADirectoryError):
        return "name a file in it"
    if error.errno in NO_SPACE:
        return "free some space, or name a file on another disk"
    return "name a file in a folder that this user may write to"
