"""HTTP client: one request on one connection, with a deadline for all of it and a limit of bytes.

It connects over TCP, TLS, a tunnel of a proxy or a Unix socket. Redirects are not followed. Callers choose headers,
logins, retries and the words of their errors. `http.client` with its 28 modules is imported by the first request.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memwatch.core.printable import describe_error

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse

    from _typeshed import WriteableBuffer

MAX_HEADER_BYTES = 64 * 1024
# A name has a handful of addresses. The time that is left is divided among those that were not tried yet.
MAX_ADDRESSES = 8
# Bad gateway, gateway timeout: a proxy forwarded the request and got no valid response.
GATEWAY_STATUSES = frozenset({502, 504})
USER_AGENT = "memwatchd"
IPV4_IN_IPV6, IPV6_LOOPBACK = bytes(10) + b"\xff\xff", bytes(15) + b"\1"
DEFAULT_PORTS = {"http": 80, "https": 443}

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
# Type of socket.getaddrinfo.
Resolve = Callable[..., Sequence[AddressInfo]]
# Called with a connection and the deadline, before a secret is sent. It raises GetError if this is not permitted.
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
    from http.client import HTTPException

    headers = {"Host": authority(host, port, tls is not None), "User-Agent": USER_AGENT, "Connection": "close"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with connect(host, port, deadline, resolve, admit if token else None, tls=tls) as connected:
            limited = DeadlineSocket(connected, deadline, max_bytes + MAX_HEADER_BYTES)
            response = request(limited, "GET", path, headers)
            if 300 <= response.status < 400:
                raise GetError(f"answered {response.status}, a redirect, which is not followed", response.status)
            if response.status != 200:
                raise GetError(f"answered {response.status}", response.status)
            is_announced = response.length is not None and response.length > max_bytes
            body = b"" if is_announced else response.read(max_bytes + 1)
            if is_announced or len(body) > max_bytes:
                raise GetError(f"the answer is larger than {max_bytes} bytes")
            return body
    except TimeoutError:
        raise GetTimeoutError("no complete answer in time") from None
    except HTTPException:
        raise GetError("the answer is not HTTP") from None
    except (OSError, ValueError) as error:
        raise GetError(describe_error(error)) from None


def resolve_name(host: str, port: int, **hints: int) -> Sequence[AddressInfo]:
    """Return addresses as socket.getaddrinfo does. A text would load the codec idna with the tables of Unicode."""
    return socket.getaddrinfo(host.encode() if host.isascii() else host, port, **hints)


def connect(
    host: str,
    port: int,
    deadline: float,
    resolve: Resolve = socket.getaddrinfo,
    admit: Admit | None = None,
    before: Callable[[socket.socket, str], None] | None = None,
    tunnel: Callable[[socket.socket], None] | None = None,
    tls: ssl.SSLContext | None = None,
    tls_host: str = "",
) -> socket.socket:
    """Connect to the first address that accepts a connection, and whose listener is admitted.

    Another user may listen at ::1 while the server listens at 127.0.0.1, both `localhost`. `before` is called with
    each socket and its address before it is connected to, `tunnel` before TLS. The certificate is that of
    `tls_host`, by default of `host`. Raises GetError, OSError and ValueError.
    """
    found = resolve(host, port, type=socket.SOCK_STREAM)[:MAX_ADDRESSES]
    failure: Exception = OSError("the name has no address")
    for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        plain = socket.socket(family, kind, protocol)
        try:
            if before is not None:
                before(plain, str(address[0]))
            seconds = remaining(deadline) / left
            plain.settimeout(seconds)
            plain.connect(address)
            if admit is not None:
                admit(plain, time.monotonic() + seconds)
            if tunnel is not None:
                tunnel(plain)
            if tls is None:
                return plain
            plain.settimeout(remaining(deadline))
            return tls.wrap_socket(plain, server_hostname=tls_host or host)
        except (OSError, ValueError, GetError) as error:
            plain.close()
            # A refused listener has a remedy, a refused connection to another address of the name has none.
            failure = failure if isinstance(failure, GetError) else error
        except BaseException:
            plain.close()
            raise
    raise failure


def connect_unix(path: str, deadline: float, admit: Admit | None = None) -> socket.socket:
    """Connect to a socket file. Raises GetError and OSError."""
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        plain.settimeout(remaining(deadline))
        plain.connect(path)
        if admit is not None:
            admit(plain, deadline)
    except BaseException:
        plain.close()
        raise
    return plain


def request(
    connected: socket.socket | DeadlineSocket,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> HTTPResponse:
    """Send a request and return the response without its body. Raises OSError, HTTPException and ValueError.

    Without a Host header in `headers` it is `localhost`, as over a socket file.
    """
    from http.client import HTTPConnection

    connection = HTTPConnection("localhost")
    connection.sock = connected
    connection.request(method, path, body, headers)
    return connection.getresponse()


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches, in IPv4, IPv6 or IPv4 in IPv6. A name is none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            packed = socket.inet_pton(family, host.partition("%")[0])
        except (OSError, ValueError):
            continue
        embedded = packed.removeprefix(IPV4_IN_IPV6)
        return embedded[0] == 127 if len(embedded) == 4 else packed == IPV6_LOOPBACK
    return False


def authority(host: str, port: int, is_tls: bool = False) -> str:
    """Return the Host header: without the zone of an IPv6 address, and without the usual port."""
    name = f"[{host.partition('%')[0]}]" if ":" in host else host
    if not name.isascii():
        name = name.encode("idna").decode()
    return name if port == (443 if is_tls else 80) else f"{name}:{port}"


class DeadlineSocket:
    """Socket for http.client with a deadline for the whole exchange and a limit of the bytes that are read.

    The caller closes the socket that it wraps.
    """

    def __init__(self, connected: socket.socket, deadline: float, max_bytes: int) -> None:
        self._connected = connected
        self._deadline = deadline
        self._max_bytes = max_bytes

    def sendall(self, data: bytes) -> None:
        self._connected.settimeout(remaining(self._deadline))
        self._connected.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(LimitedReader(self._connected, self._deadline, self._max_bytes))

    def close(self) -> None:
        """Do nothing: the caller closes the socket."""


class LimitedReader(io.RawIOBase):
    """Stream from a socket until the deadline or the limit, which appears as the end of the stream."""

    def __init__(self, connected: socket.socket, deadline: float, max_bytes: int) -> None:
        self._connected = connected
        self._deadline = deadline
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._connected.settimeout(remaining(self._deadline))
        space = memoryview(buffer)[: self._left]
        count = self._connected.recv_into(space) if self._left else 0
        self._left -= count
        return count


def remaining(deadline: float) -> float:
    """Return the seconds left, above zero. Raises TimeoutError at the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
