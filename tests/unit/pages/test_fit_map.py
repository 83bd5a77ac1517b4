"""The plan of /fit in the landscape: to scale, on what is used, and what is too much above the pool."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace
from starlette.requests import Request

from memwatch.core.model import Absent, Device, known_or
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.huggingface import parse_config
from memwatch.planning.named_machines import read_machine
from memwatch.planning.request import PARAMETERS, Use, write_request
from memwatch.reporting.render.drawing import Box, width_of
from memwatch.reporting.render.tower import MAX_CELLS
from memwatch_web.pages.fit_page import FitForm, build_form, build_headline, fit, group_verdicts
from memwatch_web.pages.landscape_page import FONT, Now, PageLandscape
from memwatch_web.pages.renderer import Pages, PageServices
from scripts.published_models import MODELS
from support.html_reader import Reader
from support.launch_lines import machine
from support.sample_snapshots import critical_gb10
from support.virtual_loop import run_virtual

DEMOS = ("dgx-spark", "gh200", "h100x8-mig", "jetson-orin", "macbook", "rtx4090", "strix-halo")
NAMES = ("Llama 3.2 1B", "Llama 3 8B", "Llama 3 70B")
CONFIGS = {one.name: one.config for one in MODELS}
GIB = 1 << 30


def answer(name: str, snapshot: Snapshot, use: Use | None = None) -> tuple[FitForm, PageLandscape]:
    model = describe_config(parse_config(CONFIGS[name], ""))
    form = build_form({"model": name} | write_request(model, use or Use()), snapshot)
    assert form.landscape is not None
    return form, form.landscape


def list_views(found: PageLandscape) -> Iterator[tuple[str, Now]]:
    """Yield both drawings of each pool with their form."""
    for tower in found.towers:
        assert tower.narrow is not None
        yield "wide", tower.now
        yield "narrow cell" if found.cells else "narrow", tower.narrow


def planned(view: Now) -> list[Box]:
    return [one for one in view.drawing.boxes if one.kind.startswith("planned") and not one.depth]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("demo", DEMOS)
def test_lengths_are_bytes_at_one_scale_and_nothing_is_cut(demo: str, name: str) -> None:
    """Within a pixel, in both forms. No box and no word is outside of the drawing, and the plan has its name."""
    _, found = answer(name, machine(demo))
    scales = []

    for form, view in list_views(found):
        drawing = view.drawing
        scale = max(one.height / one.size_bytes for one in drawing.boxes if one.size_bytes > GIB / 4)
        for one in drawing.boxes:
            assert one.height == pytest.approx(one.size_bytes * scale, abs=1)
            assert one.x >= -0.01
            assert one.y >= -0.01
            assert one.x + one.width <= view.width + 0.01
            assert one.y + one.height <= view.height + 0.01
        for text in drawing.texts:
            wide = width_of(text.plain + text.behind, FONT) + width_of(text.strong, FONT, strong=True)
            assert 0 <= text.y <= view.height
            assert text.x + (0 if text.anchor == "end" else wide) <= view.width + 1, text
        if planned(view):
            shown = [f"{text.strong}{text.behind}{text.plain}" for text in drawing.texts]
            names = (name, "the model", "model") if form == "narrow cell" else (name,)
            assert any(one in text for one in names for text in (*shown, *view.left_out)), (form, shown)
        scales.append((scale, form))
    assert scales


def test_plan_stands_on_what_is_used() -> None:
    """Its parts are to its right and add up to it; what is left is above it."""
    snapshot = machine("dgx-spark")
    form, found = answer("Llama 3 8B", snapshot)
    (tower,) = found.towers
    boxes = {one.title.rpartition(": ")[0]: one for one in tower.now.drawing.boxes}
    plan, pool = boxes["Llama 3 8B"], snapshot.pools[0]
    parts = [one for one in tower.now.drawing.boxes if one.depth == 1 and plan.y - 1 < one.y < plan.y + plan.height]
    assert form.answered is not None

    assert plan.size_bytes == form.answered.need.bytes == sum(one.size_bytes for one in parts)
    assert {one.kind for one in parts} == {"engine-weights", "engine-kv_cache", "planned-part"}
    assert boxes["left"].y + boxes["left"].height == pytest.approx(plan.y, abs=1)
    assert boxes["left"].size_bytes == form.answered.fit.verdicts[0].spare_bytes
    ground = max(one.y + one.height for one in tower.now.drawing.boxes)
    assert isinstance(pool.used_bytes, int)
    assert ground - plan.y - plan.height == pytest.approx(pool.used_bytes * plan.height / plan.size_bytes, abs=1)
    assert form.sentence == "Llama 3 8B: 23.4 GiB in System RAM. Memory as it is now: System RAM."
    frame, border = (
        {x for line in tower.now.drawing.lines if line.kind == kind for x, _ in line.points}
        for kind in ("frame", "planned")
    )
    assert border == frame


@pytest.mark.parametrize(("context", "is_cut"), [(8192, False), (131_072, True)])
def test_excess_stands_above_the_pool_with_its_size(context: int, is_cut: bool) -> None:
    """At the scale of the pool, up to its size: what is more is cut, and marked. The axis is the pool's."""
    form, found = answer("Llama 3 70B", machine("dgx-spark"), Use(context=context, batch_size=8 if is_cut else 1))
    (tower,) = found.towers
    assert form.answered is not None
    short = form.answered.fit.verdicts[0].spare_bytes
    assert isinstance(short, int)

    for view in (tower.now, tower.narrow):
        assert view is not None
        (over,) = (one for one in view.drawing.boxes if one.kind == "level-critical")
        (plan,) = planned(view)
        top = min(y for line in view.drawing.lines if line.kind == "frame" for _, y in line.points)
        (border,) = (line for line in view.drawing.lines if line.kind == "planned")
        words = " ".join(text.strong for text in view.drawing.texts)
        assert over.size_bytes == min(-short, tower.map.whole.size_bytes)
        assert over.y + over.height == pytest.approx(top, abs=0.1)
        assert over.height / over.size_bytes == pytest.approx(plan.height / plan.size_bytes, rel=1e-3)
        assert min(y for _, y in border.points) == pytest.approx(over.y)
        assert size(-short) in words
        assert ("// " in words) is is_cut
        assert (-short > tower.map.whole.size_bytes) is is_cut
    assert plan.size_bytes - short == form.answered.need.bytes
    assert tower.axis[-1].y == pytest.approx(top + 4.0, abs=0.1)
    assert f"{size(-short)} too much. " in form.sentence


