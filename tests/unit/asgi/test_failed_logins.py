"""Failed logins by origin: limited, logged once a minute, and in a bounded table."""

from __future__ import annotations

import logging

import pytest

from memwatch_web.asgi.auth import LOG_SECONDS, MAX_FAILURES, MAX_ORIGINS, WINDOW_SECONDS, FailedLogins


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_origin_waits_after_many_failures_and_others_do_not() -> None:
    """One more attempt is allowed every six seconds."""
    clock = FakeClock()
    failures = FailedLogins(clock)
    for _ in range(MAX_FAILURES):
        assert failures.wait_seconds("192.0.2.7") == 0
        failures.add("192.0.2.7", "wrong token")

    assert 0 < failures.wait_seconds("192.0.2.7") <= WINDOW_SECONDS / MAX_FAILURES
    assert failures.wait_seconds("192.0.2.8") == 0
    for _ in range(1000):
        failures.add("192.0.2.7", "wrong token")
    assert failures.wait_seconds("192.0.2.7") <= WINDOW_SECONDS / MAX_FAILURES
    clock.now += failures.wait_seconds("192.0.2.7")
    assert failures.wait_seconds("192.0.2.7") == 0


def test_first_failure_is_logged_at_once_and_later_ones_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    failures = FailedLogins(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(1 + 7):
            failures.add("192.0.2.7", "wrong token")
        clock.now += LOG_SECONDS
        assert failures.log_counts()
        clock.now += LOG_SECONDS
        assert not failures.log_counts()

    assert caplog.messages == [
        "failed login from 192.0.2.7: wrong token",
        "7 more failed logins from 192.0.2.7 in the last minute",
    ]
    assert failures.total == 8


def test_table_is_bounded() -> None:
    """The oldest origin is dropped."""
    failures = FailedLogins(FakeClock())
    for number in range(MAX_ORIGINS + 1):
        failures.add(f"origin-{number}", "wrong token")

    assert not failures.has_failed_from("origin-0")
    assert failures.has_failed_from(f"origin-{MAX_ORIGINS}")
