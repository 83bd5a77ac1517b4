"""Pages of incidents: readable without a script, with one picture to scale, and safe for any name."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memwatch.core.units import size
from memwatch.reporting.incidents.records import Entry, Incident, Sample, Suspect
from memwatch.reporting.incidents.words import find_cut, write_summary, write_title
from memwatch.reporting.render.containment import Node
from memwatch.reporting.render.drawing import Drawing, Flag, Rectangle, width_of
from memwatch.reporting.render.past import find_place
from memwatch.reporting.render.tower import place_nodes
from memwatch.reporting.render.words import clock
from memwatch_web.pages import incident_page
from memwatch_web.pages.incident_files import build_card, wrap
from memwatch_web.pages.incident_page import build_page, build_row
from memwatch_web.pages.incident_picture import LAYOUTS, Layout, Picture, draw
from memwatch_web.pages.picture import THEMES
from memwatch_web.pages.renderer import Pages
from support.fakes import GIB
from support.html_reader import Reader
from support.incident_player import Player
from support.incident_scenarios import SCENARIOS
from support.sample_snapshots import critical_gb10

NAMES = [one.name for one in SCENARIOS]
PARTS = {"shared_memory": GIB // 2, "kernel": GIB, "unattributed": GIB, "page_cache": GIB, "swap": 0}


def incident() -> Incident:
    return play(SCENARIOS[0].name)


@cache
def play(beginning: str) -> Incident:
    return Player(next(one for one in SCENARIOS if one.name.startswith(beginning))).play()[0]


def with_parts(one: Incident, swap: int = 0, stalled: float | None = None) -> Incident:
    """Return an incident whose samples have all that a machine with swap and PSI reports."""
    parts = {**PARTS, "swap": swap}
    samples = tuple(replace(each, parts=parts, stall_ratio=stalled) for each in one.samples)
    return replace(one, samples=samples)


def picture(one: Incident, form: str = "wide") -> Picture:
    found = draw(one, LAYOUTS[form])
    assert found is not None
    return found


def frames(drawing: Drawing) -> list[Rectangle]:
    """Return the frames of the past and of the composition."""
    outlines = [one.points for one in drawing.lines if one.kind == "frame"]
    return [Rectangle(x, top, right - x, ground - top) for (x, ground), (_, top), (right, _), *_ in outlines]


def test_page_has_the_words_the_facts_and_the_timeline() -> None:
    found = incident()

    text = Reader(Pages().incident(found)).text

    assert write_title(found) in text
    for words in (
        *write_summary(found).split(". "),
        "vllm 3921",
        "by the kernel",
        "warning before the kill",
        "no receiver was notified",
        "OOM killer: killed",
    ):
        assert words in text
    assert found.id not in text


def test_page_of_an_incident_that_lasts_says_how_old_its_figures_are() -> None:
    found = replace(incident(), ended=None)

    text = Reader(Pages().incident(found)).text

    assert f"still going on: figures so far, as of {clock(found.samples[-1].unix)[:8]}" in text


def test_failed_allocation_is_no_kill() -> None:
    """The page of a program that could not allocate names no kill."""
    text = Reader(Pages().incident(play("another process fills the GPU"))).text

    assert "failed allocation ollama, 6.0 GiB" in text
    assert [word for word in ("killed", "the kill") if word in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_bytes_that_came_back_are_a_word(name: str) -> None:
    """It was "0 B of System RAM came back"."""
    assert [one for one in play(name).evidence if one.startswith("0 B")] == []


def test_lost_gpu_returns_no_memory() -> None:
    text = Reader(Pages().incident(play("GPU falls off"))).text

    assert "came back" not in text.lower()


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_bytes_at_one_scale(name: str, form: str) -> None:
    """Boxes of the composition and layers of the past are as high as their bytes, within a pixel."""
    one = play(name)
    found = draw(one, LAYOUTS[form])
    if not one.samples:
        assert found is None
        return
    assert found is not None
    past, held = frames(found.drawing)
    whole = max(one.size_bytes or 0, *(sample.used_bytes for sample in one.samples))
    scale = past.height / whole

    assert held.height == pytest.approx(past.height)
    for box in found.drawing.boxes:
        assert box.height == pytest.approx(box.size_bytes * scale, abs=1.0), box.title
        assert past.y - 0.1 <= box.y <= box.y + box.height <= held.ground + 0.1
    cut = find_cut(one)
    assert cut is not None
    column = [box for box in found.drawing.boxes if box.depth == 0 and not box.kind.startswith("level-")]
    assert sum(box.size_bytes for box in column) == whole
    used = sum(box.size_bytes for box in column if box.kind not in ("page_cache", "free"))
    assert used == cut.sample.used_bytes


def test_past_ends_at_the_use_of_the_pool() -> None:
    """The line of used memory is at the use of System RAM at each sample, without swap and with it."""
    for one in (incident(), with_parts(incident(), swap=8 * GIB, stalled=0.5)):
        found = picture(one)
        past, _ = frames(found.drawing)
        scale = past.height / (one.size_bytes or 1)
        line = next(each.points for each in found.drawing.lines if each.kind == "used" and len(each.points) > 2)
        used = [past.ground - sample.used_bytes * scale for sample in one.samples]
        assert max(abs(y - wanted) for (_, y), wanted in zip(line, used, strict=True)) < 0.1


def test_swap_is_below_the_ground_at_the_scale_of_the_rest() -> None:
    found = picture(with_parts(incident(), swap=8 * GIB, stalled=0.56))
    past, _ = frames(found.drawing)
    below = next(one.points for one in found.drawing.areas if min(y for _, y in one.points) > past.ground)

    assert max(y for _, y in below) - min(y for _, y in below) == pytest.approx(
        8 * GIB * past.height / (incident().size_bytes or 1), abs=0.1
    )
    words = [text.plain for text in found.drawing.texts]
    assert "up to 8.0 GiB, at this scale" in words
    assert "up to 56% of 10 s" in words
    assert found.height == LAYOUTS["wide"].height


def test_figure_of_swap_is_shorter_where_its_words_have_no_room() -> None:
    """On phones it had none beside swap in the middle of the past."""
    one = with_parts(incident(), swap=8 * GIB)
    middle = len(one.samples) // 2
    samples = tuple(
        replace(each, parts={**each.parts, "swap": 8 * GIB if abs(number - middle) < 3 else 0})
        for number, each in enumerate(one.samples)
    )
    found = {form: picture(replace(one, samples=samples), form) for form in LAYOUTS}
    words = {
        form: [text.plain for text in one.drawing.texts if text.plain.startswith("up to")]
        for form, one in found.items()
    }

    assert words == {"wide": ["up to 8.0 GiB, at this scale"], "narrow": ["up to 8.0 GiB"]}


@pytest.mark.parametrize("form", LAYOUTS)
def test_other_processes_are_below_the_cause(form: str) -> None:
    """They were two strips, above it and below: what grows is on top of its kind, as on a page of now."""
    found = picture(play("kill -9 by hand"), form)

    assert [name for name, _ in found.held[:4]] == ["processes", "chromium", "other processes", "train.py"]
    drawn = [area.kind for area in found.drawing.areas if area.kind in ("anonymous", "level-critical")]
    assert drawn == [*["anonymous"] * 4, "level-critical", "level-critical"]  # the last one of the strip of levels
    inside = [box for box in found.drawing.boxes if box.depth == 1]
    top = min(box.y for box in inside)
    assert "level-critical" in [box.kind for box in inside if box.y == pytest.approx(top)]


def test_swap_and_stalls_without_figures_are_not_drawn() -> None:
    words = [text.plain for text in picture(replace(incident(), samples=old_samples())).drawing.texts]

    assert not {"swap", "stalls"} & set(words)


def old_samples() -> tuple[Sample, ...]:
    return tuple(replace(one, parts={}, level=None, stall_ratio=None) for one in incident().samples)


def test_record_of_an_earlier_version_has_less_of_a_picture_and_says_so() -> None:
    """Without levels there is no strip, and memory of no listed process has no use."""
    old = replace(incident(), samples=old_samples())
    found = picture(old)

    assert [one.kind for one in found.drawing.areas if one.kind.startswith("level-")] == ["level-critical"]
    assert found.notes == ("The record has the largest processes; all else is other memory.", "It has no levels.")
    assert "unattributed" in {box.kind for box in found.drawing.boxes}
    assert "page_cache" not in {box.kind for box in found.drawing.boxes}


def test_growth_of_the_cause_has_the_colour_of_the_level() -> None:
    """Only what it has grown by: vllm held 90 GiB before."""
    found = picture(incident())
    grown = [box for box in found.drawing.boxes if box.kind == "level-critical"]

    assert [box.title.partition(" in ")[0] for box in grown] == ["+26.5 GiB"]
    assert all(box.kind != "level-critical" for box in picture(play("undecided: two")).drawing.boxes)


METAL = "Metal working set"


def with_shares(one: Incident) -> Incident:
    """Return an incident of a machine that knows the memory of its GPU, but not the holders of it."""
    parts = {"page_cache": GIB}
    samples = tuple(replace(each, parts=parts, shares={METAL: each.used_bytes // 2}) for each in one.samples)
    return replace(one, samples=samples, gpu_holders=())


@pytest.mark.parametrize("form", LAYOUTS)
def test_memory_of_devices_without_holders_is_drawn_as_on_the_overview(form: str) -> None:
    """The GPU's memory at the ground, other used memory, and the growth of the cause on top of it."""
    one = with_shares(incident())
    found = picture(one, form)
    cut = find_cut(one)
    assert cut is not None
    past, _ = frames(found.drawing)
    boxes = sorted((box for box in found.drawing.boxes if box.kind != "free"), key=lambda box: -box.y)

    assert [box.kind for box in boxes] == ["devices", "anonymous", "level-critical", "page_cache"]
    assert sum(box.size_bytes for box in boxes[:3]) == cut.sample.used_bytes
    assert [name for name, _ in found.held[:3]] == [METAL, "other used", "growth of vllm"]
    for box in boxes:
        assert box.height == pytest.approx(box.size_bytes * past.height / (one.size_bytes or 1), abs=1.0)
    drawn = [area.kind for area in found.drawing.areas if not area.kind.startswith("level-")]
    assert list(dict.fromkeys(drawn))[:2] == ["devices", "anonymous"]
    assert found.notes[0] == "The memory of processes may be in that of the GPU."


