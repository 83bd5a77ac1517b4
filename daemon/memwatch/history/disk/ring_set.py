"""The history's files in the state folder: open and read them, move damaged parts aside."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct, field

from memwatch.history.disk.ring_file import MENDED, Contents, Record, Ring, Stamp, Unusable

log = logging.getLogger(__name__)

# Each file and its part of the size limit, in 64ths: every tick at high and critical pressure, the finest tier,
# events, notable ticks, the other tiers. They are allocated in this order, in case the disk has too little space.
PARTS = {"flight": 18, "fine": 8, "events": 2, "ticks": 8, "medium": 14, "coarse": 14}
WHOLE = sum(PARTS.values())
TIERS = ("fine", "medium", "coarse")
# Number of damaged versions of each file that are kept for inspection.
KEPT_ASIDE = 2


class Shelf(Struct):
    """The rings by name. Unusable ones are missing. `complaints` are sentences for the log."""

    rings: dict[str, Ring] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
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
        return [record for record in self.contents.get(name, Contents()).records if record.kind == kind]


def open_shelf(folder: Path, size_bytes: int, unix: float) -> Shelf:
    """Open all rings and read their intact records. Damaged data is saved under a name with the time."""
    shelf = Shelf()
    when = datetime.fromtimestamp(unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for name, part in PARTS.items():
        path = folder / f"{name}.ring"
        try:
            ring, contents = _open_ring(shelf, path, size_bytes * part // WHOLE, when)
            shelf.rings[name], shelf.contents[name] = ring, contents
            if contents.lost:
                shelf.damaged.add(name)
                _set_aside(shelf, path, contents, when)
        except OSError as error:
            shelf.complaints.append(f"{path} cannot be read: {error.strerror or error}")
    return shelf


def prepare(shelf: Shelf, stamp: Stamp) -> None:
    """Prepare every ring for writing, unless it is ready. Raises OSError for the first one that fails."""
    for name, ring in shelf.rings.items():
        if not ring.ready:
            contents = shelf.contents.pop(name, Contents())
            ring.prepare(contents)
            if name in shelf.damaged:
                ring.append(MENDED, stamp, b"")
                shelf.damaged.remove(name)


def _open_ring(shelf: Shelf, path: Path, size_bytes: int, when: str) -> tuple[Ring, Contents]:
    try:
        ring = Ring(path, size_bytes)
        return ring, ring.read()
    except Unusable as error:
        aside = path.with_name(f"{path.name}.damaged-{when}")
        os.rename(path, aside)
        shelf.lost += 1
        shelf.aside.append(aside.name)
        shelf.complaints.append(f"{path} {error.strerror}: it was renamed to {aside.name}")
        _forget_old(path)
        ring = Ring(path, size_bytes)
        return ring, ring.read()


def _set_aside(shelf: Shelf, path: Path, contents: Contents, when: str) -> None:
    """Save damaged blocks in a separate file. The ring continues with its intact records."""
    shelf.lost += contents.lost
    records = "1 record" if contents.lost == 1 else f"{contents.lost} records"
    aside = path.with_name(f"{path.name}.damaged-{when}")
    if not contents.spoilt:
        shelf.complaints.append(f"{path} lost {records}")
        return
    try:
        aside.write_bytes(b"".join(data for _, data in contents.spoilt))
        _forget_old(path)
    except OSError as error:
        why = error.strerror or error
        shelf.complaints.append(f"{path} lost {records}; the damaged data cannot be saved: {why}")
        return
    shelf.aside.append(aside.name)
    shelf.complaints.append(f"{path} lost {records}; the damaged data was saved as {aside.name}")


def _forget_old(path: Path) -> None:
    found = sorted(path.parent.glob(f"{path.name}.damaged-*"))
    for old in found[:-KEPT_ASIDE]:
        with suppress(OSError):
            old.unlink()
