"""The picture of a machine at one moment: every length is its bytes, every word is whole and beside no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.containment import Growing, build_nodes
from memwatch.reporting.render.drawing import Box, Drawing, Rectangle, Text, shorten, spread, width_of
from memwatch.reporting.render.memory_map import build_limit_maps, build_maps
from memwatch.reporting.render.past import Layer, Past, draw_past
from memwatch_monitor.render.status_line import build_status_line
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_data import HistoryInput
from memwatch_web.pages.landscape_page import Scene, draw_page
from memwatch_web.pages.picture import (
    FORMS,
    THEMES,
    Card,
    Towers,
    build_picture,
    describe_relation,
    draw_maps,
    parse_query,
)
from memwatch_web.pages.renderer import Pages
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.demo_frames import moments_of
from support.sample_mig import eight_by_seven
from support.sample_parts import GIB, vram
from support.sample_past import END, past_of
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu

PAGES = Pages()
FONT = 13.75
PLACE = Rectangle(34.0, 183.0, 1131.0, 370.0)
MACHINES = {**SAMPLES, "eight_by_seven": eight_by_seven}


@cache
def sample(name: str) -> tuple[Snapshot, HistoryInput]:
    """Return a machine and its past of an hour, which takes as long as 30 pictures."""
    now = replace(MACHINES[name](), unix=END)
    return now, past_of(now)


def card_of(snapshot: Snapshot, past: HistoryInput, query: str = "") -> Card:
    return build_picture(PAGES, snapshot, past, parse_query(QueryParams(query), snapshot))


def drawing_of(snapshot: Snapshot, growing: Growing | None = None) -> Drawing:
    maps = (*build_maps(snapshot, {}), *build_limit_maps(snapshot, {}))
    return draw_maps(maps, Towers(growing={growing.pool: growing} if growing else {}), PLACE, FONT)


def extent(text: Text) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of words, in their widest usual font."""
    width = width_of(text.plain + text.behind, FONT) + width_of(text.strong, FONT, strong=True)
    left = text.x - {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
    return left, text.y - 0.75 * FONT, left + width, text.y + 0.2 * FONT


def overlaps(texts: Iterable[Text]) -> list[tuple[str, str]]:
    found = []
    for one, other in combinations(texts, 2):
        (left, top, right, bottom), (left2, top2, right2, bottom2) = extent(one), extent(other)
        if left < right2 - 1 and left2 < right - 1 and top < bottom2 - 1 and top2 < bottom - 1:
            found.append((one.plain + one.strong, other.plain + other.strong))
    return found


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("size", FORMS)
def test_picture_of_every_sample_is_an_svg_file_with_its_host_and_level(name: str, size: str) -> None:
    """The file needs no other: no script, no style element, nothing from elsewhere."""
    snapshot, past = sample(name)
    for theme in THEMES:
        svg = PAGES.card(card_of(snapshot, past, f"size={size}&theme={theme}")).decode()

        root = ElementTree.fromstring(svg)
        assert (root.get("width"), root.get("height")) == tuple(size.split("x"))
        assert snapshot.host[:8] in "".join(root.itertext()) + root.get("aria-label", "")
        assert not re.search(r"<script|<style|<image|href=|None|nan|Absent", svg)


@pytest.mark.parametrize("name", MACHINES)
def test_every_length_is_its_bytes_at_one_scale(name: str) -> None:
    """Towers share one factor; a pool that lies on its side has a whole part of it, which its words state."""
    snapshot = MACHINES[name]()
    drawing = drawing_of(snapshot)
    towers = [one for one in drawing.boxes if one.size_bytes and not _lies(one, drawing)]
    if not towers:
        assert not any(isinstance(pool.used_bytes, int) for pool in snapshot.pools)
        return

    largest = max(towers, key=lambda one: one.height)
    factor = largest.height / largest.size_bytes

    assert all(abs(one.height - one.size_bytes * factor) < 1.0 for one in towers)


def _lies(one: Box, drawing: Drawing) -> bool:
    return any("the GPUs' scale" in text.behind and text.y < one.y < text.y + 3 * FONT for text in drawing.texts)


@pytest.mark.parametrize("name", MACHINES)
def test_parts_lie_in_their_whole_and_add_up_to_it(name: str) -> None:
    for one in build_maps(MACHINES[name](), {}):
        nodes = build_nodes(one)
        assert not nodes or sum(node.size_bytes for node in nodes) == pytest.approx(one.whole.size_bytes, abs=2)
        whole = (*nodes, *(inner for node in nodes for inner in node.inside))
        for node in (found for found in whole if found.inside):
            assert sum(inner.size_bytes for inner in node.inside) == pytest.approx(node.size_bytes, abs=2)
            assert min(inner.start for inner in node.inside) >= node.start - 1e-6
            assert max(inner.start + inner.part for inner in node.inside) <= node.start + node.part + 1e-6


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("size", FORMS)
def test_no_words_lie_on_other_words_or_beyond_the_picture(name: str, size: str) -> None:
    card = card_of(*sample(name), f"size={size}")
    scale = card.form.font / FONT
    texts = [replace(one, x=one.x / scale, y=one.y / scale) for one in card.drawing.texts]

    assert overlaps(texts) == []
    for one in texts:
        left, top, right, bottom = extent(one)
        assert left >= 0, one
        assert right <= card.form.width / scale + 1, one
        assert top >= 0, one
        assert bottom <= card.form.height / scale, one


def test_unified_machine_shows_the_share_in_its_pool_and_the_holder_in_the_share() -> None:
    """Containment goes to the right: CUDA Pool, its process, and what it is used for."""
    boxes = drawing_of(critical_gb10()).boxes
    share = next(one for one in boxes if one.title.startswith("CUDA Pool"))
    inside = [one for one in boxes if one.depth == 1 and share.y - 1 <= one.y < share.y + share.height]

    assert share.depth == 0
    assert [one.title.partition(":")[0] for one in inside] == ["vllm", "python3"]
    assert all(one.x > share.x for one in inside)


def test_growth_has_the_colour_of_the_level_to_scale_and_in_its_pool_only() -> None:
    """The bytes that a process held before keep the colour of their kind."""
    snapshot = critical_gb10()
    (ram,) = (one for one in build_maps(snapshot, {}) if one.whole.id == snapshot.pools[0].id)
    holder = max((one for one in ram.segments if one.process), key=lambda one: one.size_bytes)
    assert holder.process is not None
    grown = holder.size_bytes // 4

    drawing = drawing_of(snapshot, Growing(ram.whole.id, holder.process.pid, "critical", grown, 60.0))
    elsewhere = drawing_of(snapshot, Growing("another pool", holder.process.pid, "critical", grown, 60.0))

    coloured = [one for one in drawing.boxes if one.kind == "level-critical"]
    assert [one.size_bytes for one in coloured] == [pytest.approx(grown, abs=2)]
    assert not [one for one in elsewhere.boxes if one.kind.startswith("level")]


def test_pool_on_its_side_states_a_whole_part_of_the_scale() -> None:
    """System RAM of 2 TiB beside GPUs of 80 GiB would not fit beside them at their scale."""
    snapshot = eight_by_seven()
    drawing = drawing_of(snapshot)
    (said,) = (one for one in drawing.texts if "the GPUs' scale" in one.behind)
    whole, part = snapshot.pools, re.search(r"at 1/(\d+) of", said.behind)
    tower = next(one for one in drawing.boxes if not _lies(one, drawing) and one.size_bytes)
    lying = [one for one in drawing.boxes if _lies(one, drawing)]
    size = next(one.size_bytes for one in whole if one.kind.value == "system_ram")

    width = sum(one.width for one in lying)
    factor = tower.height / tower.size_bytes / (int(part[1]) if part else 1)

    assert sum(one.size_bytes for one in lying) == size
    assert width == pytest.approx(size * factor, abs=1.0)


def test_gap_in_the_past_is_a_gap() -> None:
    """Without figures there is no area, and no level."""
    layers = (Layer("anonymous", (8.0, 8.0, None, 4.0, 4.0)), Layer("page_cache", (4.0, 4.0, None, 4.0, 4.0)))
    past = Past((0.0, 1.0, 2.0, 3.0, 4.0), 0.0, 4.0, layers)

    drawing = draw_past(past, 16, Rectangle(0, 0, 40, 160), 5)

    held = [one for one in drawing.areas if one.kind == "anonymous"]
    assert [sorted({x for x, _ in one.points}) for one in held] == [[0.0, 10.0], [30.0, 40.0]]
    assert min(y for _, y in held[0].points) == 80.0
    assert min(y for _, y in held[1].points) == 120.0


def test_earlier_time_shows_what_the_history_has() -> None:
    """Layers and level of that time; no process, whose size in a pool is not kept."""
    card = card_of(*sample("critical_gb10"), f"at={END - 300}")

    assert card.heading.moment.startswith("21 Nov 2026") or "UTC" in card.heading.moment
    assert card.heading.grower == ""
    assert not [one for one in card.drawing.boxes if "PID" in one.title]
    assert sum(one.size_bytes for one in card.drawing.boxes if one.depth == 0) > GIB


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("at=1", 404, "the history has nothing of 1970-01-01 00:00:01 UTC"),
        (f"at={END + 3600}", 422, "in the future"),
        ("at=yesterday", 422, "give Unix seconds or a time"),
        ("at=-5", 422, "before 1970"),
        ("size=1x1", 422, "use one of 1200x630, 600x315"),
        ("theme=pink", 422, "use one of light, dark"),
    ],
)
def test_impossible_requests_are_refused_with_what_is_possible(query: str, status: int, said: str) -> None:
    with pytest.raises(ProblemError) as refused:
        card_of(*sample("critical_gb10"), query)

    assert refused.value.status_code == status
    assert said in str(refused.value.detail)


