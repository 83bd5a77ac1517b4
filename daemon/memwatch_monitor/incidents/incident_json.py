"""Incidents as JSON."""

from __future__ import annotations

from typing import Annotated

from memwatch.core.doc import Doc
from memwatch.core.wire import Form, Json, Shape, Wire
from memwatch.reporting.incidents import words
from memwatch.reporting.incidents.records import Entry, Incident, Killer, Sample, Suspect, Told, Victim
from memwatch.reporting.render.json import rfc3339


def time(record: Victim | Entry, _: object) -> str:
    return rfc3339(record.unix)


def began_unix(record: Incident | Suspect, _: object) -> float:
    return record.began


def title(record: Incident, _: object) -> Annotated[str, Doc("What happened, in a line.")]:
    return words.write_title(record)


def summary(record: Incident, _: object) -> Annotated[str, Doc("By how much, beside whom, what came back.")]:
    return words.write_summary(record)


def facts(record: Incident, _: object) -> Annotated[tuple[words.Fact, ...], Doc("The list has the first two.")]:
    return tuple(words.list_facts(record))


def ended_unix(record: Incident, _: object) -> Annotated[float | None, Doc("Null while it lasts.")]:
    return record.ended


def _written(unix: float | None) -> str | None:
    return None if unix is None else rfc3339(unix)


BEGAN, ENDED = Form(str, rfc3339), Form(str | None, _written)
INCIDENTS = Wire(
    (
        Shape(
            Incident,
            further=(title, summary, facts, began_unix, ended_unix),
            order=(
                *("id", "kind", "target", "label", "began", "began_unix", "ended", "ended_unix"),
                *("title", "summary", "facts", ...),
            ),
            forms={"began": BEGAN, "ended": ENDED},
        ),
        Shape(Suspect, "IncidentSuspect", further=(began_unix,), forms={"began": BEGAN}),
        Shape(Killer, "IncidentKiller"),
        Shape(Victim, "IncidentVictim", further=(time,), order=("time", ...)),
        Shape(Entry, "IncidentEntry", further=(time,), order=("time", ...)),
        Shape(Sample, "IncidentSample"),
        Shape(Told, "IncidentDelivery"),
        Shape(words.Fact, "IncidentFact"),
    )
)


def incident_json(one: Incident) -> Json:
    """Return an incident, with its timeline and samples if it has them."""
    return INCIDENTS.encode(one)
