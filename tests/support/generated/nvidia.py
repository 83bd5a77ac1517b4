"""Generated readings of NVML and of a Tegra's files. Validation is that of the driver's helper."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.core.drivers.nvml.records import (
    CgroupLimit,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    MissingGpu,
    NvmlReading,
)
from memwatch.core.drivers.nvml.validation import (
    NO_INSTANCE,
    NVML_VALUE_NOT_AVAILABLE,
    AnswerValidator,
    Limits,
    Row,
    process_capacity,
)
from memwatch.core.drivers.tegra.nvmap import parse_meminfo
from memwatch.core.drivers.tegra.records import NvMapClient, NvMapReading, TegraReading, TegrastatsReading
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.model import Absent
from support.generated.figures import GIB, MIB, Figures
from support.generated.host import Host

NO = Absent.NOT_SUPPORTED
GROUPS = ("/", "/a", "/a/b", "/a/b/c", "/d.service", "/a/e.service")


def draw_nvml(figures: Figures, host: Host) -> NvmlReading:
    choose = figures.choose
    gpus = choose.many(3, lambda at: draw_gpu(figures, host, at))
    missing = choose.many(1, lambda at: MissingGpu(f"GPU-missing-{at}", f"0000:0{8 + at}:00.0", "NVIDIA H100"))
    return NvmlReading("580.126.09", "13.0", tuple(gpus), tuple(missing))


def draw_gpu(figures: Figures, host: Host, at: int) -> GpuReading:
    """Draw a GPU of any architecture, or one that is lost."""
    choose = figures.choose
    build = choose.pick((draw_card, draw_card, draw_unified, draw_carve_out, draw_coherent, draw_mig, draw_lost))
    return build(figures, host, at)


def identity(figures: Figures, at: int) -> tuple[int, str | Absent, str | Absent]:
    return (
        at,
        figures.absence() or f"GPU-{at}",
        figures.absence() or f"00000000:0{at + 1}:00.0",
    )


def draw_card(figures: Figures, host: Host, at: int) -> GpuReading:
    size = figures.size()
    memory = draw_gpu_memory(figures, size)
    return GpuReading(
        *identity(figures, at),
        "NVIDIA RTX 4090",
        memory=memory,
        bar1_bytes=figures.known(256 * MIB),
        processes=draw_list(figures, host, memory, size),
        limits=draw_limits(figures, size),
    )


def draw_unified(figures: Figures, host: Host, at: int) -> GpuReading:
    """GB10 and Thor: memory is not supported. Some drivers report the machine's size, or 0."""
    choose = figures.choose
    kind = choose.pick(("no", "no", "size", "zero"))
    memory: GpuMemory | Absent = NO
    if kind == "size":
        used = figures.part(host.cpu_bytes)
        memory = GpuMemory(1, host.cpu_bytes, used, host.cpu_bytes - used, NO)
    elif kind == "zero":
        memory = GpuMemory(1, 0, 0, 0, NO)
    return GpuReading(
        *identity(figures, at),
        choose.pick(("NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)", "NVIDIA X")),
        memory=memory,
        bar1_bytes=NO,
        addressing_mode=choose.pick(("ats", "none", NO)),
        processes=draw_list(figures, host, memory, host.cpu_bytes),
        limits=draw_limits(figures, host.cpu_bytes) if choose.chance(30) else NO,
    )


def draw_carve_out(figures: Figures, host: Host, at: int) -> GpuReading:
    memory = draw_gpu_memory(figures, 8 * GIB)
    return GpuReading(
        *identity(figures, at),
        "NVIDIA RTX Spark N1X",
        memory=memory,
        bar1_bytes=256 * MIB,
        processes=draw_list(figures, host, memory, 8 * GIB),
    )


def draw_coherent(figures: Figures, host: Host, at: int) -> GpuReading:
    """GH200: memory is a NUMA node. A driver may report the node of another GPU, or one that is no GPU's."""
    choose = figures.choose
    if not host.gpu_nodes:
        return draw_card(figures, host, at)
    number, size = host.gpu_nodes[min(at, len(host.gpu_nodes) - 1)]
    memory = draw_gpu_memory(figures, size)
    return GpuReading(
        *identity(figures, at),
        "NVIDIA GH200 480GB",
        memory=memory,
        bar1_bytes=NO,
        numa_node=0 if choose.chance(figures.lies) else number,
        addressing_mode="ats",
        processes=draw_list(figures, host, memory, size),
    )


