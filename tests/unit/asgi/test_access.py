"""Access by Host header and credentials, for any header."""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple
from urllib.parse import quote

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


class Answer(NamedTuple):
    """Status, headers and body of a GET."""

    status: int
    headers: dict[bytes, bytes]
    text: str


def status_of(options: WebOptions, headers: list[tuple[bytes, bytes]], **more: Any) -> int:
    return answer_of(options, headers, **more).status


def answer_of(options: WebOptions, headers: list[tuple[bytes, bytes]], **more: Any) -> Answer:
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
    body = b"".join(one.get("body", b"") for one in sent)
    return Answer(int(sent[0]["status"]), dict(sent[0]["headers"]), body.decode())


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


def page_asked_for(path: str, *headers: tuple[bytes, bytes], options: WebOptions = WITH_LOGIN) -> Answer:
    """Return the answer to a browser."""
    sent = [(b"host", b"box"), (b"accept", b"text/html,*/*;q=0.8"), *headers]
    return answer_of(options, sent, path=path, raw_path=path.encode())


def test_browser_without_a_login_gets_a_page_that_explains_it() -> None:
    """It keeps the challenge, names the users that exist, and has no script, data or address of another site."""
    refused = page_asked_for("/processes/7")

    assert refused.status == 401
    assert refused.headers[b"content-type"] == b"text/html; charset=utf-8"
    assert refused.headers[b"www-authenticate"].startswith(b"Basic ")
    assert refused.headers[b"vary"] == b"accept"
    assert "This page needs a login." in refused.text
    assert "user <code>token</code>" in refused.text
    assert "web.auth.users" not in refused.text  # there are none
    assert find_addresses(refused.text) == ["data:,", "../static/app.css", ""]
    assert "<script" not in refused.text
    assert "box" not in refused.text
    assert 'property="og:' not in refused.text


def find_addresses(page: str) -> list[str]:
    return re.findall(r'(?:href|src|action)="([^"]*)"', page)


def test_login_page_names_what_was_wrong() -> None:
    wrong = page_asked_for("/", (b"authorization", b"Bearer " + TOKEN[:-1]))

    assert wrong.status == 401
    assert "The user or the password is wrong." in wrong.text
    assert TOKEN[:-1].decode() not in wrong.text


@pytest.mark.parametrize("path", ["/api/v1/snapshot", "/metrics", "/openapi.json", "/live", "/static/app.js"])
def test_programs_and_scripts_get_json_also_if_they_accept_pages(path: str) -> None:
    refused = page_asked_for(path)

    assert refused.status == 401
    assert refused.headers[b"content-type"] == b"application/problem+json"
    assert refused.headers[b"www-authenticate"].startswith(b"Basic ")


def test_client_that_accepts_anything_gets_json() -> None:
    refused = answer_of(WITH_LOGIN, [(b"host", b"box"), (b"accept", b"*/*")], path="/", raw_path=b"/")

    assert refused.headers[b"content-type"] == b"application/problem+json"
    assert "login required: no credentials were sent" in refused.text


@given(st.text(max_size=60).map(lambda path: "/" + path))
def test_page_of_a_refusal_never_repeats_or_leads_outside_the_path(path: str) -> None:
    """Two slashes begin the address of another site. The links begin with one or more "../" or "./"."""
    raw = quote(path, safe="/").encode()
    refused = answer_of(
        WITH_LOGIN, [(b"host", b"box"), (b"accept", b"text/html")], path="/" + path, raw_path=b"/" + raw
    )

    addresses = find_addresses(refused.text)
    if refused.headers[b"content-type"] != b"application/problem+json":
        assert len(addresses) == 3
        assert re.fullmatch(r"(\./|(\.\./)+)static/app\.css", addresses[1])
        assert addresses[0::2] == ["data:,", ""]


def test_style_of_the_login_page_needs_no_login() -> None:
    assert status_of(WITH_LOGIN, [(b"host", b"box")], path="/static/app.css") == 200
    assert status_of(WITH_LOGIN, [(b"host", b"box")], path="/static/app.css/") == 401


def test_unknown_name_in_a_browser_is_explained_by_a_page() -> None:
    """The name is text, whatever it holds."""
    refused = answer_of(WebOptions(), [(b"host", b"<b>evil"), (b"accept", b"text/html")], path="/", raw_path=b"/")

    assert refused.status == 400
    assert "Host &#x27;&lt;b&gt;evil&#x27; is not a name of this machine." in refused.text
    assert b"www-authenticate" not in refused.headers
