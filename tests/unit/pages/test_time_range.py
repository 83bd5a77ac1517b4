"""Which stretch of the past is looked at: every query has one or a sentence, and every button leads somewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.history.tier import Length
from memwatch.history.tiers import LENGTHS
from memwatch_web.asgi.problems import Problem
from memwatch_web.pages.time_range import (
    LEAST_ROWS,
    MOST_SECONDS,
    RANGES,
    Stretch,
    Window,
    moves_of,
    range_of,
    ranges_of,
    row_seconds,
    window_of,
)

NOW = 1_800_000_003.7
HOUR, DAY = RANGES[0], RANGES[1]


def test_a_range_ends_now_and_stands_still_between_its_steps() -> None:
    """Asked again a second later, the buckets begin where they began: a chart does not shimmer."""
    first, second = (window_of(HOUR, None, None, now, LENGTHS) for now in (NOW, NOW + 1))

    assert first == second == Window(HOUR, 1_799_996_410.0, 1_800_000_010.0, 360, True, 10.0)


@pytest.mark.parametrize("wanted", RANGES)
def test_a_step_of_a_range_is_one_of_a_tier_or_a_multiple(wanted: object) -> None:
    """So that no finer tier is read than is shown."""
    one = next(one for one in RANGES if one is wanted)
    window = window_of(one, None, None, NOW, LENGTHS)

    tier = row_seconds(one.seconds, LENGTHS)

    assert (window.end - window.start) / window.points == one.step_seconds
    assert one.step_seconds % tier == 0


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (NOW - 1000, NOW - 500, (1_799_999_003.0, 1_799_999_504.0)),
        (NOW - 1000, None, (1_799_999_003.0, 1_800_000_004.0)),
        (None, NOW - 500, (1_799_995_903.0, 1_799_999_504.0)),
        (NOW - 1000, NOW - 999, (1_799_998_994.0, 1_799_999_015.0)),
        (NOW - 1, NOW, (1_799_999_983.0, 1_800_000_004.0)),
    ],
    ids=["both", "from", "to", "too narrow", "too narrow and at the end"],
)
def test_bounds_are_as_they_were_asked_for(
    start: float | None, end: float | None, expected: tuple[float, float]
) -> None:
    """In whole seconds, never narrower than what is remembered of their time."""
    window = window_of(HOUR, start, end, NOW, LENGTHS)

    assert (window.start, window.end) == expected
    assert not window.live


def test_a_narrow_window_of_long_ago_is_as_wide_as_its_rows_need() -> None:
    """A week ago there is a row each five minutes: two minutes of that time show nothing."""
    at = NOW - 7 * 86_400

    window = window_of(DAY, at, at + 120, NOW, LENGTHS)

    assert window.end - window.start == pytest.approx(LEAST_ROWS * 300, abs=2)
    assert window.grain_seconds == 300
    assert window.start < at < window.end


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        (2e9, 3e9, "from is 2033-05-18T03:33:20Z, which is in the future: it is 2027-01-15T08:00:03Z now."),
        (-5.0, 100.0, "from is before 1970"),
        (
            200.0,
            100.0,
            "from is 1970-01-01T00:03:20Z and to is 1970-01-01T00:01:40Z: from must be earlier than to.",
        ),
        (0.0, 1e9, "at most 60 d are shown at once."),
    ],
)
def test_bounds_that_cannot_be_shown_get_a_sentence(start: float, end: float, sentence: str) -> None:
    """It names what was given, as a time, and what would work."""
    with pytest.raises(Problem) as refused:
        window_of(HOUR, start, end, NOW, LENGTHS)

    assert sentence in str(refused.value.detail)
    assert refused.value.status_code == 422


def test_a_range_that_is_not_kept_is_not_offered() -> None:
    """Who keeps two days is not led to a month."""
    short = (LENGTHS[0], LENGTHS[1], Length(300.0, 2 * 86_400.0))

    with pytest.raises(Problem, match=r"range is '30d': use one of 1h, 24h\."):
        range_of("30d", ranges_of(short))

    assert range_of(None, ranges_of(short)) is HOUR


def test_buttons_of_a_live_window() -> None:
    """Nothing is later than now; zooming out keeps now in view."""
    moves = moves_of(window_of(HOUR, None, None, NOW, LENGTHS), NOW, LENGTHS)

    assert moves.later is None
    assert moves.earlier is not None
    assert moves.wider == Stretch(NOW - 7200, NOW)
    assert moves.closer is not None


def test_the_way_back_ends_in_the_range_that_moves_with_the_time() -> None:
    """Half an hour earlier and later again is the hour until now, live."""
    earlier = moves_of(window_of(HOUR, None, None, NOW, LENGTHS), NOW, LENGTHS).earlier
    assert earlier is not None

    back = moves_of(window_of(HOUR, earlier.start, earlier.end, NOW, LENGTHS), NOW, LENGTHS).later

    assert back == Stretch()


@given(st.floats(0, 40 * 86_400), st.floats(1, MOST_SECONDS - 1), st.lists(st.integers(0, 3), max_size=30))
def test_whatever_is_pressed_leads_to_a_window(age: float, length: float, presses: list[int]) -> None:
    """Each link of each page can be shown, and none is wider than what is kept."""
    window = window_of(HOUR, NOW - age - length, NOW - age, NOW, LENGTHS)

    for press in presses:
        moves = moves_of(window, NOW, LENGTHS)
        stretch = (moves.earlier, moves.later, moves.closer, moves.wider)[press]
        if stretch is None:
            continue
        window = window_of(HOUR, stretch.start, stretch.end, NOW, LENGTHS)

        assert window.start <= NOW
        assert 0 < window.end - window.start <= max(30 * 86_400, length + LEAST_ROWS * 300) + 2 * len(presses)
