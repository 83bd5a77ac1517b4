"""Sockets that systemd opened for this unit, or kept for it while it restarted (sd_listen_fds(3))."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

FIRST_DESCRIPTOR = 3
MAX_DESCRIPTORS = 1024
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def take_sockets(environ: MutableMapping[str, str], pid: int | None = None) -> dict[str, socket.socket]:
    """Return the sockets by FileDescriptorName= or FDNAME=, and remove the variables. Call once."""
    given = {name: environ.pop(name, "") for name in VARIABLES}
    if given["LISTEN_PID"] != str(os.getpid() if pid is None else pid) or not given["LISTEN_FDS"].isdecimal():
        return {}
    names = given["LISTEN_FDNAMES"].split(":")
    found = {}
    for index in range(min(int(given["LISTEN_FDS"]), MAX_DESCRIPTORS)):
        name = names[index] if index < len(names) else "unknown"
        try:
            found[name] = socket.socket(fileno=FIRST_DESCRIPTOR + index)
        except OSError as error:
            log.warning("descriptor %s of systemd is not a socket: %s", name, error.strerror)
            continue
        os.set_inheritable(FIRST_DESCRIPTOR + index, False)
    return found
