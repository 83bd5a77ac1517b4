"""Answers of the planner as JSON: /api/v1/fit and `memwatch fit --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from memwatch.core.doc import Doc
from memwatch.core.wire import Json, Shape, Wire
from memwatch.planning.answer import DecodeRate, EngineReport, FitAnswer, Greatest
from memwatch.planning.engines.placement import Flag, Launch
from memwatch.planning.fit import Split
from memwatch.planning.need import Reduction


def unknown(
    found: FitAnswer, _: object
) -> Annotated[str | None, Doc("Why the answer is neither yes nor no; null for a certain answer.")]:
    return found.fit.unknown or None


def caution(
    found: FitAnswer, _: object
) -> Annotated[str | None, Doc("Why engines refuse the plan although there may be room; null if they do not.")]:
    return found.caution or None


def parts(
    found: FitAnswer, _: object
) -> Annotated[Mapping[str, int], Doc("Breakdown of a model's bytes; empty for a size.")]:
    return found.need.parts


def runtime_source(
    found: FitAnswer, _: object
) -> Annotated[str | None, Doc("Source of the part runtime; null without one.")]:
    return found.need.runtime_source or None


def processes_bytes(
    found: FitAnswer, _: object
) -> Annotated[
    int | None,
    Doc("Bytes of the engine's processes in system RAM, where a GPU shares its memory; null if not counted."),
]:
    return found.need.host.bytes if found.need.host else None


def processes_source(
    found: FitAnswer, _: object
) -> Annotated[str | None, Doc("Source of the part processes; null without one.")]:
    return found.need.host.source if found.need.host else None


def moves(
    found: FitAnswer, _: object
) -> Annotated[Mapping[str, int], Doc("Bytes of each part that are moved to system RAM.")]:
    return {part: moved for part, moved in found.need.moves.items() if moved}


def ram_bytes(
    found: FitAnswer | Reduction, _: object
) -> Annotated[int, Doc("Most bytes in system RAM at one time beside the GPU.")]:
    return found.need.demand.ram_bytes


def launch(
    found: FitAnswer, _: object
) -> Annotated[tuple[Launch, ...], Doc("Launch lines of the engines that were asked for and can run it.")]:
    return found.launches.lines


def launch_refused(
    found: FitAnswer, _: object
) -> Annotated[Mapping[str, str], Doc("Engines that were asked for and cannot, and why.")]:
    return found.launches.refused


FIT = Wire(
    (
        Shape(
            FitAnswer,
            "Fit",
            flat={"fit": ("bytes", "best", "verdicts", "split")},
            further=(unknown, caution, parts, runtime_source, processes_bytes, processes_source, moves, ram_bytes,
                     launch, launch_refused),
            order=("bytes", "best", "verdicts", "split", "unknown", "caution", "parts", "runtime_source",
                   "processes_bytes", "processes_source", "moves", "ram_bytes",
                   "change", "greatest", "decode_rate", "launch", "launch_refused", "engines"),
        ),
        Shape(
            Reduction,
            "FitChange",
            flat={"need": ("bytes",)},
            further=(ram_bytes,),
            order=("words", "flags", "bytes", "ram_bytes"),
        ),
        Shape(Split, "FitSplit"),
        Shape(EngineReport, "FitEngine"),
        Shape(Greatest, "FitGreatest"),
        Shape(DecodeRate, "FitDecodeRate"),
        Shape(Flag, "LaunchFlag"),
        Shape(Launch, order=("engine", "command", "language", "flags", "notes")),
    )
)  # fmt: skip


def fit_json(found: FitAnswer) -> Json:
    return FIT.encode(found)
