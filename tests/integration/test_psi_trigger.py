"""The kernel's alarm wakes the loop, is armed where that is permitted, and harms nobody's file."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memwatch.collectors.base import CollectorEntry
from memwatch.findings import Findings
from memwatch.linux.psi_trigger import LADDER, STALLED_RATIO, WINDOW_OF_ANYBODY_SECONDS, PsiTrigger, is_new
from memwatch.monitor.loop import Identity, Monitor, MonitorRules
from memwatch.monitor.sampler import Sampler
from memwatch.monitor.schedule import FAST_SECONDS
from support.daemon_process import running_daemon
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.memory_cgroup import THRASH, MemoryCgroup, memory_cgroup
from support.psi_host import Host

PRESSURE = Path("/proc/pressure/memory")
MIB = 1 << 20


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[PsiTrigger]:
    """A trigger without an alarm: as on a kernel without PSI."""
    trigger = PsiTrigger(tmp_path / "missing")
    yield trigger
    trigger.close()


def may_arm(request: bytes) -> bool:
    """Whether this kernel lets this user have such a trigger, asked in a way of our own."""
    try:
        file = os.open(PRESSURE, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(file, "wb", buffering=0) as pressure:
        try:
            return pressure.write(request) == len(request)
        except OSError:
            return False


def test_it_is_armed_as_well_as_this_user_may() -> None:
    """1 s with CAP_SYS_RESOURCE, 2 s without, none on an old kernel or without PSI."""
    trigger = PsiTrigger(PRESSURE)
    window = trigger.window_seconds
    trigger.close()

    assert window == next((seconds for seconds, request in enumerate(LADDER, 1) if may_arm(request)), 0)


@pytest.mark.parametrize("content", ["", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"])
def test_a_file_that_is_not_the_kernels_is_not_written_to(tmp_path: Path, content: str) -> None:
    """A folder given as --procfs is somebody's data."""
    path = tmp_path / "memory"
    path.write_text(content)

    trigger = PsiTrigger(path)
    trigger.close()

    assert trigger.window_seconds == 0
    assert path.read_text() == content


def test_without_an_alarm_it_only_sleeps(quiet: PsiTrigger) -> None:
    """For so long, and says that nothing happened."""
    started = time.monotonic()

    assert not quiet.wait(0.05, threading.Event())
    assert time.monotonic() - started >= 0.045


def test_wake_ends_the_wait_from_another_thread(quiet: PsiTrigger) -> None:
    """So that a loop which was told to stop does not sleep on."""
    threading.Timer(0.05, quiet.wake).start()
    started = time.monotonic()

    assert not quiet.wait(20.0, threading.Event())
    assert time.monotonic() - started < 10


def test_a_loop_that_is_told_of_waiting_looks_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at the next second: the tick comes now, and the next ones ten times a second. The log says why."""
    clock, stop = FakeClock(), threading.Event()
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    alarm = Alarm(clock, fires_after=3)
    sampler = Sampler([CollectorEntry("meminfo", lambda: memory, False)], clock)
    monitor = Monitor(sampler, clock, MonitorRules(), Identity("spark-1", "boot-1"), alarm)

    with caplog.at_level(logging.DEBUG):
        monitor.run(stop)
    alarm.close()

    assert "sampling every 0.1 s: tasks stall on memory (PSI)" in caplog.messages
    assert alarm.asked[:3] == [1.0, 1.0, 1.0]
    assert alarm.asked[3:] == [pytest.approx(FAST_SECONDS)] * 17


class Alarm(PsiTrigger):
    """Sleeps by a clock that is turned by hand, and fires once."""

    def __init__(self, clock: FakeClock, fires_after: int) -> None:
        super().__init__(Path("/nonexistent"))
        self.asked: list[float] = []
        self._clock, self._fires_after = clock, fires_after

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        self.asked.append(round(seconds, 6))
        if len(self.asked) == 20:
            stop.set()
        if len(self.asked) == self._fires_after:
            self._clock.now += seconds / 3
            return True
        self._clock.now += seconds
        return False


@pytest.mark.parametrize(
    ("before", "now", "window", "new"),
    [
        (5.0, 5.006, 2, False),
        (5.0, 5.15, 2, True),
        (0.0, 0.15, 2, True),
        (5.0, 5.006, 1, True),
        (5.0, None, 2, True),
    ],
)
def test_what_was_before_it_was_armed_is_not_new(before: float, now: float | None, window: int, new: bool) -> None:
    """Anybody's window begins with all that was waited since boot; a privileged one, counted apart, does not."""
    assert is_new(before, now, window) == new


