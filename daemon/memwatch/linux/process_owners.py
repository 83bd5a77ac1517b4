"""Whose the processes are, all of them, and what each owner's come to. No collector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from memwatch.linux.cgroup_mounts import CgroupUsage
from memwatch.linux.process_files import STATUS_BYTES, Home, Homes, parse_uid, read_in
from memwatch.linux.process_table import Entry
from memwatch.model import Absent, Words
from memwatch.owners import OWNER_KINDS, Owner, OwnerKind

# A process is often put into its cgroup, and given its user, a moment after it has begun.
SOON_TURNS, LATER_TURNS = 1, 128
# A listed process whose pages are what they were is read again at every 12th look: half of a look went into that.
SHOWN_TURNS = 12
# So many owners of each kind, the largest, have the figure of their own cgroup read.
MOST_FIGURES = 100

Name = Words | None
User = Callable[[int | None], Words]


class Attribution:
    """Reads whose the processes are: of new ones twice, of the others now and then, as that can change."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._homes = Homes()
        self._turn = 0

    def refresh(self, entries: Iterable[Entry]) -> None:
        """One look further: read what is due, forget the homes that nobody has any more."""
        self._turn += 1
        kept = set()
        for entry in entries:
            if entry.home_due <= self._turn:
                self._read(entry)
            kept.add(entry.home)
        self._homes.forget_all_but(kept)

    def read(self, entry: Entry, folder: int) -> bytes:
        """By the open folder of a process, which stays its own. Its status, for what else that says.

        One that is listed is read in this way again and again, so it is due only when it is not any more.
        """
        first = entry.home_due == 0
        status = read_in(folder, "status", STATUS_BYTES) or b""
        entry.home, entry.uid = self._homes.read(folder, "cgroup"), parse_uid(status)
        entry.home_due = self._turn + 1 + (SOON_TURNS if first else SHOWN_TURNS)
        return status

    def _read(self, entry: Entry) -> None:
        first, before = entry.home_due == 0, (entry.home, entry.uid)
        folder = entry.thread or str(entry.pid)
        entry.home = self._homes.read(self._folder, folder + "/cgroup")
        entry.uid = parse_uid(read_in(self._folder, folder + "/status", STATUS_BYTES) or b"")
        if (entry.home, entry.uid) != before:
            entry.shown = None
        # Spread by number: those that were there when we began do not all come due at once.
        later = LATER_TURNS // 2 + entry.pid % LATER_TURNS
        entry.home_due = self._turn + (SOON_TURNS if first else later)


def owners_of(entries: Iterable[Entry], user: User, page_size: int, usage: CgroupUsage) -> tuple[Owner, ...]:
    """What the processes of each unit, container, pod, job and user come to, the largest of each kind first."""
    found = sums_of(entries)
    owners: list[Owner] = []
    for kind in OWNER_KINDS:
        merged = merged_by(found, kind, user)
        if set(merged) - {None}:
            owners += _with_figures(merged, kind, page_size, usage)
    return tuple(owners)


Sums = Mapping[tuple[Home, int | None], tuple[int, int]]


def sums_of(entries: Iterable[Entry]) -> Sums:
    """Number and pages of the processes that share home and user: few of these, whatever there is of those."""
    sums: dict[tuple[Home, int | None], tuple[int, int]] = {}
    for entry in entries:
        key = (entry.home, entry.uid)
        count, pages = sums.get(key, (0, 0))
        sums[key] = (count + 1, pages + entry.pages)
    return sums


def merged_by(sums: Sums, kind: OwnerKind, user: User) -> dict[Name, tuple[int, int, str | None]]:
    """Number, pages and cgroup of each owner of a kind."""
    merged: dict[Name, tuple[int, int, str | None]] = {}
    for (home, uid), (count, pages) in sums.items():
        name: Name = user(uid) if kind == "user" else home.owner(kind)
        before = merged.get(name, (0, 0, None))
        merged[name] = (before[0] + count, before[1] + pages, before[2] or home.folders.get(kind))
    return merged


def _with_figures(
    merged: Mapping[Name, tuple[int, int, str | None]], kind: OwnerKind, page_size: int, usage: CgroupUsage
) -> Iterable[Owner]:
    owners = [Owner(kind, name, count, pages * page_size) for name, (count, pages, _) in merged.items()]
    owners.sort(key=lambda owner: -owner.rss_bytes)
    for at, owner in enumerate(owners):
        folder = merged[owner.name][2]
        if folder is None:
            yield owner
        else:
            yield replace(owner, cgroup_bytes=usage.read(folder) if at < MOST_FIGURES else Absent.NOT_AVAILABLE)
