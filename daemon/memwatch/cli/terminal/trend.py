"""Values over time: sparklines in one row and charts in several. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct

BLOCKS = "▁▂▃▄▅▆▇█"


class Trend(Struct, frozen=True):
    """Values of a series by time, oldest first. None is a gap. `lows`: the least, if `values` are the greatest."""

    unix: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    lows: tuple[float | None, ...] = ()

    def lowest(self, start: float, end: float) -> float | None:
        """Return the least value in a time range, None if there is none."""
        pairs = zip(self.unix, self.lows or self.values, strict=True)
        return min((value for unix, value in pairs if value is not None and start < unix <= end), default=None)

    def at(self, unix: float, tolerance: float) -> float | None:
        """Return the last value up to a time, unless it is older than `tolerance` seconds."""
        place = bisect_right(self.unix, unix) - 1
        if place < 0 or unix - self.unix[place] > tolerance:
            return None
        return self.values[place]

    def columns(self, start: float, end: float, count: int) -> list[float | None]:
        """Return the greatest value in each of `count` equal parts of a time range, None where there is none."""
        found: list[float | None] = [None] * count
        length = (end - start) / count if count else 1.0
        first = bisect_right(self.unix, start)
        for unix, value in zip(self.unix[first:], self.values[first:], strict=True):
            if unix > end:
                break
            at = min(count - 1, int((unix - start) / length))
            before = found[at]
            if value is not None and (before is None or value > before):
                found[at] = value
        return _bridged(found, self, length)


def _bridged(found: list[float | None], trend: Trend, length: float) -> list[float | None]:
    """Repeat a value over columns that are shorter than the distance of the samples."""
    if len(trend.unix) < 2:
        return found
    step = (trend.unix[-1] - trend.unix[0]) / (len(trend.unix) - 1)
    reach = round(1.5 * step / length) if length else 0
    last, age = None, 0
    for at, value in enumerate(found):
        if value is None and last is not None and age < reach:
            found[at] = last
            age += 1
        else:
            last, age = value, 0
    return found


def spark(values: Sequence[float | None], top: float) -> str:
    """Return one row of blocks, scaled from 0 to `top`. A gap is a space."""
    return "".join(
        " " if value is None or top <= 0 else BLOCKS[max(0, min(7, int(value / top * 8)))] for value in values
    )


def chart(values: Sequence[float | None], top: float, height: int) -> list[str]:
    """Return rows of blocks from top to bottom, scaled from 0 to `top`."""
    rows = []
    for row in range(height - 1, -1, -1):
        line = []
        for value in values:
            eighths = 0 if value is None or top <= 0 else max(1, round(value / top * height * 8)) - row * 8
            line.append(" " if eighths <= 0 else BLOCKS[min(7, eighths - 1)])
        rows.append("".join(line))
    return rows
