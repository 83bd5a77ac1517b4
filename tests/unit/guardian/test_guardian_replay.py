"""Replay of 1,000 generated collapses, and of variants of them, through the guardian's rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from support.guardian_collapses import CULPRIT, Collapse, begin_at, generate_collapse, generate_day, run_collapse

MIB = 1 << 20
BLOCK = 250
# One block in each run, three more in that of long tests: 1,000 decisions.
BLOCKS = (0, *(pytest.param(block, marks=pytest.mark.long) for block in (1, 2, 3)))


def allowed_in(collapse: Collapse) -> frozenset[int]:
    """Return the processes that the rules allow: the culprit, if it may end."""
    return frozenset() if collapse.right is None else frozenset({CULPRIT})


@pytest.mark.parametrize("block", BLOCKS)
def test_culprit_of_a_generated_collapse_ends_and_no_process_outside_the_allowed_ones(block: int) -> None:
    """At least 95 % are right: the culprit ends before memory is full, or nothing where it may not, or need not."""
    wrong, outside = [], []
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        collapse = generate_collapse(seed)
        decision = run_collapse(collapse)
        victim = decision.victim.pid if decision and decision.victim else None
        if victim != collapse.right:
            wrong.append((seed, collapse.story, victim))
        if victim is not None and victim not in allowed_in(collapse):
            outside.append((seed, collapse.story, victim))

    assert outside == []
    assert len(wrong) <= BLOCK * 0.05, wrong


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_nothing_ends_in_a_healthy_day(seed: int) -> None:
    day = generate_day(seed)
    fullest = max(use for _, use in day.points)

    assert run_collapse(day) is None
    assert fullest > 0.95


# 235 of these 400 collapses have a culprit that may end.
ENDS = [seed for seed in range(400) if generate_collapse(seed).right is not None]
SOME = ENDS[:70]


def count_right(
    seeds: Sequence[int],
    seconds: float | None = None,
    breath: int | None = None,
    start: float = 0.8,
    skew: float = 0.0,
) -> int:
    """Return in how many collapses the culprit ends. In the others nothing does."""
    victims = []
    for seed in seeds:
        whole = begin_at(generate_collapse(seed), start)
        decision = run_collapse(
            replace(whole, seconds=seconds or whole.seconds, breath=breath or whole.breath, skew=skew)
        )
        victims.append(decision.victim.pid if decision and decision.victim else None)

    assert set(victims) <= {CULPRIT, None}
    return victims.count(CULPRIT)


@pytest.mark.parametrize(
    ("seed", "variant"), [(1, {"seconds": 1.0}), (2, {"seconds": 200.0}), (37, {"breath": MIB << 8})]
)
def test_collapse_in_which_an_innocent_ended_before_ends_none(seed: int, variant: dict[str, float]) -> None:
    decision = run_collapse(replace(generate_collapse(seed), **variant))

    assert decision is None or (decision.victim and decision.victim.pid == CULPRIT)


@pytest.mark.parametrize(("seconds", "least"), [(0.5, 0.0), (1.0, 0.75), (1.7, 0.95), (8.0, 0.95)])
def test_culprit_of_a_faster_collapse_ends_or_nothing(seconds: float, least: float) -> None:
    assert count_right(SOME, seconds) >= least * len(SOME)


@pytest.mark.parametrize(
    ("start", "seconds", "least"),
    [(0.3, 3.0, 0.5), (0.3, 5.0, 0.95), (0.5, 1.7, 0.7), (0.5, 3.0, 0.95), (0.7, 25.0, 0.95)],
)
def test_culprit_of_a_collapse_from_far_below_ends_or_nothing(start: float, seconds: float, least: float) -> None:
    """It begins while the daemon is not asked yet, and reads the processes every ten seconds only."""
    assert count_right(SOME, seconds, start=start) >= least * len(SOME)


@pytest.mark.parametrize(("breath", "least"), [(256, 0.95), (512, 0.9), (1024, 0.75), (2048, 0.65)])
def test_culprit_ends_or_nothing_while_innocents_allocate_and_free(breath: int, least: float) -> None:
    assert count_right(SOME, breath=breath * MIB) >= least * len(SOME)


@pytest.mark.parametrize(("seconds", "skew", "least"), [(1.7, 0.4, 0.95), (1.7, 0.9, 0.7), (8.0, 0.9, 0.95)])
def test_culprit_ends_or_nothing_while_figures_of_devices_are_newer(
    seconds: float, skew: float, least: float
) -> None:
    """Growth after the rest of the scan was read is no reason to leave it alone."""
    in_devices = [seed for seed in ENDS if generate_collapse(seed).story == "device bytes"]

    assert count_right(in_devices, seconds, skew=skew) >= least * len(in_devices)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [1.0, 3.0, 25.0, 100.0])
@pytest.mark.parametrize("breath", [32, 512, 2048])
def test_no_innocent_ends_at_any_duration_and_breath(seconds: float, breath: int) -> None:
    assert count_right(SOME, seconds, breath * MIB) > 0
