"""One reading of macOS's tools, as records. They are interpreted in `accounting`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Words

PressureLevel = Literal["normal", "warning", "critical"]


class Accelerator(Struct, frozen=True):
    """A GPU of the I/O registry.

    `in_use_bytes` is system memory that is resident for it. `allocated_bytes` was requested, may exceed the
    machine's memory, and does not measure use.
    """

    driver: str
    model: Words
    in_use_bytes: Bytes
    allocated_bytes: Bytes


class VmStat(Struct, frozen=True):
    """vm_stat in bytes. The compressor uses `compressor_bytes` to store `compressed_bytes` of pages."""

    page_bytes: int
    free_bytes: int
    active_bytes: int
    inactive_bytes: int
    speculative_bytes: int
    wired_bytes: int
    compressor_bytes: Bytes
    compressed_bytes: Bytes
    purgeable_bytes: Bytes
    anonymous_bytes: Bytes


class Metal(Struct, frozen=True):
    """Metal's properties of the default device.

    Its allocated size is left out: it covers only the process that reads it.
    """

    has_unified_memory: bool
    working_set_bytes: Bytes


class AppleReading(Struct, frozen=True):
    """One reading. `wired_limit_bytes` is absent while the system's default limit applies."""

    chip: Words
    model: Words
    memory_bytes: Bytes
    accelerators: tuple[Accelerator, ...]
    pressure: PressureLevel | Absent
    wired_limit_bytes: Bytes
    vm: VmStat | Absent
    metal: Metal | Absent
