"""Test the shutdown of a daemon when one of its parts fails, and its messages to the service manager then."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from memwatch_monitor.feature import Feature
from memwatchd.daemon import Daemon
from memwatchd.sd_notify import Notifier
from support.daemon_process import QUIET_MACHINE, ROOTS
from support.monitors import history
from support.settings_sample import settings_from
from support.waiting import wait_until

pytestmark = pytest.mark.process


def started(folder: Path) -> Daemon:
    """Start a daemon that watches the quiet machine: collectors of this one may be late, and be logged as such."""
    roots = {name: str(QUIET_MACHINE / inside) for name, inside in ROOTS.items()}
    text = f"[state]\ndir = '{folder / 'state'}'\n[web]\nlisten = ['127.0.0.1:0']\n"
    settings = settings_from(folder, text, roots)
    daemon = Daemon(settings, lambda _: settings)
    daemon.start()
    daemon.first_tick()
    return daemon


def wait_for_writer(others: set[threading.Thread]) -> None:
    """Wait until the disk has the history: a stop waits for less than a second, so that it has an end.

    `others`: threads of this process before the daemon was started, maybe writers of other tests.
    """
    wait_until(lambda: all(thread.name != "store" for thread in {*threading.enumerate()} - others))


def test_parts_after_one_that_fails_are_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without memory for the end of one thread, alerts, history and state are still closed: no unclean end."""
    others = {*threading.enumerate()}
    first = started(tmp_path)

    class Failing(Feature):
        name = "failing"

        def close(self) -> None:
            raise MemoryError

    first.monitor.features.add(Failing())
    with caplog.at_level(logging.ERROR):
        first.stop()
    wait_for_writer(others)
    again = started(tmp_path)
    unclean, restored = history(again.monitor).unclean_shutdown, len(history(again.monitor).tiers)
    again.stop()

    assert caplog.messages == ["a part could not be stopped: MemoryError"]
    assert unclean is None
    assert restored >= 2


def test_tick_during_the_shutdown_is_no_failure(tmp_path: Path) -> None:
    """The last tick may still feed the watchdog while the main thread closes the socket, here 100 times."""
    complaints: list[str] = []
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)

        def feed(notifier: Notifier) -> None:
            while notifier.is_connected:
                notifier.alive("low")
                with suppress(BlockingIOError):
                    manager.recv(100)

        for _ in range(100):
            notifier = Notifier(complaints.append, {"NOTIFY_SOCKET": address})
            ticking = threading.Thread(target=feed, args=(notifier,))
            ticking.start()
            time.sleep(0.001)
            notifier.stopping()
            ticking.join()
            with suppress(BlockingIOError):
                while True:
                    manager.recv(100)

    assert complaints == []
