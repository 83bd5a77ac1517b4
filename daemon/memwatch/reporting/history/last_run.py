"""The last two minutes of a run that did not end cleanly ("last words"). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.snapshot import Level
from memwatch.reporting.history.notable_ticks import Tick
from memwatch.reporting.history.tier import RowBlock

LAST_SECONDS = 120.0
# Ticks that are kept in memory, of some 4 kB each.
MAX_TICKS = 60


class Sample(Struct, frozen=True):
    """Values at one time by series name. `boottime` is relative to the boot they were taken in."""

    boottime: float
    unix: float
    figures: Annotated[Mapping[str, float], Doc("Values by series name.")]


class UncleanShutdown(Struct, frozen=True):
    """The end of a run. `unix` is the time of the last sample, or of the start if there is no sample.

    `last` is the last tick with processes, `ticks` lead to it. `machine_restarted`: the machine has booted since;
    otherwise only memwatchd ended.
    """

    unix: float
    machine_restarted: Annotated[bool, Doc("False if only memwatchd ended.")]
    samples: tuple[Sample, ...]
    last: Annotated[Tick | None, Doc("Last recorded tick with processes; null without one.")]
    ticks: tuple[Tick, ...] = ()

    @property
    def cause(self) -> str:
        return "machine crash or power loss" if self.machine_restarted else "memwatchd crashed or was killed"

    @property
    def sentence(self) -> str:
        """Return a sentence about what happened."""
        when = datetime.fromtimestamp(self.unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if not self.samples:
            return f"unclean shutdown: {self.cause}; no sample since the start at {when}"
        worst = self.last.worst if self.last else None
        pressure = f", {worst.label} {Level(worst.level).label} ({worst.ratio:.1%} used)" if worst else ""
        return f"unclean shutdown: {self.cause}; last sample {when}{pressure}"


def build_unclean_shutdown(
    ticks: Sequence[Tick], rows: Sequence[Sample], written_unix: float, machine_restarted: bool
) -> UncleanShutdown:
    """Return the last two minutes: single ticks if they were written, else rows.

    `written_unix` is when the last record of any kind was written.
    """
    single = [Sample(tick.boottime, tick.unix, tick.figures) for tick in ticks if tick.figures]
    seconds = {int(one.boottime) for one in single}
    samples = sorted([*single, *(row for row in rows if int(row.boottime) not in seconds)], key=_boottime)
    if not samples:
        return UncleanShutdown(written_unix, machine_restarted, (), None)
    end = samples[-1]
    final = tuple(one for one in samples if one.boottime >= end.boottime - LAST_SECONDS)
    last = max(ticks, key=lambda tick: tick.boottime, default=None)
    return UncleanShutdown(end.unix, machine_restarted, final, last, select_ticks(ticks))


def select_ticks(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Return at most `MAX_TICKS` of the ticks, the newest half of them in full."""
    ordered = sorted(ticks, key=lambda tick: tick.boottime)
    newest = MAX_TICKS // 2
    older = ordered[:-newest]
    step = -(-len(older) // newest) or 1
    return (*older[::step], *ordered[-newest:])


def _boottime(sample: Sample) -> float:
    return sample.boottime


def build_samples(row_block: RowBlock, wall_offset: float) -> list[Sample]:
    """Convert rows to samples with the maximum of each series, so that no peak is lost."""
    return [
        Sample(
            at,
            at + wall_offset,
            {
                name: aggregates.maximum[index]
                for name, aggregates in row_block.columns.items()
                if aggregates.minimum[index] == aggregates.minimum[index]
            },
        )
        for index, at in enumerate(row_block.times)
    ]
