"""Test that each null of the demos has a reason. Those of machines are in `test_golden`, and generated ones too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import pytest
from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.model import Bytes, Process, Share, Words
from memwatch.core.owners import OWNER_KINDS
from memwatch.core.wire import Description, Shape, Wire, to_bytes
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.render.owners_json import owners_json
from memwatch_web.api.openapi import SHAPES, WIRES, define
from memwatchd.recording.demos import DESCRIPTIONS, path_of
from memwatchd.recording.player import read_frames
from support.null_reasons import figures_without_a_reason, undescribed_nulls, undescribed_optionals


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_every_null_of_a_demo_has_a_reason(name: str) -> None:
    snapshot = next(iter(read_frames(path_of(name))))
    answers = [snapshot_json(snapshot), *(owners_json(snapshot, kind) for kind in OWNER_KINDS)]

    assert [figures_without_a_reason(json.loads(to_bytes(one))) for one in answers] == [[]] * len(answers)


def test_schema_says_when_a_field_without_a_reason_is_null() -> None:
    """Alerts, history, incidents and fit have no `absent`."""
    schemas = define(SHAPES.keys())

    assert schemas.keys() >= {"Alert", "Series", "Incident", "Fit", "Process"}
    assert undescribed_nulls(schemas) == []


def test_every_optional_field_of_every_shape_says_when_it_is_null() -> None:
    """A null that is no absent value has no reason beside it, such as the unit of a process without one."""
    define(SHAPES.keys())  # adds the records inside the shapes

    assert {Process, Share, Incident} <= {shape.record for wire in WIRES for shape in wire.shapes}
    assert undescribed_optionals(WIRES) == []


def test_optional_field_that_does_not_say_when_it_is_null_is_found() -> None:
    assert undescribed_optionals([Wire((Shape(Plain), Shape(WithReasons)))]) == [
        "WithReasons.command",
        "WithReasons.unit",
    ]


class Plain(Struct):
    """A record whose absent values have no reason."""

    total: int
    gaps: tuple[float | None, ...]
    parts: Mapping[str, int | None]
    told: Annotated[int | None, Doc("Null while it lasts.")]


class WithReasons(Struct):
    """A record whose absent figures have one."""

    used_bytes: Bytes
    command: Words | None
    unit: Words | None


def test_undescribed_null_of_a_schema_is_found() -> None:
    description = Description(Wire())
    description.add(Shape(Plain))
    description.add(Shape(WithReasons))

    assert undescribed_nulls(description.definitions) == ["Plain.gaps", "Plain.parts"]


def test_null_without_a_reason_is_found() -> None:
    found = {
        "shares": [{"peak_bytes": None, "limit_bytes": None, "absent": {"limit_bytes": "stale"}, "note": None}]
    }

    assert figures_without_a_reason(found) == ["peak_bytes"]
