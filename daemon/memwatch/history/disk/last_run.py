"""Last words: what a run that did not end cleanly wrote in its final two minutes. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from msgspec import Struct

from memwatch.history.notable_ticks import Tick
from memwatch.history.tier import Strip

LAST_SECONDS = 120.0


class Sample(Struct, frozen=True):
    """The figures of one moment, by the names of series; `boottime` by the clock of its own boot."""

    boottime: float
    unix: float
    figures: Mapping[str, float]


class LastWords(Struct, frozen=True):
    """`unix` is the time of the last sample, or of the start where there is none yet.

    `last` is the last tick of which is known who held the memory. `machine_restarted`: another boot has begun
    since; otherwise only memwatchd ended.
    """

    unix: float
    machine_restarted: bool
    samples: tuple[Sample, ...]
    last: Tick | None

    @property
    def sentence(self) -> str:
        """What happened, in words."""
        what = "the machine went down" if self.machine_restarted else "memwatchd ended"
        when = datetime.fromtimestamp(self.unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if not self.samples:
            return f"unclean shutdown: {what} without a word; it had just started, at {when}"
        worst = self.last.worst if self.last else None
        how = f", {worst.label} {worst.word} ({worst.ratio:.1%} used)" if worst else ""
        return f"unclean shutdown: {what} without a word; last sample {when}{how}"


def last_words(
    ticks: Sequence[Tick], rows: Sequence[Sample], written_unix: float, machine_restarted: bool
) -> LastWords:
    """The last two minutes of these: ticks as they came, and rows where there was no reason to write each tick.

    `written_unix` is when the last record of any kind was written.
    """
    told = [Sample(tick.boottime, tick.unix, tick.figures) for tick in ticks if tick.figures]
    seconds = {int(one.boottime) for one in told}
    samples = sorted([*told, *(row for row in rows if int(row.boottime) not in seconds)], key=_boottime)
    if not samples:
        return LastWords(written_unix, machine_restarted, (), None)
    end = samples[-1]
    final = tuple(one for one in samples if one.boottime >= end.boottime - LAST_SECONDS)
    last = max(ticks, key=lambda tick: tick.boottime, default=None)
    return LastWords(end.unix, machine_restarted, final, last)


def _boottime(sample: Sample) -> float:
    return sample.boottime


def samples_of(strip: Strip, wall_offset: float) -> list[Sample]:
    """Rows as moments; their greatest values, for nothing may be hidden."""
    return [
        Sample(
            at,
            at + wall_offset,
            {
                name: cells.most[index]
                for name, cells in strip.columns.items()
                if cells.least[index] == cells.least[index]
            },
        )
        for index, at in enumerate(strip.times)
    ]
