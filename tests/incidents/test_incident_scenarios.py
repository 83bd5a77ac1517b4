"""Scripted incidents with known answers: cause, killer and victim, and no wrong name in any."""

from __future__ import annotations

import pytest

from memwatch.incidents.records import Incident
from support.incident_player import Player, Scenario
from support.incident_scenarios import SCENARIOS

NAMES = [one.name for one in SCENARIOS]


def play(script: Scenario) -> Incident:
    """Return the incident of the script; of several the one of the expected kind."""
    found = Player(script).play()
    assert found, "no incident"
    wanted = [one for one in found if one.kind == script.truth.kind]
    assert wanted, [(one.kind, one.sentence) for one in found]
    return wanted[0]


def culprit_of(one: Incident) -> int | str | None:
    if one.cause is None:
        return None
    return one.cause.pid if one.cause.pid is not None else one.cause.container or one.cause.unit


def victim_of(one: Incident) -> int | str | None:
    if one.victim is None:
        return None
    return one.victim.pid if one.victim.pid is not None else one.victim.who


@pytest.mark.parametrize("script", SCENARIOS, ids=NAMES)
def test_scripted_incident_is_explained(script: Scenario) -> None:
    """The culprit, the killer and the victim are those of the script."""
    found = play(script)

    assert culprit_of(found) == script.truth.culprit, found.sentence
    assert (found.killer.kind if found.killer else None) == script.truth.killer, found.sentence
    if script.truth.victim is not None:
        assert victim_of(found) == script.truth.victim, found.sentence
    assert found.evidence
