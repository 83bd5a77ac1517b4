"""The landscape of a page, without a browser: scale, ratios, odd machines, pasts and growth."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import islice, pairwise
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.model import Absent, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render.actions import list_actions
from memwatch.reporting.render.containment import Growing, build_nodes
from memwatch.reporting.render.drawing import DAY_SECONDS, TIME_FORMS, Rectangle, TimeAxis, width_of
from memwatch.reporting.render.memory_map import build_limit_maps, build_maps, held_in
from memwatch.reporting.render.past import Layer, Past, build_layers, find_sources, split_now
from memwatch.reporting.render.summary import find_worst
from memwatch.reporting.render.tower import Block, write_gutter
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.series import AllSeries, collect_figures
from memwatch_monitor.history.tiers import TIER_SPECS, History
from memwatch_web.pages.charts import Annotation
from memwatch_web.pages.history_chart import (
    MAX_AHEAD_RATIO,
    WIDTHS,
    Edges,
    EventFlag,
    EventMark,
    place_flags,
    place_times,
)
from memwatch_web.pages.history_data import RANGES, HistoryInput, TimeWindow
from memwatch_web.pages.landscape_page import CELL, FONT, LOW_CELL, TOWER, PageLandscape, Scene, draw_page
from memwatch_web.pages.landscape_past import (
    DrawnPast,
    Growth,
    PoolPast,
    build_live_pasts,
    choose_live_window,
    find_ghosts,
    find_growths,
    find_run,
    place_growths,
    query_past,
)
from memwatch_web.pages.overview import Ghost
from memwatch_web.pages.past_picture import NARROW_PAST, NEAR, WIDE_PAST, Word, thin_out, write_times
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import describe_cells_then, describe_then
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.demo_frames import moments_of
from support.html_reader import Reader
from support.sample_parts import GIB, vram
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, discrete_gpu, mig_server


def drawn(snapshot: Snapshot, scene: Scene = Scene()) -> PageLandscape:  # noqa: B008  frozen
    return draw_page((*build_maps(snapshot, {}), *build_limit_maps(snapshot, {})), scene)


def with_gpus(count: int, size: int = 80 * GIB) -> Snapshot:
    cards = tuple(vram(f"gpu{n}", f"VRAM {n}", size=size, used=size // 2, reserved=0) for n in range(count))
    base = discrete_gpu()
    return replace(base, pools=(base.pools[0], *cards), shares=(), devices=(), pressure=())


@pytest.mark.parametrize(
    ("count", "shown", "more", "height"),
    [(3, 3, 0, CELL), (8, 8, 0, CELL), (16, 16, 0, LOW_CELL), (20, 16, 4, LOW_CELL)],
)
def test_many_gpus_are_cells_at_one_scale(count: int, shown: int, more: int, height: float) -> None:
    """More than a row of them is half as high. System RAM lies below."""
    found = drawn(with_gpus(count))

    assert (len(found.towers), found.more, found.cells) == (shown, more, True)
    assert {tower.height for tower in found.towers} == {height}
    assert len(found.bands) == 1


def test_system_ram_beside_a_small_gpu_states_a_whole_part_of_its_scale() -> None:
    """512 GiB beside 24 GiB: at one scale the GPU would be 17 pixels high."""
    large = Pool(
        "ram", PoolKind.SYSTEM_RAM, "System RAM", 512 * GIB, 100 * GIB, 412 * GIB, "test", Quality.MEASURED
    )
    card = vram("gpu0", "VRAM", size=24 * GIB, used=12 * GIB, reserved=0)
    found = drawn(replace(calm_workstation(), pools=(large, card), shares=(), pressure=()))

    beside, gpu = found.towers

    assert (beside.ratio, gpu.ratio) == ("drawn at 1/6 of the GPU’s scale", "")
    assert gpu.height / 24 == pytest.approx(6 * beside.height / 512)
    assert max(beside.height, gpu.height) <= TOWER


def test_low_pool_is_a_sliver_to_scale_with_a_loupe_of_a_whole_factor() -> None:
    carve_out = Pool(
        "gpu0", PoolKind.CARVEOUT, "GPU carve-out", 512 << 20, 455 << 20, 57 << 20, "", Quality.MEASURED
    )
    calm = calm_workstation()
    found = drawn(replace(calm, pools=(*calm.pools, carve_out)))

    (sliver,) = found.slivers
    (tower,) = found.towers

    assert sliver.height / (512 << 20) == pytest.approx(tower.height / calm.pools[0].size_bytes)
    assert sliver.loupe.height - 2.0 == pytest.approx(sliver.factor * sliver.height)
    assert sliver.factor == 1 << (sliver.factor.bit_length() - 1)


def test_odd_machines_are_drawn() -> None:
    """No pools, a pool without a size, 1 PiB, and 64 MIG instances."""
    calm, mig = calm_workstation(), mig_server()
    empty = Pool("gpu0", PoolKind.VRAM, "VRAM", 0, 0, 0, "test", Quality.MEASURED)
    huge = Pool("ram", PoolKind.SYSTEM_RAM, "RAM", 1 << 50, 1 << 40, (1 << 50) - (1 << 40), "", Quality.MEASURED)
    one = next(share for share in mig.shares if share.kind is ShareKind.MIG_INSTANCE)
    slices = tuple(
        replace(one, id=f"mig{n}", label=f"MIG {n}", limit_bytes=GIB, used_bytes=GIB // 2) for n in range(64)
    )
    others = tuple(share for share in mig.shares if share.kind is not ShareKind.MIG_INSTANCE)

    assert drawn(replace(calm, pools=(), shares=(), pressure=())).towers == ()
    assert len(drawn(replace(calm, pools=(*calm.pools, empty))).towers) == 1
    assert len(drawn(replace(calm, pools=(huge,), shares=(), pressure=())).towers) == 1
    assert drawn(replace(mig, shares=(*others, *slices), devices=(), pressure=())).towers


def without_figures(snapshot: Snapshot) -> Snapshot:
    gone = Absent.STALE
    pools = (
        replace(pool, used_bytes=gone, available_bytes=gone, unattributed_bytes=gone, contents=())
        for pool in snapshot.pools
    )
    return replace(snapshot, pools=tuple(pools), shares=())


@pytest.mark.parametrize(
    "snapshot", [critical_gb10(), discrete_gpu(), with_gpus(8)], ids=("one pool", "several pools", "eight GPUs")
)
def test_pool_without_figures_is_hatched_with_the_reason(snapshot: Snapshot) -> None:
    """Never an empty tower, which looks like free memory."""
    found = drawn(without_figures(snapshot))
    pictures = [one.now for one in found.towers] + [one for band in found.bands for one in band.widths]
    narrow = [one.narrow for one in found.towers if one.narrow]

    assert len(pictures) >= len(snapshot.pools)
    for now in (*pictures, *narrow):
        (box,) = now.drawing.boxes
        said = {f"{text.plain}{text.strong}" for text in now.drawing.texts}
        assert (box.kind, box.title.partition(": ")[2]) == ("unknown", "no figures, stale")
        assert {"no figures"} <= said
        assert "held by" not in said
    assert "stale" in {text.plain for one in pictures for text in one.drawing.texts}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_box_has_its_bytes_or_is_on_a_loupe(name: str) -> None:
    found = drawn(SAMPLES[name]())
    for tower in found.towers:
        scale = tower.height / tower.map.whole.size_bytes
        for now in filter(None, (tower.now, tower.narrow)):
            assert all(abs(box.height - box.size_bytes * scale) < 1 for box in now.drawing.boxes)


def test_growth_is_on_top_of_its_family_with_what_stopping_it_frees() -> None:
    snapshot = critical_gb10()
    grower = snapshot.processes[0]
    growing = Growing("ram", grower.pid, "critical", 5 * GIB, 60.0)
    actions = list_actions(snapshot, find_worst(snapshot), [grower])
    (tower,) = drawn(snapshot, Scene(growing={"ram": growing}, actions=actions)).towers

    grown = next(box for box in tower.now.drawing.boxes if box.kind == "level-critical")
    held = [box for box in tower.now.drawing.boxes if box.link == f"processes/{grower.pid}"]
    largest = max(held, key=lambda box: box.size_bytes)

    assert grown.height == pytest.approx(tower.height * 5 * GIB / snapshot.pools[0].size_bytes, abs=0.1)
    assert grown.y == pytest.approx(largest.y)
    assert [word.text for word in tower.now.links] == [f"stop {grower.title}"]


def test_actions_are_brackets_over_the_bytes_that_they_free() -> None:
    """Stopping a model server frees both places that it holds; its option frees part of its reserved cache."""
    frames = read_frames(path_of("dgx-spark"))
    snapshot = next(one for one in frames if one.engines and one.pressure and one.pressure[0].ratio > 0.97)
    actions = list_actions(snapshot, find_worst(snapshot))
    (tower,) = drawn(snapshot, Scene(engines=snapshot.engines, actions=actions)).towers
    scale = tower.height / snapshot.pools[0].size_bytes
    spans = [
        line.points[2][1] - line.points[1][1]
        for line in tower.now.drawing.lines
        if line.kind == "bracket" and len(line.points) == 4
    ]
    stop, option = actions
    assert stop.process is not None
    boxes = [box for box in tower.now.drawing.boxes if box.link == f"processes/{stop.process.pid}"]
    held = [box.height for box in boxes if not box.kind.startswith("engine")]

    assert (stop.kind, option.kind) == ("stop", "option")
    assert sorted(spans) == pytest.approx(sorted([*held, option.freed.low_bytes * scale]), abs=0.1)
    assert [word.text for word in tower.now.links] == [option.subject, f"stop {stop.subject}"]
    assert option.outcome
    said = [text.plain for text in tower.now.drawing.texts]
    assert option.outcome in said
    assert f"−{option.freed.text}" in said


def test_past_of_a_pool_without_figures_now_is_hatched_since_the_last_one() -> None:
    """Not one that never had any, and not a pause before now."""
    snapshot = critical_gb10()
    half = snapshot.pools[0].size_bytes * 0.5
    for sizes, stopped, place in (
        ((half, half, None), 300.0, 0.5),
        ((half, None, half), None, 0.0),
        ((None, None, None), None, 0.0),
    ):
        layers = (Layer("devices", sizes), Layer("page_cache", sizes))
        past = Past((0.0, 300.0, 600.0), 0.0, 600.0, layers)
        (tower,) = drawn(snapshot, Scene(pasts={"ram": past})).towers

        assert tower.past is not None
        assert (tower.past.stopped, tower.past.stopped_at) == (stopped, place)


def test_use_three_minutes_ago_is_in_words_if_it_is_known() -> None:
    snapshot = critical_gb10()
    half = snapshot.pools[0].size_bytes * 0.5
    for now, sizes, words_of_it in (
        (485.0, (half, half, None), "3 min ago 50.0%"),
        (480.0, (half, None, half), ""),
        (540.0, (half, half, half), ""),
    ):
        layers = (Layer("devices", sizes), Layer("page_cache", (0.0, 0.0, 0.0)))
        past = Past((0.0, 300.0, 600.0), 0.0, now, layers)
        (tower,) = drawn(snapshot, Scene(pasts={"ram": past})).towers

        assert describe_then(tower) == words_of_it
    (tower,) = drawn(snapshot).towers
    assert describe_then(tower) == ""


def test_use_of_many_gpus_three_minutes_ago_is_that_of_the_worst_and_of_all() -> None:
    """Of those with a figure. Without any there is no sentence."""
    size = 80 * GIB
    base = with_gpus(4, size)
    verdicts = {f"gpu{n}": pressure_of(f"gpu{n}", Level.HIGH, (0.9, 0.95, 0.85, 0.8)[n]) for n in range(4)}
    times = (0.0, 300.0, 600.0)

    def past(*sizes: float | None) -> Past:
        return Past(times, 0.0, 485.0, (Layer("used", sizes), Layer("page_cache", (0.0, 0.0, 0.0))))

    full = {f"gpu{n}": past(size * 0.25, size * (0.2 + n / 10), None) for n in range(4)}
    some = {**full, "gpu1": past(None, None, None)}

    assert then_of(base, full, verdicts) == "3 min ago VRAM 1 30.0% · 4 GPUs 35.0%"
    assert then_of(base, some, verdicts) == "3 min ago VRAM 0 20.0% · 3 GPUs 36.7%"
    assert then_of(base, full, {}) == "3 min ago 4 GPUs 35.0%"
    assert then_of(base, {}, verdicts) == ""


def pressure_of(target: str, level: Level, ratio: float) -> Pressure:
    return Pressure(target, level, level, ratio)


def then_of(snapshot: Snapshot, pasts: Mapping[str, Past], pressure: Mapping[str, Pressure]) -> str:
    return re.sub("<[^>]*>", "", describe_cells_then(drawn(snapshot, Scene(pasts=pasts)), pressure))


@pytest.mark.parametrize(
    ("full_at", "kinds", "serves"),
    [
        (700.0, ("used", "page_cache"), True),
        (None, ("used", "page_cache"), False),
        (700.0, ("used", "level-high", "page_cache"), False),
    ],
)
def test_drawn_past_is_kept_until_its_forecast_or_its_growth_ends(
    full_at: float | None, kinds: tuple[str, ...], serves: bool
) -> None:
    """The flag "full ~10:24:09" stood beside "no forecast" for a step."""
    pool = calm_workstation().pools[0]
    assert isinstance(pool.used_bytes, int)
    sizes = (float(pool.used_bytes),)
    drawn = Past((600.0,), 0.0, 600.0, (Layer("used", sizes), Layer("page_cache", (0.0,))), full_at=690.0)
    new = Past((600.0,), 0.0, 601.0, tuple(Layer(kind, sizes) for kind in kinds), full_at=full_at)

    assert DrawnPast(drawn, Level.HIGH).serves(pool, Level.HIGH, new, 601.0, 2.0) is serves


def test_drawn_past_is_kept_as_long_as_growth_has_its_begin() -> None:
    """A past had all of a load as growth, and the tower beside it the growth after that."""
    pool = calm_workstation().pools[0]
    assert isinstance(pool.used_bytes, int)
    past = Past((600.0,), 0.0, 600.0, (Layer("used", (float(pool.used_bytes),)), Layer("page_cache", (0.0,))))
    load, later, after = (
        Growth(Growing("ram", 7, "high", by, 60.0), base, ((0.0, base), (60.0, base + by)))
        for base, by in ((0, 66 * GIB), (0, 67 * GIB), (66 * GIB, GIB))
    )
    kept = DrawnPast(past, Level.HIGH, load)

    assert kept.serves(pool, Level.HIGH, past, 601.0, 2.0, later)
    assert not kept.serves(pool, Level.HIGH, past, 601.0, 2.0, after)
    assert not kept.serves(pool, Level.HIGH, past, 601.0, 2.0)


def half_of(share: Share) -> int:
    assert isinstance(share.limit_bytes, int)
    return share.limit_bytes // 2


def test_name_of_a_mig_instance_is_written_once() -> None:
    """Also of one whose used half is as high as the free one."""
    mig = next(read_frames(path_of("h100x8-mig")))
    shares = [share for share in mig.shares if share.kind is ShareKind.MIG_INSTANCE]
    halves = [replace(one, used_bytes=half_of(one)) if one in shares else one for one in mig.shares]
    towers = drawn(replace(mig, shares=tuple(halves))).towers

    said = [text.strong for tower in towers for text in tower.now.drawing.texts if text.strong.startswith("MIG")]

    assert sorted(said) == sorted({*said})
    assert said


def test_past_is_thinner_and_near_every_figure() -> None:
    points = [(float(x), 100.0 + (x % 7) * 0.05 if x < 60 else 100.0 - x) for x in range(120)]

    kept = thin_out(points)

    assert len(kept) < 12
    for x, y in points:
        (left, start), (right, end) = next(pair for pair in pairwise(kept) if pair[1][0] >= x)
        assert abs(start + (end - start) * (x - left) / (right - left) - y) <= NEAR + 0.26


def test_forecast_continues_used_memory_to_the_right() -> None:
    snapshot = critical_gb10()
    size = snapshot.pools[0].size_bytes
    layers = (Layer("devices", (size * 0.5, size * 0.9)), Layer("page_cache", (0.0, 0.0)))
    past = Past((0.0, 600.0), 0.0, 600.0, layers, full_at=630.0)
    (tower,) = drawn(snapshot, Scene(pasts={"ram": past})).towers
    assert tower.past is not None

    forecast = next(line for line in tower.past.drawing.lines if line.kind == "forecast")

    assert tower.past.now == pytest.approx(600 / 660)
    assert forecast.points[0][0] == pytest.approx(1200 * 600 / 660)
    assert forecast.points[1] == pytest.approx((1200 * 630 / 660, 44.0), abs=0.1)


def live_pasts(snapshot: Snapshot, growths: Mapping[str, Growth] = MappingProxyType({})) -> dict[str, Past]:
    """Return ten minutes throughout which all was as now."""
    times = tuple(snapshot.unix - 600.0 + 5.0 * number for number in range(120))
    found = {pool.id: PoolPast(times, (split_now(pool, snapshot),) * 120, ()) for pool in snapshot.pools}
    window = TimeWindow(RANGES[0], times[0], times[-1], 120, True, 5.0)
    return build_live_pasts(snapshot, found, window, (), growths)


@pytest.mark.parametrize("name", ["dgx-spark", "gh200", "jetson-orin", "macbook", "rtx4090", "strix-halo"])
def test_layers_of_the_past_have_the_names_of_the_history(name: str) -> None:
    """A layer with memory of the kernel in it was "processes" here and "processes and kernel" there."""
    snapshot = next(read_frames(path_of(name)))
    pasts = live_pasts(snapshot)

    for tower in drawn(snapshot, Scene(pasts=pasts)).towers:
        pool = tower.map.pool
        assert pool is not None
        named = [one.label for one in build_layers(pool, find_sources(pool, snapshot.shares), snapshot.labels)]
        assert [layer.label for layer in pasts[pool.id].layers] == named
        assert tower.past is not None
        assert {word.text for word in tower.past.words} <= {*named}


@pytest.mark.parametrize(
    ("name", "pid", "kind"),
    [
        ("dgx-spark", 51210, "anonymous"),
        ("strix-halo", 51210, "anonymous"),
        ("strix-halo", 6110, "devices"),
        ("jetson-orin", 51210, "anonymous"),
        ("gh200", 51210, "anonymous"),
    ],
)
def test_growth_has_one_height_in_past_and_now(name: str, pid: int, kind: str) -> None:
    """Other processes and the kernel were drawn above it now, and below it in the past: a step of 24 pixels."""
    snapshot = max(read_frames(path_of(name)), key=lambda one: max((it.ratio for it in one.pressure), default=0.0))
    grown = snapshot.pools[0].size_bytes // 16
    growing = Growing("ram", pid, "medium", grown, 60.0, kind)
    growth = Growth(growing, 0, ((snapshot.unix - 60.0, 0), (snapshot.unix, grown)))
    scene = Scene(pasts=live_pasts(snapshot, {"ram": growth}), growing={"ram": growing})

    tower = next(one for one in drawn(snapshot, scene).towers if one.map.whole.id == "ram")

    (box,) = [one for one in tower.now.drawing.boxes if one.kind == "level-medium"]
    assert tower.past is not None
    (area,) = [one for one in tower.past.drawing.areas if one.kind == "level-medium"]
    end = max(x for x, _ in area.points)
    assert min(y for x, y in area.points if x == end) == pytest.approx(box.y, abs=0.6)
    columns = [one for one in tower.now.drawing.boxes if one.depth == 1 and one.kind != "level-medium"]
    columns.sort(key=lambda one: one.y)
    assert all(before.y + before.height <= after.y + 0.1 for before, after in pairwise(columns))


def played(name: str, seconds: float) -> tuple[Snapshot, HistoryInput, dict[str, Growth]]:
    """Return a demo at a time since its begin, with its past and the processes that grow."""
    frames = list(read_frames(path_of(name)))
    frames = [frame for frame in frames if frame.unix - frames[0].unix <= seconds]
    now, history, tracker = frames[-1], History(), GrowthTracker()
    for frame in frames:
        history.add(frame.monotonic, collect_figures(frame))
        tracker.add(frame.monotonic, frame.processes, LeakRules())
    past = HistoryInput(AllSeries(history, HolderHistory()), now.unix - now.monotonic, TIER_SPECS, ())
    return now, past, place_growths(find_growths(now, tracker, tracker.lately(30.0, now.unix)), now, past)


def test_growth_in_the_past_stands_on_the_rest_of_its_family() -> None:
    """Its foot was in the processes below it, and it was a line in them before it began."""
    now, past, growths = played("jetson-orin", 295.0)
    window = choose_live_window(past, RANGES[0], now.unix)
    pasts = build_live_pasts(now, query_past(now, past, window), window, (), growths)
    (number,) = [n for n, layer in enumerate(pasts["ram"].layers) if layer.kind.startswith("level-")]
    base, grown = (pasts["ram"].layers[n].sizes for n in (number - 1, number))
    began = growths["ram"].sizes[0][0]
    known = [
        (time, low, by)
        for time, low, by in zip(pasts["ram"].times, base, grown, strict=True)
        if low is not None and by is not None
    ]

    assert [by for time, _, by in known if time <= began and by] == []
    assert {round(low / GIB, 2) for time, low, _ in known[:-1] if time > began} == {3.5}
    steps = [after - before for (_, _, before), (_, _, after) in pairwise(known)]
    assert min(steps) >= 0
    (tower,) = drawn(now, Scene(pasts)).towers
    assert tower.past is not None
    level = pasts["ram"].layers[number].kind
    (area,) = [one for one in tower.past.drawing.areas if one.kind == level and one.points[0][1] > 44]
    begin = 1200 * tower.past.now * pasts["ram"].axis.at(began)
    assert min(x for x, _ in area.points) == pytest.approx(begin, abs=1200 / 100)


@pytest.mark.parametrize(
    ("seconds", "name", "family", "rest"),
    [(98, "ollama", "devices", "other in Metal working set"), (250, "train.py", "anonymous", "other used")],
)
def test_growth_is_a_part_of_the_family_that_rose(seconds: int, name: str, family: str, rest: str) -> None:
    """macOS does not report where a process has its memory: a model that loaded was drawn over all other memory."""
    now, _, growths = played("macbook", seconds)

    growing = growths["ram"].growing
    assert (growing.name, growing.kind) == (name, family)
    (tower,) = drawn(now, Scene(growing={"ram": growing})).towers
    nodes = build_nodes(tower.map, growing)
    parts = [inner for node in nodes for inner in (node.inside or [node])]
    (grown,) = [node for node in parts if node.kind.startswith("level-")]
    (left,) = [node for node in parts if node.name == rest]
    share = next(one.used_bytes for one in now.shares if one.within == "ram")
    used = now.pools[0].used_bytes
    assert isinstance(share, int)
    assert isinstance(used, int)
    assert grown.size_bytes + left.size_bytes == (share if family == "devices" else used - share)
    assert ("Metal working set", share) in [(node.name, node.size_bytes) for node in nodes]


def test_growth_that_no_family_has_is_not_drawn() -> None:
    """A process that grows while its pool does not has taken pages of the others."""
    (now, *_) = read_frames(path_of("macbook"))
    history = History()
    history.add(now.monotonic - 60.0, collect_figures(now))
    past = HistoryInput(AllSeries(history, HolderHistory()), now.unix - now.monotonic, TIER_SPECS, ())
    growing = Growing("ram", 2210, "medium", GIB, 60.0, name="ollama")
    growths = {"ram": Growth(growing, 0, ((now.unix - 60.0, 0), (now.unix, GIB)))}

    assert place_growths(growths, now, past) == {}
    assert place_growths(growths, now, None) == {}
    listed = next(read_frames(path_of("jetson-orin")))
    assert place_growths(growths, listed, past) == growths


def test_growth_begins_after_its_last_pause() -> None:
    load, pause, growth = [(0, 0), (10, 60)], [(20, 60), (30, 60)], [(40, 64), (50, 68), (60, 72)]

    assert find_run([*load, *pause, *growth]) == [pause[-1], *growth]
    assert find_run([*load, *pause]) == []
    assert find_run([*load, *pause, (40, 60), (50, 60)]) == []
    assert find_run([(0, 60), (10, 60)]) == []


def test_killed_process_is_an_outline_for_a_minute() -> None:
    """At a process's own limit the pool is not concerned: its event has no target."""
    kill = OomKill(1, 51210, "train.py", 40 * GIB, "machine")
    snapshot = replace(critical_gb10(), kernel_log=KernelLog(kills=(kill,)))
    event = Event(1, snapshot.unix - 6, "oom_kill", kill.text, "ram")

    (ghost,) = find_ghosts(snapshot, [event])

    assert ghost == Ghost("ram", "train.py", 40 * GIB, 51210, snapshot.unix - 6)
    assert find_ghosts(snapshot, [replace(event, unix=snapshot.unix - 61)]) == ()
    assert find_ghosts(snapshot, [replace(event, target=None)]) == ()
    calm = replace(snapshot, pools=(calm_workstation().pools[0],), shares=(), devices=(), pressure=())
    (tower,) = drawn(calm, Scene(ghosts=(ghost,))).towers
    outline = next(line for line in tower.now.drawing.lines if line.kind == "ghost")
    heights = [y for _, y in outline.points]
    used = calm.pools[0].used_bytes
    assert isinstance(used, int)
    size = calm.pools[0].size_bytes
    shown = min(40 * GIB, size - used)
    assert max(heights) - min(heights) == pytest.approx(tower.height * shown / size, abs=0.1)