def test_name_of_a_low_plan_stands_in_its_box() -> None:
    """In place of its parts, for which there is then no column."""
    _, found = answer("Llama 3 8B", machine("gh200"))
    (tower,) = (one for one in found.towers if planned(one.now))
    (plan,) = planned(tower.now)
    (text,) = (one for one in tower.now.drawing.texts if one.strong == "Llama 3 8B")

    assert plan.y <= text.y <= plan.y + plan.height
    assert text.x < plan.x + plan.width


def test_split_plan_stands_in_each_of_its_gpus() -> None:
    form, found = answer("Llama 3 70B", read_machine("8x h100 + 512GiB"))
    plans = [one for tower in found.towers for one in planned(tower.now)]
    assert form.answered is not None
    split = form.answered.fit.split

    assert split is not None
    assert [one.size_bytes for one in plans] == [split.bytes] * 2
    assert [tower.title for tower in found.towers if planned(tower.now)] == ["memory of gpu0", "memory of gpu1"]
    assert form.headline == "Llama 3 70B fits on 2 GPUs: gpu0, gpu1"
    assert [len(one.devices) for one in group_verdicts(form.answered.fit)] == [8, 1]


def test_planned_gpus_are_drawn_before_others() -> None:
    """Of more GPUs than are drawn."""
    snapshot = read_machine("20x h100 + 64GiB")
    busy = tuple(one if one.id in ("gpu18", "gpu19") else replace_headroom(one, 0) for one in snapshot.devices)
    _, found = answer("Llama 3 70B", replace(snapshot, devices=busy))

    assert len(found.towers) == MAX_CELLS
    assert [tower.title for tower in found.towers if planned(tower.now)] == ["memory of gpu18", "memory of gpu19"]


