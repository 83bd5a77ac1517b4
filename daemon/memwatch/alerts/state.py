"""Alert state machine: notify once when a condition persists and once when it clears. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from memwatch.alerts.rules import CRITICAL, LEVELS, SEVERITY, AlertRules, Condition, Severity
from memwatch.alerts.silences import Silence, is_silenced
from memwatch.snapshot import Level, Reason
from memwatch.units import duration

Key = tuple[str, str]

# An alert resolves after this time without its target (a MIG instance, a container that ended).
GONE_SECONDS = 3600.0
REASONS_MOST = 16


class Said(Enum):
    FIRES = auto()
    AGAIN = auto()
    OVER = auto()


class Notice(Struct, frozen=True):
    """A notification. `id` stays the same in every delivery attempt.

    `rule`: the rule that fired; `event`: the same, or its resolved event. `started_unix`: start of firing.
    `repeated`: a reminder of an alert that is still firing. `level`: None for rules without levels.
    """

    id: str
    event: str
    unix: float
    target: str
    level: Level | None
    previous: Level | None
    reasons: tuple[Reason, ...]
    firing: bool
    rule: str = CRITICAL
    severity: Severity = "critical"
    started_unix: float = 0.0
    repeated: bool = False
    fact: bool = False

    @property
    def alert(self) -> str:
        """Key of the alert. Each one-off event is a separate alert."""
        return f"{self.rule} {self.target} {self.id}" if self.fact else f"{self.rule} {self.target}"


class Watch(Struct, frozen=True):
    """State of one alert. Times are monotonic seconds, except `started_unix`.

    `since`: start of a pending change. `said_at`: time of the last notification. `told`: a firing notification
    was sent and no resolved one yet. `seen_at`: last time it was firing with its target present.
    """

    firing: bool = False
    since: float | None = None
    before: Level = Level.LOW
    fired_at: float | None = None
    said_at: float | None = None
    told: bool = False
    seen_at: float | None = None
    started_unix: float = 0.0
    reasons: tuple[Reason, ...] = ()

    @property
    def pending(self) -> bool:
        return not self.firing and self.since is not None


def step(
    watches: Mapping[Key, Watch],
    conditions: Iterable[Condition],
    now: float,
    unix: float,
    rules: AlertRules,
    new_id: Callable[[], str],
    silences: Iterable[Silence] = (),
) -> tuple[Mapping[Key, Watch], tuple[Notice, ...]]:
    """Return the next state of all alerts and the notifications to send.

    The state is the same object if nothing changed. An alert without a condition at this tick keeps its state.
    """
    after, notices = dict(watches), []
    present = {(condition.rule, condition.target): condition for condition in conditions}
    for condition, seen_at in chain(((one, now) for one in present.values()), gone(watches, present, now)):
        key = condition.rule, condition.target
        watch = watches.get(key)
        if watch is None and not condition.true and condition.level is None:
            continue
        silenced = is_silenced(silences, *key, unix)
        if condition.fact:
            state, notice = happened(watch or Watch(), condition, now, unix, rules, silenced)
        else:
            moved = watched(watch or Watch(), condition, now, unix, rules)
            state, notice = said(moved, now, rules, silenced)
        after[key] = replace(state, seen_at=seen_at) if state.firing else state
        notices += [notice_of(state, condition, unix, new_id(), notice is Said.AGAIN)] if notice else []
    return watches if after == watches else after, tuple(notices)


def gone(watches: Mapping[Key, Watch], present: Collection[Key], now: float) -> Iterator[tuple[Condition, float]]:
    """Yield a cleared condition for each firing alert whose target has been missing for `GONE_SECONDS`.

    With each condition comes the time when the target was last seen.
    """
    for (rule, target), watch in watches.items():
        if (rule, target) in present or not watch.firing or watch.seen_at is None:
            continue
        if now - watch.seen_at >= GONE_SECONDS:
            why = Reason("gone", f"{target} has not been seen for {duration(now - watch.seen_at)}")
            yield Condition(rule, target, False, reasons=(why,)), watch.seen_at


def watched(watch: Watch, condition: Condition, now: float, unix: float, rules: AlertRules) -> Watch:
    """Advance one alert: pending to firing, or firing to resolved, when its time has passed."""
    bad = condition.true
    reasons = condition.reasons if condition.true else watch.reasons
    before = watch.before if bad or condition.level is None else condition.level
    if bad == watch.firing:
        reasons = reasons if bad else ()
        calm = watch.since is None and (watch.before, watch.reasons) == (before, reasons)
        return watch if calm else replace(watch, since=None, before=before, reasons=reasons)
    since = now if watch.since is None else watch.since
    if not (is_over if watch.firing else is_due)(watch, condition, now - since, now, rules):
        return replace(watch, since=since, reasons=reasons)
    if bad:
        return replace(watch, firing=True, since=None, fired_at=now, started_unix=unix, reasons=reasons, told=False)
    return replace(watch, firing=False, since=None, before=before)


def happened(
    watch: Watch, condition: Condition, now: float, unix: float, rules: AlertRules, silenced: bool
) -> tuple[Watch, Said | None]:
    """Advance the alert of a one-off event. Events soon after a notification are grouped into the next one."""
    if condition.true:
        since = now if watch.since is None else watch.since
        why = dict.fromkeys((*watch.reasons, *condition.reasons)) if watch.since is not None else condition.reasons
        watch = replace(watch, since=since, reasons=tuple(why)[-REASONS_MOST:], started_unix=unix)
    if watch.since is None or not is_due(watch, condition, now - watch.since, now, rules):
        return watch, None
    if silenced:
        return replace(watch, since=None), None
    return replace(watch, since=None, said_at=now), Said.FIRES


def is_due(watch: Watch, condition: Condition, waited: float, now: float, rules: AlertRules) -> bool:
    """Return True if a pending alert fires now.

    It has waited for `pending_seconds` and, unless urgent, for `again_seconds` since its last notification.
    """
    rested = watch.said_at is None or now - watch.said_at >= rules.again_seconds
    return waited >= condition.pending_seconds and (rested or condition.urgent)


def is_over(watch: Watch, _: Condition, waited: float, now: float, rules: AlertRules) -> bool:
    """Return True if the condition has been clear, and the alert has fired, for long enough."""
    fired = watch.fired_at is None or now - watch.fired_at >= rules.keep_firing_seconds
    return waited >= rules.resolve_seconds and fired


def said(watch: Watch, now: float, rules: AlertRules, silenced: bool) -> tuple[Watch, Said | None]:
    """Return the notification due for an alert. A resolved notification is sent even if silenced."""
    if watch.firing:
        again = watch.told and is_repeat_due(watch, now, rules)
        if silenced or (watch.told and not again):
            return watch, None
        return replace(watch, told=True, said_at=now), Said.AGAIN if again else Said.FIRES
    if not watch.told:
        return watch, None
    return replace(watch, told=False), Said.OVER


def is_repeat_due(watch: Watch, now: float, rules: AlertRules) -> bool:
    long_ago = watch.said_at is not None and now - watch.said_at >= rules.repeat_seconds
    return rules.repeat_seconds > 0 and long_ago


def notice_of(watch: Watch, condition: Condition, unix: float, notice_id: str, repeated: bool = False) -> Notice:
    firing = watch.firing or condition.fact
    previous = watch.before if firing else LEVELS.get(condition.rule, watch.before)
    return Notice(
        id=notice_id,
        event=condition.rule if firing else resolved_event(condition.rule),
        unix=unix,
        target=condition.target,
        level=condition.level,
        previous=None if condition.level is None else previous,
        reasons=watch.reasons if firing else condition.reasons,
        firing=firing,
        rule=condition.rule,
        severity=SEVERITY[condition.rule],
        started_unix=watch.started_unix,
        repeated=repeated,
        fact=condition.fact,
    )


def standing(watches: Mapping[Key, Watch], silences: Iterable[Silence], unix: float) -> list[tuple[Key, Watch]]:
    """Return the firing alerts that were notified and are not silenced. A new receiver gets them at its start."""
    notified = [(key, watch) for key, watch in watches.items() if watch.firing and watch.told]
    return [(key, watch) for key, watch in notified if not is_silenced(silences, *key, unix)]


def resolved_event(rule: str) -> str:
    """Return the event of a resolved alert: pressure.resolved for pressure.critical."""
    return f"{rule.partition('.')[0]}.resolved"
