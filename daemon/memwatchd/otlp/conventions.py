"""Names of OpenTelemetry's semantic conventions for metrics of memwatchd: `hw.*` and `system.*`.

The conventions describe GPUs with memory of their own. A GPU that uses System RAM has no `hw.gpu.memory.*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch_web.metrics.samples import PREFIX

Instrument = Literal["counter", "gauge", "updowncounter"]
Labels = Mapping[str, str]

ANY_DEVICE = {"device": ".+"}
SYSTEM_RAM = {"kind": "system_ram"}
GPU = {"hw.type": "gpu"}


class Convention(Struct, frozen=True, kw_only=True):
    """A metric by its conventional name. `where`: a regular expression for each label that must match as a whole.

    `attributes` are those of the labels that are kept, by label; `fixed` attributes are the same for all series.
    """

    source: str
    name: str
    unit: str
    instrument: Instrument
    where: Labels = {}
    attributes: Labels = {}
    fixed: Labels = {}

    def selects(self, labels: Labels) -> bool:
        return all(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in self.where.items())

    def attributes_of(self, labels: Labels) -> dict[str, str]:
        return {attribute: labels[label] for label, attribute in self.attributes.items()} | dict(self.fixed)


def _of_device(source: str, name: str, unit: str, instrument: Instrument, fixed: Labels = GPU) -> Convention:
    return Convention(
        source=PREFIX + source,
        name=name,
        unit=unit,
        instrument=instrument,
        where=ANY_DEVICE,
        attributes={"device": "hw.id"},
        fixed=fixed,
    )


def _of_errors(kind: str, error_type: str) -> Convention:
    fixed = {**GPU, "error.type": error_type}
    found = _of_device("driver_memory_errors_total", "hw.errors", "{error}", "counter", fixed)
    return replace(found, where={**ANY_DEVICE, "kind": kind})


def _of_memory(source: str, name: str, where: Labels, state: str = "") -> Convention:
    fixed = {"system.memory.state": state} if state else {}
    return Convention(
        source=PREFIX + source, name=name, unit="By", instrument="updowncounter", where=where, fixed=fixed
    )


CONVENTIONS: tuple[Convention, ...] = (
    _of_device("pool_size_bytes", "hw.gpu.memory.limit", "By", "updowncounter"),
    _of_device("pool_used_bytes", "hw.gpu.memory.usage", "By", "updowncounter"),
    _of_device("device_busy_ratio", "hw.gpu.utilization", "1", "gauge"),
    _of_device("device_temperature_celsius", "hw.temperature", "Cel", "gauge", {}),
    _of_device("device_power_watts", "hw.power", "W", "gauge"),
    _of_errors("ecc_corrected", "corrected"),
    _of_errors("ecc_uncorrected", "uncorrected"),
    _of_memory("pool_size_bytes", "system.memory.limit", SYSTEM_RAM),
    _of_memory("pool_used_bytes", "system.memory.usage", SYSTEM_RAM, "used"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": "ram", "content": "page_cache"}, "cached"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": "ram", "content": "free"}, "free"),
    _of_memory("pool_available_bytes", "system.memory.linux.available", SYSTEM_RAM),
    Convention(
        source=PREFIX + "swap_used_bytes",
        name="system.paging.usage",
        unit="By",
        instrument="updowncounter",
        fixed={"system.paging.state": "used"},
    ),
)


def conventions_for(source: str) -> Iterator[Convention]:
    """Yield the conventional names of a metric's samples, none for most."""
    return (one for one in CONVENTIONS if one.source == source)
