"""Silences: their shortest and longest duration, their end, and their times after the wall clock was set."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from memwatch.core.clock import Moment
from memwatch.core.silences import Silence, by_wall_clock, in_force
from memwatch_web.api.alerts import Seconds
from memwatch_web.pages_app import FormError, parse_silence_form

NOW = Moment(500.0, 1000.0, 1_700_000_000.0)
MADE = Silence("sil_1", NOW.wall + 60.0, NOW.wall, NOW.boottime + 60.0)


@pytest.mark.parametrize(
    ("seconds", "is_valid"),
    [("0.999", False), ("1", True), ("1.001", True), ("2591999", True), ("2592000", True), ("2592001", False)],
)
def test_duration_in_the_api_is_one_second_to_thirty_days(seconds: str, is_valid: bool) -> None:
    """MIN_SECONDS to MAX_SECONDS: a shorter one mutes nothing, a longer one is forgotten."""
    duration = TypeAdapter(Seconds)

    if is_valid:
        assert duration.validate_python(seconds) == float(seconds)
    else:
        with pytest.raises(ValidationError, match="Input should be"):
            duration.validate_python(seconds)


@pytest.mark.parametrize(("hours", "is_valid"), [("0.09", False), ("0.1", True), ("720", True), ("720.01", False)])
def test_duration_in_the_form_is_six_minutes_to_thirty_days(hours: str, is_valid: bool) -> None:
    body = f"hours={hours}&reason=x".encode()

    if is_valid:
        assert parse_silence_form(body).seconds == float(hours) * 3600.0
    else:
        with pytest.raises(FormError, match=r"from 0\.1 to 720"):
            parse_silence_form(body)


@pytest.mark.parametrize(("boottime", "is_in_force"), [(1059.999, True), (1060.0, False), (1060.001, False)])
def test_silence_has_ended_at_its_end(boottime: float, is_in_force: bool) -> None:
    assert in_force([MADE], boottime) == ((MADE,) if is_in_force else ())


@pytest.mark.parametrize(("set_by", "moved"), [(0.5, 0.0), (-0.5, 0.0), (1.0, 1.0), (-1.0, -1.0), (5.0, 5.0)])
def test_displayed_times_move_if_the_wall_clock_was_set_by_a_second(set_by: float, moved: float) -> None:
    """The two clocks are read one after the other: less than a second is no correction."""
    found = by_wall_clock(MADE, Moment(NOW.monotonic, NOW.boottime, NOW.wall + set_by))

    assert (found.until_unix, found.created_unix) == (MADE.until_unix + moved, MADE.created_unix + moved)
    assert found.until_boottime == MADE.until_boottime
