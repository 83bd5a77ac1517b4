"""Sockets of the daemon: listening ones, accepted connections and the credentials of a peer.

Listening sockets are opened first, so that an invalid address is reported at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memwatch.core.http import resolve_name
from memwatch.core.printable import describe_error
from memwatch.core.runtime.worker import FailureLog
from memwatchd.settings.keys import TcpAddress, UnixAddress

log = logging.getLogger(__name__)

# linux/tcp.h: repeat a lost segment of a slow stream at constant intervals at first. Accepted sockets inherit it.
# At 30 % loss it shortens the longest gap in 10,000 ticks from 28 s to 7 s (November 2026).
TCP_THIN_LINEAR_TIMEOUTS = 16
BACKLOG = 256
OWNER_AND_GROUP = 0o660
PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Connections accepted per wake-up of the event loop, and the pause while there are no descriptors.
ACCEPT_AT_ONCE, PAUSE_SECONDS = 8, 1.0


# What systemd passes to its units (sd_listen_fds(3)).
FIRST_DESCRIPTOR = 3
MAX_DESCRIPTORS = 1024
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def take_descriptors(environ: MutableMapping[str, str], pid: int | None = None) -> dict[str, int]:
    """Return the descriptors of systemd by name, and remove the variables. Call once.

    The name is that of FileDescriptorName=, FDNAME= or OpenFile=.
    """
    given = {name: environ.pop(name, "") for name in VARIABLES}
    if given["LISTEN_PID"] != str(os.getpid() if pid is None else pid) or not given["LISTEN_FDS"].isdecimal():
        return {}
    names = given["LISTEN_FDNAMES"].split(":")
    found = {}
    for index in range(min(int(given["LISTEN_FDS"]), MAX_DESCRIPTORS)):
        with suppress(OSError):  # fewer were passed
            os.set_inheritable(FIRST_DESCRIPTOR + index, False)
            found[names[index] if index < len(names) else "unknown"] = FIRST_DESCRIPTOR + index
    return found


class ListenError(Exception):
    """An address that cannot be listened on. The message names it, the reason and the remedy."""


def open_sockets(addresses: Sequence[TcpAddress | UnixAddress]) -> tuple[list[socket.socket], tuple[str, ...]]:
    """Open a listening socket for every address. Return them, and why others cannot be opened.

    Raises ListenError if none can.
    """
    sockets, problems = [], []
    for address in addresses:
        try:
            sockets.append(_listen(address))
        except ListenError as error:  # noqa: PERF203  of a few
            problems.append(str(error))
    if not sockets:
        raise ListenError("; ".join(problems))
    return sockets, tuple(problems)


def _listen(address: TcpAddress | UnixAddress) -> socket.socket:
    try:
        if isinstance(address, UnixAddress):
            return listen_on_file(Path(address.path))
        return _tcp_socket(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {_reason(error, address)}") from None


def _reason(error: OSError, address: TcpAddress | UnixAddress) -> str:
    text = describe_error(error)
    if isinstance(error, socket.gaierror):
        return f"{text}; use an address of this machine such as 127.0.0.1:6360"
    if "in use" in text:
        return f"{text}; another memwatchd may be running there: try 127.0.0.1:6361 or stop it"
    if isinstance(address, UnixAddress):
        return f"{text}; use a folder this user may write to, such as unix:/run/memwatchd/memwatchd.sock"
    if isinstance(error, PermissionError) and error.errno == errno.EPERM:
        return f"{text}; add SocketBindAllow=tcp:{address.port} to the unit (systemctl edit memwatchd)"
    if isinstance(error, PermissionError):
        return f"{text}; ports below 1024 need privileges: try 127.0.0.1:6360"
    return f"{text}; use an address of this machine such as 127.0.0.1:6360"


def _tcp_socket(address: TcpAddress) -> socket.socket:
    found = resolve_name(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if sys.platform == "linux":
            with suppress(OSError):  # kernels in user space, such as gVisor, do not know it
                listener.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class Peer(Struct, frozen=True):
    """Credentials of the peer on a Unix socket, from the kernel. None: not available."""

    pid: int | None = None
    uid: int | None = None
    gid: int | None = None


def read_peer(connection: socket.socket | None) -> Peer | None:
    """Return the credentials of the peer on a Unix socket; None for other connections."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    if sys.platform != "linux":
        return Peer()
    return Peer(*PEER_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def listen_on_file(path: Path, mode: int = OWNER_AND_GROUP) -> socket.socket:
    """Open a listening socket file. Replaces a stale socket of an earlier daemon, but no other file."""
    _remove_left_behind(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, mode)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_left_behind(path: Path) -> None:
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


class Listener:
    """A listening socket. `on_connection` owns each accepted connection, which does not block."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        on_connection: Callable[[socket.socket], None],
    ) -> None:
        self._loop, self._socket, self._on_connection = loop, listener, on_connection
        self._pause: asyncio.TimerHandle | None = None
        self._failures = FailureLog()
        listener.setblocking(False)
        loop.add_reader(listener, self._accept)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors
                self._wait(error.strerror or str(error))
                return
            connection.setblocking(False)
            self._on_connection(connection)

    def _wait(self, why: str) -> None:
        """Accept nothing for a while: the socket would wake the event loop again at once."""
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
        if self._failures.admits(why):
            log.warning("clients of %s wait: %s", self._socket.getsockname(), why)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)
