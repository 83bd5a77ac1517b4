"""Test the alert state machine: one notice when a condition persists, one when it clears, none in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.model import Absent, Architecture, Device
from memwatch.core.silences import Silence, in_force
from memwatch.core.snapshot import CollectorStatus, Level, Pressure, Reason, Snapshot
from memwatch_monitor.alerts.notification import Key, Notification
from memwatch_monitor.alerts.rules import (
    EVENTS,
    LEVELS,
    AlertRules,
    Condition,
    evaluate_rules,
    is_urgent,
    possible_targets,
)
from memwatch_monitor.alerts.state import (
    AlertState,
    Transition,
    active_alerts,
    advance_fact,
    build_notification,
    step,
)
from memwatchd.wiring import build_rules
from support.generated.message_laws import complaints_about_message
from support.sample_snapshots import calm_workstation
from support.settings_sample import settings_from

RULES = AlertRules(pending_seconds=5, resolve_seconds=60, keep_firing_seconds=0, again_seconds=0, repeat_seconds=0)

LEVEL_RULES = tuple(LEVELS)


def snapshot_of(
    level: Level | None, reasons: tuple[Reason, ...] = (), seconds_to_full: float | None = None
) -> Snapshot:
    """Return a machine whose System RAM is at this level; None: its pressure is unknown."""
    if level is None:
        return replace(calm_workstation(), pressure=())
    verdict = Pressure("ram", level, level, 0.5, reasons)
    if seconds_to_full is not None:
        verdict = replace(verdict, seconds_to_full=seconds_to_full)
    return replace(calm_workstation(), pressure=(verdict,))


def notices_from(
    snapshots: Sequence[Snapshot],
    rules: AlertRules = RULES,
    events: dict[int, Event] | None = None,
    silences: Sequence[Silence] = (),
) -> list[tuple[int, Notification]]:
    """Return the notices with their second, for one snapshot a second."""
    alert_states: dict[Key, AlertState] = {}
    numbers, sent = count(1), []
    for second, snapshot in enumerate(snapshots):
        happened = [events[second]] if events and second in events else []
        conditions = evaluate_rules(snapshot, happened, rules)
        now, active = 100.0 + second, in_force(silences, 100.0 + second)
        after, notifications = step(
            alert_states, conditions, float(second), now, rules, lambda: f"msg_{next(numbers)}", active
        )
        alert_states = dict(after)
        sent += [(second, notification) for notification in notifications]
    return sent


def notices_over(levels: Sequence[Level | None], rules: AlertRules = RULES) -> list[tuple[int, Notification]]:
    """Return the notices for a trace of levels; None is a second without a reading."""
    return notices_from([snapshot_of(level) for level in levels], rules)


def timeline(sent: list[tuple[int, Notification]]) -> list[tuple[int, str]]:
    return [(second, notification.event) for second, notification in sent]


def test_critical_for_five_seconds_fires_once_and_resolves_once() -> None:
    """An administrator gets a pair of messages, each with the previous level."""
    sent = notices_over([Level.HIGH] * 3 + [Level.CRITICAL] * 100 + [Level.MEDIUM] * 100)

    assert [(second, notification.event) for second, notification in sent] == [
        (8, "pressure.critical"),
        (163, "pressure.resolved"),
    ]
    firing, resolved = (notification for _, notification in sent)
    assert (firing.previous, firing.level, firing.firing) == (Level.HIGH, Level.CRITICAL, True)
    assert (resolved.previous, resolved.level, resolved.firing) == (Level.CRITICAL, Level.MEDIUM, False)
    assert (firing.level_now, resolved.level_now) == (Level.CRITICAL, Level.MEDIUM)
    assert firing.id != resolved.id


@pytest.mark.parametrize(
    ("levels", "count"),
    [
        # Four seconds of critical pressure, again and again.
        (([Level.CRITICAL] * 4 + [Level.HIGH] * 4) * 50, 0),
        # Ten minutes of ups and downs are one alert.
        ([Level.CRITICAL] * 10 + ([Level.HIGH] * 30 + [Level.CRITICAL] * 30) * 10, 1),
        # Unknown pressure never counts as recovery.
        ([Level.CRITICAL] * 10 + [None] * 300 + [Level.CRITICAL] * 10, 1),
    ],
    ids=["short peaks", "flapping while firing", "missing readings"],
)
def test_alert_needs_its_time_and_is_resolved_by_readings_only(levels: list[Level | None], count: int) -> None:
    sent = notices_over(levels)

    assert [notification.event for _, notification in sent] == ["pressure.critical"] * count


def test_target_that_starts_critical_waits_as_long_as_others() -> None:
    """A daemon started on a full machine sends the alert after the pending time."""
    sent = notices_over([Level.CRITICAL] * 7)

    assert [(second, notification.previous) for second, notification in sent] == [(5, Level.LOW)]


@pytest.mark.parametrize("after", [Level.LOW, None], ids=["clear", "without a reading"])
def test_reasons_of_an_earlier_tick_have_no_age(after: Level | None) -> None:
    """An alert said "60 s ago" and "calm for 29 s" for the five minutes in which it stayed."""
    reasons = (
        Reason("util", "66.9% used; calm for 29 s", Level.CRITICAL),
        Reason("oom_kill", "60 s ago: OOM killer: killed a process", Level.CRITICAL),
    )
    states: Mapping[Key, AlertState] = {}
    for second, snapshot in enumerate([snapshot_of(Level.CRITICAL, reasons)] * 9 + [snapshot_of(after)] * 9):
        conditions = evaluate_rules(snapshot, (), RULES)
        states, _ = step(states, conditions, float(second), 100.0 + second, RULES, lambda: "msg_1")
        if second == 8:
            assert states["pressure.critical", "ram"].reasons == reasons

    assert states["pressure.critical", "ram"].reasons == (replace(reasons[1], text="OOM killer: killed a process"),)


def test_alert_fires_for_its_minimum_time() -> None:
    """A condition of ten seconds fires for keep_firing_seconds, here two minutes."""
    rules = replace(RULES, keep_firing_seconds=120)

    sent = notices_over([Level.CRITICAL] * 10 + [Level.LOW] * 200, rules)

    assert timeline(sent) == [(5, "pressure.critical"), (125, "pressure.resolved")]


def test_recurring_alert_is_sent_at_most_every_five_minutes() -> None:
    """Up and down every 100 seconds for half an hour sends at most six alerts; urgent ones are sent at once."""
    rules = replace(RULES, again_seconds=300, resolve_seconds=10)
    waves = ([Level.CRITICAL] * 50 + [Level.LOW] * 50) * 18

    sent = notices_over(waves, rules)

    fired = [second for second, notification in sent if notification.firing]
    assert len(fired) <= 6
    assert all(later - earlier >= 300 for earlier, later in pairwise(fired))
    urgent = [snapshot_of(level, (Reason("floor", "the last 256 MiB"),)) for level in waves[:200]]
    assert [second for second, notification in notices_from(urgent, rules) if notification.firing] == [0, 100]


def test_lasting_alert_is_repeated() -> None:
    """After four hours the alert is sent again, marked as repeated, under a new id."""
    rules = replace(RULES, repeat_seconds=14_400)

    sent = notices_over([Level.CRITICAL] * 14_410, rules)

    assert [(second, notification.repeated, notification.id) for second, notification in sent] == [
        (5, False, "msg_1"),
        (14_405, True, "msg_2"),
    ]
    assert {notification.started_unix for _, notification in sent} == {105.0}


def test_firing_alerts_are_sent_when_a_silence_ends() -> None:
    """A silence holds notices back; alerts still firing when it ends are sent then."""
    silence = Silence("sil_1", 150.0, 0.0, until_boottime=150.0, target="ram")
    trace = [snapshot_of(Level.CRITICAL)] * 100 + [snapshot_of(Level.LOW)] * 70

    sent = notices_from(trace, silences=[silence])
    resolved_in_silence = notices_from([snapshot_of(Level.CRITICAL)] * 10 + [snapshot_of(Level.LOW)] * 90,
                                   silences=[replace(silence, until_boottime=500.0)])  # fmt: skip
    elsewhere = notices_from(trace, silences=[replace(silence, target="vram0")])

    assert timeline(sent) == [(50, "pressure.critical"), (160, "pressure.resolved")]
    assert resolved_in_silence == []
    assert [second for second, _ in elsewhere] == [5, 160]


def test_standing_alerts_are_those_sent_and_not_silenced() -> None:
    """Alerts that fire and were sent: none that are silenced, pending, unsent or over."""
    sent = AlertState(firing=True, notified=True)
    alert_states = {
        ("pressure.critical", "ram"): sent,
        ("pressure.critical", "vram0"): sent,
        ("pressure.high", "ram"): AlertState(firing=True),
        ("device.lost", "gpu0"): AlertState(since=1.0),
        ("collector.failing", "nvml"): AlertState(notified_at=1.0),
    }
    silence = Silence("sil_1", 150.0, 0.0, until_boottime=150.0, target="vram0")

    in_silence, after = (
        [key for key, _ in active_alerts(alert_states, in_force([silence], boottime))]
        for boottime in (100.0, 200.0)
    )

    assert in_silence == [("pressure.critical", "ram")]
    assert after == [("pressure.critical", "ram"), ("pressure.critical", "vram0")]


def test_end_of_a_sent_alert_is_sent_during_a_silence() -> None:
    """Receivers that got an alert get its end as well."""
    silence = Silence("sil_1", 1e9, 120.0, until_boottime=1e9)
    trace = [snapshot_of(Level.CRITICAL)] * 30 + [snapshot_of(Level.LOW)] * 70
    loud = notices_from(trace[:20])

    alert_states: dict[Key, AlertState] = {}
    sent = []
    for second, snapshot in enumerate(trace):
        conditions = evaluate_rules(snapshot, (), RULES)
        silences = [silence] if second > 20 else []
        after, notifications = step(
            alert_states, conditions, float(second), 100.0 + second, RULES, lambda: "id", silences
        )
        alert_states = dict(after)
        sent += [notification.event for notification in notifications]

    assert len(loud) == 1
    assert sent == ["pressure.critical", "pressure.resolved"]


@pytest.mark.parametrize(("rule", "level"), [("pressure.high", Level.HIGH), ("pressure.medium", Level.MEDIUM)])
def test_lower_levels_are_alerts_if_enabled(rule: str, level: Level) -> None:
    """Each level is a separate alert, kept firing by worse levels."""
    rules = replace(RULES, events=frozenset({rule}))

    sent = notices_over([level] * 10 + [Level.CRITICAL] * 100 + [Level.LOW] * 70, rules)

    assert timeline(sent) == [(5, rule), (170, "pressure.resolved")]
    assert [notification.previous for _, notification in sent] == [Level.LOW, level]


@given(
    st.lists(st.tuples(st.sampled_from([*Level, None]), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(0, 90),
    st.sampled_from(LEVEL_RULES),
)
def test_message_of_a_firing_alert_never_has_a_lower_level_than_its_rule(
    runs: list[tuple[Level | None, int]], silent: int, rule: str
) -> None:
    """Also one that was held, repeated, or sent after a silence; the level now is a field beside it."""
    levels = [level for level, seconds in runs for _ in range(seconds)]
    silences = [Silence("sil_1", 100.0 + silent, 100.0, 100.0 + silent, target="ram")]
    rules = replace(RULES, events=frozenset({rule}), resolve_seconds=10, keep_firing_seconds=20, repeat_seconds=7)

    for second, one in notices_from([snapshot_of(level) for level in levels], rules, silences=silences):
        assert list(complaints_about_message(one, snapshot_of(levels[second]))) == []
        assert one.level_now == levels[second]
        if one.firing:
            assert one.level is not None
            assert one.level >= LEVELS[rule]
            assert one.has_eased == (one.level_now is not None and one.level > one.level_now)
        else:
            assert one.level == one.level_now


def test_firing_alert_whose_source_is_silent_keeps_the_level_of_its_rule() -> None:
    """As a receiver gets it that is added while there is no reading."""
    state = AlertState(firing=True, notified=True, reasons=(Reason("util", "96.2% used"),))

    one = build_notification(state, Condition("pressure.critical", "ram", True), 100.0, "msg_1")

    assert (one.level, one.level_now, one.has_eased) == (Level.CRITICAL, None, False)


@pytest.mark.parametrize(
    ("available_gib", "signals", "fires"),
    [(72, ("util",), False), (64, ("util",), False), (63, ("util",), True), (72, ("util", "psi_some"), True)],
)
def test_use_alone_is_no_alert_above_min_available(
    tmp_path: Path, available_gib: int, signals: tuple[str, ...], fires: bool
) -> None:
    """2 TiB at 96.5 %: the level stays critical without an alert."""
    settings = settings_from(tmp_path, '[pressure.targets.ram]\nmin_available = "64GiB"\n')
    rules = build_rules(settings).alerts
    critical = snapshot_of(Level.CRITICAL, tuple(Reason(signal, "because") for signal in signals))
    verdict = replace(critical.pressure[0], available_bytes=available_gib << 30)

    sent = notices_from([replace(critical, pressure=(verdict,))] * 10, rules)

    assert bool(sent) == fires


def test_alert_that_ends_above_min_available_says_so(tmp_path: Path) -> None:
    """Its level is still critical: a message about its end would contradict itself without that reason."""
    settings = settings_from(tmp_path, '[pressure.targets.ram]\nmin_available = "64GiB"\n')
    rules, critical = build_rules(settings).alerts, snapshot_of(Level.CRITICAL, (Reason("util", "96.5% used"),))
    verdicts = [replace(critical.pressure[0], available_bytes=gib << 30) for gib in (63, 72)]
    trace = [replace(critical, pressure=(one,)) for one in verdicts]

    fired, ended = [one for _, one in notices_from([trace[0]] * 10 + [trace[1]] * 200, rules)]

    assert (fired.event, ended.event) == ("pressure.critical", "pressure.resolved")
    assert [why.text for why in ended.reasons] == [
        "72.0 GiB available, at least 64.0 GiB (min_available)",
        "96.5% used",
    ]
    assert [*complaints_about_message(fired, trace[0]), *complaints_about_message(ended, trace[1])] == []


def test_forecast_is_an_alert_if_enabled() -> None:
    """Full within five minutes at the current rate, then no longer."""
    rules = replace(RULES, events=frozenset({"pressure.forecast"}))
    trace = [snapshot_of(Level.LOW, seconds_to_full=250.0)] * 10 + [snapshot_of(Level.LOW)] * 70

    assert timeline(notices_from(trace, rules)) == [(5, "pressure.forecast"), (70, "pressure.resolved")]


def test_failing_collector_and_lost_gpu_are_alerts() -> None:
    """A collector that fails for a minute and a lost GPU are sent with their reasons, and so are their ends."""
    rules = replace(RULES, events=frozenset({"collector.failing", "device.lost"}))
    gpu = Device("gpu0", "NVIDIA", "NVIDIA H100", Architecture.DISCRETE)
    well = replace(calm_workstation(), devices=(gpu,), collectors=(CollectorStatus("nvml", "ok"),))
    ill = replace(
        well,
        devices=(replace(gpu, state="lost"),),
        collectors=(CollectorStatus("nvml", "failing", error="GPU is lost"),),
    )

    sent = notices_from([well] * 5 + [ill] * 100 + [well] * 70, rules)

    assert [(second, notification.event, notification.target) for second, notification in sent] == [
        (10, "device.lost", "gpu0"),
        (65, "collector.failing", "nvml"),
        (165, "collector.resolved", "nvml"),
        (165, "device.resolved", "gpu0"),
    ]
    assert sent[0][1].reasons[0].text == "NVIDIA H100 is lost"
    assert sent[1][1].reasons[0].text == "nvml is failing: GPU is lost"
    assert {notification.level for _, notification in sent} == {None}


def test_gpu_whose_driver_was_released_is_not_lost() -> None:
    """Its state is unknown for an hour: no alert begins, and a firing one does not resolve."""
    rules = replace(RULES, events=frozenset({"device.lost"}))
    gpu = Device("gpu0", "NVIDIA", "NVIDIA H100", Architecture.DISCRETE)
    well, silent, lost = (
        replace(calm_workstation(), devices=(replace(gpu, state=state),)) for state in ("ok", "stalled", "lost")
    )

    released = notices_from([well] * 5 + [silent] * 3600 + [well] * 5, rules)
    afterwards = notices_from([well] * 5 + [lost] * 10 + [silent] * 600 + [well] * 70, rules)

    assert released == []
    assert [(second, notification.event) for second, notification in afterwards] == [
        (10, "device.lost"),
        (675, "device.resolved"),
    ]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("oom_kill", "kernel.oom_kill"),
        ("driver", "driver.error"),
        ("unclean", "daemon.unclean_restart"),
        ("guardian.acted", "guardian.acted"),
        ("guardian.would_have_acted", "guardian.would_have_acted"),
    ],
)
def test_event_is_sent_once_and_never_resolves(kind: str, rule: str) -> None:
    """An event is sent at once and has no end. Later ones are sent as well, at intervals that double."""
    rules = replace(RULES, events=frozenset({rule}), again_seconds=300)
    events = {second: Event(second, 0.0, kind, f"number {second}") for second in (3, 10, 11, 400, 500, 900)}

    sent = notices_from([calm_workstation()] * 1200, rules, events)

    assert timeline(sent) == [(3, rule), (303, rule), (903, rule)]
    texts = [[reason.text for reason in notification.reasons] for _, notification in sent]
    assert texts == [
        ["number 3"],
        ["2 more events in the last 5 min", "number 10", "number 11"],
        ["3 more events in the last 10 min", "number 400", "number 500", "number 900"],
    ]
    assert len({notification.alert for _, notification in sent}) == 3


def test_alert_keeps_firing_after_a_long_pause() -> None:
    """The daemon was paused for two hours, as in a frozen container: a bad condition has not improved since."""
    alert_states: Mapping[Key, AlertState] = {}
    sent = []
    for second in (*range(300), *range(7500, 8000)):
        conditions = evaluate_rules(snapshot_of(Level.CRITICAL), (), RULES)
        alert_states, notifications = step(
            alert_states, conditions, float(second), 100.0 + second, RULES, lambda: "msg_1"
        )
        sent += [(second, notification.event) for notification in notifications]

    assert sent == [(5, "pressure.critical")]


def test_alert_of_a_removed_target_resolves() -> None:
    """A MIG instance that was removed while full does not fire forever."""
    trace = [snapshot_of(Level.CRITICAL)] * 10 + [snapshot_of(None)] * 3700

    sent = notices_from(trace)

    assert timeline(sent) == [(5, "pressure.critical"), (9 + 3600 + 60, "pressure.resolved")]
    assert sent[1][1].reasons[0].text == "ram has not been seen for 1 h 1 min"


def test_targets_are_known_without_an_alert() -> None:
    """Each event has its own targets; all events together have each target once, memory first."""
    snapshot = snapshot_of(Level.LOW)

    assert possible_targets(snapshot, ("pressure.high",)) == ("ram",)
    assert possible_targets(snapshot, ("kernel.oom_kill",)) == ("ram", "kernel")
    assert possible_targets(snapshot)[0] == "ram"
    assert set(possible_targets(snapshot)) == {
        target for event in EVENTS for target in possible_targets(snapshot, (event,))
    }
    assert len(set(possible_targets(snapshot))) == len(possible_targets(snapshot))


def vram_at(level: Level, seconds_to_full: float | None) -> Snapshot:
    verdict = Pressure("gpu0", level, level, 0.97, (), kind="vram")
    if seconds_to_full is not None:
        verdict = replace(verdict, seconds_to_full=seconds_to_full)
    return replace(calm_workstation(), pressure=(verdict,))


@pytest.mark.parametrize(
    ("seconds_to_full", "second"),
    [(None, 60), (300.0, 60), (20.0, 5)],
    ids=["steady", "full after the pending time", "full before it"],
)
def test_gpu_that_will_be_full_before_its_pending_time_fires_early(
    seconds_to_full: float | None, second: int
) -> None:
    found = notices_from([vram_at(Level.CRITICAL, seconds_to_full)] * 70)

    assert [at for at, _ in found] == [second]


def test_gpu_load_that_stops_below_the_edge_waits_its_whole_pending_time() -> None:
    """A model server fills the GPU on purpose: the forecast ends with the load."""
    loads = [vram_at(Level.CRITICAL, 3.0)] * 4
    assert notices_from([*loads, *[vram_at(Level.CRITICAL, None)] * 40, vram_at(Level.LOW, None)]) == []


def fact(true: bool, urgent: bool = False) -> Condition:
    return Condition("oom_kill", "ram", true, urgent=urgent, reasons=(Reason("oom", "a kill"),) * true, fact=True)


def test_silenced_event_is_not_told_later() -> None:
    """It is over when the silence ends, and the time of the last notification stays."""
    muted, told = advance_fact(AlertState(notified_at=10.0), fact(True), 100.0, 1e9, RULES, silenced=True)
    later, again = advance_fact(muted, fact(False), 200.0, 1e9, RULES, silenced=False)

    assert (told, again) == (None, None)
    assert (muted.since, muted.notified_at, later) == (None, 10.0, muted)
    assert advance_fact(AlertState(), fact(True), 100.0, 1e9, RULES, silenced=False)[1] is Transition.FIRING


@pytest.mark.parametrize(
    ("seconds", "signals", "is_told_at_once"),
    [(14.9, (), True), (15.0, (), False), (None, (), False), (None, ("util",), False), (None, ("oom_kill",), True)],
)
def test_memory_that_is_full_within_fifteen_seconds_is_urgent(
    seconds: float | None, signals: tuple[str, ...], is_told_at_once: bool
) -> None:
    left = Absent.NOT_AVAILABLE if seconds is None else seconds
    reasons = tuple(Reason(signal, "text") for signal in signals)
    verdict = Pressure(
        "ram", Level.CRITICAL, Level.CRITICAL, 0.97, reasons, seconds_to_full=left, kind="system_ram"
    )

    assert is_urgent(verdict) is is_told_at_once


@pytest.mark.parametrize("quiet", [300, 1_000, 1_801, 2_500, 3_599])
def test_events_that_pause_are_notified_four_times_in_an_hour_at_most(quiet: int) -> None:
    """Each minute, with a pause after the third notification. Half an hour of it used to start the count again."""
    rules, state, told = replace(RULES, again_seconds=300), AlertState(), []
    for second in range(0, 4 * 3600, 60):
        is_quiet = 901 < second < 901 + quiet
        state, transition = advance_fact(state, fact(not is_quiet), float(second), 1e9, rules, silenced=False)
        if transition is Transition.FIRING:
            told.append(second)

    assert told[:3] == [0, 300, 900]
    assert max(sum(at <= other < at + 3600 for other in told) for at in told) == 4
