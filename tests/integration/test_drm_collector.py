"""The drm collector: GPU clients from fdinfo, each counted once, and unreadable processes counted."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memwatch.core.collectors.drm import IDLE_PERIOD_SECONDS, PERIOD_SECONDS, Collector
from memwatch.core.drivers.drm.clients import DESCRIPTORS_A_ROUND, QUIET_ROUNDS, ClientScanner
from memwatch.core.drivers.drm.records import DrmClient, DrmReading
from memwatch.core.linux.pci import GpuPids
from memwatch.core.linux.process_files import find_living_thread
from memwatch.core.model import Absent
from simulators.drm_machine import KERNEL_THREAD, DrmMachine, fdinfo
from support.budget import within
from support.calibration import COLD_SECONDS, seconds_of_work, slowness
from support.open_things import close_at_end
from support.waiting import wait_until
from support.zombie_leader import zombie_leader

MIB, GIB = 1 << 20, 1 << 30
IGPU, DGPU = "0000:00:02.0", "0000:03:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> DrmMachine:
    """A laptop with an integrated Intel GPU (xe) and one process that does not use it."""
    laptop = DrmMachine(tmp_path)
    laptop.card("card0", "xe", IGPU, device="0x64a0", power__runtime_status="active")
    laptop.process(1, "systemd")
    return laptop


# Count processes with a command line before and after, as a check. Kernel threads and zombies have none.
AS_UNPRIVILEGED = """
import os
from contextlib import suppress
from pathlib import Path
from memwatch.core.drivers.drm.clients import ClientScanner

def count_processes():
    found = 0
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            found += folder.name.isdecimal() and (folder / "cmdline").read_bytes() != b""
    return found

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
clients = ClientScanner(Path("/proc"))
before, scan, after = count_processes(), clients.scan(), count_processes()
print(scan.seen, scan.unreadable, len(scan.held), before, after)
"""


def collector_of(machine: DrmMachine, pids: GpuPids | None = None) -> Collector:
    return close_at_end(Collector(machine.roots, pids or GpuPids()))


def reading(collector: Collector) -> DrmReading:
    found = collector.collect().drm
    assert found is not None
    return found


def resident(clients: tuple[DrmClient, ...]) -> dict[tuple[int, ...], int]:
    return {client.pids: sum(client.resident.values()) for client in clients}


def test_each_drm_client_is_counted_once_with_its_processes(machine: DrmMachine) -> None:
    """Two descriptors of one client, a second client, and a client inherited by another process."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="512 MiB", system="4 KiB"))
    machine.opens(2100, 9, fdinfo("xe", 12, IGPU, gtt="512 MiB", system="4 KiB"))
    machine.opens(2100, 11, fdinfo("xe", 13, IGPU, gtt="1 MiB"))
    machine.opens(2200, 5, fdinfo("xe", 14, IGPU, gtt="2 MiB"))
    machine.opens(2201, 5, fdinfo("xe", 14, IGPU, gtt="2 MiB"), "/dev/dri/renderD128 (deleted)")
    pids = GpuPids()

    found = reading(collector_of(machine, pids))

    assert [(client.client_id, client.pids) for client in found.clients] == [
        (12, (2100,)),
        (13, (2100,)),
        (14, (2200, 2201)),
    ]
    assert found.clients[0].resident == {"gtt": 512 * MIB, "system": 4096}
    assert {client.node for client in found.clients} == {"renderD128"}
    assert (found.seen, found.unreadable) == (4, 0)
    assert pids() == {2100, 2200, 2201}


def test_process_in_a_chroot_has_the_same_gpu(machine: DrmMachine) -> None:
    """Its link starts with the chroot's path. Files with similar names are not devices."""
    text = fdinfo("xe", 12, IGPU, gtt="1 MiB")
    machine.opens(2100, 7, text, "/srv/chroot/dev/dri/renderD128")
    (machine.roots.procfs / "2100/root").symlink_to("/srv/chroot")
    machine.opens(2200, 7, text, "/home/ada/dev/dri/notes/renderD128")
    machine.opens(2300, 7, text, "/home/ada/dev/drizzle")

    (client,) = reading(collector_of(machine)).clients

    assert (client.node, client.pids) == ("renderD128", (2100,))


