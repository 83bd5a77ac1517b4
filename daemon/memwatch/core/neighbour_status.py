"""State of the other machines that this memwatchd follows, as one tick saw them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.core.model import Absent

NeighbourState = Literal["starting", "up", "stopped", "silent", "unreachable", "refused"]


class NeighbourStatus(Struct, frozen=True):
    """One neighbour. Only `up` sends ticks.

    `stopped`: its memwatchd ended the stream in order, less than a day ago. `silent`: it sends nothing, and no
    other machine reports that it receives it. `unreachable`: another machine reports so. `refused`: it answers, but
    not with a usable stream. `text` is the reason. `last_tick_unix` is a time of its clock; `age_seconds`, by the
    clock of this machine, is from the last tick, or from the start. `run` identifies the process that sent the last
    tick, "" before the first. `notifies`: this machine notifies about its silence.
    `late`: no tick for some seconds: it is no evidence for other machines that the neighbour still sends.
    """

    name: str
    state: NeighbourState
    text: str
    age_seconds: float
    last_tick_unix: float | Absent = Absent.NOT_AVAILABLE
    run: str = ""
    notifies: bool = False
    late: bool = False

    @property
    def seen_as(self) -> str:
        """Return the state that is sent to others. `late`: up, but no tick for some seconds."""
        return "late" if self.state == "up" and self.late else self.state
