"""What is worth telling about the step from one snapshot to the next, as events in words."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from memwatch import units
from memwatch.accounting.driver_errors import device_of
from memwatch.alerts.rules import CRITICAL
from memwatch.alerts.state import Notice
from memwatch.events import EventLog
from memwatch.history.disk.last_run import LastWords
from memwatch.kernel_log import KNOWN, DriverError, words_of
from memwatch.model import Absent
from memwatch.pressure.oom_kills import NONE, NewKills
from memwatch.processes.leaks import Suspect
from memwatch.snapshot import CollectorStatus, Level, Pressure, Snapshot

log = logging.getLogger(__name__)

_CALM = ("ok", "starting", "unavailable")
_STATE = attrgetter("name", "state")
# A machine that runs out kills many at once, and a driver in trouble repeats itself a thousand times a second.
MOST_KILLS = 5
REPEAT_SECONDS = 60.0


class Told(NamedTuple):
    """How many of one driver's complaints have been told, and when last in monotonic seconds."""

    number: int
    at: float


class Missed(NamedTuple):
    """Ticks that nobody was told of yet, on how many occasions, and when the last were, in monotonic seconds."""

    ticks: int = 0
    times: int = 0
    told_at: float = -REPEAT_SECONDS


class Story:
    """Writes the event log, and the log of the daemon where an administrator would want the line."""

    def __init__(self, events: EventLog) -> None:
        self.log_level = logging.INFO
        self._events = events
        self._levels: dict[str, Level] = {}
        self._told: dict[tuple[str, str], Told] = {}
        self._missed = Missed()

    def tell(self, before: Snapshot | None, now: Snapshot, kills: NewKills = NONE) -> None:
        if before is None:
            self._say(now.unix, "started", f"memwatchd started watching {now.host}")
        else:
            self._tell_collectors(before, now)
        self._tell_missed(now)
        self._tell_levels(now)
        self._tell_kills(now, kills, first=before is None)
        self._tell_drivers(now, first=before is None)

    def tell_alerts(self, now: Snapshot, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            label = now.labels.get(notice.target, notice.target)
            self._say(now.unix, "alert", _alert_sentence(notice, label), notice.target)

    def suspended(self, unix: float, seconds: float) -> None:
        self._say(unix, "suspend", f"the machine was suspended for {seconds:.0f} s")

    def clock_set(self, unix: float, seconds: float) -> None:
        way = "forward" if seconds > 0 else "back"
        self._say(unix, "clock", f"the wall clock was set {way} by {abs(seconds):.1f} s")

    def missed(self, ticks: int) -> None:
        """The next snapshot's story has it, or one within the next minute."""
        self._missed = self._missed._replace(ticks=self._missed.ticks + ticks, times=self._missed.times + 1)

    def reloaded(self, unix: float) -> None:
        self._say(unix, "reloaded", "settings were read again")

    def recovered(self, unix: float, words: LastWords | None, complaints: Sequence[str]) -> None:
        for complaint in complaints:
            self._events.add(unix, "history", complaint)
        if words is not None:
            self._say(unix, "unclean", words.sentence)

    def released(self, unix: float, names: list[str], seconds: float) -> None:
        if names:
            self._say(unix, "release", f"devices were released for {seconds:.0f} s by {', '.join(names)}")

    def suspected(self, unix: float, suspects: Iterable[Suspect]) -> None:
        for suspect in suspects:
            process = suspect.process
            what = f"suspected leak: {process.name} (process {process.pid}) {suspect.evidence}"
            self._say(unix, "leak", what)

    def _tell_missed(self, now: Snapshot) -> None:
        """Once a minute at most: a machine that is too busy for a tick is so for many."""
        ticks, times, told_at = self._missed
        if ticks and now.monotonic - told_at >= REPEAT_SECONDS:
            words = "tick was" if ticks == 1 else "ticks were"
            often = "" if times == 1 else f" on {times} occasions"
            self._say(now.unix, "late", f"{ticks} {words} missed{often}: the machine was too busy")
            self._missed = Missed(told_at=now.monotonic)

    def _tell_levels(self, now: Snapshot) -> None:
        """A target that had no figure for a while goes on from the level that was told last."""
        for pressure in now.pressure:
            old = self._levels.get(pressure.target, Level.LOW)
            if pressure.level != old:
                self._levels[pressure.target] = pressure.level
                text = f"{now.labels[pressure.target]}: {old.word} → {pressure.level.word} ({_why(pressure)})"
                self._say(now.unix, "level", text, pressure.target)

    def _tell_kills(self, now: Snapshot, kills: NewKills, first: bool) -> None:
        for kill in kills.named[:MOST_KILLS]:
            self._say(now.unix, "oom_kill", kill.text)
        others = kills.unnamed + len(kills.named[MOST_KILLS:])
        if others:
            what = "a process" if others == 1 else f"{others} processes"
            more = "also " if kills.named else ""
            gone = " while memwatchd was gone; perhaps memwatchd itself" if first else ""
            self._say(now.unix, "oom_kill", f"the kernel {more}killed {what} for want of memory{gone}")

    def _tell_drivers(self, now: Snapshot, first: bool) -> None:
        """What is new since it was told; what goes on is told again once a minute, with its number."""
        for place, kind, count, words in _complaints(now):
            told = self._told.get((place, kind), Told(count if first else 0, -REPEAT_SECONDS))
            # A helper process that was started again counts from 0.
            told = told._replace(number=min(told.number, count))
            if count > told.number and now.monotonic - told.at >= REPEAT_SECONDS:
                times = count - told.number
                often = "" if times == 1 else f", {times} times"
                text = f"the driver of {place} reported {words_of(kind)}{often}{words}"
                self._say(now.unix, "driver", text)
                told = Told(count, now.monotonic)
            self._told[place, kind] = told

    def _tell_collectors(self, before: Snapshot, now: Snapshot) -> None:
        states = dict(map(_STATE, before.collectors))
        if states == dict(map(_STATE, now.collectors)):
            return
        for status in now.collectors:
            old = states.get(status.name, "starting")
            if status.state != old and not (status.state in _CALM and old in _CALM):
                self._say(now.unix, "collector", _collector_sentence(status), status.name)

    def _say(self, unix: float, kind: str, text: str, target: str | None = None) -> None:
        self._events.add(unix, kind, text, target)
        log.log(self.log_level, "%s", text)


def _alert_sentence(notice: Notice, label: str) -> str:
    word = "still firing" if notice.repeated else "firing" if notice.firing else "resolved"
    if notice.level is not None:
        rule = "" if notice.rule == CRITICAL else f" ({notice.rule})"
        level = "calm" if notice.level is Level.LOW else notice.level.word  # low is the level, not the memory left
        return f"alert {word}: {label} is {level}{rule}"
    return f"alert {word}: {notice.rule} ({'; '.join(why.text for why in notice.reasons) or notice.target})"


def _collector_sentence(status: CollectorStatus) -> str:
    if status.state in _CALM:
        return f"collector {status.name} works again"
    return f"collector {status.name} is {status.state}: {status.error}"


def _why(pressure: Pressure) -> str:
    """The reasons, and how much is left of how much."""
    texts = [reason.text for reason in pressure.reasons] or [f"{pressure.used_ratio * 100:.1f} % used"]
    size, available = pressure.size_bytes, pressure.available_bytes
    if not isinstance(size, Absent) and not isinstance(available, Absent):
        texts.append(f"{units.size(max(0, available))} of {units.size(size)} left")
    return "; ".join(texts)


def _complaints(now: Snapshot) -> Iterator[tuple[str, str, int, str]]:
    """Place, kind, count and, where the kernel's log has it, the latest line, of all that drivers complained of."""
    logged = () if isinstance(now.kernel_log, Absent) else now.kernel_log.driver_errors
    for device in now.devices:
        words = {error.kind: error for error in logged if device_of(error, now.devices) is device}
        for kind, count in device.errors.items():
            if kind in KNOWN or kind.startswith("xid_"):
                yield device.id, kind, count, _quoted(words.get(kind))
    for error in logged:
        if device_of(error, now.devices) is None:
            yield error.place, error.kind, error.count, _quoted(error)


def _quoted(error: DriverError | None) -> str:
    return f": {error.text}" if error else ""