@pytest.mark.parametrize("target", ["folder/dev/dri/renderD128", "folder/dev/accel/accel0"])
def test_file_of_a_user_is_no_device(machine: DrmMachine, tmp_path: Path, target: str) -> None:
    """It would count as a holder of the GPU whose memory is not known."""
    file = tmp_path / target
    file.parent.mkdir(parents=True)
    file.write_text("")
    machine.opens(2100, 7, "pos:\t0\nflags:\t02\nmnt_id:\t24\n", str(file))
    (machine.roots.procfs / "2100/root").symlink_to("/")
    assert reading(collector_of(machine)).mute == {}
    # In the root folder of a container, where its root makes any file.
    (machine.roots.procfs / "2100/root").unlink()
    (machine.roots.procfs / "2100/root").symlink_to(tmp_path / "folder")
    assert reading(collector_of(machine)).mute == {}
    file.unlink()
    assert reading(collector_of(machine)).mute == {file.name: (2100,)}


def test_client_without_memory_is_not_a_gpu_process(machine: DrmMachine) -> None:
    """The session manager keeps the card open for others and holds no buffers."""
    machine.opens(700, 20, fdinfo("xe", 2, IGPU, gtt="0"), "/dev/dri/card0")
    pids = GpuPids()

    found = reading(collector_of(machine, pids))

    assert resident(found.clients) == {(700,): 0}
    assert pids() == frozenset()


def test_npu_clients_are_found(machine: DrmMachine) -> None:
    """/dev/accel is scanned as well. fdinfo names the driver."""
    machine.opens(2100, 7, fdinfo("intel_vpu", 3, "0000:00:0b.0", memory="96 MiB"), "/dev/accel/accel0")

    (client,) = reading(collector_of(machine)).clients

    assert (client.driver, client.node, client.resident) == ("intel_vpu", "accel0", {"memory": 96 * MIB})


def test_new_gpu_client_is_found_in_the_next_round(machine: DrmMachine) -> None:
    """A new process, and a running one that opens the GPU now. Both disappear when they end or close it."""
    machine.process(900)
    collector = collector_of(machine)
    before = reading(collector)

    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    machine.opens(900, 7, fdinfo("xe", 13, IGPU, gtt="2 MiB"))
    during = reading(collector)
    machine.ends(2100)
    machine.closes(900, 7)
    after = reading(collector)

    assert before.clients == ()
    assert resident(during.clients) == {(2100,): MIB, (900,): 2 * MIB}
    assert (after.clients, after.unreadable) == ((), 0)


def test_client_memory_is_read_each_round(machine: DrmMachine) -> None:
    """Only the descriptor numbers of a process are cached."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.says(2100, 7, fdinfo("xe", 12, IGPU, gtt="64 MiB"))

    assert resident(reading(collector).clients) == {(2100,): 64 * MIB}


def test_reused_descriptor_is_no_client(machine: DrmMachine) -> None:
    """The number now belongs to a file: the process is scanned again."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.says(2100, 7, "pos:\t0\nflags:\t02\nmnt_id:\t15\n")

    assert reading(collector).clients == ()


def test_reused_pid_is_another_process(machine: DrmMachine) -> None:
    """The folder in /proc is another one, so cached descriptors of the first process are dropped."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.ends(2100)
    machine.opens(2100, 30, fdinfo("xe", 90, IGPU, gtt="3 MiB"))

    assert [client.client_id for client in reading(collector).clients] == [90]


def test_vanished_descriptor_makes_one_process_unreadable(machine: DrmMachine) -> None:
    """ENOENT during a round: the values of other processes are kept."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    machine.opens(2200, 7, fdinfo("xe", 13, IGPU, gtt="2 MiB"))
    (machine.roots.procfs / "2200/fdinfo/7").unlink()

    found = reading(collector_of(machine))

    assert resident(found.clients) == {(2100,): MIB}
    assert (found.seen, found.unreadable) == (3, 1)


