"""Listening TCP sockets: addresses, owners and inodes, from the kernel's tables of one network namespace."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from msgspec import Struct

# State of a row (include/net/tcp_states.h).
LISTEN = b"0A"
TABLES = ("tcp", "tcp6")
# Sockets that accept connections: a busy machine has some hundreds.
MAX_ROWS = 4096
# A server with thousands of connections has as many descriptors.
MAX_DESCRIPTORS = 4096
# Each takes 8 ms. A user may create thousands of them.
MAX_NAMESPACES = 32
_SOCKET = re.compile(r"socket:\[(\d{1,20})\]")


class Listener(Struct, frozen=True):
    """A listening socket. `host` is an address as text."""

    host: str
    port: int
    uid: int
    inode: int

    @property
    def loopback(self) -> str | None:
        """Return the loopback address that reaches the socket, None if it listens on another address only."""
        address = IPv6Address(self.host) if ":" in self.host else IPv4Address(self.host)
        inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        address = inner or address
        if address.is_unspecified:
            # A server on :: mostly accepts IPv4 as well, but need not.
            return "127.0.0.1" if isinstance(address, IPv4Address) else "::1"
        return str(address) if address.is_loopback else None


def read_listeners(net: Path) -> dict[int, Listener]:
    """Return the listening sockets of a network namespace by inode. `net`: its folder, such as /proc/net.

    Takes 5 to 10 ms: the kernel walks all of its hash table.
    """
    found: dict[int, Listener] = {}
    for name in TABLES:
        with contextlib.suppress(OSError), (net / name).open("rb") as table:
            for one in parse_listeners(table):
                found[one.inode] = one
                if len(found) >= MAX_ROWS:
                    return found
    return found


def parse_listeners(lines: Iterable[bytes]) -> Iterator[Listener]:
    for line in lines:
        columns = line.split(None, 10)
        if len(columns) < 10 or columns[3] != LISTEN:
            continue
        host, colon, port = columns[1].partition(b":")
        address = decode_address(host)
        uid, inode = columns[7], columns[9]
        if address and colon and uid.isdigit() and inode.isdigit() and len(uid) <= 10 and len(inode) <= 20:
            with contextlib.suppress(ValueError):
                yield Listener(address, int(port, 16) & 0xFFFF, int(uid), int(inode))


def decode_address(text: bytes) -> str | None:
    """Return an address that the kernel prints as 32-bit words in the byte order of this machine."""
    if len(text) not in (8, 32):
        return None
    try:
        words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    except ValueError:
        return None
    packed = struct.pack(f"={len(words)}I", *words)
    return str(IPv4Address(packed) if len(words) == 1 else IPv6Address(packed))


def read_socket_inodes(folder: Path, most: int = MAX_DESCRIPTORS) -> tuple[frozenset[int], int] | None:
    """Return the sockets among the first descriptors of a process, and the number of these.

    None if they may not be read. `folder`: /proc/PID.
    """
    found, count = set(), 0
    try:
        with os.scandir(folder / "fd") as entries:
            for count, entry in zip(range(1, most + 1), entries, strict=False):  # noqa: B007
                with contextlib.suppress(OSError):
                    match = _SOCKET.fullmatch(os.readlink(entry.path))
                    if match:
                        found.add(int(match[1]))
    except OSError:
        return None
    return frozenset(found), count


class ListenerTables:
    """The listening sockets of network namespaces, each read once. One object serves one round.

    All processes of a namespace share the file: its inode tells namespaces apart, also where the link ns/net may
    not be read (Linux 6.18). `cut` counts the namespaces with more sockets than are read.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], dict[int, Listener]] = {}
        self.cut: int = 0

    def read(self, net: Path) -> dict[int, Listener]:
        """Return the sockets by inode, none if too many namespaces were read. `net`: /proc/PID/net."""
        try:
            status = (net / TABLES[0]).stat()
        except OSError:
            return {}
        key = status.st_dev, status.st_ino
        if key not in self._read:
            if len(self._read) >= MAX_NAMESPACES:
                return {}
            self._read[key] = read_listeners(net)
            self.cut += len(self._read[key]) >= MAX_ROWS
        return self._read[key]
