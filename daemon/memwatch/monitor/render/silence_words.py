"""Sentences about silences in force: "silenced by root until 18:17: no one is notified". Pure functions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone

from msgspec import Struct

from memwatch.core.silences import Silence
from memwatch.core.snapshot import Pressure, Snapshot

# "root (uid 0)", as callers are recorded. The id is for the list of silences.
UID = re.compile(r" \(uid \d+\)\Z")
# One line each; the list of silences has the others.
MAX_NOTICES = 3


class SilenceNotice(Struct, frozen=True):
    """Sentence about one silence, in parts: each display formats `until_unix` in its own time zone."""

    id: str
    before: str
    until_unix: float
    after: str

    def text(self, until: str) -> str:
        return f"{self.before} {until}{self.after}"


def build_notices(silences: Iterable[Silence], labels: Mapping[str, str]) -> list[SilenceNotice]:
    """Return a notice for each silence that no other one contains, the widest first. `labels`: names of targets."""
    return [_build_notice(one, labels) for one in find_widest(silences)]


def notices_of(snapshot: Snapshot) -> list[SilenceNotice]:
    return build_notices(snapshot.silences, target_labels(snapshot)) if snapshot.silences else []


def find_notice(snapshot: Snapshot, worst: Pressure | None) -> SilenceNotice | None:
    """Return the notice of the widest silence that mutes alerts about the worst level, None without one."""
    target = worst.target if worst else ""
    muting = [one for one in snapshot.silences if one.target in (None, target) and _is_about_levels(one)]
    return build_notices(muting, target_labels(snapshot))[0] if muting else None


def target_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the name of each pool, share and device by its id."""
    return {**snapshot.labels, **{device.id: device.name for device in snapshot.devices}}


def find_widest(silences: Iterable[Silence]) -> list[Silence]:
    """Return the silences without those that a wider one outlasts: all alerts, then targets, then events."""
    ranked = sorted(silences, key=lambda one: (one.target is not None, one.event is not None, -one.until_unix))
    found: list[Silence] = []
    for one in ranked:
        if not any(_contains(other, one) for other in found):
            found.append(one)
    return found


def _contains(wide: Silence, narrow: Silence) -> bool:
    return (
        wide.until_unix >= narrow.until_unix
        and wide.event in (None, narrow.event)
        and wide.target in (None, narrow.target)
    )


def _is_about_levels(silence: Silence) -> bool:
    return silence.event is None or silence.event.startswith("pressure.")


def _build_notice(silence: Silence, labels: Mapping[str, str]) -> SilenceNotice:
    target = None if silence.target is None else labels.get(silence.target, silence.target)
    if silence.event is not None:
        subject = f"{silence.event} alerts{f' of {target}' if target else ''} are "
        after = ": no one is notified of them"
    elif target is not None:
        subject, after = f"{target} is ", ": no one is notified of it"
    else:
        subject, after = "", ": no one is notified"
    by = f" by {UID.sub('', silence.made_by)}" if silence.made_by else ""
    return SilenceNotice(silence.id, f"{subject}silenced{by} until", silence.until_unix, after)


def notice_lines(notices: Sequence[SilenceNotice], now: float) -> list[str]:
    """Return a line for each notice in the local time zone, with the command that ends the silence."""
    lines = [
        f"{one.text(until_local(one.until_unix, now))} ({end_command(one.id)})" for one in notices[:MAX_NOTICES]
    ]
    if len(notices) > MAX_NOTICES:
        lines.append(f"{len(notices) - MAX_NOTICES} more silences (memwatch silence --list)")
    return lines


def end_command(silence_id: str) -> str:
    return f"end it: memwatch silence --end {silence_id}"


def until_utc(unix: float, now: float) -> str:
    """Format an end in UTC: "18:17 UTC", with the date unless it is that of `now`."""
    end, today = (datetime.fromtimestamp(one, timezone.utc) for one in (unix, now))
    return end.strftime("%H:%M UTC" if end.date() == today.date() else "%Y-%m-%d %H:%M UTC")


def until_local(unix: float, now: float) -> str:
    """Format an end in the local time zone: "18:17", with the date unless it is that of `now`."""
    end = time.localtime(unix)
    return time.strftime("%H:%M" if end[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M", end)
