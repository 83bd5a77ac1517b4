"""Readings of a Tegra's files and of tegrastats, as records. They are interpreted in `accounting`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes, Words


class TegraReading(Struct, frozen=True):
    """The board, and its GPU's memory as far as it can be read without root.

    `soc` is the chip's token in the device tree, such as "tegra234". Without a device tree it is "tegra", and
    `sign` is the observation that shows a Tegra. `gpu_bytes` is NvMapMemUsed, the System RAM in use by the GPU.
    `free_bytes` is NvMapMemFree, pages that the allocator keeps for the next request.
    """

    soc: str
    board: Words = Absent.NOT_AVAILABLE
    l4t: Words = Absent.NOT_AVAILABLE
    jetpack: Words = Absent.NOT_AVAILABLE
    gpu_bytes: Bytes = Absent.NOT_SUPPORTED
    free_bytes: Bytes = Absent.NOT_SUPPORTED
    sign: str = ""


class NvMapClient(Struct, frozen=True):
    """A process with buffers in GPU memory. A shared buffer is counted for every process that shares it."""

    pid: int
    name: str
    used_bytes: int


class NvMapReading(Struct, frozen=True):
    """NvMap's list of clients, which only root may read. `total_bytes` counts shared buffers once.

    `would_add` describes what is missing without root.
    """

    total_bytes: Bytes
    clients: tuple[NvMapClient, ...] | Absent
    would_add: str = ""


class Area(Struct, frozen=True):
    """A memory area in a line of tegrastats: SWAP, IRAM and, on old chips, Carveout and GART."""

    used_bytes: int
    total_bytes: int
    largest_free_block_bytes: Bytes = Absent.NOT_AVAILABLE
    cached_bytes: Bytes = Absent.NOT_AVAILABLE


class Load(Struct, frozen=True):
    """Utilization of a CPU, a GPU or an engine, and the clock of each of its parts. An engine may be off."""

    is_on: bool = True
    busy_ratio: float | Absent = Absent.NOT_AVAILABLE
    hertz: tuple[int, ...] = ()


class TegrastatsReading(Struct, frozen=True):
    """One line of tegrastats. Fields that a line does not contain are absent or missing from their mapping.

    The largest free blocks are `largest_free_blocks` blocks of `largest_free_block_bytes` each. `gr3d` is the
    GPU, `emc` the memory controller. Temperatures and rails are as printed: current, average and, since JetPack
    7.2, a third value. `mts` is the Denver cores' translator, in foreground and background. `odd_fields` were left
    out, as they cannot be true or are not known.
    """

    ram_used_bytes: Bytes = Absent.INCONSISTENT
    ram_total_bytes: Bytes = Absent.INCONSISTENT
    largest_free_blocks: int | Absent = Absent.INCONSISTENT
    largest_free_block_bytes: Bytes = Absent.INCONSISTENT
    time: Words = Absent.NOT_AVAILABLE
    swap: Area | Absent = Absent.NOT_AVAILABLE
    areas: Mapping[str, Area] = field(default_factory=dict)
    cpus: tuple[Load, ...] = ()
    gr3d: Load | Absent = Absent.NOT_AVAILABLE
    emc: Load | Absent = Absent.NOT_AVAILABLE
    engines: Mapping[str, Load] = field(default_factory=dict)
    mts: tuple[float, float] | Absent = Absent.NOT_AVAILABLE
    temperatures_celsius: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rails_milliwatts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    odd_fields: int = 0
