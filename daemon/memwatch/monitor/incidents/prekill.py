"""The holders of memory in a control group that is about to be killed, in one sentence. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memwatch.core import units
from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.incidents.killer import is_member
from memwatch.monitor.incidents.readings import Holding, word

MAX_NAMED = 5


def describe_holders(
    place: str,
    snapshot: Snapshot | None,
    members: Collection[int],
    charged_bytes: int | None,
    is_whole: bool = True,
) -> str:
    """Return a sentence: what is killed, and which of its processes hold memory of which pool.

    `members`: PIDs of the group; if empty, processes are found by their unit or container. `is_whole`: these are
    all.
    """
    charged = "" if charged_bytes is None else f" ({units.size(charged_bytes)} charged to it)"
    named = [] if snapshot is None else list(_describe(snapshot, find_members(place, snapshot, members)))
    held = "; ".join(named[:MAX_NAMED]) or "no listed process is in it"
    rest = f"; and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    unread = "" if is_whole else "; it has more processes than were read"
    return f"about to kill {place}{charged}: {held}{rest}{unread}"


def find_members(place: str, snapshot: Snapshot, members: Collection[int]) -> list[Process]:
    """Return the listed processes of a group, those that hold most first."""
    found = [one for one in snapshot.processes if one.pid in members or (not members and _is_in(one, place))]
    return sorted(found, key=lambda one: sum(size for _, size in _sizes(one)), reverse=True)


def _is_in(process: Process, place: str) -> bool:
    unit, container = word(process.unit), word(process.container)
    return is_member(
        Holding(process.title, unit, container, 0, None, word(process.pod), job=word(process.job)), place
    )


def _describe(snapshot: Snapshot, processes: list[Process]) -> Iterator[str]:
    for one in processes:
        sizes = [f"{units.size(size)} of {snapshot.labels.get(name, name)}" for name, size in _sizes(one)]
        yield f"{one.title} (PID {one.pid}) holds {' and '.join(sizes) or 'an unknown amount'}"


def _sizes(process: Process) -> Iterator[tuple[str, int]]:
    """Yield the memory of a process by pool or share: resident in System RAM, and of devices."""
    if not isinstance(process.rss_bytes, Absent):
        yield "System RAM", process.rss_bytes
    for name, size in process.device_bytes.items():
        if not isinstance(size, Absent) and size:
            yield name, size
