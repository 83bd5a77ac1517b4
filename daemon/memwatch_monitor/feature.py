"""Features: what a daemon does beside sampling, judging and publishing. Each is a class, and a line in FEATURES.

The loop calls the hooks in the order of that tuple. A feature that fails is logged once, and keeps no other from
its work: the snapshot of a tick is published without it.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from memwatch.core.clock import Moment
from memwatch.core.findings import Findings
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.processes.growth import LeakRules
from memwatch.core.processes.unreturned import ReturnChanges
from memwatch.core.reading.machine import Additions
from memwatch.core.runtime.worker import FailureLog, ThreadState
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.history.tier import TierSpec
from memwatch_monitor.alerts.rules import AlertRules
from memwatch_monitor.history.tiers import TIER_SPECS

if TYPE_CHECKING:
    import asyncio


log: logging.Logger = logging.getLogger(__name__)


class MonitorRules(Struct, frozen=True):
    """Rules of the sampling loop and of its features that may change at run time."""

    interval_seconds: float = 1.0
    history_seconds: float = TIER_SPECS[0].seconds
    medium_seconds: float = TIER_SPECS[1].seconds
    coarse_seconds: float = TIER_SPECS[2].seconds
    pressure: PressureRules = PressureRules()
    alerts: AlertRules = AlertRules()
    leaks: LeakRules = LeakRules()

    @property
    def tier_specs(self) -> tuple[TierSpec, ...]:
        """Return the tiers of the history. No tier is finer than the interval."""
        _, medium, coarse = TIER_SPECS
        return (
            TierSpec(self.interval_seconds, self.history_seconds),
            TierSpec(max(medium.step_seconds, self.interval_seconds), self.medium_seconds),
            TierSpec(coarse.step_seconds, self.coarse_seconds),
        )


class Tick(Struct, frozen=True):
    """A tick before it is published. `before`: the snapshot published last; `missed`: samples missed since, by
    occasion."""

    now: Moment
    before: Snapshot | None
    snapshot: Snapshot
    kills: NewKills
    returns: ReturnChanges
    findings: Findings
    rules: MonitorRules
    missed: Sequence[int] = ()


FamilyKind = Literal["gauge", "counter", "info", "histogram"]


class Family(Struct, frozen=True):
    """A metric family, without the prefix of its name. The rows of an info have no figure."""

    kind: FamilyKind
    name: str
    text: str
    rows: Iterable[Any]
    labels: Sequence[str] = ()


class Feature:
    """Base class of features. Each hook does nothing by default, and costs nothing where it is not overridden."""

    name: ClassVar[str]

    @classmethod
    def of(cls, monitor: Any) -> Feature:  # noqa: ANN401  a Monitor
        """Create the feature of a loop. The features before this one in FEATURES exist."""
        make: Any = cls
        feature: Feature = make(monitor)
        return feature

    @classmethod
    def create(cls, daemon: Any) -> Feature:  # noqa: ANN401  a Daemon, of another distribution
        """Create the feature of a daemon."""
        return cls.of(daemon.monitor)

    def is_urgent(self) -> bool:
        """Return True if `on_publish` must follow this tick, also between two intervals."""
        return False

    def on_findings(self, findings: Findings) -> Findings:
        """Return the findings of a tick with changes."""
        return findings

    def on_additions(self, additions: Additions) -> Additions:
        """Return what a snapshot has beside the findings, with changes."""
        return additions

    def on_tick(self, tick: Tick) -> None:
        """Follow a tick before its snapshot is published."""

    def on_publish(self, snapshot: Snapshot) -> None:
        """Follow a published snapshot: once an interval and on each change of a level, at any pace of the ticks."""

    def on_replay(self) -> None:
        """Start over: a recording has ended and starts again."""

    def start(self) -> None:
        """Restore what earlier runs kept, and start threads. Called before the first tick."""

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open sockets in the event loop of the server."""

    def leave(self) -> None:
        """Close what `serve` opened, before the event loop ends."""

    def close(self) -> None:
        """End threads and write what is left. The loop has ended."""

    def prepare_reload(self, new: Any) -> Callable[[], object] | None:  # noqa: ANN401, ARG002  a Reload
        """Return what applies new settings to this feature. A failure must change nothing."""
        return None

    def thread_states(self) -> Mapping[str, ThreadState]:
        """Return the state of each thread that the watchdog of the service depends on."""
        return {}

    def failures(self) -> Sequence[str]:
        """Return a sentence for each receiver that does not accept what it is sent."""
        return ()

    def families(self) -> Iterable[Family]:
        """Return the metrics."""
        return ()

    def routes(self) -> Mapping[str, Callable[[], Any]]:
        """Return functions by the path whose GET requests they answer with JSON."""
        return {}


