"""Lines of `memwatch status` and `memwatchd --once`: the verdict first, then one line per pool with a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memwatch.cli import tree
from memwatch.cli.tables import columns as table
from memwatch.cli.terminal.memory_map import draw_bar, look_of
from memwatch.cli.terminal.moment import MARKS, STYLES, labels_of
from memwatch.cli.terminal.sizes import pair_words, percent
from memwatch.cli.terminal.style import Line, Span, cells, line_cells, pad
from memwatch.core.model import Absent, Device, Pool, PoolKind, Process, Share, find_system_ram
from memwatch.core.owners import WITHIN, describe_home
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.memory_map import Segment, build_parts, limit_parts, order_contents, place_parts
from memwatch.monitor.render.silence_words import notice_lines as silence_lines
from memwatch.monitor.render.silence_words import notices_of
from memwatch.monitor.render.summary import by_footprint

MIN_BAR, MAX_BAR, MAX_LABEL = 10, 40, 28
# Widths of "80.3 / 121.7 GiB   66.0%" and of "  available 1,600 GiB".
FIGURES, AVAILABLE = 27, 22
MAX_VERDICTS = 8
# Less reads 0.0%.
MIN_STALL = 0.0005


def render_lines(
    snapshot: Snapshot, age_seconds: float | None, width: int, has_colour: bool, processes: int = 5
) -> Iterator[Line]:
    """Yield the lines of a snapshot. `age_seconds`: its age when it was sent, if known.

    `processes`: number of the largest ones that are listed.
    """
    yield from verdict_lines(snapshot)
    yield from ((Span(f"  {line}", "bold"),) for line in silence_lines(notices_of(snapshot), snapshot.unix))
    yield from _plain(tree.head_lines(snapshot, age_seconds))
    yield ()
    yield from _place_lines(snapshot, _columns(snapshot, width, has_colour))
    yield from _contents(snapshot, width)
    yield from _plain(tree.swap_lines(snapshot))
    yield from _stalls(snapshot)
    yield from _plain(tree.lease_lines(snapshot))
    yield from _device_lines(snapshot)
    yield from _plain(process_lines(snapshot, processes))
    noted = list(tree.note_lines(snapshot))
    yield from _plain(["", *noted] if noted else [])
    yield from _plain(tree.trouble_lines(snapshot))


def _plain(lines: Sequence[str] | Iterator[str]) -> Iterator[Line]:
    return ((Span(line),) for line in lines)


def verdict_lines(snapshot: Snapshot) -> Iterator[Line]:
    """Yield a line for each level above OK, the worst first, and one line for all others."""
    labels = labels_of(snapshot)
    ranked = sorted(snapshot.pressure, key=lambda one: (one.level, one.ratio), reverse=True)
    bad = [one for one in ranked if one.level is not Level.LOW]
    for one in bad[:MAX_VERDICTS]:
        sentence = wording.verdict(labels[one.target], one)
        yield (Span(f"{MARKS[one.level.word]} {sentence}.", f"bold {STYLES[one.level.word]}"),)
    if len(bad) > MAX_VERDICTS:
        yield (Span(f"  {len(bad) - MAX_VERDICTS} more: memwatch status --tree", "bold"),)
    good = [one for one in ranked if one.level is Level.LOW]
    if good:
        yield (Span(f"{MARKS['low']} {_good(good, bool(bad), labels)}", STYLES["low"]),)
    if not ranked:
        yield (Span("No memory data.", "bold"),)


def _good(good: Sequence[Pressure], has_bad: bool, labels: dict[str, str]) -> str:
    label, pressure = labels[good[0].target], good[0]
    if len(good) == 1:
        return f"{wording.verdict(label, pressure)}."
    if has_bad:
        return f"{wording.count(len(good), 'other')} OK."
    return f"{len(good)} pools and limits are OK. The fullest: {label}, {wording.reasons(pressure)}."


class Columns(NamedTuple):
    """Widths of the columns, equal in all lines, and how bars are drawn."""

    label: int
    bar: int
    total: int
    has_colour: bool


def _columns(snapshot: Snapshot, width: int, has_colour: bool) -> Columns:
    label = min(MAX_LABEL, max((cells(name) for name in labels_of(snapshot).values()), default=0) + 3)
    bar = width - label - FIGURES - AVAILABLE - max((cells(_sensors(one)) for one in snapshot.devices), default=0)
    return Columns(label, max(MIN_BAR, min(MAX_BAR, bar - 2)), width, has_colour)


def _place_lines(snapshot: Snapshot, layout: Columns) -> Iterator[Line]:
    """Yield a line for each pool, and one below it for each share inside it."""
    pools = {pool.id for pool in snapshot.pools}
    for pool in snapshot.pools:
        yield _pool_line(pool, snapshot, layout)
        yield from _share_lines(pool.id, snapshot, layout, 1)
    for device in snapshot.devices:
        if device.id not in pools:
            yield from _share_lines(device.id, snapshot, layout, 0)


def _pool_line(pool: Pool, snapshot: Snapshot, layout: Columns) -> Line:
    shares = [share for share in snapshot.shares if share.within == pool.id]
    segments = list(place_parts(build_parts(pool, shares), pool.size_bytes))
    device = next((one for one in snapshot.devices if one.id == pool.id), None)
    return (
        Span(pad(pool.label, layout.label)),
        *_bar(segments, layout),
        _figures(pool, pool.size_bytes, snapshot),
        Span(f"  available {wording.size(pool.available_bytes):<{AVAILABLE - 12}}"),
        Span("" if device is None else _sensors(device), "muted"),
    )


def _bar(segments: Sequence[Segment], layout: Columns) -> Line:
    return draw_bar(segments, layout.bar, (), layout.has_colour)


def _figures(place: Pool | Share, whole: int, snapshot: Snapshot) -> Span:
    """Return the use of a pool or limit in the colour of its level."""
    used = place.used_bytes
    level = next((one.level for one in snapshot.pressure if one.target == place.id), Level.LOW)
    style = f"bold {STYLES[level.word]}" if level is not Level.LOW else ""
    return Span(f" {pair_words(used, whole):>{FIGURES - 9}} {percent(used, whole):>7}", style)


def _sensors(device: Device) -> str:
    celsius = device.temperature_celsius
    found = [] if isinstance(celsius, Absent) else [wording.celsius(celsius)]
    found += [] if device.state == "ok" else [device.state.replace("_", " ")]
    return f"  {', '.join(found)}" if found else ""


def _share_lines(place: str, snapshot: Snapshot, layout: Columns, depth: int) -> Iterator[Line]:
    labels = labels_of(snapshot)
    for share in (one for one in snapshot.shares if one.within == place):
        lead = "  " * (depth - 1) + ("└ " if depth else "")
        label = Span(pad(f"{lead}{labels[share.id]}", layout.label))
        around = Span(f"  ⊂ {labels.get(place, place)}", "muted")
        limit, parts = share.limit_bytes, limit_parts(share)
        if parts and isinstance(limit, int) and limit:
            yield (label, *_bar(list(place_parts(parts, limit)), layout), _figures(share, limit, snapshot), around)
        else:
            space = " " * layout.bar
            yield (label, Span(f"{space} {wording.size(share.used_bytes):>{FIGURES - 9}}{'':8}"), around)
        yield from _share_lines(share.id, snapshot, layout, depth + 1)


def _contents(snapshot: Snapshot, width: int) -> Iterator[Line]:
    """Yield the parts of System RAM in the order of its bar."""
    ram = find_system_ram(snapshot.pools)
    if ram is None or not ram.contents:
        return
    line = [Span(f"{ram.label}: ")]
    for part in order_contents(ram.contents):
        if not part.size_bytes:
            continue
        words = f"{wording.content(part.kind)} {wording.size(part.size_bytes)}"
        if line_cells(line) + cells(words) + 2 > width:
            yield (*line, Span(","))
            line = [Span("  ")]
        line += [Span(", " if len(line) > 1 else ""), Span(words, look_of(part.kind).colour)]
    yield tuple(line)


def _stalls(snapshot: Snapshot) -> Iterator[Line]:
    """Yield a line about tasks that wait for memory, if there are any."""
    psi = snapshot.psi
    if not isinstance(psi, Absent) and psi.some.ratio_10s >= MIN_STALL:
        yield (Span(f"Memory pressure (PSI): {wording.waited(psi.some.ratio_10s, '10 s')}"),)


def _device_lines(snapshot: Snapshot) -> Iterator[Line]:
    """Yield what the GPUs can allocate that allocate from System RAM, and the notes of all."""
    pools = {pool.id for pool in snapshot.pools if pool.kind is not PoolKind.CARVEOUT}
    for device in snapshot.devices:
        if device.id in pools and not device.notes:
            continue
        if device.id in pools:
            yield (Span(f"{device.id}: {device.name}"),)
        else:
            yield (Span(tree.device_line(device)),)
            if known := wording.vitals(device.vitals):
                yield (Span(f"  {known}", "muted"),)
        yield from _plain(f"  {note}" for note in device.notes)


def process_lines(snapshot: Snapshot, count: int) -> Iterator[str]:
    """Yield a table of the largest processes, after an empty line."""
    listed = by_footprint(snapshot.processes)[:count]
    if listed:
        rows: list[tuple[str, ...]] = [("pid", "name", "footprint", "rss", "owner")]
        yield from ["", *table([*rows, *map(_process_row, listed)], right=frozenset({0, 2, 3}))]
    scan = snapshot.process_scan
    if not isinstance(scan, Absent) and scan.note:  # some processes are hidden
        yield scan.note


def _process_row(process: Process) -> tuple[str, ...]:
    unit, container, user = (
        word if isinstance(word, str) else None for word in (process.unit, process.container, process.user)
    )
    name, within, scope = (describe_home(unit, container) or user or wording.DASH).partition(WITHIN)
    sizes = wording.footprint(process), wording.size(process.rss_bytes)
    return str(process.pid), process.title[:24], *sizes, name[:40] + within + scope
