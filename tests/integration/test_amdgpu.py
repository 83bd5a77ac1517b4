"""The amdgpu collector: machines byte by byte, hotplug, and sleeping GPUs that stay asleep."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.amdgpu import HELD_SECONDS, RESCAN_SECONDS, Collector
from memwatch.core.collectors.gpu_sensors import ERRORS_SECONDS
from memwatch.core.collectors.gpu_sensors import AmdgpuSensorsCollector as Sensors
from memwatch.core.drivers.amd.records import Region
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent
from simulators.amd_machine import GIB, MIB, PCI, AmdMachine, discrete, memory
from simulators.amd_readings import FakeIoctl, ManualClock, as_written, only_gpu, read, read_folder, reading_of
from support.machine_folders import machine_folder

MACHINES = ("rx-7900-xtx", "mi210", "mi300a-x4", "strix-halo", "strix-halo-96g", "phoenix", "steam-deck")


@pytest.mark.parametrize("name", MACHINES)
def test_machine(name: str) -> None:
    """Both readings of a recorded machine match its expected values."""
    machine = machine_folder(name)
    collector, sensors = Collector(machine.roots, 4096, GpuPids(), FakeIoctl()), Sensors(machine.roots)

    found = [as_written(collector.collect()) for _ in range(2)]
    sensed = as_written(sensors.collect())
    collector.close()

    assert found == [machine.expected["amdgpu"]] * 2
    assert sensed == machine.expected["amdgpu_sensors"]


def test_mi300a_partitions_are_slices() -> None:
    """Four MI300A with 28 partition cards are four GPUs without VRAM."""
    reading = reading_of(read_folder("mi300a-x4"))

    assert [gpu.card.pci for gpu in reading.gpus] == [f"000{at}:02:00.0" for at in range(4)]
    assert all(gpu.vram == Region(Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED) for gpu in reading.gpus)
    assert all(len(gpu.card.nodes) == 1 for gpu in reading.gpus)


def test_partition_cards_belong_to_their_gpu(tmp_path: Path) -> None:
    """In CPX mode each partition has its own node and card of the same GPU."""
    machine = AmdMachine(tmp_path)
    machine.gpu(memory(192 * GIB, 0, 64 * GIB, 0))
    machine.node(1, 500, 0x300, 96 * GIB)
    machine.node(2, 501, 0x301, 96 * GIB)
    platform = tmp_path / "sys/devices/platform/amdgpu_xcp_0"
    for name in ("card7", "renderD129"):
        machine.link(f"sys/devices/platform/amdgpu_xcp_0/drm/{name}/device", platform)
        machine.link(f"sys/class/drm/{name}", platform / "drm" / name)
    machine.held(10, 500, GIB)
    machine.held(10, 501, 2 * GIB)

    found = read(machine)

    assert only_gpu(found).card.cards == ("card1", "card7")
    assert [node.gpu_id for node in only_gpu(found).card.nodes] == [500, 501]
    assert only_gpu(found).held == {10: 3 * GIB}


@pytest.mark.parametrize("other", ["i915", None])
def test_cards_of_other_drivers_are_ignored(other: str | None, tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete())
    (machine.device() / "driver").unlink()
    if other:
        machine.link(f"sys/devices/pci0000:00/{PCI}/driver", tmp_path / "sys/bus/pci/drivers" / other)

    with pytest.raises(SourceUnavailable, match="no card of the driver amdgpu"):
        read(machine)


def test_no_drm_folder_makes_the_collector_unavailable(tmp_path: Path) -> None:
    """Most servers have no graphics folder, and that is normal."""
    with pytest.raises(SourceUnavailable, match="no card of the driver amdgpu"):
        Collector(Roots(tmp_path, tmp_path, tmp_path), 4096, GpuPids())
    with pytest.raises(SourceUnavailable, match="no card of the driver amdgpu"):
        Sensors(Roots(tmp_path, tmp_path, tmp_path))


def test_missing_vram_files_leave_the_device(tmp_path: Path) -> None:
    """Without mem_info_vram_* VRAM is not supported, which is not 0. GTT is still read."""
    machine = AmdMachine(tmp_path)
    machine.gpu({"mem_info_gtt_total": 8 * GIB, "mem_info_gtt_used": GIB})

    gpu = only_gpu(read(machine))

    assert gpu.vram == Region(Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED)
    assert gpu.gtt == Region(8 * GIB, GIB)


@pytest.mark.parametrize("text", ["N/A", "garbage", "-5", "", "9" * 30, str(25 * GIB), b"\xff\xff\xff"])
def test_invalid_values_are_skipped_and_counted(text: str | bytes, tmp_path: Path) -> None:
    """Only the invalid value is lost. The driver writes N/A for a value it does not have."""
    machine = AmdMachine(tmp_path)
    machine.gpu({**discrete(gtt_used=MIB), "mem_info_vram_used": text})

    found = read(machine)

    is_none = text == "N/A"
    assert only_gpu(found).vram.used_bytes is (Absent.NOT_SUPPORTED if is_none else Absent.INCONSISTENT)
    assert only_gpu(found).vram.total_bytes == 24 * GIB
    assert only_gpu(found).gtt.used_bytes == MIB
    assert found.rejected == (0 if is_none else 1)


def test_unreadable_file_makes_one_value_absent(tmp_path: Path) -> None:
    """The card stays, and no exception is raised."""
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete())
    figure = machine.device() / "mem_info_vram_used"
    figure.unlink()
    figure.mkdir()

    gpu = only_gpu(read(machine))

    assert gpu.state == "ok"
    assert gpu.vram.used_bytes is Absent.NOT_AVAILABLE


def test_open_files_are_read_again_each_tick(tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete(used=GIB))
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl())
    before = only_gpu(collector.collect())
    path = f"sys/devices/pci0000:00/{PCI}"

    machine.write(f"{path}/mem_info_vram_used", 2 * GIB)
    machine.write(f"{path}/mem_info_gtt_used", 3 * GIB)
    after = only_gpu(collector.collect())
    collector.close()

    assert (before.vram.used_bytes, before.gtt.used_bytes) == (GIB, 0)
    assert (after.vram.used_bytes, after.gtt.used_bytes) == (2 * GIB, 3 * GIB)


def test_new_card_is_found_at_the_next_rescan(tmp_path: Path) -> None:
    """A rescan does not happen at each tick."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu(discrete())
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    collector.collect()

    machine.gpu(discrete(vram=8 * GIB), pci="0000:0a:00.0", card=2)
    at_once = len(reading_of(collector.collect()).gpus)
    watch.now += RESCAN_SECONDS
    later = reading_of(collector.collect()).gpus
    collector.close()

    assert at_once == 1
    assert [gpu.card.vram_bytes for gpu in later] == [24 * GIB, 8 * GIB]


