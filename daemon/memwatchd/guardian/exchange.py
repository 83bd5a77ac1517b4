"""One request over HTTP/1.0 on a connection, without `http.client`: its modules take 6 of the guardian's 20 MiB.

A server answers HTTP/1.0 without chunks and closes the connection after the body (RFC 9112).
"""

from __future__ import annotations

import socket

from memwatch.core.http import LimitedReader, remaining

MAX_HEAD_BYTES = 64 << 10


class NoAnswerError(Exception):
    """No usable answer in time. The message is a clause."""


def exchange(
    connected: socket.socket, method: str, path: str, host: str, deadline: float, max_bytes: int, body: bytes = b""
) -> tuple[int, bytes]:
    """Return the status and the body. `deadline`: monotonic seconds, for all of it. Raises NoAnswerError.

    The caller closes the connection.
    """
    head = f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        connected.settimeout(remaining(deadline))
        connected.sendall(f"{head}\r\n".encode("ascii") + body)
        answer = bytearray()
        reader = LimitedReader(connected, deadline, max_bytes + MAX_HEAD_BYTES)
        while piece := reader.read(1 << 16):
            answer += piece
    except TimeoutError:
        raise NoAnswerError("no complete answer in time") from None
    except (OSError, ValueError) as error:
        raise NoAnswerError(str(getattr(error, "strerror", None) or error).lower()) from None
    return parse_answer(bytes(answer), max_bytes)


def parse_answer(answer: bytes, max_bytes: int) -> tuple[int, bytes]:
    """Return the status and the body of a whole answer. Raises NoAnswerError."""
    front, blank, body = answer.partition(b"\r\n\r\n")
    parts = front.split(None, 2)
    if not blank or len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise NoAnswerError("the answer is not HTTP")
    if len(body) > max_bytes:
        raise NoAnswerError(f"the answer is larger than {max_bytes} bytes")
    for line in front.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit() and int(value) > len(body):
            raise NoAnswerError("the answer ended before its last byte")
    return int(parts[1]), body
