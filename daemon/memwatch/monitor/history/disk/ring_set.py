"""The history's files in the state folder: open and read them, move damaged parts aside."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.runtime.own_files import free_name, open_own
from memwatch.monitor.history.disk.ring_file import (
    REPAIRED,
    IncompatibleFileError,
    Record,
    RingContents,
    RingFile,
    Stamp,
)

log: logging.Logger = logging.getLogger(__name__)

# Each file and its part of the size limit, in 64ths: every tick at high and critical pressure, the finest tier,
# events, notable ticks, the other tiers. They are allocated in this order, in case the disk has too little space.
PARTS = {"flight": 18, "fine": 8, "events": 2, "ticks": 8, "medium": 14, "coarse": 14}
WHOLE = sum(PARTS.values())
TIERS = ("fine", "medium", "coarse")
# Number of damaged versions of each file that are kept for inspection.
MAX_SET_ASIDE = 2


class RingSet(Struct):
    """The rings by name. Unusable ones are missing. `complaints` are sentences for the log."""

    rings: dict[str, RingFile] = field(default_factory=dict)
    contents: dict[str, RingContents] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    lost: int = 0

    @property
    def stamps(self) -> list[Stamp]:
        return [record.stamp for contents in self.contents.values() for record in contents.records]

    def payload(self, name: str, record: Record) -> bytes:
        return self.rings[name].payload(record)

    def records(self, name: str, kind: int) -> list[Record]:
        return [record for record in self.contents.get(name, RingContents()).records if record.kind == kind]


def open_ring_set(folder: Path, size_bytes: int, unix: float) -> RingSet:
    """Open all rings and read their intact records. Damaged data is saved under a name with the time."""
    ring_set = RingSet()
    when = file_time(unix)
    for name, part in PARTS.items():
        path = folder / f"{name}.ring"
        try:
            ring, contents = _open_ring(ring_set, path, size_bytes * part // WHOLE, when)
            ring_set.rings[name], ring_set.contents[name] = ring, contents
            if contents.lost:
                ring_set.damaged.add(name)
                _set_aside(ring_set, path, contents, when)
        except OSError as error:
            ring_set.complaints.append(f"{path} cannot be read: {error.strerror or error}")
    return ring_set


def prepare(ring_set: RingSet, stamp: Stamp) -> None:
    """Prepare every ring for writing, unless it is ready. Raises OSError for the first one that fails."""
    for name, ring in ring_set.rings.items():
        if not ring.ready:
            contents = ring_set.contents.pop(name, RingContents())
            ring.prepare(contents)
            if name in ring_set.damaged:
                ring.append(REPAIRED, stamp, b"")
                ring_set.damaged.remove(name)


def _open_ring(ring_set: RingSet, path: Path, size_bytes: int, when: str) -> tuple[RingFile, RingContents]:
    ring, contents, renamed = open_ring(path, size_bytes, when)
    if renamed is not None:
        ring_set.lost += 1
        ring_set.aside.append(renamed.name)
        ring_set.complaints.append(renamed.sentence)
    return ring, contents


class Renamed(NamedTuple):
    """New name of a file that could not be used, and a sentence about it for the log."""

    name: str
    sentence: str


def open_ring(path: Path, size_bytes: int, when: str) -> tuple[RingFile, RingContents, Renamed | None]:
    """Open a ring and read its intact records. An unusable file, such as one of another version, is renamed."""
    try:
        ring = RingFile(path, size_bytes)
        return ring, ring.read(), None
    except IncompatibleFileError as error:
        aside = free_name(path.with_name(f"{path.name}.damaged-{when}"))
        os.rename(path, aside)
        _delete_old(path)
        ring = RingFile(path, size_bytes)
        return ring, ring.read(), Renamed(aside.name, f"{path} {error.strerror}: it was renamed to {aside.name}")


def file_time(unix: float) -> str:
    """Return a time for names of files, in UTC."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def _set_aside(ring_set: RingSet, path: Path, contents: RingContents, when: str) -> None:
    """Save damaged blocks in a separate file. The ring continues with its intact records."""
    ring_set.lost += contents.lost
    records = "1 record" if contents.lost == 1 else f"{contents.lost} records"
    aside = free_name(path.with_name(f"{path.name}.damaged-{when}"))
    if not contents.damaged:
        ring_set.complaints.append(f"{path} lost {records}")
        return
    try:
        with os.fdopen(open_own(aside, os.O_WRONLY), "wb") as file:
            file.write(b"".join(data for _, data in contents.damaged))
        _delete_old(path)
    except OSError as error:
        why = error.strerror or error
        ring_set.complaints.append(f"{path} lost {records}; the damaged data cannot be saved: {why}")
        return
    ring_set.aside.append(aside.name)
    ring_set.complaints.append(f"{path} lost {records}; the damaged data was saved as {aside.name}")


def _delete_old(path: Path) -> None:
    found = sorted(path.parent.glob(f"{path.name}.damaged-*"))
    for old in found[:-MAX_SET_ASIDE]:
        with suppress(OSError):
            old.unlink()