def test_machine_without_figures_says_so() -> None:
    snapshot = replace(discrete_gpu(), pressure=(), processes=(), unix=END)
    nothing = Absent.NOT_AVAILABLE
    pools = tuple(
        replace(one, used_bytes=nothing, available_bytes=nothing, unattributed_bytes=nothing, contents=())
        for one in snapshot.pools
    )
    without = replace(snapshot, pools=pools)

    card = card_of(without, past_of(without))

    assert card.heading.headline == "No memory data"
    assert card.heading.level == "unknown"
    assert {box.kind for box in card.drawing.boxes} == {"unknown"}


def test_hostile_names_are_cut_and_escaped() -> None:
    card = card_of(*sample("hostile_names"))

    svg = PAGES.card(card).decode()

    ElementTree.fromstring(svg)
    assert width_of(card.heading.host, 20.0) <= 1200


@pytest.mark.parametrize("text", ["", "a", "System RAM", "中文字" * 20, "W" * 300])
def test_shortened_text_fits(text: str) -> None:
    assert width_of(shorten(text, 90.0, 13.0), 13.0) <= 90.0 or shorten(text, 90.0, 13.0) == "…"


def test_places_are_moved_apart_as_little_as_needed() -> None:
    assert spread([10.0, 12.0, 60.0], 10.0, 0.0, 100.0) == [10.0, 20.0, 60.0]
    assert spread([95.0, 99.0], 10.0, 0.0, 100.0) == [90.0, 100.0]
    assert spread([], 10.0, 0.0, 100.0) == []


