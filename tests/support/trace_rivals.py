"""Common rules for memory alarms, written from their published texts, on the readings of a trace once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memwatch.core.model import Thresholds
from memwatch.core.pressure.judge import base_level
from memwatch.core.snapshot import Level
from support.trace_file import Trace, read_size

GIB = 1 << 30
Levels = list[tuple[float, Level]]
PSI_SECONDS = 10.0


class Look:
    """Readings of a trace at one second, and what a rule keeps between two of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.at = 0.0
        self.since: dict[str, float] = {}
        self.level = Level.LOW
        self.swap_size = read_size(trace.header.swap_bytes)

    def value(self, column: str) -> float:
        return self.trace.value(column, self.at)

    @property
    def available(self) -> float:
        return max(0.0, self.value("available_bytes"))

    @property
    def used_ratio(self) -> float:
        """MemAvailable and MemTotal: none of these rules knows of huge pages or ZFS."""
        return 1 - self.available / self.trace.size

    @property
    def swap_free_ratio(self) -> float:
        """Fraction of swap that is free, 0 without swap."""
        return 1 - self.value("swap_used_bytes") / self.swap_size if self.swap_size else 0.0

    def stalled(self, line: str) -> float:
        """Return the kernel's avg10 of a PSI line, as the mean of the last ten seconds."""
        column = f"psi_{line}_seconds"
        before = self.trace.value(column, max(0.0, self.at - PSI_SECONDS))
        return (self.trace.value(column, self.at) - before) / PSI_SECONDS

    def holds(self, name: str, is_true: bool, seconds: float) -> bool:
        """Return True if a condition has been true for that time."""
        if not is_true:
            self.since.pop(name, None)
            return False
        return self.at - self.since.setdefault(name, self.at) >= seconds


Rule = Callable[[Look], Level]


def levels_of(rule: Rule, trace: Trace) -> Levels:
    found: Levels = []
    look = Look(trace)
    for at in _seconds(trace):
        look.at = at
        look.level = rule(look)
        found.append((at, look.level))
    return found


def _seconds(trace: Trace) -> Iterator[float]:
    header, at = trace.header, 0.0
    last = header.seconds if header.ends is None else header.ends
    while at <= last:
        yield at
        at += 1.0
        if header.suspended and header.suspended[0] <= at < header.suspended[1]:
            at = header.suspended[1]


def plain_thresholds(look: Look) -> Level:
    return base_level(look.used_ratio, Thresholds())


def earlyoom(look: Look) -> Level:
    """earlyoom 1.8: SIGTERM at 10 % available and 10 % of swap free, both."""
    acts = look.used_ratio >= 0.90 and look.swap_free_ratio <= 0.10
    return Level.CRITICAL if acts else Level.LOW


def systemd_oomd(look: Look) -> Level:
    """systemd-oomd 261: 90 % of memory and of swap used, or all tasks stalled for 60 % of the time for 30 s."""
    swap = look.swap_size > 0 and look.used_ratio > 0.90 and look.swap_free_ratio < 0.10
    pressure = look.holds("pressure", look.stalled("full") > 0.60, 30.0)
    return Level.CRITICAL if swap or pressure else Level.LOW


def node_mixin(look: Look) -> Level:
    """node-mixin NodeMemoryHighUtilization: above 90 % for 15 minutes, a warning."""
    return Level.HIGH if look.holds("used", look.used_ratio > 0.90, 900.0) else Level.LOW


def netdata(look: Look) -> Level:
    """Netdata ram_in_use: warning above 90 (clear 80), critical above 98 (clear 90)."""
    if look.used_ratio > (0.90 if look.level is Level.CRITICAL else 0.98):
        return Level.CRITICAL
    return Level.HIGH if look.used_ratio > (0.80 if look.level >= Level.HIGH else 0.90) else Level.LOW


def spark_watchdog(look: Look) -> Level:
    """memwatch.sh of the DGX Spark recipes before its pull request 54: stops the server after five samples below
    6 GiB available, or below 2 GiB free while less than 10 GiB are available. It is for this machine only."""
    if look.trace.size < 100 * GIB:
        return Level.LOW
    low = look.holds("available", look.available < 6 * GIB, 4.0)
    is_short = look.trace.has("free_bytes") and look.value("free_bytes") < 2 * GIB and look.available < 10 * GIB
    return Level.CRITICAL if look.holds("free", is_short, 4.0) or low else Level.LOW


def syncloud(look: Look) -> Level:
    """Syncloud's watcher before its pull request 769: below 8 % available, or some tasks stalled for 40 %."""
    acts = look.used_ratio > 0.92 or look.stalled("some") > 0.40
    return Level.CRITICAL if acts else Level.LOW


def omlx(look: Look) -> Level:
    """oMLX: soft limit at 85 %, hard limit at 95 % of memory."""
    if look.used_ratio >= 0.95:
        return Level.CRITICAL
    return Level.HIGH if look.used_ratio >= 0.85 else Level.LOW


RIVALS: dict[str, Rule] = {
    "plain 60/80/95 %": plain_thresholds,
    "earlyoom 1.8": earlyoom,
    "systemd-oomd 261": systemd_oomd,
    "node-mixin": node_mixin,
    "Netdata": netdata,
    "Spark watchdog": spark_watchdog,
    "Syncloud": syncloud,
    "oMLX": omlx,
}
