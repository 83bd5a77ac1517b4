"""The last configuration that memwatchd ran with, in the state folder: what a start uses if that of now is refused.

It holds what the file and the variables said, not what they name: secrets are read again. The login is there too,
the token as its digest, so that access is not loosened while the setting of it cannot be used.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from memwatch.runtime.path_walk import is_writable_by_others
from memwatchd.state_dir import why_exchangeable

NAME = "configuration.json"
VERSION = 1
MAX_BYTES = 512 * 1024


class Given(Struct, frozen=True):
    """A configuration as it was given: the file's path and text, and the variables that set a key.

    The text may contain secrets and is never shown.
    """

    file: str | None = None
    text: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Given({self.file!r})"


class LastGood(Struct, frozen=True):
    """`unix`: when memwatchd took it. `token`: digest of the bearer token, in hexadecimal. `users`: the hashes."""

    unix: float
    given: Given
    token: str | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    by_certificate: bool = False
    version: int = VERSION


def read_last_good(folder: Path | None) -> LastGood | None:
    """Return the last good configuration, None if there is none that only root and this user can have written."""
    if folder is None or why_exchangeable(folder):
        return None
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = [os.fstat(descriptor), os.stat(folder)]
            if not stat.S_ISREG(found[0].st_mode) or not all(is_own(one) for one in found):
                return None
            last = msgspec.json.decode(file.read(MAX_BYTES), type=LastGood)
    except (OSError, ValueError):
        return None
    return last if last.version == VERSION else None


def is_own(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid()) and not is_writable_by_others(found)


def keep_last_good(folder: Path, last: LastGood) -> None:
    """Write the configuration unless the folder already has it. Raises OSError."""
    before = read_last_good(folder)
    if before is not None and msgspec.structs.replace(before, unix=last.unix) == last:
        return
    descriptor, fresh = tempfile.mkstemp(prefix=f".{NAME}.", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(last))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, folder / NAME)
    except OSError:
        os.unlink(fresh)
        raise
