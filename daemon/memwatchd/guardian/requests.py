"""Requests of the guardian: to its daemon, and those by which model servers free memory.

They are HTTP/1.0 on a connection, without `http.client`, whose modules take 6 of the guardian's 20 MiB. A server
answers HTTP/1.0 without chunks and closes the connection after the body (RFC 9112). Model servers are asked only at
loopback addresses where the daemon found them.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.engines.unload import MODEL, UNLOADS, list_models
from memwatch.core.http import GetError, LimitedReader, authority, connect, is_loopback, remaining
from memwatch.core.model import Absent
from memwatch.core.printable import describe_error

MAX_HEAD_BYTES, MAX_ANSWER_BYTES = 64 << 10, 1 << 20


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
        raise NoAnswerError(describe_error(error)) from None
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


class EngineRequest(Struct, frozen=True):
    """A documented POST request by which a model server frees memory."""

    path: str
    body: bytes = b""


def find_requests(engine: Engine) -> tuple[EngineRequest, ...]:
    """Return the requests of this kind of server, one for each model where they name it; none if it has none.

    llama.cpp's `/slots` has no place here: it empties a cache whose memory it keeps.
    """
    unload = UNLOADS.get(engine.kind)
    if unload is None or not unload.path:
        return ()
    if unload.body is None:
        return (EngineRequest(unload.path),)
    names = list_models(engine) if MODEL in unload.body.values() else ("",)
    bodies = [{key: name if value == MODEL else value for key, value in unload.body.items()} for name in names]
    return tuple(EngineRequest(unload.path, msgspec.json.encode(body)) for body in bodies)


def ask_engine(engine: Engine, seconds: float) -> str:
    """Ask a model server to free memory, only where the daemon found it. Return the result as a clause."""
    requests = find_requests(engine)
    if not requests:
        return f"{engine.title} has no request that frees memory"
    if isinstance(engine.url, Absent):
        return f"the address of {engine.title} is not known"
    try:
        parts = urlsplit(engine.url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return f"{engine.url!r} is no address"
    if parts.scheme != "http" or not is_loopback(host):
        return f"not sent: {engine.url} is not a loopback address"
    deadline = time.monotonic() + seconds
    return "; ".join([send_request(one, host, port, parts.path.rstrip("/"), deadline) for one in requests])


def send_request(request: EngineRequest, host: str, port: int, prefix: str, deadline: float) -> str:
    """Send one request and return its result as a clause."""
    try:
        with connect(host, port, deadline) as connected:
            name, path = authority(host, port), prefix + request.path
            status, _ = exchange(connected, "POST", path, name, deadline, MAX_ANSWER_BYTES, request.body)
    except (GetError, NoAnswerError, OSError) as error:
        return f"POST {request.path}: {describe_error(error)}"
    return f"POST {request.path}: it answered {status}"
