"""Graphics cards and who uses them, from files alone: nobody is counted twice, nothing is lost quietly."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memwatch.collectors.drm import IDLE_PERIOD_SECONDS, PERIOD_SECONDS, Collector
from memwatch.drivers.drm.clients import DESCRIPTORS_A_ROUND, QUIET_ROUNDS, ClientScanner
from memwatch.drivers.drm.records import DrmClient, DrmReading
from memwatch.linux.pci import GpuPids
from memwatch.linux.process_files import find_living_thread
from memwatch.model import Absent
from support.calibration import COLD_SECONDS, seconds_of_work, slowness
from support.drm_machine import KERNEL_THREAD, DrmMachine, fdinfo
from support.waiting import wait_until
from support.zombie_leader import zombie_leader

MIB, GIB = 1 << 20, 1 << 30
IGPU, DGPU = "0000:00:02.0", "0000:03:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> DrmMachine:
    """A laptop with an integrated GPU of Intel's under xe, and one process that has nothing to do with it."""
    laptop = DrmMachine(tmp_path)
    laptop.card("card0", "xe", IGPU, device="0x64a0", power__runtime_status="active")
    laptop.process(1, "systemd")
    return laptop


# A second witness counts before and after: who has a command line. Kernel threads have none, nor have zombies.
AS_NOBODY = """
import os
from contextlib import suppress
from pathlib import Path
from memwatch.drivers.drm.clients import ClientScanner

def people():
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
before, scan, after = people(), clients.scan(), people()
print(scan.seen, scan.unreadable, len(scan.held), before, after)
"""


def collector_of(machine: DrmMachine, pids: GpuPids | None = None) -> Collector:
    return Collector(machine.roots, pids or GpuPids())


def reading(collector: Collector) -> DrmReading:
    found = collector.collect().drm
    assert found is not None
    return found


def resident(clients: tuple[DrmClient, ...]) -> dict[tuple[int, ...], int]:
    return {client.pids: sum(client.resident.values()) for client in clients}


def test_what_a_process_holds(machine: DrmMachine) -> None:
    """Two descriptors of one client, a second client, and an inherited one: each client once, with its owners."""
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


def test_a_process_in_a_root_of_its_own_has_the_same_gpu(machine: DrmMachine) -> None:
    """Its link shows where that root lies; files that only sound alike are no devices."""
    text = fdinfo("xe", 12, IGPU, gtt="1 MiB")
    machine.opens(2100, 7, text, "/srv/chroot/dev/dri/renderD128")
    machine.opens(2200, 7, text, "/home/ada/dev/dri/notes/renderD128")
    machine.opens(2300, 7, text, "/home/ada/dev/drizzle")

    (client,) = reading(collector_of(machine)).clients

    assert (client.node, client.pids) == ("renderD128", (2100,))


def test_a_client_without_memory_is_nobody_to_list(machine: DrmMachine) -> None:
    """The session manager keeps the card open for others and holds nothing."""
    machine.opens(700, 20, fdinfo("xe", 2, IGPU, gtt="0"), "/dev/dri/card0")
    pids = GpuPids()

    found = reading(collector_of(machine, pids))

    assert resident(found.clients) == {(700,): 0}
    assert pids() == frozenset()


def test_neural_engines_are_found_beside_gpus(machine: DrmMachine) -> None:
    """/dev/accel is looked at too; the client says which driver it belongs to."""
    machine.opens(2100, 7, fdinfo("intel_vpu", 3, "0000:00:0b.0", memory="96 MiB"), "/dev/accel/accel0")

    (client,) = reading(collector_of(machine)).clients

    assert (client.driver, client.node, client.resident) == ("intel_vpu", "accel0", {"memory": 96 * MIB})


def test_a_new_gpu_client_is_seen_in_the_next_round(machine: DrmMachine) -> None:
    """A new process, and an old one that opens the GPU only now; both gone again when they are gone."""
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


def test_figures_are_read_anew_each_round(machine: DrmMachine) -> None:
    """What was learned about a process is where its descriptors are, never what they hold."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.says(2100, 7, fdinfo("xe", 12, IGPU, gtt="64 MiB"))

    assert resident(reading(collector).clients) == {(2100,): 64 * MIB}


def test_a_descriptor_that_became_something_else_is_noticed(machine: DrmMachine) -> None:
    """The number is a file's by now: nothing is read out of it, and the process is looked through again."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.says(2100, 7, "pos:\t0\nflags:\t02\nmnt_id:\t15\n")

    assert reading(collector).clients == ()


def test_a_process_id_used_again_is_another_process(machine: DrmMachine) -> None:
    """The folder in /proc is another one, so nothing that was known of the first owner is believed."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    collector = collector_of(machine)
    reading(collector)

    machine.ends(2100)
    machine.opens(2100, 30, fdinfo("xe", 90, IGPU, gtt="3 MiB"))

    assert [client.client_id for client in reading(collector).clients] == [90]


def test_what_vanishes_in_between_is_counted_and_the_rest_stands(machine: DrmMachine) -> None:
    """ENOENT in the middle of a round: one process is unreadable, the figures of the others are there."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    machine.opens(2200, 7, fdinfo("xe", 13, IGPU, gtt="2 MiB"))
    (machine.roots.procfs / "2200/fdinfo/7").unlink()

    found = reading(collector_of(machine))

    assert resident(found.clients) == {(2100,): MIB}
    assert (found.seen, found.unreadable) == (3, 1)


