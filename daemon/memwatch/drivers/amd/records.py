"""What the amdgpu driver said at one moment, as records. No judgement: that is made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.model import Absent, Bytes, Words

GpuState = Literal["ok", "missing"]


class Region(Struct, frozen=True):
    """A kind of memory as the driver counts it. The total of GTT is a limit, and no memory of its own."""

    total_bytes: Bytes = Absent.NOT_SUPPORTED
    used_bytes: Bytes = Absent.NOT_SUPPORTED


class KfdNode(Struct, frozen=True):
    """A node of the compute driver's topology that is a GPU, or a partition of one.

    `gpu_id` names it in /sys/class/kfd/kfd/proc. `bank_bytes` is what ROCm takes for the size of its memory.
    """

    number: int
    gpu_id: int
    pci: str
    gfx: Words
    bank_bytes: Bytes
    render_minor: int | Absent = Absent.NOT_AVAILABLE


class AmdCard(Struct, frozen=True):
    """What does not change while a driver is loaded. `render_node` is a name such as `renderD128`.

    `pci` is a number without a colon where a tool says no address. `cards` names its entries in /sys/class/drm,
    those of its partitions included. `may_sleep`: the kernel may suspend it when idle, so whatever keeps it awake
    is not asked. `has_uma`, `has_board_info`, `metrics_format` (of the file gpu_metrics) and `is_fused` (the
    driver's own flag, asked once) are what tells an APU. `release` is the version of the kernel whose ways the
    driver has.
    """

    pci: str
    cards: tuple[str, ...]
    render_node: Words
    device_id: str
    revision: str
    name: str
    vram_bytes: Bytes
    visible_vram_bytes: Bytes
    gtt_bytes: Bytes
    release: tuple[int, ...] = ()
    vram_vendor: Words = Absent.NOT_SUPPORTED
    unique_id: Words = Absent.NOT_SUPPORTED
    compute_partition: Words = Absent.NOT_SUPPORTED
    memory_partition: Words = Absent.NOT_SUPPORTED
    may_sleep: bool = False
    has_uma: bool = False
    has_board_info: bool = False
    metrics_format: int | Absent = Absent.NOT_AVAILABLE
    is_fused: bool | Absent = Absent.NOT_AVAILABLE
    nodes: tuple[KfdNode, ...] = ()


class AmdGpu(Struct, frozen=True):
    """One GPU at one moment. A GPU that was here and is gone stays as `missing`, so that no other takes its place.

    `held` is what processes asked the compute driver for, by process id: memory of the GPU, and on an APU
    that prefers GTT System RAM. `visible_vram` is a part of `vram`.
    """

    card: AmdCard
    vram: Region
    visible_vram: Region
    gtt: Region
    runtime_status: Words
    held: Mapping[int, int] = field(default_factory=dict)
    state: GpuState = "ok"


class AmdReading(Struct, frozen=True):
    """Everything of one round, GPUs in the order of their PCI addresses.

    `driver` is the version of a driver that did not come with the kernel. `source` is who says all this.
    `pages_limit_bytes` bounds what all GPUs together may take of System RAM. `partition_cards` counts the cards
    of MI300 partitions, which are slices of GPUs and no GPUs.
    """

    gpus: tuple[AmdGpu, ...]
    driver: Words
    pages_limit_bytes: Bytes
    partition_cards: int = 0
    has_kfd: bool = False
    source: str = "sysfs"


class AmdSensors(Struct, frozen=True):
    """What a GPU's own firmware has to be asked for; ratios are 0 to 1, `errors` counts by kind."""

    busy_ratio: float | Absent = Absent.NOT_SUPPORTED
    memory_busy_ratio: float | Absent = Absent.NOT_SUPPORTED
    errors: Mapping[str, int] = field(default_factory=dict)
