"""The guardian as a dry run beside each demo: its decision, and sentences that read well."""

from __future__ import annotations

import re

import pytest

from memwatch.core.guardian_report import GuardianReport
from memwatchd.guardian.records import Decision
from support.guardian_demos import DEMOS, DemoRun, run_demo
from support.paths import ROOT

GUIDE = " ".join((ROOT / "docs/howto/guardian.md").read_text().split())
SIZE = r"[\d,.]+ (?:B|[KMGT]iB)"
TITLE = r"[\w:.-]+ \(\d+\)"
SHORT = rf"ram is critical: {SIZE} of {SIZE} are available(?:, full in about [\d.]+ (?:s|min))?"
ACTS = re.compile(
    rf"{SHORT}; {TITLE} holds {SIZE}(?:, {SIZE} of devices among them)?(?: and grows by {SIZE} a second)?"
)
DECLINES = re.compile(
    rf"{SHORT}; the cause is not known: {SIZE} a second were lost; {TITLE} grew most(?: with \d+ alike)?, "
    rf"by {SIZE} a second, and all processes by {SIZE}"
)
RESTS = re.compile(rf"ram is (?:OK|low|medium|high): {SIZE} are available")
# The process that would end in each demo; None where no cause is found, "" where memory is never short.
VICTIMS = {
    "dgx-spark": "VLLM::EngineCor",
    "gh200": "train.py",
    "h100x8-mig": "",
    "jetson-orin": "train.py",
    "macbook": "ollama",
    "rtx4090": "",
    "strix-halo": None,
}


@pytest.fixture(scope="module", params=DEMOS)
def demo(request: pytest.FixtureRequest) -> tuple[str, DemoRun]:
    return request.param, run_demo(request.param)


def test_dry_run_beside_a_demo_names_one_process_or_none(demo: tuple[str, DemoRun]) -> None:
    name, found = demo
    victims = [decision.victim.name if decision.victim else None for _, decision in found.decisions]

    assert victims == ([] if VICTIMS[name] == "" else [VICTIMS[name]])


def test_sentences_have_their_shape_and_stand_in_the_guide(demo: tuple[str, DemoRun]) -> None:
    _, found = demo

    assert RESTS.fullmatch(found.lowest.reason)
    for _, decision in found.decisions:
        shape = ACTS if decision.victim else DECLINES
        assert shape.fullmatch(decision.reason), decision.reason
        assert decision.reason.partition("; ")[2] in GUIDE
        assert len(event_of(decision)) < 300


def event_of(decision: Decision) -> str:
    victim, kind = decision.victim, "act" if decision.victim else "nothing"
    return GuardianReport("1", 1.0, kind, True, decision.reason, victim.pid if victim else None).text  # type: ignore[arg-type]
