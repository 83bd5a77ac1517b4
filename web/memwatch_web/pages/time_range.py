"""Time ranges of the history page: parse a window from a query, and move or zoom it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from memwatch.monitor.history.tier import TierSpec
from memwatch.monitor.render.words import duration, timestamp
from memwatch_web.asgi.problems import ProblemError

# Resolution of a chart of a thousand pixels: about three pixels for each point.
POINTS = 360
MIN_ROWS = 20
MAX_SECONDS = 60 * 86_400.0
# Bounds are rounded to whole seconds at each move.
SLACK_SECONDS = 60.0


class Range(Struct, frozen=True):
    """A selectable range. `step_seconds` is a multiple of the step of a history tier, so that queries are cheap.

    `poll_seconds`: refresh interval of a live page.
    """

    name: str
    label: str
    seconds: float
    step_seconds: float
    poll_seconds: float


RANGES = (
    Range("10m", "10 m", 600.0, 2.0, 5.0),
    Range("1h", "1 h", 3600.0, 10.0, 5.0),
    Range("6h", "6 h", 21_600.0, 60.0, 10.0),
    Range("24h", "24 h", 86_400.0, 300.0, 15.0),
    Range("7d", "7 d", 604_800.0, 1800.0, 60.0),
    Range("30d", "30 d", 2_592_000.0, 7200.0, 120.0),
)


class TimeWindow(Struct, frozen=True):
    """From `start` to `end` in Unix seconds, in `points` steps. `live`: it ends now and moves with the time.

    `grain_seconds`: the time that one point covers: a step, or a row of the tier that reaches back far enough.
    """

    range: Range
    start: float
    end: float
    points: int
    live: bool
    grain_seconds: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class WindowLink(Struct, frozen=True):
    """The target of a button. Without bounds it is the live range."""

    start: float | None = None
    end: float | None = None


class Moves(Struct, frozen=True):
    """The moves from a window, None if not possible."""

    earlier: WindowLink | None
    later: WindowLink | None
    closer: WindowLink | None
    wider: WindowLink | None


def available_ranges(tiers: Sequence[TierSpec]) -> tuple[Range, ...]:
    """Return the ranges that the tiers can fill, and always the shortest."""
    max_seconds = max(tier.seconds for tier in tiers)
    return tuple(one for one in RANGES if one is RANGES[0] or one.seconds <= max_seconds)


def choose_range(known_seconds: float, offered: tuple[Range, ...]) -> Range:
    """Return the range to begin with: an hour, or ten minutes while little more is known."""
    return offered[0] if known_seconds < 2 * offered[0].seconds or len(offered) < 2 else offered[1]


def find_range(name: str | None, offered: tuple[Range, ...], usual: Range | None = None) -> Range:
    wanted = name or (usual or offered[0]).name
    found = next((one for one in offered if one.name == wanted), None)
    if found is None:
        names = ", ".join(one.name for one in offered)
        raise ProblemError(422, f"range is {(name or '')[:80]!r}: use one of {names}.")
    return found


def build_window(
    wanted: Range, start: float | None, end: float | None, now: float, tiers: Sequence[TierSpec]
) -> TimeWindow:
    """Return the requested window. A missing bound follows from the range.

    A window too narrow for the resolution of its time is widened around its middle.
    """
    if start is None and end is None:
        end = math.ceil(now / wanted.step_seconds) * wanted.step_seconds
        points = round(wanted.seconds / wanted.step_seconds)
        grain = max(wanted.step_seconds, row_seconds(wanted.seconds, tiers))
        return TimeWindow(wanted, end - wanted.seconds, end, points, True, grain)
    if end is None:
        end = now if start is None else min(now, start + wanted.seconds)
    start = end - wanted.seconds if start is None else start
    _refuse(start, end, now)
    row = row_seconds(now - start, tiers)
    short = max(0.0, MIN_ROWS * row - (end - start))
    late = max(0.0, end + short / 2 - now) if short else 0.0
    start, end = float(math.floor(start - short / 2 - late)), float(math.ceil(end + short / 2 - late))
    return TimeWindow(wanted, start, end, POINTS, False, max(row, (end - start) / POINTS))


def row_seconds(age: float, tiers: Sequence[TierSpec]) -> float:
    """Return the step of the finest tier that reaches back to this age."""
    return next((tier.step_seconds for tier in tiers if age <= tier.seconds), tiers[-1].step_seconds)


def _refuse(start: float, end: float, now: float) -> None:
    if start < 0:
        raise ProblemError(422, "from is before 1970: use a time such as 2026-01-31T12:00:00Z.")
    if start > now:
        raise ProblemError(422, f"from is {timestamp(start)}, which is in the future: it is {timestamp(now)} now.")
    if start >= end:
        raise ProblemError(
            422, f"from is {timestamp(start)} and to is {timestamp(end)}: from must be earlier than to."
        )
    if end - start > MAX_SECONDS + SLACK_SECONDS:
        raise ProblemError(
            422,
            f"from is {timestamp(start)} and to is {timestamp(end)}, {duration(end - start)} later: "
            f"at most {duration(MAX_SECONDS)} are shown at once.",
        )


def build_moves(window: TimeWindow, now: float, tiers: Sequence[TierSpec]) -> Moves:
    """Return the moves: half a window to either side, half the length, twice the length."""
    start, end, length = window.start, min(window.end, now), window.seconds
    middle, row = (start + end) / 2, row_seconds(now - start, tiers)
    max_seconds = max(tier.seconds for tier in tiers)
    closer = WindowLink(middle - length / 4, middle + length / 4) if length >= 2 * MIN_ROWS * row else None
    wider = min(2 * length, max_seconds)
    return Moves(
        earlier=WindowLink(start - length / 2, start + length / 2) if start > now - max_seconds else None,
        later=None if window.live else _until_now(start + length / 2, length, window.range, now),
        closer=closer,
        wider=_until_now(middle - wider / 2, wider, window.range, now) if wider > length * 1.01 else None,
    )


def _until_now(start: float, length: float, usual: Range, now: float) -> WindowLink:
    """Return a range of this length that ends now at the latest. It is live if it is the default length."""
    if start + length < now:
        return WindowLink(start, start + length)
    if abs(length - usual.seconds) < usual.step_seconds:
        return WindowLink()
    return WindowLink(now - length, now)
