"""Sockets for systemd in the event loop. Without the setting and the socket unit there are none.

The prekill hook of systemd-oomd 260 and later (oomd.conf(5)) reports each cgroup that it is about to kill.
systemd-oomd waits for the reply, up to PrekillHookTimeoutSec=. The members of the group are read before it, as they
exist only until then; nothing is written to a disk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec import Struct

from memwatch.build_info import __version__
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.linux.cgroup_mounts import list_children
from memwatch.core.linux.files import Roots
from memwatch.core.printable import printable
from memwatch.core.runtime.worker import FailureLog
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json
from memwatch_monitor.feature import Feature
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.incidents.sentence import describe_holders
from memwatch_monitor.loop import Monitor
from memwatchd.sd_notify import Notifier
from memwatchd.sockets import Listener, read_peer
from memwatchd.systemd.pressure_sockets import PressureSockets

log = logging.getLogger(__name__)

# Varlink messages (varlink.org): JSON objects that end with a NUL byte. Pure functions.

END = b"\0"
SERVICE = "org.varlink.service"


class MessageError(ValueError):
    """A message that is not a method call."""


class Call(Struct, frozen=True):
    """A method call. `is_oneway`: the caller expects no reply."""

    method: str
    parameters: Json
    is_oneway: bool = False


def parse_call(data: bytes) -> Call:
    """Parse a message without its NUL byte. Raises MessageError."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise MessageError("it has no method")
    parameters = found.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise MessageError("its parameters are not an object")
    return Call(found["method"], parameters, found.get("oneway") is True)


def reply(parameters: Json) -> bytes:
    return json.dumps({"parameters": parameters}).encode() + END


def error_reply(name: str, parameters: Json) -> bytes:
    return json.dumps({"error": f"{SERVICE}.{name}", "parameters": parameters}).encode() + END


# FileDescriptorName= of memwatchd-oomd.socket.
SOCKET_NAME = "oomd-prekill"
INTERFACE = "io.systemd.oom.Prekill"
DESCRIPTION = f"""# Notifications of systemd-oomd before a kill
interface {INTERFACE}

# A control group is about to be killed
method Notify(cgroup: string) -> ()
"""
MAX_CONNECTIONS, MAX_MESSAGE_BYTES, MAX_SECONDS = 16, 16 << 10, 30.0
READ_BYTES, MAX_PATH_LENGTH = 4096, 4096


