"""Readings of drivers that are called and not read from files: NVML and tegrastats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.reading.sampler import Sampler
from memwatch.monitor.report.file_redaction import cgroup_path
from memwatch.monitor.report.text_redaction import TextRedactor

Json = Any

READINGS = ("nvml", "tegrastats")
# The first reading takes up to 2 s; sensors are read in turns of some seconds.
FIRST_SECONDS, TURNS_SECONDS = 5.0, 4.0


def read_drivers(entries: Sequence[CollectorEntry], names: TextRedactor) -> dict[str, Json]:
    """Call the drivers for some seconds. Return each reading, or the state and error of its collector."""
    drivers = [entry for entry in entries if entry.name in READINGS]
    sampler = Sampler(drivers, SystemClock())
    sampler.start()
    try:
        sampler.wait_for_first(FIRST_SECONDS)
        findings, statuses = sampler.gather()
        until = time.monotonic() + TURNS_SECONDS
        while any(status.state == "ok" for status in statuses) and time.monotonic() < until:
            time.sleep(0.5)
            findings, statuses = sampler.gather()
    finally:
        sampler.stop()
    found: dict[str, Json] = {}
    for status in statuses:
        reading = getattr(findings, status.name)
        if reading is not None and status.state == "ok":
            found[status.name] = {"reading": redact_reading(to_builtins(reading), names)}
        else:
            found[status.name] = {"state": status.state, "error": names.text(status.error or "")}
    return found


def redact_reading(value: Json, names: TextRedactor) -> Json:
    """Return the reading with process ids, cgroups, UUIDs and names replaced."""
    if isinstance(value, dict):
        return {key: _field(str(key), part, names) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redact_reading(part, names) for part in value]
    return names.text(value) if isinstance(value, str) else value


def _field(key: str, value: Json, names: TextRedactor) -> Json:
    if key == "pid" and isinstance(value, int):
        return names.redactor.pid(value)
    if key == "cgroup" and isinstance(value, str):
        return cgroup_path(names, value)
    return redact_reading(value, names)
