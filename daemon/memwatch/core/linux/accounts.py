"""Accounts: users with the ids that /etc/subuid lets them use in containers.

A limit for each user id would be none: `unshare --map-auto` gives its caller 65,536 of them.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memwatch.core.linux.process_files import parse_passwd
from memwatch.core.runtime.regular_file import read_regular

MAX_FILE_BYTES = 1 << 20
MAX_ID = (1 << 32) - 1


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
        self._changed: tuple[int, ...] | None = None
        self._ranges: list[IdRange] = []

    def of(self, uid: int | None) -> int | None:
        """Return the user id of the account that a user id belongs to. Call `refresh` before."""
        if uid is None:
            return None
        at = bisect_right(self._ranges, (uid, MAX_ID, MAX_ID)) - 1
        if at >= 0 and uid < self._ranges[at].first + self._ranges[at].size:
            return self._ranges[at].owner
        return uid

    def refresh(self) -> None:
        changed = tuple(map(_changed_at, self._files))
        if changed != self._changed:
            subuid, passwd = map(_read, self._files)
            names = parse_passwd(passwd)
            self._ranges = parse_subuid(subuid, {name.encode(): uid for uid, name in names.items()})
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
