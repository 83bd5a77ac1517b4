"""What macOS said at one moment. No judgement: that is `accounting`'s."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.model import Absent, Bytes, Words

PressureLevel = Literal["normal", "warning", "critical"]


class Accelerator(Struct, frozen=True):
    """A GPU of the I/O registry.

    `in_use_bytes` of system memory are resident for it. `allocated_bytes` were asked for, may exceed the memory
    there is, and are nobody's use.
    """

    driver: str
    model: Words
    in_use_bytes: Bytes
    allocated_bytes: Bytes


class VmStat(Struct, frozen=True):
    """vm_stat in bytes. `compressor_bytes` of memory hold `compressed_bytes` of pages."""

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
    """What Metal says of the default device. What a process of ours has allocated there says nothing of others."""

    has_unified_memory: bool
    working_set_bytes: Bytes


class AppleReading(Struct, frozen=True):
    """Everything of one round. `wired_limit_bytes` is absent while the system's own rule is in force."""

    chip: Words
    model: Words
    memory_bytes: Bytes
    accelerators: tuple[Accelerator, ...]
    pressure: PressureLevel | Absent
    wired_limit_bytes: Bytes
    vm: VmStat | Absent
    metal: Metal | Absent
