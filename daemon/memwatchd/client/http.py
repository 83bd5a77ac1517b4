"""One question to a daemon over HTTP, and every way in which there is no answer, in a sentence."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from memwatch.runtime.unix_http import UnixConnection
from memwatchd.client.address import Address
from memwatchd.client.errors import CommandError

SECONDS = 10.0
MAX_ANSWER_BYTES = 64 << 20
TOKEN = "MEMWATCH_TOKEN"  # noqa: S105  the variable that holds one
JSON_TYPES = ("application/json", "application/problem+json")


class DaemonUnreachableError(CommandError):
    """No daemon answers there. `address` is where it was looked for, `reason` why there is none."""

    def __init__(self, address: Address, error: OSError, seconds: float) -> None:
        reason = describe_reason(error, seconds)
        if isinstance(error, socket.gaierror):
            why = f"the name {address.host} leads to no machine ({reason}); correct it"
        else:
            why = f"no memwatchd answers at {address} ({reason}); {remedy_for(address, error)}"
        super().__init__(f"{why}, or name another with --url")
        self.address = address
        self.reason = reason


class RequestDeclinedError(CommandError):
    """Somebody answered, and not with what was asked for; the message says what."""


class DaemonResponse(Struct, frozen=True):
    """What was said, when by the clock of who said it (None where that was not said), and whether of a machine that
    is none."""

    json: Any
    unix: float | None
    is_simulated: bool = False


def ask(address: Address, path: str, method: str = "GET", seconds: float = SECONDS) -> DaemonResponse:
    """What is at `path`. Raises DaemonUnreachableError or Declined."""
    connection = connection_to(address, seconds)
    try:
        connection.request(method, address.prefix + path, headers=build_headers(os.environ))
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
    except OSError as error:
        raise DaemonUnreachableError(address, error, seconds) from None
    except http.client.HTTPException as error:
        raise RequestDeclinedError(
            f"what answers at {address} speaks no whole HTTP ({type(error).__name__})"
        ) from None
    finally:
        connection.close()
    is_simulated = response.headers["Memwatch-Simulated"] == "true"
    return DaemonResponse(_read(address, response, body), parse_date(response.headers["Date"]), is_simulated)


def build_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """What every question says; a token, where the environment holds one: a command line is seen by everybody."""
    headers = {"Accept": "application/json"}
    token = environ.get(TOKEN, "").strip()
    if token.isascii() and token.isprintable() and token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def connection_to(address: Address, seconds: float) -> http.client.HTTPConnection:
    if address.scheme == "unix":
        return UnixConnection(address.host, seconds)
    if address.scheme == "https":
        return http.client.HTTPSConnection(address.host, address.port, timeout=seconds)
    return http.client.HTTPConnection(address.host, address.port, timeout=seconds)


def describe_reason(error: OSError, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {seconds:g} s"
    if isinstance(error, PermissionError):
        return "this user may not use that socket; it is for its owner and group"
    return (error.strerror or str(error) or type(error).__name__).lower()


def remedy_for(address: Address, error: OSError) -> str:
    """What would make a daemon answer there."""
    if address.is_here:
        return f"start one with: {address.start_command}"
    if isinstance(error, ConnectionRefusedError):
        where = f'listen = ["0.0.0.0:{address.port}"] under [web], and a bearer_token under [web.auth]'
        return f"start one there that asks for a login ({where})"
    return f"see that the machine is on and lets port {address.port} through"


def parse_date(header: str | None) -> float | None:
    try:
        return parsedate_to_datetime(header or "").timestamp()
    except (ValueError, TypeError, OverflowError):  # TypeError: Python 3.10 for what is no date
        return None


def _read(address: Address, response: http.client.HTTPResponse, body: bytes) -> Any:  # noqa: ANN401
    kind = response.headers.get_content_type()
    try:
        found = json.loads(body) if kind in JSON_TYPES else None
    except (ValueError, RecursionError):
        found = None
    if response.status != http.client.OK:
        raise RequestDeclinedError(refusal(address, response, found))
    if found is None:
        raise RequestDeclinedError(f"what answers at {address} is no memwatchd: it sent {kind}, not readable JSON")
    return found


def refusal(address: Address, response: http.client.HTTPResponse, found: object) -> str:
    """The sentence of a problem, or the status where there is none."""
    detail = found.get("detail") if isinstance(found, dict) else None
    if isinstance(detail, str) and detail:
        return f"{address} declined: {detail}"
    return f"what answers at {address} said {response.status} {response.reason}: is it a memwatchd?"
