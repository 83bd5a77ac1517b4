"""One notice when it is bad for long enough, one when it is good again, and nothing in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.alerts.rules import EVENTS, AlertRules, conditions_of, targets_of
from memwatch.alerts.silences import Silence
from memwatch.alerts.state import Key, Notice, Watch, standing, step
from memwatch.events import Event
from memwatch.model import Architecture, Device
from memwatch.snapshot import CollectorStatus, Level, Pressure, Reason, Snapshot
from memwatchd.wiring import rules_of
from support.sample_snapshots import calm_workstation
from support.settings_sample import settings_from

RULES = AlertRules(pending_seconds=5, resolve_seconds=60, keep_firing_seconds=0, again_seconds=0, repeat_seconds=0)


def snapshot_of(
    level: Level | None, reasons: tuple[Reason, ...] = (), seconds_to_full: float | None = None
) -> Snapshot:
    """A machine whose System RAM is at this level; None where nobody knows."""
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
) -> list[tuple[int, Notice]]:
    """What is said in each second."""
    watches: dict[Key, Watch] = {}
    numbers, said = count(1), []
    for second, snapshot in enumerate(snapshots):
        happened = [events[second]] if events and second in events else []
        conditions = conditions_of(snapshot, happened, rules)
        after, notices = step(
            watches, conditions, float(second), 100.0 + second, rules, lambda: f"msg_{next(numbers)}", silences
        )
        watches = dict(after)
        said += [(second, notice) for notice in notices]
    return said


def notices_over(levels: Sequence[Level | None], rules: AlertRules = RULES) -> list[tuple[int, Notice]]:
    """What is said over a trace of levels; None is a second without a figure."""
    return notices_from([snapshot_of(level) for level in levels], rules)


def said_at(said: list[tuple[int, Notice]]) -> list[tuple[int, str]]:
    return [(second, notice.event) for second, notice in said]


def test_critical_for_five_seconds_fires_once_and_resolves_once() -> None:
    """The pair of messages an administrator wants, with what was before in each."""
    said = notices_over([Level.HIGH] * 3 + [Level.CRITICAL] * 100 + [Level.MEDIUM] * 100)

    assert [(second, notice.event) for second, notice in said] == [
        (8, "pressure.critical"),
        (163, "pressure.resolved"),
    ]
    firing, resolved = (notice for _, notice in said)
    assert (firing.previous, firing.level, firing.firing) == (Level.HIGH, Level.CRITICAL, True)
    assert (resolved.previous, resolved.level, resolved.firing) == (Level.CRITICAL, Level.MEDIUM, False)
    assert firing.id != resolved.id


def test_a_short_peak_says_nothing() -> None:
    """Four seconds of critical, again and again, are nobody's business."""
    assert notices_over(([Level.CRITICAL] * 4 + [Level.HIGH] * 4) * 50) == []


def test_flapping_while_firing_says_nothing_more() -> None:
    """Ten minutes of ups and downs make one alert."""
    said = notices_over([Level.CRITICAL] * 10 + ([Level.HIGH] * 30 + [Level.CRITICAL] * 30) * 10)

    assert [notice.event for _, notice in said] == ["pressure.critical"]


def test_a_gap_in_the_readings_resolves_nothing() -> None:
    """When nobody can see the machine, nobody may call it well."""
    said = notices_over([Level.CRITICAL] * 10 + [None] * 300 + [Level.CRITICAL] * 10)

    assert [notice.event for _, notice in said] == ["pressure.critical"]


def test_a_target_that_starts_critical_is_told_after_the_same_wait() -> None:
    """A daemon started on a full machine speaks as soon as it may."""
    said = notices_over([Level.CRITICAL] * 7)

    assert [(second, notice.previous) for second, notice in said] == [(5, Level.LOW)]


def test_an_alert_fires_for_a_while_at_least() -> None:
    """An alert that is over in ten seconds is one alert of two minutes."""
    rules = replace(RULES, keep_firing_seconds=120)

    said = notices_over([Level.CRITICAL] * 10 + [Level.LOW] * 200, rules)

    assert said_at(said) == [(5, "pressure.critical"), (125, "pressure.resolved")]


def test_an_alert_that_comes_back_is_told_at_most_every_five_minutes() -> None:
    """Up and down every 100 seconds for half an hour is a handful of messages; at once where it cannot wait."""
    rules = replace(RULES, again_seconds=300, resolve_seconds=10)
    waves = ([Level.CRITICAL] * 50 + [Level.LOW] * 50) * 18

    said = notices_over(waves, rules)

    fired = [second for second, notice in said if notice.firing]
    assert len(fired) <= 6
    assert all(later - earlier >= 300 for earlier, later in pairwise(fired))
    urgent = [snapshot_of(level, (Reason("floor", "the last 256 MiB"),)) for level in waves[:200]]
    assert [second for second, notice in notices_from(urgent, rules) if notice.firing] == [0, 100]


