"""When to speak: one notice when a target stays critical, one when it has stayed better. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from memwatch.model import Absent
from memwatch.pressure.rules import FILLED_ON_PURPOSE
from memwatch.snapshot import Level, Pressure, Reason

URGENT = frozenset({"floor", "oom_kill"})
URGENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class AlertRules:
    """How long a target must be critical before anybody is told, and better before the alert is resolved.

    A GPU's own memory is filled on purpose by programs that serve models, so it has a time of its own. What
    cannot wait (`URGENT`, or full within `URGENT_SECONDS`) is told at once.
    """

    pending_seconds: float = 5.0
    resolve_seconds: float = 60.0
    gpu_pending_seconds: float = 60.0

    def pending_for(self, verdict: Pressure) -> float:
        full = verdict.seconds_to_full
        if verdict.kind in FILLED_ON_PURPOSE:
            return self.gpu_pending_seconds
        if any(reason.signal in URGENT for reason in verdict.reasons):
            return 0.0
        return 0.0 if not isinstance(full, Absent) and full < URGENT_SECONDS else self.pending_seconds


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell somebody. `id` stays the same over every attempt to deliver it."""

    id: str
    event: str
    unix: float
    target: str
    level: Level
    previous: Level
    reasons: tuple[Reason, ...]
    firing: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """What has to be remembered of one target's alert. Times are monotonic seconds."""

    firing: bool = False
    since: float | None = None
    before: Level = Level.LOW


def step(
    watches: Mapping[str, Watch],
    pressure: Iterable[Pressure],
    now: float,
    unix: float,
    rules: AlertRules,
    new_id: Callable[[], str],
) -> tuple[Mapping[str, Watch], tuple[Notice, ...]]:
    """What to remember and what to say. A target that has no figure now neither fires nor resolves."""
    after, notices = dict(watches), []
    for verdict in pressure:
        watch = watches.get(verdict.target, Watch())
        moved = watched(watch, verdict, now, rules)
        after[verdict.target] = moved
        if moved.firing != watch.firing:
            notices.append(notice_of(moved, verdict, unix, new_id()))
    return after, tuple(notices)


def watched(watch: Watch, verdict: Pressure, now: float, rules: AlertRules) -> Watch:
    """One target's alert after this verdict: pending becomes firing and firing resolved, each in its time."""
    critical = verdict.level is Level.CRITICAL
    if critical == watch.firing:
        return Watch(watch.firing, None, watch.before if critical else verdict.level)
    since = now if watch.since is None else watch.since
    wait = rules.resolve_seconds if watch.firing else rules.pending_for(verdict)
    if now - since < wait:
        return replace(watch, since=since)
    return Watch(critical, None, watch.before if critical else verdict.level)


def notice_of(watch: Watch, verdict: Pressure, unix: float, notice_id: str) -> Notice:
    return Notice(
        id=notice_id,
        event="pressure.critical" if watch.firing else "pressure.resolved",
        unix=unix,
        target=verdict.target,
        level=verdict.level,
        previous=watch.before if watch.firing else Level.CRITICAL,
        reasons=verdict.reasons,
        firing=watch.firing,
    )
