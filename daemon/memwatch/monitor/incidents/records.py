"""Records of incidents. They are written to disk, so each new field needs a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

IncidentKind = Literal["critical", "kill", "gpu_lost", "wedge", "program", "unclean_end"]
KillerKind = Literal[
    "kernel_oom",
    "cgroup_oom",
    "systemd_oomd",
    "earlyoom",
    "nohang",
    "kubelet",
    "runtime",
    "program",
    "power",
    "unknown",
]

# Kinds of incidents, killers and entries that read badly with spaces in place of the underscores.
TITLES: Mapping[str, str] = {
    "kernel_oom": "OOM killer of the kernel",
    "cgroup_oom": "OOM killer of the kernel, at the limit of a cgroup",
    "systemd_oomd": "systemd-oomd",
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

    `pid` is None for more than one process, and for memory that no process holds. `began`: Unix time since when it
    grew by `growth_bytes`, to `held_bytes`. `is_new`: it started then.
    """

    who: str
    pid: int | None
    unit: str | None
    container: str | None
    growth_bytes: int
    began: float
    held_bytes: int
    is_new: bool = False


class Killer(Struct, frozen=True):
    """The part of the system that ended a process, with the line or the count that shows it."""

    kind: KillerKind
    evidence: str


class Victim(Struct, frozen=True):
    """A process, unit or container that was killed. `held_bytes` is None if its size is not known.

    `is_cause` is None while the cause is undecided. `device_bytes`: its memory of pools other than System RAM.
    """

    who: str
    pid: int | None
    unit: str | None
    container: str | None
    held_bytes: int | None
    unix: float
    killer: KillerKind
    is_cause: bool | None = None
    device_bytes: Mapping[str, int] = field(default_factory=dict)


class Entry(Struct, frozen=True):
    """An entry of the timeline. `kind` is that of an event, or start, end, stall, cgroup, kill."""

    unix: float
    kind: str
    text: str


class Sample(Struct, frozen=True):
    """Memory of the target at one time. `holders`: bytes by name and PID of the largest processes."""

    unix: float
    used_bytes: int
    available_bytes: int
    holders: Mapping[str, int] = field(default_factory=dict)


class Incident(Struct, frozen=True):
    """An incident. `ended` is None while it lasts.

    `target` is the pool or share, with its `label`. `came_back_bytes`: how much more was available at its end than
    at the worst moment; after a kill in a cgroup, what its victims held. None while it lasts, and if not known.
    `evidence`: sentences. `gpu_holders`: the holders in `samples` whose memory is mostly that of a GPU.
    """

    id: str
    kind: IncidentKind
    target: str
    label: str
    began: float
    ended: float | None
    sentence: str
    cause: Suspect | None = None
    candidates: tuple[Suspect, ...] = ()
    killer: Killer | None = None
    victim: Victim | None = None
    victims: tuple[Victim, ...] = ()
    size_bytes: int | None = None
    lowest_available_bytes: int | None = None
    came_back_bytes: int | None = None
    evidence: tuple[str, ...] = ()
    timeline: tuple[Entry, ...] = ()
    samples: tuple[Sample, ...] = ()
    gpu_holders: tuple[str, ...] = ()
    boot_id: str = ""
