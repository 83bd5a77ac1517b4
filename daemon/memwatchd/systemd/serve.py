"""Start the sockets for systemd in the event loop. Without the setting and the socket unit there are none."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path

from memwatch.core.kill_log import ServiceKill
from memwatch.core.linux.cgroup_members import Members, find_group, read_charged_bytes, read_members
from memwatch.core.linux.files import Roots
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.state import Notification
from memwatch.monitor.incidents.prekill import describe_holders
from memwatch.monitor.loop import Monitor
from memwatchd.sd_notify import Notifier
from memwatchd.systemd.prekill_hook import SOCKET_NAME, PrekillHook
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


def serve_systemd(
    loop: asyncio.AbstractEventLoop,
    monitor: Monitor,
    roots: Roots,
    service: Notifier,
    pressure_folder: Path | None,
) -> Sequence[Callable[[], None]]:
    """Open the pressure sockets in a folder, if it is given, and serve the sockets that systemd passed.

    Return the functions that close them. A socket that cannot be opened is logged: the monitor is needed without.
    """
    closers, numbers = [], itertools.count(1)
    pressure = None
    if pressure_folder is not None:
        pressure = open_pressure_sockets(loop, monitor, service, pressure_folder)
    if pressure is not None:
        closers.append(pressure.close)
    for name, given in take_sockets(os.environ).items():
        if name == SOCKET_NAME:
            hook = PrekillHook(loop, given, lambda place: announce(monitor, roots, place, next(numbers)))
            closers.append(hook.close)
            log.info("the prekill hook of systemd-oomd is served")
        elif pressure is None or not pressure.resume(name, given):
            log.warning("socket %s of systemd is not used; its FileDescriptorName= must be %s", name, SOCKET_NAME)
            given.close()
    return closers


def open_pressure_sockets(
    loop: asyncio.AbstractEventLoop, monitor: Monitor, service: Notifier, folder: Path
) -> PressureSockets | None:
    pressure = PressureSockets(loop, folder, service)
    try:
        pressure.open(monitor.latest)
    except OSError as error:
        pressure.close()
        log.error(
            "no pressure sockets in %s: %s; set socket_dir under [systemd] to a folder this user may write to",
            folder,
            error.strerror or error,
        )
        return None
    monitor.listeners.append(partial(_pass_tick, pressure))
    log.info("pressure sockets are in %s", folder)
    if service.is_connected and not service.can_store:
        log.warning(
            "a restart of memwatchd ends the connections of the pressure sockets, and clients with libsystemd then "
            "use a whole CPU; set FileDescriptorStoreMax= as in the drop-in pressure-sockets.conf"
        )
    return pressure


def _pass_tick(pressure: PressureSockets, snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
    pressure.on_tick(snapshot)


def announce(monitor: Monitor, roots: Roots, place: str, number: int) -> None:
    """Note for the incidents who holds memory in a control group that is about to be killed."""
    group = find_group(roots.sysfs, place)
    members = read_members(group) if group is not None else Members()
    charged = read_charged_bytes(group) if group is not None else None
    name = printable(place)
    text = describe_holders(name, monitor.latest, members.pids, charged, members.is_whole)
    log.info("systemd-oomd is %s", text)
    monitor.incidents.announce(ServiceKill(number, monitor.moment().wall, "oomd_prekill", text, place=name))
