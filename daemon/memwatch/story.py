"""What is worth telling about the step from one snapshot to the next, as events in words."""

from __future__ import annotations

import logging

from memwatch.alerts import Notice
from memwatch.events import EventLog
from memwatch.model import Absent
from memwatch.snapshot import CollectorStatus, Kernel, Level, Snapshot

log = logging.getLogger(__name__)

_CALM = ("ok", "starting", "unavailable")


class Story:
    """Writes the event log, and the log of the daemon where an administrator would want the line."""

    def __init__(self, events: EventLog) -> None:
        self._events = events

    def tell(self, before: Snapshot | None, now: Snapshot) -> None:
        if before is None:
            self._say(now.unix, "started", f"memwatchd started watching {now.host}")
        else:
            self._tell_levels(before, now)
            self._tell_kernel(before.kernel, now)
            self._tell_collectors(before, now)

    def tell_alerts(self, now: Snapshot, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            self._say(now.unix, "alert", _alert_sentence(notice), notice.target)

    def suspended(self, unix: float, seconds: float) -> None:
        self._say(unix, "suspend", f"the machine was suspended for {seconds:.0f} s")

    def clock_set(self, unix: float, seconds: float) -> None:
        way = "forward" if seconds > 0 else "back"
        self._say(unix, "clock", f"the wall clock was set {way} by {abs(seconds):.1f} s")

    def missed(self, unix: float, ticks: int) -> None:
        self._say(
            unix,
            "late",
            f"{ticks} {'tick was' if ticks == 1 else 'ticks were'} missed: the machine was too busy",
        )

    def reloaded(self, unix: float) -> None:
        self._say(unix, "reloaded", "settings were read again")

    def released(self, unix: float, names: list[str], seconds: float) -> None:
        if names:
            self._say(unix, "release", f"devices were released for {seconds:.0f} s by {', '.join(names)}")

    def _tell_levels(self, before: Snapshot, now: Snapshot) -> None:
        levels = {pressure.target: pressure.level for pressure in before.pressure}
        for pressure in now.pressure:
            old = levels.get(pressure.target, Level.LOW)
            if pressure.level != old:
                why = "; ".join(reason.text for reason in pressure.reasons) or f"{pressure.ratio:.0%} used"
                text = f"{now.labels[pressure.target]}: {old.word} → {pressure.level.word} ({why})"
                self._say(now.unix, "level", text, pressure.target)

    def _tell_kernel(self, before: Kernel, now: Snapshot) -> None:
        old, new = before.oom_kills_total, now.kernel.oom_kills_total
        if not isinstance(old, Absent) and not isinstance(new, Absent) and new > old:
            count = new - old
            what = "a process" if count == 1 else f"{count} processes"
            self._say(now.unix, "oom_kill", f"the kernel killed {what} for want of memory")

    def _tell_collectors(self, before: Snapshot, now: Snapshot) -> None:
        states = {status.name: status.state for status in before.collectors}
        for status in now.collectors:
            old = states.get(status.name, "starting")
            if status.state != old and not (status.state in _CALM and old in _CALM):
                self._say(now.unix, "collector", _collector_sentence(status), status.name)

    def _say(self, unix: float, kind: str, text: str, target: str | None = None) -> None:
        self._events.add(unix, kind, text, target)
        log.info("%s", text)


def _alert_sentence(notice: Notice) -> str:
    word = "still firing" if notice.repeated else "firing" if notice.firing else "resolved"
    if notice.level is not None:
        return f"alert {word}: {notice.target} is {notice.level.word}"
    return f"alert {word}: {notice.rule} ({'; '.join(why.text for why in notice.reasons) or notice.target})"


def _collector_sentence(status: CollectorStatus) -> str:
    if status.state in _CALM:
        return f"collector {status.name} works again"
    return f"collector {status.name} is {status.state}: {status.error}"
