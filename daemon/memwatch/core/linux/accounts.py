"""Accounts: users with the ids that /etc/subuid lets them use in containers, and containers with ids of their own.

A limit for each user id would be none: `unshare --map-auto` gives its caller 65,536 of them.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memwatch.core.budget import ROOT, UNKNOWN, Account, Rank
from memwatch.core.linux.cgroups import parse_owners
from memwatch.core.linux.process_files import parse_passwd
from memwatch.core.printable import printable
from memwatch.core.runtime.regular_file import read_regular

MAX_FILE_BYTES = 1 << 20
MAX_ID = (1 << 32) - 1
# Ids of services: below UID_MIN of login.defs(5), and those of DynamicUser= (systemd.io/UIDS-GIDS).
MIN_USER_ID, DYNAMIC_IDS = 1000, range(61184, 65520)
# systemd-nspawn -U, userns=auto of Podman and LXD map ids of a container from here on, in blocks of this size.
MIN_CONTAINER_ID, CONTAINER_IDS = 524_288, 65_536
CONTAINERS = "containers with uid"
# Owners are at most at this depth of a cgroup path.
MAX_DEPTH = 8
# Jobs and containers whose account is remembered: it is of their processes, which may be gone.
MAX_OWNERS = 1000
# Slices of users, of systemd-logind, and jobs of Slurm on cgroup v1. Users can name only folders below.
_USER_GROUP = re.compile(r"/user\.slice/user-(\d{1,10})\.slice(?:/|$)|/slurm(?:_[\w.-]+)?/uid_(\d{1,10})(?:/|$)")


class IdRange(NamedTuple):
    """Subordinate ids of one account, in the order of their first ids."""

    first: int
    size: int
    owner: int


def parse_subuid(data: bytes, uids: Mapping[bytes, int]) -> list[IdRange]:
    """Return the ranges of subuid(5). Lines of users without an id, and lines that are none, are left out."""
    found = []
    for line in data.splitlines():
        columns = line.split(b":")
        if len(columns) != 3 or not all(one.isdigit() and len(one) <= 10 for one in columns[1:]):
            continue
        name, first, count = columns[0], int(columns[1]), int(columns[2])
        owner = int(name) if name.isdigit() and len(name) <= 10 else uids.get(name)
        if owner is not None and 0 < count <= MAX_ID and first + count <= MAX_ID:
            found.append(IdRange(first, count, owner))
    return sorted(found)


class Accounts:
    """The account of each user id. The files are read again when they have changed."""

    def __init__(self, rootfs: Path) -> None:
        self._files = (rootfs / "etc/subuid", rootfs / "etc/passwd")
        self._sessions = rootfs / "run/user"
        self._changed: tuple[int, ...] | None = None
        self._ranges: list[IdRange] = []
        self._uids: dict[str, int] = {}
        self._owners: dict[str, Account] = {}

    def of(self, uid: int | None) -> Account:
        """Return the account that a user id belongs to. Call `refresh` before.

        Ids that /etc/subuid gives to root or to a service, such as LXD or dockremap, are of containers. So are
        high ids that it does not have, except those of users who are logged in: domains (SSSD) have such ids.
        """
        if uid is None:
            return UNKNOWN
        ranges = self._ranges  # another thread may replace them
        at = bisect_right(ranges, (uid, MAX_ID, MAX_ID)) - 1
        is_subordinate = at >= 0 and uid < ranges[at].first + ranges[at].size
        if is_subordinate and ranges[at].owner >= MIN_USER_ID:
            uid = ranges[at].owner
        elif is_subordinate or (uid >= MIN_CONTAINER_ID and not (self._sessions / str(uid)).exists()):
            base = ranges[at].first if is_subordinate else 0
            first = base + (uid - base) // CONTAINER_IDS * CONTAINER_IDS
            return Account(f"{CONTAINERS} {first} and above")
        is_service = uid < MIN_USER_ID or uid in DYNAMIC_IDS
        return ROOT if uid == 0 else Account(f"uid {uid}", Rank.SYSTEM if is_service else Rank.USER)

    def of_now(self, uid: int | None) -> Account:
        """Return the account of a user id by the files of now."""
        self.refresh()
        return self.of(uid)

    def of_user(self, user: str | None) -> Account:
        """Return the account of a user name, or of an id as text, as processes have."""
        self.refresh()
        return self.of(int(user) if user and user.isdecimal() else self._uids.get(user or ""))

    def of_cgroup(self, path: str, user: str | None = None) -> Account:
        """Return the account of a cgroup: of its user, or of a unit. `user`: of its largest process, or None.

        Any user may start a hundred jobs, so a job is of the account of its user. Containers without a user
        namespace have those of their ids. Once known, the account of a job or container is remembered. Without a
        path, it is that of the user.
        """
        if not path and user:
            return self.of_user(user)
        if found := _USER_GROUP.match(path):
            return self.of_now(int(found[1] or found[2]))
        unit: str | None = None
        for end in range(1, min(path.count("/"), MAX_DEPTH) + 1):  # the outermost: a container can name those below
            owners = parse_owners({"": "/".join(path.split("/")[: end + 1])}).printable()
            for kind in ("pod", "container", "job"):
                if name := getattr(owners, kind):
                    return self._of_owner(kind, f"{kind} {name}", user)
            if unit is None or unit.endswith(".slice"):
                unit = owners.unit or unit
        return Account(unit or printable(path.split("/")[-1][:80]) or "this container", Rank.SYSTEM)

    def _of_owner(self, kind: str, name: str, user: str | None) -> Account:
        known = self._owners.get(name)
        if user is None or known is not None:
            return known or Account(f"{kind}s of unknown users")
        account = self.of_user(user)
        if not (kind == "job" and account.rank is Rank.USER) and not account.name.startswith(CONTAINERS):
            account = Account(f"{kind}s of {account.name}")
        self._owners[name] = account
        if len(self._owners) > MAX_OWNERS:
            del self._owners[next(iter(self._owners))]
        return account

    def refresh(self) -> None:
        changed = tuple(map(_changed_at, self._files))
        if changed != self._changed:
            subuid, passwd = map(_read, self._files)
            names = parse_passwd(passwd)
            self._uids = {name: uid for uid, name in names.items()}
            self._ranges = parse_subuid(subuid, {name.encode(): uid for name, uid in self._uids.items()})
            self._changed = changed


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return read_regular(path, MAX_FILE_BYTES)
    return b""
