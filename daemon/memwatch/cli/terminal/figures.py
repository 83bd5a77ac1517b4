"""Figures of the interface: sizes for columns, values over time, and sparklines."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch.cli.tables import BLOCKS
from memwatch.core.model import Absent, Bytes
from memwatch.core.units import BINARY_UNITS, common_power, size
from memwatch.reporting.render.words import DASH, ratio


def short(count: Bytes | None, power: int | None = None) -> str:
    """Format bytes for a column: "64.0G", "512M", "—" if unknown. `power`: the unit to use, of BINARY_UNITS."""
    if count is None or isinstance(count, Absent):
        return DASH
    if count == 0:
        return "0"
    power = common_power(count) if power is None else power
    if power == 0:
        return f"{count}B"
    value = count / 1024**power
    digits = 0 if value >= 999.95 or power < 3 else 1
    return f"{value:,.{digits}f}{BINARY_UNITS[power - 1][0]}"


def percent(part: Bytes, whole: Bytes) -> str:
    """Format a part of a whole: "94.6%", "—" if one of them is unknown."""
    known = isinstance(part, int) and isinstance(whole, int) and whole
    return ratio(part / whole) if known else DASH  # type: ignore[operator]


def pair(part: Bytes | None, whole: Bytes | None) -> str:
    """Format a part and its whole in the unit of the whole: "115.1/121.7G"."""
    if not isinstance(whole, int) or isinstance(whole, Absent) or not whole:
        return short(part)
    power = common_power(whole)
    left = short(part, power)
    return f"{left.rstrip('BKMGTPE')}/{short(whole, power)}"


def signed(count: int | None) -> str:
    """Format a difference: "+1.2G", "−30M", "0"."""
    if count is None:
        return DASH
    sign = "+" if count > 0 else "−" if count < 0 else ""
    power = common_power(abs(count))
    value = abs(count) / 1024**power
    if power and value >= 99.95:  # a sign and four digits fill the column
        return f"{sign}{value:.0f}{BINARY_UNITS[power - 1][0]}"
    return sign + short(abs(count))


def pair_words(part: Bytes | None, whole: Bytes | None) -> str:
    """Format a part and its whole in words: "115.1 / 121.7 GiB"."""
    if not isinstance(part, int) or isinstance(part, Absent):
        return f"{DASH} / {size(whole)}" if isinstance(whole, int) else DASH
    if not isinstance(whole, int) or isinstance(whole, Absent):
        return size(part)
    if not whole:  # a control group that may have nothing
        return f"{size(part)} / {size(whole)}"
    number = short(part, common_power(whole)).rstrip("BKMGTPE")
    return f"{number} / {size(whole)}"


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
        parts = (self.values[first:last] for first, last in self.parts(start, end, count))
        found = [max((one for one in part if one is not None), default=None) for part in parts]
        return _bridged(found, self, (end - start) / count if count else 1.0)

    def parts(self, start: float, end: float, count: int) -> Iterator[tuple[int, int]]:
        """Return the first position in each of `count` equal parts of a time range, and the one after its last."""
        between = (start + (end - start) * number / count for number in range(1, count))
        edges = [bisect_right(self.unix, start), *(bisect_left(self.unix, edge) for edge in between)]
        return pairwise([*edges, bisect_right(self.unix, end)] if count else edges)


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