@pytest.mark.parametrize("form", LAYOUTS)
def test_growth_is_a_part_of_the_devices_memory_that_rose(form: str) -> None:
    """A model that loads into the Metal working set was drawn over all other memory."""
    one = with_shares(incident())
    least = min(each.used_bytes for each in one.samples) // 2
    one = replace(
        one, samples=tuple(replace(each, shares={METAL: each.used_bytes - least}) for each in one.samples)
    )
    cut = find_cut(one)
    assert cut is not None
    found = picture(one, form)
    boxes = sorted((box for box in found.drawing.boxes if box.depth == 1), key=lambda box: -box.y)

    assert [box.kind for box in boxes] == ["devices", "level-critical"]
    assert sum(box.size_bytes for box in boxes) == cut.sample.shares[METAL]
    assert [*found.held][:4] == [
        (METAL, cut.sample.shares[METAL]),
        (f"other in {METAL}", boxes[0].size_bytes),
        ("growth of vllm", boxes[1].size_bytes),
        ("other used", least),
    ]
    drawn = [area.kind for area in found.drawing.areas if area.kind in ("devices", "level-critical", "anonymous")]
    assert list(dict.fromkeys(drawn)) == ["devices", "level-critical", "anonymous"]


def test_gpu_memory_is_at_the_ground() -> None:
    """In System RAM and in VRAM, with the colour of GPU memory."""
    unified, discrete = picture(play("18 GiB in 10 s")), picture(play("PyTorch cannot allocate"))
    past, _ = frames(unified.drawing)

    lowest = max(unified.drawing.boxes, key=lambda box: box.y + box.height)
    assert lowest.kind == "devices-family"
    assert lowest.y + lowest.height == pytest.approx(past.ground)
    assert {box.kind for box in discrete.drawing.boxes} <= {"devices", "level-critical", "unattributed", "free"}


