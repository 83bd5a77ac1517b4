"""What alerts can be about: each rule asks one question of a snapshot, or waits for an event. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from memwatch.events import Event
from memwatch.model import STALLED, Absent
from memwatch.pressure.rules import FILLED_ON_PURPOSE
from memwatch.snapshot import Level, Pressure, Reason, Snapshot

Severity = Literal["critical", "warning", "info"]

URGENT = frozenset({"floor", "oom_kill"})
URGENT_SECONDS = 15.0
CRITICAL = "pressure.critical"


class AlertRules(Struct, frozen=True):
    """Which rules are in force, and their times.

    `pending_seconds`: how long something must be so before anybody is told; `resolve_seconds`: how long it must
    be better before the alert is over, which is never before it has fired for `keep_firing_seconds`. While it
    fires it is told again every `repeat_seconds` (0: never), and one that comes back waits until
    `again_seconds` have passed since it was last told. A GPU's own memory is filled on purpose by programs
    that serve models, so it has a time of its own. What cannot wait (`URGENT`, or full within `URGENT_SECONDS`)
    is told at once. `enough_bytes`: of a target that still has so much, nobody is told a level that nothing but
    its use speaks for; 4 % of 2 TiB are 80 GiB.
    """

    pending_seconds: float = 5.0
    resolve_seconds: float = 60.0
    gpu_pending_seconds: float = 60.0
    keep_firing_seconds: float = 120.0
    repeat_seconds: float = 14_400.0
    again_seconds: float = 300.0
    collector_pending_seconds: float = 60.0
    forecast_seconds: float = 300.0
    events: frozenset[str] = frozenset({CRITICAL})
    enough_bytes: Mapping[str, int] = field(default_factory=dict)

    def pending_for(self, verdict: Pressure) -> float:
        if verdict.kind in FILLED_ON_PURPOSE:
            return self.gpu_pending_seconds
        return 0.0 if is_urgent(verdict) else self.pending_seconds

    def is_enough(self, verdict: Pressure) -> bool:
        enough, available = self.enough_bytes.get(verdict.target), verdict.available_bytes
        if enough is None or verdict.corroborated or isinstance(available, Absent):
            return False
        return available >= enough


class Condition(Struct, frozen=True):
    """Whether a rule speaks of a target at this tick. `fact`: it happened and cannot end."""

    rule: str
    target: str
    true: bool
    pending_seconds: float = 0.0
    urgent: bool = False
    level: Level | None = None
    reasons: tuple[Reason, ...] = ()
    fact: bool = False


Ask = Callable[[str, Snapshot, Sequence[Event], AlertRules], Iterator[Condition]]


class Rule(Struct, frozen=True):
    """What one can subscribe to, how bad it is, and how it is found."""

    name: str
    severity: Severity
    words: str
    ask: Ask


def conditions_of(snapshot: Snapshot, events: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    """Every condition of the rules in force. A target without a figure has none: it neither fires nor resolves."""
    for rule in RULES:
        if rule.name in rules.events:
            yield from rule.ask(rule.name, snapshot, events, rules)


def is_urgent(verdict: Pressure) -> bool:
    full = verdict.seconds_to_full
    return any(reason.signal in URGENT for reason in verdict.reasons) or (
        not isinstance(full, Absent) and full < URGENT_SECONDS
    )


def ask_level(level: Level) -> Ask:
    def ask(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
        for one in snapshot.pressure:
            urgent = is_urgent(one) and one.kind not in FILLED_ON_PURPOSE
            true = one.level >= level and not rules.is_enough(one)
            yield Condition(name, one.target, true, rules.pending_for(one), urgent, one.level, one.reasons)

    return ask


def ask_forecast(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    for one in snapshot.pressure:
        seconds = one.seconds_to_full
        true = not isinstance(seconds, Absent) and seconds < rules.forecast_seconds
        yield Condition(name, one.target, true, rules.pending_for(one), is_urgent(one), one.level, one.reasons)


def ask_collectors(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    for status in snapshot.collectors:
        if status.state in ("ok", "failing", "stalled"):
            why = (Reason(status.state, f"{status.name} is {status.state}: {status.error}"),)
            wait = rules.collector_pending_seconds
            yield Condition(name, status.name, status.state != "ok", wait, reasons=why)


def ask_devices(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    """Of a GPU whose driver was released, or whose collector fails, nothing is known: it neither fires nor ends."""
    for device in snapshot.devices:
        if device.state == STALLED:
            continue
        why = (Reason("state", f"{device.name} is {device.state.replace('_', ' ')}"),)
        yield Condition(name, device.id, device.state != "ok", rules.pending_seconds, reasons=why)


def ask_events(kind: str, target: str) -> Ask:
    """A fact: it is told once, and ends by itself. There is a condition at every tick, for its times to pass."""

    def ask(name: str, _: Snapshot, events: Sequence[Event], __: AlertRules) -> Iterator[Condition]:
        why = tuple(Reason(kind, event.text) for event in events if event.kind == kind)
        yield Condition(name, target, bool(why), reasons=why, fact=True)

    return ask


RULES = (
    Rule(CRITICAL, "critical", "memory is critical", ask_level(Level.CRITICAL)),
    Rule("pressure.high", "warning", "memory is high or critical", ask_level(Level.HIGH)),
    Rule("pressure.medium", "info", "memory is medium or worse", ask_level(Level.MEDIUM)),
    Rule("pressure.forecast", "warning", "memory will be full soon", ask_forecast),
    Rule("collector.failing", "warning", "a collector has failed", ask_collectors),
    Rule("device.lost", "critical", "a GPU is lost, or needs a reset", ask_devices),
    Rule("kernel.oom_kill", "critical", "the kernel killed for want of memory", ask_events("oom_kill", "kernel")),
    Rule("driver.error", "warning", "a GPU's driver reported an error", ask_events("driver", "driver")),
    Rule(
        "daemon.unclean_restart",
        "warning",
        "memwatchd ended without stopping",
        ask_events("unclean", "memwatchd"),
    ),
)
SEVERITY = {rule.name: rule.severity for rule in RULES}
EVENTS = tuple(rule.name for rule in RULES)
LEVELS = {CRITICAL: Level.CRITICAL, "pressure.high": Level.HIGH, "pressure.medium": Level.MEDIUM}
EVENT_KINDS = frozenset({"oom_kill", "driver", "unclean"})


def targets_of(snapshot: Snapshot, events: Iterable[str] = EVENTS) -> tuple[str, ...]:
    """What alerts of these events can be about on this machine now."""
    rules = AlertRules(events=frozenset(events))
    return tuple(dict.fromkeys(one.target for one in conditions_of(snapshot, (), rules)))
