"""Replay of 1,000 generated collapses, and of all recorded traces, through the guardian's rules."""

from __future__ import annotations

import pytest

from support.guardian_collapses import CULPRIT, Collapse, act_on_trace, generate_collapse, run_collapse
from support.trace_file import Trace
from support.trace_score import SHORT_SECONDS, load_all

TRACES = load_all()
BLOCK = 250
# One block in each run, three more in that of long tests: 1,000 decisions.
BLOCKS = (0, *(pytest.param(block, marks=pytest.mark.long) for block in (1, 2, 3)))


def length_of(trace: Trace) -> float:
    return trace.header.seconds if trace.header.ends is None else trace.header.ends


SHORT = [one for one in TRACES if length_of(one) <= SHORT_SECONDS]
LONG = [one for one in TRACES if length_of(one) > SHORT_SECONDS]


def allowed_in(collapse: Collapse) -> frozenset[int]:
    """Return the processes that the rules allow: those in the slice of the culprit, if it may end itself."""
    if collapse.right is None:
        return frozenset()
    here = [one.pid for one in collapse.innocents if one.slice == collapse.culprit.slice]
    return frozenset({CULPRIT, *here})


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


def victim_on(trace: Trace) -> int | None:
    decision = act_on_trace(trace)
    return decision.victim.pid if decision and decision.victim else None


def check_trace(trace: Trace) -> None:
    """Nothing ends on a healthy machine. In a collapse the culprit ends, or nothing where use does not show it."""
    may_end = {None} if trace.header.half == "healthy" else {None, CULPRIT}

    assert victim_on(trace) in may_end


@pytest.mark.parametrize("trace", SHORT, ids=lambda one: one.header.name)
def test_no_innocent_ends_on_a_recorded_trace(trace: Trace) -> None:
    check_trace(trace)


@pytest.mark.long
@pytest.mark.parametrize("trace", LONG, ids=lambda one: one.header.name)
def test_no_innocent_ends_on_a_long_recorded_trace(trace: Trace) -> None:
    check_trace(trace)


def test_most_recorded_collapses_end_with_their_culprit() -> None:
    """Those that use alone does not show (driver errors, livelock, eviction) are for the alerts."""
    wedges = [one for one in SHORT if one.header.half == "wedge"]
    right = sum(victim_on(one) == CULPRIT for one in wedges)

    assert right >= 0.8 * len(wedges)
