"""Test levels and hysteresis against the documented thresholds and the worked examples."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.model import Thresholds
from memwatch.core.pressure.inputs import Target
from memwatch.core.pressure.judge import LevelState, base_level, update_level, use_reason
from memwatch.core.pressure.rules import PressureRules, TargetRules
from memwatch.core.snapshot import Level

RULES = PressureRules()


def levels_over(ratios: list[float], rules: PressureRules = RULES) -> list[Level]:
    """Return the level after each second of a trace."""
    standing: LevelState | None = None
    levels = []
    for second, ratio in enumerate(ratios):
        standing = update_level(standing, ratio, float(second), "ram", rules)
        levels.append(standing.level)
    return levels


@pytest.mark.parametrize(
    ("ratio", "level"),
    [
        (0.0, Level.LOW),
        (0.5999, Level.LOW),
        (0.60, Level.MEDIUM),
        (0.7999, Level.MEDIUM),
        (0.80, Level.HIGH),
        (0.95, Level.HIGH),
        (0.9501, Level.CRITICAL),
        (1.0, Level.CRITICAL),
    ],
)
def test_levels_begin_at_the_documented_thresholds(ratio: float, level: Level) -> None:
    """60, 80, 95 %: high includes 95, critical begins above it."""
    assert base_level(ratio, Thresholds()) is level


def test_level_rises_at_once_and_falls_step_by_step() -> None:
    """96 % for 20 s, 90 % for 40 s, then 50 %: critical at 0 s, high at 50 s, low at 90 s."""
    levels = levels_over([0.96] * 20 + [0.90] * 40 + [0.50] * 60)

    changes = [(second, level) for second, level in enumerate(levels) if second == 0 or levels[second - 1] != level]
    assert changes == [(0, Level.CRITICAL), (50, Level.HIGH), (90, Level.LOW)]


def test_short_dip_ends_no_level() -> None:
    """96 %, then 90 % for 29 s and 50 % for two: long enough to leave critical, too short to leave high."""
    levels = levels_over([0.96] * 20 + [0.90] * 29 + [0.50] * 2 + [0.90] * 60)

    assert levels[49:] == [Level.CRITICAL, *[Level.HIGH] * 61]


def test_each_level_clears_after_its_own_time() -> None:
    """From 96 % to 90 % at 20 s and to 50 % at 30 s: critical until 50 s, high until 60 s, then low."""
    levels = levels_over([0.96] * 20 + [0.90] * 10 + [0.50] * 60)

    assert levels == [Level.CRITICAL] * 50 + [Level.HIGH] * 10 + [Level.LOW] * 30


def test_sawtooth_across_a_threshold_flips_once() -> None:
    """78 to 82 % every four seconds for ten minutes is one level change, not three hundred."""
    levels = levels_over([0.78, 0.80, 0.82, 0.80] * 150)

    assert sum(one != other for one, other in pairwise(levels)) == 1
    assert levels[-1] is Level.HIGH


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_hysteresis_never_lowers_the_level_of_use(ratios: list[float]) -> None:
    """In any trace the level is at least the one that use alone gives."""
    for ratio, level in zip(ratios, levels_over(ratios), strict=True):
        assert level >= base_level(ratio, Thresholds())


@given(st.floats(0, 1), st.floats(0, 1))
def test_level_follows_use_down(before: float, after: float) -> None:
    """After the clear time, a level kept only by hysteresis is within the margin of its threshold."""
    levels = levels_over([before] + [after] * 32)

    ended = levels[-1]
    assert ended == base_level(after, Thresholds()) or after >= Thresholds().entry(ended) - RULES.clear_margin


def test_thresholds_may_differ_by_target() -> None:
    """A card that a server fills by design gets its own thresholds; other targets keep theirs."""
    rules = PressureRules(by_target={"gpu0": TargetRules(Thresholds(0.9, 0.95, 0.99))})

    assert update_level(None, 0.90, 0.0, "ram", rules).level is Level.HIGH
    assert update_level(None, 0.85, 0.0, "gpu0", rules).level is Level.LOW


RAM = Target("ram", "system_ram", 100 << 30, 10 << 30)


def reason(state: LevelState, ratio: float, now: float = 0.0, target: Target = RAM, resident: int = 0) -> str:
    found = use_reason(state, ratio, now, target, RULES, resident)
    return found.text if found else ""


def test_reason_names_what_was_judged() -> None:
    """Of a limit and beside resident memory a percentage alone would read as that of the whole pool."""
    state, limited = LevelState(Level.CRITICAL), Target("gpu0", "vram", 20 << 30, 1 << 29, is_limit=True)

    assert reason(LevelState(Level.LOW), 0.3) == ""
    assert reason(state, 0.964) == "96.4% used"
    assert reason(state, 0.972, target=limited) == "97.2% of its limit of 20.0 GiB used"
    assert reason(state, 0.97, resident=96 << 30) == "97.0% used of the 4.0 GiB beside 96.0 GiB resident"


def test_held_level_says_since_when_or_what_is_missing() -> None:
    """Within the margin it is not calm yet: then the reason says when it would be."""
    state = update_level(LevelState(Level.CRITICAL), 0.90, 100.0, "ram", RULES)
    near = update_level(LevelState(Level.CRITICAL), 0.94, 100.0, "ram", RULES)

    assert reason(state, 0.90, 112.0) == "90.0% used; calm for 12 s"
    assert reason(near, 0.94, 112.0) == "94.0% used; critical clears after 30 s below 92%"


def test_held_level_says_what_holds_the_one_after_it() -> None:
    """58.4% from critical on falls to medium and stays there, 57% ends all at once, and 60% is medium by itself."""
    fallen = [update_level(LevelState(Level.CRITICAL), used, 100.0, "ram", RULES) for used in (0.584, 0.5, 0.66)]

    assert reason(fallen[0], 0.584, 112.0) == "58.4% used; calm for 12 s; medium clears after 30 s below 57%"
    assert reason(fallen[1], 0.5, 112.0) == "50.0% used; calm for 12 s"
    assert reason(fallen[2], 0.66, 112.0) == "66.0% used; calm for 12 s"
