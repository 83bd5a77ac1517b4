"""What the kernel's graphics drivers said at one moment. No judgement: that is `accounting`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.model import Absent, Bytes, Words

# Which keys the figures of a client come from: drm-resident-*, drm-memory-* (the older word for the same), or
# drm-total-*, which also counts buffers without memory behind them and so is an upper bound; or amdxdna's own keys
# *-alloc, because its drm-total-memory has some of its buffers in it twice (amdxdna_pci_drv.c).
Basis = Literal["resident", "memory", "total", "alloc"]


class DrmRegion(Struct, frozen=True):
    """Memory of a card's own, as a counter of the whole device tells it; clients never add up to it."""

    name: str
    size_bytes: int
    used_bytes: Bytes
    source: str


class DrmCard(Struct, frozen=True):
    """A card of /sys/class/drm, or an NPU of /sys/class/accel. `place` is stable: its PCI address, or its platform
    device's name.

    `pdev` is None for the GPU of a system on a chip. `nodes` are the names of its device files (`card0`,
    `renderD128`), which tell whose client is whose where there is no PCI address. The ids are four hexadecimal
    digits. `compatible` is the chip's own word for the GPU, from the device tree; `model` what people call it,
    from the list of PCI ids that most systems have.
    """

    name: str
    driver: Words
    place: str
    pdev: str | None
    nodes: tuple[str, ...]
    vendor_id: Words = Absent.NOT_SUPPORTED
    device_id: Words = Absent.NOT_SUPPORTED
    compatible: Words = Absent.NOT_SUPPORTED
    regions: tuple[DrmRegion, ...] = ()
    model: Words = Absent.NOT_AVAILABLE


class DrmClient(Struct, frozen=True):
    """One client of a driver, once, however many descriptors and processes hold it: `pids` are all of them.

    `client_id` is the address space's id (pasid) before Linux 5.19. `node` is the device file that was opened.
    `resident` is by region (`vram`, `gtt`, `system0`, `memory`, …) and in bytes, from the keys `basis` names;
    no `basis` means that the driver prints no memory at all, which is not the same as 0. `shared` is the part
    that others may hold too. `other` has further figures in bytes by their own key: `amd-evicted-vram`,
    `panthor-resident-memory`, …
    """

    driver: str
    pdev: str | None
    node: str
    client_id: int
    pids: tuple[int, ...]
    basis: Basis | None
    resident: Mapping[str, int]
    shared: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, int] = field(default_factory=dict)


class DrmReading(Struct, frozen=True, eq=False):
    """Everything of one round; each is only itself, so what is made of it can be kept.

    `seen`: processes there were, kernel threads not counted. `unreadable`: those of them that could not be
    looked into, so clients may be missing and what is summed up is a lower bound. `rejected` counts lines by
    key that were no figure and were left out. `gpu_active_bytes` and `gpu_reclaim_bytes` are the lines of
    /proc/meminfo that the newest kernels have; a second witness, and part of no sum. `npus`: neural processing
    units. `mute` are device files whose driver says nothing of clients (i915 before Linux 5.19, ivpu before it told
    of memory), with the processes that have them open: what these hold is not known.
    """

    cards: tuple[DrmCard, ...]
    clients: tuple[DrmClient, ...]
    seen: int
    unreadable: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    gpu_active_bytes: Bytes = Absent.NOT_SUPPORTED
    gpu_reclaim_bytes: Bytes = Absent.NOT_SUPPORTED
    npus: tuple[DrmCard, ...] = ()
    mute: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every process was looked into."""
        return self.unreadable == 0
