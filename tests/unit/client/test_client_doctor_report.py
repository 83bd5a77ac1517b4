"""Test the sentences of `memwatch doctor --report`."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.cli.doctor_report import check_writable, recording_text
from memwatch.cli.http import CommandError
from memwatch.cli.record import Recorded


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        (Recorded(60), "60 snapshots in 60 s"),
        (Recorded(1), "1 snapshot in 60 s"),
        (Recorded(8, interrupted_after=7.2), "8 snapshots: interrupted after 7 of 60 s"),
    ],
)
def test_interrupted_recording_has_the_seconds_until_then(recorded: Recorded, text: str) -> None:
    assert recording_text(recorded, 60.0) == text


def test_missing_folder_of_a_report_is_not_called_a_missing_permission(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"its folder does not exist; name a file in another one$"):
        check_writable(tmp_path / "missing/box.tar.gz", overwrite=False)