def test_processes_of_other_users_are_counted_as_unreadable() -> None:
    """On this machine, as an unprivileged user. Kernel threads are not counted.

    Thirty zombies, which no parent has waited for, are not counted either.
    """
    ended = [subprocess.Popen(["true"]) for _ in range(30)]
    wait_until(lambda: all(Path(f"/proc/{one.pid}/cmdline").read_bytes() == b"" for one in ended))
    done = subprocess.run([sys.executable, "-c", AS_UNPRIVILEGED], capture_output=True, text=True, check=False)
    for one in ended:
        one.wait()

    assert done.returncode == 0, done.stderr
    seen, unreadable, held, before, after = map(int, done.stdout.split())
    assert 0 < unreadable < seen
    assert held == 0
    assert min(before, after) - 10 <= seen <= max(before, after) + 10


def test_zombie_is_not_unreadable(machine: DrmMachine) -> None:
    """Its fd folder is inaccessible, but it has no descriptors."""
    folder = machine.process(7, "gone", files=0, state="Z")
    (folder / "fd").chmod(0)
    collector = collector_of(machine)

    assert [reading(collector).seen for _ in range(3)] == [1, 1, 1]


def test_descriptors_of_other_threads_are_found_after_the_first_exits(machine: DrmMachine) -> None:
    """The process is in state Z and lists no files. They belong to its living threads."""
    machine.process(7, "going on", files=0, state="Z", threads=3)
    for thread in (8, 9):
        machine.opens_in_thread(7, thread, 5, fdinfo("xe", 1, IGPU, gtt="640 KiB"))
    collector = collector_of(machine)
    first = reading(collector)
    machine.thread_ends(7, 8)
    second, third = reading(collector), reading(collector)
    machine.thread_ends(7, 9)

    assert [(client.pids, client.resident) for client in first.clients] == [((7,), {"gtt": 640 << 10})]
    assert first.clients == second.clients == third.clients
    assert first.seen == third.seen == 2
    assert reading(collector).clients == ()


def test_kernel_lists_descriptors_under_a_living_thread() -> None:
    """On this kernel: none under the process id, all of them under the other thread's id."""
    with zombie_leader(1) as process:
        before = len(os.listdir(f"/proc/{process.pid}/fd"))
        process.end_first_thread()
        folder = os.open("/proc", os.O_RDONLY)
        thread = find_living_thread(folder, f"{process.pid}/task")
        os.close(folder)
        assert thread is not None
        own, other = f"/proc/{process.pid}/fd", f"/proc/{thread[0]}/fd"
        assert (len(os.listdir(own)), len(os.listdir(other))) == (0, before)


def test_kernel_threads_are_not_counted(machine: DrmMachine) -> None:
    """They open no GPU, so an unreadable one misses nothing."""
    machine.process(2, "kthreadd", KERNEL_THREAD, files=0)
    collector = collector_of(machine)

    assert [reading(collector).seen for _ in range(3)] == [1, 1, 1]


def test_size_of_the_fd_folder_is_the_descriptor_count() -> None:
    """Since Linux 6.2 it is their number. Before, it is 0, and processes are scanned more often."""
    before = os.stat("/proc/self/fd").st_size
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    after = os.stat("/proc/self/fd").st_size
    for file in files:
        os.close(file)
    version = tuple(int(part) for part in os.uname().release.split(".")[:2])

    assert after - before == (5 if version >= (6, 2) else 0)


def test_unchanged_descriptor_count_is_rescanned_after_quiet_rounds(machine: DrmMachine) -> None:
    """A process that closes as many files as it opens shows no change."""
    folder = machine.process(900, files=5) / "fd"
    collector = collector_of(machine)
    reading(collector)

    before = folder.stat()
    machine.opens(900, 7, fdinfo("xe", 13, IGPU, gtt="2 MiB"))
    (folder / "4").unlink()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    rounds = [len(reading(collector).clients) for _ in range(QUIET_ROUNDS + 2)]

    assert rounds[0] == 0
    assert rounds[-1] == 1


