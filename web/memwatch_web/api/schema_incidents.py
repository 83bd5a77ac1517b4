"""JSON schema of incidents."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch.monitor.incidents.records import KillerKind
from memwatch_web.api.schema_base import Answer


class IncidentSuspect(Answer):
    """A process, or a unit or container with several, that took memory."""

    who: str
    pid: int | None = Field(description="Null for several processes, and for memory that no process holds.")
    unit: str | None
    container: str | None
    growth_bytes: int
    began: str = Field(description="Time since when it grew by growth_bytes.")
    began_unix: float
    held_bytes: int
    is_new: bool = Field(description="True if it started then.")


class IncidentKiller(Answer):
    kind: KillerKind
    evidence: str = Field(description="The line, or the count, that shows it.")


class IncidentVictim(Answer):
    """A process, unit, pod or container that was killed."""

    who: str
    pid: int | None
    unit: str | None
    container: str | None
    held_bytes: int | None
    time: str
    unix: float
    killer: KillerKind
    is_cause: bool | None = Field(description="Null while the cause is undecided, or the victim is not known.")
    device_bytes: dict[str, int] = Field(description="Its memory of pools other than System RAM, by pool.")


class IncidentEntry(Answer):
    time: str
    unix: float
    kind: str = Field(description="That of an event, or start, end, kill, stall, cgroup.")
    text: str


class IncidentSample(Answer):
    unix: float
    used_bytes: int
    available_bytes: int
    holders: dict[str, int] = Field(description="Memory of the largest processes, by name and PID.")


class Incident(Answer):
    """An incident. The list leaves `timeline`, `samples` and `gpu_holders` empty."""

    id: str
    kind: Literal["critical", "kill", "gpu_lost", "wedge", "program", "unclean_end"]
    target: str
    label: str
    began: str
    began_unix: float
    ended: str | None = Field(description="Null while it lasts.")
    ended_unix: float | None
    sentence: str
    cause: IncidentSuspect | None = Field(description="Null if it is undecided: see `candidates`.")
    candidates: list[IncidentSuspect]
    killer: IncidentKiller | None = Field(description="Null if nothing was killed.")
    victim: IncidentVictim | None
    victims: list[IncidentVictim]
    size_bytes: int | None
    lowest_available_bytes: int | None
    came_back_bytes: int | None = Field(
        description="Available at the end, less the lowest; after a kill in a cgroup, what its victims held. "
        "Null while it lasts, and if it is not known."
    )
    evidence: list[str]
    timeline: list[IncidentEntry]
    samples: list[IncidentSample]
    gpu_holders: list[str] = Field(description="Holders in `samples` whose memory is mostly that of a GPU.")
    boot_id: str