def replace_headroom(device: Device, size_bytes: int) -> Device:
    return replace(device, headroom_bytes=size_bytes, headroom_after_reclaim_bytes=size_bytes)


def test_long_name_in_a_cell_is_not_cut() -> None:
    """A repository without its owner, or no name: the headline above has it."""
    for name, shown in (("Qwen/Llama-70B", "Llama-70B"), ("A-very-long-name-of-a-model-70B", "the model")):
        model = describe_config(parse_config(CONFIGS["Llama 3 70B"], ""))
        form = build_form({"model": name} | write_request(model, Use()), read_machine("8x h100 + 512GiB"))
        assert form.landscape is not None
        assert [text.strong for text in form.landscape.towers[0].now.drawing.texts if text.strong == shown]


def test_plan_of_many_gpus_that_is_in_system_ram_stands_there() -> None:
    form, found = answer("Llama 3 70B", read_machine("8x rtx3060 + 512GiB"))
    (band,) = found.bands
    assert form.answered is not None

    assert form.answered.fit.best == "cpu"
    assert build_headline("X", form.answered.fit) == "X fits in System RAM, on no GPU"
    assert not [one for tower in found.towers for one in planned(tower.now)]
    for view in band.widths:
        (plan,) = planned(view)
        assert plan.size_bytes == form.answered.fit.verdicts[-1].need_bytes
        assert [line.kind for line in view.drawing.lines] == ["frame", "planned"]
    assert f"Llama 3 70B {size(plan.size_bytes)}" in band.planned


def test_moved_cache_stands_in_system_ram_beside_the_gpu() -> None:
    form, found = answer("Llama 3 8B", read_machine("rtx4090 + 64GiB"), Use(offload_kv=True, context=65_536))
    assert form.answered is not None
    moved = form.answered.need.demand.ram_bytes
    boxes = {tower.title: planned(tower.now) for tower in found.towers}

    assert form.answered.fit.best == "gpu0"
    assert [one.size_bytes for one in boxes["System RAM"]] == [moved]
    assert len(boxes["memory of gpu0"]) == 1


def test_reserve_stays_below_the_plan() -> None:
    _, found = answer("Llama 3.2 1B", read_machine("rtx4090"), Use(reserve_bytes=8 * GIB))
    (tower,) = found.towers
    (gap,) = (one for one in tower.now.drawing.boxes if one.kind == "kept")

    assert (gap.size_bytes, gap.title) == (8 * GIB, "reserve: 8.0 GiB")


def test_carve_out_that_takes_next_to_nothing_of_a_plan_is_not_counted_apart() -> None:
    """Strix Halo: 512 MiB, of which a few are free."""
    form, found = answer("Llama 3 8B", machine("strix-halo"))
    assert form.answered is not None

    assert [planned(one.loupe) for one in found.slivers] == [[]]
    for _, view in list_views(found):
        assert [one.size_bytes for one in planned(view)] == [form.answered.fit.verdicts[0].need_bytes]


def test_narrow_tower_lists_what_has_no_words_in_it() -> None:
    """Beside the wide one there is room for all."""
    _, found = answer("Llama 3 8B", machine("dgx-spark"))
    (tower,) = found.towers
    assert tower.narrow is not None
    inside = {text.plain.strip() or text.strong for text in tower.narrow.drawing.texts}

    assert tower.now.left_out == ()
    assert any(one.startswith("kernel ") for one in tower.narrow.left_out)
    assert not {one.rsplit(" ", 2)[0] for one in tower.narrow.left_out if not one.startswith("KV")} & inside


def test_size_has_no_parts() -> None:
    form = build_form({"bytes": "8GiB"}, read_machine("rtx4090"))
    assert form.landscape is not None
    (tower,) = form.landscape.towers

    assert [one.kind for one in tower.now.drawing.boxes if one.size_bytes == 8 * GIB] == ["planned"]


