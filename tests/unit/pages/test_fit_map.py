"""The map of /fit: bytes to scale, the plan on what is used, and what is too much above the frame."""

from __future__ import annotations

import re

import pytest

from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.answer import FitAnswer, answer_model, answer_size
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.huggingface import parse_config
from memwatch.planning.named_machines import read_machine
from memwatch.planning.need import compute_need_here
from memwatch.planning.request import Use
from memwatch.reporting.render.drawing import Drawing, width_of
from memwatch_web.pages.fit_map import FORMS, FitMap, build_plan_maps
from memwatch_web.pages.fit_page import build_headline, group_verdicts
from scripts.published_models import MODELS
from support.launch_lines import machine

DEMOS = ("dgx-spark", "gh200", "h100x8-mig", "jetson-orin", "macbook", "rtx4090", "strix-halo")
NAMES = ("Llama 3.2 1B", "Llama 3 8B", "Llama 3 70B")
CONFIGS = {one.name: one.config for one in MODELS}
GIB = 1 << 30


def answer(name: str, snapshot: Snapshot, use: Use | None = None) -> tuple[FitAnswer, tuple[FitMap, ...]]:
    use = use or Use()
    model = describe_config(parse_config(CONFIGS[name], ""))
    found = answer_model(model, use, snapshot)
    gpus = len(found.fit.split.devices) if found.fit.split else 1
    split = compute_need_here(model, use, snapshot, gpus).parts if gpus > 1 else {}
    return found, build_plan_maps(found, snapshot, name, use.reserve_bytes, split)


def scales_of(drawing: Drawing) -> set[float]:
    return {round(one.height / one.size_bytes * GIB, 2) for one in drawing.boxes if one.size_bytes > GIB}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("demo", DEMOS)
def test_lengths_are_bytes_at_one_scale_and_nothing_is_cut(demo: str, name: str) -> None:
    """Within a pixel, in both forms. No box and no word is outside of the drawing."""
    _, views = answer(name, machine(demo))

    for view in views:
        form, drawing = view.form, view.drawing
        scale = max(one.height / one.size_bytes for one in drawing.boxes if one.size_bytes > GIB)
        for one in drawing.boxes:
            assert one.height == pytest.approx(one.size_bytes * scale, abs=1)
            assert one.x >= -0.01
            assert one.y >= -0.01
            assert one.x + one.width <= form.width + 0.01
            assert one.y + one.height <= form.height + 0.01
        for text in drawing.texts:
            wide = width_of(text.plain + text.behind, form.font) + width_of(text.strong, form.font, strong=True)
            assert 0 <= text.y <= form.height
            assert text.x + wide <= form.width + 1, text


def test_plan_stands_on_what_is_used() -> None:
    """Its parts are to its right and add up to it; what is left is above it."""
    snapshot = machine("dgx-spark")
    found, (view, _) = answer("Llama 3 8B", snapshot)
    boxes = {one.title.rpartition(": ")[0]: one for one in view.drawing.boxes}
    plan = boxes["Llama 3 8B"]
    parts = [one for one in view.drawing.boxes if one.depth == 1 and plan.y - 1 < one.y < plan.y + plan.height]
    pool = snapshot.pools[0]

    assert plan.size_bytes == found.need.bytes == sum(one.size_bytes for one in parts)
    assert {one.kind for one in parts} == {"engine-weights", "engine-kv_cache", "planned-part"}
    assert boxes["left"].y + boxes["left"].height == pytest.approx(plan.y, abs=1)
    assert boxes["left"].size_bytes == found.fit.verdicts[0].spare_bytes
    assert isinstance(pool.used_bytes, int)
    below = (plan.y + plan.height - view.drawing.boxes[0].y - view.drawing.boxes[0].height) * -1
    assert below == pytest.approx(pool.used_bytes * plan.height / plan.size_bytes, abs=1)
    assert view.sentence == "Llama 3 8B: 23.4 GiB in System RAM. Memory as it is now: System RAM."


