"""Prometheus metrics of a snapshot: base units, one name for each fact, no sample for unknown values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from memwatch.build_info import UNKNOWN
from memwatch.core.config_state import ConfigState
from memwatch.core.reading.identity import Identity
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.state import AlertState, Key
from memwatch.monitor.between_scrapes import BetweenScrapes
from memwatch.monitor.history.disk.files import FilesStatus
from memwatch.monitor.incidents.records import Incident
from memwatch.monitor.notify.outbox.outbox import OutboxFigures
from memwatch_web.metrics.daemon_families import (
    Notifier,
    ProcessFigures,
    alert_families,
    collector_families,
    config_families,
    daemon_families,
    history_families,
    incident_families,
    list_families,
    machine_families,
    notification_families,
    tick_families,
)
from memwatch_web.metrics.device_families import device_families
from memwatch_web.metrics.engine_families import engine_families
from memwatch_web.metrics.extreme_families import extreme_families
from memwatch_web.metrics.neighbour_families import neighbour_families
from memwatch_web.metrics.owner_families import DEFAULT_OWNERS, OwnerSelection, owner_families
from memwatch_web.metrics.pool_families import pinned_families, pool_families, share_families, swap_families
from memwatch_web.metrics.pressure_families import kernel_families, pressure_families
from memwatch_web.metrics.process_families import ghost_families, process_families
from memwatch_web.metrics.pushed_alerts import pushed_family
from memwatch_web.metrics.samples import PREFIX, gauge

# More than any machine has: a limit on what one machine can cost a Prometheus server.
MAX_SERIES = 5000


class Exporter(Collector):
    """Converter of the latest snapshot to metric families. It runs at most once per tick and content type."""

    def __init__(
        self,
        version: str,
        alert_states: Callable[[], Mapping[Key, AlertState]],
        notifiers: Callable[[], Sequence[Notifier]] = tuple,
        max_processes: Callable[[], int] = lambda: 0,
        outbox: Callable[[], OutboxFigures | None] = lambda: None,
        files: Callable[[], FilesStatus | None] = lambda: None,
        process: Callable[[], ProcessFigures | None] = lambda: None,
        between_scrapes: BetweenScrapes | None = None,
        identity: Identity | None = None,
        max_owners: Callable[[], int] = lambda: DEFAULT_OWNERS,
        labels: Callable[[], Mapping[str, str]] = dict,
        revision: str = UNKNOWN,
        incidents: Callable[[], Sequence[Incident]] = tuple,
        config: Callable[[], ConfigState | None] = lambda: None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self._build = {"version": version, "revision": revision}
        self._watches = alert_states
        self._notifiers = notifiers
        self._max_processes = max_processes
        self._outbox = outbox
        self._files = files
        self._process = process
        self._between = between_scrapes
        self._identity = identity
        self._max_owners = max_owners
        self._labels = labels
        self._incidents = incidents
        self._config = config
        self._owners = OwnerSelection()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, snapshot: Snapshot, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        self.snapshot = snapshot
        return encode(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples, within MAX_SERIES."""
        if self.snapshot is not None:
            yield from limit_series(family for family in self.families(self.snapshot) if family.samples)

    def families(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Yield all families, including those without samples. The last ones are dropped first."""
        between = self._between
        yield from machine_families(snapshot, self._identity, self._labels())
        yield from pool_families(snapshot)
        yield from swap_families(snapshot)
        yield from pinned_families(snapshot)
        yield from tick_families(snapshot, between)
        yield from self._build_families(snapshot)
        yield from alert_families(self._watches())
        yield from incident_families(self._incidents())
        notifiers = self._notifiers()
        yield from notification_families(notifiers, self._outbox() if notifiers else None)
        yield pushed_family(snapshot, filter(None, (one.in_place_of_prometheus() for one in notifiers)))
        yield from collector_families(snapshot)
        yield from list_families(snapshot)
        yield from history_families(self._files())
        yield from daemon_families(self._process())
        yield from config_families(self._config())
        yield from kernel_families(snapshot, between.kills if between else None)
        yield from device_families(snapshot)
        yield from ghost_families(snapshot)
        yield from engine_families(snapshot)
        yield from neighbour_families(snapshot)
        if between is not None:
            yield from extreme_families(snapshot, between.recent)
        yield from share_families(snapshot)
        yield from pressure_families(snapshot, between.levels if between else None)
        if most := self._max_owners():
            yield from owner_families(snapshot, self._owners, most)
        if most := self._max_processes():
            yield from process_families(snapshot, most)

    def _build_families(self, snapshot: Snapshot) -> Iterator[Metric]:
        labels = {**self._build, "simulated": "true" if snapshot.simulated else "false"}
        text = "Version and commit of memwatchd, and whether its data is simulated."
        yield InfoMetricFamily(PREFIX + "build", text, labels)


def limit_series(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield families while they have at most MAX_SERIES samples together, and the number of samples left out.

    A family that does not fit is left out as a whole: a part of it would give wrong sums.
    """
    left, dropped = MAX_SERIES, 0
    for family in families:
        if len(family.samples) <= left:
            left -= len(family.samples)
            yield family
        else:
            dropped += len(family.samples)
    text = f"Number of series left out of this scrape because it is limited to {MAX_SERIES}."
    yield gauge("series_dropped", text, [((), dropped)])


@lru_cache(maxsize=32)
def negotiate_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return the encoder and the content type for an Accept header."""
    try:
        return choose_encoder(accept)
    except TypeError:  # prometheus-client 0.26 compares a non-numeric version with (1, 0, 0)
        return choose_encoder("")


PLAIN_CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
