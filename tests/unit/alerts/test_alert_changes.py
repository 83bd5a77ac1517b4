"""Alerts that change while they fire, or whose source stops answering: new reasons, held ones, returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from msgspec.structs import replace

from memwatch.core.findings import stale_pool
from memwatch.core.silences import Silence
from memwatch.core.snapshot import CollectorState, CollectorStatus, Level, Pressure, Reason, Snapshot
from memwatch_monitor.alert_states import describe_alert
from memwatch_monitor.alerts.notification import Key, Notification, describe_news
from memwatch_monitor.alerts.rules import (
    EVENTS,
    OF_MEMORY,
    STARTING_SECONDS,
    AlertRules,
    Condition,
    collectors_of,
    evaluate_rules,
    source_of,
    source_word,
)
from memwatch_monitor.alerts.state import CHANGE_SECONDS, AlertState, step
from memwatch_web.pages.incident_page import first_clause
from support.generated.choices import RandomChoices
from support.generated.machine import draw_machine, tick
from support.sample_snapshots import calm_workstation, critical_gb10

RULES = AlertRules()
KILL = Reason("oom_kill", "the kernel killed python3", Level.CRITICAL)
USED = Reason("util", "97% used", Level.CRITICAL)
OF_RAM: Key = ("pressure.critical", "ram")


class Alerts:
    """Alerts of one process, by conditions at seconds of a virtual clock."""

    def __init__(self, rules: AlertRules = RULES) -> None:
        self.rules = rules
        self.states: Mapping[Key, AlertState] = {}
        self.silences: tuple[Silence, ...] = ()
        self.number = 0

    def tick(
        self, at: float, *conditions: Condition, collectors: Mapping[str, CollectorState] | None = None
    ) -> list[Notification]:
        self.number += 1
        name = f"msg_{self.number}"
        self.states, sent = step(
            self.states, conditions, at, 1e9 + at, self.rules, lambda: name, self.silences, collectors or {}
        )
        return list(sent)

    def see(self, at: float, snapshot: Snapshot) -> list[Notification]:
        states = {one.name: one.state for one in snapshot.collectors}
        return self.tick(at, *evaluate_rules(snapshot, (), self.rules), collectors=states)


def critical(*reasons: Reason, wait: float = 0.0) -> Condition:
    return Condition(*OF_RAM, True, wait, urgent=True, level=Level.CRITICAL, reasons=reasons, source="meminfo")


def clear() -> Condition:
    return Condition(*OF_RAM, False, level=Level.LOW)


def test_real_critical_after_a_kill_is_notified_as_well() -> None:
    """The alert of the kill is kept firing; the reason that comes later is new, and the key is the same."""
    alerts = Alerts()
    (first,) = alerts.tick(0.0, critical(KILL))
    assert alerts.tick(10.0, critical(KILL)) == []

    (second,) = alerts.tick(40.0, critical(USED, KILL))

    assert (second.rule, second.target, second.alert) == (first.rule, first.target, first.alert)
    assert (second.firing, second.repeated, second.new_reasons) == (True, False, (USED,))
    assert second.started_unix == first.started_unix
    assert alerts.tick(80.0, critical(USED, KILL)) == []


def test_reason_that_gets_stronger_is_new_and_a_weaker_one_is_not() -> None:
    """82 % beside a kill is told with it. It asks for critical only when it is 97 %."""
    alerts = Alerts()
    weak, waits = Reason("util", "82% used", Level.HIGH), Reason("psi", "some tasks wait", Level.MEDIUM)
    alerts.tick(0.0, critical(weak, KILL))

    assert alerts.tick(40.0, critical(weak, KILL, waits)) == []
    (found,) = alerts.tick(80.0, critical(USED, KILL))
    assert found.new_reasons == (USED,)


def test_rise_to_critical_is_news_for_an_alert_about_high() -> None:
    alerts = Alerts()
    high = Condition("pressure.high", "ram", True, level=Level.HIGH, reasons=(Reason("util", "85%", Level.HIGH),))
    alerts.tick(0.0, high)

    (found,) = alerts.tick(60.0, replace(high, level=Level.CRITICAL, reasons=(USED,)))

    assert (found.event, found.level, found.new_reasons) == ("pressure.high", Level.CRITICAL, (USED,))


def test_reasons_of_one_collapse_are_notified_together() -> None:
    """Five signals within seconds: one notification at once, and one with all others."""
    alerts = Alerts()
    signals = [Reason(name, f"{name} is critical", Level.CRITICAL) for name in ("ttf", "util", "floor", "psi_full")]
    sent = []
    for second in range(120):
        sent += [(second, one) for one in alerts.tick(second, critical(*signals[: 1 + second // 2]))]

    assert [second for second, _ in sent] == [0, CHANGE_SECONDS]
    assert sent[1][1].new_reasons == tuple(signals[1:])


def test_reason_that_comes_and_goes_is_notified_once() -> None:
    alerts = Alerts()
    alerts.tick(0.0, critical(KILL))
    sent = []
    for second in range(1, 3600):
        reasons = (USED, KILL) if second % 100 < 50 else (KILL,)
        sent += alerts.tick(second, critical(*reasons))

    assert [one.new_reasons for one in sent] == [(USED,)]


def test_new_reason_within_a_silence_is_notified_when_it_ends() -> None:
    alerts = Alerts()
    alerts.tick(0.0, critical(KILL))
    alerts.silences = (Silence("sil", 0.0, 0.0, 1e9),)
    assert alerts.tick(60.0, critical(USED)) == []
    alerts.silences = ()

    (found,) = alerts.tick(90.0, critical(KILL))

    assert found.new_reasons == (replace(USED, text="30 s ago: 97% used"),)


def test_reminder_while_the_condition_is_over_leaves_a_new_reason_for_later() -> None:
    """The reason came and went within the 30 s; the alert fires on, and is critical again after its reminder."""
    alerts = Alerts(replace(RULES, repeat_seconds=40.0, resolve_seconds=600.0))
    alerts.tick(0.0, critical(KILL))
    alerts.tick(20.0, critical(USED, KILL))
    alerts.tick(22.0, critical(KILL))
    for second in (25.0, 35.0):
        assert alerts.tick(second, clear()) == []
    (reminder,) = alerts.tick(41.0, clear())

    (found,) = alerts.tick(75.0, critical(KILL))

    assert (reminder.repeated, reminder.new_reasons) == (True, ())
    assert found.new_reasons == (replace(USED, text="55 s ago: 97% used"),)


def ticks_of(alerts: Alerts, first: int, last: int, snapshot: Snapshot) -> Iterator[tuple[int, Notification]]:
    for second in range(first, last):
        yield from ((second, one) for one in alerts.see(second, snapshot))


def machine(level: Level, state: CollectorState = "ok") -> Snapshot:
    """Return a machine whose System RAM has this level, or is not read."""
    calm = calm_workstation()
    ram, error = replace(calm.pools[0], source="meminfo:MemAvailable"), None if state == "ok" else "no response"
    verdict = Pressure("ram", level, level, 0.97, (Reason("util", "97% used", level),) if level else ())
    return replace(
        calm,
        pools=(ram if state == "ok" else stale_pool(ram),),
        pressure=(verdict,) if state == "ok" else (),
        collectors=(CollectorStatus("meminfo", state, error=error),),
    )


def test_pending_alert_fires_when_its_source_stops_answering() -> None:
    alerts = Alerts()
    ticks = [*ticks_of(alerts, 0, 3, machine(Level.CRITICAL))]

    ticks += ticks_of(alerts, 3, 20, machine(Level.CRITICAL, "stalled"))

    ((second, found),) = ticks
    assert (second, found.event, found.level) == (5, "pressure.critical", Level.CRITICAL)
    assert [why.text for why in found.reasons] == ["97% used", "critical before meminfo stopped answering"]


def test_pending_alert_waits_for_a_collector_that_starts() -> None:
    """A restart meanwhile: the collector gets 30 s. One that does not answer then hangs."""
    alerts = Alerts()
    sent = [*ticks_of(alerts, 0, 3, machine(Level.CRITICAL))]

    sent += ticks_of(alerts, 3, 100, machine(Level.CRITICAL, "starting"))

    assert next((second, one.rule) for second, one in sent) == (2 + STARTING_SECONDS, "pressure.critical")


def test_pending_alert_of_a_target_that_is_gone_does_not_fire() -> None:
    """A container ends while its limit is reached. Its collector answers, and fails an hour later."""
    alerts = Alerts()
    gone = replace(machine(Level.LOW), pools=(), pressure=())
    sent = [*ticks_of(alerts, 0, 3, machine(Level.CRITICAL)), *ticks_of(alerts, 3, 100, gone)]

    sent += ticks_of(alerts, 3700, 3800, machine(Level.LOW, "failing"))

    assert sent == []


def test_firing_alert_does_not_resolve_while_its_source_does_not_answer() -> None:
    """Two hours without a reading are no recovery, and the alert is repeated."""
    alerts = Alerts(replace(RULES, repeat_seconds=3600.0, events=frozenset({"pressure.critical"})))
    sent = [*ticks_of(alerts, 0, 10, machine(Level.CRITICAL))]

    sent += ticks_of(alerts, 10, 7300, machine(Level.CRITICAL, "stalled"))

    assert [(second, one.firing, one.repeated) for second, one in sent] == [
        (5, True, False),
        (3605, True, True),
        (7205, True, True),
    ]


def test_alert_held_by_a_silence_is_sent_although_its_source_hangs_when_it_ends() -> None:
    alerts = Alerts()
    alerts.silences = (Silence("sil", 0.0, 0.0, 1e9),)
    assert [*ticks_of(alerts, 0, 10, machine(Level.CRITICAL))] == []
    alerts.silences = ()

    sent = [*ticks_of(alerts, 10, 12, machine(Level.CRITICAL, "stalled"))]

    assert [(second, one.event) for second, one in sent] == [(10, "pressure.critical")]


@pytest.mark.parametrize(("level", "is_told"), [(Level.MEDIUM, False), (Level.HIGH, True), (Level.CRITICAL, True)])
def test_collector_that_fails_while_its_memory_was_high_is_an_alert_by_default(level: Level, is_told: bool) -> None:
    alerts = Alerts()
    [*ticks_of(alerts, 0, 100, machine(level))]

    sent = [*ticks_of(alerts, 100, 200, machine(level, "stalled"))]
    sent += ticks_of(alerts, 200, 400, machine(Level.LOW))

    found = [(second, one) for second, one in sent if one.rule == "collector.failed"]
    assert [(second, one.event) for second, one in found] == (
        [(130, "collector.failed"), (260, "collector.resolved")] if is_told else []
    )
    for _, one in found[:1]:
        text = "memory was high before meminfo stopped answering: no response"
        assert ([why.text for why in one.reasons], one.target, one.level) == ([text], "meminfo", None)


def test_collector_that_never_answered_is_not_said_to_have_failed_while_memory_was_high() -> None:
    alerts = Alerts()

    assert [*ticks_of(alerts, 0, 200, machine(Level.HIGH, "failing"))] == []


def test_alert_that_returns_soon_has_to_be_clear_for_longer() -> None:
    """Memory is critical for a second every 200 s, and cannot wait: the alert fires twice, and then stays."""
    alerts = Alerts(replace(RULES, events=frozenset({"pressure.critical"})))
    fired = []
    for second in range(4000):
        sent = alerts.tick(second, critical(KILL) if second % 200 == 0 else clear())
        fired += [second for one in sent if one.firing]

    assert fired == [0, 200]


def events_of(number: int, at: int) -> Condition:
    reasons = tuple(Reason("oom_kill", f"kill {at} {one}") for one in range(number))
    return Condition("kernel.oom_kill", "kernel", bool(number), reasons=reasons, fact=True)


def test_events_that_a_notification_leaves_out_are_counted() -> None:
    """A kill loop kills 30 programs while notifications wait."""
    alerts = Alerts()
    alerts.tick(0.0, events_of(1, 0))
    for second in range(10, 20):
        assert alerts.tick(second, events_of(3, second)) == []

    (found,) = alerts.tick(300.0, events_of(0, 300))

    assert found.reasons[0].text == "30 more events in the last 5 min; 15 earlier events are left out"
    assert [why.text for why in found.reasons[1:]] == [
        f"kill {at} {one}" for at in range(15, 20) for one in range(3)
    ]


def test_kill_loop_is_notified_at_growing_intervals_and_its_last_count_when_it_ends() -> None:
    """A kill a minute for three hours: four notifications in the first hour, then two an hour. None is lost."""
    alerts, sent = Alerts(), list[tuple[int, str]]()
    for minute in range(260):
        for one in alerts.tick(60.0 * minute, events_of(int(minute < 180), minute)):
            sent.append((minute, one.reasons[0].text))

    assert sent == [
        (0, "kill 0 0"),
        (5, "5 more events in the last 5 min"),
        (15, "10 more events in the last 10 min"),
        (35, "20 more events in the last 20 min; 5 earlier events are left out"),
        *((at, "30 more events in the last 30 min; 15 earlier events are left out") for at in (65, 95, 125, 155)),
        (185, "24 more events in the last 30 min; 9 earlier events are left out"),
    ]


def test_kills_that_wait_are_notified_without_their_target() -> None:
    """The limit of memwatchd's own cgroup was removed meanwhile."""
    alerts = Alerts(replace(RULES, events=frozenset(EVENTS)))
    kill = replace(events_of(1, 0), target="cgroup", pending_seconds=3.0)
    sent = [(at, one.target) for at in range(400) for one in alerts.tick(at, *(kill,) * (at in (0, 10)))]

    assert sent == [(1, "cgroup"), (301, "cgroup")]


