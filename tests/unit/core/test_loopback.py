"""Addresses that only this machine reaches. Receivers, listeners, callers and model servers follow one rule."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memwatch.core.http import is_loopback


@given(st.ip_addresses())
@example(ipaddress.IPv4Address("127.255.0.1"))
@example(ipaddress.IPv4Address("126.255.255.255"))
@example(ipaddress.IPv4Address("128.0.0.0"))
@example(ipaddress.IPv6Address("::1"))
@example(ipaddress.IPv6Address("::2"))
@example(ipaddress.IPv6Address("::ffff:127.0.0.1"))
@example(ipaddress.IPv6Address("::ffff:10.0.0.1"))
@example(ipaddress.IPv6Address("::127.0.0.1"))
def test_loopback_is_that_of_the_standard_library(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None

    assert is_loopback(str(address)) is (mapped or address).is_loopback


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "127.0.0.1:80", "[::1]", "127.0.0.1\0"])
def test_text_that_is_no_address_is_not_loopback(text: str) -> None:
    assert not is_loopback(text)


def test_zone_of_an_address_does_not_count() -> None:
    assert is_loopback("::1%lo")
    assert not is_loopback("fe80::1%eth0")
