"""The user who listens at a port or a socket file of this machine, looked up before a secret is sent there.

A port of this machine belongs to any user who listens on it first. While a server is down, a secret for it would go
to another user. The other end of a connection is a socket of the process that accepted it, in the table of this
network namespace. Of a socket file, the kernel names the user of the process that listened (unix(7), SO_PEERCRED).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from memwatch.core.http import remaining
from memwatch.core.linux.tcp_peer import (
    OVERFLOW_UID,
    UID_MAP,
    Peer,
    TcpEnd,
    find_peer,
    maps_every_user,
    unmap,
)
from memwatch.core.model import Absent

if TYPE_CHECKING:
    from memwatch.core.linux.process_files import Passwd  # most commands never describe an owner

# Pauses until a server has accepted the connection: an idle one does within 1 ms. Each lookup takes 4 to 10 ms.
FIRST_PAUSE_SECONDS = 0.005
MAX_PAUSE_SECONDS = 0.2
# State of a connection (include/net/tcp_states.h), the first byte of tcp_info.
ESTABLISHED = 1
# struct ucred (unix(7)): pid, uid, gid.
UCRED = struct.Struct("=iII")
# Stand for users without an id. Outside this network namespace: only root can redirect a port of this machine to
# there. Hidden by a user namespace. On another machine.
ELSEWHERE, HIDDEN, REMOTE = -1, -2, -3

Find = Callable[[TcpEnd, TcpEnd], Peer]


class Connected(Protocol):
    """A connected socket, or asyncio's view of one."""

    @property
    def family(self) -> int: ...

    def getsockname(self) -> tuple[str, int]: ...

    def getpeername(self) -> tuple[str, int]: ...

    def getsockopt(self, level: int, option: int, length: int) -> bytes: ...


def find_owner(connected: Connected | socket.socket, find: Find = find_peer) -> int | None:
    """Return the user at the other end of a connection, None until a process has accepted it.

    Raises ConnectionResetError for a connection that has ended: it has no row in the table either.
    """
    if connected.family == socket.AF_UNIX:
        _, uid, _ = UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        return HIDDEN if uid == OVERFLOW_UID and not maps_every_user(UID_MAP) else uid
    ours, theirs = (TcpEnd(*name[:2]) for name in (connected.getsockname(), connected.getpeername()))
    if not is_on_this_machine(ours, theirs):
        return REMOTE
    peer = find(theirs, ours)
    if connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    if not peer.is_here:
        return ELSEWHERE
    if not peer.is_accepted:
        return None
    return HIDDEN if peer.uid is None else peer.uid


def wait_for_owner(
    connected: socket.socket, deadline: float, find: Find = find_peer, pause: Callable[[float], None] = time.sleep
) -> int:
    """Return the user at the other end. Raises TimeoutError if no process has accepted by the deadline."""
    seconds = FIRST_PAUSE_SECONDS
    while (owner := find_owner(connected, find)) is None:
        pause(min(seconds, remaining(deadline)))
        seconds = min(2 * seconds, MAX_PAUSE_SECONDS)
    return owner


def is_user(owner: int, user: str, passwd: Passwd) -> bool:
    """Return True if this is the user of a name or a number."""
    return user in (str(owner), describe_owner(owner, passwd))


def describe_owner(owner: int, passwd: Passwd) -> str:
    if owner == ELSEWHERE:
        return "one in a container's network"
    passwd.refresh()
    name = passwd.name(owner)
    return str(owner) if isinstance(name, Absent) else name


def is_on_this_machine(ours: TcpEnd, theirs: TcpEnd) -> bool:
    """Return True for a connection to loopback, and for one to another address of this machine.

    Both ends have that address then.
    """
    here, there = (unmap(ip_address(end.host)) for end in (ours, theirs))
    return there.is_loopback or here == there
