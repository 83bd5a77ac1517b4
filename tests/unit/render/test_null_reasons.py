"""Test that each null of the demos has a reason. Those of machines are in `test_golden`, and generated ones too."""

from __future__ import annotations

import json

import pytest

from memwatch.core.owners import OWNER_KINDS
from memwatch.monitor.render.json import snapshot_json, to_bytes
from memwatch.monitor.render.owners_json import owners_json
from memwatchd.recording.demos import DESCRIPTIONS, path_of
from memwatchd.recording.frames import read_frames
from support.null_reasons import figures_without_a_reason


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_every_null_of_a_demo_has_a_reason(name: str) -> None:
    snapshot = next(iter(read_frames(path_of(name))))
    answers = [snapshot_json(snapshot), *(owners_json(snapshot, kind) for kind in OWNER_KINDS)]

    assert [figures_without_a_reason(json.loads(to_bytes(one))) for one in answers] == [[]] * len(answers)


def test_null_without_a_reason_is_found() -> None:
    found = {
        "shares": [{"peak_bytes": None, "limit_bytes": None, "absent": {"limit_bytes": "stale"}, "note": None}]
    }

    assert figures_without_a_reason(found) == ["peak_bytes"]