def test_memory_of_no_process_is_split_by_use() -> None:
    kinds = [box.kind for box in picture(with_parts(incident())).drawing.boxes]

    for before, after in pairwise(("shared_memory", "kernel", "unattributed", "page_cache", "free")):
        assert kinds.index(before) < kinds.index(after)


def test_a_pause_is_a_gap() -> None:
    """No sample for 25 s: the area ends and begins again."""
    one = play("livelock")
    layers = [area for area in picture(one).drawing.areas if area.kind == "anonymous"]
    widths = [max(x for x, _ in area.points) - min(x for x, _ in area.points) for area in layers]
    past, _ = frames(picture(one).drawing)

    assert max(widths) < past.width * 0.95


@pytest.mark.parametrize("name", NAMES)
def test_words_stay_inside_the_picture_and_apart(name: str) -> None:
    """No text is cut at an edge, and the words of marks neither meet nor are crossed by their lines."""
    one = play(name)
    for form, layout in LAYOUTS.items():
        found = draw(one, layout)
        if found is None:
            continue
        for text in found.drawing.texts:
            words = f"{text.plain}{text.strong}{text.behind}"
            width = width_of(text.plain + text.behind, layout.font) + width_of(
                text.strong, layout.font, strong=True
            )
            left = text.x - (width if text.anchor == "end" else 0)
            assert left >= -1, (form, words)
            assert left + width <= layout.width + 1, (form, words)
            assert 0 < text.y <= found.height, (form, words)


