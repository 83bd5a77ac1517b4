"""Test the messages to the service manager at the end of the daemon."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from memwatchd.sd_notify import Notifier

pytestmark = pytest.mark.process


def test_tick_during_the_shutdown_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last tick may still feed the watchdog while the main thread closes the socket, here 100 times."""
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
            notifier = Notifier({"NOTIFY_SOCKET": address})
            ticking = threading.Thread(target=feed, args=(notifier,))
            ticking.start()
            time.sleep(0.001)
            notifier.stopping()
            ticking.join()
            with suppress(BlockingIOError):
                while True:
                    manager.recv(100)

    assert caplog.messages == []
