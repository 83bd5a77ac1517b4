"""The users to whom keys and tokens were sent first. The state folder keeps them over a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from memwatch.core.linux.key_owner import MAX_OWNERS, KnownOwners
from memwatchd.state_dir import read_state_file, write_state_file

log: logging.Logger = logging.getLogger(__name__)

NAME = "key-owners.json"
VERSION = 1
MAX_BYTES = 512 * 1024
UNUSABLE = "%s in the state folder is not used (%s): keys and tokens go to the users who listen now; set user"

# A user id has 32 bits, and the largest value is none: it is -1 of setresuid(2). -1 here: see Kept.
Owner = Annotated[int, Meta(ge=-1, lt=(1 << 32) - 1)]


class Kept(Struct, frozen=True):
    """The file. `owners`: user ids by the setting and the URL, the oldest first. -1 is a container's network."""

    version: int
    owners: Mapping[str, Owner]


def open_key_owners(folder: Path | None) -> KnownOwners:
    """Return the owners of the state folder, none without one or of a file that cannot be used."""
    if folder is None:
        return KnownOwners()
    return KnownOwners(read_owners(folder), OwnersFile(folder).keep)


def read_owners(folder: Path) -> Mapping[str, int]:
    try:
        kept = msgspec.json.decode(read_state_file(folder, NAME, MAX_BYTES), type=Kept)
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning(UNUSABLE, NAME, error.strerror)
        return {}
    except ValueError:
        log.warning(UNUSABLE, NAME, "it is damaged")
        return {}
    if kept.version != VERSION or len(kept.owners) > MAX_OWNERS:
        log.warning(UNUSABLE, NAME, "it is of another version")
        return {}
    return kept.owners


class OwnersFile:
    """Writes the owners in a thread: a disk that hangs must not hold up a collector. It happens once per key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: Mapping[str, int] = {}
        self._lock = threading.Lock()

    def keep(self, owners: Mapping[str, int]) -> None:
        self._newest = owners
        threading.Thread(target=self._write, name="key owners", daemon=True).start()

    def _write(self) -> None:
        with self._lock:
            kept = Kept(VERSION, self._newest)
            try:
                write_state_file(self._folder, NAME, msgspec.json.encode(kept))
            except OSError as error:
                log.warning("the users to whom keys are sent are not kept: %s", error.strerror or error)
