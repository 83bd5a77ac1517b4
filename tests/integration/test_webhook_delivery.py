"""Test delivery of webhooks over real sockets: the request, silent endpoints, and the end of an attempt."""

from __future__ import annotations

import socket
import threading

import pytest

from memwatch_monitor.notify.receiver import close_all
from support.waiting import wait_until
from support.webhook_receiver import raw_receiver, receiving, silent
from support.webhook_samples import ids, new_receiver, notice, put_notices, receiver, webhook_channel


def test_notice_is_posted_once_to_path_and_query() -> None:
    """A delivered notice is counted, and nothing stays pending."""
    with receiving(204) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.pending() == 0

    assert [delivery.path for delivery in site.deliveries] == ["/hook/token?key=value"]
    assert site.deliveries[0].headers["content-type"] == "application/json"
    assert site.deliveries[0].headers["user-agent"].startswith("memwatchd/")


def test_retry_after_delays_all_notices() -> None:
    """The header of a real response reaches the queue."""
    with receiving((429, {"Retry-After": "1"}), 200) as site, receiver(site.url) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 2)

    assert site.deliveries[1].at - site.deliveries[0].at >= 0.95
    assert ids(site) == ["msg_1", "msg_1", "msg_2"]


def test_silent_receiver_times_out(caplog: pytest.LogCaptureFixture) -> None:
    """The attempt ends at its timeout, and is repeated."""
    with raw_receiver(silent) as url, receiver(url, timeout_seconds=0.2, schedule=(0.0, 60.0)) as stuck:
        put_notices(stuck, notice())
        wait_until(lambda: stuck.counts()["retry"] == 1)

    assert "no response within 0.2 s" in caplog.text


def test_request_without_an_answer_may_have_arrived(caplog: pytest.LogCaptureFixture) -> None:
    """A connection closed after the request leaves the resolve pending."""
    with raw_receiver(socket.socket.close) as url, receiver(url, schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["retry"] == 2)

        assert (made.counts()["superseded"], made.pending()) == (1, 1)

    assert "closed the connection without a response" in caplog.text


def test_close_ends_attempts_in_progress() -> None:
    """All threads end although no endpoint answers within the hour of their timeout; the messages are kept."""
    asked: list[socket.socket] = []

    def never_answer(connection: socket.socket) -> None:
        asked.append(connection)
        silent(connection)

    with raw_receiver(never_answer) as url:
        stuck = [new_receiver(webhook_channel(url, timeout_seconds=3600.0)) for _ in range(6)]
        for one in stuck:
            one.start()
            put_notices(one, notice())
        wait_until(lambda: len(asked) == len(stuck))

        close_all([one.receiver for one in stuck], timeout=0.1)

        wait_until(lambda: "webhook-ops" not in {thread.name for thread in threading.enumerate()})
        assert [one.pending() for one in stuck] == [1] * len(stuck)
        for one in stuck:
            one.outbox.close()