@pytest.mark.parametrize("demo", DEMOS)
@pytest.mark.parametrize("query", [{}, {"bytes": "much"}])
def test_machine_without_a_plan_is_drawn_as_it_is(demo: str, query: dict[str, str]) -> None:
    form = build_form(query, machine(demo))
    assert form.landscape is not None

    assert form.sentence.startswith("Memory as it is now: ")
    assert form.landscape.towers
    assert not [one for _, view in list_views(form.landscape) for one in planned(view)]


def test_placeholder_is_the_default_or_says_that_it_is_an_example() -> None:
    """A reserve of "4 GiB" read as in force, beside defaults in the same grey."""
    snapshot = machine("rtx4090")
    page = Reader(Pages().fit(snapshot, build_form({}, snapshot)))
    found = {one.get("name"): one.get("placeholder") for _, one in page.tags if one.get("placeholder")}

    words = {"gpus": "fewest", "lora": "all weights", "reserve": "0 B", "model": "This model"}
    for name in PARAMETERS.keys() & found.keys():
        default = FitForm({}).plain(name)
        is_example = str(found[name]).startswith("e.g. ")
        assert found[name] == words.get(name, str(default)) or (is_example and default is None), name
    assert {"bytes", "context", "hidden_size", *words} <= found.keys()


@pytest.mark.parametrize(("demo", "is_shown"), [("dgx-spark", False), ("macbook", False), ("rtx4090", True)])
def test_moves_to_ram_are_offered_where_it_is_another_memory(demo: str, is_shown: bool) -> None:
    """On unified memory they free nothing. A query that has them keeps them."""
    snapshot = machine(demo)
    pages, model = Pages(), describe_config(parse_config(CONFIGS["Llama 3 8B"], ""))
    given = write_request(model, Use()) | {"cpu_layers": "2", "offload_kv": "true"}

    def names(fields: dict[str, str]) -> set[str | None]:
        tags = Reader(pages.fit(snapshot, build_form(fields, snapshot))).tags
        return {one.get("name") for _, one in tags} & {"cpu_layers", "offload_kv"}

    assert bool(names({})) == is_shown
    assert names(given) == {"cpu_layers", "offload_kv"}


def test_growing_process_has_the_colour_of_its_holder() -> None:
    """The page has no word for growth: a part in the colour of a level read as a kind of holder."""
    now = critical_gb10()
    process = max(now.processes, key=lambda one: known_or(one.footprint_low_bytes, 0))
    tracker, size = GrowthTracker(), known_or(process.footprint_low_bytes, 0)
    for step in range(7, -1, -1):
        grown = replace(process, footprint_bytes=size - step * GIB, footprint_range=None)
        tracker.add(now.monotonic - 5.0 * step, [grown], LeakRules())
    pages = Pages(growth=tracker)
    services = SimpleNamespace(pages=pages, current=lambda: now)
    request = Request({"type": "http", "method": "GET", "query_string": b"", "headers": []})

    page = bytes(run_virtual(fit(cast("PageServices", services), request)).body).decode()

    assert pages.growths(now)
    assert '<rect class="b-devices"' in page
    assert 'class="b-level-' not in page


def test_model_with_a_hostile_name_is_printable() -> None:
    form = build_form(
        {"model": "a\x1b[31m\u202eb"} | write_request(describe_config(parse_config(CONFIGS[NAMES[0]], "")), Use()),
        read_machine("rtx4090 + 64GiB"),
    )
    assert form.landscape is not None
    texts = [text.strong for tower in form.landscape.towers for text in tower.now.drawing.texts]

    assert not any("\x1b" in one or "\u202e" in one for one in (*texts, form.sentence))


def test_reason_of_pools_without_figures_is_said_once() -> None:
    """With the names of the pools, below them."""
    snapshot = machine("rtx4090")
    stale = tuple(
        replace(one, used_bytes=Absent.STALE, available_bytes=Absent.STALE, contents=(), free_bytes=Absent.STALE)
        for one in snapshot.pools
    )
    snapshot = replace(snapshot, pools=stale)
    text = Reader(Pages().fit(snapshot, build_form({"bytes": "20GiB"}, snapshot))).text
    names = ", ".join(one.label for one in stale)

    assert text.count(f"{names} — stale: ") == 1
    assert " of 0 B" not in text
