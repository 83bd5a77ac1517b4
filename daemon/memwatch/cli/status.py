"""`memwatch status` and `memwatchd --once`: the level first, then the pools with bars, or as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.cli.tables import columns as table
from memwatch.cli.tables import when
from memwatch.cli.terminal.figures import pair_words, percent
from memwatch.cli.terminal.moment import MARKS, STYLES, labels_of, share_label
from memwatch.cli.terminal.stacks import draw_bar, look_of
from memwatch.cli.terminal.style import Line, Span, cells, line_cells, pad
from memwatch.core.listing import left_out_texts
from memwatch.core.model import (
    HELD_BY_DEVICES,
    Absent,
    Device,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    find_system_ram,
)
from memwatch.core.owners import WITHIN, describe_home
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.memory_map import (
    AVAILABLE,
    Segment,
    build_parts,
    limit_parts,
    order_contents,
    place_parts,
)
from memwatch.reporting.render.summary import by_footprint, notices_of
from memwatch.reporting.render.summary import notice_lines as silence_lines

# A label that is wider than its column is on a line above its figures.
MIN_BAR, MAX_BAR, MIN_LABEL = 10, 40, 28
# Widths of "80.3 / 121.7 GiB   66.0%" and of "  available 1,600 GiB".
FIGURES_WIDTH, AVAILABLE_WIDTH = 27, 22
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
    yield from _plain(head_lines(snapshot, age_seconds))
    yield ()
    yield from _place_lines(snapshot, _columns(snapshot, width, has_colour))
    yield from _contents(snapshot, width)
    yield from _plain(swap_lines(snapshot))
    yield from _stalls(snapshot)
    yield from _plain(lease_lines(snapshot))
    yield from _device_lines(snapshot)
    yield from _plain(process_lines(snapshot, processes))
    noted = list(note_lines(snapshot))
    yield from _plain(["", *noted] if noted else [])
    yield from _plain(trouble_lines(snapshot))


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
    sensors = max((cells(_sensors(one)) for one in snapshot.devices), default=0)
    space = width - FIGURES_WIDTH - AVAILABLE_WIDTH - sensors - 2
    longest = max((cells(name) for name in labels_of(snapshot).values()), default=0) + 3
    label = min(longest, max(MIN_LABEL, space - MIN_BAR))
    bar = space - label + 2
    return Columns(label, max(MIN_BAR, min(MAX_BAR, bar - 2)), width, has_colour)


def _place_lines(snapshot: Snapshot, layout: Columns) -> Iterator[Line]:
    """Yield a line for each pool, and one below it for each share inside it."""
    pools = {pool.id for pool in snapshot.pools}
    for pool in snapshot.pools:
        yield from _label_first(_pool_line(pool, snapshot, layout), layout)
        yield from _share_lines(pool.id, snapshot, layout, 1)
    for device in snapshot.devices:
        if device.id not in pools:
            yield from _share_lines(device.id, snapshot, layout, 0)


def _pool_line(pool: Pool, snapshot: Snapshot, layout: Columns) -> Line:
    shares = [share for share in snapshot.shares if share.within == pool.id]
    segments = list(place_parts(build_parts(pool, shares), pool.size_bytes))
    device = next((one for one in snapshot.devices if one.id == pool.id), None)
    return (
        Span(pool.label),
        *_bar(segments, layout),
        _figures(pool, pool.size_bytes, snapshot),
        Span(f"  available {wording.size(pool.available_bytes):<{AVAILABLE_WIDTH - 12}}"),
        Span("" if device is None else _sensors(device), "muted"),
    )


def _label_first(line: Line, layout: Columns) -> Iterator[Line]:
    """Yield a line with its label padded to its column, or on a line above."""
    label, *rest = line
    if cells(label.text) >= layout.label:
        yield (label,)
        label = Span("")
    yield (label._replace(text=pad(label.text, layout.label)), *rest)


def _bar(segments: Sequence[Segment], layout: Columns) -> Line:
    return draw_bar(segments, layout.bar, (), layout.has_colour)


def _figures(place: Pool | Share, whole: int, snapshot: Snapshot) -> Span:
    """Return the use of a pool or limit in the colour of its level."""
    used = place.used_bytes
    level = next((one.level for one in snapshot.pressure if one.target == place.id), Level.LOW)
    style = f"bold {STYLES[level.word]}" if level is not Level.LOW else ""
    return Span(f" {pair_words(used, whole):>{FIGURES_WIDTH - 9}} {percent(used, whole):>7}", style)


def _sensors(device: Device) -> str:
    celsius = device.temperature_celsius
    found = [] if isinstance(celsius, Absent) else [wording.celsius(celsius)]
    found += [] if device.state == "ok" else [device.state.replace("_", " ")]
    return f"  {', '.join(found)}" if found else ""


def _share_lines(place: str, snapshot: Snapshot, layout: Columns, depth: int) -> Iterator[Line]:
    labels = labels_of(snapshot)
    for share in (one for one in snapshot.shares if one.within == place):
        lead = "  " * (depth - 1) + ("└ " if depth else "")
        label = Span(f"{lead}{labels[share.id]}")
        around = Span(f"  ⊂ {labels.get(place, place)}", "muted")
        limit = share.limit_bytes
        if isinstance(limit, int):
            segments = list(place_parts(limit_parts(share), limit)) if limit else []
            bar, figures = _bar(segments, layout), _figures(share, limit, snapshot)
            yield from _label_first((label, *bar, figures, around), layout)
        else:
            space = " " * layout.bar
            figures = Span(f"{space} {wording.size(share.used_bytes):>{FIGURES_WIDTH - 9}}{'':8}")
            yield from _label_first((label, figures, around), layout)
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
        yield (Span(f"Memory pressure (PSI): {wording.waited(psi.some.ratio_10s)}"),)


def _device_lines(snapshot: Snapshot) -> Iterator[Line]:
    """Yield what the GPUs can allocate that allocate from System RAM, and the notes of all."""
    pools = {pool.id for pool in snapshot.pools if pool.kind is not PoolKind.CARVEOUT}
    for device in snapshot.devices:
        if device.id in pools and not device.notes:
            continue
        if device.id in pools:
            yield (Span(f"{device.id}: {device.name}"),)
        else:
            yield (Span(device_line(device)),)
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


ENDS = {True: ("└─ ", "   "), False: ("├─ ", "│  ")}


class Branch(Struct, frozen=True):
    """A line of the tree, with its children."""

    label: str
    figure: str
    remark: str = ""
    below: tuple[Branch, ...] = ()


class Row(Struct, frozen=True):
    label: str
    figure: str
    remark: str


def tree_lines(snapshot: Snapshot, age_seconds: float | None) -> Iterator[str]:
    """Yield all lines of `memwatch status`. `age_seconds`: age of the snapshot when it was sent, if known."""
    labels = labels_of(snapshot)
    for pressure in snapshot.pressure:
        yield wording.verdict(labels[pressure.target], pressure) + "."
    yield from silence_lines(notices_of(snapshot), snapshot.unix)
    yield from head_lines(snapshot, age_seconds)
    yield ""
    branches = [
        branch for pool in snapshot.pools for branch in (pool_branch(pool, snapshot), *_apart(pool, snapshot))
    ]
    yield from draw([*branches, *_bare_devices(snapshot)])
    yield from swap_lines(snapshot)
    yield from lease_lines(snapshot)
    if snapshot.devices:
        yield ""
    for device in snapshot.devices:
        yield from device_lines(device)
    noted = list(note_lines(snapshot))
    yield from ["", *noted] if noted else []
    yield from trouble_lines(snapshot)


def head_lines(snapshot: Snapshot, age_seconds: float | None) -> Iterator[str]:
    machine = snapshot.machine
    yield snapshot.host if isinstance(machine.name, Absent) else f"{snapshot.host}, {machine.name}"
    if machine.explanation:
        yield machine.explanation
    if snapshot.simulated:
        yield wording.SIMULATED
    # A Date header has no fractions, so an age is known to the second.
    if age_seconds is not None and age_seconds > 3 * snapshot.interval_seconds + 1:
        yield f"Stale data, from {wording.age(age_seconds)}: memwatchd is not sampling."


def pool_branch(pool: Pool, snapshot: Snapshot) -> Branch:
    """Return a pool with its used and available halves. The children of each line add up to it, except shares.

    A share stands below the part that it is inside: memory of devices below their part, else below `used`.
    """
    return Branch(pool.label, wording.size(pool.size_bytes), "", tuple(_halves(pool, snapshot)))


def _apart(pool: Pool, snapshot: Snapshot) -> Iterator[Branch]:
    """Yield the shares that cross the parts of a pool, such as a control group: they are no part of one."""
    if _parts_of(pool):
        for branch in _shares_within(pool.id, snapshot, lambda share: not _is_inside_a_part(share, pool)):
            yield replace(branch, label=f"{branch.label} ⊂ {pool.label}")


def _is_inside_a_part(share: Share, pool: Pool) -> bool:
    return share.kind in HELD_BY_DEVICES and "devices" in _parts_of(pool)


def _bare_devices(snapshot: Snapshot) -> Iterator[Branch]:
    """Yield the devices whose memory size is unknown, with the shares inside: limits of a memory partition."""
    for device in snapshot.devices:
        shares = _shares_within(device.id, snapshot)
        if shares and device.id not in {pool.id for pool in snapshot.pools}:
            yield Branch(f"{device.name} memory", wording.absent(Absent.NOT_AVAILABLE), "", shares)


def _shares_within(place: str, snapshot: Snapshot, is_wanted: Callable[[Share], bool] = bool) -> tuple[Branch, ...]:
    return tuple(
        Branch(
            share_label(share),
            wording.size(share.used_bytes),
            "; ".join(filter(None, (_limit(share), share.note if share.kind is ShareKind.GPU_LIMIT else None))),
            _shares_within(share.id, snapshot),
        )
        for share in snapshot.shares
        if share.within == place and is_wanted(share)
    )


def _limit(share: Share) -> str:
    if isinstance(share.limit_bytes, Absent):
        return ""
    ratio = share.judged_ratio if share.kind is ShareKind.GPU_LIMIT else Absent.NOT_AVAILABLE
    part = "" if isinstance(ratio, Absent) else f", {wording.ratio(ratio)} used"
    return f"limit {wording.size(share.limit_bytes)}{part}"


def _parts_of(pool: Pool) -> dict[str, int]:
    return {part.kind: part.size_bytes for part in pool.contents} or split_contents(pool)


def _halves(pool: Pool, snapshot: Snapshot) -> Iterator[Branch]:
    parts = _parts_of(pool)
    used = {kind: part for kind, part in parts.items() if kind not in AVAILABLE}
    available = {kind: part for kind, part in parts.items() if kind in AVAILABLE}
    inside = _shares_within(pool.id, snapshot, lambda share: not parts or _is_inside_a_part(share, pool))
    below = tuple(replace(one, below=inside) if kind == "devices" else one for kind, one in _branches(used))
    yield Branch("used", wording.size(pool.used_bytes), _ratio(pool), below or inside)
    yield Branch("available", wording.size(pool.available_bytes), "", tuple(one for _, one in _branches(available)))


def split_contents(pool: Pool) -> dict[str, int]:
    """Split the used part of a GPU's memory, if its driver reports the use of processes.

    Without any, none is a part: the driver's list may be empty because it is not complete.
    """
    used, rest, reserved = pool.used_bytes, pool.unattributed_bytes, pool.reserved_bytes
    if isinstance(used, Absent) or isinstance(rest, Absent):
        return {}
    kept = {} if isinstance(reserved, Absent) else {"reserved": reserved}
    held = max(0, used - rest - sum(kept.values()))
    return {**({"processes": held} if held else {}), **kept, "unattributed": rest}


def _ratio(pool: Pool) -> str:
    used, whole = pool.used_bytes, pool.size_bytes
    return wording.ratio(used / whole) if isinstance(used, int) and whole else ""


def _branches(parts: dict[str, int]) -> list[tuple[str, Branch]]:
    return [(kind, Branch(wording.content(kind), wording.size(part))) for kind, part in parts.items()]


def draw(roots: Sequence[Branch]) -> list[str]:
    """Render the trees as lines with aligned values."""
    rows = [row for root in roots for row in _rows(root, "", "")]
    label = max((len(row.label) for row in rows), default=0)
    width = max((len(row.figure) for row in rows), default=0)
    return [f"{row.label:<{label}}  {row.figure:>{width}}  {row.remark}".rstrip() for row in rows]


def _rows(branch: Branch, first: str, rest: str) -> Iterator[Row]:
    yield Row(first + branch.label, branch.figure, branch.remark)
    for one in branch.below:
        end, further = ENDS[one is branch.below[-1]]
        yield from _rows(one, rest + end, rest + further)


def swap_lines(snapshot: Snapshot) -> Iterator[str]:
    swap = snapshot.swap
    if not isinstance(swap, Absent) and swap.size_bytes:
        used, whole = wording.size(swap.used_bytes), wording.size(swap.size_bytes)
        yield f"Swap: {used} of {whole} used (not counted as memory)"


def lease_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield a line about each lease."""
    labels = snapshot.labels
    for lease in snapshot.leases:
        held = [f"{wording.size(count)} of {labels.get(place, place)}" for place, count in lease.held.items()]
        left = wording.duration(max(0.0, lease.until_unix - snapshot.unix))
        arrived = f", {wording.size(lease.arrived_bytes)} more arrived" if lease.arrived_bytes else ""
        yield f"Leased: {' and '.join(held)} to {lease.name} (PID {lease.pid}), {left} left{arrived}"
    yield from left_out_texts(snapshot.left_out, "leases")


