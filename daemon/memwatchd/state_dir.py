"""The state folder: checked and locked. It has small files, such as the users to whom keys were sent first."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from memwatch.core.linux.key_owner import MAX_OWNERS, KnownOwners
from memwatch.core.printable import describe_error
from memwatch.core.runtime.programs import is_writable_by_others, walk

log: logging.Logger = logging.getLogger(__name__)

ROOT = 0
MODE = 0o700
NOT_WRITABLE = "cannot be used (not writable by this user)"
ADVICE = "; use a dedicated folder, such as --state-dir /var/lib/memwatchd"
OWNERS_FILE = "key-owners.json"
OWNERS_VERSION = 1
MAX_OWNERS_BYTES = 512 * 1024
UNUSABLE = "%s in the state folder is not used (%s): keys and tokens go to the users who listen now; set user"

# A user id has 32 bits, and the largest value is none: it is -1 of setresuid(2). -1 here: see KeptOwners.
Owner = Annotated[int, Meta(ge=-1, lt=(1 << 32) - 1)]


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
        if exchangeable := why_exchangeable(wanted):
            return _reject(wanted, f"cannot be used ({exchangeable})")
        wanted.mkdir(MODE, parents=True, exist_ok=True)
        # A link to a folder counts: systemd's DynamicUser= makes one. All links on the way were checked.
        lock = os.open(os.path.realpath(wanted), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return _reject(wanted, f"cannot be used ({describe_error(error)})")
    unfit = _why_unfit(lock, wanted)
    if unfit:
        os.close(lock)
        return _reject(wanted, unfit, wanted if unfit == NOT_WRITABLE else None)
    return StateDir(wanted, lock=lock)


def read_state_file(folder: Path, name: str, max_bytes: int) -> bytes:
    """Return the content of a small file that only root and this user can have written. Raises OSError.

    The folder may be one that is not locked: a start reads its last configuration before it opens the folder.
    """
    if why := why_exchangeable(folder):
        raise PermissionError(errno.EPERM, why, str(folder))
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not (_is_own(found) and _is_own(os.stat(folder))):
            raise PermissionError(errno.EPERM, "belongs to another user, or is writable by one", name)
        return file.read(max_bytes)


def write_state_file(folder: Path, name: str, data: bytes) -> None:
    """Replace a small file at once; it is on the disk then. Raises OSError."""
    descriptor, fresh = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, folder / name)
    except OSError:
        os.unlink(fresh)
        raise


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid in (ROOT, os.geteuid()) and not is_writable_by_others(found)


def why_exchangeable(folder: Path, uid: int | None = None) -> str:
    """Return how another user could exchange the folder for another one, empty if none can.

    Links on the way must belong to root or the daemon's user. For root (`uid` 0; the effective user by default) all
    parents must also belong to root, and only root may write to them, unless they are sticky, which protects the
    entries of other users. Parents are not restricted for a user, who cannot overwrite files of others: project
    folders belong to other accounts, and everyone may write to a Kubernetes emptyDir (mode 0777).
    """
    user = os.geteuid() if uid is None else uid
    return next((why for path, found in _way_to(folder) if (why := _why_replaceable(path, found, user))), "")


def _way_to(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return all parents and links that exist, without the folder itself."""
    found: list[tuple[Path, os.stat_result]] = []
    try:
        found.extend(walk(folder.absolute()))
    except FileNotFoundError:
        return found
    return found[:-1]


def _why_replaceable(path: Path, found: os.stat_result, user: int) -> str:
    is_link = stat.S_ISLNK(found.st_mode)
    if not is_link and not stat.S_ISDIR(found.st_mode):
        return ""
    if not is_link and user != ROOT:
        return ""
    if found.st_uid not in (ROOT, user):
        return f"{path} belongs to uid {found.st_uid}"
    is_protected = is_link or found.st_mode & stat.S_ISVTX or not is_writable_by_others(found)
    return "" if is_protected else f"{path} is writable by other users"


def _why_unfit(lock: int, folder: Path) -> str:
    found = os.fstat(lock)
    if found.st_uid not in (ROOT, os.geteuid()):
        return f"cannot be used (it belongs to uid {found.st_uid}, not to this user or root)"
    if is_writable_by_others(found):
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


class KeptOwners(Struct, frozen=True):
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
        kept = msgspec.json.decode(read_state_file(folder, OWNERS_FILE, MAX_OWNERS_BYTES), type=KeptOwners)
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning(UNUSABLE, OWNERS_FILE, error.strerror)
        return {}
    except ValueError:
        log.warning(UNUSABLE, OWNERS_FILE, "it is damaged")
        return {}
    if kept.version != OWNERS_VERSION or len(kept.owners) > MAX_OWNERS:
        log.warning(UNUSABLE, OWNERS_FILE, "it is of another version")
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
            kept = KeptOwners(OWNERS_VERSION, self._newest)
            try:
                write_state_file(self._folder, OWNERS_FILE, msgspec.json.encode(kept))
            except OSError as error:
                log.warning("the users to whom keys are sent are not kept: %s", error.strerror or error)