def test_new_reasons_have_the_words_of_their_notification() -> None:
    """Ten seconds after a kill an alert said "now also: full in about 9 s", of a machine with 41 GiB available."""
    alerts = Alerts()
    alerts.tick(0.0, critical(USED))

    def reasons(second: int) -> tuple[Reason, ...]:
        age = "" if second <= 10 else f"{second - 10} s ago: "
        killed = Reason("oom_kill", f"{age}OOM killer: killed train.py (51210)", Level.CRITICAL)
        full = Reason("ttf", f"{age}full in about {max(4, 12 - second)} s at the current rate", Level.CRITICAL)
        return (USED, *([killed] if second >= 10 else []), full)

    sent = [one for second in range(1, 40) for one in alerts.tick(float(second), critical(*reasons(second)))]

    assert [describe_news(one.new_reasons) for one in sent] == [", now also: OOM killer: killed train.py (51210)"]


def test_usage_that_has_fallen_is_no_new_reason() -> None:
    """After a kill an alert said "now also: 11.2% used; calm for 16 s", of a level that stays until use is calm."""
    alerts = Alerts()
    stalled = Reason("stalls", "all tasks stalled on memory for 21% of the last 10 s", Level.CRITICAL)
    fallen = Reason("util", "11.2% used; calm for 16 s", Level.CRITICAL)
    killed = Reason("oom_kill", "OOM killer: killed train.py (51210)", Level.CRITICAL)
    alerts.tick(0.0, critical(stalled))

    sent = [one for second in range(1, 40) for one in alerts.tick(float(second), critical(stalled, fallen, killed))]

    assert [describe_news(one.new_reasons) for one in sent] == [", now also: OOM killer: killed train.py (51210)"]


