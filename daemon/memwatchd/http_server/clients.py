"""Clients that share the limits: one network address, or one local user."""

from __future__ import annotations

import socket

from memwatchd.unix_socket import Peer

# All addresses of the loopback network: a local user can connect from any of them.
LOOPBACK = "loopback"
IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def name_client(host: str | None, peer: Peer | None) -> str:
    """Return the client of a connection: IPv4 address, IPv6 /64, loopback, or the user of a Unix socket.

    A /64 is what one host or household gets from its network. It can use every address in it.
    """
    if peer is not None:
        return f"uid {peer.uid}"
    if host is None or host.startswith("127."):
        return LOOPBACK
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(IPV4_IN_IPV6):
        return name_client(socket.inet_ntop(socket.AF_INET, packed[12:]), None)
    if packed == b"\x00" * 15 + b"\x01":
        return LOOPBACK
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"
