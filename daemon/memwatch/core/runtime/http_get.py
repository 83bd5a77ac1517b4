"""One HTTP GET within a deadline and a limit of bytes. Redirects are not followed."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memwatch.core.runtime.deadline_socket import DeadlineSocket, remaining

if TYPE_CHECKING:
    import ssl

MAX_HEADER_BYTES = 64 * 1024
# A name has a handful of addresses. The time that is left is divided among those that were not tried yet.
MAX_ADDRESSES = 8
USER_AGENT = "memwatchd"

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
# Type of socket.getaddrinfo.
Resolve = Callable[..., Sequence[AddressInfo]]
# Called with a connection and the deadline, before a token is sent. It raises GetError if this is not permitted.
Admit = Callable[[socket.socket, float], None]


class GetError(Exception):
    """A request without a usable answer. `status`: that of HTTP, 0 without one. The message is a clause."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class GetTimeoutError(GetError):
    """The deadline passed before the answer was complete."""


def get(
    host: str,
    port: int,
    path: str,
    deadline: float,
    max_bytes: int,
    token: str = "",
    tls: ssl.SSLContext | None = None,
    admit: Admit | None = None,
    resolve: Resolve = socket.getaddrinfo,
) -> bytes:
    """Return the body of a successful answer. Raises GetError.

    The deadline, in seconds of `time.monotonic`, is for everything from the connection to the last byte, so that an
    answer of one byte a second ends as well. Only `resolve` of a name may take longer.
    """
    try:
        with _connect(host, port, deadline, resolve, admit if token else None) as plain:
            if tls is None:
                return _exchange(plain, deadline, host, port, path, max_bytes, token)
            plain.settimeout(remaining(deadline))
            with tls.wrap_socket(plain, server_hostname=host) as wrapped:
                return _exchange(wrapped, deadline, host, port, path, max_bytes, token)
    except TimeoutError:
        raise GetTimeoutError("no complete answer in time") from None
    except http.client.HTTPException:
        raise GetError("the answer is not HTTP") from None
    except (OSError, ValueError) as error:
        raise GetError(str(getattr(error, "strerror", None) or error).lower()) from None


def _connect(host: str, port: int, deadline: float, resolve: Resolve, admit: Admit | None) -> socket.socket:
    """Connect to the first address that accepts a connection, and whose listener is admitted.

    Another user may listen at ::1 while the server listens at 127.0.0.1, both `localhost`.
    """
    found = resolve(host, port, type=socket.SOCK_STREAM)[:MAX_ADDRESSES]
    failure: Exception = OSError("the name has no address")
    for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        plain = socket.socket(family, kind, protocol)
        try:
            seconds = remaining(deadline) / left
            plain.settimeout(seconds)
            plain.connect(address)
            if admit is not None:
                admit(plain, time.monotonic() + seconds)
        except (OSError, GetError) as error:
            plain.close()
            # A refused listener has a remedy, a refused connection to another address of the name has none.
            failure = failure if isinstance(failure, GetError) else error
        else:
            return plain
    raise failure


def _exchange(
    connected: socket.socket, deadline: float, host: str, port: int, path: str, max_bytes: int, token: str
) -> bytes:
    connection = http.client.HTTPConnection(host, port)
    connection.sock = DeadlineSocket(connected, deadline, max_bytes + MAX_HEADER_BYTES)
    headers = {"User-Agent": USER_AGENT, "Connection": "close"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    if 300 <= response.status < 400:
        raise GetError(f"answered {response.status}, a redirect, which is not followed", response.status)
    if response.status != http.HTTPStatus.OK:
        raise GetError(f"answered {response.status}", response.status)
    if response.length is not None and response.length > max_bytes:
        raise GetError(f"the answer is larger than {max_bytes} bytes")
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise GetError(f"the answer is larger than {max_bytes} bytes")
    return body
