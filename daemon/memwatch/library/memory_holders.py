"""Other processes that hold the memory which this process could not get, from the daemon or from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.core.printable import decode, printable
from memwatch.library.daemon_client import daemon, read_roots
from memwatch.library.host import PAGE_BYTES
from memwatch.library.machine_record import decode_machine
from memwatch.library.never_raise import never_raise

MAX_HOLDERS = 5
# Reading this many takes half a second. With more, the largest are not known.
MAX_READ = 20_000


class Holder(Struct, frozen=True):
    """Another process. `held_bytes`: device memory, or the resident set for System RAM."""

    pid: int
    name: str
    held_bytes: int


@never_raise(Absent.NOT_AVAILABLE)
def find_holders(device: str | None) -> tuple[Holder, ...] | Absent:
    """Return the largest other holders of a GPU's memory, which only the daemon knows, or of System RAM."""
    snapshot = daemon.get("/api/v1/snapshot")
    if snapshot is None:
        return list_resident() if device is None else Absent.NOT_AVAILABLE
    rows = [(one, held_by(one, None)) for one in snapshot["processes"]]
    if device is not None:
        found = decode_machine(snapshot).device(device)
        if found is None:
            return Absent.NOT_AVAILABLE
        within = {share["id"] for share in snapshot["shares"] if share["device"] == found.id}
        places = [set(found.allocates_from), within]
        rows = [(one, held_by(one, places)) for one in snapshot["processes"]]
    holders = [Holder(one["pid"], printable(str(one["name"] or "")), held) for one, held in rows if held]
    return largest(holders)


def held_by(process: Any, places: list[set[str]] | None) -> int:  # noqa: ANN401  JSON
    """Return the resident set, or the bytes in the first of the sets of places that has any."""
    if places is None:
        return process["rss_bytes"] if isinstance(process["rss_bytes"], int) else 0
    for names in places:
        found = [held for name, held in process["device_bytes"].items() if name in names and isinstance(held, int)]
        if found:
            return sum(found)
    return 0


def list_resident() -> tuple[Holder, ...] | Absent:
    folder = read_roots(os.environ)[0]
    pids = [int(name) for name in os.listdir(folder) if name.isdecimal()]
    if len(pids) > MAX_READ:
        return Absent.NOT_AVAILABLE
    return largest([one for one in (read_resident(folder, pid) for pid in pids) if one is not None])


def read_resident(folder: Path, pid: int) -> Holder | None:
    try:
        held = int((folder / str(pid) / "statm").read_bytes().split()[1]) * PAGE_BYTES
        name = decode((folder / str(pid) / "comm").read_bytes().rstrip(b"\n"))
    except (OSError, IndexError, ValueError):
        return None
    return Holder(pid, name, held)


def largest(holders: list[Holder]) -> tuple[Holder, ...]:
    others = [one for one in holders if one.pid != os.getpid() and one.held_bytes]
    return tuple(sorted(others, key=lambda one: -one.held_bytes)[:MAX_HOLDERS])