def test_suspended_gpu_is_not_woken(machine: DrmMachine) -> None:
    """While xe's GPU is suspended, fdinfo of its clients is not read, and their last values are kept."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)
    status = machine.roots.sysfs / "class/drm/card0/device/power/runtime_status"

    status.write_text("suspended\n")
    machine.says(2100, 7, fdinfo("xe", 12, IGPU, gtt="9 MiB"))
    machine.opens(2300, 7, fdinfo("xe", 15, IGPU, gtt="5 MiB"))
    asleep = reading(collector)
    status.write_text("active\n")
    awake = reading(collector)

    assert resident(asleep.clients) == {(2100,): MIB}
    assert asleep.unreadable == 1
    assert resident(awake.clients) == {(2100,): 9 * MIB, (2300,): 5 * MIB}


def test_gpu_active_is_read_from_meminfo(machine: DrmMachine) -> None:
    """A line of new kernels; not supported on others."""
    collector = collector_of(machine)
    without = reading(collector)
    lines = "MemTotal: 32000000 kB\nGPUActive:       1268776 kB\nGPUReclaim:       880000 kB\n"
    (machine.roots.procfs / "meminfo").write_text(lines)

    found = reading(collector)

    assert without.gpu_active_bytes is Absent.NOT_SUPPORTED
    assert found.gpu_active_bytes == 1268776 << 10


def test_invalid_values_are_counted(machine: DrmMachine) -> None:
    """By key in the reading, and in total for the round."""
    nonsense = ("drm-resident-vram0:\t8 GiB", "drm-shared-vram0:\tN/A")
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, *nonsense, gtt="1 MiB"))

    found = collector_of(machine).collect()

    assert found.drm is not None
    assert found.drm.rejected == {"drm-resident-vram0": 1, "drm-shared-vram0": 1}
    assert found.rejected == 2


def test_period_is_longer_without_clients(machine: DrmMachine) -> None:
    """Ten seconds without clients, five with."""
    collector = collector_of(machine)
    reading(collector)
    idle = collector.period_seconds
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    reading(collector)

    assert (idle, collector.period_seconds) == (IDLE_PERIOD_SECONDS, PERIOD_SECONDS)


@pytest.mark.measure
def test_round_over_500_processes_takes_at_most_5_ms(tmp_path: Path) -> None:
    """CPU time of a round with 20 GPU clients of two descriptors each."""
    machine = DrmMachine(tmp_path)
    machine.card("card0", "xe", IGPU)
    for pid in range(1000, 1480):
        machine.process(pid, files=10)
    for pid in range(2000, 2020):
        machine.process(pid, files=30)
        for fd in (31, 32):
            machine.opens(pid, fd, fdinfo("xe", pid, IGPU, system="0", gtt="192 KiB", vram0="0", stolen="0"))
    collector = collector_of(machine)

    traced = sys.gettrace()
    sys.settrace(None)  # measure the collector without coverage
    spent, calibration = zip(*[(cpu_ms(collector), seconds_of_work()) for _ in range(80)], strict=True)
    sys.settrace(traced)

    later = statistics.median(spent[1:])
    slow = slowness(statistics.median(calibration), COLD_SECONDS)
    within("round over 500 processes", later, 5.0 * slow, "ms")


def cpu_ms(collector: Collector) -> float:
    started = time.thread_time()
    found = collector.collect()
    spent = (time.thread_time() - started) * 1e3
    assert found.drm is not None
    assert (len(found.drm.clients), found.drm.seen) == (20, 500)
    return spent


def test_process_with_thousands_of_descriptors_is_scanned_less_often(tmp_path: Path) -> None:
    """A server with a changing number of sockets would cost 3 µs per descriptor in every round."""
    machine = DrmMachine(tmp_path)
    machine.process(500, "nginx", files=4 * DESCRIPTORS_A_ROUND)
    clients = ClientScanner(machine.roots.procfs)
    clients.scan()

    machine.opens(500, 9999, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    seen = [len(clients.scan().held) for _ in range(5)]
    clients.close()

    assert seen == [0, 0, 0, 1, 1]
