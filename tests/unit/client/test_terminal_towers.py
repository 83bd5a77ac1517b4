"""Test the landscape of `memwatch top` in cells: lengths, places, words, and inputs that are hard to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memwatch.cli.charset import to_ascii
from memwatch.cli.terminal.figures import Trend
from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.moment import MARKS, Moment
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.past import build_past
from memwatch.cli.terminal.stacks import LOWER_BLOCKS, Ink, look_of
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import Line, Span, line_cells, plain
from memwatch.cli.terminal.towers import Area, Canvas, Scene, draw_past, draw_scene, draw_tower, write_times
from memwatch.core.events import Event
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.containment import Growing, build_nodes
from memwatch.reporting.render.memory_map import MemoryMap, build_maps
from memwatch.reporting.render.tower import choose_scale
from support.hard_machines import HARD_MACHINES
from support.sample_mig import eight_by_seven
from support.sample_snapshots import (
    SAMPLES,
    critical_gb10,
    discrete_gpu,
    mig_server,
)

GIB, TIB = 1 << 30, 1 << 40
INKS = {"colours": Ink(True, False), "no colours": Ink(False, False), "ASCII": Ink(True, True)}
WIDTH = 40
# Drawn as dots and hatching: a cell above used memory belongs to them.
AVAILABLE = ("free", "cache")


def scene_of(maps: Sequence[MemoryMap], ink: Ink = INKS["colours"], growing: Growing | None = None) -> Scene:
    return Scene(tuple(maps), ink, lambda *_: None, {}, {}, {}, {}, growing)


def lengths(column: Sequence[Span]) -> dict[str, float]:
    """Return the rows of each colour in a column of cells."""
    found: dict[str, float] = {}
    for text, style, on in column:
        eighths = LOWER_BLOCKS.index(text) if text in LOWER_BLOCKS[1:] else 8
        colour = on if on and eighths == 8 else style.removesuffix("bold").rstrip()
        found[colour] = found.get(colour, 0.0) + eighths / 8
        if eighths < 8:
            found[on] = found.get(on, 0.0) + 1 - eighths / 8
    return found


def first_cells(lines: Sequence[Line]) -> list[Span]:
    return [line[0]._replace(text=line[0].text[:1]) for line in lines]


@pytest.mark.parametrize("rows", [6, 11, 24, 40])
@pytest.mark.parametrize("name", SAMPLES)
def test_each_length_is_that_of_its_bytes_within_half_a_cell(name: str, rows: int) -> None:
    """In the left column of the tower, where the families of System RAM and the holders of a GPU are."""
    for one in build_maps(SAMPLES[name](), {}):
        canvas = Canvas(WIDTH, rows + 1)
        draw_tower(canvas, one, Area(0, WIDTH, rows, float(rows)), scene_of([one]), is_named=True)
        drawn = lengths(first_cells(canvas.lines()[:rows]))
        wanted: dict[str, float] = {}
        for node in build_nodes(one):
            look = look_of(f"{node.kind}-family" if node.inside and node.kind != "slice" else node.kind)
            wanted[look.colour] = wanted.get(look.colour, 0.0) + node.part * rows
        left = sum(wanted.pop(colour, 0.0) for colour in AVAILABLE)
        if wanted or left:
            assert sum(drawn.get(colour, 0.0) for colour in ("", *AVAILABLE)) == pytest.approx(left, abs=0.5)
        for colour, length in wanted.items():
            assert drawn.get(colour, 0.0) + drawn.get(f"{colour}-2", 0.0) == pytest.approx(length, abs=0.5)


def test_pools_stand_on_one_ground_at_one_scale() -> None:
    """A card of 80 GiB beside 240 GiB of System RAM is a third as high."""
    snapshot = discrete_gpu()
    maps = build_maps(snapshot, {})
    scale = choose_scale(maps, 20)
    lines = [plain(line) for line in draw_scene(scene_of(maps), 120, 22)]

    for one in maps:
        at = next(number for number, line in enumerate(lines) if one.whole.label in line)
        rows = one.whole.size_bytes * scale
        if rows >= 1.0:
            assert abs((len(lines) - 1 - at) - rows) <= 1.0
        else:
            assert "thinner than a row" in lines[at]


@pytest.mark.parametrize("ink", INKS)
def test_containment_goes_to_the_right(ink: str) -> None:
    """System RAM has the CUDA Pool, that has vLLM. Names are inside their boxes, or beside the tower."""
    maps = build_maps(critical_gb10(), {})
    lines = [plain(line) for line in draw_scene(scene_of(maps, INKS[ink]), 100, 22)]
    text = "\n".join(lines)

    def column(word: str) -> int:
        return next(line.index(word) for line in lines if word in line)

    assert column("System RAM") <= column("CUDA Pool") < column("vllm")
    assert ("in System RAM" if ink == "ASCII" else "⊂ System RAM") in text
    for node in build_nodes(maps[0]):
        assert node.name[:8] in text
    assert ink != "ASCII" or text.isascii()


def test_growth_has_the_colour_of_the_level_at_the_top_of_its_process() -> None:
    snapshot = critical_gb10()
    largest = max(
        snapshot.processes, key=lambda one: sum(v for v in one.device_bytes.values() if isinstance(v, int))
    )
    growing = Growing("ram", largest.pid, "critical", 20 * GIB, 60.0)
    lines = draw_scene(scene_of(build_maps(snapshot, {}), growing=growing), 100, 22)

    assert any("critical" in (span.style, span.on) for line in lines for span in line)
    assert any("+20.0 GiB in 1 min" in plain(line) for line in lines)


@pytest.mark.parametrize("name", HARD_MACHINES)
def test_machines_that_are_hard_to_draw_fill_every_screen(name: str) -> None:
    """Exactly, with and without colours and Unicode, and a row of the table remains."""
    snapshot = HARD_MACHINES[name]()
    for width, height in ((40, 10), (40, 12), (57, 17), (80, 24), (100, 30), (200, 60)):
        for has_colour, is_ascii in ((True, False), (False, False), (True, True)):
            for page in (1, 2, 3):
                view = View(Moment(snapshot), State(page=page), width, height, snapshot.unix, has_colour, is_ascii)
                frame = render(view)
                texts = [plain(line) for line in frame.lines]
                assert len(texts) == height
                assert max(map(line_cells, frame.lines)) <= width
                assert not is_ascii or all(map(str.isascii, texts))
                assert "\x1b" not in "".join(texts)
                assert page != 1 or frame.rows >= 2 or not snapshot.processes


def test_eight_gpus_are_readable_in_80_by_24() -> None:
    """Each has its name, its use, its level and its instances; the worst come first where not all fit."""
    snapshot = eight_by_seven()
    view = View(Moment(snapshot), State(), 80, 24, snapshot.unix)
    lines = [plain(line) for line in render(view).lines]
    heads = next(number for number, line in enumerate(lines) if "GPU0" in line)

    assert [word for word in lines[heads].split() if word.startswith("GPU")] == [f"GPU{gpu}" for gpu in range(8)]
    assert lines[heads + 1].count("%") == 8
    assert "RAM" in lines[heads - 1]
    small = View(Moment(snapshot), State(), 40, 10, snapshot.unix)
    assert "more pools, less full: press 2" in "\n".join(plain(line) for line in render(small).lines)


def test_gpus_have_their_names_at_every_height() -> None:
    """A tower as high as its place takes no row more, though its height is a quotient times its divisor."""
    snapshot = eight_by_seven()
    for height in range(24, 90):
        frame = render(View(Moment(snapshot), State(), 132, height, snapshot.unix))
        heads = next(line for line in map(plain, frame.lines) if "GPU0" in line)
        assert heads.count("GPU") == 8


@pytest.mark.parametrize("ink", INKS)
def test_mig_slice_above_ok_has_the_mark_of_its_level(ink: str) -> None:
    """Its memory keeps the colour of its holder: that of a level is of growth."""
    snapshot = mig_server()
    one = next(found for found in build_maps(snapshot, {}) if found.slices)
    names = [found.share.label.rpartition(" ")[2] for found in one.slices]
    levels = {found.share.id: level for found, level in zip(one.slices, ("critical", "low"), strict=False)}
    scene = replace(scene_of([one], INKS[ink]), levels=levels)
    lines = draw_scene(scene, 60, 40)
    text, colours = "\n".join(map(plain, lines)), {found for line in lines for _, *two in line for found in two}

    mark = to_ascii(MARKS["critical"]) if ink == "ASCII" else MARKS["critical"]
    assert f"{mark}MIG {names[0]}" in text
    assert f" MIG {names[1]}" in text
    assert f"{MARKS['low']}MIG" not in text
    assert not any("critical" in colour for colour in colours)
    assert any("gpu" in colour.split() for colour in colours)


def trends_of(snapshot: Snapshot, used: Sequence[float | None]) -> dict[str, Trend]:
    times = tuple(snapshot.unix - 600 + 10 * (number + 1) for number in range(len(used)))
    levels = tuple(None if one is None else 3.0 if one > 100 * GIB else 0.0 for one in used)
    rest = tuple(None if one is None else 5.0 * GIB for one in used)
    return {
        "pool.ram.used_bytes": Trend(times, tuple(used)),
        "pool.ram.unattributed_bytes": Trend(times, rest),
        "pool.ram.available_bytes": Trend(times, tuple(None if one is None else 119 * GIB - one for one in used)),
        "pool.ram.free_bytes": Trend(times, rest),
        f"share.{snapshot.shares[0].id}.used_bytes": Trend(
            times, tuple(None if one is None else 20.0 * GIB for one in used)
        ),
        "pressure.ram.level": Trend(times, levels),
    }


@pytest.mark.parametrize("ink", INKS)
def test_past_has_the_layers_of_the_map_the_levels_and_the_kills(ink: str) -> None:
    """From the ground up: CUDA Pool, processes, unattributed, page cache. Time without data is empty."""
    snapshot = critical_gb10()
    pool, size = snapshot.pools[0], snapshot.pools[0].size_bytes
    used = [60.0 * GIB] * 20 + [None] * 20 + [110.0 * GIB] * 20
    kill = Event(1, snapshot.unix - 15, "oom_kill", "OOM killer: killed train.py (1)", target="ram")
    span = snapshot.unix - 600, snapshot.unix
    past = build_past(pool, snapshot, trends_of(snapshot, used), span, [kill], None, 60)
    assert past is not None
    canvas = Canvas(60, 22)
    draw_past(canvas, past, size, INKS[ink], Area(0, 60, 21, 20.0))
    lines = canvas.lines()
    cells = [[Span(char, span.style, span.on) for span in line for char in span.text] for line in lines]

    seen = [colour for row in range(20, 0, -1) for colour in (cells[row][5].style, cells[row][5].on) if colour]
    colours = list(dict.fromkeys(seen))
    assert colours[:4] == ["gpu", "process", "rest", "cache"]
    assert all(cells[row][30].text == " " for row in range(21))
    drawn = lengths([cells[row][5] for row in range(1, 21)])
    assert drawn["gpu"] == pytest.approx(20 * GIB / size * 20, abs=0.5)
    assert drawn["process"] == pytest.approx(35 * GIB / size * 20, abs=0.5)
    assert {cells[0][5].style, cells[0][50].style} == {"ok", "critical"}
    assert sum("reverse" in one.style for one in cells[0]) == 1
    assert plain(lines[21]).count(":") >= 2


@pytest.mark.parametrize(
    ("seconds", "width", "count"),
    [(30.0, 40, 2), (600.0, 20, 2), (600.0, 60, 5), (86_400.0, 100, 12), (2_592_000.0, 100, 6)],
)
def test_times_below_a_past_are_whole_apart_and_at_equal_steps(seconds: float, width: int, count: int) -> None:
    canvas, start = Canvas(width, 2), 1_700_000_123.0
    write_times(canvas, start, start + seconds, Area(0, width, 1, 1.0))

    found = [(one.start(), one[0]) for one in re.finditer(r"\S+", plain(canvas.lines()[1]))]
    steps = {after - before for (before, _), (after, _) in pairwise(found)}
    assert abs(len(found) - count) <= 1
    assert all(len(text) in (5, 8) for _, text in found)
    assert all(before + len(text) + 3 <= after for (before, text), (after, _) in pairwise(found))
    assert max(steps, default=0) - min(steps, default=0) <= 1
    if seconds == 600.0 and width == 60:
        assert all(int(text[3:]) % 2 == 0 for _, text in found)
