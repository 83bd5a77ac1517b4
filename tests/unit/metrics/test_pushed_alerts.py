"""The metric by which Prometheus's rules leave out alerts that memwatchd sends itself."""

from __future__ import annotations

import pytest

from memwatch_monitor.notify.manager import pushed_alerts
from memwatch_monitor.notify.receiver import Subscription
from support.sample_snapshots import critical_gb10
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import notice, put_notices, receiver


def rows(*subscriptions: Subscription) -> list[tuple[str, str]]:
    targets = [one.target for one in critical_gb10().pressure]
    return sorted({row for one in subscriptions for row in pushed_alerts(one, targets)})


def test_pressure_is_exported_for_each_target_and_other_events_once() -> None:
    events = frozenset({"pressure.critical", "device.lost"})

    assert rows(Subscription(events), Subscription(events)) == [("device.lost", ""), ("pressure.critical", "ram")]


def test_receiver_of_some_targets_is_no_substitute_for_the_others() -> None:
    events = frozenset({"pressure.critical", "device.lost"})

    assert rows(Subscription(events, frozenset({"gpu0"}))) == []
    assert rows(Subscription(events, frozenset({"ram"}))) == [("pressure.critical", "ram")]


@pytest.mark.process
def test_failing_receiver_is_no_substitute_until_it_works_again() -> None:
    """Prometheus's rules take over while delivery fails."""
    meant = Subscription(instead_of_prometheus=True)
    with receiving(500, 200) as site, receiver(site.url, (0.0, 0.4)) as made:
        made.receiver.subscription = meant
        assert made.receiver.in_place_of_prometheus() is meant
        put_notices(made, notice())
        wait_until(lambda: made.receiver.in_place_of_prometheus() is None)
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.receiver.in_place_of_prometheus() is meant


@pytest.mark.process
def test_receiver_that_is_not_meant_so_is_no_substitute() -> None:
    with receiving(200) as site, receiver(site.url) as made:
        assert made.receiver.in_place_of_prometheus() is None
