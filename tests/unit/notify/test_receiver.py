"""Test delivery of webhooks over real sockets: retries, order, no duplicates, and no leaked secrets."""

from __future__ import annotations

import itertools
import logging
import re
import socket
import threading
import time
from email.utils import formatdate
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from memwatch.notify.http_post import PostResult
from memwatch.notify.receiver import SCHEDULE, close_all
from support.waiting import Stopwatch, wait_until
from support.webhook_receiver import raw_receiver, receiving, silent
from support.webhook_samples import SECRET, ids, new_receiver, notice, put_notices, receiver, webhook_channel


def test_notice_is_posted_once_to_path_and_query() -> None:
    """A delivered notice is counted, nothing stays pending, and nothing is sent twice."""
    with receiving(204) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
        time.sleep(0.1)

        assert made.pending() == 0

    assert [delivery.path for delivery in site.deliveries] == ["/hook/token?key=value"]
    assert site.deliveries[0].headers["content-type"] == "application/json"
    assert site.deliveries[0].headers["user-agent"].startswith("memwatchd/")


def test_retries_keep_id_and_body_and_change_the_timestamp() -> None:
    """Every attempt has the id and the body of the first, and its own timestamp and signature."""
    seconds = itertools.count(int(time.time()))
    with receiving(500, 502, 404, 200) as site, receiver(site.url, wall=lambda: next(seconds)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.counts()["retry"] == 3
        assert made.pending() == 0

    assert ids(site) == ["msg_1"] * 4
    assert len({delivery.body for delivery in site.deliveries}) == 1
    assert len({delivery.headers["webhook-timestamp"] for delivery in site.deliveries}) == 4
    for delivery in site.deliveries:
        Webhook(SECRET).verify(delivery.body, delivery.headers)


def test_latency_runs_from_the_alert_to_its_delivery() -> None:
    """Failed attempts and the pauses between them are part of it, and each notification counts once."""
    with receiving(500, 200) as site, receiver(site.url, schedule=(0.0, 0.3)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.receiver.latency.cumulative()[-1] == 1
        assert made.receiver.latency.total >= 0.25


def test_schedule_lasts_a_day() -> None:
    """The pauses are the documented ones, and the last attempt is within 24 hours of the first."""
    assert SCHEDULE[:8] == (0, 5, 30, 120, 300, 900, 1800, 3600)
    assert set(SCHEDULE[7:]) == {3600.0}
    assert 23 * 3600 < sum(SCHEDULE) <= 24 * 3600


def test_last_failure_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the end of the schedule the notice is counted as given up."""
    with receiving(500) as site, receiver(site.url, schedule=(0.0, 0.02, 0.02)) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["gave_up"] == 1)

        assert (len(site.deliveries), made.pending()) == (3, 0)

    assert "answered 500; gave up after 3 attempts" in caplog.text


@pytest.mark.parametrize(("status", "as_date"), [(429, False), (503, True), (502, False)])
def test_retry_after_is_honoured(status: int, as_date: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Retry-After, in seconds or as a date, delays all notices of the receiver, and the log shows the delay."""
    wanted = formatdate(time.time() + 3, usegmt=True) if as_date else "1"
    with receiving((status, {"Retry-After": wanted}), 200) as site, receiver(site.url) as made:
        put_notices(made, notice(1))
        wait_until(lambda: len(site.deliveries) == 1)
        put_notices(made, notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 2)

    assert site.deliveries[1].at - site.deliveries[0].at >= 0.95
    assert ids(site) == ["msg_1", "msg_1", "msg_2"]
    assert re.search(rf"answered {status}; retrying in {'[123]' if as_date else '1'}[.][0-9] s", caplog.text)


def test_gone_disables_the_receiver_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """After 410 nothing more is sent; queued and later notices are counted as disabled."""
    with receiving(410) as site, receiver(site.url) as made:
        put_notices(made, notice(1), notice(2, target="vram0"))
        wait_until(lambda: made.disabled)
        put_notices(made, notice(3))
        time.sleep(0.1)

        assert made.counts()["disabled"] == 3
        assert made.pending() == 0

    assert ids(site) == ["msg_1"]
    assert "answered 410, gone; nothing more is sent to it" in caplog.text


def test_silent_receiver_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """While one endpoint never answers, another gets its notice at once; the silent one times out."""
    with (
        raw_receiver(silent) as url,
        receiving(200) as site,
        receiver(url, timeout_seconds=1.0) as stuck,
        receiver(site.url) as quick,
    ):
        put_notices(stuck, notice())
        put_notices(quick, notice())
        wait_until(lambda: quick.counts()["delivered"] == 1, seconds=2.0)
        stuck_meanwhile = (stuck.pending(), stuck.counts()["retry"])
        wait_until(lambda: stuck.counts()["retry"] == 1)

    assert stuck_meanwhile == (1, 0)
    assert "no response within 1 s" in caplog.text


def test_repeated_failure_and_its_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Four equal failures are one line; a different one is another; the recovery is logged."""
    caplog.set_level(logging.INFO)
    with receiving(500, 500, 500, 502, 200) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert [message.split("): ")[1].split(";")[0] for message in caplog.messages] == [
        "answered 500",
        "answered 502",
        "delivery works again",
    ]


def test_log_never_shows_secret_path_or_query(caplog: pytest.LogCaptureFixture) -> None:
    """The log shows only name, scheme, host and port of a receiver."""
    caplog.set_level(logging.DEBUG)
    with receiving(500, (302, {"Location": "/token"}), 410) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.disabled)

    assert site.url.partition("/hook")[0] in caplog.text
    for hidden in ("token", "key=value", SECRET, SECRET.removeprefix("whsec_")):
        assert hidden not in caplog.text


def test_resolve_follows_its_firing() -> None:
    """A resolve queued during the delivery of its firing is delivered after it."""
    with receiving(200) as site, receiver(site.url) as made:
        site.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: len(site.deliveries) == 1)
        put_notices(made, notice(2, firing=False))
        time.sleep(0.1)
        before = ids(site)
        site.may_answer.set()
        wait_until(lambda: made.counts()["delivered"] == 2)

    assert before == ["msg_1"]
    assert ids(site) == ["msg_1", "msg_2"]


def test_undelivered_firing_is_dropped_with_its_resolve() -> None:
    """An alert that came and went while the receiver was unreachable is not sent afterwards."""
    with receiver("http://127.0.0.1:1/", schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))

        assert made.counts()["superseded"] == 2
        assert made.pending() == 0


def broken_off(connection: socket.socket) -> None:
    connection.close()


@pytest.mark.parametrize("status", [404, 500, 503])
def test_rejected_firing_is_dropped_with_its_resolve(status: int) -> None:
    """A receiver that rejected the firing does not get its end either."""
    with receiving(status) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))

        assert (made.counts()["superseded"], made.pending()) == (2, 0)

    assert ids(site) == ["msg_1"]


def test_firing_that_fails_after_its_resolve_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    """An alert that ended during its failing first attempt is not sent again."""
    with receiving(500) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        site.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: len(site.deliveries) == 1)
        put_notices(made, notice(2, firing=False))
        site.may_answer.set()
        wait_until(lambda: made.counts()["superseded"] == 2)

        assert made.pending() == 0

    assert "answered 500; the alert resolved meanwhile; its notifications are dropped" in caplog.text


def test_firing_that_may_have_arrived_gets_its_resolve() -> None:
    """After a gateway timeout the end is sent, and the firing is not repeated."""
    with receiving(504, 200) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.counts()["superseded"] == 1

    assert ids(site) == ["msg_1", "msg_2"]


def test_request_without_an_answer_may_have_arrived(caplog: pytest.LogCaptureFixture) -> None:
    """A connection closed after the request leaves the resolve pending."""
    with raw_receiver(broken_off) as url, receiver(url, schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["retry"] == 2)

        assert (made.counts()["superseded"], made.pending()) == (1, 1)

    assert "closed the connection without a response" in caplog.text


def test_other_targets_do_not_wait() -> None:
    """A notice of one target that waits for its retry does not delay another target's."""
    with receiving(500, 200) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        put_notices(made, notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.pending() == 1

    assert ids(site) == ["msg_1", "msg_2"]


def test_close_ends_an_attempt_in_progress() -> None:
    """Stopping takes at most two seconds, also while an endpoint does not answer; the message is kept."""
    with raw_receiver(silent) as url:
        made = new_receiver(webhook_channel(url, timeout_seconds=60.0))
        made.start()
        put_notices(made, notice())
        time.sleep(0.2)
        watch = Stopwatch()

        made.close(timeout=2.0)

        assert watch.seconds < 2.0
        assert "webhook-ops" not in {thread.name for thread in threading.enumerate()}
    assert made.pending() == 1


def test_many_silent_receivers_are_closed_in_the_time_of_one() -> None:
    """Stopping takes two seconds in total, not two for each silent endpoint."""
    with raw_receiver(silent) as url:
        stuck = [new_receiver(webhook_channel(url, timeout_seconds=60.0)) for _ in range(6)]
        for one in stuck:
            one.start()
            put_notices(one, notice())
        time.sleep(0.2)
        watch = Stopwatch()

        close_all([one.receiver for one in stuck], timeout=2.0)

        assert watch.seconds < 2.5
        assert not {thread.name for thread in threading.enumerate() if thread.name.startswith("webhook-ops")}
        for one in stuck:
            one.outbox.close()


def test_close_between_attempts_is_immediate() -> None:
    """A receiver between attempts stops at once, and so does one that never started."""
    made = new_receiver(webhook_channel("http://127.0.0.1:1/"), schedule=(0.0, 3600.0))
    made.start()
    put_notices(made, notice())
    wait_until(lambda: made.counts()["retry"] == 1)
    watch = Stopwatch()

    made.close()
    new_receiver(webhook_channel("http://127.0.0.1:1/")).close()

    assert watch.seconds < 0.8


def test_attempt_in_progress_may_finish_when_stopping() -> None:
    """An alert in delivery when memwatchd stops still arrives."""

    def answer_late(connection: Any) -> None:
        time.sleep(0.4)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with raw_receiver(answer_late) as url, receiver(url) as made:
        put_notices(made, notice())
        time.sleep(0.1)

        made.close(timeout=2.0)

        assert made.counts()["delivered"] == 1


class Starved(PostResult, frozen=True):
    """Answer that raises MemoryError twice."""

    left = 2

    @property
    def success(self) -> bool:
        if Starved.left:
            Starved.left -= 1
            raise MemoryError
        return True


def test_attempt_is_repeated_after_a_memory_error() -> None:
    """If memory runs out while an answer is handled, the thread survives and the message is sent again."""
    with receiving(200) as site:
        channel = webhook_channel(site.url)
        post = channel.send
        channel.send = lambda message_id, body: Starved(post(message_id, body).status)  # type: ignore[method-assign]
        made = new_receiver(channel)
        made.start()
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
        made.close()

    assert ids(site) == ["msg_1"] * 3