def test_excess_stands_above_the_frame_with_its_size() -> None:
    found, (view, _) = answer("Llama 3 70B", machine("dgx-spark"))
    (over,) = (one for one in view.drawing.boxes if one.kind == "level-critical")
    frame = next(one for one in view.drawing.lines if one.kind == "frame")
    top = min(y for _, y in frame.points)
    short = found.fit.verdicts[0].spare_bytes
    assert isinstance(short, int)

    assert over.size_bytes == -short
    assert over.y + over.height == pytest.approx(top, abs=0.1)
    assert any(text.strong.endswith(" GiB more than fits now") for text in view.drawing.texts)
    assert view.sentence.startswith(f"Llama 3 70B: 141.6 GiB in System RAM, {size(-short)} too much. ")


def test_split_plan_stands_in_each_of_its_gpus() -> None:
    found, (view, _) = answer("Llama 3 70B", read_machine("8x h100 + 512GiB"))
    plans = [one for one in view.drawing.boxes if one.kind.startswith("planned") and one.depth == 0]

    assert found.fit.split is not None
    assert [one.size_bytes for one in plans] == [found.fit.split.bytes] * 2
    assert build_headline("Llama 3 70B", found.fit) == "Llama 3 70B fits on 2 GPUs: gpu0, gpu1"
    assert [len(one.devices) for one in group_verdicts(found.fit)] == [8, 1]


def test_plan_of_many_gpus_that_is_in_system_ram_shows_that_alone() -> None:
    found, (view, _) = answer("Llama 3 70B", read_machine("8x rtx3060 + 512GiB"))

    assert found.fit.best == "cpu"
    assert build_headline("X", found.fit) == "X fits in System RAM, on no GPU"
    assert [text.strong for text in view.drawing.texts].count("System RAM") == 1
    assert not any("gpu" in text.strong for text in view.drawing.texts)


def test_moved_cache_stands_in_system_ram_beside_the_gpu() -> None:
    found, (view, _) = answer("Llama 3 8B", read_machine("rtx4090 + 64GiB"), Use(offload_kv=True, context=65_536))
    moved = next(one for one in view.drawing.boxes if one.size_bytes == found.need.demand.ram_bytes)

    assert found.fit.best == "gpu0"
    assert moved.kind.startswith("planned")


def test_reserve_stays_below_the_plan() -> None:
    _, (view, _) = answer("Llama 3.2 1B", read_machine("rtx4090"), Use(reserve_bytes=8 * GIB))
    (gap,) = (one for one in view.drawing.boxes if one.kind == "kept")

    assert (gap.size_bytes, gap.title) == (8 * GIB, "reserve: 8.0 GiB")


def test_carve_out_that_takes_next_to_nothing_of_a_plan_is_not_counted_apart() -> None:
    """Strix Halo: 512 MiB, of which a few are free."""
    found, views = answer("Llama 3 8B", machine("strix-halo"))

    for view in views:
        plans = [one.size_bytes for one in view.drawing.boxes if one.kind.startswith("planned") and not one.depth]
        assert plans == [found.fit.verdicts[0].need_bytes]


def test_narrow_map_lists_what_has_no_words_in_it() -> None:
    """Beside the wide one there is room for all."""
    _, (wide, narrow) = answer("Llama 3 8B", machine("dgx-spark"))
    inside = {text.plain.strip() or text.strong for text in narrow.drawing.texts}

    assert wide.left_out == ()
    assert any(one.startswith("kernel ") for one in narrow.left_out)
    assert all(re.search(r" [KMG]iB$", one) for one in narrow.left_out)
    assert not {one.rsplit(" ", 2)[0] for one in narrow.left_out if not one.startswith("KV")} & inside


def test_size_has_no_parts() -> None:
    snapshot = read_machine("rtx4090")
    (view, _) = build_plan_maps(answer_size(8 * GIB, "8GiB", snapshot), snapshot, "8GiB")

    assert [one.kind for one in view.drawing.boxes if one.size_bytes == 8 * GIB] == ["planned"]


@pytest.mark.parametrize("demo", DEMOS)
def test_machine_without_a_plan_is_drawn_as_it_is(demo: str) -> None:
    views = build_plan_maps(None, machine(demo), "")

    assert [view.form for view in views] == list(FORMS)
    for view in views:
        assert view.sentence.startswith("Memory as it is now: ")
        assert view.drawing.boxes
        assert len(scales_of(view.drawing)) <= 2  # of rounding
        assert not any(one.kind.startswith("planned") for one in view.drawing.boxes)
