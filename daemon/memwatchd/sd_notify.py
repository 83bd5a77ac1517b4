"""Notify systemd: ready, reloading, watchdog, stopping (sd_notify(3), a datagram to $NOTIFY_SOCKET)."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


# Number of missed ticks after which the service manager considers the loop hung.
MISSED_TICKS = 3


def read_watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Return the watchdog timeout, None if the service manager set none."""
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if re.fullmatch(r"[0-9]{1,18}", text) else None


class Notifier:
    """Sender of sd_notify messages; does nothing without $NOTIFY_SOCKET. Send errors are logged once."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        self._failed = False
        self._watchdog_seconds = read_watchdog_seconds(environ)

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def ready(self, interval_seconds: float) -> None:
        """Report readiness. Extend the watchdog timeout if it is shorter than MISSED_TICKS intervals."""
        needed = MISSED_TICKS * interval_seconds
        if self._watchdog_seconds is not None and needed > self._watchdog_seconds:
            self._watchdog_seconds = needed
            self._send(f"READY=1\nWATCHDOG_USEC={round(needed * 1e6)}")
        else:
            self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def alive(self, status: str) -> None:
        """Reset the watchdog. Call only after a completed tick, if event loop and delivery work."""
        self._send(f"WATCHDOG=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report a status without resetting the watchdog."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """Report the shutdown and close the socket."""
        self._send("STOPPING=1")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("cannot notify the service manager: %s", error)