def test_news_of_a_collapse_begin_with_the_kill_and_have_ages() -> None:
    """16 s after a kill an alert said "now also: 98.7% used; OOM killer: …", of a machine with 11.2% used."""
    alerts = Alerts()
    full = Reason("ttf", "full in about 9 s at the current rate", Level.CRITICAL)
    alerts.tick(0.0, critical(full))

    def reasons(second: int) -> tuple[Reason, ...]:
        if second <= 14:
            past = f"{second - 4} s ago: " if second > 4 else ""
            used = Reason(
                "util", f"{min(98.7, 90 + second):.1f}% used", Level.CRITICAL if second > 5 else Level.HIGH
            )
            return (used, replace(full, text=f"{past}full in about 2 s at the current rate"))
        killed = Reason("oom_kill", f"{second - 15} s ago: OOM killer: killed train.py (51210)", Level.CRITICAL)
        if second == 15:
            killed = replace(killed, text="OOM killer: killed train.py (51210)")
        return (Reason("util", "11.2% used"), killed)

    sent = [one for second in range(1, 40) for one in alerts.tick(float(second), critical(*reasons(second)))]

    assert [describe_news(one.new_reasons) for one in sent] == [", now also: OOM killer: killed train.py (51210)"]
    (entry,) = [describe_alert(one, "System RAM") for one in sent]
    assert "OOM killer: killed train.py (51210)" in first_clause(entry)


