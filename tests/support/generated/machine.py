"""Generated machines: the findings of every maker at once, and their way through the daemon's engine."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from memwatch.core.accounting.compose import Composer
from memwatch.core.findings import Findings
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.self_usage import SelfUsageReader
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch_monitor.feature import MonitorRules
from support.fakes import FakeClock
from support.generated.amd import draw_amd
from support.generated.apple import draw_apple
from support.generated.choices import Choices
from support.generated.drm import draw_drm
from support.generated.figures import GIB, Figures, draw_figures
from support.generated.host import (
    Host,
    draw_cgroups,
    draw_host,
    draw_memory,
    draw_nodes,
    draw_processes,
    draw_zram,
)
from support.generated.limits import draw_dmem
from support.generated.nvidia import draw_nvml, draw_tegra
from support.monitors import create_monitor

STALE_PERCENT = 5


class GeneratedMachine(Struct, frozen=True):
    """A machine by the findings of its collectors, and those of the tick before. `is_positive`: none reports 0."""

    host: Host
    findings: tuple[Findings, ...]
    before: tuple[Findings, ...]
    is_positive: bool


def draw_machine(choose: Choices) -> GeneratedMachine:
    figures = draw_figures(choose)
    host = draw_host(figures)
    found = [
        Findings(machine=host.machine),
        draw_memory(figures, host),
        draw_nodes(figures, host),
        draw_cgroups(figures, host),
        draw_zram(figures, host),
        draw_processes(figures, host),
        *draw_gpus(figures, host),
    ]
    now = tuple(one.as_stale() if choose.chance(STALE_PERCENT) else one for one in found)
    before = tuple(choose.pick((one, one.as_stale(), Findings())) for one in now)
    return GeneratedMachine(host, now, before, figures.is_positive)


def draw_gpus(figures: Figures, host: Host) -> list[Findings]:
    choose = figures.choose
    found = []
    if choose.chance(55):
        found.append(Findings(nvml=draw_nvml(figures, host)))
    if choose.chance(20):
        found.append(draw_tegra(figures, host))
    if choose.chance(40):
        found.append(draw_amd(figures, host))
    if choose.chance(40):
        found.append(Findings(drm=draw_drm(figures, host)))
    if choose.chance(10):
        found.append(Findings(apple=draw_apple(figures, host)))
    if choose.chance(35):
        found.append(Findings(dmem=draw_dmem(figures, find_regions(found, host))))
    return found


def find_regions(found: list[Findings], host: Host) -> list[tuple[str, int]]:
    """Return the regions of device memory that the kernel has, with their sizes."""
    regions = [("drm/0000:99:00.0/vram0", GIB)]
    for one in found:
        for gpu in one.nvml.gpus if one.nvml else ():
            if isinstance(gpu.pci, str):
                size = getattr(gpu.memory, "total_bytes", host.cpu_bytes)
                regions.append((f"nvidia/{gpu.pci}/vidmem", min(size, 1 << 61)))
        for card in one.amdgpu.gpus if one.amdgpu else ():
            size = card.vram.total_bytes if isinstance(card.vram.total_bytes, int) else GIB
            regions.append((f"drm/{card.card.pci}/vram", size))
        for at in one.drm.cards if one.drm else ():
            regions += [(f"drm/{at.place}/{region.name}", min(region.size_bytes, 1 << 61)) for region in at.regions]
    return regions


class GeneratedSampler:
    """Gatherer of a generated machine: composes its findings, and those of the tick before first."""

    def __init__(self, machine: GeneratedMachine) -> None:
        self.machine = machine
        self.found = Findings()
        self._composer = Composer()

    def gather(self) -> tuple[Findings, tuple[CollectorStatus, ...]]:
        self._composer.compose(self.machine.before)
        self.found = self._composer.compose(self.machine.findings)
        return self.found, ()

    def start(self) -> None: ...

    def moved_bytes(self) -> float:
        return math.inf

    def set_fast(self, is_fast: bool) -> None: ...

    def wait_for_first(self, seconds: float) -> None: ...

    def release(self, _seconds: float) -> list[str]:
        return []

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Tick(NamedTuple):
    """The findings of a machine's first tick, related to each other, and its snapshot: judged and recorded."""

    findings: Findings
    snapshot: Snapshot


def tick(machine: GeneratedMachine) -> Tick:
    sampler = GeneratedSampler(machine)
    identity = Identity("generated", "boot")
    snapshot = create_monitor(sampler, FakeClock(), MonitorRules(), identity, self_usage=_self_usage()).tick()
    return Tick(sampler.found, snapshot)


@cache
def _self_usage() -> SelfUsageReader:
    """Return one reader for all machines of a process: all clocks show the same, so it reads once."""
    return SelfUsageReader()
