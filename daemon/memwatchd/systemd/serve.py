"""Start the sockets for systemd in the event loop. Without the setting and the socket unit there are none."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path

from memwatch.core.kernel_log import ServiceKill
from memwatch.core.linux.files import Roots
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.incidents.sentence import describe_holders
from memwatch_monitor.feature import Feature
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.loop import Monitor
from memwatchd.sd_notify import Notifier
from memwatchd.systemd.prekill_hook import (
    SOCKET_NAME,
    Members,
    PrekillHook,
    find_group,
    read_charged_bytes,
    read_members,
)
from memwatchd.systemd.pressure_sockets import PressureSockets

# Sockets that systemd opened for this unit, or kept for it while it restarted (sd_listen_fds(3)).

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


class SystemdSockets(Feature):
    """The pressure sockets in a folder, if it is given, and the sockets that systemd passed.

    A socket that cannot be opened is logged: the monitor is needed without.
    """

    name = "sockets for systemd"

    def __init__(self, monitor: Monitor, roots: Roots, service: Notifier, folder: Path | None) -> None:
        self._monitor, self._roots, self._service, self._folder = monitor, roots, service, folder
        self._pressure: PressureSockets | None = None
        self._hooks: list[PrekillHook] = []

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        pressure = self._pressure = (
            None if self._folder is None else self._open_pressure_sockets(loop, self._folder)
        )
        numbers = itertools.count(1)
        for name, given in take_sockets(os.environ).items():
            if name == SOCKET_NAME:
                report = partial(self._announce, numbers)
                self._hooks.append(PrekillHook(loop, given, report))
                log.info("the prekill hook of systemd-oomd is served")
            elif pressure is None or not pressure.resume(name, given):
                log.warning(
                    "socket %s of systemd is not used; its FileDescriptorName= must be %s", name, SOCKET_NAME
                )
                given.close()

    def _announce(self, numbers: Iterator[int], place: str) -> None:
        announce(self._monitor, self._roots, place, next(numbers))

    def _open_pressure_sockets(self, loop: asyncio.AbstractEventLoop, folder: Path) -> PressureSockets | None:
        service, monitor = self._service, self._monitor
        pressure = PressureSockets(loop, folder, service, monitor.budgets["pressure_clients"], monitor.accounts)
        try:
            pressure.open(self._monitor.latest)
        except OSError as error:
            pressure.close()
            log.error(
                "no pressure sockets in %s: %s; set socket_dir under [systemd] to a folder this user may write to",
                folder,
                error.strerror or error,
            )
            return None
        log.info("pressure sockets are in %s", folder)
        if service.is_connected and not service.can_store:
            log.warning(
                "a restart of memwatchd ends the connections of the pressure sockets, and clients with libsystemd "
                "then use a whole CPU; set FileDescriptorStoreMax= as in the drop-in pressure-sockets.conf"
            )
        return pressure

    def on_publish(self, snapshot: Snapshot) -> None:
        if self._pressure is not None:
            self._pressure.on_tick(snapshot)

    def leave(self) -> None:
        for one in (self._pressure, *self._hooks):
            if one is not None:
                one.close()


def announce(monitor: Monitor, roots: Roots, place: str, number: int) -> None:
    """Note for the incidents who holds memory in a control group that is about to be killed."""
    group = find_group(roots.sysfs, place)
    members = read_members(group) if group is not None else Members()
    charged = read_charged_bytes(group) if group is not None else None
    name = printable(place)
    text = describe_holders(name, monitor.latest, members.pids, charged, members.is_whole)
    log.info("systemd-oomd is %s", text)
    monitor.features.get(IncidentObserver).announce(
        ServiceKill(number, monitor.moment().wall, "oomd_prekill", text, place=name)
    )
