"""Notify systemd: ready, reloading, watchdog, stopping (sd_notify(3), a datagram to $NOTIFY_SOCKET)."""

from __future__ import annotations

import array
import os
import re
import socket
import time
from collections.abc import Callable, Mapping

# Number of missed ticks after which the service manager considers the loop hung.
MISSED_TICKS = 3


def read_watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Return the watchdog timeout, None if the service manager set none."""
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if re.fullmatch(r"[0-9]{1,18}", text) else None


class Notifier:
    """Sender of sd_notify messages; does nothing without $NOTIFY_SOCKET. `complain` gets the first error."""

    def __init__(self, complain: Callable[[str], object], environ: Mapping[str, str] = os.environ) -> None:
        self._complain = complain
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        self._failed = False
        self._watchdog_seconds = read_watchdog_seconds(environ)
        self._stores = environ.get("FDSTORE", "0") != "0"

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    @property
    def can_store(self) -> bool:
        """True if the unit sets FileDescriptorStoreMax= (systemd 254 passes it as $FDSTORE)."""
        return self.is_connected and self._stores

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
        connection, self._socket = self._socket, None
        self._failed = True  # the tick thread may be sending: it is not told that the socket was closed
        if connection is not None:
            connection.close()

    def store(self, name: str, descriptor: int) -> None:
        """Let the service manager keep a copy of a descriptor, and pass it to the next process of the unit.

        It drops the copy when the peer hangs up.
        """
        self._send(f"FDSTORE=1\nFDNAME={name}", descriptor)

    def remove_stored(self, name: str) -> None:
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def _send(self, text: str, *descriptors: int) -> None:
        connection = self._socket
        if connection is None:
            return
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            connection.sendmsg([text.encode()], passed, socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._complain(f"cannot notify the service manager: {error}")
