"""Test the text of notices, and which receivers get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from memwatch.core.clock import SystemClock
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import EVENTS
from memwatch_monitor.alerts.state import AlertState
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.channel import Sender, build_text, build_title
from memwatch_monitor.notify.manager import NotificationManager, build_test_notification
from memwatch_monitor.notify.outbox import NewMessage, Outbox
from memwatch_monitor.notify.queue import ReceiverQueue
from memwatch_monitor.notify.receiver import Receiver, Subscription
from support.fakes import FakeClock
from support.monitors import alerts, create_monitor
from support.sample_snapshots import critical_gb10, hostile_names, simulated
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import ids, notice, webhook_channel


@contextmanager
def alerting_to(**wanted: tuple[str, Subscription]) -> Iterator[NotificationManager]:
    """Yield alerting with receivers by name, each with its URL and subscription."""
    outbox = Outbox(None)
    receivers = [
        Receiver(name, webhook_channel(url, timeout_seconds=2.0), outbox.queue(name), subscription)
        for name, (url, subscription) in wanted.items()
    ]
    monitor = create_monitor(Sampler([], SystemClock()), SystemClock(), MonitorRules(), Identity("host", "boot"))
    made = NotificationManager(monitor, outbox, receivers, Sender("https://spark/memory"))
    made.start()
    try:
        yield made
    finally:
        made.close()


def critical_news(*signals: str) -> Notification:
    """Return a change of an alert about high, whose new reasons ask for critical."""
    news = tuple(Reason(signal, f"{signal} is critical", Level.CRITICAL) for signal in signals)
    return replace(notice(rule="pressure.high"), new_reasons=news)


def test_new_reasons_are_in_the_title() -> None:
    title = build_title(critical_news("util", "floor"), critical_gb10())

    assert (
        title == "spark-1: memory is high or critical (System RAM), now also: util is critical; floor is critical"
    )


@pytest.mark.parametrize(
    ("events", "is_sent"),
    [({"pressure.high"}, True), ({"pressure.high", "pressure.critical"}, False), ({"pressure.critical"}, False)],
)
def test_rise_that_has_its_own_alert_is_sent_once(events: set[str], is_sent: bool) -> None:
    """A receiver of both levels gets the alert about critical, and no change of the one about high."""
    assert Subscription(frozenset(events)).wants(critical_news("util")) is is_sent


def test_new_reason_of_the_same_level_is_sent_to_receivers_of_both_levels() -> None:
    wanted = Subscription(frozenset({"pressure.high", "pressure.critical"}))
    news = Reason("fragmentation", "no free block", Level.HIGH)

    assert wanted.wants(replace(critical_news("util"), new_reasons=(news,)))


class RecordingOutbox(Outbox):
    """An outbox without a disk that notes which changes are written at once."""

    def __init__(self) -> None:
        super().__init__(None)
        self.urgent: list[bool] = []

    def put(
        self,
        new_messages: Sequence[tuple[ReceiverQueue, NewMessage]],
        values: Mapping[str, bytes],
        urgent: bool = True,
    ) -> None:
        self.urgent.append(urgent)
        super().put(new_messages, values, urgent)


def test_event_that_waits_for_its_notification_is_written_at_once() -> None:
    """A crash within the second in which other changes are collected loses no kill."""
    outbox, clock = RecordingOutbox(), FakeClock()
    monitor = create_monitor(Sampler([], clock), clock, MonitorRules(), Identity("host", "boot"))
    manager = NotificationManager(monitor, outbox)
    kill = AlertState(since=5.0, notified_at=1.0, reasons=(Reason("oom_kill", "killed python3"),))
    for key, state in (
        (("pressure.critical", "ram"), AlertState(since=4.0)),
        (("kernel.oom_kill", "kernel"), kill),
        (("pressure.critical", "gpu0"), AlertState(since=6.0)),
        (("kernel.oom_kill", "kernel"), replace(kill, left_out=1)),
    ):
        alerts(monitor).states = {**alerts(monitor).states, key: state}
        manager.deliver(critical_gb10(), ())

    assert outbox.urgent == [False, True, False, True]


@pytest.mark.process
def test_receivers_get_what_they_subscribed_to() -> None:
    """By event and target: one receiver gets alerts of RAM, one of cards, one of both."""
    with receiving(200) as ram, receiving(200) as cards, receiving(200) as both:
        wanted = {
            "ram": (ram.url, Subscription(targets=frozenset({"ram"}))),
            "cards": (cards.url, Subscription(frozenset({"pressure.high"}), frozenset({"vram0"}))),
            "both": (both.url, Subscription(frozenset({"pressure.critical", "pressure.high"}))),
        }
        with alerting_to(**wanted) as made:
            notifications = (notice(1), notice(2, target="vram0", rule="pressure.high"))
            made.deliver(critical_gb10(), notifications)
            wait_until(lambda: len(both.deliveries) == 2 and bool(ram.deliveries) and bool(cards.deliveries))

    assert (ids(ram), ids(cards), sorted(ids(both))) == (["msg_1"], ["msg_2"], ["msg_1", "msg_2"])


@pytest.mark.process
def test_simulated_machine_sends_nothing() -> None:
    """Simulated data must not alert anyone."""
    with receiving(200) as site, alerting_to(ops=(site.url, Subscription())) as made:
        made.deliver(simulated(), (notice(1),))

        assert made.receivers[0].pending() == 0

    assert site.deliveries == []


@pytest.mark.parametrize("rule", EVENTS)
def test_every_rule_has_a_title(rule: str) -> None:
    """A title names the host, the rule and the target, and marks a resolved alert."""
    fires = build_title(notice(rule=rule), critical_gb10())
    ends = build_title(notice(rule=rule, firing=False), critical_gb10())

    assert fires.startswith("spark-1: ")
    assert fires.endswith("(System RAM)")
    assert ends == fires.replace("spark-1: ", "spark-1: resolved: ")


def test_hostile_names_are_escaped() -> None:
    """Bidirectional controls are escaped, and long texts are cut."""
    alert = replace(notice(), reasons=(Reason("util", "x" * 5000),))

    text = build_text(alert, hostile_names(), Sender("https://spark/memory", labels={"cluster": "west"}))

    lines = text.split("\n")
    assert max(map(len, lines)) < 1000
    assert "\u202e" not in text
    assert lines[-3:] == [
        "cluster: west",
        "Runbook: https://spark/memory/runbooks#memorycritical",
        "https://spark/memory",
    ]


def test_test_message_is_marked_as_a_test() -> None:
    """A test message must not be mistaken for an alert."""
    assert build_title(build_test_notification(), critical_gb10()) == "spark-1: test notification (test)"
    assert "This is a test notification." in build_text(build_test_notification(), critical_gb10(), None)
