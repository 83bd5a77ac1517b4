"""Time ranges of the history page: parsing, moving and zooming."""

from __future__ import annotations

from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from memwatch.reporting.history.tier import TierSpec
from memwatch_monitor.history.tiers import TIER_SPECS
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_data import (
    MAX_SECONDS,
    MIN_ROWS,
    RANGES,
    TimeWindow,
    WindowLink,
    available_ranges,
    build_moves,
    build_window,
    find_range,
    row_seconds,
)
from memwatch_web.pages.history_page import parse_window
from support.sample_past import past_of
from support.sample_snapshots import critical_gb10

NOW = 1_800_000_003.7
HOUR, DAY = RANGES[1], RANGES[3]


def test_live_range_is_aligned_to_its_step() -> None:
    """A second later the buckets start at the same times, so that the chart does not flicker."""
    first, second = (build_window(HOUR, None, None, now, TIER_SPECS) for now in (NOW, NOW + 1))

    assert first == second == TimeWindow(HOUR, 1_799_996_410.0, 1_800_000_010.0, 360, True, 10.0)


@pytest.mark.parametrize("wanted", RANGES)
def test_step_of_a_range_is_a_multiple_of_a_tier(wanted: object) -> None:
    one = next(one for one in RANGES if one is wanted)
    window = build_window(one, None, None, NOW, TIER_SPECS)

    tier = row_seconds(one.seconds, TIER_SPECS)

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
def test_bounds_are_rounded_to_seconds(
    start: float | None, end: float | None, expected: tuple[float, float]
) -> None:
    """A window is never narrower than the resolution of its time."""
    window = build_window(HOUR, start, end, NOW, TIER_SPECS)

    assert (window.start, window.end) == expected
    assert not window.live


def test_narrow_old_window_is_widened_to_its_rows() -> None:
    """A week ago there is one row every five minutes, so two minutes would be empty."""
    at = NOW - 7 * 86_400

    window = build_window(DAY, at, at + 120, NOW, TIER_SPECS)

    assert window.end - window.start == pytest.approx(MIN_ROWS * 300, abs=2)
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
def test_invalid_bounds_are_refused_with_a_sentence(start: float, end: float, sentence: str) -> None:
    """The sentence has the given time and a valid one."""
    with pytest.raises(ProblemError) as rejected:
        build_window(HOUR, start, end, NOW, TIER_SPECS)

    assert sentence in str(rejected.value.detail)
    assert rejected.value.status_code == 422


def test_range_beyond_the_history_is_not_offered() -> None:
    short = (TIER_SPECS[0], TIER_SPECS[1], TierSpec(300.0, 2 * 86_400.0))

    with pytest.raises(ProblemError, match=r"range is '30d': use one of 10m, 1h, 6h, 24h\."):
        find_range("30d", available_ranges(short))

    assert find_range(None, available_ranges(short), HOUR) is HOUR


def test_live_window_has_no_later_move() -> None:
    """Zooming out keeps the present in view."""
    moves = build_moves(build_window(HOUR, None, None, NOW, TIER_SPECS), NOW, TIER_SPECS)

    assert moves.later is None
    assert moves.earlier is not None
    assert moves.wider == WindowLink(NOW - 7200, NOW)
    assert moves.closer is not None


def test_moving_back_to_now_is_live_again() -> None:
    """Half an hour earlier and later again is the live hour."""
    earlier = build_moves(build_window(HOUR, None, None, NOW, TIER_SPECS), NOW, TIER_SPECS).earlier
    assert earlier is not None

    back = build_moves(build_window(HOUR, earlier.start, earlier.end, NOW, TIER_SPECS), NOW, TIER_SPECS).later

    assert back == WindowLink()


@given(st.floats(0, 40 * 86_400), st.floats(1, MAX_SECONDS - 1), st.lists(st.integers(0, 3), max_size=30))
def test_any_sequence_of_moves_is_valid(age: float, length: float, presses: list[int]) -> None:
    """No window is wider than the history."""
    window = build_window(HOUR, NOW - age - length, NOW - age, NOW, TIER_SPECS)

    for press in presses:
        moves = build_moves(window, NOW, TIER_SPECS)
        series_slice = (moves.earlier, moves.later, moves.closer, moves.wider)[press]
        if series_slice is None:
            continue
        window = build_window(HOUR, series_slice.start, series_slice.end, NOW, TIER_SPECS)

        assert window.start <= NOW
        assert 0 < window.end - window.start <= max(30 * 86_400, length + MIN_ROWS * 300) + 2 * len(presses)


def test_moment_is_in_the_middle_of_its_range() -> None:
    """Of one that is just past, the range ends now."""
    snapshot = critical_gb10()
    past, now = past_of(snapshot), snapshot.unix

    early, late = (parse_window(past, QueryParams(range="10m", at=str(now - ago)), snapshot) for ago in (1000, 60))

    assert (early.start, early.end, early.live) == (floor(now - 1300), ceil(now - 700), False)
    assert (late.start, late.end) == (floor(now - 360), ceil(now))


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("at=9999999999", "at is 2286-11-20T17:46:39Z, which is in the future"),
        ("at=1&from=2", "use one of both"),
        ("at=x", "at is 'x': give Unix seconds or a time such as"),
    ],
)
def test_invalid_moment_is_refused(query: str, sentence: str) -> None:
    snapshot = critical_gb10()
    with pytest.raises(ProblemError) as caught:
        parse_window(past_of(snapshot), QueryParams(query), snapshot)

    assert sentence in str(caught.value.detail)