@pytest.mark.parametrize("length", [8, 20, 40, 60])
@pytest.mark.parametrize("form", LAYOUTS)
def test_names_in_the_past_are_whole(form: str, length: int) -> None:
    """A layer without room for its name has none, and a mark without room for that of the cause says "cause"."""
    one = incident()
    assert one.cause is not None
    name = "n" * length
    past = one.samples[0].holders.keys() | one.samples[-1].holders.keys()
    renamed = {old: f"{name} ({old.rpartition(' (')[2]}" for old in past}
    samples = tuple(
        replace(each, holders={renamed.get(old, old): held for old, held in each.holders.items()})
        for each in one.samples
    )
    found = picture(replace(one, samples=samples, cause=replace(one.cause, who=name)), form)
    frame, _ = frames(found.drawing)
    beside = [text for text in found.drawing.texts if text.x <= frame.right and text.y <= frame.ground]
    words = [f"{text.plain}{text.strong}{text.behind}" for text in beside]

    assert not [word for word in words if "…" in word]
    marks = [word.split()[0] for word in words if word.endswith((" starts", " grows"))]
    assert marks or form == "narrow"
    assert set(marks) <= {name, "cause"}


def test_layer_of_a_phone_without_room_for_its_name_has_a_number() -> None:
    """The number is inside the layer, and its name beside it in the legend, which is below the past."""
    name = "trainer_of_a_very_long_name"
    base = incident()
    assert base.cause is not None
    key, renamed = f"{base.cause.who} ({base.cause.pid})", f"{name} ({base.cause.pid})"
    samples = tuple(
        replace(each, holders={renamed if one == key else one: held for one, held in each.holders.items()})
        for each in base.samples
    )
    one = replace(base, samples=samples, cause=replace(base.cause, who=name))
    drawn, narrow = picture(one).drawing, picture(one, "narrow")
    past, held = frames(narrow.drawing)
    numbers = [text for text in narrow.drawing.texts if text.strong == "1"]

    assert name not in {text.strong for text in narrow.drawing.texts if text.y < past.ground}
    inside, legend = sorted(numbers, key=lambda text: text.y)
    assert past.y < inside.y < past.ground < legend.y < held.y
    assert legend.behind == f" {name}"
    assert width_of(f"1 {name}", LAYOUTS["narrow"].font, strong=True) <= past.width
    assert not [text for text in drawn.texts if text.strong == "1"]


def test_mark_of_an_alert_is_the_first_that_fired() -> None:
    """Neither one that resolved nor one of another pool."""
    one = play("another process fills the GPU")
    began = one.samples[0].unix
    others = (
        Entry(began + 1, "alert", "alert resolved: gpu0 VRAM critical"),
        Entry(began + 2, "alert", "alert firing: System RAM critical"),
    )
    found = picture(replace(one, timeline=others))

    assert "alert" in [text.plain for text in picture(one).drawing.texts]
    assert "alert" not in [text.plain for text in found.drawing.texts]


