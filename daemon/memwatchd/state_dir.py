"""The folder for what must survive a restart. Trouble with it is said and never keeps the daemon from starting."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from msgspec import Struct

MODE = 0o700
NOT_WRITABLE = "cannot be used (this user may not write there)"
ADVICE = "; use a folder of its own, such as --state-dir /var/lib/memwatchd"


class StateDir(Struct, frozen=True):
    """An open state folder, or none and the reason. `folder` is ours alone until `close`.

    `readable` is a folder that cannot be written to, such as on a disk that became read-only, and can be read.
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
    """The folder, made if it is not there, and locked against a second daemon."""
    if wanted is None:
        return StateDir(
            None, "no state folder: nothing survives a restart; --state-dir DIR names one", was_wanted=False
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
        return "cannot be used (other users may write there)"
    if not os.access(folder, os.W_OK | os.X_OK):
        return NOT_WRITABLE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return "is in use by another memwatchd"
    return ""


def _reject(folder: Path, why: str, readable: Path | None = None) -> StateDir:
    return StateDir(None, f"state folder {folder} {why}: nothing survives a restart{ADVICE}", readable=readable)
