"""Notifications of alerts: their content, new reasons, and inhibition. Pure functions."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.pressure.signals import PAST
from memwatch.core.snapshot import Level, Reason
from memwatch.reporting.render.words import HELD
from memwatch_monitor.alerts.rules import CRITICAL, KILLS, Severity

Key = tuple[str, str]
# Signal of the reason that counts the events of a notification.
GROUPED = "grouped"


class Notification(Struct, frozen=True):
    """A notification. `id` stays the same in every delivery attempt.

    `rule`: the rule that fired; `event`: the same, or its resolved event. `started_unix`: start of firing.
    `repeated`: a reminder of an alert that is still firing. `level`: that of the alert, `level_now`: that of the
    target, which may have come down while the alert still fires. None for rules without levels, and if unknown.
    `new_reasons`: those of a firing alert that none of its notifications had before.
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
    new_reasons: tuple[Reason, ...] = ()
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


# Signals that report what has happened: their first text stays true. That of the others is about their tick.
OF_EVENTS = frozenset({"oom_kill", "driver"})
# A reason that was true less than this before its notification is one of now.
AT_ONCE_SECONDS = 0.5


def add_news(
    news: tuple[Reason, ...],
    seen_at: Mapping[str, float],
    said: Mapping[str, int],
    reasons: Iterable[Reason],
    least: Level,
    now: float,
) -> tuple[tuple[Reason, ...], Mapping[str, float]]:
    """Return the new reasons with those of this tick, the strongest of each signal and its latest text.

    The texts have no age: with them comes when each signal was last true, as `seen_at` is of `news`.

    A reason is new if none of the notifications since the alert fires had its signal, or had it at a lower level
    only. So each is notified once, however often it comes and goes. `least`: the level of the alert. Reasons that
    ask for less do not support it, and nor does usage that has fallen and only holds the level: "calm for 16 s".
    """
    found, times = {one.signal: one for one in news}, dict(seen_at)
    for one in reasons:
        level = strength(one)
        if level < least or level <= said.get(one.signal, -1) or HELD.search(one.text):
            continue
        known, past = found.get(one.signal), PAST.fullmatch(one.text)
        is_newer = one.signal not in OF_EVENTS and known is not None and level == strength(known)
        if known is None or level > strength(known) or is_newer:
            found[one.signal] = one if past is None else replace(one, text=past["text"])
            times[one.signal] = now if past is None else now - int(past["age"])
    return tuple(found.values()), {signal: times[signal] for signal in found if signal in times}


def date_news(news: Iterable[Reason], seen_at: Mapping[str, float], now: float) -> tuple[Reason, ...]:
    """Return the new reasons as they are notified: events first, those that are over last and with their age."""
    dated = [_add_age(one, now - seen_at.get(one.signal, now)) for one in news]
    return tuple(sorted(dated, key=_rank_news))


def _add_age(one: Reason, age: float) -> Reason:
    is_over = one.signal not in OF_EVENTS and age >= AT_ONCE_SECONDS
    return replace(one, text=f"{max(1, round(age))} s ago: {one.text}") if is_over else one


def _rank_news(one: Reason) -> tuple[bool, bool]:
    return one.signal not in OF_EVENTS, PAST.fullmatch(one.text) is not None


def without_ages(reasons: Iterable[Reason], least: Level | None = None) -> tuple[Reason, ...]:
    """Return reasons of an earlier tick without their ages, and without use that only held the level.

    `least`: the level of the alert. Reasons that ask for less are left out: "66.0% used" after a kill is none of
    those for which memory was critical.
    """
    kept = []
    for one in reasons:
        past = PAST.fullmatch(one.text)
        is_weak = least is not None and one.level is not None and one.level < least
        if not is_weak and not HELD.search(one.text):
            kept.append(one if past is None else replace(one, text=past["text"]))
    return tuple(kept)


def with_said(said: Mapping[str, int], reasons: Iterable[Reason]) -> Mapping[str, int]:
    """Return the signals of earlier notifications with those of one more."""
    after = dict(said)
    for one in reasons:
        after[one.signal] = max(strength(one), after.get(one.signal, -1))
    return after


def without_said(news: Iterable[Reason], said: Mapping[str, int]) -> tuple[Reason, ...]:
    return tuple(one for one in news if strength(one) > said.get(one.signal, -1))


def strength(reason: Reason) -> int:
    return int(reason.level if reason.level is not None else Level.LOW)


def describe_news(reasons: Iterable[Reason]) -> str:
    """Return the new reasons of a firing alert, in their order: ", now also: 97.0% used". Empty without any.

    Those that are over have their age at the end: "full in about 4 s at the current rate (26 s ago)". Beside an
    event, such as a kill, they led to it, and are left out.
    """
    found = list(reasons)
    has_event = any(why.signal in OF_EVENTS for why in found)
    pasts = [(why.text, PAST.fullmatch(why.text)) for why in found]
    pasts = [(text, past) for text, past in pasts if past is None or not has_event]
    texts = [text if past is None else f"{past['text']} ({past['age']} s ago)" for text, past in pasts]
    return f", now also: {'; '.join(texts)}" if texts else ""


# Rules whose alerts say less than another alert of the same target. A kill for lack of System RAM has the target of
# System RAM, so that a kill at the limit of a cgroup is never left out because System RAM is critical.
INHIBITED_BY: Mapping[str, tuple[str, ...]] = {
    "pressure.medium": (CRITICAL, "pressure.high"),
    "pressure.high": (CRITICAL,),
    "pressure.forecast": (CRITICAL,),
    KILLS: (CRITICAL,),
}
# Rules whose alerts inhibit others.
INHIBITORS: frozenset[str] = frozenset(rule for rules in INHIBITED_BY.values() for rule in rules)


def is_inhibited(rule: str, target: str, active: Collection[Key], gets: Callable[[str, str], bool]) -> bool:
    """Return True if a stronger alert of the target is active that the same receiver gets."""
    return any((one, target) in active and gets(one, target) for one in INHIBITED_BY.get(rule, ()))


def can_be_inhibited(rule: str, target: str, gets: Callable[[str, str], bool]) -> bool:
    """Return True if a receiver also gets a stronger alert of the target, when there is one."""
    return any(gets(one, target) for one in INHIBITED_BY.get(rule, ()))