@pytest.mark.parametrize("gib", [200, 418])
def test_words_of_a_killed_process_are_whole(gib: int) -> None:
    """They were "killed, −418.9…"."""
    calm = replace(calm_workstation(), devices=(), shares=(), pressure=())
    pool = replace(calm.pools[0], size_bytes=500 * GIB, used_bytes=50 * GIB, available_bytes=450 * GIB, contents=())
    ghost = Ghost(pool.id, "train.py", gib * GIB, 51210, calm.unix - 6)

    (tower,) = drawn(replace(calm, pools=(pool,)), Scene(ghosts=(ghost,))).towers

    for one in (tower.now, tower.narrow):
        assert one is not None
        words = [text.strong.strip() for text in one.drawing.texts if text.kind == "ghost"]
        assert " ".join(words) == f"train.py killed, −{gib}.0 GiB"


def test_level_of_a_mig_instance_is_a_line_at_its_top_and_in_the_words_of_its_gpu() -> None:
    """Its memory was in the colour of growth, and "◆ VRAM 7 56.3%" stood over an OK past."""
    mig = mig_server()
    one = next(share for share in mig.shares if share.kind is ShareKind.MIG_INSTANCE)
    spare = tuple(vram(f"spare{n}", f"VRAM {n}", size=80 * GIB, used=GIB, reserved=0) for n in range(3))
    of_slice, of_gpu = (
        Pressure(target, level, level, ratio)
        for target, level, ratio in ((one.id, Level.CRITICAL, 0.97), (one.within, Level.LOW, 0.5))
    )
    snapshot = replace(mig, pools=(*mig.pools, *spare), pressure=(of_slice, of_gpu))

    page = Reader(Pages().page("overview", snapshot))

    pool = next(attrs for _, attrs in page.tags if attrs.get("id") == f"pool-{one.within}")
    assert "level-low" in str(pool["class"])
    classes = {attrs.get("class") for _, attrs in page.tags}
    assert "l-cap-critical" in classes
    assert "b-level-critical" not in classes
    assert f"{one.label.rpartition(' · ')[2]} 97.0%" in page.text


