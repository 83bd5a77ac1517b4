"""This machine and its neighbours as one list, those that need an operator first. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.listing import left_out_texts
from memwatch.core.model import Absent
from memwatch.core.snapshot import LevelOrUnknown
from memwatch.reporting.answers import MachineState
from memwatch_monitor.neighbours.book import MachineView
from memwatch_monitor.neighbours.found import FoundMachine
from memwatch_monitor.neighbours.tick import LastWords, Tick
from memwatch_monitor.neighbours.trend import HolderGrowth, TrendPoint

# States and levels, those that need an operator first. A level counts while ticks arrive.
ORDER: tuple[MachineState | LevelOrUnknown, ...] = (
    "silent",
    "critical",
    "high",
    "unreachable",
    "refused",
    "medium",
    "unknown",
    "starting",
    "stopped",
    "low",
)
# Name of the list of machines found.
FOUND = "machines_found"


# Place of a machine whose next tick is overdue.
LATE: MachineState = "unreachable"


class Machine(Struct, frozen=True):
    """One machine. `is_self`: this one. `tick`: its last, None before the first; `words`: while it sends none.

    `found`: it announces itself, but is no neighbour. `is_late`: its next tick is overdue. `trend`: its last
    ten minutes, oldest first; `growth`: its fastest growing process. This machine has neither, but a history.
    """

    name: str
    state: MachineState
    text: str
    age_seconds: float
    tick: Tick | None
    last_tick_unix: float | Absent
    is_self: bool = False
    url: str | None = None
    clock_offset_seconds: float | Absent = Absent.NOT_AVAILABLE
    words: LastWords | None = None
    is_late: bool = False
    trend: Sequence[TrendPoint] = ()
    growth: HolderGrowth | None = None


def list_machines(
    own: Tick, views: Iterable[MachineView], found: Sequence[FoundMachine] = (), left_out: int = 0
) -> list[Machine]:
    """Return all machines in the ORDER of their states and levels, then by name, then those only found.

    The last one found tells the number of those that are left out.
    """
    here = Machine(own.host, "up", own.sentence, 0.0, own, own.unix, is_self=True)
    others = [_from_found(one) for one in found]
    more = "; ".join(left_out_texts({FOUND: left_out}))
    if more and others:
        others[-1] = replace(others[-1], text=f"{others[-1].text}; {more}")
    return [*sorted([here, *map(_from_view, views)], key=_rank), *others]


def _from_found(one: FoundMachine) -> Machine:
    return Machine(one.name, "found", one.text, 0.0, None, Absent.NOT_AVAILABLE, url=one.url)


def _from_view(view: MachineView) -> Machine:
    status = view.status
    return Machine(
        status.name,
        status.state,
        status.text,
        status.age_seconds,
        view.tick,
        status.last_tick_unix,
        False,
        view.url,
        view.clock_offset_seconds,
        view.words,
        status.late,
        view.trend,
        view.growth,
    )


def _rank(machine: Machine) -> tuple[int, bool, str]:
    place: MachineState | LevelOrUnknown = machine.state
    if machine.state == "up" and machine.tick:
        place = LATE if machine.is_late else machine.tick.level
    return ORDER.index(place), not machine.is_self, machine.name
