"""The last configuration that memwatchd ran with, in the state folder: what a start uses if that of now is refused.

It holds what the file and the variables said, not what they name: secrets are read again. The login is there too,
the token as its digest, so that access is not loosened while the setting of it cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from memwatchd.state_dir import read_state_file, write_state_file

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
    if folder is None:
        return None
    try:
        last = msgspec.json.decode(read_state_file(folder, NAME, MAX_BYTES), type=LastGood)
    except (OSError, ValueError):
        return None
    return last if last.version == VERSION else None


def keep_last_good(folder: Path, last: LastGood) -> None:
    """Write the configuration unless the folder already has it. Raises OSError."""
    before = read_last_good(folder)
    if before is not None and msgspec.structs.replace(before, unix=last.unix) == last:
        return
    write_state_file(folder, NAME, msgspec.json.encode(last))
