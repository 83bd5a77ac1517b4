"""Generate the recordings of simulated machines that are shipped with memwatchd.

    PYTHONPATH=tests python -m scripts.demo_machines [NAME...]

Each machine is a folder of /proc and /sys from tests/machines, whose files are rewritten each second of a story: a
model is loaded, the page cache is flooded, a program leaks until the OOM killer ends it, and memory recovers. The
real collectors read those files, and the real accounting and rules make snapshots of them. Sources that need a
driver or another operating system (NVML, macOS) are replaced by the driver's readings.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import CollectorEntry, ScanOptions
from memwatch.core.collectors.base import Host as ReadHost
from memwatch.core.collectors.other_systems import NO_COUNTERS, build_pool
from memwatch.core.drivers.apple import Accelerator, AppleReading, Metal, PressureLevel
from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory, GpuProcess, GpuReading, NvmlReading
from memwatch.core.drivers.tegra.records import Load, TegrastatsReading
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent, Process, Vitals
from memwatch.core.reading.identity import Identity, read_identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Machine, ProcessScan, SelfUsage, Snapshot, Swap
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import RecordingFile
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.feature import MonitorRules
from memwatchd.recording import demos
from support.demo_engines import ENGINES
from support.demo_host import KIB, LEAKING_PID, MIB, Host, Scene, ramp, scene_of
from support.fakes import FakeClock, FakeCollector
from support.monitors import create_monitor
from support.paths import MACHINES

GIB = 1 << 30
SECONDS = 420
BEGAN = 1_793_534_400.0  # 2026-11-01 12:00 UTC
OWN = SelfUsage(58 * MIB, 1.0, 0.0, 0.0002, True)
NOT_READ = frozenset(
    {
        "engines",
        "nvml",
        "tegrastats",
        "cgroup",
        "cgroup_pressure",
        "containers",
        "kmsg",
        "amdsmi",
        "amd_cli",
        "amdgpu_sensors",
    }
)
STRIX_IDLE_BYTES = 512 * MIB
HBM_BYTES = 99614720 * KIB
NO = Absent.NOT_SUPPORTED


Gpu = Callable[[Host, Scene, int], Findings]


class Story(Struct, frozen=True):
    """Events of one machine. `leaks_gpu`: the GPU's own memory fills up."""

    folder: str
    gpu: Gpu
    model_bytes: int
    held_bytes: int = 0
    unified: bool = True
    leaks_gpu: bool = False
    gpu_room_bytes: int = 0
    idle_bytes: int = 0


def memory_of(total: int, reserved: int, used: int) -> GpuMemory:
    return GpuMemory(2, total, used, total - used - reserved, reserved)


def nvml(*gpus: GpuReading) -> Findings:
    return Findings(nvml=NvmlReading("580.126.09", "13.0", gpus))


def gpu_of(name: str, number: int = 0, **fields: object) -> GpuReading:
    base = GpuReading(
        number, f"GPU-5a3d{number:04x}-7c1e-4b02-9d8f-c0ffee000000", f"0000:{number + 1:02x}:00.0", name
    )
    return replace(base, processes=(), bar1_bytes=256 * MIB, **fields)


def under_load(gpu: GpuReading, scene: Scene, watts: float, **megahertz: int) -> GpuReading:
    """Return the GPU with its sensors: it idles until a model is loaded, and then works at its power limit."""
    load = round(scene.loaded, 1)
    vitals = Vitals(
        temperature_celsius=38.0 + 30 * load,
        power_watts=round(watts * (0.08 + 0.92 * load), 1),
        clock_hertz={name: _clock(name, mhz, load) for name, mhz in megahertz.items()},
        throttled=("power_cap",) if load == 1.0 else (),
    )
    moving = NO if gpu.memory is NO else 0.6 * load
    return replace(gpu, vitals=vitals, busy_ratio=0.97 * load, memory_busy_ratio=moving)


def _clock(name: str, megahertz: int, load: float) -> int:
    """Return hertz: an idle GPU lowers the clock of its processors."""
    return round(megahertz * (1.0 if name == "memory" else 0.1 + 0.9 * load)) * 1_000_000


def spark(_host: Host, scene: Scene, used: int) -> Findings:
    found = under_load(gpu_of("NVIDIA GB10", memory=NO, addressing_mode="ats"), scene, 92.0, sm=2405)
    return nvml(replace(found, bar1_bytes=NO, processes=(GpuProcess(3921, used),) if used else ()))