def test_memory_of_a_mig_instance_without_a_process_is_grey() -> None:
    """9.8 GiB of MIG 3 were green, as if a process held them; the history had them grey."""
    snapshot = moments_of("h100x8-mig").fullest
    pool = next(one for one in snapshot.pools if one.id == "gpu7")

    nodes = build_nodes(next(one for one in build_maps(snapshot, {}) if one.whole.id == pool.id))

    kinds = {node.name: [one.kind for one in node.inside] for node in nodes if node.inside}
    assert kinds == {
        "MIG 2": ["devices", "free"],
        "MIG 3": ["unattributed", "free"],
        "MIG 9": ["unattributed", "free"],
    }
    for node in nodes:
        assert sum(one.size_bytes for one in node.inside) in (0, node.size_bytes)


def test_each_mig_instance_has_its_name_and_what_is_used() -> None:
    """MIG 3 and MIG 9 had no figure anywhere."""
    snapshot = moments_of("h100x8-mig").fullest
    tower = next(one for one in drawn(snapshot).towers if one.map.whole.id == "gpu7")

    said = [text.strong or text.plain for text in tower.now.drawing.texts]

    assert said == ["MIG 2", "31.6 GiB", "9.8 GiB", "MIG 3", "MIG 9 2.9", "not sliced"]


