"""The largest processes with their growth and a bar of their parts to one scale. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Process, sum_figures
from memwatch.core.processes.growth import ProcessGrowth, key_of
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render.summary import by_footprint

MAX_HOLDERS = 8
# A process that grew or shrank by less than this part of a pool is steady.
MIN_GROWN_BYTES = 1 << 20


class BarPart(Struct, frozen=True):
    """Part of the bar of a row, as fractions of the largest footprint."""

    holder: str
    start: float
    width: float


class TopHolder(Struct, frozen=True):
    """A process. `places`: its GPU memory by place, largest first. `grown_bytes`: in the last ten minutes."""

    process: Process
    bar: tuple[BarPart, ...]
    places: tuple[tuple[str, Bytes], ...]
    device_bytes: Bytes | None
    grown_bytes: Bytes
    whole: bool


def find_top_holders(snapshot: Snapshot, grown: Iterable[ProcessGrowth]) -> tuple[TopHolder, ...]:
    """Return the largest processes, largest first."""
    largest = by_footprint(snapshot.processes)[:MAX_HOLDERS]
    growth = {key_of(one.process): one for one in grown}
    scale = max((_known(process.footprint_high_bytes) for process in largest), default=0)
    return tuple(_build(process, growth.get(key_of(process)), scale) for process in largest)


def _build(process: Process, grown: ProcessGrowth | None, scale: int) -> TopHolder:
    return TopHolder(
        process=process,
        bar=tuple(_build_bar(process, scale)),
        places=sort_places(process.device_bytes),
        device_bytes=sum_devices(process.device_bytes),
        grown_bytes=grown.grown_bytes if grown else Absent.NOT_AVAILABLE,
        whole=grown is not None and grown.whole,
    )


def sort_places(device_bytes: Mapping[str, Bytes]) -> tuple[tuple[str, Bytes], ...]:
    return tuple(sorted(device_bytes.items(), key=lambda one: (-_known(one[1]), one[0])))


def sum_devices(device_bytes: Mapping[str, Bytes]) -> Bytes | None:
    """Return the GPU memory of a process, None if it has none. A figure that is absent makes the sum absent."""
    return sum_figures(device_bytes.values()) if device_bytes else None


def _build_bar(process: Process, scale: int) -> Iterator[BarPart]:
    """Yield GPU memory, then the resident set. Where both may hold the same pages, the sum is the upper bound."""
    start = 0.0
    devices = sum(_known(figure) for figure in process.device_bytes.values() if isinstance(figure, int))
    for holder, held in (("gpu", devices), ("processes", max(0, _known(process.rss_bytes)))):
        width = min(1.0 - start, held / scale) if scale > 0 else 0.0
        if width > 0:
            yield BarPart(holder, start, width)
            start += width


def _known(figure: Bytes) -> int:
    return -1 if isinstance(figure, Absent) else figure