def draw_mig(figures: Figures, host: Host, at: int) -> GpuReading:
    choose, size = figures.choose, figures.size()
    memory = Absent.NOT_PERMITTED if choose.chance(30) else draw_gpu_memory(figures, size)
    parts = choose.integer(1, 4)
    validator = AnswerValidator(Limits(1 << 22, host.size_bytes))
    instances = tuple(
        GpuInstance(number, (f"MIG-{number}",), draw_gpu_memory(figures, size // parts)) for number in range(parts)
    )
    rows = [
        (pid, used, choose.pick((*range(parts), 9)))
        for pid, used, _ in draw_rows(figures, host, size // parts // 4)
    ]
    return GpuReading(
        *identity(figures, at),
        "NVIDIA H100",
        memory=memory,
        bar1_bytes=256 * MIB,
        mig_enabled=True,
        instances=instances,
        processes=figures.absence() or validator.processes(rows, process_capacity(memory, MIB, validator.limits)),
    )


def draw_lost(figures: Figures, _host: Host, at: int) -> GpuReading:
    choose, reason = figures.choose, figures.choose.pick(tuple(Absent))
    return GpuReading(
        *identity(figures, at),
        "NVIDIA H100",
        state=choose.pick(("ok", "lost", "needs_reset")),
        memory=reason,
        bar1_bytes=reason,
        processes=reason,
    )


def draw_gpu_memory(figures: Figures, size: int) -> GpuMemory | Absent:
    reason = figures.absence()
    if reason is not None:
        return reason
    used, reserved = figures.part(size) >> 1, size >> 5
    total = figures.reported(size)
    free = figures.reported(size - used - reserved)
    memory = GpuMemory(2, total, figures.reported(used), free, figures.reported(reserved))
    return AnswerValidator(Limits(1 << 22)).memory(memory)


def draw_rows(figures: Figures, host: Host, each: int) -> list[Row]:
    """Draw the rows of process lists: a process may have several, some without a figure."""

    def row(_: int) -> Row:
        used = NVML_VALUE_NOT_AVAILABLE if figures.absence() else figures.reported(figures.part(each))
        pid = choose.pick((0, 0xFFFFFFFF)) if choose.chance(figures.lies // 10) else choose.pick(host.pids)
        return pid, used, NO_INSTANCE

    choose = figures.choose
    return choose.many(4, row)


def draw_list(
    figures: Figures, host: Host, memory: GpuMemory | Absent, size: int
) -> tuple[GpuProcess, ...] | Absent:
    validator = AnswerValidator(Limits(1 << 22, host.size_bytes))
    bar1 = NO if isinstance(memory, Absent) else 256 * MIB
    capacity = process_capacity(memory, bar1, validator.limits)
    return figures.absence() or validator.processes(draw_rows(figures, host, size >> 2), capacity)


def draw_limits(figures: Figures, size: int) -> tuple[CgroupLimit, ...] | Absent:
    """Draw the limits that the driver enforces itself."""
    choose = figures.choose
    if not choose.chance(30):
        return NO
    groups: Sequence[str] = dict.fromkeys(choose.many(3, lambda _: choose.pick(GROUPS[1:])))  # type: ignore[assignment]
    return tuple(
        CgroupLimit(
            group,
            min(figures.reported(figures.part(size) >> 1), 1 << 63),
            min(figures.reported(figures.part(size)), (1 << 62) - 1),
            figures.reported(figures.part(size) >> 1),
            own=choose.chance(30),
        )
        for group in groups
    )


def draw_tegra(figures: Figures, host: Host) -> Findings:
    """Draw a Jetson: NvMap's lines in meminfo up to Orin, its table for root, and tegrastats."""
    choose, size = figures.choose, host.size_bytes
    reading = TegraReading(choose.pick(("tegra234", "tegra264", "tegra")))
    if choose.chance(60):
        used, free = figures.reported(figures.part(size) >> 11), figures.reported(size >> 16)
        try:
            memory = parse_meminfo(
                f"MemTotal: {size >> 10} kB\nNvMapMemUsed: {used} kB\nNvMapMemFree: {free} kB\n".encode()
            )
            reading = TegraReading(reading.soc, gpu_bytes=memory.used_bytes, free_bytes=memory.free_bytes)
        except DecodeError:
            return Findings()
    return Findings(
        tegra=reading,
        nvmap=draw_nvmap(figures, host) if choose.chance(50) else None,
        tegrastats=TegrastatsReading(size >> 1, size, 8, 4 * MIB) if choose.chance(50) else None,
    )


def draw_nvmap(figures: Figures, host: Host) -> NvMapReading:
    choose, size = figures.choose, host.size_bytes
    clients = choose.many(
        4,
        lambda _: NvMapClient(choose.pick((0, *host.pids)), "client", figures.reported(figures.part(size) >> 3)),
    )
    return NvMapReading(figures.known(figures.part(size) >> 1), figures.absence() or tuple(clients))
