"""Access by Host header and credentials, for any header."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from memwatch_web.asgi.access import AccessControl, WebOptions, is_allowed, is_valid
from memwatch_web.asgi.caller import PEER
from memwatch_web.asgi.login import Login, parse_token

TOKEN = b"sixteen-letters-of-tests"
WITH_LOGIN = WebOptions(hosts=(".example.com",), login=Login(parse_token(TOKEN.decode())))
HOSTS = st.one_of(
    st.binary(max_size=80),
    st.from_regex(rb"[a-z0-9.-]{1,20}(\.example\.com|\.evil\.example)?(:[0-9]{1,5})?", fullmatch=True),
    st.ip_addresses().map(
        lambda address: f"[{address}]:6360".encode() if address.version == 6 else str(address).encode()
    ),
)
GUESSES = st.one_of(st.none(), st.binary(max_size=60), st.just(b"Bearer " + TOKEN), st.just(b"Bearer x" + TOKEN))
MARKS = st.sampled_from([None, b"origin", b"referer", b"cookie", b"sec-fetch-site", b"via", b"x-forwarded-host"])


def status_of(options: WebOptions, headers: list[tuple[bytes, bytes]], **more: Any) -> int:
    """Return the status of a GET."""
    sent: list[Message] = []

    async def let_in(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/metrics",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        **more,
    }
    access = AccessControl(let_in, lambda: options, [(b"date", b"")], own_names=lambda: frozenset({"box"}))
    asyncio.run(access(scope, receive, send))
    return int(sent[0]["status"])


@given(HOSTS, GUESSES, MARKS)
def test_only_the_right_token_of_a_program_replaces_a_known_name(
    host: bytes, guess: bytes | None, mark: bytes | None
) -> None:
    headers = [(b"host", host)]
    headers += [] if guess is None else [(b"authorization", guess)]
    headers += [] if mark is None else [(mark, b"a")]
    is_known = is_allowed(host.decode("latin-1"), {"localhost", "box", ".example.com"})
    is_right = guess == b"Bearer " + TOKEN and is_valid(host)

    expected = (200 if is_right else 401) if is_known else (200 if is_right and mark is None else 400)

    assert status_of(WITH_LOGIN, headers) == (expected if is_valid(host) else 400)


@given(HOSTS, GUESSES)
def test_credentials_change_nothing_without_a_login(host: bytes, guess: bytes | None) -> None:
    """And the socket file needs a known name, as its clients send no credentials."""
    headers = [(b"host", host), *([] if guess is None else [(b"authorization", guess)])]
    is_known = is_valid(host) and is_allowed(host.decode("latin-1"), {"localhost", "box", ".example.com"})

    assert status_of(WebOptions(hosts=(".example.com",)), headers) == (200 if is_known else 400)
    assert status_of(WITH_LOGIN, headers, **{PEER: object()}) == (200 if is_known else 400)


@pytest.mark.parametrize(
    "host",
    [
        b"localhost\t",
        b"local\thost",
        b"localhost:6360\t",
        b"localhost:6360 evil.example",
        b"localhost:\x0b1",
        b"localhost:x",
        b"[::1]\t",
        b"[::1]evil.example",
        b"10.0.0.1\x00",
    ],
)
def test_host_with_a_tab_or_other_odd_parts_is_refused(host: bytes) -> None:
    """Also with the right token, which replaces a known name."""
    for options in (WebOptions(), WITH_LOGIN):
        assert status_of(options, [(b"host", host), (b"authorization", b"Bearer " + TOKEN)]) == 400


@given(st.lists(HOSTS, max_size=3).filter(lambda hosts: len(hosts) != 1))
def test_request_needs_exactly_one_host(hosts: list[bytes]) -> None:
    """Programs differ in which of two they use."""
    headers = [*((b"host", host) for host in hosts), (b"authorization", b"Bearer " + TOKEN)]

    assert status_of(WITH_LOGIN, headers) == 400
