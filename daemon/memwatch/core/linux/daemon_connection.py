"""Connections to a daemon, which are closed if another user than the daemon's listens, before a token is sent.

While the daemon is down, any user of the machine may listen at its port, or at a socket file outside /run. A
command has no first owner to compare with, as the daemon has for the servers that it asks: it accepts those who can
read the token anyway.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from memwatch.core.http import GetError, authority, connect, connect_unix, resolve_name
from memwatch.core.linux.tcp_peer import (
    ELSEWHERE,
    HIDDEN,
    REMOTE,
    Find,
    describe_owner,
    find_peer,
    is_user,
    wait_for_owner,
)
from memwatch.core.runtime.daemon_address import ACCOUNT, SOCKET_FILE, USER, read_authorization

PASSWD = Path("/etc/passwd")
ROOT = 0
NOT_SENT = "the token is not sent"
NAMED = (
    f"{NOT_SENT}: user {{found}} listens at {{port}}, not {{user}} of {USER}; start the daemon, or correct {USER}"
)
FOREIGN = (
    f"{NOT_SENT}: user {{found}} listens at {{port}}, not root, you or {ACCOUNT}; start the daemon, use its socket "
    f"file or https, or set {USER}={{found}} if that is the daemon"
)
INVISIBLE = (
    f"{NOT_SENT}: the user who listens at {{port}} is not visible in this container; use the socket file or https"
)


def connect_daemon(
    scheme: str,
    host: str,
    port: int,
    seconds: float,
    environ: Mapping[str, str] = os.environ,
    find: Find = find_peer,
) -> socket.socket:
    """Connect by http, https or unix, where `host` is the path of the socket file.

    With a token in `environ`, the listener's user is checked. Not for https: a certificate says more than a user,
    and a proxy that has it runs as any user. Only root can put a socket file at the place of the unit's.
    Raises GetError with a sentence that says what to do, and OSError.
    """
    deadline = time.monotonic() + seconds
    where = host if scheme == "unix" else f"{host}:{port}"

    def admit(connected: socket.socket, until: float) -> None:
        if why := why_refused(wait_for_owner(connected, until, find), environ.get(USER)):
            raise GetError(why.format(port=where))

    has_token = bool(read_authorization(environ))
    if scheme == "unix":
        return connect_unix(host, deadline, admit if has_token and host != SOCKET_FILE else None)
    if scheme == "http":
        return connect(host, port, deadline, resolve_name, admit if has_token else None)
    import ssl  # http.client has it loaded, where Python has it

    tls = ssl.create_default_context()
    tls.set_alpn_protocols(["http/1.1"])
    return connect(host, port, deadline, resolve_name, tls=tls)


def build_headers(scheme: str, host: str, port: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the headers of all requests to a daemon: its name, and the token."""
    name = "localhost" if scheme == "unix" else authority(host, port, scheme == "https")
    return {"Host": name, **read_authorization(environ)}


def why_refused(owner: int, user: str | None, socket_file: str = SOCKET_FILE, accounts: Path = PASSWD) -> str:
    """Return why a token is not for the owner of a port, empty if it is. `user`: the only one, a name or number."""
    if owner in (REMOTE, ELSEWHERE):
        return ""
    if owner == HIDDEN:
        return INVISIBLE
    if not user and owner in (ROOT, os.geteuid(), find_service_uid(socket_file)):
        return ""
    from memwatch.core.linux.process_files import Passwd  # takes 10 ms, which is rarely needed

    passwd = Passwd(accounts)
    if is_user(owner, user or ACCOUNT, passwd):
        return ""
    sentence = NAMED if user else FOREIGN
    return sentence.format(found=describe_owner(owner, passwd), user=user, port="{port}")


def find_service_uid(socket_file: str) -> int | None:
    """Return the user of the unit: systemd makes its folder in /run, where only root can put one."""
    with suppress(OSError):
        return os.stat(os.path.dirname(socket_file)).st_uid
    return None