class PrekillHook:
    """A varlink service. `on_kill` is called with the path of each cgroup, before the reply."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, on_kill: Callable[[str], None]
    ) -> None:
        self._loop, self._on_kill = loop, on_kill
        self._received: dict[socket.socket, bytes] = {}
        self._failures = FailureLog()
        self._methods: Mapping[str, Callable[[Json], bytes]] = {
            f"{INTERFACE}.Notify": self._notify,
            f"{SERVICE}.GetInfo": _get_info,
            f"{SERVICE}.GetInterfaceDescription": _get_description,
        }
        self._listener = Listener(loop, listener, self._add)

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._received):
            self._drop(connection)

    def _add(self, connection: socket.socket) -> None:
        if len(self._received) >= MAX_CONNECTIONS:
            connection.close()
            if self._failures.admits("full"):
                log.warning("prekill hook: %d connections are open; another one is closed", MAX_CONNECTIONS)
            return
        self._received[connection] = b""
        self._loop.add_reader(connection, self._read, connection)
        self._loop.call_later(MAX_SECONDS, self._drop, connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        messages = (self._received[connection] + data).split(END)
        self._received[connection] = messages.pop()
        if not data or len(self._received[connection]) > MAX_MESSAGE_BYTES:
            self._drop(connection)
            return
        for message in messages:
            self._answer(connection, message)

    def _answer(self, connection: socket.socket, message: bytes) -> None:
        try:
            call = parse_call(message)
            answer = self._call(call)
            if not call.is_oneway and connection.send(answer) < len(answer):
                raise OSError("the client does not read")
        except (MessageError, OSError) as error:
            if self._failures.admits(str(error)):
                peer = read_peer(connection) if connection.fileno() >= 0 else None
                log.warning("prekill hook: a call of process %s failed: %s", peer.pid if peer else "?", error)
            self._drop(connection)

    def _call(self, call: Call) -> bytes:
        method = self._methods.get(call.method)
        if method is None:
            return error_reply("MethodNotFound", {"method": call.method[:MAX_PATH_LENGTH]})
        return method(call.parameters)

    def _notify(self, parameters: Json) -> bytes:
        place = parameters.get("cgroup")
        if not isinstance(place, str) or not place.startswith("/") or len(place) > MAX_PATH_LENGTH:
            return error_reply("InvalidParameter", {"parameter": "cgroup"})
        self._on_kill(place)
        return reply({})

    def _drop(self, connection: socket.socket) -> None:
        if self._received.pop(connection, None) is not None:
            self._loop.remove_reader(connection)
            connection.close()


def _get_info(_: Json) -> bytes:
    return reply(
        {
            "vendor": "memwatch",
            "product": "memwatchd",
            "version": __version__,
            "url": "",
            "interfaces": [SERVICE, INTERFACE],
        }
    )


def _get_description(parameters: Json) -> bytes:
    if parameters.get("interface") != INTERFACE:
        return error_reply("InterfaceNotFound", {"interface": str(parameters.get("interface"))[:MAX_PATH_LENGTH]})
    return reply({"description": DESCRIPTION})


# Processes of a control group and of the groups below it, from cgroup2 files.

MAX_GROUPS, MAX_MEMBERS = 64, 1000


def find_group(sysfs: Path, place: str) -> Path | None:
    """Return the folder of a group such as /system.slice/a.service. None if it does not exist or is not a path."""
    inside = PurePosixPath(place.lstrip("/"))
    if ".." in inside.parts or "\0" in place:
        return None
    for root in (sysfs / "fs/cgroup", sysfs / "fs/cgroup/unified"):
        if os.path.isfile(root / inside / "cgroup.procs"):
            return root / inside
    return None


class Members(NamedTuple):
    """PIDs of a group and the groups below it. `is_whole`: it has no more groups and processes than were read."""

    pids: frozenset[int] = frozenset()
    is_whole: bool = True


def read_members(group: Path) -> Members:
    """Return the processes of MAX_GROUPS and of MAX_MEMBERS at most."""
    members: set[int] = set()
    groups = 0
    for groups, folder in enumerate(_folders(group), 1):  # noqa: B007
        try:
            members.update(map(int, (folder / "cgroup.procs").read_bytes().split()))
        except (OSError, ValueError):  # removed, or threaded
            continue
        if len(members) >= MAX_MEMBERS:
            break
    return Members(frozenset(members), len(members) < MAX_MEMBERS and groups < MAX_GROUPS)


def read_charged_bytes(group: Path) -> int | None:
    """Return the memory that is charged to a group. None without the memory controller."""
    try:
        return int((group / "memory.current").read_bytes())
    except (OSError, ValueError):
        return None


def _folders(group: Path) -> Iterator[Path]:
    """Yield MAX_GROUPS at most. A user may have made any number below a delegated group."""
    waiting, left = [group], MAX_GROUPS
    while waiting:
        folder = waiting.pop()
        yield folder
        left -= 1
        waiting.extend(path for path, _ in list_children(folder, left - len(waiting)))


def as_sockets(passed: Mapping[str, int]) -> dict[str, socket.socket]:
    """Return the sockets that systemd opened for this unit, or kept for it while it restarted."""
    found = {}
    for name, descriptor in passed.items():
        try:
            found[name] = socket.socket(fileno=descriptor)
        except OSError as error:  # noqa: PERF203  of a few
            log.warning("descriptor %s of systemd is not a socket: %s", name, error.strerror)
    return found


class SystemdSockets(Feature):
    """The pressure sockets in a folder, if it is given, and the sockets that systemd passed.

    A socket that cannot be opened is logged: the monitor is needed without.
    """

    name = "sockets for systemd"

    def __init__(
        self, monitor: Monitor, roots: Roots, service: Notifier, folder: Path | None, passed: Mapping[str, int]
    ) -> None:
        self._monitor, self._roots, self._service, self._folder = monitor, roots, service, folder
        self._passed = passed
        self._pressure: PressureSockets | None = None
        self._hooks: list[PrekillHook] = []

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        pressure = self._pressure = (
            None if self._folder is None else self._open_pressure_sockets(loop, self._folder)
        )
        numbers = itertools.count(1)
        for name, given in as_sockets(self._passed).items():
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
