"""Inhibition: of the alerts about one incident, a receiver gets the strongest. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from memwatch.monitor.alerts.rules import CRITICAL, KILLS
from memwatch.monitor.alerts.state import Key

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
