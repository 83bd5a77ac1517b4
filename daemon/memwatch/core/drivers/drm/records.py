"""One reading of the kernel's graphics drivers, as records. They are interpreted in `accounting`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes, Words

# Keys from which a client's sizes were read: drm-resident-*, or drm-memory-* (its older name), or drm-total-*, an
# upper bound because it includes buffers without backing memory. For amdxdna its own keys *-alloc, because its
# drm-total-memory counts some buffers twice (amdxdna_pci_drv.c).
Basis = Literal["resident", "memory", "total", "alloc"]


class DrmRegion(Struct, frozen=True):
    """A card's own memory, from a counter of the whole device. The sum of its clients differs from it."""

    name: str
    size_bytes: int
    used_bytes: Bytes
    source: str


class DrmCard(Struct, frozen=True):
    """A card of /sys/class/drm, or an NPU of /sys/class/accel.

    `place` is stable: its PCI address, or its platform device's name. `pdev` is None for the GPU of a system on a
    chip. `nodes` are its device files (`card0`, `renderD128`), which identify a client's card if there is no PCI
    address. The ids are four hexadecimal digits. `compatible` is the GPU's compatible string in the device tree.
    `model` is its product name from the list of PCI ids that most systems have.
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
    """One client of a driver, listed once for all its descriptors and processes (`pids`).

    `client_id` is the address space id (pasid) before Linux 5.19. `node` is the device file that was opened.
    `resident` is in bytes by region (`vram`, `gtt`, `system0`, `memory`, …), from the keys named by `basis`.
    Without a `basis` the driver prints no memory sizes, which is not the same as 0. `shared` is the part that other
    clients may hold too. `other` has further sizes in bytes by their own key: `amd-evicted-vram`,
    `panthor-resident-memory`, … `unread`: regions whose size cannot be read; `resident` lacks it.
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
    unread: tuple[str, ...] = ()


class DrmReading(Struct, frozen=True, eq=False):
    """One reading. Readings are compared by identity, so that derived values can be cached.

    `seen`: number of processes, without kernel threads. `unreadable`: those whose descriptors could not be read, so
    clients may be missing and sums are lower bounds. `rejected` counts, by key, lines without a valid size that
    were left out. `gpu_active_bytes` is a line of /proc/meminfo on the newest kernels. `npus`: neural processing
    units. `mute`: device files whose driver has no client statistics (i915 before Linux 5.19, ivpu before it
    reported memory), with the processes that have them open. The memory of these is unknown.
    """

    cards: tuple[DrmCard, ...]
    clients: tuple[DrmClient, ...]
    seen: int
    unreadable: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    gpu_active_bytes: Bytes = Absent.NOT_SUPPORTED
    npus: tuple[DrmCard, ...] = ()
    mute: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Return True if the descriptors of every process could be read."""
        return self.unreadable == 0
