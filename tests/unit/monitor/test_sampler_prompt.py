"""Test that prompt collectors are read by ticks, and that slow ones are left to their threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memwatch.core.collectors.base import Collector, CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.reading.collector_runner import CollectorRunner
from memwatch.core.reading.sampler import Sampler
from support.fakes import GIB, FakeClock, FakeCollector, ManualWait, ram
from support.waiting import MAX_WAIT_SECONDS, wait_until


class Willing(FakeCollector):
    """Collector behind a helper. `answers`: at once, else `late` is awaited; `takes_questions`: accepts input."""

    def __init__(self) -> None:
        super().__init__("willing", 1.0, may_block=True, findings=Findings(pools=(ram(GIB),)))
        self.answers = self.takes_questions = True
        self.late = threading.Event()
        self.late.set()
        self.puts = 0
        self.by: list[str] = []

    def send_request(self) -> bool:
        self.puts += self.takes_questions
        return self.takes_questions

    def has_answer(self, _: float) -> bool:
        return self.answers

    def collect(self) -> Findings:
        self.late.wait(MAX_WAIT_SECONDS)
        self.by.append(threading.current_thread().name)
        return super().collect()


@contextmanager
def sampling(collector: Willing, clock: FakeClock) -> Iterator[Sampler]:
    """Yield a sampler once its ticks read the collector."""

    def make() -> Collector:
        return collector

    sampler = Sampler([CollectorEntry(collector.name, make, may_block=True)], clock, ManualWait())

    def is_read_by_ticks() -> bool:
        clock.now += 1.0
        sampler.gather()
        return sampler.runners[0].on_tick

    sampler.start()
    try:
        wait_until(is_read_by_ticks)
        collector.puts, collector.by = 0, []
        yield sampler
    finally:
        sampler.stop()


def ticks(sampler: Sampler, clock: FakeClock, count: int) -> list[float]:
    """Run this many ticks, one second apart; return the age of the collector's answer at each."""
    ages = []
    for _ in range(count):
        clock.now += 1.0
        _, (status,) = sampler.gather()
        assert isinstance(status.age_seconds, float)
        ages.append(status.age_seconds)
    return ages


def test_ticks_read_a_prompt_collector_and_its_thread_sleeps() -> None:
    """Values of a GPU and of System RAM are of the same moment, and no thread wakes up for them."""
    collector, clock, me = Willing(), FakeClock(), threading.current_thread().name
    with sampling(collector, clock) as sampler:
        ages = ticks(sampler, clock, 5)
        sampler._wake(sampler.runners)
        ages += ticks(sampler, clock, 5)

    assert ages == [0.0] * 10
    assert collector.by == [me] * 10
    wait_until(lambda: collector.closed)  # its thread ends after a stop


def left_for(runner: CollectorRunner, collector: Willing, clock: FakeClock) -> float:
    """Return for how many seconds ticks leave the collector to its thread after a late answer."""
    clock.now += 1.0
    late_at = clock.now
    collector.answers = False
    assert runner.send_request(clock.now, 1.0)
    runner.run_if_answered()
    collector.answers = True
    while True:
        runner.run()
        if runner.is_prompt(1.0):
            return clock.now - late_at
        clock.now += 1.0


def test_late_collector_is_left_to_its_thread() -> None:
    """The tick continues without it. The answer is read when it comes, and ticks read it again seconds later."""
    collector, clock = Willing(), FakeClock()
    with sampling(collector, clock) as sampler:
        collector.answers = False
        collector.late.clear()
        left = ticks(sampler, clock, 2)
        puts = collector.puts
        collector.late.set()
        wait_until(lambda: collector.by)

    assert left == [1.0, 2.0]
    assert puts == 1
    assert set(collector.by) == {"collect-willing"}


def test_late_answers_back_off_to_a_minute() -> None:
    """A driver that was late once, on a busy machine, does not cost one minute of wake-ups."""
    collector, clock = Willing(), FakeClock()
    runner = CollectorRunner(CollectorEntry("willing", lambda: collector, may_block=True), clock)
    runner.run()
    often = [left_for(runner, collector, clock) for _ in range(6)]
    clock.now += 1.0
    assert runner.send_request(clock.now, 1.0)
    runner.run_if_answered()
    again = left_for(runner, collector, clock)

    assert often == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert again == 4.0


@pytest.mark.parametrize("error", [None, SourceUnavailable("the driver is released on request")])
def test_collector_that_takes_no_request_is_left_to_its_thread(error: Exception | None) -> None:
    """Starting or ending a helper process takes longer than a tick may."""
    collector, clock, me = Willing(), FakeClock(), threading.current_thread().name
    with sampling(collector, clock) as sampler:
        collector.takes_questions, collector.error = False, error
        clock.now += 1.0
        sampler.gather()
        wait_until(lambda: collector.by)
        _, (status,) = sampler.gather()

    assert me not in collector.by
    assert collector.puts == 0
    assert status.state == ("ok" if error is None else "unavailable")


def test_collector_that_fails_on_a_tick_is_left_to_its_thread() -> None:
    """Recovery may take time."""
    collector, clock, me = Willing(), FakeClock(), threading.current_thread().name
    with sampling(collector, clock) as sampler:
        collector.error = ValueError("nonsense")
        clock.now += 1.0
        _, (status,) = sampler.gather()
        clock.now += 1.0
        wait_until(lambda: len(collector.by) >= 2)

    assert status.state == "failing"
    assert collector.by[:2] == [me, "collect-willing"]


def test_collector_with_rare_ticks_is_left_to_its_thread() -> None:
    """Its values stay as fresh, and a driver is released within the collector's own period."""
    collector, clock, me = Willing(), FakeClock(), threading.current_thread().name
    with sampling(collector, clock) as sampler:
        clock.now += 10.0
        sampler.gather()
        wait_until(lambda: collector.by)
        clock.now += 1.0
        wait_until(lambda: len(collector.by) >= 2)

    assert me not in collector.by
    assert collector.puts == 0


def test_collector_of_one_second_runs_on_every_tick_of_a_second() -> None:
    """Ticks vary by some milliseconds; a collector runs shortly after its tick began."""
    clock = FakeClock()
    collector = FakeCollector("vmstat", 1.0)
    sampler = Sampler([CollectorEntry("vmstat", lambda: collector, may_block=False)], clock)

    for tick in range(10):
        clock.now = 1000.0 + tick - (tick % 3) * 0.01
        sampler.gather()
    fast = [sampler.gather() for clock.now in (1009.1 + step / 10 for step in range(10))]

    assert collector.calls == 11
    assert len(fast) == 10
