"""Test the daemon address as users write it."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.cli.http import DEFAULT, Address, parse_url
from memwatch.core.options import InvalidValueError


@pytest.mark.parametrize(
    ("url", "address", "text"),
    [
        ("http://127.0.0.1:6360", DEFAULT, "http://127.0.0.1:6360"),
        ("http://127.0.0.1:6360/", DEFAULT, "http://127.0.0.1:6360"),
        ("http://GPU7:6360", Address("http", "gpu7", 6360), "http://gpu7:6360"),
        ("http://gpu7", Address("http", "gpu7", 80), "http://gpu7:80"),
        ("https://gpu7.example.org/memory/", Address("https", "gpu7.example.org", 443, "/memory"), None),
        ("http://[::1]:6360", Address("http", "::1", 6360), "http://[::1]:6360"),
        ("http://[fe80::1%eth0]:6360", Address("http", "fe80::1%eth0", 6360), "http://[fe80::1%eth0]:6360"),
        ("unix:/run/memwatchd.sock", Address("unix", "/run/memwatchd.sock"), "unix:/run/memwatchd.sock"),
        ("unix:///run/memwatchd.sock", Address("unix", "/run/memwatchd.sock"), "unix:/run/memwatchd.sock"),
    ],
)
def test_address_is_parsed_and_formatted(url: str, address: Address, text: str | None) -> None:
    """http, https, a proxy's prefix, IPv6, and a Unix socket."""
    assert parse_url(url) == address
    assert text is None or str(address) == text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu7:6360",
        "ftp://gpu7",
        "http://",
        "http://gpu7:port",
        "http://gpu7:99999",
        "http://user:secret@gpu7",
        "http://gpu7/?a=1",
        "http://gpu7/#a",
        "http://gpu 7/",
        "http://gpu7/\r\nX-Header: 1",
        "http://[::1",
        "http://[fe80::z]:6360",
        "http://gpü7",
        "http://..",
        "unix:run/memwatchd.sock",
        "unix:",
        "unix:/" + "x" * 200,
    ],
)
def test_invalid_address_is_rejected(url: str) -> None:
    """An incomplete URL, a secret in a URL and a header in a URL are all rejected."""
    with pytest.raises(InvalidValueError):
        parse_url(url)


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda rest: f"http://{rest}"))
def test_arbitrary_text_is_parsed_or_rejected(url: str) -> None:
    """A parsed address can be formatted and parsed again."""
    try:
        address = parse_url(url)
    except InvalidValueError:
        return

    assert parse_url(str(address)) == address


@pytest.mark.parametrize(
    ("url", "here", "start"),
    [
        ("http://127.0.0.1:6360", True, "memwatchd"),
        ("http://localhost:7000", True, "memwatchd --listen 127.0.0.1:7000"),
        ("http://[::1]:6360", True, "memwatchd"),
        ("unix:/run/m.sock", True, "memwatchd --listen unix:/run/m.sock"),
        ("http://gpu7:6360", False, None),
        ("http://192.0.2.7:6360", False, None),
    ],
)
def test_local_addresses_are_recognized(url: str, here: bool, start: str | None) -> None:
    """Only for local addresses may the client read this machine directly."""
    address = parse_url(url)

    assert address.is_here == here
    assert start is None or address.start_command == start


def test_own_host_name_is_local() -> None:
    """The name that `hostname` prints."""
    assert Address("http", socket.gethostname().lower(), 6360).is_here