def test_what_goes_on_is_said_again() -> None:
    """After four hours the alert is repeated, as such, under an id of its own."""
    rules = replace(RULES, repeat_seconds=14_400)

    said = notices_over([Level.CRITICAL] * 14_410, rules)

    assert [(second, notice.repeated, notice.id) for second, notice in said] == [
        (5, False, "msg_1"),
        (14_405, True, "msg_2"),
    ]
    assert {notice.started_unix for _, notice in said} == {105.0}


def test_silence_keeps_messages_back_and_tells_what_still_fires_at_its_end() -> None:
    """Nobody hears of an alert while a silence covers it; when the silence ends, what still fires is told."""
    silence = Silence("sil_1", until_unix=150.0, created_unix=0.0, target="ram")
    trace = [snapshot_of(Level.CRITICAL)] * 100 + [snapshot_of(Level.LOW)] * 70

    said = notices_from(trace, silences=[silence])
    over_in_silence = notices_from([snapshot_of(Level.CRITICAL)] * 10 + [snapshot_of(Level.LOW)] * 90,
                                   silences=[replace(silence, until_unix=500.0)])  # fmt: skip
    elsewhere = notices_from(trace, silences=[replace(silence, target="vram0")])

    assert said_at(said) == [(50, "pressure.critical"), (160, "pressure.resolved")]
    assert over_in_silence == []
    assert [second for second, _ in elsewhere] == [5, 160]


def test_what_somebody_new_has_missed() -> None:
    """What fires and was told: not what is silenced, is still waited for, was never told or is over."""
    told = Watch(firing=True, told=True)
    watches = {
        ("pressure.critical", "ram"): told,
        ("pressure.critical", "vram0"): told,
        ("pressure.high", "ram"): Watch(firing=True),
        ("device.lost", "gpu0"): Watch(since=1.0),
        ("collector.failing", "nvml"): Watch(said_at=1.0),
    }
    silence = Silence("sil_1", until_unix=150.0, created_unix=0.0, target="vram0")

    in_silence, after = ([key for key, _ in standing(watches, [silence], unix)] for unix in (100.0, 200.0))

    assert in_silence == [("pressure.critical", "ram")]
    assert after == [("pressure.critical", "ram"), ("pressure.critical", "vram0")]


def test_end_of_what_was_told_is_told_in_silence_too() -> None:
    """Who was woken by an alert hears that it is over."""
    silence = Silence("sil_1", until_unix=1e9, created_unix=120.0)
    trace = [snapshot_of(Level.CRITICAL)] * 30 + [snapshot_of(Level.LOW)] * 70
    loud = notices_from(trace[:20])

    watches: dict[Key, Watch] = {}
    said = []
    for second, snapshot in enumerate(trace):
        conditions = conditions_of(snapshot, (), RULES)
        silences = [silence] if second > 20 else []
        after, notices = step(watches, conditions, float(second), 100.0 + second, RULES, lambda: "id", silences)
        watches = dict(after)
        said += [notice.event for notice in notices]

    assert len(loud) == 1
    assert said == ["pressure.critical", "pressure.resolved"]


@pytest.mark.parametrize(("rule", "level"), [("pressure.high", Level.HIGH), ("pressure.medium", Level.MEDIUM)])
def test_lower_levels_are_told_to_those_who_ask(rule: str, level: Level) -> None:
    """Each level is an alert of its own, which worse levels keep firing."""
    rules = replace(RULES, events=frozenset({rule}))

    said = notices_over([level] * 10 + [Level.CRITICAL] * 100 + [Level.LOW] * 70, rules)

    assert said_at(said) == [(5, rule), (170, "pressure.resolved")]
    assert [notice.previous for _, notice in said] == [Level.LOW, level]


@pytest.mark.parametrize(
    ("available_gib", "signals", "told"),
    [(72, ("util",), False), (64, ("util",), False), (63, ("util",), True), (72, ("util", "psi_some"), True)],
)
def test_where_enough_is_left_its_use_alone_is_no_alert(
    tmp_path: Path, available_gib: int, signals: tuple[str, ...], told: bool
) -> None:
    """2 TiB at 96.5 %: the level is critical all the same."""
    settings = settings_from(tmp_path, '[pressure.targets.ram]\nmin_available = "64GiB"\n')
    rules = rules_of(settings).alerts
    critical = snapshot_of(Level.CRITICAL, tuple(Reason(signal, "because") for signal in signals))
    verdict = replace(critical.pressure[0], available_bytes=available_gib << 30)

    said = notices_from([replace(critical, pressure=(verdict,))] * 10, rules)

    assert bool(said) == told


def test_forecast_is_an_alert_to_those_who_ask() -> None:
    """Full within five minutes at the current rate, and then not."""
    rules = replace(RULES, events=frozenset({"pressure.forecast"}))
    trace = [snapshot_of(Level.LOW, seconds_to_full=250.0)] * 10 + [snapshot_of(Level.LOW)] * 70

    assert said_at(notices_from(trace, rules)) == [(5, "pressure.forecast"), (70, "pressure.resolved")]


