"""Series of the largest processes, units and containers: their names, and which are recorded. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from memwatch.core.model import Absent, Process, sum_figures
from memwatch.core.owners import Owner, OwnerTotal, build_totals, find_caps
from memwatch.core.snapshot import Snapshot

HolderKind = Literal["process", "unit", "container"]
HOLDER_KINDS: tuple[HolderKind, ...] = get_args(HolderKind)
FIGURES = ("footprint_bytes", "footprint_low_bytes", "footprint_high_bytes", "device_bytes")
# A holder has one of these in each reading.
FOOTPRINTS = ("footprint_low_bytes", "footprint_bytes")
# Recorded at the same time, of each kind.
MAX_RECORDED = 10
# Another holder takes the place of the smallest recorded one when it is larger by this factor. Processes of one
# size, such as the 32 workers of a data loader, thus do not take turns.
LEAD = 1.1
# The start time of a process is derived from a boot time in whole seconds, which a later run may read differently.
SAME_START_SECONDS = 2


class Holder(NamedTuple):
    """A process, unit or container. `id` is part of the names of its series; `size_bytes` is at least held."""

    id: str
    title: str
    size_bytes: int
    of: Process | OwnerTotal


def list_holders(snapshot: Snapshot, kind: HolderKind, recorded: Collection[str] = ()) -> list[Holder]:
    """Return the holders of a kind with a known footprint: of units and containers those that may be recorded."""
    return list(_processes(snapshot) if kind == "process" else _owners(snapshot, kind, recorded))


def _processes(snapshot: Snapshot) -> Iterator[Holder]:
    for process in snapshot.processes:
        name, size = process_id(process), process.footprint_low_bytes
        if name and not isinstance(size, Absent):
            yield Holder(name, process.title, size, process)


def process_id(process: Process) -> str | None:
    """Return the id of a process. None without a start time: it cannot be told from a later one with its PID."""
    start = process.start_time
    return None if isinstance(start, Absent) else f"{process.pid}-{round(start)}"


def _select_owners(
    snapshot: Snapshot, kind: Literal["unit", "container"], recorded: Collection[str]
) -> list[Owner]:
    """Return the owners that may be recorded. Totals of all units of a machine would take most of a reading."""
    owners = [owner for owner in snapshot.owners if owner.kind == kind]  # the largest RSS first
    holding = {getattr(process, kind) for process in snapshot.processes if process.device_bytes}
    others = [one for one in owners[2 * MAX_RECORDED :] if one.name in holding or one.name in recorded]
    return [*owners[: 2 * MAX_RECORDED], *others]


def _owners(snapshot: Snapshot, kind: Literal["unit", "container"], recorded: Collection[str]) -> Iterator[Holder]:
    names = snapshot.container_names if kind == "container" else {}
    caps = find_caps(snapshot.processes, snapshot.pools, snapshot.shares)
    for total in build_totals(_select_owners(snapshot, kind, recorded), snapshot.processes, kind, caps=caps):
        if isinstance(total.name, str):
            yield Holder(total.name, names.get(total.name, total.name), total.footprint_low_bytes, total)


def build_figures(of: Process | OwnerTotal) -> Mapping[str, int]:
    """Return the known figures: the footprint, or its bounds, and the GPU memory in it."""
    if isinstance(of.footprint_bytes, Absent):
        found = {"footprint_low_bytes": of.footprint_low_bytes, "footprint_high_bytes": of.footprint_high_bytes}
    else:
        found = {"footprint_bytes": of.footprint_bytes}
    if of.device_bytes:
        found["device_bytes"] = sum_figures(of.device_bytes.values())
    return {name: size for name, size in found.items() if not isinstance(size, Absent)}


def choose(holders: Iterable[Holder], recorded: Collection[str]) -> Sequence[Holder]:
    """Return the holders to record: those recorded so far while they exist, and larger ones in free places.

    A holder in no place takes that of the smallest one if it leads by `LEAD`.
    """
    by_size = sorted(holders, key=lambda one: (-one.size_bytes, one.id))
    chosen = [one for one in by_size if one.id in recorded][:MAX_RECORDED]
    others = [one for one in by_size if one.id not in recorded]
    free = MAX_RECORDED - len(chosen)
    chosen += others[:free]
    for other in others[free:]:
        smallest = min(chosen, key=lambda one: (one.size_bytes, one.id))
        if other.size_bytes <= LEAD * smallest.size_bytes:
            break
        chosen[chosen.index(smallest)] = other
    return chosen


def series_name(kind: str, holder: str, figure: str) -> str:
    """Return the name of a series, such as `unit.ollama.service.footprint_bytes`."""
    return f"{kind}.{holder}.{figure}"


def parse_name(name: str) -> tuple[HolderKind, str, str] | None:
    """Split the name of a series into kind, holder and figure. None if it is not that of a holder."""
    word, _, rest = name.partition(".")
    holder, _, figure = rest.rpartition(".")
    kind = next((one for one in HOLDER_KINDS if one == word), None)
    return (kind, holder, figure) if kind and holder and figure in FIGURES else None


def is_same_process(one: str, other: str) -> bool:
    """Compare the ids of two processes, one of which an earlier run of the daemon has written."""
    pid, _, start = one.partition("-")
    other_pid, _, other_start = other.partition("-")
    if pid != other_pid or not (start.isdigit() and other_start.isdigit()):
        return False
    return abs(int(start) - int(other_start)) <= SAME_START_SECONDS
