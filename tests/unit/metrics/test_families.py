"""Families of /metrics: contents of pools, followed machines, and alerts that memwatchd sends itself.

Contents add up in the demos (test_demos.py) and on all machines (test_golden.py).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.snapshot import NeighbourStatus
from memwatch_monitor.notify.manager import pushed_alerts
from memwatch_monitor.notify.receiver import Subscription
from memwatch_web.metrics.families import neighbour_families
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.paths import MACHINES
from support.sample_snapshots import critical_gb10
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import notice, put_notices, receiver


def test_memory_held_by_a_gpu_is_a_content_of_system_ram() -> None:
    """`devices`, as in the JSON API: the part of a unified machine that no page of a process explains."""
    text = (MACHINES / "gb10/metrics.txt").read_text()

    assert 'memwatch_pool_contents_bytes{content="devices",device="",pool="ram"}' in text


def test_neighbour_without_a_tick_is_down_and_has_no_time() -> None:
    up = NeighbourStatus("b", "up", "System RAM is OK", 0.4, last_tick_unix=1000.5)
    new = NeighbourStatus("c", "starting", "no answer yet", 3.0)
    snapshot = replace(next(read_frames(path_of("dgx-spark"))), neighbours=(up, new))

    samples = [sample for family in neighbour_families(snapshot) for sample in family.samples]

    assert [(one.name, one.labels["neighbour"], one.value) for one in samples] == [
        ("memwatch_neighbour_up", "b", 1.0),
        ("memwatch_neighbour_up", "c", 0.0),
        ("memwatch_neighbour_last_tick_timestamp_seconds", "b", 1000.5),
    ]


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
