"""The fast path of /metrics and the application return the same bytes for every request."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.fuzz_request import answered
from fuzz.site import site

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
DATE = re.compile(rb"date: [^\r]+", re.IGNORECASE)
HOSTS = st.sampled_from(["localhost", "LOCALHOST:6360", "127.0.0.1", "[::1]:1", "evil.example", "", "a@localhost"])
FORMATS = st.sampled_from(
    ["*/*", "", "text/plain;version=0.0.4", "text/plain;version=x", "text/html", "é", OPENMETRICS]
)
ENCODINGS = st.sampled_from(["gzip", "identity", "gzip;q=0", "br, gzip;q=0.5", "*", "gzip, gzip;q=0", ""])
TOKEN = "0123456789abcdef"
AS_USER = "Basic " + base64.b64encode(f"token:{TOKEN}".encode()).decode()
LOGINS = st.sampled_from([f"Bearer {TOKEN}", f"bearer  {TOKEN}", AS_USER, "Bearer x", "Basic YTpi", "Basic", "é"])
FIELDS = st.one_of(
    st.tuples(st.just("Host"), HOSTS),
    st.tuples(st.just("Accept"), FORMATS),
    st.tuples(st.just("Accept-Encoding"), ENCODINGS),
    st.tuples(st.just("Authorization"), LOGINS),
    st.tuples(st.sampled_from(["Origin", "X-Forwarded-Host", "Cookie", "Range"]), st.just("http://evil.example")),
)
METHODS = st.sampled_from(["GET", "GET", "GET", "HEAD", "POST"])


def answer(request: bytes, fast_path: bool, token: str = "", client: socket.socket | None = None) -> bytes:
    here = site(token)
    return DATE.sub(b"date", here.loop.run_until_complete(answered(here, request, fast_path, client)))


def request_of(method: str, fields: list[tuple[str, str]]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{method} /metrics HTTP/1.1\r\n{lines}\r\n".encode()


@settings(max_examples=200, deadline=None)
@given(METHODS, st.lists(FIELDS, max_size=6), st.integers(1, 3), st.booleans(), st.booleans())
@example("GET", [("Host", "localhost")], 1, False, False)
@example("GET", [("Host", "localhost"), ("Accept", "*/*"), ("Accept", "text/html")], 1, False, False)
@example("GET", [("Host", "localhost"), ("Host", "localhost")], 1, False, False)
@example("GET", [("Host", "localhost"), ("Authorization", f"Bearer {TOKEN}")], 2, True, False)
@example("GET", [("Host", "localhost"), *[("Authorization", f"Bearer {TOKEN}")] * 2], 1, True, False)
@example("GET", [("Host", "evil.example"), ("Authorization", f"Bearer {TOKEN}")], 2, True, False)
@example("GET", [("Host", "localhost")], 2, True, True)
def test_fast_path_and_application_return_the_same_bytes(
    method: str, fields: list[tuple[str, str]], repeats: int, has_login: bool, is_local: bool
) -> None:
    """With and without a required token, over TCP and a Unix socket. The Date may differ by a second."""
    request, token = request_of(method, fields) * repeats, TOKEN if has_login else ""

    with unix_socket() as client:
        here = client if is_local else None
        fast, plain = answer(request, True, token, here), answer(request, False, token, here)

    assert fast == plain
    assert fast.startswith(b"HTTP/1.1 ")


@contextmanager
def unix_socket() -> Iterator[socket.socket]:
    """Yield one end of a connection of this process to itself."""
    ends = socket.socketpair()
    with ends[0], ends[1]:
        yield ends[0]