def test_a_wait_of_some_milliseconds_wakes_nobody(tmp_path: Path) -> None:
    """On a machine that has waited for more than the trigger rings for, before it was armed. That took half a
    minute of ten ticks a second at each start of the daemon."""
    with thrashing(tmp_path) as cgroup:
        if cgroup is None or waited() <= STALLED_RATIO * WINDOW_OF_ANYBODY_SECONDS:
            return
    for _ in range(5):
        time.sleep(4)  # until the kernel has added up what was
        trigger, before = PsiTrigger(PRESSURE), waited()
        wait_a_moment(tmp_path / "pages", before)
        rung = trigger.wait(6.0, threading.Event())
        trigger.close()
        if 0 < waited() - before < STALLED_RATIO:  # nobody else waited meanwhile
            break
    else:
        return

    assert not rung


def wait_a_moment(pages: Path, before: float) -> None:
    """Wait for some pages, in a group that has no room for them."""
    forget(pages)
    with memory_cgroup(32 * MIB) as cgroup:
        assert cgroup is not None
        with cgroup.run(THRASH, str(pages)) as reader:
            until = time.monotonic() + 5
            while waited() <= before and time.monotonic() < until:
                time.sleep(0.001)
            reader.kill()


def forget(pages: Path) -> None:
    """Have them read from the disk again."""
    with pages.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def thrashing(folder: Path) -> Iterator[MemoryCgroup | None]:
    """A program that waits for pages which its limit has just dropped; None where that cannot be arranged here."""
    pages = folder / "pages"
    with pages.open("wb") as file:
        file.write(os.urandom(MIB) * 96)
    forget(pages)
    with memory_cgroup(32 * MIB) as cgroup:
        if cgroup is None:
            yield None
            return
        with cgroup.run(THRASH, str(pages)) as reader:
            before = waited()
            time.sleep(2)
            yield cgroup if waited() - before > 0.2 else None
            reader.kill()


def waited() -> float:
    """Seconds in which some task of this machine waited for memory; 0 for ever where the kernel does not say."""
    return int(PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6 if PRESSURE.exists() else 0.0


def test_a_cgroup_under_pressure_is_named_and_wakes_nobody_up(tmp_path: Path) -> None:
    """A real limit, real waiting, a calm machine: high, the group named, the alarm rung, and nothing critical."""
    with thrashing(tmp_path) as cgroup:
        if cgroup is None:
            name_by_files(tmp_path)
            return
        trigger = PsiTrigger(PRESSURE)
        rung = trigger.wait(10.0, threading.Event())
        armed = trigger.window_seconds
        trigger.close()
        with running_daemon(tmp_path) as daemon:
            (ram_now, *_) = daemon.wait_for("/api/v1/pressure", lambda found: named(found, cgroup.folder.name))
            events = daemon.get("/api/v1/events").json

    assert rung == bool(armed)
    assert ram_now["base_level"] == "low"
    assert ram_now["level"] == "high"
    assert not [event for event in events if event["kind"] == "alert" or "→ critical" in event["text"]]


def test_the_same_by_files(tmp_path: Path) -> None:
    """The same on a machine of files in a hybrid layout, where no real cgroup can be limited."""
    name_by_files(tmp_path)


def name_by_files(folder: Path) -> None:
    host, stop = Host(folder / "host", "hybrid"), threading.Event()
    roots = host.roots

    def go_on_waiting() -> None:
        started = time.monotonic()
        while not stop.wait(0.1):
            seconds = 0.3 * (time.monotonic() - started)
            host.wait(seconds, train=seconds)

    waiting = threading.Thread(target=go_on_waiting)
    waiting.start()
    try:
        arguments = [f"--procfs={roots.procfs}", f"--sysfs={roots.sysfs}", f"--rootfs={roots.rootfs}"]
        with running_daemon(folder, *arguments) as daemon:
            (ram_now, *_) = daemon.wait_for("/api/v1/pressure", lambda found: named(found, "train"))
    finally:
        stop.set()
        waiting.join()

    assert (ram_now["base_level"], ram_now["level"]) == ("low", "high")


def named(pressure: Any, group: str) -> bool:
    texts = [reason["text"] for reason in pressure[0]["reasons"]]
    return any(text.endswith(f"cgroup /{group} is slowed by its memory limit") for text in texts)
