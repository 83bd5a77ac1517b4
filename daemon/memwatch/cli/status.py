"""Lines of `memwatch status` and `memwatchd --once`: the verdict first, then one line per pool with a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memwatch.cli import tree
from memwatch.cli.figures import (
    Json,
    certain_headroom,
    decode_pressure,
    decode_vitals,
    figure,
    least_footprint,
    silence_lines,
    size,
    state_of,
)
from memwatch.cli.tables import columns as table
from memwatch.cli.terminal.memory_map import Part, draw_bar, look_of, parts_of, segments
from memwatch.cli.terminal.moment import LEVELS, MARKS, STYLES, labels_of
from memwatch.cli.terminal.sizes import pair_words
from memwatch.cli.terminal.style import Line, Span, cells, line_cells, pad
from memwatch.core.model import NAMELESS, Absent
from memwatch.core.owners import WITHIN, describe_home
from memwatch.monitor.render import words as wording

MIN_BAR, MAX_BAR, MAX_LABEL = 10, 40, 28
# Widths of "80.3 / 121.7 GiB   66.0%" and of "  available 1,600 GiB".
FIGURES, AVAILABLE = 27, 22
MAX_VERDICTS = 8
# Less reads 0.0%.
MIN_STALL = 0.0005


def render_lines(
    snapshot: Json, age_seconds: float | None, width: int, has_colour: bool, processes: int = 5
) -> Iterator[Line]:
    """Yield the lines of a snapshot. `age_seconds`: its age when it was sent, if known.

    `processes`: number of the largest ones that are listed.
    """
    yield from verdict_lines(snapshot)
    yield from ((Span(f"  {line}", "bold"),) for line in silence_lines(snapshot))
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


def verdict_lines(snapshot: Json) -> Iterator[Line]:
    """Yield a line for each level above OK, the worst first, and one line for all others."""
    labels = labels_of(snapshot)
    ranked = sorted(snapshot["pressure"], key=lambda one: (LEVELS.index(one["level"]), one["ratio"]), reverse=True)
    bad = [one for one in ranked if one["level"] != "low"]
    for one in bad[:MAX_VERDICTS]:
        sentence = wording.verdict(labels[one["target"]], decode_pressure(one))
        yield (Span(f"{MARKS[one['level']]} {sentence}.", f"bold {STYLES[one['level']]}"),)
    if len(bad) > MAX_VERDICTS:
        yield (Span(f"  {len(bad) - MAX_VERDICTS} more: memwatch status --tree", "bold"),)
    good = [one for one in ranked if one["level"] == "low"]
    if good:
        yield (Span(f"{MARKS['low']} {_good(good, bool(bad), labels)}", STYLES["low"]),)
    if not ranked:
        yield (Span("No memory data.", "bold"),)


def _good(good: Sequence[Json], has_bad: bool, labels: dict[str, str]) -> str:
    label, pressure = labels[good[0]["target"]], decode_pressure(good[0])
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


def _columns(snapshot: Json, width: int, has_colour: bool) -> Columns:
    label = min(MAX_LABEL, max((cells(name) for name in labels_of(snapshot).values()), default=0) + 3)
    bar = (
        width - label - FIGURES - AVAILABLE - max((cells(_sensors(one)) for one in snapshot["devices"]), default=0)
    )
    return Columns(label, max(MIN_BAR, min(MAX_BAR, bar - 2)), width, has_colour)


def _place_lines(snapshot: Json, layout: Columns) -> Iterator[Line]:
    """Yield a line for each pool, and one below it for each share inside it."""
    pools = {pool["id"] for pool in snapshot["pools"]}
    for pool in snapshot["pools"]:
        yield _pool_line(pool, snapshot, layout)
        yield from _share_lines(pool["id"], snapshot, layout, 1)
    for device in snapshot["devices"]:
        if device["id"] not in pools:
            yield from _share_lines(device["id"], snapshot, layout, 0)


def _pool_line(pool: Json, snapshot: Json, layout: Columns) -> Line:
    parts = parts_of(pool, snapshot["shares"])
    device = next((one for one in snapshot["devices"] if one["id"] == pool["id"]), None)
    return (
        Span(pad(pool["label"], layout.label)),
        *_bar(parts, pool["size_bytes"], layout),
        _figures(pool, pool["size_bytes"], snapshot),
        Span(f"  available {size(pool, 'available_bytes'):<{AVAILABLE - 12}}"),
        Span("" if device is None else _sensors(device), "muted"),
    )


def _bar(parts: Sequence[Part], whole: int, layout: Columns) -> Line:
    return draw_bar(segments(parts, whole, layout.bar), layout.bar, (), layout.has_colour)


def _figures(place: Json, whole: int, snapshot: Json) -> Span:
    """Return the use of a pool or limit in the colour of its level."""
    used = place["used_bytes"]
    ratio = wording.ratio(used / whole) if used is not None and whole else wording.DASH
    level = next((one["level"] for one in snapshot["pressure"] if one["target"] == place["id"]), "low")
    style = f"bold {STYLES[level]}" if level != "low" else ""
    return Span(f" {pair_words(used, whole):>{FIGURES - 9}} {ratio:>7}", style)


def _sensors(device: Json) -> str:
    vitals = decode_vitals(device)
    found = [] if isinstance(vitals.temperature_celsius, Absent) else [wording.celsius(vitals.temperature_celsius)]
    found += [] if device["state"] == "ok" else [state_of(device)]
    return f"  {', '.join(found)}" if found else ""


def _share_lines(place: str, snapshot: Json, layout: Columns, depth: int) -> Iterator[Line]:
    labels = labels_of(snapshot)
    for share in (one for one in snapshot["shares"] if one["within"] == place):
        lead = "  " * (depth - 1) + ("└ " if depth else "")
        label = Span(pad(f"{lead}{labels[share['id']]}", layout.label))
        around = Span(f"  ⊂ {labels.get(place, place)}", "muted")
        used, limit = share["used_bytes"], share["limit_bytes"]
        if used is not None and limit:
            parts = [Part("used", used), Part("available", max(0, limit - used))]
            yield (label, *_bar(parts, limit, layout), _figures(share, limit, snapshot), around)
        else:
            space = " " * layout.bar
            yield (label, Span(f"{space} {size(share, 'used_bytes'):>{FIGURES - 9}}{'':8}"), around)
        yield from _share_lines(share["id"], snapshot, layout, depth + 1)


def _contents(snapshot: Json, width: int) -> Iterator[Line]:
    """Yield the parts of System RAM in the order of its bar."""
    ram = next((pool for pool in snapshot["pools"] if pool["kind"] == "system_ram"), None)
    if ram is None or not ram["contents"]:
        return
    line = [Span(f"{ram['label']}: ")]
    for part in parts_of(ram):
        words = f"{wording.content(part.kind)} {wording.size(part.size_bytes)}"
        if line_cells(line) + cells(words) + 2 > width:
            yield (*line, Span(","))
            line = [Span("  ")]
        line += [Span(", " if len(line) > 1 else ""), Span(words, look_of(part.kind).colour)]
    yield tuple(line)


def _stalls(snapshot: Json) -> Iterator[Line]:
    """Yield a line about tasks that wait for memory, if there are any."""
    psi = snapshot["psi"]
    if psi and psi["some"]["ratio_10s"] >= MIN_STALL:
        yield (Span(f"Memory pressure (PSI): {wording.waited(psi['some']['ratio_10s'], '10 s')}"),)


def _device_lines(snapshot: Json) -> Iterator[Line]:
    """Yield what the GPUs can allocate that allocate from System RAM, and the notes of all."""
    pools = {pool["id"] for pool in snapshot["pools"] if pool["kind"] != "carveout"}
    for device in snapshot["devices"]:
        if device["id"] in pools and not device.get("notes"):
            continue
        if device["id"] in pools:
            yield (Span(f"{device['id']}: {device['name']}"),)
        else:
            state = "" if device["state"] == "ok" else f", {state_of(device)}"
            can = wording.can_allocate(certain_headroom(device), figure(device, "headroom_bytes"))
            about = f"{wording.architecture(device['architecture'])}{state}"
            yield (Span(f"{device['id']}: {device['name']} ({about}): {can}"),)
            if known := wording.vitals(decode_vitals(device)):
                yield (Span(f"  {known}", "muted"),)
        yield from _plain(f"  {note}" for note in device.get("notes", ()))


def process_lines(snapshot: Json, count: int) -> Iterator[str]:
    """Yield a table of the largest processes, after an empty line."""
    listed = sorted(snapshot["processes"], key=lambda one: -least_footprint(one))[:count]
    if listed:
        rows: list[tuple[str, ...]] = [("pid", "name", "footprint", "rss", "owner")]
        yield from ["", *table([*rows, *map(_process_row, listed)], right=frozenset({0, 2, 3}))]
    scan = snapshot.get("process_scan")
    if scan and scan.get("note"):  # some processes are hidden
        yield scan["note"]


def _process_row(process: Json) -> tuple[str, ...]:
    owner = describe_home(process["unit"], process["container"]) or process["user"] or wording.DASH
    name, within, scope = str(owner).partition(WITHIN)
    resident = size(process, "rss_bytes")
    return str(process["pid"]), _name(process)[:24], _footprint(process), resident, name[:40] + within + scope


def _name(process: Json) -> str:
    return str(process["name"] or NAMELESS)


def _footprint(process: Json) -> str:
    if process["footprint_bytes"] is None and process.get("footprint_low_bytes") is not None:
        return wording.between(process["footprint_low_bytes"], figure(process, "footprint_high_bytes"))
    return size(process, "footprint_bytes")