def test_words_of_many_gpus_claim_no_scale_for_system_ram() -> None:
    """Its band is drawn at a part of their scale, and its own words say at which."""
    assert describe_relation(next(read_frames(path_of("h100x8-mig")))) == "8 GPUs beside System RAM 2,016 GiB"


def test_gpus_without_room_for_their_names_have_their_numbers() -> None:
    """All eight were named "VRAM…"."""
    snapshot = next(read_frames(path_of("h100x8-mig")))

    named = {size: titles_of(card_of(snapshot, past_of(snapshot), f"size={size}")) for size in FORMS}

    assert named == {"1200x630": [f"VRAM {number}" for number in range(8)], "600x315": list("01234567")}


def test_free_memory_of_gpus_has_its_name() -> None:
    """It had a size only, above the process of the GPU: "6.6 GiB"."""
    snapshot = moments_of("h100x8-mig").fullest
    card = card_of(snapshot, past_of(snapshot))
    columns: dict[float, list[Text]] = {}
    for text in card.drawing.texts:
        columns.setdefault(text.x, []).append(text)

    tops = [min(texts, key=lambda one: one.y) for texts in columns.values()]
    bare = [text for text in tops if (text.plain + text.strong).endswith("GiB")]

    assert bare == []
    assert {"available", "not sliced"} <= {text.plain + text.strong for text in tops}


@pytest.mark.parametrize("demo", ["rtx4090", "gh200", "strix-halo", "macbook"])
def test_words_beside_a_tower_are_never_cut(demo: str) -> None:
    """In the small form they were "used 16.7…" and "shared me…"."""
    snapshot = moments_of(demo).fullest

    cut = [
        text
        for size in FORMS
        for text in card_of(snapshot, past_of(snapshot), f"size={size}").drawing.texts
        if "…" in text.strong + text.plain
    ]

    assert cut == []


def titles_of(card: Card) -> list[str]:
    """Return the strong words on the line of the first tower's title."""
    line = min(text.y for text in card.drawing.texts)
    return [text.strong for text in card.drawing.texts if text.y == line and text.strong]


def test_relation_without_room_loses_its_figures_and_no_word() -> None:
    snapshot = next(read_frames(path_of("macbook")))

    heading = card_of(snapshot, past_of(snapshot)).heading

    assert heading.relation == "Metal working set ⊂ Unified memory"


