"""The GPU of an Apple chip: its working set lies in the one memory that all parts of the chip share."""

from __future__ import annotations

from memwatch.accounting.device_memory import Holding
from memwatch.drivers.apple.records import AppleReading, Metal
from memwatch.findings import Findings
from memwatch.model import Absent, Architecture, Bytes, Device, Pool, Quality, Share, ShareKind, ram_of, total_of

EXPLANATIONS = {
    Architecture.UNIFIED: (
        "GPU memory is part of Unified memory: what Metal allocates comes out of the same memory as all else."
    ),
    Architecture.UNKNOWN: "A GPU is here, and how its memory relates to System RAM could not be established.",
}
NO_LIMIT = "How much the GPU may use is known to Metal alone: pyobjc-framework-Metal is not installed."


def holdings_of(found: Findings, first: int) -> list[Holding]:
    """One device for the chip's GPU, however many accelerators the registry lists for it."""
    reading = found.apple
    if reading is None or not reading.accelerators:
        return []
    holding = holding_of(reading, f"gpu{first}", ram_of(found.pools))
    return [holding.aged()] if "apple" in found.stale else [holding]


def holding_of(reading: AppleReading, name: str, ram: Pool | None) -> Holding:
    architecture, evidence = verdict_of(reading)
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
        headroom_bytes=Absent.NOT_AVAILABLE if share else Absent.NOT_SUPPORTED,
        evidence=evidence,
        notes=(NO_LIMIT,) if share and isinstance(share.limit_bytes, Absent) else (),
    )
    return Holding(device=device, explanation=EXPLANATIONS[architecture], shares=(share,) if share else ())


def verdict_of(reading: AppleReading) -> tuple[Architecture, tuple[str, ...]]:
    """Metal's own word, or else the chip's maker: every chip of Apple's has one memory."""
    if isinstance(reading.metal, Metal) and reading.metal.has_unified_memory:
        return Architecture.UNIFIED, ("Metal says that the device has unified memory",)
    if isinstance(reading.chip, str) and reading.chip.startswith("Apple "):
        return Architecture.UNIFIED, (f"the processor is an {reading.chip}",)
    return Architecture.UNKNOWN, ("the processor is not of Apple's making",)


def working_set(reading: AppleReading, name: str) -> Share:
    """What is resident for the GPU. What was allocated ("Alloc system memory") may exceed all there is."""
    return Share(
        id=f"{name}.metal",
        kind=ShareKind.METAL_WORKING_SET,
        label="Metal working set",
        within="ram",
        used_bytes=total_of([accelerator.in_use_bytes for accelerator in reading.accelerators]),
        source="ioreg:In use system memory",
        quality=Quality.MEASURED,
        limit_bytes=limit_of(reading),
        device=name,
    )


def limit_of(reading: AppleReading) -> Bytes:
    """Metal's figure follows the administrator's setting, so it comes first."""
    if isinstance(reading.metal, Metal) and isinstance(reading.metal.working_set_bytes, int):
        return reading.metal.working_set_bytes
    limit = reading.wired_limit_bytes
    return limit if isinstance(limit, int) else Absent.NOT_SUPPORTED