def rtx4090(_host: Host, scene: Scene, used: int) -> Findings:
    found = gpu_of("NVIDIA GeForce RTX 4090", memory=memory_of(24564 * MIB, 424 * MIB, used + 638 * MIB))
    found = under_load(found, scene, 450.0, sm=2715, memory=10501)
    holders = (GpuProcess(2101, 412 * MIB), GpuProcess(2496, 226 * MIB), GpuProcess(31337, used))
    return nvml(replace(found, processes=holders if used else holders[:2]))


def gh200(host: Host, scene: Scene, used: int) -> Findings:
    """Return the reading of a GPU whose memory is a separate NUMA node inside MemTotal."""
    total = HBM_BYTES
    free = total - used - 12582912 * KIB
    node = host.root / "sys/devices/system/node/node1/meminfo"
    text = re.sub(r"(MemFree:\s+)\d+", rf"\g<1>{free // KIB}", node.read_text())
    node.write_text(re.sub(r"(MemUsed:\s+)\d+", rf"\g<1>{(total - free) // KIB}", text))
    found = gpu_of("NVIDIA GH200 480GB", memory=memory_of(97871 * MIB, 1103 * MIB, used), numa_node=1)
    found = under_load(found, scene, 700.0, sm=1980, memory=2619)
    holders = (GpuProcess(51200, used),) if used else ()
    return nvml(replace(found, bar1_bytes=NO, addressing_mode="ats", processes=holders))


def h100x8_mig(_host: Host, scene: Scene, used: int) -> Findings:
    gpus = []
    for number in range(7):
        part = int(used * (1.0 - 0.02 * number))
        card = memory_of(81559 * MIB, 479 * MIB, part if number else used)
        holders = (GpuProcess(200101 + number, part),) if part else ()
        found = under_load(gpu_of("NVIDIA H100 80GB HBM3", number, memory=card), scene, 700.0, sm=1980, memory=2619)
        gpus.append(replace(found, processes=holders))
    sizes = {2: (40448, 0.8), 3: (20096, 0.5), 9: (9984, 0.3)}
    instances = tuple(
        GpuInstance(
            gi,
            (f"MIG-5a3d{gi:04x}-7c1e-4b02-9d8f-c0ffee000000",),
            memory_of(size * MIB, 0, int(size * MIB * part * scene.loaded)),
        )
        for gi, (size, part) in sizes.items()
    )
    held = sum(one.memory.used_bytes for one in instances if isinstance(one.memory, GpuMemory))
    cut = gpu_of("NVIDIA H100 80GB HBM3", 7, memory=memory_of(81559 * MIB, 479 * MIB, held + 30 * MIB))
    # The driver reports no utilization in MIG mode.
    cut = replace(under_load(cut, scene, 520.0, sm=1980, memory=2619), busy_ratio=NO, memory_busy_ratio=NO)
    holder = GpuProcess(200108, int(40448 * MIB * 0.8 * scene.loaded), instance=2)
    processes = (holder,) if scene.loaded else ()
    return nvml(*gpus, replace(cut, mig_enabled=True, instances=instances, processes=processes))


def jetson_orin(host: Host, scene: Scene, used: int) -> Findings:
    """Write the driver's list of clients and their memory, and return the line of tegrastats."""
    clients = host.root / "sys/kernel/debug/nvmap/iovmm/clients"
    clients.write_text(
        "CLIENT                        PROCESS      PID        SIZE\n"
        f"user                         gpu_burn     7979   {used // KIB - 23676}K\n"
        "user                             Xorg     1890      23676K\n"
        f"total                                            {used // KIB}K\n"
    )
    load = round(scene.loaded, 1)
    line = TegrastatsReading(
        ram_used_bytes=28243 * MIB,
        ram_total_bytes=62840 * MIB,
        largest_free_blocks=6104,
        largest_free_block_bytes=4 * MIB,
        gr3d=Load(True, 0.99 * load, (_clock("graphics", 1300, load),)),
        emc=Load(True, round(0.35 * load, 2), (3_199_000_000,)),
        temperatures_celsius={"gpu": (round(40.0 + 11.5 * load, 1),), "tj": (round(41.0 + 11.5 * load, 1),)},
        rails_milliwatts={"VDD_GPU_SOC": (round(4900 + 20040 * load),) * 2},
    )
    return Findings(tegrastats=line)


