"""The GPU of an Apple chip: its working set is part of the unified memory."""

from __future__ import annotations

from memwatch.core.accounting import device_memory
from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.drivers.apple import AppleReading, Metal
from memwatch.core.findings import Findings
from memwatch.core.model import (
    RAM,
    Absent,
    Architecture,
    Bytes,
    Device,
    Pool,
    Quality,
    Share,
    ShareKind,
    find_system_ram,
    sum_figures,
)

EXPLANATIONS = {
    **device_memory.EXPLANATIONS,
    Architecture.UNIFIED: "GPU memory is part of Unified memory: CPU and GPU share this memory.",
}
NO_LIMIT = "The GPU's memory limit is unknown: only Metal reports it, and pyobjc-framework-Metal is not installed."


def build_device_memories(found: Findings, first: int) -> list[DeviceMemory]:
    """Return one device for the chip's GPU, even if the I/O registry lists several accelerators."""
    reading = found.apple
    if reading is None or not reading.accelerators:
        return []
    device_memory = build_device_memory(reading, f"gpu{first}", find_system_ram(found.pools))
    return [device_memory.as_stale()] if "apple" in found.stale else [device_memory]


def build_device_memory(reading: AppleReading, name: str, ram: Pool | None) -> DeviceMemory:
    architecture, evidence = decide_architecture(reading)
    unified = architecture is Architecture.UNIFIED
    share = working_set(reading, name) if unified and ram else None
    chip = reading.chip if isinstance(reading.chip, str) else None
    model = reading.accelerators[0].model
    device = Device(
        id=name,
        vendor="Apple",
        name=model if isinstance(model, str) else f"{chip or 'Apple'} GPU",
        architecture=architecture,
        driver=reading.accelerators[0].driver,
        allocates_from=(share.id,) if share else (),
        headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE if share else Absent.NOT_SUPPORTED,
        evidence=evidence,
        notes=(NO_LIMIT,) if share and isinstance(share.limit_bytes, Absent) else (),
    )
    return DeviceMemory(device=device, explanation=EXPLANATIONS[architecture], shares=(share,) if share else ())


def decide_architecture(reading: AppleReading) -> tuple[Architecture, tuple[str, ...]]:
    """Decide by Metal's answer, otherwise by the chip vendor: every Apple chip has unified memory."""
    if isinstance(reading.metal, Metal) and reading.metal.has_unified_memory:
        return Architecture.UNIFIED, ("Metal reports unified memory",)
    if isinstance(reading.chip, str) and reading.chip.startswith("Apple "):
        return Architecture.UNIFIED, (f"the processor is an {reading.chip}",)
    return Architecture.UNKNOWN, ("the processor is not an Apple chip",)


def working_set(reading: AppleReading, name: str) -> Share:
    """Memory resident for the GPU. The allocated memory ("Alloc system memory") may exceed all RAM."""
    return Share(
        id=f"{name}.metal",
        kind=ShareKind.METAL_WORKING_SET,
        label="Metal working set",
        within=RAM,
        used_bytes=sum_figures([accelerator.in_use_bytes for accelerator in reading.accelerators]),
        source="ioreg:In use system memory",
        quality=Quality.MEASURED,
        limit_bytes=select_limit(reading),
        device=name,
    )


def select_limit(reading: AppleReading) -> Bytes:
    """Return the limit. Metal's figure is preferred: it follows the administrator's setting."""
    if isinstance(reading.metal, Metal) and isinstance(reading.metal.working_set_bytes, int):
        return reading.metal.working_set_bytes
    limit = reading.wired_limit_bytes
    return limit if isinstance(limit, int) else Absent.NOT_SUPPORTED
