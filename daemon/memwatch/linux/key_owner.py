"""The user to whom the API key of a model server is sent.

A port of this machine belongs to any user who listens on it first. While a server is down, its key would go to
another user. Each connection is therefore looked up before the key is sent: its other end is a socket of the
process that accepted it, in the table of this network namespace.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address

from memwatch.engines.server import NOT_SENT
from memwatch.linux.process_files import Passwd
from memwatch.linux.tcp_peer import Peer, TcpEnd, find_peer, unmap
from memwatch.model import Absent
from memwatch.runtime.deadline_socket import remaining
from memwatch.runtime.http_get import GetError

log: logging.Logger = logging.getLogger(__name__)

# Pauses until a server has accepted the connection: an idle one does within 1 ms. Each lookup takes 4 to 10 ms.
FIRST_PAUSE_SECONDS = 0.005
MAX_PAUSE_SECONDS = 0.2
# State of a connection (include/net/tcp_states.h), the first byte of tcp_info.
ESTABLISHED = 1
# Stands for every owner outside this network namespace: only root can redirect a port of this machine to there.
ELSEWHERE = -1

NOT_USER = 'user {found} listens there, not {user}; start the server, or set user = "{found}" under [[engines]]'
CHANGED = "user {found} listens there now, before it was {user}; start the server, or set user under [[engines]]"
NOT_VISIBLE = "the user who listens there is not visible in this container; run memwatchd outside of it"
IN_OTHER_NETWORK = "it listens in the network of a container, so that its user is not known; remove user"

Find = Callable[[TcpEnd, TcpEnd], Peer]


class KeyOwner:
    """The owner of one key: the configured `user`, a name or a number, else the first one who was seen."""

    def __init__(
        self,
        name: str,
        user: str,
        passwd: Passwd,
        find: Find = find_peer,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`name`: that of the engine, for the log."""
        self._name, self._user = name, user
        self._passwd = passwd
        self._find, self._pause = find, pause
        self._first: int | None = None
        self._logged = ""

    def admit(self, connected: socket.socket, deadline: float) -> None:
        """Raise GetError if the other end of a connection within this machine belongs to another user.

        Raises TimeoutError if no process has accepted the connection by the deadline.
        """
        ours, theirs = (TcpEnd(*name[:2]) for name in (connected.getsockname(), connected.getpeername()))
        if not is_on_this_machine(ours, theirs):
            return
        why = self._refuse(self._wait_for_owner(connected, theirs, ours, deadline))
        if why and why != self._logged:
            log.warning("Engine %s: %s: %s", self._name, NOT_SENT, why)
        elif self._logged and not why:
            log.info("Engine %s: its API key is sent again", self._name)
        self._logged = why
        if why:
            raise GetError(f"{NOT_SENT}: {why}")

    def _wait_for_owner(self, connected: socket.socket, theirs: TcpEnd, ours: TcpEnd, deadline: float) -> Peer:
        """Return the other end when a process has accepted it. A connection that has ended has no row either."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            peer = self._find(theirs, ours)
            if connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if peer.is_accepted or not peer.is_here:
                return peer
            self._pause(min(pause, remaining(deadline)))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _refuse(self, peer: Peer) -> str:
        """Return why the key is not sent, empty if it is."""
        if peer.is_here and peer.uid is None:
            return NOT_VISIBLE
        owner = ELSEWHERE if peer.uid is None else peer.uid
        if self._user:
            if owner == ELSEWHERE:
                return IN_OTHER_NETWORK
            is_right = self._user in (str(owner), self._describe(owner))
            return "" if is_right else NOT_USER.format(found=self._describe(owner), user=self._user)
        if self._first is None:
            self._first = owner
        if owner == self._first:
            return ""
        return CHANGED.format(found=self._describe(owner), user=self._describe(self._first))

    def _describe(self, owner: int) -> str:
        if owner == ELSEWHERE:
            return "one in a container's network"
        self._passwd.refresh()
        name = self._passwd.name(owner)
        return str(owner) if isinstance(name, Absent) else name


def is_on_this_machine(ours: TcpEnd, theirs: TcpEnd) -> bool:
    """Return True for a connection to loopback, and for one to another address of this machine.

    Both ends have that address then.
    """
    here, there = (unmap(ip_address(end.host)) for end in (ours, theirs))
    return there.is_loopback or here == there
