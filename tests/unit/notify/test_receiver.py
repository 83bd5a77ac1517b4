"""Test delivery to one receiver: retries, order, no duplicates, and no leaked secrets."""

from __future__ import annotations

import logging
import re
import threading
import time

import pytest
from standardwebhooks.webhooks import Webhook

from memwatch.core.runtime.worker import ThreadState
from memwatch_monitor.notify.http_post import PostResult
from memwatch_monitor.notify.receiver import JITTER, SCHEDULE, close_all
from support.manual_receiver import answer, manual_receiver
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_samples import SECRET, notice, put_notices

DAY = 86_400.0
# Just above the longest pause that the jitter makes of a second of the schedule.
LONGEST = 1 + JITTER + 0.01
REFUSED = PostResult(None, "connection refused")
CLOSED = PostResult(None, "closed the connection without a response", may_have_arrived=True)


def test_notice_is_posted_once() -> None:
    """A delivered notice is counted, nothing stays pending, and nothing is sent twice, even a day later."""
    with manual_receiver(204) as made:
        put_notices(made, notice())
        made.wait_for("delivered")
        made.pass_seconds(DAY)

        assert made.pending() == 0

    assert made.endpoint.ids == ["msg_1"]


def test_retries_keep_id_and_body_and_change_the_timestamp() -> None:
    """Every attempt has the id and the body of the first, and its own timestamp and signature."""
    with manual_receiver(500, 502, 404, 200) as made:
        made.clock.wall_offset = time.time() - made.clock.now  # signatures are verified for five minutes
        put_notices(made, notice())
        for failures in (1, 2, 3):
            made.wait_for("retry", failures)
            made.pass_seconds(SCHEDULE[failures] * LONGEST)

        assert (made.counts()["delivered"], made.counts()["retry"], made.pending()) == (1, 3, 0)

    requests = made.endpoint.requests
    assert made.endpoint.ids == ["msg_1"] * 4
    assert len({request.body for request in requests}) == 1
    assert len({request.headers["webhook-timestamp"] for request in requests}) == 4
    for request in requests:
        Webhook(SECRET).verify(request.body, request.headers)


def test_attempts_follow_the_schedule() -> None:
    """No attempt comes before its pause is over, less the jitter."""
    with manual_receiver(500) as made:
        put_notices(made, notice())
        made.wait_for("retry")
        early = []
        for number, pause in enumerate(SCHEDULE[1:5], 1):
            made.pass_seconds(pause * (1 - JITTER) - 0.01)
            early.append(len(made.endpoint.requests) - number)
            made.pass_seconds(pause * 2 * JITTER + 0.02)

        assert early == [0] * 4
        assert len(made.endpoint.requests) == 5


def test_latency_runs_from_the_alert_to_its_delivery() -> None:
    """Failed attempts and the pauses between them are part of it, and each notification counts once."""
    with manual_receiver(500, 200) as made:
        put_notices(made, notice())
        made.wait_for("retry")
        made.pass_seconds(5 * LONGEST)
        made.wait_for("delivered")

        assert made.receiver.latency.cumulative()[-1] == 1
        assert made.receiver.latency.total == pytest.approx(5 * LONGEST)


def test_schedule_lasts_a_day() -> None:
    """The pauses are the documented ones, and the last attempt is within 24 hours of the first."""
    assert SCHEDULE[:8] == (0, 5, 30, 120, 300, 900, 1800, 3600)
    assert set(SCHEDULE[7:]) == {3600.0}
    assert 23 * 3600 < sum(SCHEDULE) <= 24 * 3600


def test_last_failure_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the end of the schedule the notice is counted as given up."""
    with manual_receiver(500, schedule=(0.0, 5.0, 5.0)) as made:
        put_notices(made, notice())
        for failures in (1, 2):
            made.wait_for("retry", failures)
            made.pass_seconds(5 * LONGEST)
        made.wait_for("gave_up")

        assert (len(made.endpoint.requests), made.pending()) == (3, 0)

    assert "answered 500; gave up after 3 attempts" in caplog.text


@pytest.mark.parametrize("status", [429, 503, 502])
def test_retry_after_is_honoured(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Retry-After delays all notices of the receiver, and the log shows the delay."""
    with manual_receiver(answer(status, retry_after_seconds=60.0), 200) as made:
        put_notices(made, notice(1))
        made.wait_for("retry")
        put_notices(made, notice(2, target="vram0"))
        made.pass_seconds(59.9)
        before = made.endpoint.ids
        made.pass_seconds(0.1)
        made.wait_for("delivered", 2)

    assert before == ["msg_1"]
    assert made.endpoint.ids == ["msg_1", "msg_1", "msg_2"]
    assert re.search(rf"answered {status}.*; retrying in 1 min", caplog.text)