def test_bytes_of_many_gpus_without_a_word_are_listed_for_a_phone() -> None:
    """On /fit there was none for MIG 9, the memory of no instance, and low boxes of train.py."""
    snapshot = moments_of("h100x8-mig").fullest
    page, fit = drawn(snapshot), drawn(snapshot, Scene(alone=True))
    early = next(islice(read_frames(path_of("h100x8-mig")), 15, None))

    assert page.left_out == ("VRAM 0, 1, 2, 3, 4, 5, 6: reserved 479.0 MiB",)
    assert fit.left_out == ("VRAM 7: MIG 3 9.8 of 19.6 GiB, MIG 9 2.9 of 9.8 GiB, not sliced 10.8 GiB",)
    assert any(re.fullmatch(r"VRAM 0: train.py \d.\d GiB", one) for one in drawn(early, Scene(alone=True)).left_out)
    text = Reader(Pages().page("overview", snapshot)).text
    assert "also: VRAM 0, 1, 2, 3, 4, 5, 6: reserved 479.0 MiB" in " ".join(text.split())


@pytest.mark.parametrize("name", ["jetson-orin", "strix-halo", "macbook"])
def test_no_name_beside_a_tower_is_cut(name: str) -> None:
    for frame in list(read_frames(path_of(name)))[::60]:
        cut = [text.plain + text.strong for tower in drawn(frame).towers for text in tower.now.drawing.texts]

        assert [text for text in cut if "…" in text] == []


