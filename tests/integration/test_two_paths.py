"""The fast path of /metrics and the application return the same bytes for every request."""

from __future__ import annotations

import re

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
LOGINS = st.sampled_from(["Bearer x", "Basic YTpi", "Basic", "é"])
FIELDS = st.one_of(
    st.tuples(st.just("Host"), HOSTS),
    st.tuples(st.just("Accept"), FORMATS),
    st.tuples(st.just("Accept-Encoding"), ENCODINGS),
    st.tuples(st.just("Authorization"), LOGINS),
    st.tuples(st.sampled_from(["Origin", "X-Forwarded-Host", "Cookie", "Range"]), st.just("http://evil.example")),
)
METHODS = st.sampled_from(["GET", "GET", "GET", "HEAD", "POST"])


def answer(request: bytes, fast_path: bool) -> bytes:
    here = site()
    return DATE.sub(b"date", here.loop.run_until_complete(answered(here, request, fast_path)))


@settings(max_examples=150, deadline=None)
@given(METHODS, st.lists(FIELDS, max_size=6), st.integers(1, 3))
@example("GET", [("Host", "localhost")], 1)
@example("GET", [("Host", "localhost"), ("Accept", "*/*"), ("Accept", "text/html")], 1)
@example("GET", [("Host", "localhost"), ("Host", "localhost")], 1)
def test_fast_path_and_application_return_the_same_bytes(
    method: str, fields: list[tuple[str, str]], repeats: int
) -> None:
    """The Date may differ by a second."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    request = f"{method} /metrics HTTP/1.1\r\n{lines}\r\n".encode() * repeats

    fast, plain = answer(request, True), answer(request, False)

    assert fast == plain
    assert fast.startswith(b"HTTP/1.1 ")
