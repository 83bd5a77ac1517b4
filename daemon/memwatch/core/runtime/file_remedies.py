"""Remedies for files that cannot be read or written: the third part of an error message."""

from __future__ import annotations

import errno

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