def test_rest_of_a_share_has_its_whole_name() -> None:
    """It was "other in CUDA"."""
    base = critical_gb10()
    (share,) = [one for one in base.shares if one.within == "ram" and one.kind is ShareKind.CUDA_POOL]
    holder = max(base.processes, key=lambda one: held_in(one, [share.id]))
    half = replace(holder, device_bytes={share.id: held_in(holder, [share.id]) // 2})
    (one,) = build_maps(replace(base, processes=(half,), engines=()), {})

    (family,) = [node for node in build_nodes(one) if node.name == "CUDA Pool"]

    assert [node.name for node in family.inside] == [half.title, "other in CUDA Pool"]


def test_figure_without_room_beside_its_name_is_below_it() -> None:
    """Else the name would be cut for it."""
    frame = Rectangle(0.0, 0.0, 100.0, 300.0)
    name, figure = "other in a long place", "1,023.1 MiB"
    folded, _ = write_gutter([Block(150.0, ((name, figure),))], frame, 190.0, 11.0, 20.0)
    short, _ = write_gutter([Block(150.0, (("other", figure),))], frame, 190.0, 11.0, 20.0)

    assert [(text.plain, text.strong) for text in folded.texts] == [(name, ""), ("", figure)]
    assert [(text.plain, text.strong) for text in short.texts] == [("other ", figure)]


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ((120.0, 520.0), ["520", "120"]),
        ((120.0, 150.0), ["150"]),
        ((0.0, 600.0), ["600", "0"]),
        ((590.0, 600.0), ["600"]),
    ],
)
def test_flags_are_named_beside_each_other_the_latest_first(times: tuple[float, ...], named: list[str]) -> None:
    """At the narrowest width of a past, words neither meet nor leave it; a flag without room has its line only."""
    snapshot = critical_gb10()
    half = snapshot.pools[0].size_bytes * 0.5
    layers = (Layer("devices", (half, half)), Layer("page_cache", (0.0, 0.0)))
    flags = tuple((unix, f"OOM kill: py {unix:.0f}") for unix in times)
    past = Past((0.0, 600.0), 0.0, 600.0, layers, flags=flags)
    (tower,) = drawn(snapshot, Scene(pasts={"ram": past})).towers
    assert tower.past is not None
    words_of_flags = [word for word in tower.past.words if word.text.startswith("OOM kill")]
    spans = sorted(span_of(word) for word in words_of_flags)

    assert [word.text.rpartition(" ")[2] for word in words_of_flags] == named
    assert [at for at, _, _ in tower.past.flags] == [unix / 600 for unix in times]
    assert spans[0][0] >= 0
    assert spans[-1][1] <= WIDE_PAST
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def span_of(word: Word) -> tuple[float, float]:
    width = width_of(word.text, FONT, strong=word.kind == "critical")
    left = word.at * WIDE_PAST + word.shift - (width if word.anchor == "end" else 0.0)
    return left, left + width


