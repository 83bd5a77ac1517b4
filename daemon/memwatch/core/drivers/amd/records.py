"""One reading of the amdgpu driver, as records. They are interpreted in `accounting`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes, Words

GpuState = Literal["ok", "missing"]


class Region(Struct, frozen=True):
    """Size and use of one kind of memory. The total of GTT is a limit on System RAM, not separate memory."""

    total_bytes: Bytes = Absent.NOT_SUPPORTED
    used_bytes: Bytes = Absent.NOT_SUPPORTED


class KfdNode(Struct, frozen=True):
    """A node of the compute driver's topology that is a GPU, or a partition of one.

    `gpu_id` is its id in /sys/class/kfd/kfd/proc. `bank_bytes` is the memory size that ROCm reports.
    """

    number: int
    gpu_id: int
    pci: str
    gfx: Words
    bank_bytes: Bytes
    render_minor: int | Absent = Absent.NOT_AVAILABLE


class AmdCard(Struct, frozen=True):
    """Properties that do not change while a driver is loaded. `render_node` is a name such as `renderD128`.

    `pci` is an index without a colon if a tool reports no address. `cards` are its entries in /sys/class/drm,
    including those of its partitions. `may_sleep`: the kernel may suspend it when idle, so files whose reading
    would keep it awake are not read. `has_uma`, `has_board_info`, `metrics_format` (of the file gpu_metrics) and
    `is_fused` (the driver's FUSION flag, read once) identify an APU. `release` is the kernel version whose
    behaviour the driver has.
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
    """One GPU in one reading. A GPU that disappeared stays as `missing`, so that the others keep their places.

    `held` is the memory that processes allocated from the compute driver, by process id: VRAM, or System RAM on an
    APU that prefers GTT. `visible_vram` is a part of `vram`.
    """

    card: AmdCard
    vram: Region
    visible_vram: Region
    gtt: Region
    runtime_status: Words
    held: Mapping[int, int] = field(default_factory=dict)
    state: GpuState = "ok"


class AmdReading(Struct, frozen=True):
    """One reading, with the GPUs in the order of their PCI addresses.

    `driver` is the version of a driver that did not come with the kernel. `source` is the origin of the values.
    `pages_limit_bytes` limits the System RAM that all GPUs together may use. `evicted_seconds`: by PCI
    address, the total time that the compute driver had evicted queues of processes. `lists_compute`: all processes
    of the compute driver were read, or it lists none.
    """

    gpus: tuple[AmdGpu, ...]
    driver: Words
    pages_limit_bytes: Bytes
    source: str = "sysfs"
    evicted_seconds: Mapping[str, float] = field(default_factory=dict)
    lists_compute: bool = True


class AmdSensors(Struct, frozen=True):
    """Values that require a query to the GPU's firmware. Ratios are 0 to 1, `errors` counts by kind."""

    busy_ratio: float | Absent = Absent.NOT_SUPPORTED
    memory_busy_ratio: float | Absent = Absent.NOT_SUPPORTED
    errors: Mapping[str, int] = field(default_factory=dict)
