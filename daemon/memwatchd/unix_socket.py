"""Unix sockets: listening files, and the credentials of a peer."""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path

from msgspec import Struct

BACKLOG = 256
OWNER_AND_GROUP = 0o660
PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


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