def test_gone_disables_the_receiver_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """After 410 nothing more is sent; queued and later notices are counted as disabled."""
    with manual_receiver(410) as made:
        put_notices(made, notice(1), notice(2, target="vram0"))
        wait_until(lambda: made.disabled)
        put_notices(made, notice(3))
        made.wait_for("disabled", 3)
        made.pass_seconds(DAY)

        assert made.pending() == 0

    assert made.endpoint.ids == ["msg_1"]
    assert "answered 410, gone; nothing more is sent to it" in caplog.text


def test_silent_receiver_delays_no_other() -> None:
    """While one endpoint does not answer, another gets its notice."""
    with manual_receiver() as stuck, manual_receiver() as quick:
        stuck.endpoint.may_answer.clear()
        put_notices(stuck, notice())
        wait_until(lambda: stuck.endpoint.ids == ["msg_1"])
        put_notices(quick, notice())
        quick.wait_for("delivered")

        assert (stuck.pending(), stuck.counts()["delivered"]) == (1, 0)


def test_repeated_failure_and_its_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Four equal failures are one line; a different one is another; the recovery is logged."""
    caplog.set_level(logging.INFO)
    with manual_receiver(500, 500, 500, 502, 200) as made:
        put_notices(made, notice())
        for failures in (1, 2, 3, 4):
            made.wait_for("retry", failures)
            made.pass_seconds(SCHEDULE[failures] * LONGEST)
        made.wait_for("delivered")

    assert [message.split("): ")[1].split(";")[0] for message in caplog.messages] == [
        "answered 500",
        "answered 502",
        "delivery works again",
    ]


def test_log_never_shows_secret_path_or_query(caplog: pytest.LogCaptureFixture) -> None:
    """The log shows only name, scheme, host and port of a receiver."""
    caplog.set_level(logging.DEBUG)
    with manual_receiver(500, 302, 410) as made:
        put_notices(made, notice())
        for failures in (1, 2):
            made.wait_for("retry", failures)
            made.pass_seconds(SCHEDULE[failures] * LONGEST)
        wait_until(lambda: made.disabled)

    assert "http://hooks.example:8080" in caplog.text
    for hidden in ("token", "key=value", SECRET, SECRET.removeprefix("whsec_")):
        assert hidden not in caplog.text


def test_resolve_follows_its_firing() -> None:
    """A resolve queued during the delivery of its firing is delivered after it."""
    with manual_receiver(200) as made:
        made.endpoint.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: made.endpoint.ids == ["msg_1"])
        put_notices(made, notice(2, firing=False))
        pending = made.pending()
        made.endpoint.may_answer.set()
        made.wait_for("delivered", 2)

    assert pending == 2
    assert made.endpoint.ids == ["msg_1", "msg_2"]


@pytest.mark.parametrize("failure", [REFUSED, answer(404), answer(500), answer(503)])
def test_undelivered_firing_is_dropped_with_its_resolve(failure: PostResult) -> None:
    """An alert that came and went while the receiver was unreachable or rejected it is not sent afterwards."""
    with manual_receiver(failure) as made:
        put_notices(made, notice(1))
        made.wait_for("retry")
        put_notices(made, notice(2, firing=False))
        made.pass_seconds(DAY)

        assert (made.counts()["superseded"], made.pending()) == (2, 0)

    assert made.endpoint.ids == ["msg_1"]


def test_firing_that_fails_after_its_resolve_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    """An alert that ended during its failing first attempt is not sent again."""
    with manual_receiver(500) as made:
        made.endpoint.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: made.endpoint.ids == ["msg_1"])
        put_notices(made, notice(2, firing=False))
        made.endpoint.may_answer.set()
        made.wait_for("superseded", 2)
        made.pass_seconds(DAY)

        assert made.pending() == 0

    assert made.endpoint.ids == ["msg_1"]
    assert "answered 500; the alert resolved meanwhile; its notifications are dropped" in caplog.text


@pytest.mark.parametrize("failure", [answer(504), CLOSED], ids=["gateway timeout", "no response"])
def test_firing_that_may_have_arrived_gets_its_resolve(failure: PostResult) -> None:
    """The end is sent, and the firing is not repeated."""
    with manual_receiver(failure, 200) as made:
        put_notices(made, notice(1))
        made.wait_for("retry")
        put_notices(made, notice(2, firing=False))
        made.wait_for("delivered")
        made.pass_seconds(DAY)

        assert made.counts()["superseded"] == 1

    assert made.endpoint.ids == ["msg_1", "msg_2"]


def test_other_targets_do_not_wait() -> None:
    """A notice of one target that waits for its retry does not delay another target's."""
    with manual_receiver(500, 200) as made:
        put_notices(made, notice(1))
        made.wait_for("retry")
        put_notices(made, notice(2, target="vram0"))
        made.wait_for("delivered")

        assert made.pending() == 1

    assert made.endpoint.ids == ["msg_1", "msg_2"]


