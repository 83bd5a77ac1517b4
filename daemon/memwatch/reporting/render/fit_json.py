"""The planner's answer as /api/v1/fit and `memwatch fit --json` write it, and the command reads it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.printable import printable_lines
from memwatch.core.wire import Form, Json, Shape, Wire
from memwatch.planning.answer import DecodeRate, EngineReport, FitAnswer, Greatest
from memwatch.planning.engines.placement import Flag, Launch
from memwatch.planning.fit import FitVerdict, Split
from memwatch.planning.need import Reduction

RamBytes = Annotated[int, Doc("Most bytes in system RAM at one time beside the GPU.")]


class FitChange(Struct, frozen=True):
    """A change that reduces the need. `words` complete "it would fit with"; `flags` are the command's options."""

    words: str
    flags: Annotated[str, Doc("Options of memwatch fit for it.")]
    bytes: int
    ram_bytes: RamBytes


class FitReply(Struct, frozen=True):
    """Need, verdicts, the cheapest change if it fits nowhere, the greatest that fits, launch lines, servers of
    the model, the rate on the one GPU that a yes names, and why engines refuse a plan for which there is room.

    Early development versions send the first three fields only.
    """

    bytes: Annotated[int, Doc("Bytes on one GPU, without what is moved to system RAM.")]
    best: Annotated[str | None, Doc("Device to use alone; null if none fits alone, see split.")]
    verdicts: tuple[FitVerdict, ...]
    split: Annotated[
        Split | None, Doc("GPUs to use together; null if one is enough, if they have no room, and for a size.")
    ] = None
    unknown: Annotated[str | None, Doc("Why the answer is neither yes nor no; null for a certain answer.")] = None
    caution: Annotated[
        str | None, Doc("Why engines refuse the plan although there may be room; null if they do not.")
    ] = None
    parts: Annotated[Mapping[str, int], Doc("Breakdown of a model's bytes; empty for a size.")] = {}
    runtime_source: Annotated[str | None, Doc("Source of the part runtime; null without one.")] = None
    processes_bytes: Annotated[
        int | None,
        Doc("Bytes of the engine's processes in system RAM, where a GPU shares its memory; null if not counted."),
    ] = None
    processes_source: Annotated[str | None, Doc("Source of the part processes; null without one.")] = None
    moves: Annotated[Mapping[str, int], Doc("Bytes of each part that are moved to system RAM.")] = {}
    ram_bytes: RamBytes = 0
    change: Annotated[
        FitChange | None,
        Doc(
            "Cheapest change that makes the model fit, if it fits nowhere; null if it fits, or no change is known."
        ),
    ] = None
    greatest: Annotated[
        Greatest | None, Doc("The greatest that fits; null for a size, and for a model of unknown shape.")
    ] = None
    decode_rate: Annotated[
        DecodeRate | None,
        Doc("Estimated rate on the one GPU that a yes names; null if its bandwidth is not known."),
    ] = None
    launch: Annotated[
        tuple[Launch, ...], Doc("Launch lines of the engines that were asked for and can run it.")
    ] = ()
    launch_refused: Annotated[Mapping[str, str], Doc("Engines that were asked for and cannot, and why.")] = {}
    engines: Annotated[tuple[EngineReport, ...], Doc("Servers that run this model here, by its name.")] = ()

    @property
    def is_yes(self) -> bool:
        return bool(self.best or self.split)

    @property
    def moved_bytes(self) -> int:
        """Bytes in System RAM. Early development versions send only the parts that move."""
        return self.ram_bytes or sum(self.moves.values())


FIT = Wire(
    (
        Shape(FitReply, "Fit"),
        Shape(FitChange),
        Shape(Split, "FitSplit"),
        Shape(EngineReport, "FitEngine"),
        Shape(Greatest, "FitGreatest"),
        Shape(DecodeRate, "FitDecodeRate"),
        Shape(Flag, "LaunchFlag"),
        Shape(
            Launch,
            order=("engine", "command", "language", "flags", "notes"),
            forms={"command": Form(str, str, printable_lines)},
        ),
    )
)


def fit_json(found: FitAnswer) -> Json:
    need, fit, host = found.need, found.fit, found.need.host
    return FIT.encode(
        FitReply(
            fit.bytes,
            fit.best,
            fit.verdicts,
            fit.split,
            fit.unknown or None,
            found.caution or None,
            need.parts,
            need.runtime_source or None,
            host.bytes if host else None,
            host.source if host else None,
            {part: moved for part, moved in need.moves.items() if moved},
            need.demand.ram_bytes,
            _build_change(found.change) if found.change else None,
            found.greatest,
            found.decode_rate,
            found.launches.lines,
            found.launches.refused,
            found.engines,
        )
    )


def _build_change(found: Reduction) -> FitChange:
    return FitChange(found.words, found.flags, found.need.bytes, found.need.demand.ram_bytes)
