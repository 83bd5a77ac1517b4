"""Lists with an upper length: what is left out is said where the list is shown."""

from __future__ import annotations

from collections.abc import Sequence


def some_of(names: Sequence[str], most: int, others: int = 0) -> str:
    """Return the first names as a text: "a, b and 4 more". `others`: number of those that the names lack."""
    left_out = max(0, len(names) - most) + others
    return ", ".join(names[:most]) + (f" and {left_out} more" if left_out else "")


def first_of(lines: Sequence[str], most: int, what: str) -> tuple[str, ...]:
    """Return at most that many lines; the last one counts those that are left out: "4 more reasons"."""
    if len(lines) <= most:
        return tuple(lines)
    return (*lines[: most - 1], f"{len(lines) - most + 1} more {what}")
