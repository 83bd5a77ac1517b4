"""Collectors that read the target of an alert, and those that stopped answering. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memwatch.core.model import Device
from memwatch.core.snapshot import CollectorState, Level, Snapshot

STOPPED: tuple[CollectorState, ...] = ("failing", "stalled")
NOT_ANSWERING: tuple[CollectorState, ...] = (*STOPPED, "starting")
# A collector that has not answered for this time after a start hangs.
STARTING_SECONDS = 30.0
# The first word of a source, where that is not the name of a collector.
COLLECTORS: Mapping[str, tuple[str, ...]] = {
    "amd-smi": ("amdsmi", "amd_cli"),
    "cgroup1": ("cgroup",),
    "cgroup2": ("cgroup",),
    "cgroup": ("dmem",),
    "debugfs": ("drm",),
    "fdinfo": ("drm",),
    "ioreg": ("apple",),
    "lxcfs": ("meminfo",),
    "psutil": ("psutil_host",),
    "rocm-smi": ("amd_cli",),
    "sysfs": ("amdgpu", "drm", "numa"),
}
# Collectors that read pools and limits; the others can stop without hiding any.
OF_MEMORY = frozenset(name for names in COLLECTORS.values() for name in names) | {
    "nvml",
    "nvmap",
    "tegra",
    "tegrastats",
}
VENDORS: Mapping[str, str] = {"NVIDIA": "nvml", "AMD": "amdgpu", "Intel": "drm", "Apple": "apple"}
_WORD = re.compile(r"[^: ]*")


def source_word(source: str) -> str:
    """Return the first word of a source: "nvml" of "nvml:memory_info_v2"."""
    match = _WORD.match(source)
    return match[0] if match else ""


def source_of(target: str, snapshot: Snapshot) -> str:
    """Return the first word of the source of a pool or a share, "" for another target."""
    found = [pool.source for pool in snapshot.pools if pool.id == target]
    found += [share.source for share in snapshot.shares if share.id == target]
    return source_word(found[0]) if found else ""


def source_of_device(device: Device) -> str:
    return VENDORS.get(device.vendor, "")


def collectors_of(source: str) -> tuple[str, ...]:
    """Return the collectors that may have read a figure, by the first word of its source."""
    return COLLECTORS.get(source, (source,))


def collector_states(snapshot: Snapshot) -> Mapping[str, CollectorState]:
    return {one.name: one.state for one in snapshot.collectors}


def waiting_of(source: str, states: Mapping[str, CollectorState], silent_seconds: float) -> tuple[str, ...]:
    """Return the collectors that may have read a figure, and that do not answer.

    `silent_seconds`: time since the figure was read, or since memwatchd started. Collectors need time to start.
    """
    waiting = STOPPED if silent_seconds < STARTING_SECONDS else NOT_ANSWERING
    return tuple(name for name in collectors_of(source) if states.get(name) in waiting)


def levels_by_collector(snapshot: Snapshot, least: Level) -> Mapping[str, Level]:
    """Return the highest level, from `least` on, of the targets that each collector reads."""
    found: dict[str, Level] = {}
    for one in snapshot.pressure:
        if one.level >= least:
            for name in collectors_of(source_of(one.target, snapshot)):
                found[name] = max(one.level, found.get(name, one.level))
    return found
