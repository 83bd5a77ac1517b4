"""Default address of this machine's daemon, addresses of this machine, and the credentials sent to a daemon."""

from __future__ import annotations

import socket
from collections.abc import Mapping

SOCKET_NAME = "memwatchd.sock"
# RuntimeDirectory= of the unit. /run belongs to root: no other user can put a socket there.
SOCKET_FILE = f"/run/memwatchd/{SOCKET_NAME}"
TCP_URL = "http://127.0.0.1:6360"
TOKEN = "MEMWATCH_TOKEN"  # noqa: S105  the name of the variable
# The user whose daemon gets the token over a port of this machine, a name or a number.
USER = "MEMWATCH_DAEMON_USER"
# The user of the unit.
ACCOUNT = "memwatchd"


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
    if scheme == "unix" or host in ("localhost", socket.gethostname().lower()):
        return True
    import ipaddress  # not loaded by a program whose daemon answers

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the Authorization header. The token comes from the environment: all users can see a command line."""
    token = environ.get(TOKEN, "").strip()
    return {"Authorization": f"Bearer {token}"} if token.isascii() and token.isprintable() and token else {}