def test_times_below_a_past_are_round_and_apart() -> None:
    """No time is on another one or on the word of the end, at any length of a past."""
    for seconds in (20.0, 45.0, 600.0, 3600.0, 86_400.0, 2_592_000.0):
        found = list(write_times(TimeAxis(1000.0, 1000.0 + seconds), WIDE_PAST, 1000.0 + seconds, "now", FONT))
        marks = [word for word in found if word.unix is not None]
        ends = [word.at * WIDE_PAST + width_of(TIME_FORMS[word.kind], FONT) / 2 for word in marks]
        starts = [word.at * WIDE_PAST - width_of(TIME_FORMS[word.kind], FONT) / 2 for word in marks]

        assert found[-1].text == "now"
        assert marks, seconds
        assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
        assert starts[0] >= 0
        assert ends[-1] < WIDE_PAST - width_of("now", FONT, strong=True)
        steps = {round(after.unix - before.unix) for before, after in pairwise(marks) if before.unix and after.unix}
        assert len(steps) <= 1


@pytest.mark.parametrize("minutes", [10, 60, 6 * 60, 24 * 60, 7 * 24 * 60, 30 * 24 * 60])
def test_times_below_a_chart_are_whole_and_apart_at_any_time_of_day(minutes: int) -> None:
    """At every time of a day, for a forecast of any length, on a phone and at the width where all are shown."""
    longest = 60.0 * minutes * MAX_AHEAD_RATIO
    for number, second in enumerate(range(0, DAY_SECONDS, 13 if minutes == 10 else 60)):
        now = 1_700_000_000.0 + second
        edges = Edges(now - 60.0 * minutes, now + longest * (number % 15) / 14, now)
        found = [
            (word if word.kind else replace(word, text="23:59:59", unix=None), rooms)
            for word, rooms in place_times(edges, live=True)
        ]

        assert [rooms for word, rooms in found if not word.kind] == [{*WIDTHS}]
        for name, width in WIDTHS.items():
            assert_whole_and_apart([word for word, rooms in found if name in rooms], width)


