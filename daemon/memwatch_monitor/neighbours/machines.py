"""This machine and its neighbours as one list, those that need an operator first. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.listing import left_out_texts
from memwatch.core.model import Absent
from memwatch.core.snapshot import LEVEL_WORDS, LevelOrUnknown, NeighbourState
from memwatch_monitor.neighbours.book import MachineView
from memwatch_monitor.neighbours.found import FoundMachine
from memwatch_monitor.neighbours.tick import LastWords, Tick

MachineState = Literal[NeighbourState, "found"]
LEVELS: tuple[LevelOrUnknown, ...] = (*reversed(LEVEL_WORDS[1:]), "unknown", LEVEL_WORDS[0])
# Name of the list of machines found.
FOUND = "machines_found"
MISSING: tuple[MachineState, ...] = ("silent", "unreachable", "refused", "stopped", "starting")


class Machine(Struct, frozen=True):
    """One machine. `is_self`: this one. `tick`: its last, None before the first; `words`: while it sends none.

    `found`: it announces itself, but is no neighbour.
    """

    name: str
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
    tick: Tick | None
    last_tick_unix: float | Absent
    is_self: bool = False
    url: Annotated[str | None, Doc("Null for this machine.")] = None
    clock_offset_seconds: Annotated[
        float | Absent, Doc("By how much its clock is ahead; not_available below 2 s, which may be delay.")
    ] = Absent.NOT_AVAILABLE
    words: LastWords | None = None


def list_machines(
    own: Tick, views: Iterable[MachineView], found: Sequence[FoundMachine] = (), left_out: int = 0
) -> list[Machine]:
    """Return all machines: those without ticks first, then by level, then by name, then those only found.

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
    )


def _rank(machine: Machine) -> tuple[int, int, bool, str]:
    missing = MISSING.index(machine.state) if machine.state in MISSING else len(MISSING)
    level = LEVELS.index(machine.tick.level) if machine.tick else 0
    return missing, level, not machine.is_self, machine.name
