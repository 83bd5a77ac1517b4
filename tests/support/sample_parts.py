"""Parts of sample machines: pools, processes and the values of a healthy machine."""

from __future__ import annotations

from memwatch.core.model import Content, Pool, PoolKind, Process, Quality, Share, ShareKind, Thresholds
from memwatch.core.snapshot import (
    CollectorStatus,
    Kernel,
    Level,
    Machine,
    MemoryPsi,
    Pressure,
    ProcessScan,
    PsiLine,
    Reason,
    SelfUsage,
    Snapshot,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MEASURED = Quality.MEASURED
UNIX = 1_795_256_553.25  # 2026-11-21 10:22:33 UTC


def system_ram(
    size: int,
    free: int,
    anonymous: int,
    shared_memory: int,
    kernel: int,
    unattributed: int,
    huge_pages: int = 0,
    unexplained: int | None = None,
) -> Pool:
    """Return System RAM by use; the rest is page cache. `unexplained` is the part without any share."""
    used = anonymous + shared_memory + huge_pages + kernel + unattributed
    parts = {
        "anonymous": anonymous,
        "shared_memory": shared_memory,
        "huge_pages": huge_pages,
        "kernel": kernel,
        "unattributed": unattributed,
        "page_cache": size - used - free,
        "free": free,
    }
    return Pool(
        "ram",
        PoolKind.SYSTEM_RAM,
        "System RAM",
        size,
        used,
        size - used,
        "meminfo",
        MEASURED,
        free_bytes=free,
        unattributed_bytes=unattributed if unexplained is None else unexplained,
        contents=tuple(Content(kind, part) for kind, part in parts.items()),
    )


def vram(name: str, label: str, size: int, used: int, reserved: int) -> Pool:
    return Pool(
        name,
        PoolKind.VRAM,
        label,
        size,
        used,
        size - used,
        "nvml:memory_info_v2",
        MEASURED,
        reserved_bytes=reserved,
        unattributed_bytes=322_122_547,
    )


def mig(name: str, label: str, used: int, limit: int) -> Share:
    return Share(
        name,
        ShareKind.MIG_INSTANCE,
        label,
        "gpu0.vram",
        used,
        "nvml:mig",
        MEASURED,
        limit_bytes=limit,
        device="gpu0",
    )


def ratio_of(pool: Pool) -> float:
    ratio = pool.judged_ratio
    assert isinstance(ratio, float)
    return ratio


def pressure(target: str, level: Level, ratio: float) -> Pressure:
    reasons = () if level is Level.LOW else (Reason("util", f"{ratio * 100:.1f}% used"),)
    return Pressure(target, level, level, ratio, reasons, thresholds=Thresholds())


def snapshot(host: str, machine: Machine, **known: object) -> Snapshot:
    """Return the snapshot of a healthy machine, with `known` replacing its values."""
    defaults: dict[str, object] = {
        "self_usage": SelfUsage(51_380_224, 18.4, 0.00021, 0.00043, True),
        "process_scan": ProcessScan(312, 0),
        "psi": MemoryPsi(PsiLine(0.003, 0.001, 0.0, 41.7), PsiLine(0.0, 0.0, 0.0, 6.1)),
        "kernel": Kernel(0, 12),
        "collectors": COLLECTORS,
    }
    return Snapshot(
        seq=4711,
        unix=UNIX,
        monotonic=86_400.5,
        boot_id="3c1d1f0e-6f3a-4b43-8a7b-52ab8be4ad11",
        host=host,
        interval_seconds=1.0,
        simulated=False,
        machine=machine,
        **(defaults | known),  # type: ignore[arg-type]
    )


def process(pid: int, name: str, user: str, rss: int, **device_bytes: int) -> Process:
    return Process(
        pid,
        UNIX - 3600 - pid,
        name,
        rss,
        rss + sum(device_bytes.values()),
        "rss + device" if device_bytes else "rss",
        user=user,
        device_bytes=device_bytes,
    )


PROCESSES = (
    process(4120, "python3", "mira", 9_878_424_780),
    process(2881, "chromium", "mira", 3_113_851_289),
    process(2210, "gnome-shell", "mira", 1_181_116_006),
    process(5502, "rust-analyzer", "mira", 966_367_641),
    process(911, "postgres", "postgres", 601_295_421),
    process(1533, "dockerd", "root", 188_743_680),
    process(1, "systemd", "root", 13_631_488),
)
GPU_PROCESSES = (
    process(20311, "vllm", "serve", 6_979_321_856, cuda0=93_415_538_688),
    process(20877, "python3", "mira", 2_576_980_377, cuda0=10_050_177_434),
    *PROCESSES[4:],
)
COLLECTORS = (
    CollectorStatus("meminfo", "ok", 0.0, 0.000026, UNIX),
    CollectorStatus("psi", "ok", 0.0, 0.000009, UNIX),
    CollectorStatus("buddyinfo", "ok", 4.0, 0.00011, UNIX - 4),
    CollectorStatus("processes", "ok", 2.0, 0.0017, UNIX - 2),
    CollectorStatus("cgroup", "ok", 0.0, 0.000018, UNIX),
    CollectorStatus("zfs", "unavailable", error="no /proc/spl/kstat/zfs/arcstats: this kernel has no ZFS"),
)
