"""NVIDIA's GPUs: a Tegra's own GPU first, then each GPU that NVML reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.accounting import tegra
from memwatch.accounting.device_memory import Holding
from memwatch.accounting.nvidia_architecture import architecture_of
from memwatch.accounting.nvidia_gpu import Place, absent_gpu, holding_of
from memwatch.drivers.nvml.records import GpuReading, NvmlReading
from memwatch.findings import Findings
from memwatch.model import Architecture, Pool, ram_of
from memwatch.snapshot import Machine, Node


def holdings_of(found: Findings, first: int) -> Sequence[Holding]:
    """Return the device memory of all NVIDIA GPUs: a Tegra's own GPU before the GPUs plugged into it."""
    if found.tegra is None:
        return listed_holdings_of(found, first)
    own = tegra.own_gpu(found.nvml)
    others = listed_holdings_of(_without(found, own), first + 1)
    number = f" {first}" if others else ""
    place = Place(f"gpu{first}", number, ram_of(found.pools), found.machine or Machine())
    return [tegra.holding_of(found, found.tegra, own, place), *others]


def _without(found: Findings, own: GpuReading | None) -> Findings:
    if found.nvml is None or own is None:
        return found
    others = tuple(gpu for gpu in found.nvml.gpus if gpu is not own)
    missing = tuple(gpu for gpu in found.nvml.missing if gpu.uuid != own.uuid)
    return replace(found, nvml=replace(found.nvml, gpus=others, missing=missing))


class Made(NamedTuple):
    """Holdings, and all they were made of."""

    reading: NvmlReading | None = None
    machine: Machine | None = None
    nodes: tuple[Node, ...] = ()
    figures: tuple[int | None, ...] = ()
    holdings: Sequence[Holding] = ()

    def is_of(self, found: Findings, figures: tuple[int | None, ...]) -> bool:
        """Whether the same would be made of this."""
        same = self.reading is found.nvml and self.machine is found.machine and self.nodes is found.nodes
        return same and self.figures == figures


# The driver says the same most of the time, and eight GPUs are a fifth of a tick.
_made = Made()


def listed_holdings_of(found: Findings, first: int) -> Sequence[Holding]:
    """Return the GPUs that NVML reports. GPUs that NVML stopped reporting stay, without figures."""
    global _made
    if found.nvml is None:
        return ()
    ram, stale = ram_of(found.pools), "nvml" in found.stale
    figures = (first, stale, ram.size_bytes if ram else None)
    if _made.is_of(found, figures):
        return _made.holdings
    holdings = _holdings_of(found, found.nvml, ram, first)
    if stale:
        holdings = [holding.aged() for holding in holdings]
    if not any(holding.device.architecture is Architecture.UNIFIED for holding in holdings):
        # One of those says how much of System RAM is free, which is another figure each time.
        _made = Made(found.nvml, found.machine, found.nodes, figures, holdings)
    return holdings


def _holdings_of(found: Findings, reading: NvmlReading, ram: Pool | None, first: int) -> list[Holding]:
    machine, size = found.machine or Machine(), ram.size_bytes if ram else None
    gpus = in_stable_order([*reading.gpus, *(absent_gpu(gpu) for gpu in reading.missing)])
    return [
        holding_of(
            gpu,
            Place(f"gpu{at}", "" if len(gpus) == 1 else f" {at}", ram, machine),
            architecture_of(gpu, size, found.nodes, machine.in_container),
            reading,
        )
        for at, gpu in enumerate(gpus, first)
    ]


def in_stable_order(gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """By PCI address: NVML's own order may change with a reboot, and ids must not."""
    return sorted(gpus, key=lambda gpu: (str(gpu.pci), gpu.index))
