"""Requests by which model servers free memory, only to loopback addresses where the daemon found one."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.engines.unload import MODEL, UNLOADS
from memwatch.core.http import GetError, authority, connect
from memwatch.core.model import Absent
from memwatchd.guardian.exchange import NoAnswerError, exchange

MAX_ANSWER_BYTES = 1 << 20


class EngineRequest(Struct, frozen=True):
    """A documented request by which a model server frees memory."""

    method: str
    path: str
    body: bytes = b""


def find_request(engine: Engine) -> EngineRequest | None:
    """Return the request of this kind of server, None if it has none.

    llama.cpp's `/slots` has no place here: it empties a cache whose memory it keeps.
    """
    unload = UNLOADS.get(engine.kind)
    if unload is None or not unload.path:
        return None
    if unload.body is None:
        return EngineRequest("POST", unload.path)
    if MODEL in unload.body.values() and not isinstance(engine.model, str):
        return None
    body = {name: engine.model if value == MODEL else value for name, value in unload.body.items()}
    return EngineRequest("POST", unload.path, msgspec.json.encode(body))


def ask_engine(engine: Engine, seconds: float) -> str:
    """Ask a model server to free memory, only where the daemon found it. Return the result as a clause."""
    request = find_request(engine)
    if request is None:
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
    try:
        with connect(host, port, deadline) as connected:
            status, _ = exchange(
                connected,
                request.method,
                parts.path.rstrip("/") + request.path,
                authority(host, port),
                deadline,
                MAX_ANSWER_BYTES,
                request.body,
            )
    except (GetError, NoAnswerError, OSError) as error:
        return f"{request.method} {request.path}: {describe_error(error)}"
    return f"{request.method} {request.path}: it answered {status}"


def describe_error(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine that no other machine reaches. A name has no certain address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            packed = socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return packed[0] == 127 if family is socket.AF_INET else packed == bytes(15) + b"\1"
    return False
