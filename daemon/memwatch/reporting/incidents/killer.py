"""The part of the system that ended a process, from lines of the kernel and of services. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.kernel_log import KillSource, OomKill, OomTask, ProcessEnd, ServiceKill, shorten_cgroup
from memwatch.core.linux.cgroup_kills import CgroupKill
from memwatch.core.linux.cgroups import parse_owners
from memwatch.core.owners import is_qualified
from memwatch.reporting.incidents.cause import owner_key
from memwatch.reporting.incidents.readings import Holding
from memwatch.reporting.incidents.records import Killer, KillerKind, Suspect, Victim

# The service that is named before its line.
SERVICES: dict[KillSource, tuple[KillerKind, str]] = {
    "systemd_oomd": ("systemd_oomd", "systemd-oomd"),
    "oomd_prekill": ("systemd_oomd", "systemd-oomd"),
    "earlyoom": ("earlyoom", "earlyoom"),
    "nohang": ("nohang", "nohang"),
    "kubelet": ("kubelet", "kubelet"),
    "runtime": ("runtime", "container runtime"),
    "runtime_oom": ("cgroup_oom", "container runtime"),
    "oom_report": ("unknown", "systemd"),
    "unit_end": ("unknown", "systemd"),
    "guardian": ("memwatch_guardian", "memwatch-guardian"),
}
WORDS: dict[KillerKind, str] = {
    "kernel_oom": "the kernel",
    "cgroup_oom": "the kernel",
    "systemd_oomd": "systemd-oomd",
    "earlyoom": "earlyoom",
    "nohang": "nohang",
    "kubelet": "the kubelet",
    "runtime": "the container runtime",
    "memwatch_guardian": "memwatch-guardian",
    "program": "the program itself",
    "power": "a loss of power or a reset",
    "unknown": "an unknown sender",
}


class Death(Struct, frozen=True):
    """A victim, the killer, and the cgroup at whose limit it was killed, if any.

    `source`: `kernel`, `cgroup`, `count`, `end`, `program`, or the service. `place`: the cgroup, unit, pod or
    container that was killed, if the line names no process. `tasks`: the largest processes at that time.
    `holding`: the victim as it was listed last. `limit_bytes`: limit of the cgroup, None if it is not known.
    `count`: processes that were killed, more than one if only their number is known.
    """

    victim: Victim
    killer: Killer
    cgroup: str = ""
    source: str = ""
    place: str = ""
    tasks: tuple[OomTask, ...] = ()
    holding: Holding | None = None
    limit_bytes: int | None = None
    count: int = 1

    @property
    def killed_bytes(self) -> int:
        """Memory of the victim, or the limit that it had reached; 0 if neither is known."""
        return self.victim.known_bytes or self.limit_bytes or 0

    @property
    def is_of_limit(self) -> bool:
        """Return True if the kernel itself reports that a limit was reached. A runtime reports any OOM kill."""
        return self.killer.kind == "cgroup_oom" and self.source in ("kernel", "cgroup")


def from_kernel(kill: OomKill, unix: float, holding: Holding | None, limit_bytes: int | None = None) -> Death:
    """Build a death from the kernel log. `holding`: the process as it was listed last.

    `limit_bytes`: limit of the cgroup by its files, for a log that lacks it.
    """
    kind: KillerKind = "cgroup_oom" if kill.scope == "cgroup" else "kernel_oom"
    limit = "" if limit_bytes is None else f"; the limit was {units.size(limit_bytes)}"
    if isinstance(kill.limit_bytes, int):
        limit_bytes, limit = kill.limit_bytes, ""
    unit, container = (holding.unit, holding.container) if holding else owner_in(kill.cgroup)
    sizes = [one for one in (kill.anonymous_bytes, holding.size if holding else None) if isinstance(one, int)]
    held = max(sizes, default=None)
    known = units.size(held) if held is not None else ""
    is_less = isinstance(kill.anonymous_bytes, int) and units.size(kill.anonymous_bytes) != known
    counted = f"; {known} with its other memory" if is_less else ""
    victim = Victim(kill.name, kill.pid, unit, container, held, unix, kind)
    return Death(
        victim,
        Killer(kind, f"kernel log: {kill.text}{limit}{counted}"),
        kill.cgroup,
        "kernel",
        tasks=kill.tasks,
        holding=holding,
        limit_bytes=limit_bytes,
    )


def from_count(number: int, unix: float, is_own: bool) -> Death:
    """Build a death from the kernel's counter, if its log is not readable or does not name the victim.

    `is_own`: at the limit of the own cgroup.
    """
    kind: KillerKind = "cgroup_oom" if is_own else "kernel_oom"
    processes = "1 process" if number == 1 else f"{number} processes"
    text = f"/proc/vmstat: the OOM killer killed {processes}; its log does not name them"
    who = "a process" if number == 1 else processes
    victim = Victim(who, None, None, None, None, unix, kind)
    return Death(victim, Killer(kind, text), source="count", count=number)


def from_cgroup(kill: CgroupKill, unix: float, known: Victim | None = None) -> Death:
    """Build a death from the counters of a cgroup at its limit. `known`: a process in it that ended by SIGKILL."""
    unit, container = owner_in(kill.cgroup)
    victim = known or Victim(kill.victims, None, unit, container, None, unix, "cgroup_oom")
    text = f"{kill.text} (counters of {kill.cgroup or 'the cgroups'})"
    return Death(
        replace(victim, killer="cgroup_oom"),
        Killer("cgroup_oom", text),
        kill.cgroup,
        "cgroup",
        place=kill.cgroup,
        limit_bytes=kill.limit_bytes,
        count=1 if known else kill.count,
    )


def from_service(kill: ServiceKill, holding: Holding | None) -> Death:
    kind, name = SERVICES[kill.source]
    unit, container = (holding.unit, holding.container) if holding else owner_in(kill.place)
    who = kill.name or shorten_cgroup(kill.place)
    held = holding.size if holding else None
    victim = Victim(who, kill.pid, unit, container, held, kill.unix, kind)
    medium = {"oomd_prekill": "prekill message", "guardian": "report"}.get(kill.source, "log")
    return Death(
        victim,
        Killer(kind, f"{medium} of {name}: {kill.text}"),
        source=kill.source,
        place=kill.place,
        holding=holding,
    )


def from_end(end: ProcessEnd, holding: Holding) -> Death:
    """Build a death from an end by SIGKILL that no log explains."""
    text = f"{holding.name} (PID {end.pid}) ended by {end.signal_name}; no log that is read names the sender"
    victim = Victim(holding.name, end.pid, holding.unit, holding.container, holding.size, end.unix, "unknown")
    return Death(victim, Killer("unknown", text), source="end", holding=holding)


def from_program(pid: int | None, text: str, unix: float, holding: Holding | None) -> Death:
    """Build a death from a program's report that an allocation failed."""
    who = holding.name if holding else "a program"
    unit, container = (holding.unit, holding.container) if holding else (None, None)
    victim = Victim(who, pid, unit, container, holding.size if holding else None, unix, "program")
    return Death(victim, Killer("program", f"mark of the program: {text}"), source="program")