def strix_halo(host: Host, _scene: Scene, used: int) -> Findings:
    """Write GTT, the System RAM that the GPU uses, in total and by process, as amdgpu reports it."""
    card = host.root / "sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0"
    (card / "mem_info_gtt_used").write_text(f"{used}\n")
    (host.root / "sys/class/kfd/kfd/proc/6110/vram_5536").write_text(f"{used - STRIX_IDLE_BYTES}\n")
    served = used - STRIX_IDLE_BYTES
    for path in (host.root / "proc/6110/fdinfo").iterdir():
        text = re.sub(r"(drm-(?:total|resident)-gtt:\t)\d+ MiB", rf"\g<1>{served // MIB} MiB", path.read_text())
        path.write_text(re.sub(r"(drm-memory-gtt:\t)\d+ KiB", rf"\g<1>{served // KIB} KiB", text))
    return Findings()


STORIES = {
    "dgx-spark": Story("gb10", spark, 64 * GIB, held_bytes=64_023_000 * KIB),
    "jetson-orin": Story(
        "jetson-agx-orin-jp6", jetson_orin, 24 * GIB, held_bytes=23549320 * KIB, idle_bytes=64 * MIB
    ),
    "strix-halo": Story("strix-halo", strix_halo, 60 * GIB, held_bytes=67645734912, idle_bytes=STRIX_IDLE_BYTES),
    "gh200": Story("gh200-numa", gh200, 70 * GIB, unified=False),
    "h100x8-mig": Story("8x-h100", h100x8_mig, 66 * GIB, unified=False, leaks_gpu=True, gpu_room_bytes=13 * GIB),
    "rtx4090": Story("rtx-4090", rtx4090, 15 * GIB, unified=False, leaks_gpu=True, gpu_room_bytes=8000 * MIB),
}


def linux_story(name: str, folder: Path) -> list[Snapshot]:
    """Return every second of the story, read by the collectors of Linux."""
    event_writer = STORIES[name]
    shutil.copytree(MACHINES / event_writer.folder, folder, symlinks=True)
    host = Host(folder, event_writer.held_bytes)
    roots = Roots(folder / "proc", folder / "sys", folder / "root")
    read = ReadHost(roots, (ScanOptions(period_seconds=2.0),), "linux")
    driver = FakeCollector("tegrastats" if name == "jetson-orin" else "nvml")
    entry = [at_each_tick(replace(one, may_block=False)) for one in list_collectors(read, NOT_READ)]
    if name != "strix-halo":
        entry.append(CollectorEntry(driver.name, lambda: driver, False))
    log = FakeCollector("kmsg")
    entry.append(CollectorEntry(log.name, lambda: log, False))
    servers = FakeCollector("engines")
    if name in ENGINES:
        entry.append(CollectorEntry(servers.name, lambda: servers, False))
    largest = 0

    def show(scene: Scene) -> None:
        nonlocal largest
        gpu, leak = int(event_writer.model_bytes * scene.loaded) + event_writer.idle_bytes, 0
        if event_writer.leaks_gpu:
            gpu += int(event_writer.gpu_room_bytes * scene.leaked)
        of_ram = gpu if event_writer.unified else 0
        if not event_writer.leaks_gpu:
            left = host.meminfo["MemAvailable"] * KIB + event_writer.held_bytes - of_ram
            leak = min(int(left * 0.985 * scene.leaked), left - host.least * KIB)
        largest = max(largest, leak)
        victim = OomKill(1, LEAKING_PID, "train.py", largest, "machine")
        log.findings = Findings(kernel_log=KernelLog(kills=(victim,) if scene.killed and scene.of_host else ()))
        driver.findings = event_writer.gpu(host, scene, gpu)
        servers.findings = Findings(engines=(ENGINES[name](scene),)) if name in ENGINES else Findings()
        host.write(scene, of_ram, leak)

    show(scene_of(0, not event_writer.leaks_gpu))
    return [
        without_folder(one, folder) for one in play(entry, read_identity(roots), show, not event_writer.leaks_gpu)
    ]


def at_each_tick(enlisted: CollectorEntry) -> CollectorEntry:
    """Read nodes and free blocks on every tick, so that they match the rest; live machines read them less often."""
    return (
        replace(enlisted, make=lambda: FreshCollector(enlisted))
        if enlisted.name in ("numa", "buddyinfo")
        else enlisted
    )


