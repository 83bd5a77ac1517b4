"""The log of deliveries: one entry for each message, bounded, with the result of its last attempt."""

from __future__ import annotations

import pytest

from memwatch_monitor.notify.queue import MAX_DELIVERIES, Delivery, DeliveryLog
from memwatch_monitor.notify.receiver import Receiver
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import notice, put_notices, receiver


def entry(seq: int, result: str = "retry", attempts: int = 1) -> Delivery:
    alert = "pressure.critical ram"
    return Delivery(seq, f"msg_{seq}", alert, "firing", result, attempts, 503, "answered 503", 1.0)


def results(one: Receiver) -> list[tuple[str, str, int, int | None, str]]:
    return [(it.id, it.result, it.attempts, it.status, it.failure) for it, _ in one.deliveries()]


def test_log_keeps_the_last_attempt_of_the_latest_messages() -> None:
    log = DeliveryLog(max_deliveries=2)
    for seq, attempts in ((1, 1), (2, 1), (1, 2), (3, 1)):
        log.record(entry(seq, attempts=attempts))

    assert [(one.seq, one.attempts) for one in log.latest()] == [(3, 1), (1, 2)]


def test_message_that_ends_keeps_its_last_attempt() -> None:
    """A message that was dropped before any attempt has none."""
    log = DeliveryLog()
    log.record(entry(1))
    log.end(1, "superseded")
    log.end(2, "superseded")

    assert [(one.result, one.failure) for one in log.latest()] == [("superseded", "answered 503")]


def test_log_is_bounded() -> None:
    log = DeliveryLog()
    for seq in range(10_000):
        log.record(entry(seq))

    assert [one.seq for one in log.latest()] == list(range(9999, 9999 - MAX_DELIVERIES, -1))


@pytest.mark.process
def test_attempts_of_a_delivered_message_are_logged() -> None:
    with receiving(503, 500, 204) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert results(made.receiver) == [("msg_1", "delivered", 3, 204, "")]
        assert made.receiver.deliveries()[0][1] is None


@pytest.mark.process
def test_waiting_message_has_its_failure_and_the_next_attempt() -> None:
    """A later message about the same alert waits for its first attempt, and is the newest."""
    with receiving(503) as site, receiver(site.url, schedule=(0.0, 600.0)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, rule="pressure.high"))
        wait_until(lambda: made.counts()["retry"] == 2)
        ((_, wait), _) = made.receiver.deliveries()

        assert results(made.receiver) == [
            ("msg_2", "retry", 1, 503, "answered 503"),
            ("msg_1", "retry", 1, 503, "answered 503"),
        ]
        assert wait is not None
        assert 500 < wait <= 660


@pytest.mark.process
def test_message_of_a_disabled_receiver_ends_as_disabled() -> None:
    with receiving(410) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.disabled)

        assert results(made.receiver) == [("msg_1", "disabled", 1, 410, "answered 410")]


@pytest.mark.process
def test_alert_that_resolves_while_it_waits_is_superseded() -> None:
    with receiving(503) as site, receiver(site.url, schedule=(0.0, 600.0)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["superseded"] == 2)

        assert results(made.receiver) == [("msg_1", "superseded", 1, 503, "answered 503")]


@pytest.mark.process
def test_last_attempt_of_the_schedule_gives_up() -> None:
    with receiving(500) as site, receiver(site.url, schedule=(0.0, 0.02)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["gave_up"] == 1)

        assert results(made.receiver) == [("msg_1", "gave_up", 2, 500, "answered 500")]


@pytest.mark.process
def test_message_without_an_attempt_is_queued() -> None:
    with receiving(200) as site:
        with receiver(site.url) as made:
            pass
        put_notices(made, notice())

        assert results(made.receiver) == [("msg_1", "queued", 0, None, "")]
