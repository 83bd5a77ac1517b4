"""GPUs of all vendors, and NPUs, through sysfs and fdinfo: memory of processes on each device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.drivers.drm.cards import (
    card_names,
    is_asleep,
    is_wanted,
    npu_names,
    read_cards,
    read_npus,
    regions_by_name,
    reports_memory,
)
from memwatch.core.drivers.drm.clients import ClientScanner, Scan, merge_clients
from memwatch.core.drivers.drm.records import DrmCard, DrmReading, DrmRegion
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable, read_once
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent, Bytes

PERIOD_SECONDS = 5.0
# Period while no process uses a GPU: the first process is noticed after at most this time.
IDLE_PERIOD_SECONDS = 10.0
# Reading fdinfo of xe wakes its GPU (xe_drm_client.c takes a runtime-PM reference, Linux 6.8 to 6.17). While the
# GPU is suspended, no process can allocate on it without waking it. Other drivers answer from data in RAM.
WAKES_WHEN_READ = frozenset({"xe"})
# Number of runs after which cards are read again even if no name changed: a driver may have been rebound.
CARD_ROUNDS = 12

_GPU_ACTIVE = re.compile(rb"^GPUActive: +(\d{1,19}) kB\n", re.MULTILINE)


def parse_gpu_active(meminfo: bytes) -> Bytes:
    """Parse the newest kernels' sum of GPU buffers in System RAM, in bytes."""
    found = _GPU_ACTIVE.search(meminfo)
    return int(found[1]) << 10 if found else Absent.NOT_SUPPORTED


def build_reading(
    cards: tuple[DrmCard, ...],
    scan: Scan,
    gpu_active_bytes: Bytes,
    npus: tuple[DrmCard, ...] = (),
) -> DrmReading:
    rejected: Counter[str] = Counter()
    for held in scan.held:
        rejected.update(held.info.rejected)
    return DrmReading(
        cards=cards,
        clients=merge_clients(scan.held),
        seen=scan.seen,
        unreadable=scan.unreadable,
        rejected=dict(rejected),
        gpu_active_bytes=gpu_active_bytes,
        npus=npus,
        mute=scan.mute,
    )


def pids_with_memory(reading: DrmReading) -> frozenset[int]:
    """Return the processes with GPU or NPU memory: they are listed regardless of their resident size."""
    return frozenset(pid for client in reading.clients if any(client.resident.values()) for pid in client.pids)


class Collector(BaseCollector):
    """Reads every 5 s; every 10 s while no process has a GPU open. The device files are never opened."""

    name = "drm"
    signs: tuple[str, ...] = ("sys/class/drm/", "sys/class/accel/")
    may_block = True

    def __init__(self, roots: Roots, pids: GpuPids) -> None:
        self.period_seconds: float = IDLE_PERIOD_SECONDS
        self._roots = roots
        self._pids = pids
        self._names: list[str] = []
        self._cards: tuple[DrmCard, ...] = ()
        self._npus: tuple[DrmCard, ...] = ()
        self._regions: Mapping[str, tuple[DrmRegion, ...]] = {}
        self._rounds = 0
        self._rescan_cards()
        self._clients = ClientScanner(roots.procfs)

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.gpu_pids)

    def collect(self) -> Findings:
        self._rounds += 1
        if self._rounds % CARD_ROUNDS == 0 or self._names_now() != self._names or not self._has_any():
            self._rescan_cards()
        asleep = {card.name for card in self._cards if is_asleep(self._roots.sysfs, card)}
        scan = self._scan(asleep)
        meminfo = read_once(self._roots.procfs / "meminfo") or b""
        reading = build_reading(self._with_regions(asleep), scan, parse_gpu_active(meminfo), self._npus)
        self._pids.update(self.name, pids_with_memory(reading))
        self.period_seconds = PERIOD_SECONDS if reading.clients else IDLE_PERIOD_SECONDS
        return Findings(drm=reading, rejected=sum(reading.rejected.values()))

    def close(self) -> None:
        self._clients.close()

    def _names_now(self) -> list[str]:
        return card_names(self._roots.sysfs) + npu_names(self._roots.sysfs)

    def _rescan_cards(self) -> None:
        self._names, self._cards, self._npus = self._names_now(), read_cards(self._roots), read_npus(self._roots)
        if not self._has_any():
            self._pids.update(self.name, frozenset())
            raise SourceUnavailable("no DRM device found")

    def _has_any(self) -> bool:
        return bool(self._npus) or any(is_wanted(card) for card in self._cards)

    def _scan(self, asleep: set[str]) -> Scan:
        if not self._npus and not any(reports_memory(card) for card in self._cards):
            return Scan((), 0, 0)
        wakes = [card for card in self._cards if card.name in asleep and card.driver in WAKES_WHEN_READ]
        return self._clients.scan({node for card in wakes for node in card.nodes})

    def _with_regions(self, asleep: set[str]) -> tuple[DrmCard, ...]:
        """Add memory regions to the cards. A suspended card keeps its last figures from the driver."""
        found = regions_by_name(self._roots, self._cards, asleep)
        self._regions = {
            name: self._regions.get(name, ()) if name in asleep and not regions else regions
            for name, regions in found.items()
        }
        return tuple(replace(card, regions=self._regions[card.name]) for card in self._cards)