def test_unplugged_card_is_missing_and_keeps_its_number(tmp_path: Path) -> None:
    """Its values are absent. When it returns, it has the same number."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu(discrete(), pci="0000:03:00.0", card=1)
    machine.gpu(discrete(vram=8 * GIB), pci="0000:0a:00.0", card=2)
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    collector.collect()

    machine.unplug(card=1)
    watch.now += RESCAN_SECONDS
    without = reading_of(collector.collect()).gpus
    machine.plug(card=1)
    watch.now += RESCAN_SECONDS
    back = reading_of(collector.collect()).gpus
    collector.close()

    assert [(gpu.card.pci, gpu.state) for gpu in without] == [("0000:03:00.0", "missing"), ("0000:0a:00.0", "ok")]
    assert without[0].vram == Region(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert [gpu.state for gpu in back] == ["ok", "ok"]


def test_stale_descriptor_is_opened_again(tmp_path: Path) -> None:
    """After a driver reload the descriptor is dead and the path is not.

    The kernel's own files behave like this: oom_score of a process that has ended.
    """
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete())
    figure = machine.device() / "mem_info_vram_used"
    figure.unlink()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as owner:
        figure.symlink_to(f"/proc/{owner.pid}/oom_score")
        collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl())
        first = only_gpu(collector.collect())
        figure.unlink()
        figure.write_text(f"{5 * GIB}\n")
        unchanged = only_gpu(collector.collect())
    owner.wait()

    after = only_gpu(collector.collect())
    collector.close()

    assert isinstance(first.vram.used_bytes, int)
    assert unchanged.vram == first.vram
    assert after.vram.used_bytes == 5 * GIB


def test_changed_pages_limit_is_read_again(tmp_path: Path) -> None:
    """pages_limit is writable at run time. AMD's amdttm module takes precedence over the kernel's ttm."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu(discrete())
    machine.write("sys/module/ttm/parameters/pages_limit", 1000)
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    limits = [reading_of(collector.collect()).pages_limit_bytes]

    machine.write("sys/module/ttm/parameters/pages_limit", 2000)
    watch.now += RESCAN_SECONDS
    limits.append(reading_of(collector.collect()).pages_limit_bytes)
    machine.write("sys/module/amdttm/parameters/pages_limit", 3000)
    watch.now += RESCAN_SECONDS
    limits.append(reading_of(collector.collect()).pages_limit_bytes)
    collector.close()

    assert limits == [1000 * 4096, 2000 * 4096, 3000 * 4096]


