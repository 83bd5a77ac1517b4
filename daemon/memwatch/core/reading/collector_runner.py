"""One collector: when it is due, its runs and their errors, its latest result, and the change of its shares."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.clock import Clock
from memwatch.core.collectors.base import Collector, CollectorEntry, MovementProbe, NonBlockingCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, SourceUnavailable, look_for
from memwatch.core.linux.wakeups import Watch
from memwatch.core.model import Absent, Bytes, Share
from memwatch.core.printable import printable
from memwatch.core.runtime.worker import Backoff, FailureLog
from memwatch.core.snapshot import CollectorState, CollectorStatus

log: logging.Logger = logging.getLogger(__name__)

RETRY_FIRST_SECONDS = 10.0
MAX_RETRY_SECONDS = 300.0
# Near exhaustion, a collector that supports it runs more often, with 0.3% of a core at most.
FAST_PAUSE_RATIO = 1 / 0.003
# A collector is overdue after three of its periods, but not before this time.
MIN_OVERDUE_SECONDS = 3.0
# Maximum time that a tick waits for the response of a helper process. After a slower response, the collector's own
# thread waits instead: for 4 s at first, then with backoff for up to a minute.
PROMPT_SECONDS = 0.005
NOT_PROMPT_FIRST_SECONDS = 4.0
MAX_NOT_PROMPT_SECONDS = 60.0
# After this time without a result, the engines of the last one are dropped: their processes may have ended.
LOST_SECONDS = 60.0
# Pause before a collector runs again after its findings could not be stored for lack of memory.
POSTPONE_SECONDS = 1.0

# Interval at which the signs of missing sources are checked, which takes 15 µs on a machine without a GPU.
SIGNS_SECONDS = 4.0


class CollectorResult(Struct, frozen=True):
    """Latest result of a collector. It is replaced as a whole, so that other threads never see a partial one.

    `succeeded_at` and `overdue_at` are monotonic seconds.
    """

    state: CollectorState = "starting"
    findings: Findings = Findings()
    succeeded_at: float | None = None
    succeeded_unix: float | Absent = Absent.NOT_AVAILABLE
    duration_seconds: float | Absent = Absent.NOT_AVAILABLE
    error: str | None = None
    errors: Mapping[str, int] = {}
    overdue_at: float = math.inf


class CollectorRunner:
    """One collector and its latest result. The first run creates the collector; later ones retry if unavailable."""

    def __init__(self, entry: CollectorEntry, clock: Clock) -> None:
        self.entry = entry
        self.result: CollectorResult = CollectorResult()
        self.errors: Counter[str] = Counter()
        self._clock = clock
        self._failure_log = FailureLog(clock.monotonic)
        self._collector: Collector | None = None
        self.due: float = 0.0
        self._fast_due = 0.0
        self._hurried_at = -math.inf
        self.is_fast = False
        # True: ticks run the collector, and its thread sleeps.
        self.on_tick: bool = False
        # Set when another runner took its place, because a run of this one does not end.
        self.is_abandoned: bool = False
        # Start of the current run, None between runs.
        self.running_since: float | None = None
        self._non_blocking: NonBlockingCollector | None = None
        self.movement_probe: MovementProbe | None = None
        self.watch: Watch | None = None
        self._prompt_backoff = Backoff(NOT_PROMPT_FIRST_SECONDS, MAX_NOT_PROMPT_SECONDS)
        self._sent_at: float | None = None
        self._late: tuple[CollectorResult, CollectorResult] | None = None
        self._lost: tuple[Findings, Findings] | None = None
        # What `current` returned for a collector that never succeeded, and the result that it is of.
        self.known: tuple[Findings, CollectorStatus]
        self.known_of: CollectorResult | None = None
        self.has_news: Callable[[], bool] | None = None
        self.last_read: CollectorResult = self.result
        self._retry_seconds = RETRY_FIRST_SECONDS
        self._signs: list[object] = []

    @property
    def period_seconds(self) -> float:
        return self._collector.period_seconds if self._collector else 0.0

    @property
    def is_sooner_if_fast(self) -> bool:
        return self._fast_due < self.due

    def seconds_until_due(self) -> float:
        due = self._fast_due if self.is_fast else self.due
        return due - self._clock.monotonic()

    def run(self) -> None:
        """Run the collector once and publish the result. The only place that catches every exception."""
        self.running_since = self._clock.monotonic()
        started = self.running_since if self._sent_at is None else self._sent_at
        self._sent_at = None
        try:
            if self._collector is None:
                self._signs = [look_for(path) for path in self.entry.signs]
                self._collector = self.entry.make()
                self._non_blocking = self._collector if isinstance(self._collector, NonBlockingCollector) else None
                self.movement_probe = self._collector if isinstance(self._collector, MovementProbe) else None
                self.watch = self._collector if isinstance(self._collector, Watch) else None
                self.has_news = getattr(self._collector, "has_news", None)
                self._retry_seconds = RETRY_FIRST_SECONDS
            findings = self._collector.collect()
        except SourceUnavailable as reason:
            self._fail("unavailable", describe_error(reason))
        except Exception as error:  # noqa: BLE001  failures are reported as data
            self.errors[classify_error(error)] += 1
            self._fail("failing", describe_error(error))
        else:
            self._publish(findings, started)
        finally:
            self.running_since = None

    def create_replacement(self, attempt: str) -> CollectorRunner:
        """Return a runner with a new collector, to run while this one's run does not end.

        It shows this one's last findings, as stale, until it has its own.
        """
        fresh, last = CollectorRunner(self.entry, self._clock), self.result
        fresh.errors.update(self.errors)
        fresh.is_fast = self.is_fast
        fresh.result = fresh.last_read = replace(
            last,
            state="stalled",
            findings=last.findings.as_stale(),
            error=f"no response; tried again in another thread, {attempt}",
            errors=dict(self.errors),
            overdue_at=math.inf,
        )
        return fresh

    def missing_signs(self) -> tuple[str, ...]:
        """Return the paths whose appearance may mean that the collector's source is there."""
        return () if self._collector is not None or self.result.state == "starting" else self.entry.signs

    def check_signs(self, seen: Mapping[str, object]) -> bool:
        """Make a collector without a source due, and return True, if its signs changed since its last attempt.

        Sources take a moment to appear as a whole, so the delays of further attempts are short.
        """
        paths = self.missing_signs()
        if not paths or self._signs == [seen[path] for path in paths]:
            return False
        self._retry_seconds = SIGNS_SECONDS
        self.due = self._fast_due = self._clock.monotonic()
        return True

    def send_request(self, now: float, spacing: float) -> bool:
        """Send the request of a collector that is due, on a tick. Return True if it was sent.

        If it cannot be sent at once, or if ticks are too rare for the collector, its thread runs it instead.
        """
        due = self._fast_due if self.is_fast else self.due
        if self._non_blocking is None or due > now:
            return False
        self.on_tick = self._comes_often(spacing) and self._non_blocking.send_request()
        self._sent_at = self._clock.monotonic() if self.on_tick else None
        return self.on_tick

    def run_if_answered(self) -> None:
        """Publish the response to `send_request` in the same tick, or leave it to the collector's thread."""
        self.on_tick = self._non_blocking is not None and self._non_blocking.has_answer(PROMPT_SECONDS)
        if self.on_tick:
            self._prompt_backoff.reset()
            self.run()
            self.on_tick = self.result.state == "ok"
        else:
            self._prompt_backoff.failed(self._clock.monotonic())

    def is_prompt(self, spacing: float) -> bool:
        """Check that the last run was fast enough for a tick to wait for it, and that ticks are frequent enough."""
        seconds = self.result.duration_seconds
        if self._non_blocking is None or self.result.state != "ok" or isinstance(seconds, Absent):
            return False
        rested = self._prompt_backoff.is_due(self._clock.monotonic())
        return rested and seconds <= PROMPT_SECONDS and self._comes_often(spacing)

    def _comes_often(self, spacing: float) -> bool:
        return spacing < 2 * self.period_seconds

    def moved_bytes(self) -> float:
        """Return how far the collector's shares moved since `current` was last called, in bytes."""
        return moved_between(self.last_read.findings.shares, self.result.findings.shares)

    def current(self, now: float) -> tuple[Findings, CollectorStatus]:
        """Return current findings and status.

        While `known_of` is the result, of a collector that keeps failing the same way, `known` has them.
        """
        result = self.last_read = self.result
        if result.succeeded_at is None:
            self.known = result.findings, self._status(result, Absent.NOT_AVAILABLE, result.error)
            self.known_of = result
            return self.known
        age, error = max(0.0, now - result.succeeded_at), result.error
        if now > result.overdue_at:
            result, error = self._overdue(result), f"no response for {age:.0f} s"
        is_lost = result.state != "ok" and age >= LOST_SECONDS and result.findings.engines
        findings = self._without_engines(result.findings) if is_lost else result.findings
        return findings, self._status(result, age, error)

    def _without_engines(self, findings: Findings) -> Findings:
        """Return the findings without engines, as the same object each time."""
        if self._lost is None or self._lost[0] is not findings:
            self._lost = findings, replace(findings, engines=())
        return self._lost[1]

    def _status(self, result: CollectorResult, age: float | Absent, error: str | None) -> CollectorStatus:
        name, seconds, unix = self.entry.name, result.duration_seconds, result.succeeded_unix
        return CollectorStatus(name, result.state, age, seconds, unix, error, result.errors)

    def _overdue(self, result: CollectorResult) -> CollectorResult:
        """Return an overdue result as stalled, with stale findings. The missed deadline is counted once."""
        if self._late is None or self._late[0] is not result:
            self.errors["deadline"] += 1
            self._late = (
                result,
                replace(result, state="stalled", findings=result.findings.as_stale(), errors=dict(self.errors)),
            )
        return self._late[1]

    def release(self, seconds: float) -> bool:
        """Release the collector's device for `seconds`. Return False if it cannot be released."""
        release = getattr(self._collector, "release", None)
        if release is None:
            return False
        release(seconds)
        return True

    def hurry(self) -> None:
        """Make the next run due now. A collector that is not available keeps its pause.

        Another run follows one in progress, which may have read its files before the event.
        """
        if self.result.state == "ok":
            self._hurried_at = self._clock.monotonic()  # before `due`, which the end of a run replaces
            self.due = self._fast_due = self._hurried_at

    def hurry_for_news(self, now: float) -> bool:
        """Make the next run due now if the collector has news, at most as often as in fast mode."""
        if self.has_news is None or now < self._fast_due or not self.has_news():
            return False
        if self.result.state != "ok":
            return False
        self.due = self._fast_due = self._clock.monotonic()
        return True

    def postpone(self) -> None:
        """Schedule the next run after an out-of-memory error."""
        self._sent_at = None
        self.due = self._fast_due = self._clock.monotonic() + max(self.period_seconds, POSTPONE_SECONDS)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()

    def _publish(self, findings: Findings, started: float) -> None:
        now = self._clock.monotonic()
        if self.result.state in ("failing", "stalled") and self._failure_log.admits_recovery():
            log.warning("collector %s recovered", self.entry.name)
        if findings.rejected:
            self.errors["inconsistent"] += findings.rejected
        overdue_at = now + max(MIN_OVERDUE_SECONDS, 3 * self.period_seconds)
        errors = dict(self.errors)
        if findings == self.result.findings:
            findings = self.result.findings  # later stages skip an identical object
        self.result = CollectorResult(
            "ok", findings, now, self._clock.wall(), now - started, None, errors, overdue_at
        )
        self.due = started + self.period_seconds
        self._fast_due = started + self._fast_seconds(now - started)
        if self._hurried_at > started:
            self.due = self._fast_due = now

    def _fail(self, state: CollectorState, error: str) -> None:
        before = self.result
        if (before.state, before.error) != (state, error) and self._failure_log.admits(f"{state}: {error}"):
            # Most collectors do not apply to a machine: memwatchd logs these together after the first tick.
            expected = logging.DEBUG if before.state != "ok" else logging.INFO
            level = expected if state == "unavailable" else logging.WARNING
            log.log(level, "collector %s is %s: %s", self.entry.name, state, error)
        self.result = CollectorResult(
            state,
            before.findings.as_stale(),
            before.succeeded_at,
            before.succeeded_unix,
            before.duration_seconds,
            error,
            dict(self.errors),
        )
        self.due = self._fast_due = self._clock.monotonic() + self._pause()

    def _fast_seconds(self, duration_seconds: float) -> float:
        soonest: float | None = getattr(self._collector, "fast_seconds", None)
        if soonest is None:
            return self.period_seconds
        return min(self.period_seconds, max(soonest, FAST_PAUSE_RATIO * duration_seconds))

    def _pause(self) -> float:
        """Return the pause after a failure: the period, or a growing delay if there is no collector yet."""
        if self._collector is not None:
            return self.period_seconds
        pause, self._retry_seconds = self._retry_seconds, min(self._retry_seconds * 2, MAX_RETRY_SECONDS)
        return pause


def classify_error(error: Exception) -> str:
    """Return the reason under which an error is counted."""
    if isinstance(error, PermissionError):
        return "permission"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, OSError):
        return "io"
    return "unreadable" if isinstance(error, ParseError) else "defect"


def describe_error(error: Exception) -> str:
    """Return the message in one printable line: it may quote a file, a driver or another program."""
    if isinstance(error, (ParseError, SourceUnavailable, OSError)):
        return printable(str(error))
    return printable(f"{type(error).__name__}: {error}")


def moved_between(before: Sequence[Share], now: Sequence[Share]) -> float:
    """Return the largest change of a share in bytes; infinity if one appeared, disappeared or lost its value."""
    used = {share.id: share.used_bytes for share in before}
    if used.keys() != {share.id for share in now}:
        return math.inf
    pairs = [(used[share.id], share.used_bytes) for share in now]
    return max((_distance(*pair) for pair in pairs), default=0)


def _distance(before: Bytes, now: Bytes) -> float:
    if isinstance(before, int) and isinstance(now, int):
        return abs(now - before)
    return 0 if now is before else math.inf
