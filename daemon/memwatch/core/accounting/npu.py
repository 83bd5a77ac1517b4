"""Neural processing units. They have no dedicated memory: their clients hold pages of System RAM."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import NpuMemory
from memwatch.core.accounting.drm import GpuContext, buffers_share, held_by_pid, in_system_ram, most_by_pid
from memwatch.core.accounting.drm_architecture import select_npus
from memwatch.core.findings import Findings
from memwatch.core.model import ShareKind, find_system_ram
from memwatch.core.snapshot import Machine


def build_npus(found: Findings) -> list[NpuMemory]:
    """Return the NPUs that the kernel's drivers report; an empty list if System RAM is unknown."""
    ram = find_system_ram(found.pools)
    if found.drm is None or ram is None:
        return []
    npus, machine = select_npus(found.drm), found.machine or Machine()
    with_memory: list[NpuMemory] = []
    for at, npu in enumerate(npus):
        place = GpuContext(f"npu{at}", "" if len(npus) == 1 else f" {at}", ram, machine, found.drm)
        if system := in_system_ram(npu, place):
            share = replace(
                buffers_share(place, system),
                kind=ShareKind.NPU_BUFFERS,
                label=f"NPU buffers{place.number}",
                device=None,
            )
            with_memory.append(NpuMemory((share,), held_by_pid(npu, None, share), most_by_pid(npu, None, share)))
    return [npu.as_stale() for npu in with_memory] if "drm" in found.stale else with_memory
