"""Sizes and durations formatted for display, in binary units. Rounding happens only here."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30
BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
GIB_POWER = 3
UNITS_OF_TIME = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
# Upper end of a range of predictions and the step to which they are rounded, in seconds.
FORECAST_STEPS, LONG_FORECAST_STEP = ((20, 1), (120, 5), (600, 30), (7200, 60)), 600


def size(count: int) -> str:
    """Format a number of bytes: 13314398208 is "12.4 GiB", and from 1,000 on without decimals: "2,016 GiB"."""
    power = common_power(count)
    if power == 0:
        return f"{count:,} B"
    value = count / 1024**power
    number = f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"
    return f"{number} {BINARY_UNITS[power - 1]}"


def common_power(count: int) -> int:
    """Return the power of 1024 of the unit for a size; 0 is bytes, 1 is BINARY_UNITS[0].

    From GiB on, a unit lasts until 10,240: one decimal of a TiB would hide 50 GiB, and sizes that are compared
    keep one unit.
    """
    power = min(max(0, count.bit_length() - 1) // 10, len(BINARY_UNITS))
    value = count / 1024**power
    if power > GIB_POWER and value < 9.9995:
        return power - 1
    if power < GIB_POWER and value >= 1023.95:  # one decimal would read 1024.0
        return power + 1
    return power


def duration(seconds: float) -> str:
    """Format a duration, two units at most: "35 µs", "1.7 ms", "0.4 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if 0 < seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if 0 < seconds < 0.09995:
        return f"{seconds * 1e3:.{1 if seconds < 0.00995 else 0}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return _pair(round(seconds), UNITS_OF_TIME)


def forecast(seconds: float) -> str:
    """Format a predicted duration with the digits that a prediction has: "7 s", "25 s", "3 min 30 s", "12 min"."""
    step = next((step for below, step in FORECAST_STEPS if seconds < below), LONG_FORECAST_STEP)
    return duration_of_whole(max(1, round(seconds / step) * step))


def duration_of_whole(seconds: int) -> str:
    """Format whole seconds, two units at most: "9 s", "3 min 20 s", "2 h 5 min"."""
    return _pair(seconds, UNITS_OF_TIME) if seconds else "0 s"


def _pair(seconds: int, units: tuple[tuple[int, str], ...]) -> str:
    first = next(index for index, (length, _) in enumerate(units) if seconds >= length)
    length, unit = units[first]
    text = f"{seconds // length} {unit}"
    if first + 1 < len(units):
        smaller, name = units[first + 1]
        rest = seconds % length // smaller
        text += f" {rest} {name}" if rest else ""
    return text
