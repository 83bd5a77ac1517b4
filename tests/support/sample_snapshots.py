"""Sample machines, each in a state that pages must be able to show."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import GONE, ORPHAN, build_ghost, with_partial_lists
from memwatch.core.model import Absent, Architecture, Device, Pool, PoolKind, Process, Share, ShareKind, Thresholds
from memwatch.core.owners import Owner
from memwatch.core.printable import printable
from memwatch.core.snapshot import (
    CollectorStatus,
    EndedProcess,
    Kernel,
    Level,
    Machine,
    MemoryPsi,
    Node,
    NotReturned,
    Pressure,
    ProcessScan,
    PsiLine,
    Reason,
    Snapshot,
    Swap,
    Zram,
)
from support.sample_parts import (
    GIB,
    GPU_PROCESSES,
    KIB,
    MEASURED,
    MIB,
    PROCESSES,
    UNIX,
    mig,
    pressure,
    ratio_of,
    snapshot,
    system_ram,
    vram,
)


def calm_workstation() -> Snapshot:
    """64 GB, no GPU, mostly page cache."""
    ram = system_ram(
        size=67_185_782_784,
        free=3_328_599_654,
        anonymous=21_582_462_976,
        shared_memory=1_288_490_189,
        kernel=2_254_857_830,
        unattributed=1_503_238_553,
    )
    return snapshot(
        "workbench",
        Machine(
            "Desktop, AMD Ryzen 9",
            "cpu_only",
            "No GPU found: all memory is System RAM.",
        ),
        pools=(ram,),
        pressure=(pressure(ram.id, Level.LOW, ratio_of(ram)),),
        processes=PROCESSES,
        swap=Swap(8 * GIB, 212 * MIB),
        nodes=(Node(0, ram.size_bytes, ram.available_bytes, ram.free_bytes, True, 4 * MIB, 1_932_735_283),),
    )


def critical_gb10() -> Snapshot:
    """GB10 that serves a large model: the CUDA Pool is inside System RAM, which is nearly full."""
    ram = system_ram(
        size=128_492_535_808,
        free=2_147_483_648,
        anonymous=10_522_669_875,
        shared_memory=966_367_641,
        kernel=3_328_599_654,
        unattributed=109_049_173_606,
        unexplained=5_583_457_484,
    )
    cuda = Share(
        "cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 103_465_716_122, "nvml:processes", MEASURED, device="gpu0"
    )
    ratio = ratio_of(ram)
    reasons = (
        Reason("util", f"{ratio * 100:.1f}% used"),
        Reason("ttf", "full in 40 s at the current rate"),
        Reason("psi", "some tasks stalled on memory for 12% of the last 10 s"),
    )
    return snapshot(
        "spark-1",
        Machine(
            "NVIDIA DGX Spark",
            "unified",
            "GPU memory is part of System RAM: CPU and GPU share this memory.",
        ),
        pools=(ram,),
        shares=(cuda,),
        devices=(
            Device(
                "gpu0",
                "NVIDIA",
                "NVIDIA GB10",
                Architecture.UNIFIED,
                uuid="GPU-5d2c8a7e-1b1f-4e54-9c57-0a2d6f3b9e11",
                driver="580.95.05",
                allocates_from=("ram",),
                headroom_after_reclaim_bytes=ram.available_bytes,
                headroom_bytes=ram.free_bytes,
                evidence=("NVML answers NOT_SUPPORTED for memory info", "the device is integrated (GB10)"),
                process_list="complete",
                api_free_bytes={"cuda": ram.free_bytes},
                details={"cuda": "13.0", "addressing_mode": "ats"},
            ),
        ),
        pressure=(Pressure("ram", Level.CRITICAL, Level.CRITICAL, ratio, reasons, 40.0, thresholds=Thresholds()),),
        processes=GPU_PROCESSES,
        swap=Swap(16 * GIB, 15_032_385_536),
        zram=Zram(6_871_947_674, 2_254_857_830),
        psi=MemoryPsi(PsiLine(0.121, 0.064, 0.018, 812.4), PsiLine(0.031, 0.012, 0.003, 190.2)),
        nodes=(Node(0, ram.size_bytes, ram.available_bytes, ram.free_bytes, True, 512 * KIB, 0),),
        kernel=Kernel(1, 48_211),
    )


def container_with_limit() -> Snapshot:
    """Container with a limit of 4 GiB on a host with 64 GB."""
    base = calm_workstation()
    share = Share(
        "cgroup",
        ShareKind.CGROUP,
        "This container",
        "ram",
        3_650_722_201,
        "cgroup:v2",
        MEASURED,
        limit_bytes=4 * GIB,
        note="GPU memory on unified machines is not charged to this limit.",
    )
    ratio = share.judged_ratio
    assert isinstance(ratio, float)
    high = pressure("cgroup", Level.HIGH, ratio)
    return replace(
        base,
        host="7f3c91d0a2be",
        machine=replace(
            base.machine, in_container=True, explanation="A container with its own limit, inside System RAM."
        ),
        shares=(share,),
        pressure=(*base.pressure, high),
        process_scan=ProcessScan(9, 0),
        processes=PROCESSES[4:],
    )


def discrete_gpu() -> Snapshot:
    """Two cards with their own memory beside System RAM."""
    base = calm_workstation()
    cards = (
        vram("gpu0.vram", "GPU 0 VRAM", size=25_757_220_864, used=21_260_088_115, reserved=536_870_912),
        vram("gpu1.vram", "GPU 1 VRAM", size=25_757_220_864, used=1_288_490_188, reserved=536_870_912),
    )
    devices = tuple(
        Device(
            f"gpu{index}",
            "NVIDIA",
            "NVIDIA GeForce RTX 4090",
            Architecture.DISCRETE,
            pci=f"0000:0{index + 1}:00.0",
            driver="580.95.05",
            allocates_from=(card.id,),
            headroom_after_reclaim_bytes=card.available_bytes,
            headroom_bytes=card.available_bytes,
        )
        for index, card in enumerate(cards)
    )
    return replace(
        base,
        host="trainer",
        machine=Machine("Workstation", "discrete", "Each GPU has its own memory beside System RAM."),
        pools=(*base.pools, *cards),
        devices=devices,
        processes=tuple(
            replace(process, device_bytes={"gpu0.vram": 20_401_094_656}) if process.pid == 4120 else process
            for process in PROCESSES
        ),
        pressure=(
            *base.pressure,
            pressure("gpu0.vram", Level.HIGH, ratio_of(cards[0])),
            pressure("gpu1.vram", Level.LOW, ratio_of(cards[1])),
        ),
    )


def mig_server() -> Snapshot:
    """One large card with MIG instances, a unit limit inside System RAM, and a share inside a share."""
    base = calm_workstation()
    card = vram("gpu0.vram", "GPU 0 VRAM", size=85_520_809_984, used=59_055_800_320, reserved=644_245_094)
    shares = (
        mig("gpu0.mig1", "MIG 3g.40gb", 34_359_738_368, 42_412_802_048),
        mig("gpu0.mig2", "MIG 2g.20gb", 20_401_094_656, 21_072_183_296),
        Share("slice", ShareKind.CGROUP, "ml.slice", "ram", 12 * GIB, "cgroup:v2", MEASURED, limit_bytes=16 * GIB),
        Share("unit", ShareKind.CGROUP, "trainer.service", "slice", 9 * GIB, "cgroup:v2", MEASURED),
    )
    device = Device(
        "gpu0",
        "NVIDIA",
        "NVIDIA A100 80GB",
        Architecture.DISCRETE,
        allocates_from=("gpu0.mig1", "gpu0.mig2"),
        headroom_after_reclaim_bytes=8_053_063_680,
        headroom_bytes=8_053_063_680,
    )
    return replace(
        base,
        host="mig-1",
        machine=Machine("Server", "discrete", "The GPU has its own memory, split into two instances."),
        pools=(*base.pools, card),
        shares=shares,
        devices=(device,),
        pressure=(
            *base.pressure,
            pressure("gpu0.vram", Level.MEDIUM, ratio_of(card)),
            pressure("gpu0.mig1", Level.HIGH, 0.81),
            pressure("gpu0.mig2", Level.CRITICAL, 0.968),
            pressure("slice", Level.MEDIUM, 0.75),
        ),
    )


def partition() -> Snapshot:
    """Container with a limit on a card whose size is not known there, and a limit inside that one."""
    base = container_with_limit()
    limit = Share(
        "gpu0.limit",
        ShareKind.GPU_LIMIT,
        "GPU memory limit",
        "gpu0",
        15 * GIB,
        "nvml:memory_info_v2",
        MEASURED,
        limit_bytes=20 * GIB,
        device="gpu0",
        note="the size of the card is not available here",
    )
    inner = replace(
        limit,
        id="gpu0.limit.job",
        label="job limit",
        within="gpu0.limit",
        used_bytes=9 * GIB,
        limit_bytes=12 * GIB,
        note=None,
    )
    card = Device(
        "gpu0",
        "NVIDIA",
        "NVIDIA L40S",
        Architecture.DISCRETE,
        allocates_from=(limit.id,),
        headroom_after_reclaim_bytes=5 * GIB,
    )
    verdicts = (pressure(limit.id, Level.MEDIUM, 0.75), pressure(inner.id, Level.MEDIUM, 0.75))
    return replace(base, shares=(*base.shares, limit, inner), devices=(card,), pressure=(*base.pressure, *verdicts))


def hugepages_host() -> Snapshot:
    """KVM host with most of its memory set aside for huge pages."""
    base = calm_workstation()
    aside = 51_539_607_552
    ram = replace(
        system_ram(
            size=67_185_782_784,
            free=2_147_483_648,
            anonymous=2_362_232_012,
            shared_memory=107_374_182,
            kernel=1_288_490_188,
            unattributed=429_496_729,
            huge_pages=aside,
        ),
        set_aside_bytes=aside,
        set_aside_free_bytes=aside // 4,
    )
    return replace(base, host="kvm-7", pools=(ram,), pressure=(pressure("ram", Level.LOW, ratio_of(ram)),))


def stale_collector() -> Snapshot:
    """Stalled collector of System RAM: its size is known, its use is not."""
    base = calm_workstation()
    pool = base.pools[0]
    lost = replace(
        pool,
        used_bytes=Absent.STALE,
        available_bytes=Absent.STALE,
        free_bytes=Absent.STALE,
        unattributed_bytes=Absent.STALE,
        contents=(),
    )
    stalled = CollectorStatus(
        "meminfo", "stalled", 12.4, 0.000026, UNIX - 12.4, "no answer since 12 s", {"deadline": 1}
    )
    return replace(
        base,
        pools=(lost,),
        pressure=(),
        psi=Absent.STALE,
        collectors=(stalled, *base.collectors[1:]),
    )


def failing_collector() -> Snapshot:
    """One failing collector: only its own values are missing, and its error is shown."""
    base = calm_workstation()
    error = "/proc/buddyinfo line 2: found 'Node 0, zone', expected a zone name and numbers"
    failing = CollectorStatus("buddyinfo", "failing", 340.0, 0.00011, UNIX - 340.0, error, {"unreadable": 340})
    others = tuple(failing if status.name == "buddyinfo" else status for status in base.collectors)
    return replace(base, collectors=others, nodes=())


def unknown_figures() -> Snapshot:
    """Machine with hardly any known value, each for a different reason."""
    base = calm_workstation()
    card = Pool(
        "gpu0.vram",
        PoolKind.VRAM,
        "GPU 0 VRAM",
        25_757_220_864,
        Absent.INCONSISTENT,
        Absent.INCONSISTENT,
        "nvml:memory_info_v2",
        MEASURED,
    )
    share = Share(
        "gpu1.gtt", ShareKind.GTT, "GTT", "ram", Absent.NOT_PERMITTED, "sysfs:mem_info_gtt_used", MEASURED
    )
    device = Device("gpu0", "NVIDIA", "NVIDIA RTX A5000", Architecture.UNKNOWN, allocates_from=("gpu0.vram",))
    process = Process(4242, UNIX - 60, "private", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "rss")
    return replace(
        base,
        machine=Machine(),
        self_usage=replace(base.self_usage, rss_bytes=Absent.NOT_SUPPORTED),
        pools=(replace(base.pools[0], free_bytes=Absent.NOT_AVAILABLE), card),
        shares=(share,),
        devices=(device,),
        processes=(process,),
        process_scan=Absent.NOT_AVAILABLE,
        swap=Absent.NOT_AVAILABLE,
        psi=Absent.NOT_PERMITTED,
        kernel=Kernel(),
        nodes=(Node(0), Node(1, has_cpus=False)),
    )


def no_psi() -> Snapshot:
    """Kernel without PSI."""
    return replace(calm_workstation(), psi=Absent.NOT_SUPPORTED)


def hostile_names() -> Snapshot:
    """Processes whose names try to break a page, as a collector reads them."""
    names = ("<script>alert(1)</script>", "\" onmouseover='x' ", "</script><b>", "{{ 7*7 }}", "…\u202e\x1b[31mred")
    processes = tuple(
        Process(100 + index, UNIX, printable(name), 7 * MIB, 7 * MIB, "rss", user="<i>root</i>")
        for index, name in enumerate(names)
    )
    return replace(calm_workstation(), host="</script><script>alert(2)</script>", processes=processes)


def many_owners() -> Snapshot:
    """APU in a container: footprints with bounds, owners with and without cgroups, hidden processes."""
    base = calm_workstation()
    share = Share("gpu0.gtt", ShareKind.GTT, "GTT", "ram", 3 * GIB, "sysfs:mem_info_gtt_used", MEASURED)
    server = Process(
        77,
        UNIX - 60,
        "llama-server",
        2 * GIB,
        Absent.NOT_SUPPORTED,
        "rss + device, perhaps overlapping",
        user="ada",
        unit="docker-c0ffee.scope",
        container="c0ffeec0ffee",
        device_bytes={"gpu0.gtt": 3 * GIB},
        footprint_range=(3 * GIB, 5 * GIB),
    )
    hidden = replace(server, pid=78, name="tini", container=Absent.NOT_PERMITTED, device_bytes={})
    return replace(
        base,
        shares=(share,),
        processes=(server, replace(hidden, footprint_range=None, footprint_bytes=MIB)),
        process_scan=ProcessScan(3, 0, "partial", "Processes outside this container are not seen."),
        owners=(
            Owner("container", "c0ffeec0ffee", 2, 2 * GIB, 9 * GIB),
            Owner("container", "<b>bold</b>", 1, MIB, Absent.NOT_PERMITTED),
            Owner("container", None, 1, MIB),
            Owner("user", "ada", 4, 2 * GIB + 2 * MIB),
        ),
        container_names={"c0ffeec0ffee": "</th><i>vllm"},
    )


def left_behind() -> Snapshot:
    """GB10 with a process that only the driver lists, an orphan, and memory that was not given back."""
    base = critical_gb10()
    orphan = Process(
        41877,
        UNIX - 9000,
        "VLLM::EngineCor",
        5 * GIB,
        25 * GIB,
        "rss + device",
        user="ada",
        unit="session-7.scope",
        container=None,
        device_bytes={"cuda0": 20 * GIB},
        orphan=True,
        note=ORPHAN.format(pid=41877),
    )
    ghost = build_ghost(3921, {"cuda0": 62 * GIB}, GONE)
    ended = EndedProcess(3880, "python3", 9 * GIB, "docker-1f6b.scope", "1f6bd2a9e2c7")
    text = "8.0 GiB of System RAM did not come back after python3 (PID 3880) ended"
    return replace(
        base,
        processes=(orphan, *(one for one in base.processes if not one.device_bytes), ghost),
        devices=with_partial_lists(base.devices, (ghost,), base.shares),
        owners=(Owner("unit", "session-7.scope", 3, 5 * GIB),),
        not_returned=(NotReturned("ram", 8 * GIB, UNIX - 200, (ended,), text),),
    )


def simulated() -> Snapshot:
    """Simulated machine; its values must be marked as such."""
    return replace(critical_gb10(), simulated=True)


SAMPLES: dict[str, Callable[[], Snapshot]] = {
    make.__name__: make
    for make in (
        calm_workstation,
        critical_gb10,
        container_with_limit,
        discrete_gpu,
        mig_server,
        partition,
        hugepages_host,
        stale_collector,
        failing_collector,
        unknown_figures,
        no_psi,
        hostile_names,
        many_owners,
        left_behind,
        simulated,
    )
}
