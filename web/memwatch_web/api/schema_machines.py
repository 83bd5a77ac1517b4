"""JSON schema of this machine and its neighbours."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch.core.snapshot import LevelOrUnknown
from memwatch_web.api.schema_base import Answer, Figures


class MachinePool(Figures):
    id: str
    label: str
    size_bytes: int
    used_bytes: int | None
    available_bytes: int | None
    level: LevelOrUnknown


class MachineLevel(Answer):
    """A pool or a limit above OK, with the reasons."""

    target: str
    level: LevelOrUnknown
    reasons: list[str]


class MachineHolder(Answer):
    name: str
    footprint_bytes: int
    held_bytes: int = Field(description="Its memory on `headroom_of`.")


class MachineEvent(Answer):
    unix: float
    kind: str
    text: str


class MachineTick(Figures):
    """One tick of a machine, with the times of its clock."""

    host: str
    unix: float
    interval_seconds: float
    level: LevelOrUnknown
    sentence: str
    headroom_bytes: int | None = Field(description="Largest amount that one of its devices can allocate.")
    headroom_of: str
    headroom_size_bytes: int | None = Field(description="Total memory of `headroom_of`.")
    pools: list[MachinePool]
    left_out: bool = Field(description="True if it has more pools than a tick holds.")
    levels: list[MachineLevel]
    holders: list[MachineHolder] = Field(
        description="Up to five processes: the largest, and those with the most memory on `headroom_of`."
    )
    events: list[MachineEvent]


class ListedMachine(Figures):
    """This machine or a neighbour."""

    name: str
    is_self: bool
    url: str | None = Field(description="Null for this machine.")
    state: Literal["starting", "up", "stopped", "silent", "unreachable", "refused", "found"] = Field(
        description="found: by mDNS, and not joined; stopped: memwatchd there ended in order; "
        "unreachable: another machine reports that it still receives it; "
        "refused: it answers without a usable stream."
    )
    text: str
    age_seconds: float = Field(description="Since its last tick, by the clock of this machine.")
    last_tick_unix: float | None
    clock_offset_seconds: float | None = Field(
        description="By how much its clock is ahead; null below 2 s, which may be delay."
    )
    falling_bytes_per_second: int | None = Field(
        description="Loss of available memory in the last 10 s before it fell silent; null without one."
    )
    last_tick: MachineTick | None


class FollowedMachine(ListedMachine):
    """A neighbour with its past, the oldest tick first."""

    recent: list[MachineTick] = Field(description="Every tick of its last 120 s.")
    hour: list[MachineTick] = Field(description="A tick for each 10 s of its last hour.")
