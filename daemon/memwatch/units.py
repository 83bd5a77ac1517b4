"""Sizes and durations formatted for display, in binary units. Rounding happens only here."""

from __future__ import annotations

BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(count: int) -> str:
    """Format a number of bytes: 13314398208 is "12.4 GiB"."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(BINARY_UNITS))
    if count / 1024**power >= 1023.95 and power < len(BINARY_UNITS):  # one decimal would read 1024.0
        power += 1
    return f"{count / 1024**power:.1f} {BINARY_UNITS[power - 1]}"


def duration(seconds: float) -> str:
    """Format a duration, two units at most: "35 µs", "1.7 ms", "0.4 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    if 0 < seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if 0 < seconds < 0.09995:
        return f"{seconds * 1e3:.{1 if seconds < 0.00995 else 0}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return _pair(round(seconds), ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")))


def _pair(seconds: int, units: tuple[tuple[int, str], ...]) -> str:
    first = next(index for index, (length, _) in enumerate(units) if seconds >= length)
    length, unit = units[first]
    text = f"{seconds // length} {unit}"
    if first + 1 < len(units):
        smaller, name = units[first + 1]
        rest = seconds % length // smaller
        text += f" {rest} {name}" if rest else ""
    return text
