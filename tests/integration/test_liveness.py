"""The watchdog is fed only while sampling, event loop and delivery work; threads that do not work are reported."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec import Struct

from support.alert_machine import quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, get, running_daemon
from support.stopped_thread import loop_of, thread_stopped
from support.waiting import wait_until
from support.webhook_receiver import receiving

MIB = 1 << 20
# Ten times the interval of the daemons below.
LONG_SECONDS = 2.0
# The event loop is checked every 5 s.
STOP_SECONDS = 10.0
INTERVAL = ("--interval", "200ms")


class Manager(Struct, frozen=True):
    """A service manager that counts what it receives."""

    notify: socket.socket
    path: Path

    @classmethod
    def at(cls, folder: Path) -> Manager:
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(folder / "notify"))
        notify.setblocking(False)
        return cls(notify, folder / "notify")

    @property
    def environ(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": "30000000"}

    def messages(self) -> list[str]:
        """Return the messages that arrived since the last call."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self.notify.recv(4096).decode())
        return found

    def times_fed(self) -> int:
        return sum("WATCHDOG=1" in text for text in self.messages())

    def times_fed_in(self, seconds: float) -> int:
        self.messages()
        time.sleep(seconds)
        return self.times_fed()


@contextmanager
def supervised(tmp_path: Path, config: str = "") -> Iterator[tuple[RunningDaemon, Manager]]:
    manager = Manager.at(tmp_path)
    with manager.notify, running_daemon(tmp_path, *INTERVAL, config=config, environ=manager.environ) as daemon:
        wait_until(manager.times_fed)
        yield daemon, manager


@pytest.mark.parametrize("thread", ["main", "tick"])
def test_watchdog_is_not_fed_while_a_thread_is_stopped(tmp_path: Path, thread: str) -> None:
    """The event loop runs in the main thread. When the thread continues, so does the feeding."""
    with supervised(tmp_path) as (daemon, manager):
        number = daemon.pid if thread == "main" else loop_of(daemon)
        with thread_stopped(daemon.pid, number):
            wait_until(lambda: manager.times_fed_in(1.0) == 0, STOP_SECONDS)
            fed_meanwhile = manager.times_fed_in(LONG_SECONDS)
        wait_until(manager.times_fed)

    assert fed_meanwhile == 0


def test_watchdog_is_not_fed_while_a_receiver_has_no_thread(tmp_path: Path) -> None:
    """The status names it. With memory for its stack the thread starts, alerts arrive, and feeding continues."""
    with receiving() as site, supervised(tmp_path) as (daemon, manager):
        limit_address_space(daemon.pid)
        (tmp_path / "memwatchd.toml").write_text(quick_config(*[site] * 2))
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for_log("webhook-site1 cannot start a thread, retrying")
        manager.messages()
        time.sleep(LONG_SECONDS)
        meanwhile = manager.messages()
        metrics = daemon.get("/metrics").text
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_until(manager.times_fed)
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        wait_for_deliveries(site, 2)
        wait_until(lambda: 'memwatch_thread_up{thread="webhook-site1"} 1.0' in daemon.get("/metrics").text)

    assert sum("WATCHDOG=1" in text for text in meanwhile) <= 1
    assert any(
        text.startswith("STATUS=threads that do not work: ") and "webhook-site1" in text for text in meanwhile
    )
    assert 'memwatch_thread_up{thread="webhook-site1"} 0.0' in metrics
    assert 'memwatch_thread_up{thread="outbox"} ' in metrics


def test_event_loop_that_is_stuck_is_logged_once_and_on_recovery(tmp_path: Path) -> None:
    """Also without systemd."""
    with running_daemon(tmp_path, *INTERVAL) as daemon:
        with thread_stopped(daemon.pid, daemon.pid):
            daemon.wait_for_log("ERROR   thread event loop does not work: ")
            time.sleep(LONG_SECONDS)
        daemon.wait_for_log("WARNING thread event loop works again")
        log = daemon.read_log()

    assert log.count("thread event loop does not work") == 1


def test_sampling_that_is_stuck_is_logged_once_and_on_recovery(tmp_path: Path) -> None:
    with running_daemon(tmp_path, *INTERVAL) as daemon:
        with thread_stopped(daemon.pid, loop_of(daemon)):
            daemon.wait_for_log("ERROR   thread tick does not work: ")
        daemon.wait_for_log("WARNING thread tick works again")
        log = daemon.read_log()

    assert log.count("thread tick does not work") == 1


def limit_address_space(pid: int) -> None:
    """Leave too little for a thread's stack, and enough for everything else."""
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size + 4 * MIB, resource.RLIM_INFINITY))
