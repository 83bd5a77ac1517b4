"""Incidents as JSON."""

from __future__ import annotations

from typing import Any

from memwatch.core.wire import Json
from memwatch.monitor.incidents.records import Incident, Suspect, Victim
from memwatch.monitor.render.json import record_json, rfc3339


def incident_json(one: Incident) -> Json:
    """Return an incident, with its timeline and samples if it has them."""
    return {
        "id": one.id,
        "kind": one.kind,
        "target": one.target,
        "label": one.label,
        "began": rfc3339(one.began),
        "began_unix": one.began,
        "ended": None if one.ended is None else rfc3339(one.ended),
        "ended_unix": one.ended,
        "sentence": one.sentence,
        "cause": None if one.cause is None else suspect_json(one.cause),
        "candidates": [suspect_json(candidate) for candidate in one.candidates],
        "killer": None if one.killer is None else record_json(one.killer),
        "victim": None if one.victim is None else victim_json(one.victim),
        "victims": [victim_json(victim) for victim in one.victims],
        "size_bytes": one.size_bytes,
        "lowest_available_bytes": one.lowest_available_bytes,
        "came_back_bytes": one.came_back_bytes,
        "evidence": list(one.evidence),
        "timeline": [{"time": rfc3339(entry.unix), **record_json(entry)} for entry in one.timeline],
        "samples": [record_json(sample) for sample in one.samples],
        "gpu_holders": list(one.gpu_holders),
        "boot_id": one.boot_id,
    }


def suspect_json(one: Suspect) -> Json:
    return _with_time(one, "began", one.began)


def victim_json(one: Victim) -> Json:
    return {"time": rfc3339(one.unix), **record_json(one)}


def _with_time(record: Any, name: str, unix: float) -> Json:  # noqa: ANN401  any record
    return {**record_json(record), name: rfc3339(unix), f"{name}_unix": unix}