def test_kfd_process_memory_is_read_every_held_seconds(tmp_path: Path) -> None:
    """It changes slowly. The pids are shared so that the process list keeps these processes."""
    machine, watch, pids = AmdMachine(tmp_path), ManualClock(), GpuPids()
    machine.gpu(discrete())
    machine.node(1, 77, 0x300, 24 * GIB)
    machine.held(4242, 77, GIB)
    machine.write("sys/class/kfd/kfd/proc/4242/context_3/vram_77", MIB)
    collector = Collector(machine.roots, 4096, pids, FakeIoctl(), watch)
    held = [only_gpu(collector.collect()).held]

    machine.held(4242, 77, 2 * GIB)
    machine.held(5555, 77, "garbage")
    held.append(only_gpu(collector.collect()).held)
    watch.now += HELD_SECONDS
    last = collector.collect()
    collector.close()

    assert held == [{4242: GIB + MIB}] * 2
    assert only_gpu(last).held == {4242: 2 * GIB + MIB}
    assert last.rejected == 1
    assert pids() == {4242}


def test_time_of_evicted_queues_adds_up_while_processes_come_and_go(tmp_path: Path) -> None:
    """The driver counts by process: time before the first reading is old, and that of an ended process stays."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu(discrete())
    machine.node(1, 77, 0x300, 24 * GIB)
    machine.held(4242, 77, GIB)
    machine.evicted(4242, 77, 90_000)
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    seconds = [reading_of(collector.collect()).evicted_seconds]

    for milliseconds in (92_500, 93_000):
        machine.evicted(4242, 77, milliseconds)
        machine.evicted(5555, 77, 7)
        watch.now += HELD_SECONDS
        seconds.append(reading_of(collector.collect()).evicted_seconds)
    shutil.rmtree(machine.folder / "sys/class/kfd/kfd/proc/4242")
    machine.evicted(5555, 77, 107)
    watch.now += HELD_SECONDS
    seconds.append(reading_of(collector.collect()).evicted_seconds)
    collector.close()

    assert [one["0000:03:00.0"] for one in seconds] == [0.0, 2.5, 3.0, 3.1]


UNDECIDED = {**memory(16 * GIB, GIB, 16 * GIB, 0), "device": "0xffff"}


def test_driver_ioctl_is_used_only_when_files_do_not_decide(tmp_path: Path) -> None:
    """Once at the start, for an ambiguous card. Not while polling, and not for a card that appears later."""
    machine, watch, ioctl = AmdMachine(tmp_path), ManualClock(), FakeIoctl(answer=True)
    machine.write("proc/sys/kernel/osrelease", "6.1.0")
    machine.gpu(UNDECIDED)
    machine.gpu(discrete(), pci="0000:0a:00.0", card=2)
    collector = Collector(machine.roots, 4096, GpuPids(), ioctl, watch)
    first = reading_of(collector.collect()).gpus
    machine.gpu(UNDECIDED, pci="0000:0b:00.0", card=3)
    watch.now += RESCAN_SECONDS
    later = reading_of(collector.collect()).gpus
    collector.close()

    assert ioctl.nodes == ["renderD128"]
    assert [gpu.card.is_fused for gpu in first] == [True, Absent.NOT_AVAILABLE]
    assert [gpu.card.is_fused for gpu in later] == [True, Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE]


def test_gpu_metrics_format_takes_precedence_over_the_ioctl(tmp_path: Path) -> None:
    """The file of an awake GPU is read before its device node is opened."""
    machine, ioctl = AmdMachine(tmp_path), FakeIoctl(answer=False)
    machine.write("proc/sys/kernel/osrelease", "6.1.0")
    machine.gpu({**UNDECIDED, "gpu_metrics": b"\x80\x00\x02\x01" + bytes(124)})

    collector = Collector(machine.roots, 4096, GpuPids(), ioctl)
    gpu = only_gpu(collector.collect())
    collector.close()

    assert gpu.card.metrics_format == 2
    assert ioctl.nodes == []


def test_suspended_card_is_not_woken(tmp_path: Path) -> None:
    """Memory files touch only the driver and are read; gpu_metrics and device nodes are left alone."""
    machine, ioctl = AmdMachine(tmp_path), FakeIoctl(answer=False)
    machine.write("proc/sys/kernel/osrelease", "6.1.0")
    sleeping: dict[str, str | bytes | int] = {
        "power/control": "auto",
        "power/runtime_status": "suspended",
        "gpu_metrics": b"\x70\x00\x01\x03",
        "gpu_busy_percent": 0,
    }
    machine.gpu({**UNDECIDED, **sleeping})

    collector = Collector(machine.roots, 4096, GpuPids(), ioctl)
    gpu = only_gpu(collector.collect())
    collector.close()
    sensed = Sensors(machine.roots).collect()

    assert gpu.runtime_status == "suspended"
    assert gpu.vram == Region(16 * GIB, GIB)
    assert gpu.card.metrics_format is Absent.NOT_AVAILABLE
    assert ioctl.nodes == []
    assert sensed.amdgpu_sensors == {}


def test_card_with_runtime_pm_is_not_kept_awake(tmp_path: Path) -> None:
    """Reading its utilization would restart the autosuspend delay each time."""
    machine = AmdMachine(tmp_path)
    machine.gpu({**discrete(), "power/control": "auto", "gpu_busy_percent": 3, "mem_busy_percent": 1})

    assert Sensors(machine.roots).collect().amdgpu_sensors == {}


def test_memory_errors_are_read_once_a_minute(tmp_path: Path) -> None:
    """Utilization is read each time. Error counters are a firmware query and therefore rare."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu({**discrete(), "gpu_busy_percent": 50, "ras/umc_err_count": "ue: 0\nce: 1"})
    sensors = Sensors(machine.roots, watch)
    sensors.collect()

    path = f"sys/devices/pci0000:00/{PCI}"
    machine.write(f"{path}/ras/umc_err_count", "ue: 1\nce: 5")
    machine.write(f"{path}/gpu_busy_percent", 60)
    soon = sensors.collect().amdgpu_sensors
    watch.now += ERRORS_SECONDS
    later = sensors.collect().amdgpu_sensors

    assert soon is not None
    assert later is not None
    assert soon[PCI].busy_ratio == 0.6
    assert soon[PCI].memory_busy_ratio is Absent.NOT_SUPPORTED
    assert soon[PCI].errors == {"ecc_uncorrected": 0, "ecc_corrected": 1}
    assert later[PCI].errors == {"ecc_uncorrected": 1, "ecc_corrected": 5}


def test_suspended_copy_of_a_machine_has_the_same_memory(tmp_path: Path) -> None:
    """A recorded machine with its GPU suspended: only the power state differs."""
    shutil.copytree(machine_folder("rx-7900-xtx").roots.sysfs, tmp_path / "sys", symlinks=True)
    machine = AmdMachine(tmp_path)
    (status,) = (tmp_path / "sys/devices").rglob("power/runtime_status")
    status.write_text("suspended\n")

    awake, asleep = only_gpu(read_folder("rx-7900-xtx")), only_gpu(read(machine))

    assert asleep.runtime_status == "suspended"
    assert replace(asleep, runtime_status="active", card=awake.card) == awake