def test_roomy_chart_has_more_times_than_a_narrow_one() -> None:
    """They were placed for 330 pixels, and 23:30 was left out beside 155 free ones."""
    edges = Edges(1_700_000_000.0, 1_700_003_600.0, 1_700_003_600.0)
    found = list(place_times(edges, live=True))

    counts = [sum(name in rooms for _, rooms in found) for name in WIDTHS]

    assert counts == sorted({*counts})
    assert counts[-1] > 10


def flag_event(number: int, unix: float, kind: str, word: str) -> EventMark:
    return EventMark(number, Annotation(unix, kind, word, word), "history")


def span_of_flag(one: EventFlag, name: str) -> tuple[float, float]:
    width = width_of(f"{one.number}{one.text if name in one.text_rooms else ''}", FONT)
    left = one.at * WIDTHS[name] + (-3.0 if one.anchor == "start" else 3.0 - width)
    return left, left + width


@pytest.mark.parametrize("seed", range(20))
def test_words_of_events_stand_at_their_lines_and_apart_at_every_width(seed: int) -> None:
    chosen = random.Random(seed)
    kinds = [
        ("oom_kill", "OOM kill"),
        ("level", "critical"),
        ("level", "OK"),
        ("mark", "epoch 7"),
        ("replay", "restart"),
    ]
    times = sorted(chosen.uniform(0.0, 600.0) for _ in range(chosen.randint(1, 16)))
    events = [flag_event(number, unix, *chosen.choice(kinds)) for number, unix in enumerate(times, 1)]

    found = place_flags(events, Edges(0.0, 600.0, 600.0))

    for name, width in WIDTHS.items():
        spans = sorted(span_of_flag(one, name) for one in found if name in one.rooms)
        assert spans[0][0] >= -3.0
        assert spans[-1][1] <= width + 3.0
        assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_most_severe_events_have_their_numbers_first_and_all_before_words() -> None:
    """Changes to critical had none beside words of restarts, and a word stood 55 pixels beside its line."""
    events = [
        flag_event(1, 300.0, "level", "OK"),
        flag_event(2, 301.0, "level", "critical"),
        flag_event(3, 318.0, "replay", "restart"),
        flag_event(4, 599.0, "replay", "restart"),
    ]

    found = {one.number: one for one in place_flags(events, Edges(0.0, 600.0, 600.0))}

    assert found[2].rooms == {*WIDTHS}
    assert "wide" in found[3].rooms
    assert (found[4].anchor, sorted(found[4].rooms)) == ("end", sorted(WIDTHS))
    assert sorted(found[4].text_rooms) == ["roomy", "wide"]


@pytest.mark.parametrize("width", [WIDE_PAST, NARROW_PAST])
@pytest.mark.parametrize("end_word", ["now", "23:59:59"])
def test_times_below_a_pool_are_whole_and_apart_at_any_time_of_day(width: float, end_word: str) -> None:
    for number, second in enumerate(range(0, DAY_SECONDS, 60)):
        now = 1_700_000_000.0 + second
        axis = TimeAxis(now - 600.0, now + 100.0 * (number % 21) / 20)
        assert_whole_and_apart(list(write_times(axis, width, now, end_word, FONT)), width)