class FreshCollector:
    """Collector that is created again for each collection, which is every tick."""

    period_seconds = 0.0
    may_block = False

    def __init__(self, enlisted: CollectorEntry) -> None:
        self.name = enlisted.name
        self._make = enlisted.make
        self._make().close()

    def collect(self) -> Findings:
        collector = self._make()
        try:
            return collector.collect()
        finally:
            collector.close()

    def close(self) -> None:
        """Close nothing: no collector is kept."""


def without_folder(snapshot: Snapshot, folder: Path) -> Snapshot:
    """Return the snapshot with paths as on such a machine."""
    errors = [(status, (status.error or "").replace(str(folder), "") or None) for status in snapshot.collectors]
    return replace(snapshot, collectors=tuple(replace(status, error=error) for status, error in errors))


def macbook_story() -> list[Snapshot]:
    """Return 36 GB of an M3 Pro, as reported by psutil and macOS."""
    size, limit = 36 * GIB, 27 * GIB
    memory, apple, people = FakeCollector("psutil_host"), FakeCollector("apple"), FakeCollector("psutil_processes")
    machine = Machine("MacBook Pro (Mac15,6)", details={"chip": "Apple M3 Pro"})

    def show(scene: Scene) -> None:
        metal = int(14 * GIB * scene.loaded) + 512 * MIB
        leak = int((size * 0.985 - 8 * GIB - metal) * scene.leaked)
        available = max(256 * MIB, size - 8 * GIB - metal - leak)
        free = int(available * (1.0 - 0.9 * scene.cache))
        swap = Swap(size_bytes=4 * GIB, used_bytes=int(3 * GIB * ramp(scene.leaked, 0.9, 1.0)))
        memory.findings = Findings(
            pools=(build_pool(size, available, free, "Unified memory"),),
            swap=swap,
            machine=machine,
            kernel=NO_COUNTERS,
        )
        accelerator = Accelerator("AGXAcceleratorG15X", NO, metal, metal + GIB)
        level: PressureLevel = "critical" if scene.leaked > 0.97 else "warning" if scene.leaked > 0.85 else "normal"
        unknown = Absent.NOT_AVAILABLE
        apple.findings = Findings(
            apple=AppleReading("Apple M3 Pro", "Mac15,6", size, (accelerator,), level, unknown, Metal(True, limit))
        )
        people.findings = mac_processes(metal, leak, scene)

    show(scene_of(0))
    enlisted = [entry(one) for one in (memory, apple, people)]
    return play(enlisted, Identity("macbook", "5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e"), show)


def entry(one: FakeCollector) -> CollectorEntry:
    return CollectorEntry(one.name, lambda: one, False)


def mac_processes(metal: int, leak: int, scene: Scene) -> Findings:
    rows = [(812, "WindowServer", 900 * MIB), (2210, "ollama", metal), (2301, "Safari", 1200 * MIB)]
    rows += [] if scene.killed else [(LEAKING_PID, "train.py", leak + 300 * MIB)]
    whose = {"user": "ada", "unit": None, "container": None}
    found = [Process(pid, BEGAN - 900, name, rss, rss, "rss", **whose) for pid, name, rss in rows]  # type: ignore
    return Findings(processes=tuple(found), process_scan=ProcessScan(412, 0))


def play(
    enlisted: list[CollectorEntry], identity: Identity, show: Callable[[Scene], None], of_host: bool = True
) -> list[Snapshot]:
    """Run the story through the loop, tick by tick, at the story's own time of day."""
    clock = FakeClock(now=1000.0, wall_offset=BEGAN - 1000.0)
    sampler = Sampler(enlisted, clock)
    monitor = create_monitor(sampler, clock, MonitorRules(), replace(identity, simulated=True), speed=1.0)
    snapshots = []
    for second in range(SECONDS):
        show(scene_of(second, of_host))
        snapshots.append(replace(monitor.tick(), self_usage=replace(OWN, cpu_seconds=1.0 + second * 0.002)))
        clock.now += 1.0
    for runner in sampler.runners:
        runner.close()
    return snapshots


def story_of(name: str) -> list[Snapshot]:
    if name == "macbook":
        return macbook_story()
    with tempfile.TemporaryDirectory() as folder:
        return linux_story(name, Path(folder) / name)


def write(name: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    recording = RecordingFile(path, level=9, host=name, simulated=True)
    for snapshot in story_of(name):
        recording.write(to_bytes(snapshot_json(snapshot)))
    recording.close()


def main() -> None:
    for name in sys.argv[1:] or demos.DESCRIPTIONS:
        write(name, demos.path_of(name))
        print(f"{name}: {demos.path_of(name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
