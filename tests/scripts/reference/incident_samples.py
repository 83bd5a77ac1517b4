"""docs/reference/incident-samples.md: the reports of the scripted incidents, played through the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.incidents.words import write_summary, write_title
from scripts.reference.markdown import page, prose
from support.incident_player import COMPLETE_SECONDS, Player, Scenario
from support.incident_scenarios import SCENARIOS

INTRO = """
The titles and summaries with which `/incidents` and `memwatch incidents` explain the scripted incidents of
`tests/incidents`. Each was rebuilt from a public report, which is named, or from a measurement; figures that it
lacks are assumed.
[Incidents](../howto/incidents.md) explains how the cause is found.
"""
HEADINGS = {
    "kill": "Kills",
    "critical": "Critical levels",
    "program": "Failed allocations",
    "gpu_lost": "Lost GPUs",
    "wedge": "No sample while memory is short",
}
EVIDENCE = "## Evidence of the first one\n"
Explain = Callable[[Scenario], Incident]


def explain(script: Scenario) -> Incident:
    """Play a script and return its incident; of several the one of the expected kind."""
    return next(one for one in Player(script).play(COMPLETE_SECONDS) if one.kind == script.truth.kind)


def entries(kind: str, explain: Explain) -> Iterator[str]:
    for script in SCENARIOS:
        if script.truth.kind == kind:
            found = explain(script)
            text = f"{write_title(found)}. {write_summary(found)}"
            yield f"- **{prose(script.name)}** ({prose(script.source)})\\\n  {prose(text)}"


def render(explain: Explain = explain) -> str:
    sections = ("\n".join([f"## {heading}", "", *entries(kind, explain)]) for kind, heading in HEADINGS.items())
    evidence = "\n".join([EVIDENCE, *(f"- {prose(one)}" for one in explain(SCENARIOS[0]).evidence)])
    return page("Incident samples", INTRO, *sections, evidence)