def test_other_peoples_processes_are_unreadable_and_kernel_threads_are_not_people() -> None:
    """On this very machine, as nobody: most processes cannot be looked into, and each of them is counted.

    Thirty that have ended, and whose end nobody has asked for, are none.
    """
    ended = [subprocess.Popen(["true"]) for _ in range(30)]
    wait_until(lambda: all(Path(f"/proc/{one.pid}/cmdline").read_bytes() == b"" for one in ended))
    done = subprocess.run([sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, check=False)
    for one in ended:
        one.wait()

    assert done.returncode == 0, done.stderr
    seen, unreadable, held, before, after = map(int, done.stdout.split())
    assert 0 < unreadable < seen
    assert held == 0
    assert min(before, after) - 10 <= seen <= max(before, after) + 10


def test_a_process_that_has_ended_lacks_nothing(machine: DrmMachine) -> None:
    """A zombie's descriptors may be looked into by nobody, and there are none."""
    folder = machine.process(7, "gone", files=0, state="Z")
    (folder / "fd").chmod(0)
    collector = collector_of(machine)

    assert [reading(collector).seen for _ in range(3)] == [1, 1, 1]


def test_what_a_process_has_open_whose_first_thread_has_ended(machine: DrmMachine) -> None:
    """Its state says zombie as well, and it has no files: they are its other threads', whichever goes on."""
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


def test_real_descriptors_of_a_process_whose_first_thread_has_ended() -> None:
    """On this kernel: nothing under its own number, as much as before under the other thread's."""
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
    """They open no GPU, and where they cannot be looked into nothing is missing."""
    machine.process(2, "kthreadd", KERNEL_THREAD, files=0)
    collector = collector_of(machine)

    assert [reading(collector).seen for _ in range(3)] == [1, 1, 1]


def test_this_kernel_tells_how_many_descriptors_are_open() -> None:
    """The size of /proc/<pid>/fd is their number since Linux 6.2; before, it is 0, and we look more often."""
    before = os.stat("/proc/self/fd").st_size
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    after = os.stat("/proc/self/fd").st_size
    for file in files:
        os.close(file)
    version = tuple(int(part) for part in os.uname().release.split(".")[:2])

    assert after - before == (5 if version >= (6, 2) else 0)


def test_one_that_closed_as_many_as_it_opened_is_found_in_time(machine: DrmMachine) -> None:
    """Nothing about such a process seems to have changed, so it is looked through after a while all the same."""
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


def test_a_sleeping_gpu_is_not_woken(machine: DrmMachine) -> None:
    """While xe's GPU is suspended its clients' files stay closed, and what they held when it fell asleep stands."""
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


def test_the_newest_kernels_have_a_second_witness(machine: DrmMachine) -> None:
    """GPUActive and GPUReclaim of /proc/meminfo where they are; else it says that this kernel has none."""
    collector = collector_of(machine)
    without = reading(collector)
    lines = "MemTotal: 32000000 kB\nGPUActive:       1268776 kB\nGPUReclaim:       880000 kB\n"
    (machine.roots.procfs / "meminfo").write_text(lines)

    found = reading(collector)

    assert without.gpu_active_bytes is Absent.NOT_SUPPORTED
    assert (found.gpu_active_bytes, found.gpu_reclaim_bytes) == (1268776 << 10, 880000 << 10)


def test_lines_that_are_no_figures_are_counted(machine: DrmMachine) -> None:
    """By key in the reading, and in sum as what this round rejected."""
    nonsense = ("drm-resident-vram0:\t8 GiB", "drm-shared-vram0:\tN/A")
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, *nonsense, gtt="1 MiB"))

    found = collector_of(machine).collect()

    assert found.drm is not None
    assert found.drm.rejected == {"drm-resident-vram0": 1, "drm-shared-vram0": 1}
    assert found.rejected == 2


def test_it_looks_less_often_while_nobody_uses_a_gpu(machine: DrmMachine) -> None:
    """Ten seconds without clients, five with."""
    collector = collector_of(machine)
    reading(collector)
    idle = collector.period_seconds
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    reading(collector)

    assert (idle, collector.period_seconds) == (IDLE_PERIOD_SECONDS, PERIOD_SECONDS)


@pytest.mark.alone
def test_a_round_over_500_processes_costs_little(tmp_path: Path) -> None:
    """20 GPU clients on two descriptors each among 500 processes: at most 5 ms of CPU a round."""
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
    sys.settrace(None)  # what is measured is ours, not coverage's
    spent, beside = zip(*[(cpu_ms(collector), seconds_of_work()) for _ in range(80)], strict=True)
    sys.settrace(traced)

    first, later = spent[0], statistics.median(spent[1:])
    slow = slowness(statistics.median(beside), COLD_SECONDS)
    print(f"first round {first:.1f} ms, later {later:.2f} ms, {slow:.2f} times as slow as usual")
    assert later < 5.0 * slow


def cpu_ms(collector: Collector) -> float:
    started = time.thread_time()
    found = collector.collect()
    spent = (time.thread_time() - started) * 1e3
    assert found.drm is not None
    assert (len(found.drm.clients), found.drm.seen) == (20, 500)
    return spent


def test_a_process_with_thousands_of_descriptors_is_not_looked_through_all_the_time(tmp_path: Path) -> None:
    """A server whose number of sockets wavers would cost 3 µs for each of them in every round."""
    machine = DrmMachine(tmp_path)
    machine.process(500, "nginx", files=4 * DESCRIPTORS_A_ROUND)
    clients = ClientScanner(machine.roots.procfs)
    clients.scan()

    machine.opens(500, 9999, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    seen = [len(clients.scan().held) for _ in range(5)]
    clients.close()

    assert seen == [0, 0, 0, 1, 1]
