"""Test that a collector that fails, disappears or hangs affects its own values only."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import Collector, CollectorEntry
from memwatch.core.engines.records import Engine
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import Absent, Quality, Share, ShareKind
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import CollectorStatus, Kernel
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.waiting import MAX_WAIT_SECONDS, wait_until

VLLM = Engine("vllm-8000", "vllm", "vLLM", "http://127.0.0.1:8000")


def enlist(*collectors: FakeCollector) -> list[CollectorEntry]:
    def entry(one: FakeCollector) -> CollectorEntry:
        return CollectorEntry(one.name, lambda: one, one.may_block)

    return [entry(one) for one in collectors]


def status_of(statuses: tuple[CollectorStatus, ...], name: str) -> CollectorStatus:
    return next(status for status in statuses if status.name == name)


def test_failing_collector_keeps_the_size_and_drops_the_use() -> None:
    """The pool stays listed, its use is stale, and the error has a text and a count."""
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(memory), FakeClock())
    sampler.gather()
    memory.error = ParseError("/proc/meminfo: MemTotal is 'x', expected kB")

    findings, statuses = sampler.gather()

    assert findings.pools[0].size_bytes == 64 * GIB
    assert findings.pools[0].used_bytes is Absent.STALE
    assert status_of(statuses, "meminfo").state == "failing"
    assert status_of(statuses, "meminfo").error == "/proc/meminfo: MemTotal is 'x', expected kB"
    assert status_of(statuses, "meminfo").errors == {"unreadable": 1}


def test_defect_is_counted_and_other_collectors_continue() -> None:
    """An unexpected exception costs one collector."""
    broken = FakeCollector("broken", error=ZeroDivisionError("division by zero"))
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))

    findings, statuses = Sampler(enlist(broken, memory), FakeClock()).gather()

    assert findings.pools[0].used_bytes == GIB
    assert status_of(statuses, "broken").errors == {"defect": 1}


def test_unavailable_collector_is_retried_when_its_files_change(tmp_path: Path) -> None:
    """Within seconds and not after its growing delay; soon again if the source was not complete yet."""
    clock, made = FakeClock(), list[float]()
    node = tmp_path / "driver"

    def make() -> Collector:
        made.append(clock.now)
        if not node.exists():
            raise SourceUnavailable("no such driver")
        return FakeCollector("gpu")

    sampler = Sampler([CollectorEntry("gpu", make, False, (f"{tmp_path}/", f"{node}"))], clock)
    for second in range(110):
        if second == 100:
            (tmp_path / "card0").touch()
        if second == 105:
            node.touch()
        _, statuses = sampler.gather()
        clock.now += 1.0

    assert [round(at - 1000.0) for at in made[:4]] == [0, 10, 30, 70]
    assert 100 <= made[4] - 1000.0 <= 104
    assert 105 <= made[-1] - 1000.0 <= 109
    assert statuses[0].state == "ok"


def test_unavailable_collector_is_retried_with_backoff() -> None:
    """A missing driver is normal: no error is counted, and the collector starts once the driver appears."""
    clock, made = FakeClock(), []

    def make() -> Collector:
        made.append(clock.now)
        if len(made) < 4:
            raise SourceUnavailable("no such driver")
        return FakeCollector("late", findings=Findings(pools=(ram(GIB),)))

    sampler = Sampler([CollectorEntry("late", make, False)], clock)
    for _ in range(100):
        _, statuses = sampler.gather()
        if not made[1:]:
            assert statuses[0].state == "unavailable"
            assert statuses[0].errors == {}
        clock.now += 1.0

    assert [round(at - 1000.0) for at in made] == [0, 10, 30, 70]
    assert statuses[0].state == "ok"


def test_share_without_its_pool_is_left_out() -> None:
    """A snapshot can be built even if the collector of System RAM has never answered."""
    cgroup = Share("cgroup", ShareKind.CGROUP, "Container limit", "ram", GIB, "test", Quality.MEASURED)
    orphan = FakeCollector("cgroup", findings=Findings(shares=(cgroup,)))

    findings, _ = Sampler(enlist(orphan), FakeClock()).gather()

    assert findings.shares == ()


def test_hanging_collector_is_stalled_and_ticks_continue() -> None:
    """A collector stuck in the kernel loses its values after its deadline; ticks do not wait for it."""
    release, entered = threading.Event(), threading.Event()

    class Hanging(FakeCollector):
        def collect(self) -> Findings:
            if self.calls:
                entered.set()
                release.wait(MAX_WAIT_SECONDS)
            return super().collect()

    clock = FakeClock()
    hanging = Hanging("slow", may_block=True, findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(hanging), clock)
    sampler.start()
    assert entered.wait(MAX_WAIT_SECONDS)

    fresh, _ = sampler.gather()
    clock.now += 10.0
    stale, statuses = sampler.gather()
    release.set()
    sampler.stop()

    assert fresh.pools[0].used_bytes == GIB
    assert stale.pools[0].used_bytes is Absent.STALE
    assert status_of(statuses, "slow").state == "stalled"
    assert status_of(statuses, "slow").error == "no response for 10 s"
    assert status_of(statuses, "slow").errors == {"deadline": 1}


class Stuck:
    """Makes collectors. Each of the first `hanging` ones returns once, and then hangs until `release` is set."""

    def __init__(self, hanging: int) -> None:
        self.release = threading.Event()
        self.clock = FakeClock()
        self.made: list[FakeCollector] = []
        self.hung = 0
        self._hanging = hanging

    def __enter__(self) -> Sampler:
        self.sampler = Sampler([CollectorEntry("engines", self._make, may_block=True)], self.clock)
        self.sampler.start()
        return self.sampler

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.sampler.stop()

    def _make(self) -> Collector:
        one = FakeCollector("engines", may_block=True, findings=Findings(pools=(ram(GIB),), engines=(VLLM,)))
        if len(self.made) < self._hanging:
            one.collect = partial(self._hang, one)  # type: ignore[method-assign]
        self.made.append(one)
        return one

    def _hang(self, one: FakeCollector) -> Findings:
        one.calls += 1
        if one.calls > 1 or one is not self.made[0]:
            self.hung += 1
            self.release.wait(MAX_WAIT_SECONDS)
        return Findings(pools=(ram(9 * GIB),)) if self.release.is_set() else one.findings

    def after(self, seconds: float) -> tuple[Findings, CollectorStatus]:
        self.clock.now += seconds
        findings, (status,) = self.sampler.gather()
        return findings, status


def test_stuck_collector_gets_another_thread_after_a_minute() -> None:
    """The new one reads with a new collector. What the old one returns in the end is dropped."""
    stuck = Stuck(hanging=1)
    with stuck as sampler:
        wait_until(lambda: stuck.hung == 1)
        before = stuck.after(59.0)
        stuck.after(1.0)
        wait_until(lambda: sampler.runners[0].result.state == "ok")
        found, status = stuck.after(0.0)

        stuck.release.set()
        wait_until(lambda: stuck.made[0].closed)
        after, _ = stuck.after(0.0)

    assert (before[1].state, len(stuck.made)) == ("stalled", 2)
    assert (found.pools[0].used_bytes, found.engines) == (GIB, (VLLM,))
    assert (status.state, status.error, status.errors) == ("ok", None, {"deadline": 1})
    assert after.pools[0].used_bytes == GIB


def test_stuck_threads_of_a_collector_are_limited() -> None:
    """Two are left behind, the third waits as long as it takes. Each of them ends when its source returns."""
    stuck = Stuck(hanging=9)
    with stuck as sampler:
        for count in (1, 2, 3):
            wait_until(lambda count=count: stuck.hung == count)  # type: ignore[misc]
            _, status = stuck.after(61.0)
        for _ in range(5):
            stuck.after(61.0)
        hung = stuck.hung
        stuck.release.set()
        wait_until(lambda: sampler.runners[0].result.state == "ok")

    assert hung == len(stuck.made) == 3
    assert status.error == "no response; tried again in another thread, 2 of 2"


def test_engines_of_a_stuck_collector_are_dropped_after_a_minute() -> None:
    """An engine is a process, which may have ended. Pools of hardware stay, as stale."""
    stuck = Stuck(hanging=9)
    with stuck:
        wait_until(lambda: stuck.hung == 1)
        early, _ = stuck.after(50.0)
        late, status = stuck.after(10.0)

    assert [engine.id for engine in early.engines] == [VLLM.id]
    assert (late.engines, status.state) == ((), "stalled")
    assert late.pools[0].size_bytes == 64 * GIB


def test_collector_runs_at_its_own_period() -> None:
    """Slowly changing values are read rarely; the last answer stays valid meanwhile."""
    clock = FakeClock()
    slow = FakeCollector("slow", period_seconds=5.0, findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(slow), clock)

    for _ in range(11):
        findings, _ = sampler.gather()
        clock.now += 1.0

    assert slow.calls == 3
    assert findings.pools[0].used_bytes == GIB


class Hurried(FakeCollector):
    """Collector that may run every 20 ms under pressure, else every ten minutes; its third run sets `again`."""

    fast_seconds = 0.02

    def __init__(self, name: str = "hurried", took: float = 0.0) -> None:
        super().__init__(name, period_seconds=600.0, may_block=True)
        self.took = took
        self.again = threading.Event()

    def collect(self) -> Findings:
        if self.calls >= 2:
            self.again.set()
        threading.Event().wait(self.took)
        return super().collect()


@pytest.mark.process
def test_hurried_collector_runs_at_once() -> None:
    """In the middle of its pause of ten minutes it runs right away, and again; without pressure it rests."""
    eager, patient = Hurried(), FakeCollector("patient", period_seconds=600.0, may_block=True)
    sampler = Sampler(enlist(eager, patient), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)
    before = eager.calls

    sampler.set_fast(True)
    ran_again = eager.again.wait(MAX_WAIT_SECONDS)
    sampler.set_fast(False)
    wait_until(lambda: rests(eager))
    sampler.stop()

    assert (before, ran_again) == (1, True)
    assert patient.calls == 1


def rests(collector: Hurried) -> bool:
    """Return True if the collector does not run for ten times the pause that it has under pressure."""
    calls = collector.calls
    threading.Event().wait(10 * Hurried.fast_seconds)
    return collector.calls == calls


def test_fast_mode_wakes_only_collectors_that_it_hastens() -> None:
    sampler = Sampler(
        enlist(Hurried(), FakeCollector("patient", period_seconds=600.0, may_block=True)), FakeClock()
    )
    for runner in sampler.runners:
        runner.run()

    def woken_by(is_fast: bool) -> list[str]:
        for event in sampler._changed.values():
            event.clear()
        sampler.set_fast(is_fast)
        return [runner.entry.name for runner, event in sampler._changed.items() if event.is_set()]

    assert woken_by(True) == ["hurried"]
    assert woken_by(False) == []


@pytest.mark.process
def test_slow_collector_is_not_hurried_beyond_its_budget() -> None:
    """A collector that takes 50 ms runs every 15 s at most, under any pressure: 0.3 % of a core."""
    slow = Hurried(took=0.05)
    sampler = Sampler(enlist(slow), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)

    sampler.set_fast(True)
    ran_again = slow.again.wait(0.3)
    left = sampler.runners[0].seconds_until_due()
    sampler.stop()

    assert not ran_again
    assert slow.calls == 1
    assert left > 10.0


class Informed(Hurried):
    """Collector that has news until it runs."""

    news = False

    def has_news(self) -> bool:
        return self.news

    def collect(self) -> Findings:
        self.news = False
        return super().collect()


@pytest.mark.process
def test_collector_with_news_runs_before_its_period_ends() -> None:
    """Without pressure; once, and then at its period again."""
    informed = Informed()
    sampler = Sampler(enlist(informed), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)
    sampler.gather()
    before = informed.calls

    informed.news = True
    wait_until(lambda: bool(sampler.gather()) and informed.calls == 2)
    threading.Event().wait(0.1)
    sampler.gather()
    sampler.stop()

    assert (before, informed.calls) == (1, 2)


@pytest.mark.process
def test_news_do_not_exceed_the_budget_of_a_slow_collector() -> None:
    informed = Informed(took=0.05)
    sampler = Sampler(enlist(informed), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)

    informed.news = True
    sampler.gather()
    threading.Event().wait(0.2)
    sampler.stop()

    assert informed.calls == 1


class Unequal(dict[str, str]):
    """Dict whose first `left` comparisons raise MemoryError."""

    left = 1

    def __eq__(self, other: object) -> bool:
        if self.left:
            self.left -= 1
            raise MemoryError
        return super().__eq__(other)

    __hash__ = None


def test_collector_thread_survives_a_memory_error() -> None:
    """If memory is too short to publish an answer, the thread collects again one second later."""
    collector = FakeCollector("driver", 0.01, may_block=True, findings=Findings(container_names=Unequal()))
    sampler = Sampler(enlist(collector), SystemClock())
    sampler.start()
    try:
        wait_until(lambda: sampler.runners[0].result.state == "ok")
        asked = collector.calls
        wait_until(lambda: collector.calls > asked)
    finally:
        sampler.stop()


def count_waits(name: str) -> int:
    """Return how often a thread of this process has waited."""
    thread = next(one for one in threading.enumerate() if one.name == name)
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


class Counting(FakeCollector):
    """Collector of kills that reads their number at once and waits for `may_end`."""

    def __init__(self) -> None:
        super().__init__("cgroup", period_seconds=600.0, may_block=True)
        self.kills = self.counted = 0
        self.entered, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def collect(self) -> Findings:
        kills = self.kills
        self.entered.set()
        self.may_end.wait(MAX_WAIT_SECONDS)
        self.counted = kills
        return super().collect()


def test_event_during_a_run_is_read_by_the_next_one() -> None:
    """A kill that comes after the run has read the number of kills is counted at once, not a period later."""
    counting = Counting()
    sampler = Sampler(enlist(counting), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)

    counting.entered.clear()
    counting.may_end.clear()
    sampler.hurry()
    assert counting.entered.wait(MAX_WAIT_SECONDS)
    counting.kills += 1
    sampler.hurry()
    counting.may_end.set()
    wait_until(lambda: counting.counted == 1 and sampler.runners[0].seconds_until_due() > 500.0)
    sampler.stop()

    assert counting.calls == 3


def test_counted_kill_runs_the_collector_that_finds_its_cgroup() -> None:
    """At once, ten seconds before it is due. The kills since the boot are none."""
    counting, finding = FakeCollector("vmstat"), FakeCollector("cgroup_kills", period_seconds=600.0, may_block=True)
    sampler = Sampler(enlist(counting, finding), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)
    calls = []
    for kills in (3, 3, 4):
        counting.findings = Findings(kernel=Kernel(oom_kills_total=kills))
        sampler.gather()
        calls.append(finding.calls)
    wait_until(lambda: finding.calls == 2)
    sampler.stop()

    assert calls[:2] == [1, 1]


@pytest.mark.process
def test_event_wakes_only_the_thread_that_reads_it() -> None:
    """A daemon has 15 threads of collectors. Fifty kills wake the one that counts them."""
    resting = [FakeCollector(f"resting{number}", period_seconds=600.0, may_block=True) for number in range(5)]
    counting = FakeCollector("cgroup", period_seconds=600.0, may_block=True)
    sampler = Sampler(enlist(counting, *resting), SystemClock())
    sampler.start()
    sampler.wait_for_first(MAX_WAIT_SECONDS)
    threading.Event().wait(0.1)  # all wait for their next run
    before = sum(count_waits(f"collect-{one.name}") for one in resting)

    for _ in range(50):
        calls = counting.calls
        sampler.hurry()
        wait_until(lambda calls=calls: counting.calls > calls)  # type: ignore[misc]
    after = sum(count_waits(f"collect-{one.name}") for one in resting)
    sampler.stop()

    assert after - before < 50
    assert {one.calls for one in resting} == {1}
