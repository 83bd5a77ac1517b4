"""One notice when it is bad for long enough, one when it is good again, and nothing in between."""

from __future__ import annotations

from itertools import count

from memwatch.alerts import AlertRules, Notice, Watch, step
from memwatch.snapshot import Level, Pressure

RULES = AlertRules(pending_seconds=5, resolve_seconds=60)


def notices_over(levels: list[Level | None], rules: AlertRules = RULES) -> list[tuple[int, Notice]]:
    """What is said in each second of a trace of levels; None is a second without a figure."""
    watches: dict[str, Watch] = {}
    numbers, said = count(1), []
    for second, level in enumerate(levels):
        pressure = () if level is None else (Pressure("ram", level, level, 0.5),)
        watches, notices = step(
            watches, pressure, float(second), 100.0 + second, rules, lambda: f"msg_{next(numbers)}"
        )
        said += [(second, notice) for notice in notices]
    return said


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
