"""All series by name: those of the machine, and those of its largest processes, units and containers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memwatch.monitor.history.holder_history import HolderHistory
from memwatch.monitor.history.holders import parse_name
from memwatch.monitor.history.tiers import Bucket, History


class AllSeries(Struct, frozen=True):
    """Queries of both histories. Thread-safe."""

    machine: History
    holders: HolderHistory

    def __len__(self) -> int:
        return len(self.machine)

    @property
    def start(self) -> float:
        """Return the boot time of the oldest row; 0 before the first."""
        return self.machine.start

    @property
    def end(self) -> float:
        """Return the boot time of the newest reading; 0 before the first."""
        return self.machine.end

    def names(self) -> list[str]:
        return [*self.machine.names(), *self.holders.names()]

    def current_names(self) -> list[str]:
        """Return the names of all series but those of holders that are no longer among the largest."""
        return [*self.machine.names(), *self.holders.current_names()]

    def titles(self) -> Mapping[str, str]:
        """Return the titles of holders by kind and id: see `HolderHistory.titles`."""
        return self.holders.titles()

    def find(self, name: str) -> str:
        """Return the full name of a series."""
        return self.holders.find(name)

    def step_seconds(self, name: str) -> float:
        """Return the time between the newest readings of a series."""
        return self._of(name).tiers[0].spec.step_seconds

    def query(self, name: str, start: float, end: float, points: int) -> list[Bucket]:
        """Query one series: see `History.query`. Raises KeyError for an unknown series."""
        return self._of(name).query(name, start, end, points)

    def _of(self, name: str) -> History:
        return self.holders.history if parse_name(name) else self.machine

    def estimate_seconds(self, series: int, start: float, end: float, points: int) -> float:
        """Return at least how long a query of this many series takes: holders have fewer rows."""
        return self.machine.estimate_seconds(series, start, end, points)
