"""Times as date(1) shows them: local, with the zone."""

from __future__ import annotations

import time


def clock(unix: float) -> str:
    """Format the time of day: "11:22:33 CET"."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix))


def stamp(unix: float) -> str:
    """Format an instant: "2026-11-21 11:22:33 CET"."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(unix))


def when(unix: float, now: float) -> str:
    """Format an instant as the time of day, with the date unless it is that of `now`."""
    same_day = time.localtime(unix)[:3] == time.localtime(now)[:3]
    return clock(unix) if same_day else stamp(unix)
