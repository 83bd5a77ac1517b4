"""Alert state machine: notify once when a condition persists and once when it clears. Its steps are pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.silences import Silence, is_silenced
from memwatch.core.snapshot import CollectorState, Level, Reason
from memwatch.core.units import duration
from memwatch_monitor.alerts.notification import (
    GROUPED,
    Key,
    Notification,
    add_news,
    date_news,
    with_said,
    without_ages,
    without_said,
)
from memwatch_monitor.alerts.rules import FACTS, LEVELS, SEVERITY, WAS, AlertRules, Condition, waiting_of

# An alert resolves after this time without its target (a MIG instance, a container that ended).
GONE_SECONDS = 3600.0
# A pending one ends after this time.
PENDING_GONE_SECONDS = 60.0
# New reasons of an alert are notified together, at most this often.
CHANGE_SECONDS = 30.0
# Events of one notification, of which receivers get at most 16 reasons. The number of others is one of them.
MAX_EVENTS = 15
# Events that keep coming are notified at intervals that double up to this one: four times in the first hour.
MAX_GROUP_SECONDS = 1800.0
# Events after this time without a notification are a new series. With less, five would fit in an hour.
NEW_SECONDS = 3600.0
MAX_ROUNDS = 16
# Signal of the reason of an alert that fires although its source stopped answering.
SOURCE = "source"
NO_COLLECTORS: Mapping[str, CollectorState] = {}


class Transition(Enum):
    FIRING = auto()
    CHANGED = auto()
    REPEATED = auto()
    RESOLVED = auto()


class AlertState(Struct, frozen=True):
    """State of one alert. Times are monotonic seconds, except `started_unix`.

    `since`: start of a pending change. `notified_at`: time of the last notification. `notified`: a firing
    notification was sent and no resolved one yet. `seen_at`: last time it was active with its target present.
    `said`: signals of the notifications since it fires, with their levels. `news`: reasons that none of them had.
    `news_at`: when each signal of those was last true. `ended_at`: when it resolved. `returned`: it fired again
    soon after that. `source` and `wait_seconds`: those of its last true condition. `left_out`: number of pending
    events that `reasons` has no room for. `rounds`: notifications of events that keep coming; `grouped_seconds`:
    time between the last two of them. Three fields have another name in files, which all versions read.
    """

    firing: bool = False
    since: float | None = None
    before: Level = Level.LOW
    fired_at: float | None = None
    notified_at: float | None = field(default=None, name="said_at")
    notified: bool = field(default=False, name="told")
    seen_at: float | None = None
    started_unix: float = 0.0
    reasons: tuple[Reason, ...] = ()
    said: Mapping[str, int] = field(default_factory=dict)
    news: tuple[Reason, ...] = ()
    news_at: Mapping[str, float] = field(default_factory=dict)
    ended_at: float | None = None
    returned: bool = False
    source: str = ""
    wait_seconds: float = field(default=0.0, name="wait")
    left_out: int = 0
    rounds: int = 0
    grouped_seconds: float = 0.0

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
    silences: Collection[Silence] = (),
    collectors: Mapping[str, CollectorState] = NO_COLLECTORS,
) -> tuple[Mapping[Key, AlertState], tuple[Notification, ...]]:
    """Return the next state of all alerts and the notifications to send.

    `silences`: those in force. `collectors`: their states. The state is the same object if nothing changed. An
    alert without a condition at this tick keeps its state, unless it was pending when its source stopped. Alerts of
    a rule that is not enabled any more are dropped: nothing evaluates them, and no receiver gets them.
    """
    after, notifications = {key: state for key, state in states.items() if key[0] in rules.events}, []
    present = {(condition.rule, condition.target): condition for condition in conditions}
    inferred = infer_conditions(after, present, now, collectors) if after else {}
    for key, condition in (*present.items(), *inferred.items()):
        watch = states.get(key)
        if is_calm(watch, condition):
            continue
        silenced = bool(silences) and is_silenced(silences, *key)
        moved = watch or AlertState()
        if condition.fact:
            state, transition = advance_fact(moved, condition, now, unix, rules, silenced)
        else:
            moved = with_news(advance(moved, condition, now, unix, rules), condition, now)
            state, transition = notify(moved, condition, now, rules, silenced)
        is_active = state.firing or state.since is not None
        after[key] = replace(state, seen_at=now) if is_active and key in present else state
        if transition:
            is_changed = transition is Transition.CHANGED
            news = date_news(moved.news, moved.news_at, now) if is_changed else ()
            is_repeated = transition is Transition.REPEATED
            notifications.append(build_notification(state, condition, unix, new_id(), is_repeated, news))
    return states if after == states else after, tuple(notifications)


def infer_conditions(
    states: Mapping[Key, AlertState],
    present: Collection[Key],
    now: float,
    collectors: Mapping[str, CollectorState],
) -> Mapping[Key, Condition]:
    """Return a condition for each active alert without any at this tick."""
    found = {
        key: infer_condition(key, state, now, collectors)
        for key, state in states.items()
        if key not in present and (state.firing or state.since is not None)
    }
    return {key: condition for key, condition in found.items() if condition is not None}


def infer_condition(
    key: Key, state: AlertState, now: float, collectors: Mapping[str, CollectorState]
) -> Condition | None:
    """Return the condition of an active alert whose target has no reading at this tick.

    It has cleared if the target has been missing for too long. A target whose source does not answer is not
    missing. A firing alert stays, and so does a pending one whose source stopped. Events have happened, with or
    without their target: the time of those that wait goes on.
    """
    rule, target = key
    if rule in FACTS:
        return Condition(rule, target, False, fact=True)
    silent_seconds = 0.0 if state.seen_at is None else now - state.seen_at
    names = waiting_of(state.source, collectors, silent_seconds)
    if not names and silent_seconds >= (GONE_SECONDS if state.firing else PENDING_GONE_SECONDS):
        why = Reason("gone", f"{target} has not been seen for {duration(silent_seconds)}")
        return Condition(rule, target, False, reasons=(why,))
    reasons = without_ages(state.reasons, LEVELS.get(rule))
    if state.pending:
        if rule not in WAS or not names:
            return None
        why = Reason(SOURCE, f"{WAS[rule]} before {' and '.join(names)} stopped answering")
        reasons = (*(one for one in reasons if one.signal != SOURCE), why)
    return Condition(
        rule,
        target,
        True,
        state.wait_seconds,
        level=LEVELS.get(rule),
        reasons=reasons,
        source=state.source,
        unseen=True,
    )


def is_calm(state: AlertState | None, condition: Condition) -> bool:
    """Return True if a condition is not true and changes nothing, as most are on most ticks."""
    if condition.true or condition.fact:
        return False
    level = condition.kept if condition.level is None else condition.level
    if state is None:
        return level in (None, Level.LOW)
    is_at_rest = not state.firing and not state.notified and state.since is None and not state.reasons
    return is_at_rest and level in (None, state.before)


def advance(state: AlertState, condition: Condition, now: float, unix: float, rules: AlertRules) -> AlertState:
    """Advance one alert: pending to firing, or firing to resolved, when its time has passed."""
    bad = condition.true and (state.firing or state.before >= condition.least)
    reasons = condition.reasons if bad else without_ages(state.reasons, LEVELS.get(condition.rule))
    level = condition.kept if condition.level is None else condition.level
    before = state.before if condition.true or level is None else level
    if bad:
        state = replace(state, source=condition.source, wait_seconds=condition.pending_seconds)
    if bad and state.firing and condition.unseen:
        return replace(state, reasons=reasons)
    if bad == state.firing:
        reasons = reasons if bad else ()
        calm = state.since is None and (state.before, state.reasons) == (before, reasons)
        return state if calm else replace(state, since=None, before=before, reasons=reasons)
    since = now if state.since is None else state.since
    waited = now - since
    if not (is_over(state, since, now, rules) if state.firing else is_due(state, condition, waited, now, rules)):
        return replace(state, since=since, reasons=reasons)
    if not bad:
        return replace(state, firing=False, since=None, before=before, ended_at=now, news=(), news_at={})
    return replace(
        state,
        firing=True,
        since=None,
        fired_at=now,
        started_unix=unix,
        reasons=reasons,
        notified=False,
        news=(),
        news_at={},
        returned=state.ended_at is not None and now - state.ended_at < rules.again_seconds,
    )


def advance_fact(
    state: AlertState, condition: Condition, now: float, unix: float, rules: AlertRules, silenced: bool
) -> tuple[AlertState, Transition | None]:
    """Advance the alert of a one-off event. Events soon after a notification are grouped into the next one.

    As long as they keep coming, each group takes twice the time of the one before.
    """
    passed = None if state.notified_at is None else now - state.notified_at
    if condition.true:
        is_new = state.since is None and (passed is None or passed >= NEW_SECONDS)
        state = add_events(replace(state, rounds=0) if is_new else state, condition.reasons, now, unix)
    if state.since is None or now - state.since < condition.pending_seconds:
        return state, None
    if passed is not None and passed < group_seconds(state.rounds, rules) and not condition.urgent:
        return state, None
    if silenced:
        return replace(state, since=None), None
    grouped = passed if passed is not None and state.rounds else 0.0
    rounds = min(MAX_ROUNDS, state.rounds + 1)
    return replace(state, since=None, notified_at=now, rounds=rounds, grouped_seconds=grouped), Transition.FIRING


def group_seconds(rounds: int, rules: AlertRules) -> float:
    """Return the interval before the next notification of events that keep coming."""
    longest = max(rules.again_seconds, MAX_GROUP_SECONDS)
    return min(rules.again_seconds * 2.0 ** max(0, rounds - 1), longest)


def add_events(state: AlertState, reasons: tuple[Reason, ...], now: float, unix: float) -> AlertState:
    """Return the alert with more events that wait for its next notification. The oldest are only counted."""
    is_waiting = state.since is not None
    why = tuple(dict.fromkeys((*(state.reasons if is_waiting else ()), *reasons)))
    left_out = max(0, len(why) - MAX_EVENTS)
    return replace(
        state,
        since=state.since if is_waiting else now,
        reasons=why[left_out:],
        left_out=left_out + (state.left_out if is_waiting else 0),
        started_unix=unix,
    )


def is_due(state: AlertState, condition: Condition, waited: float, now: float, rules: AlertRules) -> bool:
    """Return True if a pending alert fires now.

    It has waited for `pending_seconds` and, unless urgent, for `again_seconds` since its last notification.
    """
    rested = state.notified_at is None or now - state.notified_at >= rules.again_seconds
    return waited >= condition.pending_seconds and (rested or condition.urgent)


def is_over(state: AlertState, since: float, now: float, rules: AlertRules) -> bool:
    """Return True if a firing alert resolves now. `since`: start of the time in which its condition is clear."""
    return now >= find_end(state, since, rules)


def find_end(state: AlertState, since: float, rules: AlertRules) -> float:
    """Return when a firing alert resolves unless its condition returns, which has been clear since a time.

    It has to be clear, and the alert to fire, for long enough.

    An alert that returned soon after it resolved has to be clear for as long as others wait to return: one that
    cannot wait is then no more frequent than they are.
    """
    clear_seconds = max(rules.resolve_seconds, rules.again_seconds if state.returned else 0.0)
    fired_at = -math.inf if state.fired_at is None else state.fired_at
    return max(since + clear_seconds, fired_at + rules.keep_firing_seconds)


def with_news(state: AlertState, condition: Condition, now: float) -> AlertState:
    """Return a firing alert about a level with the reasons that its notifications lack."""
    least = LEVELS.get(condition.rule)
    if least is None or not (state.firing and state.notified and condition.true):
        return state
    news, times = add_news(state.news, state.news_at, state.said, condition.reasons, least, now)
    is_same = (news, times) == (state.news, state.news_at)
    return state if is_same else replace(state, news=news, news_at=times)


def notify(
    state: AlertState, condition: Condition, now: float, rules: AlertRules, silenced: bool
) -> tuple[AlertState, Transition | None]:
    """Return the notification due for an alert. A resolved notification is sent even if silenced."""
    if not state.firing:
        return (replace(state, notified=False), Transition.RESOLVED) if state.notified else (state, None)
    transition = None if silenced else due_transition(state, condition, now, rules)
    if transition is None:
        return state, None
    told = (*state.news, *state.reasons) if transition is Transition.CHANGED else state.reasons
    said = with_said({} if transition is Transition.FIRING else state.said, told)
    news = without_said(state.news, said)
    times = {one.signal: state.news_at[one.signal] for one in news if one.signal in state.news_at}
    return replace(state, notified=True, notified_at=now, said=said, news=news, news_at=times), transition


def due_transition(state: AlertState, condition: Condition, now: float, rules: AlertRules) -> Transition | None:
    """Return the notification that is due while an alert fires."""
    if not state.notified:
        return Transition.FIRING
    if condition.true and state.news and is_change_due(state, now):
        return Transition.CHANGED
    return Transition.REPEATED if is_repeat_due(state, now, rules) else None


def is_change_due(state: AlertState, now: float) -> bool:
    return state.notified_at is None or now - state.notified_at >= CHANGE_SECONDS


def is_repeat_due(state: AlertState, now: float, rules: AlertRules) -> bool:
    long_ago = state.notified_at is not None and now - state.notified_at >= rules.repeat_seconds
    return rules.repeat_seconds > 0 and long_ago


def build_notification(
    state: AlertState,
    condition: Condition,
    unix: float,
    notice_id: str,
    repeated: bool = False,
    new_reasons: tuple[Reason, ...] = (),
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
        reasons=said_reasons(state, condition) if firing else condition.reasons,
        firing=firing,
        rule=condition.rule,
        severity=SEVERITY[condition.rule],
        started_unix=state.started_unix,
        repeated=repeated,
        fact=condition.fact,
        level_now=None if condition.unseen else condition.level,
        new_reasons=new_reasons,
    )


def level_of(condition: Condition) -> Level | None:
    """Return the level of a firing alert: at least that of its rule, also after its target has come down."""
    own, now = LEVELS.get(condition.rule), condition.level
    return max(own, now) if own is not None and now is not None else own if now is None else now


def said_reasons(state: AlertState, condition: Condition) -> tuple[Reason, ...]:
    """Return the reasons of a notification, with the number of events since the last one, and of those left out."""
    if not condition.fact or not (state.left_out or state.grouped_seconds):
        return state.reasons
    count, left_out, texts = len(state.reasons) + state.left_out, state.left_out, []
    if state.grouped_seconds:
        events = "1 more event" if count == 1 else f"{count} more events"
        texts.append(f"{events} in the last {duration(state.grouped_seconds)}")
    if left_out:
        texts.append("1 earlier event is left out" if left_out == 1 else f"{left_out} earlier events are left out")
    return Reason(GROUPED, "; ".join(texts)), *state.reasons


def active_alerts(states: Mapping[Key, AlertState], silences: Iterable[Silence]) -> list[tuple[Key, AlertState]]:
    """Return the firing alerts that were notified and that no silence in force mutes. A new receiver gets them."""
    notified = [(key, state) for key, state in states.items() if state.firing and state.notified]
    return [(key, state) for key, state in notified if not is_silenced(silences, *key)]


def resolved_event(rule: str) -> str:
    """Return the event of a resolved alert: pressure.resolved for pressure.critical."""
    return f"{rule.partition('.')[0]}.resolved"
