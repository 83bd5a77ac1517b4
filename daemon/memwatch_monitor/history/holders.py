"""History of the largest processes, units and containers: the names of their series, and which are recorded."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple, get_args

from memwatch.core.model import Absent, Process, sum_figures
from memwatch.core.owners import Owner, OwnerTotal, build_totals, find_caps
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.history.tier import Aggregates, RowBlock, TierSpec
from memwatch_monitor.history.tiers import TIER_SPECS, History

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


# Holders of each kind with a history: the recorded ones, and those recorded last. The oldest of the others is
# dropped. A day on which a process ends every five minutes takes 0.6 MB, 1 MB with GPU memory.
MAX_KEPT = 40
MAX_SERIES = MAX_KEPT * len(HOLDER_KINDS) * len(FIGURES)


class HolderHistory:
    """Bounded history of holders. Call `add` from one thread; everything else is thread-safe.

    A row of the finer tier is one reading, taken at the first tick of its slot.
    """

    def __init__(self, specs: Sequence[TierSpec] = TIER_SPECS[1:]) -> None:
        self.history: History = History(specs, MAX_SERIES)
        self._lock = threading.Lock()
        # Titles of the kept holders by kind and id, in the order of their last reading.
        self._titles: dict[HolderKind, dict[str, str]] = {kind: {} for kind in HOLDER_KINDS}
        self._recorded: dict[HolderKind, frozenset[str]] = dict.fromkeys(HOLDER_KINDS, frozenset())
        # Processes that earlier runs recorded, by process id.
        self._restored: dict[str, str] = {}
        self._next = 0.0

    def add(self, boottime: float, snapshot: Snapshot) -> None:
        """Record the largest holders, once in each slot of the finer tier."""
        if boottime < self._next or not snapshot.processes:
            return
        step = self.history.tiers[0].spec.step_seconds
        self._next = (boottime // step + 1) * step
        row: dict[str, float] = {}
        for kind in HOLDER_KINDS:
            for holder in self._choose(kind, snapshot):
                row |= {
                    series_name(kind, holder.id, figure): size for figure, size in build_figures(holder.of).items()
                }
        if row:
            self.history.add(boottime, row)

    def resize(self, specs: Sequence[TierSpec]) -> None:
        """Use other lengths from now on, with as many rows as fit."""
        self.history = self.history.resized(specs)

    def names(self) -> list[str]:
        """Return the names of all series."""
        return self.history.names()

    def current_names(self) -> list[str]:
        """Return the names of the series of holders in the last reading."""
        parsed = [(name, parse_name(name)) for name in self.names()]
        return [name for name, parts in parsed if parts and parts[1] in self._recorded[parts[0]]]

    def titles(self) -> Mapping[str, str]:
        """Return a title by kind and id, such as `process.4321-1764115200`: "train.py"."""
        with self._lock:
            return {f"{kind}.{one}": title for kind, found in self._titles.items() for one, title in found.items()}

    def find(self, name: str) -> str:
        """Return the full name of a series: `process.PID.FIGURE` is the latest recorded process with that id."""
        parsed = parse_name(name)
        if parsed is None or parsed[0] != "process" or "-" in parsed[1]:
            return name
        with self._lock:
            latest = [one for one in self._titles["process"] if one.startswith(f"{parsed[1]}-")]
        return series_name("process", latest[-1], parsed[2]) if latest else name

    def written_since(self, tier: int, number: int) -> tuple[RowBlock, int]:
        """Return the rows of a tier from `number` on, without series that have no value in them."""
        rows, coming = self.history.written_since(tier, number)
        return RowBlock(rows.times, {name: one for name, one in rows.columns.items() if has_values(one)}), coming

    def restore(self, past: Sequence[Iterable[RowBlock]], titles: Mapping[str, str]) -> tuple[int, ...]:
        """Load rows of earlier runs, as `History.restore`, and the titles of their holders."""
        loaded = self.history.restore(past)
        self.history.drop([name for name in self.history.names() if parse_name(name) is None])
        with self._lock:
            for name in self.history.names():
                if parsed := parse_name(name):
                    kind, holder, _ = parsed
                    self._titles[kind][holder] = titles.get(f"{kind}.{holder}", "")
            self._restored = {one.partition("-")[0]: one for one in self._titles["process"]}
            dropped = [(kind, one) for kind in HOLDER_KINDS for one in self._drop_oldest(kind)]
        self._forget(dropped)
        return loaded

    def _choose(self, kind: HolderKind, snapshot: Snapshot) -> Sequence[Holder]:
        holders = list_holders(snapshot, kind, self._recorded[kind])
        if kind == "process" and self._restored:
            holders = [self._as_restored(one) for one in holders]
        chosen = choose(holders, self._recorded[kind])
        self._recorded[kind] = frozenset(one.id for one in chosen)
        with self._lock:
            titles = self._titles[kind]
            for one in chosen:
                titles.pop(one.id, None)
                titles[one.id] = one.title
            dropped = [(kind, name) for name in self._drop_oldest(kind)]
        self._forget(dropped)
        return chosen

    def _as_restored(self, one: Holder) -> Holder:
        """Continue the curve of a process that an earlier run has recorded."""
        other = self._restored.get(one.id.partition("-")[0])
        if other is None or one.id in self._titles["process"] or not is_same_process(one.id, other):
            return one
        return one._replace(id=other)

    def _drop_oldest(self, kind: HolderKind) -> list[str]:
        titles = self._titles[kind]
        oldest = list(titles)[: max(0, len(titles) - MAX_KEPT)]
        for name in oldest:
            del titles[name]
        return oldest

    def _forget(self, dropped: Iterable[tuple[HolderKind, str]]) -> None:
        names = [[series_name(kind, one, figure) for figure in FIGURES] for kind, one in dropped]
        self.history.drop(chain.from_iterable(names))


def has_values(aggregates: Aggregates) -> bool:
    return any(value == value for value in aggregates.minimum)
