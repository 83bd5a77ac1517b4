"""Test what a runner does with its collector: pauses, the release of its device, and when ticks may read it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.model import Absent
from memwatch.core.reading.collector_runner import POSTPONE_SECONDS, CollectorRunner
from support.fakes import FakeClock, FakeCollector


class Device(FakeCollector):
    """Collector that answers at once, and whose device can be released."""

    released: float = 0.0
    fast_seconds: float = 1.0

    def release(self, seconds: float) -> None:
        self.released = seconds

    def send_request(self) -> bool:
        return True

    def has_answer(self, _: float) -> bool:
        return True


def started(collector: FakeCollector, clock: FakeClock) -> CollectorRunner:
    runner = CollectorRunner(CollectorEntry(collector.name, lambda: collector, may_block=True), clock)
    runner.run()
    return runner


@pytest.mark.parametrize("period", [1.0, 2 * POSTPONE_SECONDS])
def test_collector_pauses_after_an_out_of_memory_error(period: float) -> None:
    """For its own period if that is longer."""
    clock = FakeClock()
    runner = started(FakeCollector(period_seconds=period), clock)

    runner.postpone()

    assert runner.due == clock.now + max(period, POSTPONE_SECONDS) >= clock.now + POSTPONE_SECONDS


def test_device_is_released_where_the_collector_has_one() -> None:
    device = Device()

    assert started(device, FakeClock()).release(5.0)
    assert device.released == 5.0
    assert not started(FakeCollector(), FakeClock()).release(5.0)


@pytest.mark.parametrize(
    ("state", "seconds", "spacing", "is_prompt"),
    [
        ("ok", 0.0, 1.0, True),
        ("ok", 0.0, 1.9, True),
        ("ok", 0.0, 2.0, False),
        ("error", 0.0, 1.0, False),
        ("ok", Absent.NOT_AVAILABLE, 1.0, False),
        ("ok", 60.0, 1.0, False),
    ],
)
def test_ticks_read_a_collector_that_is_well_and_quick(
    state: str, seconds: float | Absent, spacing: float, is_prompt: bool
) -> None:
    """And only if they come more often than every second period."""
    runner = started(Device(period_seconds=1.0, findings=Findings()), FakeClock())
    runner.result = replace(runner.result, state=state, duration_seconds=seconds)

    assert runner.is_prompt(spacing) is is_prompt


def test_ticks_never_read_a_collector_that_may_block() -> None:
    assert not started(FakeCollector(period_seconds=1.0), FakeClock()).is_prompt(1.0)


@pytest.mark.parametrize(("late", "state"), [(0.0, "ok"), (0.5, "stalled")])
def test_findings_are_stale_after_their_deadline(late: float, state: str) -> None:
    """The age in the message is that of the last answer."""
    clock = FakeClock()
    runner = started(FakeCollector(findings=Findings()), clock)

    _, status = runner.current(runner.result.overdue_at + late)

    assert status.state == state
    assert (status.error is None) == (state == "ok")


def test_tick_runs_a_collector_sooner_in_fast_mode() -> None:
    """A driver that is asked every two seconds at rest is asked every second once memory moves."""
    device, clock = Device(period_seconds=2.0), FakeClock()
    runner = started(device, clock)
    clock.now += 1.0

    assert not runner.send_request(clock.now, 1.0)

    runner.is_fast = True

    assert runner.send_request(clock.now, 1.0)
