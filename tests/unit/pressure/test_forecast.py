"""Test the trend of available memory: gaps, the shortest fall that counts, and the forecast of each horizon."""

from __future__ import annotations

import pytest

from memwatch.pressure.forecast import Trend
from support.fakes import GIB

SIZE = 64 * GIB


def fall(seconds: float, start: float = 0.0, available: int = 24 * GIB, pace: int = GIB) -> Trend:
    """Return the trend of memory that falls by `pace` in each second and is read once a second."""
    trend = Trend()
    for second in range(int(seconds) + 1):
        trend = trend.with_point(start + second, available - second * pace, SIZE)
    return trend


@pytest.mark.parametrize(("gap", "is_known"), [(6.0, True), (6.5, False)])
def test_gap_without_a_reading_ends_the_trend(gap: float, is_known: bool) -> None:
    """Memory that was not read may have moved for other reasons: the next trend needs five seconds of readings."""
    trend = fall(8)
    for second in range(5):
        at = 8 + gap + second
        trend = trend.with_point(at, 24 * GIB - int(at * GIB), SIZE)

    assert fall(8).forecast(SIZE) is not None
    assert (trend.forecast(SIZE) is not None) is is_known
    assert [slope.points[0].at for slope in (trend.near, trend.far)] == [0.0 if is_known else 8 + gap] * 2