def device_lines(device: Device) -> Iterator[str]:
    """Yield a line about a device, then its notes."""
    yield device_line(device)
    if known := wording.vitals(device.vitals):
        yield f"  {known}"
    for note in device.notes:
        yield f"  {note}"


def device_line(device: Device) -> str:
    state = "" if device.state == "ok" else f", {device.state.replace('_', ' ')}"
    can = wording.can_allocate(device.headroom_bytes, device.headroom_after_reclaim_bytes)
    return f"{device.id}: {device.name} ({wording.architecture(device.architecture.value)}{state}): {can}"


def note_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield notes about memory that was not returned, and about processes."""
    yield from _unreturned(snapshot)
    yield from process_notes(snapshot.processes)


def _unreturned(snapshot: Snapshot) -> Iterator[str]:
    for one in snapshot.not_returned:
        yield f"{one.text}, since {when(one.since_unix, snapshot.unix)}."


def process_notes(processes: Sequence[Process]) -> Iterator[str]:
    """Yield a line about each process that is not visible or an orphan."""
    for process in processes:
        if process.note:
            held = [count for count in process.device_bytes.values() if isinstance(count, int)]
            name = process.title if process.visible else "Process"
            yield f"{name} (PID {process.pid}) holds {wording.size(sum(held))}. {process.note}"


def trouble_lines(snapshot: Snapshot) -> Iterator[str]:
    failing = [one for one in snapshot.collectors if one.state in ("failing", "stalled")]
    if failing:
        yield ""
    for one in failing:
        yield f"collector {one.name} is {one.state}: {one.error}"
