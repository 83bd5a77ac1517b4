"""Alert state machine: notify once when a condition persists and once when it clears. Its steps are pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from memwatch.alerts.rules import CRITICAL, LEVELS, SEVERITY, AlertRules, Condition, Severity
from memwatch.silences import Silence, is_silenced
from memwatch.snapshot import Level, Reason
from memwatch.units import duration

Key = tuple[str, str]

# An alert resolves after this time without its target (a MIG instance, a container that ended).
GONE_SECONDS = 3600.0
MAX_REASONS = 16


class Transition(Enum):
    FIRING = auto()
    REPEATED = auto()
    RESOLVED = auto()


class Notification(Struct, frozen=True):
    """A notification. `id` stays the same in every delivery attempt.

    `rule`: the rule that fired; `event`: the same, or its resolved event. `started_unix`: start of firing.
    `repeated`: a reminder of an alert that is still firing. `level`: that of the alert, `level_now`: that of the
    target, which may have come down while the alert still fires. None for rules without levels, and if unknown.
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
    level_now: Level | None = None

    @property
    def has_eased(self) -> bool:
        """Return True if the alert fires although its target has come down to a lower level."""
        if not self.firing or self.level is None or self.level_now is None:
            return False
        return self.level_now < self.level

    @property
    def alert(self) -> str:
        """Key of the alert. Each one-off event is a separate alert."""
        return f"{self.rule} {self.target} {self.id}" if self.fact else f"{self.rule} {self.target}"


def new_notification_id() -> str:
    return f"msg_{secrets.token_hex(12)}"


class AlertState(Struct, frozen=True):
    """State of one alert. Times are monotonic seconds, except `started_unix`.

    `since`: start of a pending change. `notified_at`: time of the last notification. `notified`: a firing
    notification was sent and no resolved one yet. `seen_at`: last time it was firing with its target present.
    """

    firing: bool = False
    since: float | None = None
    before: Level = Level.LOW
    fired_at: float | None = None
    notified_at: float | None = None
    notified: bool = False
    seen_at: float | None = None
    started_unix: float = 0.0
    reasons: tuple[Reason, ...] = ()

    @property
    def pending(self) -> bool:
        return not self.firing and self.since is not None


def step(
    states: Mapping[Key, AlertState],
    conditions: Iterable[Condition],
    now: float,
    unix: float,
    rules: AlertRules,
    new_id: Callable[[], str],
    silences: Iterable[Silence] = (),
) -> tuple[Mapping[Key, AlertState], tuple[Notification, ...]]:
    """Return the next state of all alerts and the notifications to send.

    `silences`: those in force. The state is the same object if nothing changed. An alert without a condition at
    this tick keeps its state.
    """
    after, notifications = dict(states), []
    present = {(condition.rule, condition.target): condition for condition in conditions}
    for condition, seen_at in chain(((one, now) for one in present.values()), vanished(states, present, now)):
        key = condition.rule, condition.target
        watch = states.get(key)
        if is_calm(watch, condition):
            continue
        silenced = is_silenced(silences, *key)
        if condition.fact:
            state, transition = advance_fact(watch or AlertState(), condition, now, unix, rules, silenced)
        else:
            moved = advance(watch or AlertState(), condition, now, unix, rules)
            state, transition = notify(moved, now, rules, silenced)
        after[key] = replace(state, seen_at=seen_at) if state.firing else state
        notifications += (
            [build_notification(state, condition, unix, new_id(), transition is Transition.REPEATED)]
            if transition
            else []
        )
    return states if after == states else after, tuple(notifications)


def is_calm(state: AlertState | None, condition: Condition) -> bool:
    """Return True if a condition is not true and changes nothing, as most are on most ticks."""
    if condition.true or condition.fact:
        return False
    if state is None:
        return condition.level is None
    is_at_rest = not state.firing and not state.notified and state.since is None and not state.reasons
    return is_at_rest and condition.level in (None, state.before)


def vanished(
    states: Mapping[Key, AlertState], present: Collection[Key], now: float
) -> Iterator[tuple[Condition, float]]:
    """Yield a cleared condition for each firing alert whose target has been missing for `GONE_SECONDS`.

    With each condition comes the time when the target was last seen.
    """
    for (rule, target), state in states.items():
        if (rule, target) in present or not state.firing or state.seen_at is None:
            continue
        if now - state.seen_at >= GONE_SECONDS:
            why = Reason("gone", f"{target} has not been seen for {duration(now - state.seen_at)}")
            yield Condition(rule, target, False, reasons=(why,)), state.seen_at


