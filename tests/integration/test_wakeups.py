"""Events of the kernel that end the wait for the next tick: its log, and the limit of a cgroup."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.collectors import kmsg
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.memory_events import MemoryEvents, find_limited_group
from memwatch.core.linux.wakeups import Wake, Wakeups
from memwatch.core.reading.sampler import Sampler
from support.budget import within
from support.daemon_process import running_daemon
from support.fakes import FakeClock, FakeCollector
from support.kmsg_samples import GLOBAL_KILL, MEMCG_KILL, NO_MEMORY, UNRELATED, XID_79, record
from support.memory_cgroup import HOG, memory_cgroup
from support.paths import MACHINES
from support.waiting import Stopwatch, wait_until

MIB = 1 << 20
HOUR = 3600.0
USB = "usb 1-1: new high-speed USB device number 7 using xhci_hcd"


class Log:
    """A kernel log that is a pipe, as in some containers, with its collector."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dev/kmsg"
        self.path.parent.mkdir(parents=True)
        os.mkfifo(self.path)
        self.collector = kmsg.Collector(Roots(rootfs=folder))
        self.wakeups = Wakeups(more=lambda: [self.collector])
        self._writer = os.open(self.path, os.O_WRONLY)
        self._sequence = 0

    def write(self, *lines: str, priority: int = 3) -> None:
        text = ""
        for line in lines:
            self._sequence += 1
            text += record(line, self._sequence, priority)
        os.write(self._writer, text.encode())

    def wait(self, seconds: float) -> Wake:
        return self.wakeups.wait(seconds, threading.Event())

    def close_writer(self) -> None:
        os.close(self._writer)
        self._writer = -1

    def close(self) -> None:
        self.wakeups.close()
        self.collector.close()
        if self._writer >= 0:
            self.close_writer()

    @contextmanager
    def repeating(self, line: str, per_second: float) -> Iterator[None]:
        """Write this line again and again."""
        over = threading.Event()

        def write() -> None:
            while not over.wait(1 / per_second):
                self.write(line)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Yield an empty kernel log."""
    log = Log(tmp_path / "root")
    yield log
    log.close()


@pytest.mark.parametrize("lines", [MEMCG_KILL, GLOBAL_KILL, (XID_79,), (NO_MEMORY,)])
def test_kill_or_driver_error_in_the_kernel_log_ends_the_wait(log: Log, lines: tuple[str, ...]) -> None:
    """The wait of an hour ends, and the collector has read the line."""
    threading.Timer(0.05, lambda: log.write(*lines)).start()

    wake = log.wait(HOUR)

    assert wake is Wake.NEWS
    found = log.collector.collect().kernel_log
    assert found is not None
    assert len(found.kills) + len(found.driver_errors) == 1


@pytest.mark.parametrize(("lines", "priority"), [(UNRELATED, 3), ((USB,), 3), (GLOBAL_KILL, 14)])
def test_other_lines_do_not_end_the_wait(log: Log, lines: tuple[str, ...], priority: int) -> None:
    """Boot messages, other devices, and lines that a program has written."""
    log.write(*lines, priority=priority)
    started = time.monotonic()

    assert log.wait(0.2) is Wake.DUE
    assert time.monotonic() - started >= 0.19


def test_kill_is_seen_behind_the_lines_of_its_report(log: Log) -> None:
    """The kernel lists every task first. The pause after the first lines is short."""
    log.write("python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0")
    threading.Timer(0.02, lambda: log.write(*[f"[ {pid}] 0 {pid} 1000 10 1" for pid in range(100)])).start()
    threading.Timer(0.04, lambda: log.write(*MEMCG_KILL)).start()

    assert log.wait(HOUR) is Wake.NEWS


@pytest.mark.measure
def test_chatty_kernel_log_costs_little(log: Log) -> None:
    """Ten lines a second about other devices: no tick, and at most half a percent of a CPU."""
    with log.repeating(USB, 10):
        cpu, started = time.thread_time(), time.monotonic()
        wakes = [log.wait(0.5) for _ in range(2)]
        cpu, seconds = time.thread_time() - cpu, time.monotonic() - started

    assert wakes == [Wake.DUE] * 2
    within("CPU beside a chatty kernel log", cpu / seconds, 0.005, "cores")


@pytest.mark.parametrize(("line", "news"), [(NO_MEMORY, True), (USB, False)])
def test_flood_of_lines_wakes_the_loop_at_most_twenty_times_a_second(log: Log, line: str, news: bool) -> None:
    """A line every millisecond: errors of a driver, and lines of other devices, which need no tick at all."""
    reads = 0
    read_event = log.collector.read_event

    def count(happened: int) -> Wake:
        nonlocal reads
        reads += 1
        return read_event(happened)

    log.collector.read_event = count  # type: ignore[method-assign]
    with log.repeating(line, 1000):
        until, wakes = time.monotonic() + 1.0, 0
        while (left := until - time.monotonic()) > 0:
            wakes += log.wait(left) is Wake.NEWS

    assert (wakes > 5) == news
    assert wakes <= 21
    assert reads <= 25


def test_writer_that_closes_the_pipe_causes_no_busy_loop(log: Log) -> None:
    """poll(2) reports POLLHUP from then on. Lines are read on ticks."""
    log.write(USB)
    log.close_writer()
    log.wait(0.1)
    cpu = time.thread_time()

    assert log.wait(0.2) is Wake.DUE
    assert time.thread_time() - cpu < 0.01


def test_copy_of_a_log_is_not_watched(tmp_path: Path) -> None:
    """A regular file is always readable for poll(2)."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")

    collector = kmsg.Collector(Roots(rootfs=tmp_path))
    file = collector.event_file
    collector.close()

    assert file == -1


