"""State folder for persistent data. An unusable one is reported and never prevents the start."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from msgspec import Struct

MODE = 0o700
NOT_WRITABLE = "cannot be used (not writable by this user)"
ADVICE = "; use a dedicated folder, such as --state-dir /var/lib/memwatchd"


class StateDir(Struct, frozen=True):
    """An open state folder, or None with the reason in `complaint`. `folder` is locked until `close`.

    `readable` is a folder that is readable but not writable, such as on a disk that became read-only.
    """

    folder: Path | None
    complaint: str = ""
    lock: int = -1
    readable: Path | None = None
    was_wanted: bool = True

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)


def open_state(wanted: Path | None) -> StateDir:
    """Open the folder: create it if it is missing, and lock it against a second daemon."""
    if wanted is None:
        return StateDir(
            None, "no state folder: nothing is kept across restarts; set one with --state-dir DIR", was_wanted=False
        )
    try:
        wanted.mkdir(MODE, parents=True, exist_ok=True)
        lock = os.open(wanted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return _reject(wanted, f"cannot be used ({(error.strerror or str(error)).lower()})")
    unfit = _why_unfit(lock, wanted)
    if unfit:
        os.close(lock)
        return _reject(wanted, unfit, wanted if unfit == NOT_WRITABLE else None)
    return StateDir(wanted, lock=lock)


def _why_unfit(lock: int, folder: Path) -> str:
    if stat.S_IMODE(os.fstat(lock).st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        return "cannot be used (writable by other users)"
    if not os.access(folder, os.W_OK | os.X_OK):
        return NOT_WRITABLE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return "is in use by another memwatchd"
    return ""


def _reject(folder: Path, why: str, readable: Path | None = None) -> StateDir:
    return StateDir(
        None, f"state folder {folder} {why}: nothing is kept across restarts{ADVICE}", readable=readable
    )
