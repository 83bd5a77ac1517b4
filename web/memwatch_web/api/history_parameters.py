"""Parameters of history queries: names of series, and times. Name of a file with the answer."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.problems import ProblemError

# Limit of one history request, and of the curves that a page draws.
MAX_SERIES = 20
# The difference between the clocks is read again for each conversion and varies by microseconds. Without this, a
# query until now sometimes left out the latest row.
MAX_JITTER_SECONDS = 0.001
# RFC 3339 allows any number of digits, and Go writes up to nine; Python 3.10 reads three or six.
FRACTION = re.compile(r"\.([0-9]{1,30})")


def span(monitor: Monitor, from_: str | None, to: str | None, seconds: float) -> tuple[float, float]:
    """Return begin and end in Unix seconds. Default: the last `seconds` until now."""
    end = instant("to", to, monitor.to_wall(monitor.features.get(HistoryRecorder).tiers.end) + MAX_JITTER_SECONDS)
    start = instant("from", from_, max(0.0, end - seconds))
    if start >= end:
        raise ProblemError(422, f"from is {start} and to is {end}: from must be earlier than to.")
    return start, end


def parse_names(values: list[str] | None, past: AllSeries) -> list[str]:
    """Return the full names of the requested series. Default: the used bytes of every pool."""
    known = past.names()
    # The name of a cgroup may contain a comma.
    parts = [[one] if one in known else one.split(",") for one in values or []]
    names = [past.find(name) for part in parts for name in part if name]
    if values and not names:
        raise ProblemError(422, "series is empty: leave it out for the used bytes of every pool.")
    if not names:
        return [name for name in known if name.startswith("pool.") and name.endswith(".used_bytes")]
    for name in names:
        if name not in known:
            raise ProblemError(
                422, f"series is {name[:80]!r}: no such series. Available: {', '.join(sorted(known))}."
            )
    if len(names) > MAX_SERIES:
        raise ProblemError(422, f"series names {len(names)} series: at most {MAX_SERIES} in one request.")
    return names


def instant(name: str, text: str | None, default: float, others: str = "") -> float:
    """Parse a time parameter to Unix seconds. `others`: further forms that its caller takes. Raises Problem."""
    if text is None:
        return default
    try:
        unix = math.nan if "_" in text else float(text)  # Python reads 1_000 as a number
    except ValueError:
        unix = _rfc3339(text)
    if not math.isfinite(unix) or abs(unix) > 1e11:
        raise ProblemError(
            422, f"{name} is {text[:80]!r}: give {others}Unix seconds or a time such as 2026-01-31T12:00:00Z."
        )
    refuse_before_1970(name, unix)
    return unix


def refuse_before_1970(name: str, unix: float) -> None:
    """Raise Problem for negative Unix seconds: a client that sends -1 means a second ago."""
    if unix < 0:
        raise ProblemError(422, f"{name} is before 1970: use a time such as 2026-01-31T12:00:00Z.")


def _rfc3339(text: str) -> float:
    try:
        text = FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text)
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00").replace(" ", "+"))
        return parsed.replace(tzinfo=parsed.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def build_file_name(host: str, start: float, end: float) -> str:
    """Return a file name without characters that are special to a shell or an HTTP header."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")[:60]
    times = [
        datetime.fromtimestamp(max(0.0, unix), timezone.utc).strftime("%Y%m%dT%H%M%SZ") for unix in (start, end)
    ]
    return "-".join(["memwatch", name or "machine", *times])
