"""The PSI trigger: arming, waking the sampling loop, and cgroups under memory pressure."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.memory_events import LADDER, STALLED_RATIO, WINDOW_OF_ANYBODY_SECONDS, PsiTrigger, is_new
from memwatch.core.linux.wakeups import Wake, Wakeups
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.reading.schedule import FAST_SECONDS
from memwatch_monitor.feature import MonitorRules
from support.daemon_process import running_daemon
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.memory_cgroup import THRASH, memory_cgroup
from support.monitors import create_monitor
from support.psi_host import Host
from support.thrashing import MIB, PRESSURE, drop_page_cache, stalled_seconds, thrashing
from support.waiting import MAX_WAIT_SECONDS

# Period of the kernel's averages (PSI_FREQ).
ACCOUNT_SECONDS = 2.0


@pytest.fixture
def unarmed(tmp_path: Path) -> Iterator[Wakeups]:
    """Yield a trigger that is not armed, as on a kernel without PSI."""
    wakeups = Wakeups([PsiTrigger(tmp_path / "missing")])
    yield wakeups
    wakeups.close()


def may_arm(request: bytes) -> bool:
    """Return True if the kernel accepts this trigger from this user. Independent of the code under test."""
    try:
        file = os.open(PRESSURE, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(file, "wb", buffering=0) as pressure:
        try:
            return pressure.write(request) == len(request)
        except OSError:
            return False


def test_trigger_is_armed_with_the_shortest_permitted_window() -> None:
    """0.5 s with CAP_SYS_RESOURCE, 2 s without, none on an old kernel or without PSI."""
    trigger = PsiTrigger(PRESSURE)
    window = trigger.window_seconds
    trigger.close()

    assert window == next((seconds for seconds, request in LADDER.items() if may_arm(request)), 0.0)


@pytest.mark.parametrize("content", ["", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"])
def test_file_that_is_not_of_the_kernel_is_not_written_to(tmp_path: Path, content: str) -> None:
    """A folder given as --procfs may contain other data."""
    path = tmp_path / "memory"
    path.write_text(content)

    trigger = PsiTrigger(path)
    trigger.close()

    assert trigger.window_seconds == 0
    assert path.read_text() == content


def test_trigger_uses_the_file_that_another_process_opened() -> None:
    """systemd has the right to a window of 0.5 s, and the daemon has not. Here both have the same rights.

    It is closed with the trigger, or because it was not needed.
    """
    passed = os.open(PRESSURE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    trigger = PsiTrigger(PRESSURE, passed)
    window = trigger.window_seconds
    trigger.close()

    assert (window == 0.5) == may_arm(LADDER[0.5])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(passed)


def test_passed_descriptor_of_another_file_is_not_written_to(tmp_path: Path) -> None:
    """Its name is no proof."""
    path = tmp_path / "memory"
    path.write_text("some avg10=0.00")
    passed = os.open(path, os.O_RDWR)

    trigger = PsiTrigger(tmp_path / "missing", passed)

    assert trigger.event_file == -1
    assert path.read_text() == "some avg10=0.00"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(passed)


def test_wait_without_an_armed_trigger_only_sleeps(unarmed: Wakeups) -> None:
    started = time.monotonic()

    assert not unarmed.wait(0.05, threading.Event())
    assert time.monotonic() - started >= 0.045


def test_wake_ends_the_wait_from_another_thread(unarmed: Wakeups) -> None:
    """Otherwise a stopping loop would sleep until the next tick."""
    threading.Timer(0.05, unarmed.wake).start()

    assert not unarmed.wait(3600.0, threading.Event())


def test_loop_samples_at_once_after_a_psi_event(caplog: pytest.LogCaptureFixture) -> None:
    """The tick does not wait for the next second, and later ticks follow every 0.1 s. The log gives the reason."""
    clock, stop = FakeClock(), threading.Event()
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    trigger = FakeTrigger(clock, fires_after=3)
    sampler = Sampler([CollectorEntry("meminfo", lambda: memory, False)], clock)
    monitor = create_monitor(sampler, clock, MonitorRules(), Identity("spark-1", "boot-1"), trigger)

    with caplog.at_level(logging.DEBUG):
        monitor.run(stop)
    trigger.close()

    assert "sampling every 0.1 s: tasks stall on memory (PSI)" in caplog.messages
    assert trigger.waits[:3] == [1.0, 1.0, 1.0]
    assert trigger.waits[3:] == [pytest.approx(FAST_SECONDS)] * 17


class FakeTrigger(Wakeups):
    """Trigger that sleeps on a fake clock and fires once."""

    def __init__(self, clock: FakeClock, fires_after: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._clock, self._fires_after = clock, fires_after

    def wait(self, seconds: float, stop: threading.Event) -> Wake:
        self.waits.append(round(seconds, 6))
        if len(self.waits) == 20:
            stop.set()
        if len(self.waits) == self._fires_after:
            self._clock.now += seconds / 3
            return Wake.STALL
        self._clock.now += seconds
        return Wake.DUE


@pytest.mark.parametrize(
    ("before", "now", "window", "new"),
    [
        (5.0, 5.006, 2, False),
        (5.0, 5.15, 2, True),
        (0.0, 0.15, 2, True),
        (5.0, 5.006, 0.5, True),
        (5.0, None, 2, True),
    ],
)
def test_stalls_before_arming_are_not_new(before: float, now: float | None, window: float, new: bool) -> None:
    """The first event of an unprivileged trigger covers all stalls since boot. Privileged ones count separately."""
    assert is_new(before, now, window) == new


@pytest.mark.host
def test_stall_of_some_milliseconds_does_not_fire(tmp_path: Path) -> None:
    """Before arming, the machine has stalled for longer than the trigger's threshold.

    Otherwise each start of the daemon causes half a minute of ten ticks a second.
    """
    with thrashing(tmp_path) as cgroup:
        if cgroup is None or stalled_seconds() <= STALLED_RATIO * WINDOW_OF_ANYBODY_SECONDS:
            return
    for _ in range(5):
        wait_for_account()  # of earlier stalls
        trigger, before = PsiTrigger(PRESSURE), stalled_seconds()
        stall_briefly(tmp_path / "pages", before)
        fired = waits_for_stalls(trigger, 6.0)
        trigger.close()
        if fired:
            wait_for_account()  # of stalls of other tasks
        if 0 < stalled_seconds() - before < STALLED_RATIO * min(LADDER):  # no other task stalled meanwhile
            break
    else:
        return

    assert not fired


def wait_for_account() -> None:
    """Wait until the kernel has added up stalls, as every 2 s: averages that are not 0 change then."""
    before, until = PRESSURE.read_text(), time.monotonic() + 2 * ACCOUNT_SECONDS
    while PRESSURE.read_text() == before and time.monotonic() < until:
        time.sleep(0.02)


def waits_for_stalls(trigger: PsiTrigger, seconds: float) -> bool:
    """Return True if the trigger ends a wait of this time."""
    wakeups = Wakeups([trigger])
    wake = wakeups.wait(seconds, threading.Event())
    wakeups.close()
    return wake is Wake.STALL


def stall_briefly(pages: Path, before: float) -> None:
    """Stall on some pages in a cgroup that is too small for them."""
    drop_page_cache(pages)
    with memory_cgroup(32 * MIB) as cgroup:
        assert cgroup is not None
        with cgroup.run(THRASH, str(pages)) as reader:
            until = time.monotonic() + 5
            while stalled_seconds() <= before and time.monotonic() < until:
                time.sleep(0.001)
            reader.kill()


@pytest.mark.host
def test_cgroup_under_pressure_is_named_without_an_alert(tmp_path: Path) -> None:
    """With a real limit and real stalls the trigger fires, and nothing is critical.

    The level is high if all tasks of the machine stall, and medium while others run, such as other tests.
    """
    with thrashing(tmp_path) as cgroup:
        if cgroup is None:
            check_simulated_cgroup(tmp_path)
            return
        trigger = PsiTrigger(PRESSURE)
        fired = waits_for_stalls(trigger, MAX_WAIT_SECONDS)
        armed = trigger.window_seconds
        trigger.close()
        with running_daemon(tmp_path, watches_this_machine=True) as daemon:
            (ram_now, *_) = daemon.wait_for("/api/v1/pressure", lambda found: names(found, cgroup.folder.name))
            events = daemon.get("/api/v1/events").json

    assert fired == bool(armed)
    assert ram_now["base_level"] == "low"
    assert ram_now["level"] in ("medium", "high")
    assert not [event for event in events if event["kind"] == "alert" or "→ critical" in event["text"]]


def test_cgroup_under_pressure_is_named_in_a_hybrid_layout(tmp_path: Path) -> None:
    """On simulated files, for machines where no real cgroup can be limited."""
    check_simulated_cgroup(tmp_path)


def check_simulated_cgroup(folder: Path) -> None:
    host, stop = Host(folder / "host", "hybrid"), threading.Event()
    roots = host.roots

    def keep_stalling() -> None:
        started = time.monotonic()
        while not stop.wait(0.1):
            seconds = 0.3 * (time.monotonic() - started)
            host.wait(seconds, train=seconds)

    stalling = threading.Thread(target=keep_stalling)
    stalling.start()
    try:
        arguments = [f"--procfs={roots.procfs}", f"--sysfs={roots.sysfs}", f"--rootfs={roots.rootfs}"]
        with running_daemon(folder, *arguments) as daemon:
            (ram_now, *_) = daemon.wait_for("/api/v1/pressure", lambda found: names(found, "train"))
    finally:
        stop.set()
        stalling.join()

    assert (ram_now["base_level"], ram_now["level"]) == ("low", "high")


def names(pressure: Any, group: str) -> bool:
    texts = [reason["text"] for reason in pressure[0]["reasons"]]
    return any(text.endswith(f"cgroup /{group} is slowed by its memory limit") for text in texts)