def test_failed_collector_and_lost_gpu_are_alerts() -> None:
    """A collector that fails for a minute and a GPU that is lost are told, each with its reason, and their ends."""
    rules = replace(RULES, events=frozenset({"collector.failing", "device.lost"}))
    gpu = Device("gpu0", "NVIDIA", "NVIDIA H100", Architecture.DISCRETE)
    well = replace(calm_workstation(), devices=(gpu,), collectors=(CollectorStatus("nvml", "ok"),))
    ill = replace(
        well,
        devices=(replace(gpu, state="lost"),),
        collectors=(CollectorStatus("nvml", "failing", error="GPU is lost"),),
    )

    said = notices_from([well] * 5 + [ill] * 100 + [well] * 70, rules)

    assert [(second, notice.event, notice.target) for second, notice in said] == [
        (10, "device.lost", "gpu0"),
        (65, "collector.failing", "nvml"),
        (165, "collector.resolved", "nvml"),
        (165, "device.resolved", "gpu0"),
    ]
    assert said[0][1].reasons[0].text == "NVIDIA H100 is lost"
    assert said[1][1].reasons[0].text == "nvml is failing: GPU is lost"
    assert {notice.level for _, notice in said} == {None}


def test_gpu_whose_driver_was_released_is_not_lost() -> None:
    """Nothing is known of it for an hour: no alert begins, and one that fires is not over by that."""
    rules = replace(RULES, events=frozenset({"device.lost"}))
    gpu = Device("gpu0", "NVIDIA", "NVIDIA H100", Architecture.DISCRETE)
    well, silent, lost = (
        replace(calm_workstation(), devices=(replace(gpu, state=state),)) for state in ("ok", "stalled", "lost")
    )

    released = notices_from([well] * 5 + [silent] * 3600 + [well] * 5, rules)
    afterwards = notices_from([well] * 5 + [lost] * 10 + [silent] * 600 + [well] * 70, rules)

    assert released == []
    assert [(second, notice.event) for second, notice in afterwards] == [
        (10, "device.lost"),
        (675, "device.resolved"),
    ]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("oom_kill", "kernel.oom_kill"), ("driver", "driver.error"), ("unclean", "daemon.unclean_restart")],
)
def test_what_happened_is_told_once_and_has_no_end(kind: str, rule: str) -> None:
    """An event of that name is a message at once; there is nothing to resolve. The next one is told as well."""
    rules = replace(RULES, events=frozenset({rule}), again_seconds=300)
    events = {second: Event(second, 0.0, kind, f"number {second}") for second in (3, 10, 11, 400, 500, 900)}

    said = notices_from([calm_workstation()] * 1200, rules, events)

    assert said_at(said) == [(3, rule), (303, rule), (603, rule), (903, rule)]
    told = [[reason.text for reason in notice.reasons] for _, notice in said]
    assert told == [["number 3"], ["number 10", "number 11"], ["number 400", "number 500"], ["number 900"]]
    assert len({notice.alert for _, notice in said}) == 4


def test_alert_about_what_was_not_looked_at_for_long_goes_on() -> None:
    """The daemon stood still for two hours (a container that was paused): what is bad still has not got better."""
    watches: Mapping[Key, Watch] = {}
    said = []
    for second in (*range(300), *range(7500, 8000)):
        conditions = conditions_of(snapshot_of(Level.CRITICAL), (), RULES)
        watches, notices = step(watches, conditions, float(second), 100.0 + second, RULES, lambda: "msg_1")
        said += [(second, notice.event) for notice in notices]

    assert said == [(5, "pressure.critical")]


def test_alert_about_what_is_gone_is_over_in_the_end() -> None:
    """A MIG instance that was removed while it was full does not fire for ever."""
    trace = [snapshot_of(Level.CRITICAL)] * 10 + [snapshot_of(None)] * 3700

    said = notices_from(trace)

    assert said_at(said) == [(5, "pressure.critical"), (9 + 3600 + 60, "pressure.resolved")]
    assert said[1][1].reasons[0].text == "ram has not been seen for 1 h 1 min"


def test_what_alerts_can_be_about_is_known_without_one() -> None:
    """Of each event its own; of all of them each once, memory first."""
    snapshot = snapshot_of(Level.LOW)

    assert targets_of(snapshot, ("pressure.high",)) == ("ram",)
    assert targets_of(snapshot, ("kernel.oom_kill",)) == ("kernel",)
    assert targets_of(snapshot)[0] == "ram"
    assert set(targets_of(snapshot)) == {target for event in EVENTS for target in targets_of(snapshot, (event,))}
    assert len(set(targets_of(snapshot))) == len(targets_of(snapshot))
