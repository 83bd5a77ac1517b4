"""One HTTP GET within a deadline and a limit of bytes. Redirects are not followed."""

from __future__ import annotations

import http.client
import socket
import time
from typing import TYPE_CHECKING

from memwatch.runtime.deadline_socket import DeadlineSocket, remaining

if TYPE_CHECKING:
    import ssl

MAX_HEADER_BYTES = 64 * 1024
USER_AGENT = "memwatchd"


class GetError(Exception):
    """A request without a usable answer. `status`: that of HTTP, 0 without one. The message is a clause."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


def get(
    host: str,
    port: int,
    path: str,
    timeout_seconds: float,
    max_bytes: int,
    token: str = "",
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """Return the body of a successful answer. Raises GetError.

    The deadline is for everything from the connection to the last byte, so that an answer of one byte a second ends
    as well.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        with socket.create_connection((host, port), timeout_seconds) as plain:
            if tls is None:
                return _exchange(plain, deadline, host, port, path, max_bytes, token)
            plain.settimeout(remaining(deadline))
            with tls.wrap_socket(plain, server_hostname=host) as wrapped:
                return _exchange(wrapped, deadline, host, port, path, max_bytes, token)
    except TimeoutError:
        raise GetError(f"no complete answer within {timeout_seconds:g} s") from None
    except http.client.HTTPException:
        raise GetError("the answer is not HTTP") from None
    except (OSError, ValueError) as error:
        raise GetError(str(getattr(error, "strerror", None) or error).lower()) from None


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
