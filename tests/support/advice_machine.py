"""Machines with one GPU, for tests of advice."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.model import Absent, Architecture, Device, Pool, PoolKind, Quality
from memwatch.library.machine_record import Machine

GIB = 1 << 30
RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 64 * GIB, GIB, 63 * GIB, "test", Quality.MEASURED)
VRAM = replace(RAM, id="gpu0.vram", kind=PoolKind.VRAM, size_bytes=4 * GIB, used_bytes=0, available_bytes=4 * GIB)


def machine(
    vendor: str,
    architecture: Architecture,
    name: str | Absent = Absent.NOT_AVAILABLE,
    *,
    gpu: str = "",
    gfx: str = "",
    ram: Pool = RAM,
    cpus: int | Absent = 16,
) -> Machine:
    own = architecture is Architecture.DISCRETE
    device = Device(
        "gpu0",
        vendor,
        gpu or f"{vendor} GPU",
        architecture,
        allocates_from=("gpu0.vram" if own else "ram",),
        details={"gfx": gfx} if gfx else {},
    )
    pools = (ram, VRAM) if own else (ram,)
    return Machine("host", name, architecture.value, "", pools, (), (device,), True, 0.0, cpus)