def test_receiver_closes_between_attempts() -> None:
    """A receiver that waits for its next attempt ends its thread, and keeps the message."""
    with manual_receiver(500) as made:
        put_notices(made, notice())
        made.wait_for("retry")

        made.close()

        assert made.receiver.thread_state() is ThreadState.OK
        assert "webhook-ops" not in {thread.name for thread in threading.enumerate()}
        assert made.pending() == 1


def test_attempt_in_progress_may_finish_when_stopping() -> None:
    """An alert in delivery when memwatchd stops still arrives."""
    with manual_receiver() as made:
        made.endpoint.may_answer.clear()
        put_notices(made, notice())
        wait_until(lambda: made.endpoint.ids == ["msg_1"])
        made.clock.now += 1000.0
        before = made.receiver.thread_state()
        closing = threading.Thread(target=made.close, args=(2 * MAX_WAIT_SECONDS,))
        closing.start()
        wait_until(lambda: made.receiver.thread_state() is ThreadState.OK)  # the stop has begun
        made.endpoint.may_answer.set()
        closing.join()

    assert before is ThreadState.STUCK
    assert (made.counts()["delivered"], made.pending()) == (1, 0)


@pytest.mark.parametrize(("failure", "queued"), [(CLOSED, ["msg_2"]), (REFUSED, [])], ids=["broken", "refused"])
def test_attempt_that_breaks_for_a_reload_may_have_arrived(failure: PostResult, queued: list[str]) -> None:
    """The end of an alert goes to the receiver that replaces one whose last attempt broke off."""
    with manual_receiver(failure) as made:
        made.endpoint.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: made.endpoint.ids == ["msg_1"])
        made.receiver.stop_soon()
        made.endpoint.may_answer.set()
        made.receiver.join(time.monotonic() + MAX_WAIT_SECONDS)
        put_notices(made, notice(2, firing=False))

        assert [entry.id for entry in made.receiver.queue.queue.all()[0]] == queued


class Stopping:
    """Receiver that records how it is stopped, as its own `channel`."""

    def __init__(self, calls: list[tuple[str, float | None]]) -> None:
        self.calls = calls
        self.channel = self

    def stop_soon(self) -> None:
        self.calls.append(("stop", None))

    def join(self, until: float) -> None:
        self.calls.append(("join", until))

    def abort(self) -> None:
        self.calls.append(("abort", None))


def test_many_receivers_share_the_time_to_stop() -> None:
    """All stop at once. Half of the time is for attempts in progress, the rest for the ends of the threads."""
    calls: list[tuple[str, float | None]] = []

    close_all([Stopping(calls) for _ in range(3)], timeout=2.0)  # type: ignore[misc]

    first, second = calls[3][1], calls[-1][1]
    assert calls == [("stop", None)] * 3 + [("join", first), ("abort", None)] * 3 + [("join", second)] * 3
    assert first is not None
    assert second == pytest.approx(first + 1.0)


class Starved(PostResult, frozen=True):
    """Answer that raises MemoryError `left` times."""

    left = 0

    @property
    def success(self) -> bool:
        if Starved.left:
            Starved.left -= 1
            raise MemoryError
        return True


def test_attempt_is_repeated_after_a_memory_error() -> None:
    """If memory runs out while an answer is handled, the thread survives and the message is sent again."""
    Starved.left = 2
    with manual_receiver(Starved(200)) as made:
        put_notices(made, notice())
        made.wait_for("delivered")

    assert made.endpoint.ids == ["msg_1"] * 3


def test_alert_that_ends_after_a_memory_error_is_reported_as_ended() -> None:
    """Its firing arrived, but that result was lost, and the second attempt fails."""
    Starved.left = 1
    with manual_receiver(Starved(200), REFUSED, 200) as made:
        made.endpoint.may_answer.clear()
        put_notices(made, notice(1))
        wait_until(lambda: made.endpoint.ids == ["msg_1"])
        put_notices(made, notice(2, firing=False))
        made.endpoint.may_answer.set()
        wait_until(lambda: made.pending() == 0)

    assert made.endpoint.ids == ["msg_1", "msg_1", "msg_2"]
