"""Answers of the API beside the snapshot, one record each: the daemon writes them and commands read them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import LevelOrUnknown, NeighbourState, Reason

# Limits of texts of another machine.
TEXT_LENGTH, NAME_LENGTH, MAX_REASONS = 160, 64, 3
Instant = Annotated[float, Meta(ge=0, le=1e11)]
Name = Annotated[str, Meta(max_length=NAME_LENGTH)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH)]
MachineState = Literal[NeighbourState, "found"]


class MachinePool(Struct, frozen=True):
    """One pool in bytes; None where a figure is unknown."""

    id: str
    label: str
    size_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes
    level: LevelOrUnknown


class MachineLevel(Struct, frozen=True):
    """The level of a pool or a limit above OK, with its reasons."""

    target: Name
    level: LevelOrUnknown
    reasons: Annotated[tuple[Text, ...], Meta(max_length=MAX_REASONS)]


class MachineHolder(Struct, frozen=True):
    """A process with its footprint in bytes. `held`: its memory on `headroom_of`, if that is not the footprint."""

    name: str
    footprint_bytes: int
    held_bytes: Annotated[int, Doc("Its memory on `headroom_of`.")]


class MachineEvent(Struct, frozen=True):
    """An event of the sender, in its time."""

    unix: Instant
    kind: Name
    text: Text


class MachineTick(Struct, frozen=True):
    """One tick of a machine. `sees`: state by `run` of the machines that it follows itself."""

    host: str
    unix: float
    interval_seconds: float
    level: LevelOrUnknown
    sentence: str
    headroom_bytes: Annotated[Bytes, Doc("Memory that `headroom_of` can allocate now.")]
    headroom_after_reclaim_bytes: Annotated[
        Bytes, Doc("The same after reclaim of page cache: the largest of its devices.")
    ]
    headroom_of: str
    headroom_size_bytes: Annotated[Bytes, Doc("Total memory of `headroom_of`.")]
    pools: tuple[MachinePool, ...]
    left_out: Annotated[bool, Doc("True if it has more pools than a tick holds.")] = False
    levels: tuple[MachineLevel, ...] = ()
    holders: Annotated[
        tuple[MachineHolder, ...],
        Doc("Up to five processes: the largest, and those with the most memory on `headroom_of`."),
    ] = ()
    events: tuple[MachineEvent, ...] = ()


class ListedMachine(Struct, frozen=True):
    """One machine. `is_self`: this one. `tick`: its last, None before the first; `words`: while it sends none."""

    name: str
    is_self: bool
    url: Annotated[str | None, Doc("Null for this machine.")]
    state: Annotated[
        MachineState,
        Doc(
            "found: by mDNS, and not joined; stopped: memwatchd there ended in order; "
            "unreachable: another machine reports that it still receives it; "
            "refused: it answers without a usable stream."
        ),
    ]
    text: str
    age_seconds: Annotated[float, Doc("Since its last tick, by the clock of this machine.")]
    last_tick_unix: float | Absent
    clock_offset_seconds: Annotated[
        float | Absent, Doc("By how much its clock is ahead; not_available below 2 s, which may be delay.")
    ]
    falling_bytes_per_second: Annotated[
        int | None, Doc("Loss of available memory in the last 10 s before it fell silent; null without one.")
    ]
    last_tick: MachineTick | Absent


class Verdict(Enum):
    """`OK`: no problem. `HINT`: works, but more data is possible. `PROBLEM`: data is missing or wrong."""

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


class Check(Struct, frozen=True):
    """Result of one check. `id`: stable name of the subject."""

    id: str
    verdict: Verdict
    text: str
    remedy: Annotated[str | None, Doc("What the operator can do; null if there is nothing to do.")] = None


class Examination(Struct, frozen=True):
    """All checks, in the order in which they ran."""

    checks: tuple[Check, ...]
    version: Annotated[str, Doc("Version of the program that made the checks.")] = ""
    revision: Annotated[str, Doc("Its commit, or `unknown`.")] = ""

    @property
    def worst(self) -> Annotated[Verdict, Doc("Worst verdict of all checks.")]:
        found = {check.verdict for check in self.checks}
        return next(verdict for verdict in reversed(Verdict) if verdict in found or verdict is Verdict.OK)


class Release(Struct, frozen=True):
    released: Annotated[tuple[str, ...], Doc("Collectors that release their driver within one period.")]
    seconds: float


SEVERITIES = ("critical", "warning", "info")


class AlertRow(Struct, frozen=True):
    """A firing or pending alert."""

    target: str
    rule: Annotated[str, Doc(examples=("pressure.critical",))]
    severity: Annotated[str, Doc(values=SEVERITIES)]
    state: Annotated[str, Doc(values=("pending", "firing"))]
    since_unix: Annotated[float | None, Doc("Null while pending.")] = None
    silenced: bool = False
    reasons: Annotated[tuple[Reason, ...], Doc("Of the last tick at which its condition held.")] = ()
    fires_in_seconds: Annotated[
        float | None,
        Doc("Of a pending alert, if its condition lasts; null while firing, and without data of its target."),
    ] = None
    clear_since_unix: Annotated[
        float | None, Doc("Since when the condition of a firing alert has not held; null while it holds.")
    ] = None
    resolves_unix: Annotated[
        float | None,
        Doc("When such an alert resolves if its condition does not return; null without data of its target."),
    ] = None


Column = Annotated[tuple[float | None, ...], Doc("Null in a gap.")]


class Series(Struct, frozen=True):
    """Buckets of one series. Minimum and maximum are exact at any resolution."""

    name: str
    unit: str
    unix: tuple[float, ...]
    min: Column
    avg: Column
    max: Column


class History(Struct, frozen=True):
    """Series between two times."""

    from_: float = field(name="from")
    to: float
    points: int
    series: tuple[Series, ...]
