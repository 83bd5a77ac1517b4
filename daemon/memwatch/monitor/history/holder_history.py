"""History of the largest processes, units and containers, in tiers as long as the coarser ones of the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.column import Aggregates
from memwatch.monitor.history.holders import (
    FIGURES,
    HOLDER_KINDS,
    Holder,
    HolderKind,
    build_figures,
    choose,
    is_same_process,
    list_holders,
    parse_name,
    series_name,
)
from memwatch.monitor.history.tier import RowBlock, TierSpec
from memwatch.monitor.history.tiers import TIER_SPECS, History

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
