"""Times in queries of the history."""

from __future__ import annotations

import pytest

from memwatch_web.api.history_parameters import instant

NOON = 1_769_860_800.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-31T12:00:00Z", 0.0),
        ("2026-01-31T13:00:00+01:00", 0.0),
        ("2026-01-31T12:00:00.5Z", 0.5),
        ("2026-01-31T12:00:00.25 00:00", 0.25),  # a plus sign that was not encoded
        ("2026-01-31T12:00:00.123Z", 0.123),
        ("2026-01-31T12:00:00.123456789Z", 0.123456),
    ],
)
def test_time_of_rfc_3339_is_parsed_with_any_fraction(text: str, seconds: float) -> None:
    assert instant("from", text, 0.0) == pytest.approx(NOON + seconds, abs=1e-6)