def with_device_memory(death: Death, device_bytes: Mapping[str, int]) -> Death:
    return replace(death, victim=replace(death.victim, device_bytes=device_bytes)) if device_bytes else death


def choose_killer(deaths: Sequence[Death]) -> Death | None:
    """Return the first death with a known killer, else the first one."""
    known = [one for one in deaths if one.killer.kind != "unknown"]
    return min(known or deaths, key=lambda one: one.victim.unix, default=None)


def explains(death: Death, pid: int, holding: Holding | None) -> bool:
    """Return True if a death is that of this process: by its PID, or by its cgroup, unit, pod or container."""
    if death.victim.pid is not None:
        return death.victim.pid == pid
    return holding is not None and is_member(holding, death.place)


def is_member(holding: Holding, place: str) -> bool:
    """Return True if a process belongs to a cgroup path, or to the unit, pod or container of that name."""
    if not place.startswith("/"):
        name, container = place.rpartition("/")[2], holding.container  # of a pod: its namespace and its name
        return name in (holding.unit, holding.pod) or (container is not None and place[:12] == container)
    killed = parse_owners({"": place}).printable()
    if killed.job:
        return holding.job == killed.job
    if is_qualified(killed.unit):  # a unit of a container is not all of the container
        return holding.unit == killed.unit
    if killed.container:
        return holding.container == killed.container
    if killed.pod:
        return holding.pod == killed.pod
    return killed.unit is not None and holding.unit == killed.unit


def owner_in(place: str) -> tuple[str | None, str | None]:
    """Return the unit and the container that a cgroup path or the name of a unit contains."""
    found = parse_owners({"": place}).printable()
    return found.unit, found.container


def is_same(victim: Victim, cause: Suspect) -> bool | None:
    """Return True if the victim is the cause, or its unit or container. None if the victim is not known."""
    if victim.pid is None and victim.unit is None and victim.container is None:
        return None
    if victim.pid is not None and cause.pid is not None:
        return victim.pid == cause.pid
    key = owner_key(victim.unit, victim.container)
    return key is not None and key == owner_key(cause.unit, cause.container)


def mark_victims(deaths: Iterable[Death], cause: Suspect | None) -> tuple[Victim, ...]:
    """Return the victims, each marked as the cause or not."""
    return tuple(
        replace(one.victim, is_cause=None if cause is None else is_same(one.victim, cause)) for one in deaths
    )