def test_axis_of_a_large_machine_has_no_decimals() -> None:
    large = replace(incident(), size_bytes=2016 * GIB + GIB // 8)
    words = [text.plain for text in picture(large).drawing.texts]

    assert "2,016" in words


def test_flags_that_would_cross_words_disturb() -> None:
    low = Flag(10.0, 13.0, 60.0, 0)

    assert Flag(30.0, 33.0, 80.0, 1).disturbs(low)
    assert low.disturbs(Flag(30.0, 33.0, 80.0, 1))
    assert Flag(62.0, 65.0, 99.0, 0).disturbs(low)
    assert not Flag(5.0, 8.0, 70.0, 1).disturbs(low)
    assert not Flag(70.0, 73.0, 99.0, 0).disturbs(low)


def test_name_is_inside_its_area() -> None:
    """A band that rises too fast, or is too thin for a line of text, or has a gap or a kill in it, has no name.

    The last place that is wide enough is chosen.
    """
    level = [(0.0, 100.0, 200.0), (500.0, 110.0, 200.0), (1000.0, 180.0, 201.0)]
    thin = [(0.0, 100.0, 110.0), (1000.0, 100.0, 110.0)]
    steep = [(0.0, 0.0, 100.0), (1000.0, 100.0, 200.0)]
    gap: list[tuple[float, float | None, float]] = [
        (0.0, 100.0, 200.0),
        (500.0, None, 200.0),
        (1000.0, 100.0, 200.0),
    ]

    assert find_place(level, [], [], 14.0, 900.0) == Rectangle(0.0, 180.0, 1000.0, 20.0)
    assert find_place(level, [], [], 14.0, 300.0) == Rectangle(500.0, 180.0, 500.0, 20.0)
    assert find_place(level, [600.0], [], 14.0, 900.0) is None
    assert find_place(level, [600.0], [], 14.0, 400.0) == Rectangle(0.0, 110.0, 500.0, 90.0)
    assert find_place(level, [], [190.0], 14.0, 400.0) == Rectangle(0.0, 110.0, 500.0, 90.0)
    assert find_place(thin, [], [], 14.0, 900.0) is None
    assert find_place(steep, [], [], 14.0, 900.0) is None
    assert find_place(gap, [], [], 14.0, 900.0) is None


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("name", ["1 GiB machine", "earlyoom ends the process with the highest", "kill -9 by hand"])
def test_outline_of_a_killed_process_says_what_came_back(name: str, form: str) -> None:
    """No name of a layer is on these words."""
    one = play(name)

    drawing = picture(one, form).drawing

    (ghost,) = [line for line in drawing.lines if line.kind == "ghost"]
    left, right = min(x for x, _ in ghost.points), max(x for x, _ in ghost.points)
    said = [text for text in drawing.texts if text.strong.startswith("killed") or text.strong.endswith("came back")]
    assert " ".join(text.strong for text in said) == f"killed, {size(one.came_back_bytes or 0)} came back"
    for text in said:
        assert left < text.x <= right - width_of(text.strong, LAYOUTS[form].font, strong=True)
        inside = [other for other in drawing.texts if other not in said and left < other.x <= right]
        assert all(abs(other.y - text.y) >= LAYOUTS[form].font for other in inside)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("name", ["1 GiB machine", "earlyoom ends the process with the highest", "kill -9 by hand"])
def test_outline_of_what_came_back_stands_on_what_is_used(name: str, form: str) -> None:
    """Of 478.8 GiB with 53.5 used, an outline of 418.9 GiB stood from 30 to 449 GiB."""
    one = play(name)
    drawing = picture(one, form).drawing
    (ghost,) = [line for line in drawing.lines if line.kind == "ghost"]
    (used,) = [line for line in drawing.lines if line.kind == "used" and len(line.points) > 2]
    bottom, top = max(y for _, y in ghost.points), min(y for _, y in ghost.points)
    whole = next(box for box in drawing.boxes if box.depth == 0)

    assert one.victim is not None
    assert one.came_back_bytes
    after = [y for x, y in used.points if x > ghost.points[0][0] + 30]
    assert bottom == pytest.approx(min(after), abs=0.6)
    assert (bottom - top) / one.came_back_bytes == pytest.approx(whole.height / whole.size_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("grown", "inside", "beside"),
    [(0.75, ["before"], []), (0.96, [], ["train.py before"]), (0.999, [], []), (0.25, [], [])],
    ids=["high", "low", "less than a line", "larger than the growth, with the name"],
)
def test_bytes_that_did_not_grow_have_a_word(grown: float, inside: list[str], beside: list[str]) -> None:
    """16.7 GiB below the red of a process had none."""
    node = Node("anonymous", 0.0, 1.0, 100 * GIB, "train.py", ("+75.0 GiB",), grown=grown, level="critical")

    tower = place_nodes((node,), Rectangle(0.0, 0.0, 400.0, 200.0), (1.0,), 11.0)

    words_of_rest = [(text.strong, text.behind) for text in tower.drawing.texts if text.strong.startswith("before")]
    assert words_of_rest == [(name, " 25.0 GiB") for name in inside]
    assert [(one.name, one.figure) for one in tower.notes] == [(name, "4.0 GiB") for name in beside]


def test_incident_without_samples_has_no_picture_and_says_why() -> None:
    found = replace(incident(), samples=())

    assert draw(found, LAYOUTS["wide"]) is None
    assert "No picture: the record has no samples." in Reader(Pages().incident(found)).text
    assert "memory of a cgroup" in Reader(Pages().incident(play("unit at its limit"))).text


def test_names_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    cause = Suspect(hostile, 7, hostile, None, GIB, 990.0, GIB)
    samples = tuple(replace(one, holders={f"{hostile} (7)": GIB}) for one in incident().samples)
    found = replace(incident(), cause=cause, samples=samples, timeline=(Entry(1001.0, "mark", hostile),))
    card = build_card(found, THEMES["light"], critical_gb10())

    for page in (Pages().incident(found), Pages().incidents([found]), Pages().incident_picture(card)):
        assert b"<script>alert" not in page
        assert b"&lt;script&gt;" in page


def test_entries_of_other_processes_are_folded() -> None:
    """Starts of the sixteen workers, without the one that was killed."""
    view = build_page(play("sixteen"), [])

    assert {one.entry.kind for one in view.folded} == {"start"}
    assert (len(view.entries), len(view.folded), view.unrelated) == (7, 16, 15)
    text = Reader(Pages().incident(play("sixteen"))).text
    assert "7 of 23 entries; 1 more of this incident, 15 starts and ends of other processes" in text
    assert build_page(incident(), []).folded == ()


def test_at_most_seven_entries_are_shown() -> None:
    """Stalls are folded first, then entries in the middle of a kind. Each entry is either shown or folded."""
    kinds = ["level", "stall", "alert", "stall", *["level"] * 4, "oom_kill"]
    entries = [Entry(float(number), kind, f"{kind} {number}") for number, kind in enumerate(kinds)]
    many = [Entry(float(number), "kill", f"kill {number}") for number in range(9)]

    assert [one.unix for one in incident_page.choose_entries(entries)] == [0, 2, 4, 5, 6, 7, 8]
    assert [one.unix for one in incident_page.choose_entries(entries[:8])] == [0, 1, 2, 4, 5, 6, 7]
    assert [one.unix for one in incident_page.choose_entries(many)] == [0, 1, 2, 5, 6, 7, 8]
    view = build_page(replace(incident(), timeline=tuple(many)), [])
    assert sorted(one.entry.unix for one in (*view.entries, *view.folded)) == list(range(9))
    assert (len(view.entries), view.unrelated) == (7, 0)


def test_kill_and_levels_of_an_incident_are_never_folded_for_others() -> None:
    """The kill itself was, in the middle of a long timeline that showed a missed sample."""
    kinds = ["level", "level", "alert", "end", "oom_kill", "alert", "late", "level", "alert", "end", "driver"]
    entries = [Entry(float(number), kind, f"{kind} {number}") for number, kind in enumerate(kinds)]

    assert [one.unix for one in incident_page.choose_entries(entries)] == [0, 1, 2, 4, 5, 7, 10]
    assert [one.unix for one in incident_page.choose_entries(entries[:-1])] == [0, 1, 2, 4, 5, 7, 8]


def test_entry_is_its_first_clause() -> None:
    text = "System RAM: high → critical (95.2% used; full in about 15 s; 5.8 GiB of 121.7 GiB available)"

    assert incident_page.first_clause(text) == "System RAM: high → critical (95.2% used)"
    assert incident_page.first_clause("alert firing: x, now also: a; b") == "alert firing: x, now also: a"
    assert incident_page.first_clause("plain") == "plain"


def test_evidence_is_as_long_as_the_timeline() -> None:
    """Three sentences at least, more while they and the line "5 more" are no higher than the entries."""
    sentences = ["short"] * 9

    assert incident_page.count_evidence(sentences, 5) == 4
    assert incident_page.count_evidence(sentences, 9) == 9
    assert incident_page.count_evidence(sentences, 1) == 3
    assert incident_page.count_evidence(["x" * 200] * 9, 9) == 3
    assert incident_page.count_evidence(sentences[:2], 9) == 2


def test_neighbours_are_linked() -> None:
    heads = [replace(incident(), id=name, began=began) for name, began in (("c", 3.0), ("b", 2.0), ("a", 1.0))]
    views = {one.id: build_page(one, heads) for one in heads}

    found = {name: (view.earlier and view.earlier.id, view.later and view.later.id) for name, view in views.items()}
    assert found == {"c": ("b", None), "b": ("a", "c"), "a": (None, "b")}
    assert build_page(replace(incident(), id="gone"), heads).earlier is None
    assert b'href="../incidents/a" rel="prev"' in Pages().incident(heads[1], False, heads)


@pytest.mark.parametrize("count", [0, 1, 200])
def test_list_has_a_row_for_each_incident(count: int) -> None:
    found = [replace(incident(), id=f"inc-{number}") for number in range(count)]
    page = Pages().incidents(found)

    assert page.count(b'href="incidents/inc-') == count
    assert (b"None." in page) == (not count)
    assert Reader(page).text.count(write_title(incident())) == count


def test_row_names_its_figures() -> None:
    """A duration without a word is that of what? And "Kill System RAM" is an order."""
    calm = replace(incident(), kind="kill", began=1_800_000_000.0, ended=1_800_000_078.0)
    pages = [Pages().incidents([one]) for one in (calm, replace(calm, ended=None))]
    texts = [Reader(page).text for page in pages]

    assert b"<span>Began</span><span>Critical for</span><span>Cause</span>" in pages[0]
    assert "critical for 1 min 18 s" in texts[0]
    assert "still going on" in texts[1]
    quiet = replace(calm, ended=None, quiet_until=1_800_000_138.0)
    for text in (Reader(Pages().incidents([quiet])).text, Reader(Pages().incident(quiet)).text):
        assert f"over, being recorded until {clock(1_800_000_138.0)[:8]}" in text
        assert "still going on" not in text
    assert "process killed · System RAM" in Reader(Pages().incident(calm)).text


def test_row_says_what_came_of_it() -> None:
    killed, calm, program = (build_row(play(name)) for name in ("1 GiB machine", "undecided: full", "PyTorch"))

    assert (killed.cause, killed.came_of_it) == ("hog 4242", "killed hog, 870.4 MiB; 825.4 MiB came back")
    assert killed.used == pytest.approx(1 - 75.7 / 1024, abs=0.001)
    assert (calm.cause, calm.came_of_it, calm.level) == (None, "", "critical")
    assert program.level == "high"


def test_picture_file_has_the_title_and_its_words_fit() -> None:
    card = build_card(incident(), THEMES["dark"], critical_gb10())
    page = Pages().incident_picture(card)

    assert card.title == write_title(incident())
    assert card.title.encode() in page
    assert b"class=" not in page
    assert b"style=" not in page
    assert card.picture is not None
    assert card.picture.height <= card.height


def test_long_words_of_the_picture_are_wrapped_and_cut() -> None:
    lines = wrap(f"It grew {'x' * 300} more", 200.0, 11.0)

    assert lines[0] == "It grew"
    assert lines[1].endswith("…")
    assert all(width_of(line, 11.0) <= 200.0 for line in lines)


def test_widths_of_layouts() -> None:
    """The composition stands beside the past, or below it at the same height."""
    for layout in (*LAYOUTS.values(), Layout(1131.0, 430.0, 13.75, True)):
        past = layout.place_past(40.0)
        held = layout.place_held(past, 40.0)
        assert held.height == past.height
        assert held.right + layout.gutter <= layout.width + 1
        assert held.x > past.right or held.y > past.ground
