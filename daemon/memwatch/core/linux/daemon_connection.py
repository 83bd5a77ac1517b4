"""Address of a daemon, and connections, which are closed before a token is sent if a foreign user listens.

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

from memwatch.core.http import GetError, authority, connect, connect_unix, is_loopback, resolve_name
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

SOCKET_NAME = "memwatchd.sock"
# RuntimeDirectory= of the unit. /run belongs to root: no other user can put a socket there.
SOCKET_FILE = f"/run/memwatchd/{SOCKET_NAME}"
PORT = 6360
TCP_URL = f"http://127.0.0.1:{PORT}"
# An idle daemon builds its API at the first request, which takes seconds on a slow board. Its queries of drivers
# time out after 10 s; their results are cached for one minute.
ANSWER_SECONDS, INQUIRY_SECONDS = 20.0, 30.0
TOKEN = "MEMWATCH_TOKEN"  # noqa: S105  the name of the variable
# The user whose daemon gets the token over a port of this machine, a name or a number.
USER = "MEMWATCH_DAEMON_USER"
# The user of the unit.
ACCOUNT = "memwatchd"
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


def default_url(socket_file: str = SOCKET_FILE) -> str:
    """Return the URL of the daemon's socket file if this user can connect to it, else that of its TCP port.

    Over the socket file the kernel names the caller, and no other program can take the daemon's place. A killed
    daemon leaves its file behind: only a connection shows that it is served.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket_file)
        except BlockingIOError:  # served, with a full backlog
            pass
        except OSError:
            return TCP_URL
    return f"unix:{socket_file}"


def is_on_this_machine(scheme: str, host: str) -> bool:
    """Return True for a daemon of this machine, for which reading the machine directly is an equivalent."""
    return scheme == "unix" or host in ("localhost", socket.gethostname().lower()) or is_loopback(host)


def read_authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the Authorization header. The token comes from the environment: all users can see a command line."""
    token = environ.get(TOKEN, "").strip()
    return {"Authorization": f"Bearer {token}"} if token.isascii() and token.isprintable() and token else {}
