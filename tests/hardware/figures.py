"""Figures of one GPU and one process, from a snapshot of the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

# Bytes, or the reason why there are none.
Figure = int | str
Figures = Mapping[str, Figure]

MEMORY, PROCESS, HEADROOM, CERTAIN, RAM = "memory", "process", "headroom", "headroom_certain", "ram"
# Shares of a device whose bytes are its memory; others, such as a limit, repeat a part of it.
SHARE_KINDS = frozenset({"cuda_pool", "gtt", "gpu_buffers"})
NO_FIGURE = "no figure"


class GpuPlace(Struct, frozen=True):
    """The device of the daemon that is tested, and the pools and shares that its memory is in."""

    device: str
    architecture: str
    targets: tuple[str, ...]
    title: str

    has_pool: bool = True
    is_partitioned: bool = False

    @property
    def is_unified(self) -> bool:
        """True if its allocations may be taken from System RAM."""
        return self.architecture == "unified"

    @property
    def is_bounded(self) -> bool:
        """False for a carve-out: the driver takes memory elsewhere, which it does not report."""
        return self.architecture != "carveout"

    @property
    def counts_host_memory(self) -> bool:
        """True if pinned host memory may be among its bytes (OGKM gpu_rmapi.c; amdgpu's GTT)."""
        return "⊂ System RAM" in self.title


def find_device(snapshot: Any, pci: str | None, vendor: str) -> Any:
    """Return the device at this PCI address, else the only one of this vendor without an address, else None."""
    devices = [device for device in snapshot["devices"] if device["vendor"] == vendor]
    for device in devices:
        if pci and device["pci"] and parse_pci(device["pci"]) == parse_pci(pci):
            return device
    unaddressed = [device for device in devices if not device["pci"]]
    return unaddressed[0] if len(unaddressed) == 1 else None


def parse_pci(address: str) -> tuple[int, ...]:
    """Parse an address: NVML writes eight digits of the domain, others four."""
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return tuple(int(part, 16) for part in (domain, bus, device, function or "0"))


def find_place(snapshot: Any, device: Any) -> GpuPlace:
    """Return the pools of the device other than System RAM, and its shares."""
    labels = {pool["id"]: pool["label"] for pool in snapshot["pools"] if pool["id"] != "ram"}
    shares = {share["id"]: share for share in snapshot["shares"] if share["device"] == device["id"]}
    own = [place for place in device["allocates_from"] if place in labels or place in shares]
    own += [name for name, share in shares.items() if share["kind"] in SHARE_KINDS and name not in own]
    titles = [labels.get(name) or shares[name]["relation"] for name in own]
    return GpuPlace(
        device["id"],
        device["architecture"],
        tuple(own),
        " + ".join(titles) or "GPU memory",
        has_pool=any(name in labels or shares[name]["within"] != "ram" for name in own),
        is_partitioned=any(name in shares and shares[name]["kind"] == "mig_instance" for name in own),
    )


def read_figures(snapshot: Any, place: GpuPlace, pid: int) -> Figures:
    """Return all figures of the device, and of the process on it."""
    parts = {part["id"]: part for part in (*snapshot["pools"], *snapshot["shares"])}
    device = next((one for one in snapshot["devices"] if one["id"] == place.device), None)
    if device is None:
        return dict.fromkeys((MEMORY, PROCESS, HEADROOM, CERTAIN, RAM), "the device is not listed")
    used = [figure_in(parts[name], "used_bytes") if name in parts else "not listed" for name in place.targets]
    return {
        MEMORY: sum_figures(used),
        PROCESS: process_bytes(snapshot, device, place, pid),
        HEADROOM: figure_in(device, "headroom_after_reclaim_bytes"),
        CERTAIN: figure_in(device, "headroom_bytes"),
        RAM: figure_in(parts["ram"], "used_bytes") if "ram" in parts else NO_FIGURE,
    }


def process_bytes(snapshot: Any, device: Any, place: GpuPlace, pid: int) -> Figure:
    """Return the device memory of a process; 0 if a complete list does not have it."""
    held: Any = next((one["device_bytes"] for one in snapshot["processes"] if one["pid"] == pid), {})
    figures = [figure_in(held, name) for name in place.targets if name in held]
    listed = figure_in(device, "process_list")
    return sum_figures(figures) if figures or listed == "complete" else f"process list: {listed}"


def figure_in(part: Any, name: str) -> Figure:
    value: Figure | None = part.get(name)
    return part.get("absent", {}).get(name, NO_FIGURE) if value is None else value


def sum_figures(figures: Iterable[Figure]) -> Figure:
    """Add figures; the first reason wins."""
    total = 0
    for figure in figures:
        if isinstance(figure, str):
            return figure
        total += figure
    return total
