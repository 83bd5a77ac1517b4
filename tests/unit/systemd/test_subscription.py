"""Test the requests of clients of the pressure sockets, and when they are notified."""

from __future__ import annotations

import pytest

from memwatch.core.snapshot import Level
from memwatchd.systemd.pressure_sockets import (
    MAX_REQUEST_BYTES,
    REPEAT_SECONDS,
    Notifications,
    RequestError,
    Subscription,
    parse_request,
)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"ram high", Subscription("ram", Level.HIGH)),
        (b"gpu0.mig3 critical\n", Subscription("gpu0.mig3", Level.CRITICAL)),
        (b"gpu0  medium\0", Subscription("gpu0", Level.MEDIUM)),
        (b"some 200000 2000000\0", Subscription("ram", Level.HIGH)),
        (b"full 100000 1000000", Subscription("ram", Level.HIGH)),
    ],
)
def test_complete_request_is_parsed(data: bytes, wanted: Subscription) -> None:
    """A target and a level, or a threshold of the kernel, which means the default."""
    assert parse_request(data) == wanted


@pytest.mark.parametrize("data", [b"", b"ram", b"ram hi", b"some 2000", b"x" * MAX_REQUEST_BYTES])
def test_incomplete_request_waits_for_more(data: bytes) -> None:
    """A client may write in parts."""
    assert parse_request(data) is None


@pytest.mark.parametrize("data", [b"ram low\n", b"high\n", b"\xff\0", b"ram high high\n", b"x" * 129])
def test_malformed_request_is_rejected_with_an_example(data: bytes) -> None:
    """The error names what to write."""
    with pytest.raises(RequestError, match="ram high"):
        parse_request(data)


def test_client_is_notified_at_its_level_and_at_higher_ones() -> None:
    """Not below, not twice at once, and again after a while as long as the level lasts."""
    notifications = Notifications(Subscription("ram", Level.HIGH))

    assert not notifications.is_due(Level.MEDIUM, 0.0)
    assert notifications.is_due(Level.HIGH, 1.0)
    assert not notifications.is_due(Level.HIGH, 2.0)
    assert notifications.is_due(Level.CRITICAL, 3.0)
    assert not notifications.is_due(Level.CRITICAL, 3.0 + REPEAT_SECONDS - 0.1)
    assert notifications.is_due(Level.CRITICAL, 3.0 + REPEAT_SECONDS)


@pytest.mark.parametrize(("level", "below"), [(Level.HIGH, Level.LOW), (Level.CRITICAL, Level.HIGH)])
def test_level_that_returns_notifies_at_once(level: Level, below: Level) -> None:
    """The pause is for a level that lasts. Critical, high and critical again is within it, too."""
    notifications = Notifications(Subscription("ram", Level.HIGH))
    assert notifications.is_due(level, 1.0)
    assert not notifications.is_due(below, 2.0)

    assert notifications.is_due(level, 3.0)
