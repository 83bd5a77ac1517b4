"""A collector that fails, vanishes or hangs costs its own figures and nothing else."""

from __future__ import annotations

import threading

from memwatch.clock import SystemClock
from memwatch.collectors.base import Collector, Enlisted
from memwatch.findings import Findings
from memwatch.linux.files import Unavailable, Unreadable
from memwatch.model import Absent, Quality, Share, ShareKind
from memwatch.monitor.sampler import Sampler
from memwatch.snapshot import CollectorStatus
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.waiting import PATIENCE_SECONDS, wait_until


def enlist(*collectors: FakeCollector) -> list[Enlisted]:
    def entry(one: FakeCollector) -> Enlisted:
        return Enlisted(one.name, lambda: one, one.may_block)

    return [entry(one) for one in collectors]


def status_of(statuses: tuple[CollectorStatus, ...], name: str) -> CollectorStatus:
    return next(status for status in statuses if status.name == name)


def test_a_failing_collector_keeps_its_pools_size_and_loses_its_figures() -> None:
    """The page can say what is missing: the pool is there, its use is stale, the error has words and a count."""
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(memory), FakeClock())
    sampler.gather()
    memory.error = Unreadable("/proc/meminfo: MemTotal is 'x', expected kB")

    findings, statuses = sampler.gather()

    assert findings.pools[0].size_bytes == 64 * GIB
    assert findings.pools[0].used_bytes is Absent.STALE
    assert status_of(statuses, "meminfo").state == "failing"
    assert status_of(statuses, "meminfo").error == "/proc/meminfo: MemTotal is 'x', expected kB"
    assert status_of(statuses, "meminfo").errors == {"unreadable": 1}


def test_a_defect_is_counted_and_the_others_go_on() -> None:
    """An exception nobody thought of costs one collector."""
    broken = FakeCollector("broken", error=ZeroDivisionError("division by zero"))
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))

    findings, statuses = Sampler(enlist(broken, memory), FakeClock()).gather()

    assert findings.pools[0].used_bytes == GIB
    assert status_of(statuses, "broken").errors == {"defect": 1}


def test_what_is_not_here_is_asked_for_less_and_less_often() -> None:
    """A machine without what a collector reads is normal: no error is counted, and it is found when it comes."""
    clock, made = FakeClock(), []

    def make() -> Collector:
        made.append(clock.now)
        if len(made) < 4:
            raise Unavailable("no such driver")
        return FakeCollector("late", findings=Findings(pools=(ram(GIB),)))

    sampler = Sampler([Enlisted("late", make, False)], clock)
    for _ in range(100):
        _, statuses = sampler.gather()
        if not made[1:]:
            assert statuses[0].state == "unavailable"
            assert statuses[0].errors == {}
        clock.now += 1.0

    assert [round(at - 1000.0) for at in made] == [0, 10, 30, 70]
    assert statuses[0].state == "ok"


def test_a_share_whose_pool_nobody_found_is_left_out() -> None:
    """A snapshot can be built even when the collector of System RAM has never answered."""
    cgroup = Share("cgroup", ShareKind.CGROUP, "Container limit", "ram", GIB, "test", Quality.MEASURED)
    orphan = FakeCollector("cgroup", findings=Findings(shares=(cgroup,)))

    findings, _ = Sampler(enlist(orphan), FakeClock()).gather()

    assert findings.shares == ()


def test_a_collector_that_hangs_is_stalled_and_the_tick_goes_on() -> None:
    """A collector stuck in the kernel has its figures withdrawn after its time; nobody waits for it."""
    release, entered = threading.Event(), threading.Event()

    class Hanging(FakeCollector):
        def collect(self) -> Findings:
            if self.asked:
                entered.set()
                release.wait(20)
            return super().collect()

    clock = FakeClock()
    hanging = Hanging("slow", may_block=True, findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(hanging), clock)
    sampler.start()
    assert entered.wait(PATIENCE_SECONDS)

    fresh, _ = sampler.gather()
    clock.now += 10.0
    stale, statuses = sampler.gather()
    release.set()
    sampler.stop()

    assert fresh.pools[0].used_bytes == GIB
    assert stale.pools[0].used_bytes is Absent.STALE
    assert status_of(statuses, "slow").state == "stalled"
    assert status_of(statuses, "slow").error == "no answer for 10 s"
    assert status_of(statuses, "slow").errors == {"deadline": 1}


def test_a_slow_collector_is_asked_in_its_own_period() -> None:
    """What changes slowly is read rarely; its last answer stands meanwhile."""
    clock = FakeClock()
    slow = FakeCollector("slow", period_seconds=5.0, findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler(enlist(slow), clock)

    for _ in range(11):
        findings, _ = sampler.gather()
        clock.now += 1.0

    assert slow.asked == 3
    assert findings.pools[0].used_bytes == GIB


class Hurried(FakeCollector):
    """May be asked every 20 ms near the edge, else once in ten minutes. Says when it was asked."""

    hurried_seconds = 0.02

    def __init__(self, name: str = "hurried", took: float = 0.0) -> None:
        super().__init__(name, period_seconds=600.0, may_block=True)
        self.took = took
        self.again = threading.Event()

    def collect(self) -> Findings:
        if self.asked >= 2:
            self.again.set()
        threading.Event().wait(self.took)
        return super().collect()


def test_near_the_edge_a_collector_is_asked_sooner_at_once() -> None:
    """One in the middle of its pause of ten minutes is asked again right away, and again; calm gives it rest."""
    eager, patient = Hurried(), FakeCollector("patient", period_seconds=600.0, may_block=True)
    sampler = Sampler(enlist(eager, patient), SystemClock())
    sampler.start()
    sampler.wait_for_first(5.0)
    before = eager.asked

    sampler.hurry(True)
    came = eager.again.wait(5.0)
    sampler.hurry(False)
    threading.Event().wait(0.1)  # one that is under way comes to its end
    after = eager.asked
    threading.Event().wait(0.2)
    sampler.stop()

    assert (before, came) == (1, True)
    assert eager.asked == after
    assert patient.asked == 1


def test_a_slow_collector_is_not_hurried_beyond_its_budget() -> None:
    """What takes 50 ms is asked every 15 s at most, however near the edge: 0.3 % of a core."""
    slow = Hurried(took=0.05)
    sampler = Sampler(enlist(slow), SystemClock())
    sampler.start()
    sampler.wait_for_first(5.0)

    sampler.hurry(True)
    came = slow.again.wait(0.3)
    left = sampler.runners[0].seconds_until_due()
    sampler.stop()

    assert not came
    assert slow.asked == 1
    assert left > 10.0


class Unequal(dict[str, str]):
    """There is no memory to compare it with anything, for so many times."""

    left = 1

    def __eq__(self, other: object) -> bool:
        if self.left:
            self.left -= 1
            raise MemoryError
        return super().__eq__(other)

    __hash__ = None


def test_a_collector_outlives_what_could_not_be_noted() -> None:
    """Memory may be too short to publish what a collector found; its thread asks again a second later."""
    collector = FakeCollector("driver", 0.01, may_block=True, findings=Findings(container_names=Unequal()))
    sampler = Sampler(enlist(collector), SystemClock())
    sampler.start()
    try:
        wait_until(lambda: sampler.runners[0].slot.state == "ok")
        asked = collector.asked
        wait_until(lambda: collector.asked > asked)
    finally:
        sampler.stop()