def test_picture_draws_what_grows_in_all_pools() -> None:
    """It was in the tower of the worst pool only."""
    base = discrete_gpu()
    cards = [vram(f"gpu{n}", f"VRAM {n}", size=24 * GIB, used=20 * GIB, reserved=0) for n in range(2)]
    holders = [Process(n + 7, 1.0, "rank", 0, 18 * GIB, "", device_bytes={f"gpu{n}": 18 * GIB}) for n in range(2)]
    snapshot = replace(base, pools=tuple(cards), shares=(), devices=(), pressure=(), processes=tuple(holders))
    maps = build_maps(snapshot, {})
    growing = {f"gpu{n}": Growing(f"gpu{n}", n + 7, "high", 5 * GIB, 60.0, "devices") for n in range(2)}

    drawing = draw_maps(maps, Towers(growing=growing), PLACE, FONT)

    assert [box.kind for box in drawing.boxes].count("level-high") == 2


def test_threshold_has_the_sign_of_its_level() -> None:
    """They were figures of one colour. In a low tower, that of critical had no room below that of high."""
    snapshot = moments_of("gh200").fullest

    drawing = card_of(snapshot, past_of(snapshot)).drawing

    assert [sign.level for sign in drawing.signs] == ["medium", "high", "critical"] * 2
    written = [text for text in drawing.texts if text.plain in ("60%", "80%", "95%")]
    for sign, text in zip(drawing.signs, written, strict=True):
        left, top, _, bottom = extent(text)
        assert text.kind == sign.level
        assert sign.x + sign.size <= left
        assert top - 2 <= sign.y
        assert sign.y + sign.size <= bottom + 2


@pytest.mark.parametrize("demo", ["gh200", "rtx4090"])
def test_bytes_with_parts_have_a_bracket_to_their_words(demo: str) -> None:
    """The leader of "processes" began at the edge of one of its parts."""
    snapshot = moments_of(demo).fullest
    drawing = card_of(snapshot, past_of(snapshot)).drawing
    written = {text.strong for text in drawing.texts if text.kind not in ("", "muted")}
    families = {
        (round(box.y, 3), round(box.y + box.height, 3))
        for box in drawing.boxes
        if box.kind.endswith("-family") and box.title.rpartition(": ")[0] not in written
    }

    brackets = [line.points for line in drawing.lines if line.kind == "leader" and len(line.points) == 4]

    assert families
    assert {(round(points[0][1], 3), round(points[-1][1], 3)) for points in brackets} == families


def test_mig_instances_of_the_picture_are_those_of_the_page() -> None:
    """They were "9", "3" and "2", in the colour of no level."""
    snapshot = moments_of("h100x8-mig").fullest
    maps = build_maps(snapshot, {})
    levels = {one.target: one.level.word for one in snapshot.pressure}

    card, page = card_of(snapshot, past_of(snapshot)).drawing, draw_page(maps, Scene(levels=levels))

    of_page = [box for tower in page.towers for box in tower.now.drawing.boxes]
    assert {text.strong for text in card.texts} >= {"MIG 2", "MIG 3", "MIG 9"}
    slices = [box.title for box in of_page if box.kind.startswith("slice")]
    assert [box.title for box in card.boxes if box.kind.startswith("slice")] == slices
    assert [line.kind for line in card.lines if line.kind.startswith("cap")] == ["cap-medium"]


def test_long_name_of_a_machine_has_a_smaller_font() -> None:
    """It was "NVIDIA Jetson AGX O…"."""
    snapshot = moments_of("jetson-orin").fullest

    heads = [card_of(snapshot, past_of(snapshot), f"size={size}").heading for size in FORMS]

    assert {head.host for head in heads} == {"agx-orin · NVIDIA Jetson AGX Orin Developer Kit"}
    assert heads[0].host_font / FORMS["1200x630"].font > heads[1].host_font / FORMS["600x315"].font


def test_name_of_a_host_is_whole_without_room_for_that_of_the_machine() -> None:
    """It was "ember · ASUSTeK COMPUTER INC. R…" at 600 pixels."""
    snapshot = moments_of("rtx4090").fullest
    long = replace(snapshot, machine=replace(snapshot.machine, name="ASUSTeK COMPUTER INC. ROG STRIX Z790-E " * 2))

    heads = [card_of(long, past_of(long), f"size={size}").heading for size in FORMS]

    assert not [head.host for head in heads if "…" in head.host]
    assert heads[-1].host == snapshot.host


def test_long_headline_is_smaller_and_whole() -> None:
    """It was "8 of 12 pools and li…" at 600 pixels, and left no room for the figures at 1,200."""
    frames = read_frames(path_of("h100x8-mig"))
    snapshot = next(one for one in frames if "pools and limits" in build_status_line(one).headline)

    heads = {size: card_of(snapshot, past_of(snapshot), f"size={size}").heading for size in FORMS}

    assert {head.headline for head in heads.values()} == {build_status_line(snapshot).headline}
    assert "of 637.2 GiB" in heads["1200x630"].figures
    for size, head in heads.items():
        width = width_of(head.headline, head.headline_font, strong=True)
        assert width <= FORMS[size].width - 5 * FORMS[size].font