def test_reasons_of_before_are_those_that_made_the_level() -> None:
    """An alert that had cleared said "before: 66.0% used; OOM killer: killed train.py": use after the kill."""
    alerts = Alerts()
    killed = Reason("oom_kill", "58 s ago: OOM killer: killed train.py (51210)", Level.CRITICAL)
    alerts.tick(0.0, critical(Reason("util", "66.0% used", Level.MEDIUM), killed))

    alerts.tick(1.0, clear())

    assert [one.text for one in alerts.states[OF_RAM].reasons] == ["OOM killer: killed train.py (51210)"]


def test_alerts_of_a_rule_that_a_reload_turns_off_are_dropped() -> None:
    """They were listed as firing for an hour, and then ended as targets that "have not been seen" for that time."""
    alerts = Alerts()
    critical = Condition("pressure.critical", "ram", True, level=Level.CRITICAL)
    assert [one.firing for one in alerts.tick(0.0, critical)] == [True]

    alerts.rules = replace(RULES, events=RULES.events - {"pressure.critical"})
    assert [one for at in range(1, 4000) for one in alerts.tick(float(at))] == []
    assert alerts.states == {}

    alerts.rules = RULES
    assert [one.firing for one in alerts.tick(4000.0, critical)] == [True]


def test_events_an_hour_after_the_last_notification_begin_anew() -> None:
    alerts = Alerts()
    for minute in range(60):
        alerts.tick(60.0 * minute, events_of(1, minute))
    for minute in range(60, 66):
        alerts.tick(60.0 * minute, events_of(0, minute))
    (alone,) = alerts.tick(60.0 * 126, events_of(1, 126))
    waiting = alerts.tick(60.0 * 127, events_of(1, 127))
    (again,) = alerts.tick(60.0 * 131, events_of(0, 131))

    assert [why.text for why in alone.reasons] == ["kill 126 0"]
    assert waiting == []
    assert again.reasons[0].text == "1 more event in the last 5 min"


def test_every_figure_of_a_generated_machine_has_collectors_that_may_hide_it() -> None:
    """The sources of pools and limits name collectors of `OF_MEMORY`."""
    sources: set[str] = set()
    for seed in range(60):
        _, snapshot = tick(draw_machine(RandomChoices(seed)))
        sources |= {source_word(pool.source) for pool in snapshot.pools}
        sources |= {source_word(share.source) for share in snapshot.shares}

    assert {source for source in sources if not OF_MEMORY.issuperset(collectors_of(source))} == set()
    assert {"meminfo", "nvml", "sysfs", "fdinfo"} <= sources


@pytest.mark.parametrize(("target", "source"), [("ram", "meminfo"), ("cuda0", "nvml"), ("gpu7", "")])
def test_source_of_a_target_is_that_of_its_pool_or_share(target: str, source: str) -> None:
    assert source_of(target, critical_gb10()) == source
