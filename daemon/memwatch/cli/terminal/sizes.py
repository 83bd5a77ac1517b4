"""Short sizes for columns: "64.0G". Sizes that are compared have one unit."""

from __future__ import annotations

from memwatch.core.model import Absent, Bytes
from memwatch.core.units import BINARY_UNITS, common_power, size
from memwatch.monitor.render.words import DASH, ratio


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
    number = short(part, common_power(whole)).rstrip("BKMGTPE")
    return f"{number} / {size(whole)}"