AnyFeature = TypeVar("AnyFeature")
Value = TypeVar("Value")


class Features:
    """The features of a loop, in their order."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, on_memory_error: Callable[[], object] = bool
    ) -> None:
        self._all: tuple[Feature, ...] = ()
        self._calls: dict[str, list[tuple[Feature, Callable[..., Any]]]] = {}
        self._failures: dict[str, str] = {}  # the line logged last, by part
        self._failure_log = FailureLog(monotonic)
        self._on_memory_error = on_memory_error

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._all)

    def add(self, feature: Feature) -> None:
        self._all, self._calls = (*self._all, feature), {}

    def find(self, kind: type[AnyFeature]) -> AnyFeature | None:
        """Return the feature of a type, None if it is off."""
        return next((one for one in self._all if isinstance(one, kind)), None)

    def get(self, kind: type[AnyFeature]) -> AnyFeature:
        """Return the feature of a type that every daemon has."""
        found = self.find(kind)
        if found is None:
            raise LookupError(kind.__name__)
        return found

    def is_any_urgent(self) -> bool:
        return any(is_urgent() for _, is_urgent in self.overriding("is_urgent"))

    def call(self, hook: str, *given: object) -> None:
        """Call a hook of all features."""
        for feature, call in self.overriding(hook):
            self._attempt(feature, hook, call, None, *given)

    def change(self, hook: str, value: Value) -> Value:
        """Return a value with the changes of all features that do not fail."""
        for feature, call in self.overriding(hook):
            value = self._attempt(feature, hook, call, value, value)
        return value

    def log_failure(self, part: str, what: str, error: Exception) -> None:
        """Log the failure of a part of the loop, once until it succeeds. `what`: the start of the line."""
        if isinstance(error, MemoryError):
            self._on_memory_error()
        why = "out of memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
        log.debug("traceback of the failure", exc_info=error)
        complaint = f"{what}: {why}"
        if self._failures.setdefault(part, "") != complaint and self._failure_log.admits(complaint):
            log.error("%s", complaint)
            self._failures[part] = complaint

    def log_success(self, part: str, text: str) -> None:
        """Log that a part succeeds again, if it failed before."""
        if self._failures and self._failures.pop(part, "") and self._failure_log.admits_recovery():
            log.warning("%s", text)

    def _attempt(
        self, feature: Feature, hook: str, call: Callable[..., Any], otherwise: object, *given: object
    ) -> Any:  # noqa: ANN401  what the hook returns
        try:
            answer = call(*given)
        except Exception as error:  # noqa: BLE001  the other features must go on
            self.log_failure(f"{feature.name}.{hook}", f"{feature.name} failed", error)
            return otherwise
        if self._failures:
            self.log_success(f"{feature.name}.{hook}", f"{feature.name} works again")
        return answer

    def overriding(self, hook: str) -> list[tuple[Feature, Callable[..., Any]]]:
        """Return the features that have a hook, and the hook of each."""
        calls = self._calls.get(hook)
        if calls is None:
            default = getattr(Feature, hook)
            calls = [(one, getattr(one, hook)) for one in self._all if getattr(type(one), hook) is not default]
            self._calls[hook] = calls
        return calls


class Histogram:
    """Histogram with fixed buckets: counts of observations. One thread observes, any thread reads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper limits of the buckets, ascending. The last bucket has no limit."""
        self.bounds: tuple[float, ...] = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Return the number of observations up to each limit, and of all."""
        counts, so_far = list(self._counts), 0
        for place, count in enumerate(counts):
            so_far += count
            counts[place] = so_far
        return counts