def assert_whole_and_apart(words: list[Word], width: float) -> None:
    spans = sorted(span_of_time(word, width) for word in words)
    assert spans[0][0] >= 0, words
    assert spans[-1][1] <= width + 1e-9, words
    assert all(before[1] < after[0] for before, after in pairwise(spans)), words


def span_of_time(word: Word, width: float) -> tuple[float, float]:
    length = width_of(word.text, FONT, strong=True) if word.unix is None else width_of(TIME_FORMS[word.kind], FONT)
    right = word.at * width + (length / 2 if word.anchor == "middle" else 0.0)
    return right - length, right


def test_growth_without_the_name_of_its_holder_has_its_figure() -> None:
    """The name stands in the larger part."""
    base = discrete_gpu()
    card = replace(vram("gpu0", "VRAM", size=24 * GIB, used=22 * GIB, reserved=0), unattributed_bytes=0)
    holder = replace(base.processes[0], device_bytes={"gpu0": 22 * GIB})
    snapshot = replace(base, pools=(base.pools[0], card), shares=(), devices=(), processes=(holder,), pressure=())
    growing = Growing("gpu0", holder.pid, "critical", 7 * GIB, 60.0, "devices")

    tower = drawn(snapshot, Scene(growing={"gpu0": growing})).towers[1]

    said = {text.strong: text.kind for text in tower.now.drawing.texts}
    assert said["+7.0 GiB"] == "level-critical"
    assert said[holder.title] == "devices"


def test_growth_in_a_pool_without_holders_is_cut_off_its_kind() -> None:
    """That of a Mac: the past shows the growth, and now showed only "used"."""
    snapshot = next(one for one in read_frames(path_of("macbook")) if one.pressure[0].level is Level.HIGH)
    size = snapshot.pools[0].size_bytes
    growing = Growing(snapshot.pools[0].id, 51210, "high", size // 8, 90.0, "anonymous", "train.py")

    (tower,) = drawn(snapshot, Scene(growing={growing.pool: growing})).towers
    (plain,) = drawn(snapshot).towers

    (grown,) = [box for box in tower.now.drawing.boxes if box.kind == "level-high"]
    assert grown.size_bytes == size // 8
    assert grown.title.startswith("growth of train.py")
    assert sum(box.size_bytes for box in tower.now.drawing.boxes if not box.depth) == size
    assert {box.kind for box in plain.now.drawing.boxes} == {box.kind for box in tower.now.drawing.boxes} - {
        "level-high"
    }


def test_thresholds_of_a_low_tower_are_all_named() -> None:
    """Beside 62 GiB of System RAM the card is 116 pixels high, and its 95 % had no room below the used line."""
    base = discrete_gpu()
    ram = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 62 * GIB, 16 * GIB, 46 * GIB, "test", Quality.MEASURED)
    for used in (20, 22, 23, 23.5, 24):
        card = vram("gpu0", "VRAM", size=24 * GIB, used=int(used * GIB), reserved=0)
        tower = drawn(replace(base, pools=(ram, card), shares=(), pressure=(), processes=(), devices=())).towers[1]

        assert [mark.word for mark in tower.now.marks] == ["60%", "80%", "95%"]


def test_past_of_sliced_memory_has_the_colours_of_now() -> None:
    """Memory that no process of an instance explains is grey in both."""
    snapshot = moments_of("h100x8-mig").fullest
    tower = next(
        one for one in drawn(snapshot, Scene(pasts=live_pasts(snapshot))).towers if one.map.whole.id == "gpu7"
    )

    assert tower.past is not None
    areas = {area.kind for area in tower.past.drawing.areas if not area.kind.startswith("level")}
    boxes = {box.kind for box in tower.now.drawing.boxes if box.depth and box.kind != "free"}
    assert areas == boxes == {"devices", "unattributed"}


def test_growth_stays_after_its_last_reading() -> None:
    """That may be half a second old: the past fell back to the colour of before at now."""
    growth = Growth(Growing("ram", 7, "high", 3 * GIB, 20.0), GIB, ((100.0, GIB), (120.0, 4 * GIB)))

    assert [growth.grown_at(unix) / GIB for unix in (90.0, 100.0, 110.0, 120.0, 120.6)] == [0.0, 0.0, 1.5, 3.0, 3.0]


def test_bytes_of_a_rounding_have_no_words() -> None:
    """Beside 95 GiB stood "unattributed 342 B"."""
    card = vram("gpu0", "HBM", size=95 * GIB, used=50 * GIB, reserved=0)
    snapshot = replace(discrete_gpu(), shares=(), devices=(), pressure=(), processes=())

    def named(size: int) -> bool:
        pool = replace(card, unattributed_bytes=size)
        (tower,) = drawn(replace(snapshot, pools=(pool,))).towers
        return any(text.plain.startswith("unattributed") for text in tower.now.drawing.texts)

    assert not named(342)
    assert named(20 << 20)


def test_without_room_beside_a_tower_its_largest_parts_keep_their_words() -> None:
    """Beside a low tower "llama.cpp 22.3 GiB" was left out, and "Xorg 412.0 MiB" was not."""
    engine = Block(5.0, (("llama.cpp", "22.3 GiB"),), size_bytes=22 * GIB)
    server = Block(15.0, (("Xorg", "412.0 MiB"),), size_bytes=412 << 20)

    beside, _ = write_gutter([engine, server], Rectangle(0.0, 0.0, 100.0, 20.0), 190.0, 11.0, 0.0)

    assert [text.plain for text in beside.texts] == ["llama.cpp "]
