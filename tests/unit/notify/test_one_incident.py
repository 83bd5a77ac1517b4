"""One incident, one notification: stronger alerts inhibit weaker ones for receivers of both, by a virtual clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.linux.cgroup_kills import CgroupKill, CgroupKills
from memwatch.core.model import Quality, Share, ShareKind
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Kernel
from memwatch_monitor.alerts.rules import AlertRules
from memwatch_monitor.alerts.state import AlertState
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Outbox
from memwatch_monitor.notify.queue import Kind
from memwatch_monitor.notify.receiver import Receiver, Subscription
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.generated.choices import RandomChoices
from support.monitors import alerts, create_monitor, listen
from support.webhook_samples import webhook_channel

# Levels change in the first seconds of a phase. Afterwards, ticks are further apart: each takes 0.7 ms.
CHANGING_SECONDS, QUIET_STEP = 10.0, 10.0
CALM, HIGH, CRITICAL = 16 * GIB, 54 * GIB, 62 * GIB
CRITICAL_RAM, HIGH_RAM = ("pressure.critical", "ram"), ("pressure.high", "ram")
PRESSURE = frozenset({"pressure.medium", "pressure.high", "pressure.critical", "pressure.forecast"})
ALL = PRESSURE | {"kernel.oom_kill"}


class Got(NamedTuple):
    """A delivered message: its event, its target, and its severity."""

    event: str
    target: str
    severity: str


class Bench:
    """A monitor with notifications, whose receivers accept every message at once."""

    def __init__(self, *subscriptions: Subscription, step: float = 1.0, quiet_step: float = QUIET_STEP) -> None:
        self._step, self._quiet_step = step, quiet_step
        self._clock, self._memory = FakeClock(), FakeCollector("meminfo")
        self._kills: tuple[OomKill, ...] = ()
        self._counted = 3
        self.own_kills, self._scanned = 0, tuple[CgroupKill, ...]()
        self.own_path = "/"
        self.shares: tuple[Share, ...] = ()
        sampler = Sampler([CollectorEntry("meminfo", lambda: self._memory, False)], self._clock)
        rules = MonitorRules(alerts=AlertRules(events=frozenset().union(*(one.events for one in subscriptions))))
        self.monitor = create_monitor(sampler, self._clock, rules, Identity("spark-1", "boot-1"))
        self.manager = self.restart(subscriptions)
        listen(self.monitor, lambda snapshot, notices: self.manager.deliver(snapshot, notices))
        self.got: list[list[Got]] = [[] for _ in subscriptions]
        self.open: list[dict[tuple[str, str], bool]] = [{} for _ in subscriptions]
        self.is_scanned = True

    def restart(self, subscriptions: Sequence[Subscription], outbox: Outbox | None = None) -> NotificationManager:
        """Use these receivers from now on, as after a restart. Their queues are those of `outbox`."""
        self.outbox = outbox or Outbox(None)
        channel = webhook_channel("http://127.0.0.1:1/")
        receivers = [
            Receiver(str(number), channel, self.outbox.queue(str(number)), one)
            for number, one in enumerate(subscriptions)
        ]
        self.manager = NotificationManager(self.monitor, self.outbox, receivers)
        return self.manager

    def count_kill(self) -> None:
        """Count a kill that no log names."""
        self._counted += 1

    def scan_own_kill(self) -> None:
        """Find a counted kill at the limit of the own cgroup, whose level is not read yet."""
        self.count_kill()
        self._scanned = (*self._scanned, CgroupKill(len(self._scanned) + 1, 1, "/", GIB, is_own=True))

    def run(self, used: int, seconds: float = 1, kill: OomKill | None = None) -> None:
        """Tick until this many seconds have passed. `kill`: a kill before the first tick."""
        if kill is not None:
            self._kills, self._counted = (*self._kills, kill), self._counted + 1
        begin = self._clock.now
        while (passed := self._clock.now - begin) < seconds:
            self._memory.findings = Findings(
                pools=(ram(used),),
                kernel=Kernel(oom_kills_total=self._counted),
                kernel_log=KernelLog(kills=self._kills),
                shares=self.shares,
                cgroup_oom_kills_total=self.own_kills if self.shares else None,
                cgroup_kills=CgroupKills(self._counted, len(self._scanned), self._scanned, own=self.own_path)
                if self.is_scanned
                else None,
            )
            self.monitor.tick()
            self._deliver()
            self._clock.now += self._quiet_step if passed >= CHANGING_SECONDS else self._step

    def is_open(self, key: tuple[str, str], receiver: int = 0) -> bool:
        """Return True if a receiver got this alert, and not its end. Fails if it got one of them twice."""
        return self.open[receiver].get(key, False)

    def silence(self, event: str, seconds: float) -> None:
        now = self.monitor.moment()
        made = Silence("sil_1", now.wall + seconds, now.wall, now.boottime + seconds, event)
        self.monitor.publisher.use_silences((made,), self.monitor.moment())

    def _deliver(self) -> None:
        for receiver, got, opened in zip(self.manager.receivers, self.got, self.open, strict=True):
            queue = receiver.queue.queue
            while message := queue.first_due(float("inf")):
                body = json.loads(message.body)
                got.append(Got(body["event"], body["target"], body["severity"]))
                queue.mark_delivered(message)
                if message.kind in (Kind.FIRING, Kind.RESOLVED):
                    rule, _, target = message.alert.partition(" ")
                    is_open = opened.get((rule, target), False)
                    assert is_open is (message.kind is Kind.RESOLVED or message.changed)
                    opened[rule, target] = message.firing


def kill(number: int, scope: Literal["machine", "cgroup"] = "machine") -> OomKill:
    cgroup = "/docker/1f6b" if scope == "cgroup" else ""
    return OomKill(number, 4000 + number, "train", 8 * GIB, scope, cgroup=cgroup)


def events(got: Sequence[Got]) -> list[str]:
    return [one.event for one in got]


def test_kill_of_the_machine_gives_one_notification_and_its_end() -> None:
    """Without an earlier level: the kill makes room, and the machine looks healthy one second later."""
    bench = Bench(Subscription(ALL))
    bench.run(CALM, 5)
    bench.run(CALM, 400, kill(1))

    assert bench.got[0] == [
        Got("pressure.critical", "ram", "critical"),
        Got("pressure.resolved", "ram", "critical"),
    ]


def test_kill_while_memory_is_critical_is_a_new_reason_of_the_same_alert() -> None:
    """It is told once, however many follow, and there is no second alert."""
    bench = Bench(Subscription(frozenset({"pressure.critical", "kernel.oom_kill"})))
    bench.run(CALM, 5)
    bench.run(CRITICAL, 30)
    bench.run(CRITICAL, 5, kill(1))
    bench.run(CRITICAL, 5, kill(2))
    bench.run(CALM, 400)

    assert events(bench.got[0]) == ["pressure.critical", "pressure.critical", "pressure.resolved"]


def test_receiver_of_kills_alone_gets_them() -> None:
    """By event, and by target: `kernel` selects all kills, as it did before, and `ram` those of the machine."""
    only = frozenset({"kernel.oom_kill"})
    targets = (frozenset[str](), frozenset({"kernel"}), frozenset({"ram"}), frozenset({"gpu0"}))
    bench = Bench(Subscription(ALL), *(Subscription(only, one) for one in targets))
    bench.run(CALM, 5)
    bench.run(CALM, 10, kill(1))
    bench.run(CALM, 400, kill(2, "cgroup"))

    machine, cgroup = (Got("kernel.oom_kill", target, "warning") for target in ("ram", "kernel"))
    assert bench.got[1:] == [[machine, cgroup], [machine, cgroup], [machine], []]
    assert bench.got[0] == [
        Got("pressure.critical", "ram", "critical"),
        cgroup,
        Got("pressure.resolved", "ram", "critical"),
    ]


def test_kill_at_a_limit_is_notified_while_memory_is_critical() -> None:
    """It is about the cgroup: an alert about System RAM says nothing of it."""
    bench = Bench(Subscription(ALL))
    bench.run(CALM, 5)
    bench.run(CRITICAL, 30)
    bench.run(CRITICAL, 5, kill(1, "cgroup"))

    assert bench.got[0][-1] == Got("kernel.oom_kill", "kernel", "warning")


@pytest.mark.parametrize("is_logged", [True, False])
def test_kills_at_a_limit_once_a_minute_for_an_hour_are_never_critical(is_logged: bool) -> None:
    """Nor do they raise a level. The warnings are grouped, at growing intervals, and the last count is reported."""
    bench = Bench(Subscription(ALL), step=10.0)
    bench.run(CALM, 5)
    for number in range(60):
        if is_logged:
            bench.run(CALM, 60, kill(number + 1, "cgroup"))
        else:
            bench.count_kill()
            bench.run(CALM, 60)

    assert {one.severity for one in bench.got[0]} == {"warning"}
    assert set(events(bench.got[0])) == {"kernel.oom_kill"}
    assert len(bench.got[0]) == 4
    bench.run(CALM, 3600)
    assert len(bench.got[0]) == 5


OWN = Share(
    "cgroup", ShareKind.CGROUP, "Container limit", "ram", GIB // 2, "test", Quality.MEASURED, limit_bytes=GIB
)


@pytest.mark.parametrize("known_by", ["name", "scan", "own counter"])
@pytest.mark.parametrize("late", [0, 1], ids=["together", "limit read later"])
def test_kill_at_the_limit_of_the_own_cgroup_is_one_alert(known_by: str, late: int) -> None:
    """Its limit is a target with a level, as System RAM is. A receiver of kills alone gets the kill.

    The counter of the own cgroup is all there is without the log and without the collector `cgroup_kills`.
    """
    bench = Bench(Subscription(ALL), Subscription(frozenset({"kernel.oom_kill"})))
    bench.shares = (OWN,)
    bench.is_scanned = known_by != "own counter"
    bench.run(CALM, 5)
    if known_by == "own counter":
        bench.count_kill()
        bench.run(CALM, late)
        bench.own_kills += 1
    elif known_by == "name":
        bench.own_kills += 1
        bench.run(CALM, 1 + late)
        bench.run(CALM, 1, kill(1, "cgroup"))
    else:
        bench.scan_own_kill()
        bench.run(CALM, 1 + late)
        bench.own_kills += 1
    bench.run(CALM, 400)

    assert bench.got == [
        [Got("pressure.critical", "cgroup", "critical"), Got("pressure.resolved", "cgroup", "critical")],
        [Got("kernel.oom_kill", "cgroup", "warning")],
    ]


KILL = Got("kernel.oom_kill", "cgroup", "warning")
LEVEL = [Got("pressure.critical", "cgroup", "critical"), Got("pressure.resolved", "cgroup", "critical")]


@pytest.mark.parametrize(("late", "expected"), [(0, LEVEL), (2, LEVEL), (3, [KILL, *LEVEL])])
def test_kill_waits_three_seconds_for_the_level_of_the_own_limit(late: int, expected: list[Got]) -> None:
    """The log names the cgroup, so the kill is of the limit either way. A later level is a second message."""
    bench = Bench(Subscription(ALL), Subscription(frozenset({"kernel.oom_kill"})))
    bench.shares, bench.own_path = (OWN,), "/docker/1f6b"
    bench.run(CALM, 5)
    bench.run(CALM, 1 + late, kill(1, "cgroup"))
    bench.own_kills += 1
    bench.run(CALM, 400)

    assert bench.got == [expected, [KILL]]


def test_kills_in_other_cgroups_are_notified_beside_those_of_the_own() -> None:
    """Two groups are named at once: the counter does not tell which one is the own."""
    bench = Bench(Subscription(ALL))
    bench.shares = (OWN,)
    bench.run(CALM, 5)
    bench.own_kills += 1
    bench.run(CALM, 0, kill(1, "cgroup"))
    bench.run(CALM, 1, replace(kill(2, "cgroup"), cgroup="/docker/2222"))
    bench.run(CALM, 10)
    bench.run(CALM, 400, replace(kill(3, "cgroup"), cgroup="/docker/3333"))

    kills = [one for one in bench.got[0] if one.event == "kernel.oom_kill"]
    assert kills == [Got("kernel.oom_kill", "kernel", "warning")] * 2


def test_critical_leaves_out_what_high_would_say() -> None:
    """The memory fills in one second, and is free again in one."""
    bench = Bench(Subscription(PRESSURE), Subscription(frozenset({"pressure.high"})))
    bench.run(CALM, 5)
    bench.run(CRITICAL, 60)
    bench.run(CALM, 600)

    assert events(bench.got[0]) == ["pressure.critical", "pressure.resolved"]
    assert events(bench.got[1]) == ["pressure.high", "pressure.resolved"]


def test_high_that_stays_after_critical_is_notified() -> None:
    """Nothing that was due is lost: also not when critical is silenced, or its receiver no longer gets it."""
    both = Subscription(frozenset({"pressure.high", "pressure.critical"}))
    bench = Bench(both)
    bench.run(CALM, 5)
    bench.run(CRITICAL, 60)
    bench.run(HIGH, 900)
    bench.run(CALM, 600)

    assert events(bench.got[0]) == ["pressure.critical", "pressure.resolved", "pressure.high", "pressure.resolved"]


def test_high_is_notified_while_critical_is_silenced() -> None:
    bench = Bench(Subscription(frozenset({"pressure.high", "pressure.critical"})))
    bench.silence("pressure.critical", 3600.0)
    bench.run(CRITICAL, 60)

    assert events(bench.got[0]) == ["pressure.high"]


def test_high_before_critical_is_a_weaker_alert_that_came_first() -> None:
    """Both resolve: what was sent ends."""
    bench = Bench(Subscription(frozenset({"pressure.high", "pressure.critical"})))
    bench.run(HIGH, 60)
    bench.run(CRITICAL, 60)
    bench.run(CALM, 600)

    assert events(bench.got[0])[:2] == ["pressure.high", "pressure.critical"]
    assert events(bench.got[0])[2:] == ["pressure.resolved", "pressure.resolved"]


def test_alert_that_was_left_out_has_no_end_after_a_restart() -> None:
    subscriptions = (Subscription(frozenset({"pressure.high", "pressure.critical"})),)
    bench = Bench(*subscriptions)
    bench.run(CRITICAL, 60)
    bench.restart(subscriptions, bench.outbox)
    bench.run(CRITICAL, 60)
    bench.run(CALM, 600)

    assert events(bench.got[0]) == ["pressure.critical", "pressure.resolved"]


def test_end_of_an_alert_that_was_left_out_is_not_sent_at_a_restart() -> None:
    """High resolves at the first tick after the restart, at one of these times; critical has resolved before."""
    subscriptions = (Subscription(frozenset({"pressure.high", "pressure.critical"})),)
    for seconds in range(5, 150, 5):
        bench = Bench(*subscriptions, step=5.0, quiet_step=5.0)
        bench.run(CRITICAL, 120)
        bench.run(HIGH, 60)
        bench.run(CALM, seconds)
        bench.restart(subscriptions, bench.outbox)
        bench.run(CALM, 5)
        assert bench.is_open(HIGH_RAM) is False


PHASES = st.lists(
    st.tuples(
        st.sampled_from([CALM, HIGH, CRITICAL]), st.integers(1, 20), st.sampled_from(["", "machine", "cgroup"])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=8, deadline=None)
@given(PHASES, st.booleans())
def test_no_alert_that_is_due_is_lost_and_each_one_ends_once(
    phases: list[tuple[int, int, Literal["", "machine", "cgroup"]]], is_restarted: bool
) -> None:
    """A receiver knows of critical while it fires, and of high while it fires without it."""
    subscriptions = (Subscription(ALL),)
    bench = Bench(*subscriptions, step=5.0)
    bench.run(CALM, 5)
    for number, (used, ticks, scope) in enumerate(phases, 1):
        bench.run(used, 5 * ticks, kill(number, scope) if scope else None)
        if is_restarted:
            bench.restart(subscriptions, bench.outbox)
            bench.run(used, 5)
        states = alerts(bench.monitor).states
        critical, high = (states.get(key, AlertState()) for key in (CRITICAL_RAM, HIGH_RAM))
        assert bench.is_open(CRITICAL_RAM) is critical.firing
        assert bench.is_open(HIGH_RAM) or critical.firing or not high.firing or high.since is not None
    bench.run(CALM, 900)

    opened = [rule for rule, target in (CRITICAL_RAM, HIGH_RAM) if bench.is_open((rule, target))]
    kills = [one.target for one in bench.got[0] if one.event == "kernel.oom_kill"]
    assert opened == []
    assert ("kernel" in kills) is any(scope == "cgroup" for _, _, scope in phases)
    assert "ram" not in kills


class StillReceiver(Receiver):
    """Receiver without a thread: the bench delivers its messages."""

    def start(self) -> bool:
        return True


class ChangingBench(Bench):
    """A bench whose receivers come and go by reloads."""

    def change(self, names: Iterable[str], wanted: Subscription) -> None:
        """Use the receivers of these names. One that is back has forgotten what it got before."""
        known = {one.name: one for one in self.manager.receivers}
        got = dict(zip(known, zip(self.got, self.open, strict=True), strict=True))
        channel = webhook_channel("http://127.0.0.1:1/")
        receivers = [
            known.get(name) or StillReceiver(name, channel, self.outbox.queue(name), wanted) for name in names
        ]
        self.manager.use(receivers)
        self.got = [got[one.name][0] if one.name in got else [] for one in receivers]
        self.open = [got[one.name][1] if one.name in got else {} for one in receivers]


@pytest.mark.parametrize("seed", range(16))
def test_receivers_that_come_and_go_get_each_alert_and_its_end_once(seed: int) -> None:
    """The bench fails if one gets an alert twice, or an end without its alert."""
    choices, wanted = RandomChoices(seed), Subscription(frozenset({"pressure.critical", "pressure.high"}))
    bench, names = ChangingBench(wanted, step=2.0), {"0"}
    bench.manager.receivers = ()
    bench.got, bench.open = [], []
    bench.change(sorted(names), wanted)
    bench.run(CALM, 5)
    for _ in range(choices.integer(4, 10)):
        if choices.chance(60):
            names ^= {choices.pick(("0", "1", "2"))}
            bench.change(sorted(names), wanted)
        used, seconds = choices.pick((CALM, HIGH, CRITICAL)), choices.pick((2, 8, 70, 330))
        bench.run(used, seconds)
        if used == CRITICAL and seconds == 330:
            assert all(bench.is_open(CRITICAL_RAM, number) for number in range(len(names)))
    bench.run(CALM, 700)

    assert not any(is_open for opened in bench.open for is_open in opened.values())
