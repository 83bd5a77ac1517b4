"""Records of incidents. They are written to disk, so each new field needs a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct, field

from memwatch.core.doc import Doc

IncidentKind = Literal["critical", "kill", "gpu_lost", "wedge", "program", "unclean_end"]
KillerKind = Literal[
    "kernel_oom",
    "cgroup_oom",
    "systemd_oomd",
    "earlyoom",
    "nohang",
    "kubelet",
    "runtime",
    "memwatch_guardian",
    "program",
    "power",
    "unknown",
]

# Kinds of incidents, killers and entries that read badly with spaces in place of the underscores.
TITLES: Mapping[str, str] = {
    "kernel_oom": "OOM killer of the kernel",
    "cgroup_oom": "OOM killer of the kernel, at the limit of a cgroup",
    "systemd_oomd": "systemd-oomd",
    "memwatch_guardian": "memwatch-guardian",
    "gpu_lost": "GPU lost",
    "oom_kill": "OOM kill",
    "program": "failed allocation of a program",
    "power": "loss of power or reset",
    "wedge": "machine did not respond",
}


def title_of(kind: str) -> str:
    return TITLES.get(kind, kind.replace("_", " "))


class Suspect(Struct, frozen=True):
    """A process, or a unit or container with several, that took memory.

    It grew to `held_bytes`.
    """

    who: str
    pid: Annotated[int | None, Doc("Null for several processes, and for memory that no process holds.")]
    unit: Annotated[str | None, Doc("Null without one.")]
    container: Annotated[str | None, Doc("Null without one.")]
    growth_bytes: int
    began: Annotated[float, Doc("Time since when it grew by growth_bytes.")]
    held_bytes: int
    is_new: Annotated[bool, Doc("True if it started then.")] = False


class Killer(Struct, frozen=True):
    """The part of the system that ended a process, with the line or the count that shows it."""

    kind: KillerKind
    evidence: Annotated[str, Doc("The line, or the count, that shows it.")]


class Victim(Struct, frozen=True):
    """A process, unit, pod or container that was killed."""

    who: str
    pid: Annotated[int | None, Doc("Null for several processes, and if it is not known.")]
    unit: Annotated[str | None, Doc("Null without one.")]
    container: Annotated[str | None, Doc("Null without one.")]
    held_bytes: Annotated[int | None, Doc("Null if it is not known.")]
    unix: float
    killer: KillerKind
    is_cause: Annotated[bool | None, Doc("Null while the cause is undecided, or the victim is not known.")] = None
    device_bytes: Annotated[Mapping[str, int], Doc("Its memory of pools other than System RAM, by pool.")] = field(
        default_factory=dict
    )

    @property
    def known_bytes(self) -> int:
        """All of its memory that is known: a lower bound, by which victims are compared and that no page shows."""
        return (self.held_bytes or 0) + sum(self.device_bytes.values())


class Entry(Struct, frozen=True):
    """An entry of the timeline."""

    unix: float
    kind: Annotated[str, Doc("That of an event, or start, end, kill, stall, cgroup.")]
    text: str


class Sample(Struct, frozen=True):
    """Memory of the target at one time. Records of earlier versions have no levels, parts, stalls and shares."""

    unix: float
    used_bytes: int
    available_bytes: int
    holders: Annotated[Mapping[str, int], Doc("Memory of the largest processes, by name and PID.")] = field(
        default_factory=dict
    )
    level: Annotated[str | None, Doc("Null without one.")] = None
    parts: Annotated[Mapping[str, int], Doc("System RAM by use, and swap in use, if the target is System RAM.")] = (
        field(default_factory=dict)
    )
    stall_ratio: Annotated[
        float | None, Doc("Part of the last 10 s that some tasks stalled on memory. Null if it is not known.")
    ] = None
    shares: Annotated[
        Mapping[str, int],
        Doc("Memory of devices in System RAM by label, if its other use is not known by parts."),
    ] = field(default_factory=dict)


ToldResult = Literal["delivered", "failed", "waiting"]


class Told(Struct, frozen=True):
    """The last attempt to notify a receiver of an alert about the target."""

    receiver: str
    rule: str
    unix: Annotated[float | None, Doc("Its end. Null before the first one.")]
    result: ToldResult
    reason: Annotated[str, Doc("Error of the attempt. Empty if it succeeded.")] = ""


class Incident(Struct, frozen=True):
    """An incident. The list leaves `timeline`, `samples` and `gpu_holders` empty.

    `target` is the pool or share, with its `label`. `evidence`: sentences.
    """

    id: str
    kind: IncidentKind
    target: str
    label: str
    began: float
    ended: Annotated[float | None, Doc("Null while it lasts.")]
    sentence: str
    cause: Annotated[Suspect | None, Doc("Null if it is undecided: see `candidates`.")] = None
    candidates: tuple[Suspect, ...] = ()
    killer: Annotated[Killer | None, Doc("Null if nothing was killed.")] = None
    victim: Annotated[Victim | None, Doc("Null if nothing was killed.")] = None
    victims: tuple[Victim, ...] = ()
    size_bytes: Annotated[int | None, Doc("Null if it is not known.")] = None
    lowest_available_bytes: Annotated[int | None, Doc("Null if it is not known.")] = None
    came_back_bytes: Annotated[
        int | None,
        Doc(
            "Available at the end, or now until quiet_until, less the lowest; after a kill in a cgroup, what its "
            "victims held. Null while it lasts, and if it is not known."
        ),
    ] = None
    evidence: tuple[str, ...] = ()
    timeline: tuple[Entry, ...] = ()
    samples: tuple[Sample, ...] = ()
    gpu_holders: Annotated[tuple[str, ...], Doc("Holders in `samples` whose memory is mostly that of a GPU.")] = ()
    boot_id: str = ""
    times: Annotated[int, Doc("Number of incidents of the same pod or cgroup that this one stands for.")] = 1
    first_began: Annotated[float | None, Doc("Beginning of the first of them; null if there is only one.")] = None
    growth_seconds: Annotated[float | None, Doc("Time in which the cause grew. Null if it is not known.")] = None
    rise_bytes: Annotated[int | None, Doc("Growth of the target's use then. Null if it is not known.")] = None
    kills: Annotated[int, Doc("Number of processes that were killed, with those that are not listed.")] = 0
    told: Annotated[
        tuple[Told, ...] | None,
        Doc("Receivers of the alerts about the target, up to five minutes after its end. Null in earlier records."),
    ] = None
    quiet_until: Annotated[
        float | None,
        Doc("It is over, and recorded until then unless it goes on. Null while it lasts, and after that time."),
    ] = None

    @property
    def lasts(self) -> bool:
        return self.ended is None and self.quiet_until is None