class Container:
    """Files of a cgroup with a limit inside one without."""

    def __init__(self, folder: Path, limit: str = "1073741824") -> None:
        self.roots = Roots(folder / "proc", folder / "sys", folder)
        self.group = folder / "sys/fs/cgroup/job"
        (self.group / "worker").mkdir(parents=True)
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/cgroup").write_text("0::/job/worker\n")
        (folder / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        for group in (self.group, self.group / "worker"):
            (group / "memory.max").write_text(f"{limit if group is self.group else 'max'}\n")
            (group / "memory.events").write_text(events())

    def count(self, **counts: int) -> None:
        (self.group / "memory.events").write_text(events(**counts))


def events(max: int = 0, oom: int = 0, oom_kill: int = 0) -> str:  # noqa: A002  the kernel's name
    return f"low 0\nhigh 0\nmax {max}\noom {oom}\noom_kill {oom_kill}\noom_group_kill 0\n"


def waits_for(container: Container, *changes: dict[str, int]) -> list[Wake]:
    """Return how the wait after each change of the counts ends."""
    watch = MemoryEvents(container.roots)
    wakeups, wakes = Wakeups([watch]), []
    for change in changes:
        container.count(**change)
        wakes.append(wakeups.wait(0.15, threading.Event()))
    wakeups.close()
    watch.close()
    return wakes


def test_oom_event_of_the_limiting_cgroup_ends_the_wait(tmp_path: Path) -> None:
    """Reclaim at the limit (`max`), which is usual in a container that reads files, does not."""
    wakes = waits_for(Container(tmp_path), {"max": 7}, {"max": 8, "oom": 1}, {"max": 9, "oom": 1}, {"oom_kill": 1})

    assert wakes == [Wake.DUE, Wake.NEWS, Wake.DUE, Wake.NEWS]


def test_cgroup_with_the_smallest_limit_is_watched(tmp_path: Path) -> None:
    """Kubernetes also limits the group of all pods, whose kills are not those of this container."""
    container = Container(tmp_path)
    (container.group / "worker/memory.max").write_text("536870912\n")

    assert find_limited_group(container.roots) == container.group / "worker"


def test_cgroup_without_limit_is_not_watched(tmp_path: Path) -> None:
    assert MemoryEvents(Container(tmp_path, "max").roots).event_file == -1
    assert MemoryEvents(Roots(tmp_path / "none")).event_file == -1


def test_removed_cgroup_causes_no_busy_loop(tmp_path: Path) -> None:
    container = Container(tmp_path)
    watch = MemoryEvents(container.roots)
    wakeups = Wakeups([watch])
    shutil.rmtree(container.group)
    cpu, started = time.thread_time(), time.monotonic()

    assert [wakeups.wait(0.1, threading.Event()) for _ in range(3)] == [Wake.DUE] * 3
    assert time.monotonic() - started >= 0.29
    assert time.thread_time() - cpu < 0.02
    wakeups.close()
    watch.close()


def test_real_kill_ends_the_wait() -> None:
    """The kernel kills a program at the limit of its cgroup. Needs the right to make one and to read the log."""
    try:
        collector = kmsg.Collector(Roots())
    except SourceUnavailable:
        return
    wakeups = Wakeups(more=lambda: [collector])
    with memory_cgroup(32 * MIB) as cgroup:
        if cgroup is not None:
            with cgroup.run(HOG, "4000", "64") as hog:
                wake = wakeups.wait(10.0, threading.Event())
                found = collector.collect().kernel_log
                hog.kill()
            assert wake is Wake.NEWS
            assert found is not None
            assert hog.pid in [kill.pid for kill in found.kills]
    wakeups.close()
    collector.close()


def test_news_make_the_collectors_of_events_due_at_once() -> None:
    """Their period is a second. Other collectors keep theirs, and one that is not available its pause."""
    clock = FakeClock()
    collectors = {name: FakeCollector(name, period_seconds=10.0) for name in ("kmsg", "buddyinfo")}
    collectors["vmstat"] = FakeCollector("vmstat", period_seconds=10.0, error=SourceUnavailable("no vmstat"))
    sampler = Sampler(
        [CollectorEntry(name, lambda one=one: one, False) for name, one in collectors.items()],  # type: ignore[misc]
        clock,
    )
    sampler.gather()
    clock.now += 0.01

    sampler.hurry()
    sampler.gather()

    assert {name: one.calls for name, one in collectors.items()} == {"kmsg": 2, "buddyinfo": 1, "vmstat": 1}


def test_limit_read_by_a_thread_is_read_at_once_after_an_event() -> None:
    limit = FakeCollector("cgroup", may_block=True, period_seconds=60.0, findings=Findings())
    sampler = Sampler([CollectorEntry("cgroup", lambda: limit, True)], FakeClock())
    sampler.start()
    wait_until(lambda: limit.calls == 1)

    sampler.hurry()
    wait_until(lambda: limit.calls == 2)
    sampler.stop()

    assert limit.closed


@pytest.mark.measure
def test_daemon_at_rest_reports_a_kill_at_once(tmp_path: Path) -> None:
    """It ticks once a second, and the kill is an event some milliseconds after its line, in four of four cases."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "workstation", machine, symlinks=True)
    root = machine / "root"
    (root / "dev").mkdir(exist_ok=True)
    os.mkfifo(root / "dev/kmsg")
    roots = [f"--procfs={machine / 'proc'}", f"--sysfs={machine / 'sys'}", f"--rootfs={root}"]
    delays = []
    with running_daemon(tmp_path, *roots) as daemon, (root / "dev/kmsg").open("wb", buffering=0) as log:
        daemon.get("/api/v1/events")  # the first answer takes longer
        for number in range(4):
            time.sleep(0.23)
            lines = [record(line.replace("991", f"{5000 + number}"), 10 * number + 1) for line in GLOBAL_KILL]
            log.write("".join(lines).encode())
            watch = Stopwatch(daemon.pid)
            name = f"({5000 + number})"
            daemon.wait_for(
                "/api/v1/events", lambda found, name=name: any(name in event["text"] for event in found)
            )
            delays.append(watch.seconds)

    within("from a line of the kernel log to the event", max(delays), 0.15, "s")
