"""Local processes and users at the other end of a connection: of a client, and of a server before it gets a secret.

A connection within one network namespace has two rows in /proc/net/tcp, one for each end. The table is always that
of this process (/proc/self/net): a mounted procfs of the host shows another network, without this connection.

A port of this machine belongs to any user who listens on it first. While a server is down, a secret for it would go
to another user. The other end of a connection is a socket of the process that accepted it. Of a socket file, the
kernel names the user of the process that listened (unix(7), SO_PEERCRED).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from memwatch.core.http import remaining
from memwatch.core.linux.files import maps_every_user
from memwatch.core.model import Absent

if TYPE_CHECKING:
    from memwatch.core.linux.process_files import Passwd  # most commands never describe an owner


NET = Path("/proc/net")
UID_MAP = Path("/proc/self/uid_map")
# /proc/sys/kernel/overflowuid, shown for users that a user namespace does not map. Different users share it.
OVERFLOW_UID = 65534
# Column indexes of a row (proc_net_tcp in the kernel's documentation).
LOCAL_END, REMOTE_END, UID, INODE = 1, 2, 7, 9
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


class TcpEnd(Struct, frozen=True):
    """Address and port of one end of a connection."""

    host: str
    port: int


class Peer(Struct, frozen=True):
    """The other end of a connection. `is_here`: it is a socket of this network namespace.

    `is_accepted`: a process holds it. `uid`: the user of that process, None if that id is not visible here.
    """

    uid: int | None = None
    is_here: bool = False
    is_accepted: bool = False


IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def find_peer_uids(
    connections: Sequence[tuple[TcpEnd, TcpEnd]], net: Path = NET, uid_map: Path = UID_MAP
) -> list[int | None]:
    """Return the user id of the process at the client's end of each connection (client, our socket).

    None if the client is on another machine or in another network namespace, has closed its socket, or belongs to a
    user without an id here, and on systems without /proc/net. Takes 5 to 10 ms for all of them, 46 ms with 9,000
    connections (Linux 6.18): the kernel walks all of its hash table.
    """
    rows: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
    wanted = [list(table_rows(*one)) for one in connections]
    for name in ("tcp", "tcp6"):
        rows |= {(local, remote): [] for one in wanted for table, local, remote in one if table == name}
        with suppress(OSError):
            for line in (net / name).read_bytes().splitlines():
                columns = line.split(None, REMOTE_END + 1)
                if len(columns) > REMOTE_END and (key := (columns[LOCAL_END], columns[REMOTE_END])) in rows:
                    rows[key] += parse_rows([line], *key)
        of_tables = [[row for _, *key in one for row in rows.get((key[0], key[1]), ())] for one in wanted]
        if all(any(inode for _, inode in one) for one in of_tables):  # one connection is in one table only
            break
    return [_choose(one, uid_map).uid for one in of_tables]


def find_peer(client: TcpEnd, server: TcpEnd, net: Path = NET, uid_map: Path = UID_MAP) -> Peer:
    """Return the socket `client`, which is connected to our socket `server`; the names may as well be exchanged."""
    rows: list[tuple[int, int]] = []
    for name, local, remote in table_rows(client, server):
        with suppress(OSError), (net / name).open("rb") as table:
            rows += parse_rows(table, local, remote)
        if any(inode for _, inode in rows):  # one connection is in one table only
            break
    return _choose(rows, uid_map)


def _choose(rows: Sequence[tuple[int, int]], uid_map: Path) -> Peer:
    uids = {uid for uid, inode in rows if inode}
    uid = uids.pop() if len(uids) == 1 else None
    if uid == OVERFLOW_UID and not maps_every_user(uid_map):
        uid = None
    return Peer(uid, bool(rows), any(inode for _, inode in rows))


def table_rows(client: TcpEnd, server: TcpEnd) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield table, local and remote address of the rows to look for. Nothing for names and scoped addresses.

    A client may have an IPv6 socket and use the IPv4-mapped address: its row is then in the other table.
    """
    try:
        plain: list[IpAddress] = [unmap(ipaddress.ip_address(end.host)) for end in (client, server)]
    except ValueError:
        return
    if any(address.version != plain[0].version for address in plain):
        return
    ports = (client.port, server.port)
    if plain[0].version == 4:
        yield "tcp", encode(plain[0], ports[0]), encode(plain[1], ports[1])
        plain = [ipaddress.IPv6Address(f"::ffff:{address}") for address in plain]
    yield "tcp6", encode(plain[0], ports[0]), encode(plain[1], ports[1])


def unmap(address: IpAddress) -> IpAddress:
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address


def encode(address: IpAddress, port: int) -> bytes:
    """Return an address as the kernel prints it: 32-bit words in the byte order of this machine, then the port."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return b"%s:%04X" % (b"".join(b"%08X" % word for word in words), port)


def parse_rows(lines: Iterable[bytes], local: bytes, remote: bytes) -> Iterator[tuple[int, int]]:
    """Yield user id and inode of each row of this connection. The inode is 0 if no process holds the socket.

    That is so before a process accepts it, and for a minute after it was closed: with user 0 (Linux 6.18, states
    FIN_WAIT2 and TIME_WAIT), which must not count as root.
    """
    for line in lines:
        if local not in line:
            continue
        columns = line.split(None, INODE + 1)
        if len(columns) <= INODE or columns[LOCAL_END] != local or columns[REMOTE_END] != remote:
            continue
        uid, inode = columns[UID], columns[INODE]
        if uid.isdigit() and inode.isdigit() and len(uid) <= 10:
            yield int(uid), int(inode)


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
    here, there = (unmap(ipaddress.ip_address(end.host)) for end in (ours, theirs))
    return there.is_loopback or here == there
