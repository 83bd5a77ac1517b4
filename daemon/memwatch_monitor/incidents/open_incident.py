"""An incident while it lasts: what was gathered so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from memwatch.core.events import Event
from memwatch.core.kernel_log import ProcessEnd, shorten_cgroup
from memwatch.core.units import duration
from memwatch.reporting.incidents.killer import Death, explains, is_member
from memwatch.reporting.incidents.readings import Frame, Holding
from memwatch.reporting.incidents.records import IncidentKind, Suspect
from memwatch_monitor.incidents.triggers import is_routine

# Sources of deaths of which only the number is known.
COUNTERS = frozenset({"cgroup", "count"})
MAX_FRAMES, MAX_DEATHS, MAX_EVENTS, MAX_ENDS = 600, 16, 150, 50
# The more specific kind is kept.
RANK: dict[IncidentKind, int] = {
    "critical": 0,
    "program": 1,
    "wedge": 2,
    "gpu_lost": 3,
    "kill": 4,
    "unclean_end": 5,
}
# Two lines about one end come within this time.
SAME_END_SECONDS = 15.0


class OpenIncident(Struct):
    """State of an incident.

    `place`: the pool or share whose figures are read. For an incident about a cgroup that is System RAM, of which
    only the processes in the cgroup count. `bad_at`: boot time of the last trigger, or of the last tick at a
    critical level. `labels`: those of pools and shares, by id. `long`: growth over the last hour by PID, the most
    that was seen. `more_deaths`: processes killed beyond MAX_DEATHS reports. `more_ends`: ends of processes beyond
    MAX_ENDS. `times`: incidents of its cgroup since `first_began`, this one included. `is_displaced`: it ends for
    another one. `is_quiet`: nothing happened for some seconds.
    """

    id: str
    kind: IncidentKind
    target: str
    label: str
    size_bytes: int
    began: float
    boottime: float
    bad_at: float
    bad_unix: float
    boot_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""
    place: str = ""
    detail: str = ""
    gap_count: int = 0
    longest_gap_seconds: float = 0.0
    written_at: float = 0.0
    rewrite_seconds: float = 10.0
    frames: list[Frame] = field(default_factory=list)
    deaths: list[tuple[float, Death]] = field(default_factory=list)
    more_deaths: int = 0
    more_ends: int = 0
    events: list[Event] = field(default_factory=list)
    ends: list[tuple[ProcessEnd, Holding]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    long: dict[int | None, Suspect] = field(default_factory=dict)
    times: int = 1
    first_began: float = 0.0
    is_displaced: bool = False
    is_quiet: bool = False

    @property
    def killed_bytes(self) -> int:
        return max((death.killed_bytes for _, death in self.deaths), default=0)

    @property
    def is_of_cgroup(self) -> bool:
        """Return True for an incident about a cgroup, whose memory is known only as that of its processes."""
        return self.place not in ("", self.target)

    def add_frame(self, frame: Frame) -> None:
        """Add a frame. Of too many, every second of the older half is dropped."""
        self.frames.append(frame)
        if len(self.frames) > MAX_FRAMES:
            half = len(self.frames) // 2
            self.frames = [*self.frames[:half:2], *self.frames[half:]]

    def add_events(self, events: tuple[Event, ...]) -> None:
        """Add events, at most MAX_EVENTS. Others replace routine events of programs."""
        for event in events:
            if len(self.events) < MAX_EVENTS or self._make_room(event):
                self.events.append(event)

    def _make_room(self, event: Event) -> bool:
        routine = [] if is_routine(event) else [index for index, one in enumerate(self.events) if is_routine(one)]
        if routine:
            del self.events[routine[-1]]
        return bool(routine)

    def add_end(self, end: ProcessEnd, holding: Holding) -> None:
        if len(self.ends) < MAX_ENDS:
            self.ends.append((end, holding))
        else:
            self.more_ends += 1

    def add_death(self, boottime: float, death: Death) -> bool:
        """Add a death. Return False if it is another line about a known one.

        A line that names the killer replaces one that does not.
        """
        for index, (at, known) in enumerate(self.deaths):
            if boottime - at > SAME_END_SECONDS or not is_same_end(known, death):
                continue
            if known.killer.kind == "unknown" and death.killer.kind != "unknown":
                self.deaths[index] = at, death
            return False
        if len(self.deaths) < MAX_DEATHS:
            self.deaths.append((boottime, death))
        else:
            self.more_deaths += death.count
        return True

    def add_long(self, boottime: float, suspects: Iterable[Suspect]) -> None:
        """Add the growth over the last hour, until the first kill: a process that was killed is listed no more."""
        if self.deaths and boottime - self.deaths[0][0] > SAME_END_SECONDS:
            return
        for one in suspects:
            known = self.long.get(one.pid)
            if known is None or one.growth_bytes >= known.growth_bytes:
                self.long[one.pid] = one

    def add_gap(self, seconds: float) -> None:
        if seconds:
            self.gap_count += 1
            self.longest_gap_seconds = max(self.longest_gap_seconds, seconds)

    def describe(self) -> str:
        """Return what happened instead of a kill: lost GPUs, and gaps in the samples. Empty without any."""
        return "; ".join(part for part in (self.detail, self._describe_gaps()) if part)

    def _describe_gaps(self) -> str:
        if not self.gap_count:
            return ""
        longest = duration(self.longest_gap_seconds)
        length = longest if self.gap_count == 1 else f"up to {longest}, {self.gap_count} times"
        return f"no sample could be taken for {length}: the machine did not run memwatchd"

    def note(self, kind: IncidentKind, boottime: float, unix: float) -> None:
        self.bad_at, self.bad_unix = boottime, unix
        if RANK[kind] > RANK[self.kind]:
            self.kind = kind


def is_same_end(one: Death, other: Death) -> bool:
    """Return True if two lines are about one end: the same PID, or a place that contains the process."""
    first, second = one.victim, other.victim
    if first.pid is not None and second.pid is not None:
        return first.pid == second.pid
    if one.source == other.source and one.source in COUNTERS:  # it rose twice
        return False
    if "count" in (one.source, other.source):  # the counter of the kernel and a line of its log
        return {one.source, other.source} <= {"count", "oom_report", "kernel", "runtime_oom"}
    for whole, part in ((one, other), (other, one)):
        place, victim = whole.place, part.victim
        if place:
            held = part.holding or Holding(victim.who, victim.unit, victim.container, 0, None)
            if (victim.pid is not None and explains(whole, victim.pid, held)) or is_member(held, place):
                return True
            if victim.pid is None and shorten_cgroup(place).rsplit("/", 1)[-1] == victim.who.rsplit("/", 1)[-1]:
                return True
    return False