def advance(state: AlertState, condition: Condition, now: float, unix: float, rules: AlertRules) -> AlertState:
    """Advance one alert: pending to firing, or firing to resolved, when its time has passed."""
    bad = condition.true
    reasons = condition.reasons if condition.true else state.reasons
    before = state.before if bad or condition.level is None else condition.level
    if bad == state.firing:
        reasons = reasons if bad else ()
        calm = state.since is None and (state.before, state.reasons) == (before, reasons)
        return state if calm else replace(state, since=None, before=before, reasons=reasons)
    since = now if state.since is None else state.since
    if not (is_over if state.firing else is_due)(state, condition, now - since, now, rules):
        return replace(state, since=since, reasons=reasons)
    if bad:
        return replace(
            state, firing=True, since=None, fired_at=now, started_unix=unix, reasons=reasons, notified=False
        )
    return replace(state, firing=False, since=None, before=before)


def advance_fact(
    state: AlertState, condition: Condition, now: float, unix: float, rules: AlertRules, silenced: bool
) -> tuple[AlertState, Transition | None]:
    """Advance the alert of a one-off event. Events soon after a notification are grouped into the next one."""
    if condition.true:
        since = now if state.since is None else state.since
        why = dict.fromkeys((*state.reasons, *condition.reasons)) if state.since is not None else condition.reasons
        state = replace(state, since=since, reasons=tuple(why)[-MAX_REASONS:], started_unix=unix)
    if state.since is None or not is_due(state, condition, now - state.since, now, rules):
        return state, None
    if silenced:
        return replace(state, since=None), None
    return replace(state, since=None, notified_at=now), Transition.FIRING


def is_due(state: AlertState, condition: Condition, waited: float, now: float, rules: AlertRules) -> bool:
    """Return True if a pending alert fires now.

    It has waited for `pending_seconds` and, unless urgent, for `again_seconds` since its last notification.
    """
    rested = state.notified_at is None or now - state.notified_at >= rules.again_seconds
    return waited >= condition.pending_seconds and (rested or condition.urgent)


def is_over(state: AlertState, _: Condition, waited: float, now: float, rules: AlertRules) -> bool:
    """Return True if the condition has been clear, and the alert has fired, for long enough."""
    fired = state.fired_at is None or now - state.fired_at >= rules.keep_firing_seconds
    return waited >= rules.resolve_seconds and fired


def notify(
    state: AlertState, now: float, rules: AlertRules, silenced: bool
) -> tuple[AlertState, Transition | None]:
    """Return the notification due for an alert. A resolved notification is sent even if silenced."""
    if state.firing:
        again = state.notified and is_repeat_due(state, now, rules)
        if silenced or (state.notified and not again):
            return state, None
        return replace(state, notified=True, notified_at=now), Transition.REPEATED if again else Transition.FIRING
    if not state.notified:
        return state, None
    return replace(state, notified=False), Transition.RESOLVED


def is_repeat_due(state: AlertState, now: float, rules: AlertRules) -> bool:
    long_ago = state.notified_at is not None and now - state.notified_at >= rules.repeat_seconds
    return rules.repeat_seconds > 0 and long_ago


def build_notification(
    state: AlertState, condition: Condition, unix: float, notice_id: str, repeated: bool = False
) -> Notification:
    firing = state.firing or condition.fact
    previous = state.before if firing else LEVELS.get(condition.rule, state.before)
    level = level_of(condition) if firing else condition.level
    return Notification(
        id=notice_id,
        event=condition.rule if firing else resolved_event(condition.rule),
        unix=unix,
        target=condition.target,
        level=level,
        previous=None if level is None else previous,
        reasons=state.reasons if firing else condition.reasons,
        firing=firing,
        rule=condition.rule,
        severity=SEVERITY[condition.rule],
        started_unix=state.started_unix,
        repeated=repeated,
        fact=condition.fact,
        level_now=condition.level,
    )


def level_of(condition: Condition) -> Level | None:
    """Return the level of a firing alert: at least that of its rule, also after its target has come down."""
    own, now = LEVELS.get(condition.rule), condition.level
    return max(own, now) if own is not None and now is not None else own if now is None else now


def active_alerts(states: Mapping[Key, AlertState], silences: Iterable[Silence]) -> list[tuple[Key, AlertState]]:
    """Return the firing alerts that were notified and that no silence in force mutes. A new receiver gets them."""
    notified = [(key, state) for key, state in states.items() if state.firing and state.notified]
    return [(key, state) for key, state in notified if not is_silenced(silences, *key)]


def resolved_event(rule: str) -> str:
    """Return the event of a resolved alert: pressure.resolved for pressure.critical."""
    return f"{rule.partition('.')[0]}.resolved"
