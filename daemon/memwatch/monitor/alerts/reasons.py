"""Reasons of a firing alert that its notifications lack. Pure functions.

A reason is new if none of the notifications since the alert fires had its signal, or had it at a lower level only.
So each is notified once, however often it comes and goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memwatch.core.pressure.signals import PAST
from memwatch.core.snapshot import Level, Reason

# Signals that report what has happened: their first text stays true. That of the others is about their tick.
OF_EVENTS = frozenset({"oom_kill", "driver"})


def add_news(
    news: tuple[Reason, ...], said: Mapping[str, int], reasons: Iterable[Reason], least: Level
) -> tuple[Reason, ...]:
    """Return the new reasons with those of this tick, the strongest of each signal and its latest text.

    `least`: the level of the alert. Reasons that ask for less do not support it.
    """
    found = {one.signal: one for one in news}
    for one in reasons:
        level = strength(one)
        if level < least or level <= said.get(one.signal, -1):
            continue
        known = found.get(one.signal)
        is_newer = one.signal not in OF_EVENTS and known is not None and level == strength(known)
        if known is None or level > strength(known) or is_newer:
            found[one.signal] = one
    return tuple(found.values())


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
    """Return the new reasons of a firing alert: ", now also: 97.0% used". Empty without any.

    Those that are over come last, with their age: "full in about 4 s at the current rate (26 s ago)".
    """
    now, over = list[str](), list[str]()
    for why in reasons:
        past = PAST.fullmatch(why.text)
        if past is not None and why.signal not in OF_EVENTS:
            over.append(f"{past['text']} ({past['age']} s ago)")
        else:
            now.append(why.text)
    texts = [*now, *over]
    return f", now also: {'; '.join(texts)}" if texts else ""
