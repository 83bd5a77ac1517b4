"""HTTP connections to a daemon, which are closed if another user than the daemon's listens, before a token is sent.

While the daemon is down, any user of the machine may listen at its port, or at a socket file outside /run. A
command has no first owner to compare with, as the daemon has for the servers that it asks: it accepts those who can
read the token anyway.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

from memwatch.core.linux.listener_owner import (
    ELSEWHERE,
    HIDDEN,
    REMOTE,
    Find,
    describe_owner,
    is_user,
    wait_for_owner,
)
from memwatch.core.linux.tcp_peer import find_peer
from memwatch.core.runtime.daemon_address import ACCOUNT, SOCKET_FILE, USER, read_authorization
from memwatch.core.runtime.unix_http import UnixConnection

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


class ForeignListenerError(OSError):
    """The token is not sent. `strerror` is a sentence with what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)


class DaemonConnection(HTTPConnection):
    """HTTP client connection. With a token in `environ`, the listener's user is checked after connecting.

    https is not: a certificate says more than a user, and a proxy that has it runs as any user.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        timeout: float,
        environ: Mapping[str, str] = os.environ,
        find: Find = find_peer,
    ) -> None:
        super().__init__(host, port, timeout=timeout)
        self._seconds = timeout
        self._environ, self._find = environ, find

    def connect(self) -> None:
        """Connect. Raises ForeignListenerError, and OSError as the connection does."""
        super().connect()
        require_owner(self, f"{self.host}:{self.port}", self._seconds, self._environ, self._find)


class DaemonSocketConnection(UnixConnection):
    """The same over a socket file. Only root can put one at the place of the unit's."""

    def __init__(self, path: str, timeout: float, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(path, timeout)
        self._seconds, self._environ = timeout, environ

    def connect(self) -> None:
        super().connect()
        if self._path != SOCKET_FILE:
            require_owner(self, self._path, self._seconds, self._environ)


def require_owner(
    connection: HTTPConnection, where: str, seconds: float, environ: Mapping[str, str], find: Find = find_peer
) -> None:
    """With a token in `environ`, close the connection and raise ForeignListenerError if it is not for that user."""
    if not read_authorization(environ):
        return
    try:
        owner = wait_for_owner(connection.sock, time.monotonic() + seconds, find)
        if why := why_refused(owner, environ.get(USER)):
            raise ForeignListenerError(why.format(port=where))
    except BaseException:
        connection.close()
        raise


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
