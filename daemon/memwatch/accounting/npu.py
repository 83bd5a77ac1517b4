"""Neural processing units. They have no memory of their own: what their clients hold is pages of System RAM."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.accounting.device_memory import Npu
from memwatch.accounting.drm import Place, buffers_share, held_by_pid, in_system_ram
from memwatch.accounting.drm_architecture import npus_of
from memwatch.findings import Findings
from memwatch.model import ShareKind, ram_of
from memwatch.snapshot import Machine


def found_in(found: Findings) -> list[Npu]:
    """The NPUs that the kernel's own drivers tell of; none where there is no System RAM for them to be in."""
    ram = ram_of(found.pools)
    if found.drm is None or ram is None:
        return []
    npus, machine = npus_of(found.drm), found.machine or Machine()
    told: list[Npu] = []
    for at, npu in enumerate(npus):
        place = Place(f"npu{at}", "" if len(npus) == 1 else f" {at}", ram, machine, found.drm)
        if system := in_system_ram(npu, place):
            share = replace(
                buffers_share(place, system),
                kind=ShareKind.NPU_BUFFERS,
                label=f"NPU buffers{place.number}",
                device=None,
            )
            told.append(Npu((share,), held_by_pid(npu, None, share)))
    return [npu.aged() for npu in told] if "drm" in found.stale else told
