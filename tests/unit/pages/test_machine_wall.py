"""The wall of machines: order, words of each state, and a picture to scale."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind, Process, known_or
from memwatch.core.processes.growth import ProcessGrowth
from memwatch_monitor.history.tiers import History
from memwatch_monitor.neighbours.found import FoundMachine
from memwatch_monitor.neighbours.machines import Machine
from memwatch_monitor.neighbours.tick import HolderTick, PoolTick, Tick
from memwatch_monitor.neighbours.trend import HolderGrowth, TrendPoint
from memwatch_web.pages.machine_wall import (
    CURVE_WIDTH,
    HEIGHT,
    WIDTH,
    OwnPast,
    Tile,
    Tower,
    build_tile,
    build_wall,
    draw_curve,
    draw_towers,
    draw_washes,
    find_growth,
    list_fits,
    read_own_past,
    simplify,
)
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.server_charts import draw_ticks
from support.fakes import GIB
from support.html_reader import Reader
from support.sample_fleet import Fleet
from support.sample_snapshots import calm_workstation

RAM = PoolTick("ram", "System RAM", 100 * GIB, 70 * GIB, 30 * GIB, "medium", "system_ram", 40 * GIB, 20 * GIB)
CARD = PoolTick("gpu0", "VRAM", 25 * GIB, 20 * GIB, 5 * GIB, "high", "vram")


def tick(*pools: PoolTick, **fields: object) -> Tick:
    whole = Tick(1, "run", "b", 1000.0, 1.0, "high", "VRAM is high", pools, holders=(HolderTick("vllm", 9 * GIB),))
    return replace(whole, **fields)


def machine(state: str = "up", seconds: float = 0.0, **fields: object) -> Machine:
    made = Machine("b", "up", "the reason", seconds, tick(RAM, CARD, worst="gpu0"), 1000.0, url="http://b")
    return replace(made, state=state, **fields)


def tiles() -> dict[str, Tile]:
    return {one.machine.name: one for one in build_wall(Fleet().machines(calm_workstation()), no_past).tiles}


def no_past(_: Tick) -> OwnPast:
    return OwnPast()


def test_worst_machines_are_first_and_counted() -> None:
    """Without an answer, critical, high, late or refused, medium, OK. The counts follow the tiles."""
    wall = build_wall(Fleet().machines(calm_workstation()), no_past)

    assert [(one.number, one.word) for one in wall.counts] == [
        (2, "no answer"),
        (2, "critical"),
        (3, "high"),
        (1, "stale"),
        (1, "refused"),
        (5, "medium"),
        (10, "OK"),
    ]
    assert sum(one.number for one in wall.counts) == len(wall.tiles) == 24
    words = [one.word for one in wall.tiles]
    assert words == sorted(words, key=[one.word for one in wall.counts].index)


@pytest.mark.parametrize(
    ("shown", "level", "word", "headline"),
    [
        (machine(), "high", "high", "VRAM 80.0%"),
        (machine(tick=tick(RAM, level="medium")), "medium", "medium", "70.0%"),
        (
            machine(tick=tick(RAM, CARD, headline="VRAM full in ~25 s", worst="gpu0")),
            "high",
            "high",
            "VRAM full in ~25 s",
        ),
        (machine(tick=tick(replace(RAM, used=None, available=None))), "high", "high", "No memory data"),
        (machine(is_late=True, seconds=5.4), "unknown", "stale", "Stale for 5 s"),
        (machine("silent", 11.2), "unknown", "no answer", "No answer for 11 s"),
        (machine("silent", 200.0), "unknown", "no answer", "No answer for 3 min"),
        (machine("silent", 4000.0), "unknown", "no answer", "No answer for 1 h 6 min"),
        (machine("silent", 400.0, tick=None), "unknown", "no answer", "No answer for 6 min"),
        (machine("starting", 4.0, tick=None), "unknown", "no answer yet", "No answer yet"),
        (machine("unreachable", 130.0), "unknown", "unreachable", "Unreachable for 2 min"),
        (machine("refused", 4.0, tick=None), "unknown", "refused", "Refused"),
        (machine("stopped", 60.0), "unknown", "stopped", "Stopped 1 min ago"),
    ],
)
def test_tile_says_in_words_what_is_wrong(shown: Machine, level: str, word: str, headline: str) -> None:
    """A machine that cannot be reached is not one that starts. The last figures are no figures of now."""
    tile = build_tile(shown)

    assert (tile.level, tile.word, tile.headline) == (level, word, headline)
    is_current = shown.state == "up" and not shown.is_late
    assert bool(tile.note) == (not is_current)
    assert bool(tile.left) == is_current
    assert bool(tile.holder) == is_current


def test_tile_names_the_grower_else_the_largest_process() -> None:
    growing = machine(growth=HolderGrowth("train.py", 423.0 * (1 << 20)))
    calm = replace(growing, tick=tick(RAM, level="low"))

    assert build_tile(growing).holder == "train.py +423.0 MiB/s"
    assert build_tile(growing).is_growing
    assert not build_tile(calm).is_growing
    assert build_tile(machine(tick=tick(RAM, CARD, worst="ram"))).holder == "largest: vllm 9.0 GiB"
    assert build_tile(machine(tick=tick(RAM, holders=()))).holder == ""


def test_tile_names_no_process_that_is_outside_the_pool_of_its_headline() -> None:
    """The footprint of a process may be larger than the pool. A tick that says nothing about it names none."""
    holders = (HolderTick("java", 40 * GIB, there=0), HolderTick("python3", 30 * GIB, there=18 * GIB))
    both = tick(RAM, CARD, worst="gpu0", holders=holders)

    assert build_tile(machine(tick=both)).holder == "largest: python3 18.0 GiB"
    assert build_tile(machine(tick=replace(both, holders=holders[:1]))).holder == ""
    assert build_tile(machine(tick=replace(both, worst=""))).holder == ""


def test_growth_of_this_machine_is_that_in_the_pool_of_the_headline() -> None:
    """A process that grows in System RAM does not grow on a GPU. On several GPUs, that in each is not known."""
    ram = calm_workstation().pools[0]
    gpus = [replace(ram, id=f"gpu{number}", kind=PoolKind.VRAM) for number in range(2)]
    java = Process(1, 1.0, "java", 9 * GIB, 9 * GIB, "rss")
    rank = Process(2, 1.0, "rank", GIB, 8 * GIB, "rss + vram", device_bytes={"gpu0": 7 * GIB})
    both = Process(3, 1.0, "both", GIB, 8 * GIB, "rss + vram", device_bytes={"gpu0": 3 * GIB, "gpu1": 4 * GIB})
    snapshot = replace(calm_workstation(), pools=(ram, *gpus), shares=(), processes=(java, rank, both))

    def grown(one: Process, seconds: float) -> ProcessGrowth:
        return ProcessGrowth(one, 100.0, 0, 100.0 + seconds, known_or(one.footprint_bytes, 0), True)

    def find(place: str, *grown_ones: ProcessGrowth) -> HolderGrowth | None:
        return find_growth(grown_ones, snapshot, tick(RAM, CARD, replace(CARD, id="gpu1"), worst=place))

    assert find("gpu0", grown(java, 10.0), grown(rank, 20.0)) == HolderGrowth("rank", 8 * GIB / 20.0)
    assert find("ram", grown(java, 10.0), grown(rank, 20.0)) == HolderGrowth("java", 9 * GIB / 10.0)
    assert find("gpu1", grown(java, 10.0), grown(rank, 20.0)) is None
    loading = replace(rank, rss_bytes=9 * GIB)
    assert find("ram", grown(loading, 20.0)) is None
    assert find("gpu1", grown(both, 20.0)) == HolderGrowth("both", None)
    grows = machine(tick=tick(RAM, CARD, worst="gpu0"), growth=HolderGrowth("both", None))
    assert build_tile(grows).holder == "growing: both"


def test_tile_says_what_is_left_of_the_worst_pool() -> None:
    """With its name where several pools have a level. An unknown figure is not 0."""
    carveout = replace(CARD, kind="carveout", level="unknown")

    assert build_tile(machine()).left == "5.0 of 25.0 GiB left, VRAM"
    assert build_tile(machine(tick=tick(RAM, CARD, worst="ram"))).left == "30.0 of 100.0 GiB left, System RAM"
    assert build_tile(machine(tick=tick(RAM, carveout))).left == "30.0 of 100.0 GiB left"
    assert build_tile(machine(tick=tick(RAM, left_out=True))).left == "30.0 of 100.0 GiB left · more pools"
    assert build_tile(machine(tick=tick())).left == "— not known how much is left"


def towers(*pools: PoolTick) -> dict[str, Tower]:
    return {one.name: one for one in draw_towers(pools, is_current=True)}


def test_pools_of_a_machine_have_one_scale() -> None:
    """A quarter of the size is a quarter of the height, and so are the parts, which are within their frame."""
    found = towers(RAM, CARD)
    ram, card = found["System RAM"], found["VRAM"]

    assert card.frame.height / ram.frame.height == pytest.approx(0.25, abs=0.01)
    assert card.frame.ground == pytest.approx(ram.frame.ground, abs=0.1) == HEIGHT
    assert [one.holder for one in ram.parts] == ["gpu", "processes", "unattributed"]
    for part, size in zip(ram.parts, (40, 20, 10), strict=True):
        assert part.place.height == pytest.approx(ram.frame.height * size / 100, abs=0.1)
    assert ram.parts[0].place.ground == pytest.approx(HEIGHT, abs=0.1)
    assert ram.parts[1].place.ground == pytest.approx(ram.parts[0].place.y, abs=0.2)


@pytest.mark.parametrize("count", [3, 8, 16])
def test_system_ram_lies_below_many_gpus(count: int) -> None:
    """All towers fit into the picture, also those of sixteen GPUs."""
    cards = [replace(CARD, id=f"gpu{number:02}", label=f"VRAM {number}") for number in range(count)]
    found = towers(replace(RAM, size=2000 * GIB), *cards)
    band = found.pop("System RAM").frame

    assert (band.width, band.ground) == (WIDTH - 116, HEIGHT)
    places = sorted((one.frame.x, one.frame.right) for one in found.values())
    assert all(end <= begin + 0.15 for (_, end), (begin, _) in pairwise(places))
    assert places[-1][1] <= WIDTH + 0.5
    assert all(one.frame.ground < band.y for one in found.values())


def test_parts_of_unknown_holders_are_not_guessed() -> None:
    """An older sender says neither the kind of a pool nor what is in it."""
    old, unknown = towers(PoolTick("ram", "System RAM", 10, 5, 5)), towers(replace(RAM, used=None))

    assert [one.holder for one in old["System RAM"].parts] == ["used"]
    assert unknown["System RAM"].parts == ()
    assert {one.parts for one in draw_towers((RAM, CARD), is_current=False)} == {()}
    assert draw_towers((replace(RAM, size=0),), is_current=True) == ()


def test_growth_is_on_top_of_its_holders_in_the_colour_of_the_level() -> None:
    """To scale, as on the overview: what a pool has risen by since its use last fell or paused."""
    fallen, paused = (0.9, 0.4, 0.45, 0.445, 0.5, 0.6), (0.1, 0.2, 0.4, 0.4, 0.4, 0.4, 0.45, 0.5, 0.6)
    trend, later = (
        [TrendPoint(1000.0 - 10 * (len(uses) - at), "medium", {"ram": used}) for at, used in enumerate(uses)]
        for uses in (fallen, paused)
    )
    shown = machine(tick=tick(RAM, worst="ram"), trend=trend, growth=HolderGrowth("train.py", 1 << 28))
    calm = machine(tick=tick(RAM, worst="ram"), trend=trend)

    def heights(one: Machine) -> dict[str, float]:
        (tower,) = build_tile(one).picture.towers
        return {part.holder: round(100 * part.place.height / tower.frame.height) for part in tower.parts}

    assert heights(calm) == {"gpu": 40, "processes": 20, "unattributed": 10}
    larger = replace(RAM, gpu=10 * GIB, processes=50 * GIB)
    rising = replace(shown, tick=tick(larger, worst="ram"))
    assert heights(rising) == {"gpu": 10, "processes": 20, "level-medium": 30, "unattributed": 10}
    assert heights(replace(rising, trend=later)) == heights(rising)
    assert heights(shown) == {"gpu": 40, "level-medium": 20, "unattributed": 10}
    assert any(name == "machine-cap level-medium" for name, _ in build_tile(rising).picture.shapes)
    card = machine(tick=tick(CARD), trend=[TrendPoint(990.0, "high", {"gpu0": 0.6})], growth=shown.growth)
    assert heights(card) == {"gpu": 60, "level-high": 20}


def test_job_on_several_gpus_grows_in_each_of_them() -> None:
    """It was in the tower of the worst GPU only. System RAM, which rises beside it, is of another kind."""
    snapshot, history = calm_workstation(), History()
    cards = [replace(CARD, id=f"gpu{number}", label=f"VRAM {number}") for number in range(2)]
    now = tick(RAM, *cards, worst="gpu0")
    for second in range(700):
        rising = 0.4 + max(0, second - 600) * 0.004
        sample = {f"pressure.{one.id}.ratio": rising for one in (RAM, *cards)}
        history.add(1000.0 + second, {**sample, "pressure.gpu0.level": 2.0})
    own = replace(machine(tick=replace(now, unix=snapshot.unix)), is_self=True)
    growth = HolderGrowth("rank", 1 << 28)

    towers = build_tile(own, read_own_past(history, snapshot, now, growth)).picture.towers

    colours = {tower.name: {part.holder for part in tower.parts} for tower in towers}
    assert colours["VRAM 0"] == colours["VRAM 1"] == {"gpu", "level-high"}
    assert "level-medium" not in colours["System RAM"]
    assert {*read_own_past(history, snapshot, now, None).trend[0].used} == {"gpu0"}


def test_impossible_parts_stay_within_the_tower() -> None:
    """A sender may claim anything: more than used, more than there is."""
    tower = towers(replace(RAM, used=300 * GIB, gpu=200 * GIB, processes=200 * GIB))["System RAM"]

    assert sum(one.place.height for one in tower.parts) <= tower.frame.height + 0.1
    assert min(one.place.y for one in tower.parts) >= tower.frame.y - 0.1


def test_curve_has_a_gap_where_ticks_are_missing() -> None:
    places = [(0.0, 0, 50), (10.0, 1, 50), (20.0, 3, 50), (100.0, 17, 20), (110.0, 19, 10), (300.0, 60, 5)]

    line, area = draw_curve(places)

    assert line == "M0 50L3 50M17 20L19 10"
    assert area == f"M0 {HEIGHT}L0 50L3 50V{HEIGHT}zM17 {HEIGHT}L17 20L19 10V{HEIGHT}z"


def test_curve_is_drawn_within_a_pixel_and_with_few_points() -> None:
    """A ramp with noise is one line, a step stays a step."""
    ramp = [(2 * at, 70 - at + at % 2) for at in range(50)]
    step = [(at, 60) for at in range(20)] + [(at, 10) for at in range(20, 40)]

    assert simplify(step) == [(0, 60), (19, 60), (20, 10), (39, 10)]
    found = simplify(ramp)
    assert len(found) <= 4
    for (x, y), (to, low) in pairwise(found):
        for at, exact in ramp:
            if x <= at <= to:
                assert y + (low - y) * (at - x) / (to - x) == pytest.approx(exact, abs=1.01)


@pytest.mark.parametrize("step", [1.0, 10.0])
def test_chart_of_ticks_is_a_line_with_a_gap_where_they_are_missing(step: float) -> None:
    """Also for the hour, whose ticks are about ten seconds apart."""
    times = [1000.0 + step * 1.1 * at for at in range(20)]
    times += [times[-1] + step * (5 + at) for at in range(20)]

    chart = draw_ticks([tick(RAM, unix=unix) for unix in times], step)

    assert chart is not None
    assert [path.count(",") for path in chart.lines[0].paths] == [20, 20]


def test_wash_lasts_as_long_as_its_level() -> None:
    points = [TrendPoint(10.0 * number, "high" if 20 <= number < 40 else "low", {}) for number in range(60)]

    (wash,) = draw_washes(points, 600.0, 600.0)

    assert (wash.x, wash.width, wash.level) == (
        round(CURVE_WIDTH * 20 / 60),
        round(CURVE_WIDTH * 40 / 60) - round(CURVE_WIDTH * 20 / 60),
        "high",
    )
    assert draw_washes([], 600.0, 600.0) == ()


def test_silence_is_hatched_from_the_last_tick_on() -> None:
    """The curve ends there. After ten minutes nothing of it is left."""
    points = tuple(TrendPoint(400.0 + 10 * number, "low", {"ram": 0.5, "gpu0": 0.5}) for number in range(61))
    silent = build_tile(machine("silent", 300.0, trend=points)).picture
    long = build_tile(machine("silent", 5000.0, trend=points)).picture

    assert silent.silent_from == CURVE_WIDTH / 2
    assert max(int(one.split()[0]) for one in silent.line[1:].split("L")) <= CURVE_WIDTH / 2
    assert long.silent_from == 0
    assert build_tile(machine(trend=points)).picture.silent_from is None


def test_largest_fit_is_that_of_machines_that_answer() -> None:
    wall = build_wall(Fleet().machines(calm_workstation()), no_past)

    assert [one.text for one in wall.fits] == ["mi300-1 RAM", "mi300-1 GPU"]
    silent = [replace(one, state="silent") for one in Fleet().machines(calm_workstation())]
    assert build_wall(silent, no_past).fits == ()


def test_largest_fit_of_a_device_is_that_of_its_overview() -> None:
    """Both count page cache that can be reclaimed: 16.4 GiB stood here beside 31.3 on the overview."""
    room = tick(RAM, headroom=16 * GIB, headroom_after_reclaim=31 * GIB, headroom_of="Orin")
    wall = build_wall([machine(tick=room)], no_past)

    assert [(one.size_bytes, one.text) for one in wall.fits] == [
        (30 * GIB, "b RAM"),
        (31 * GIB, "b GPU, of the same memory"),
    ]


def test_memory_that_cpu_and_gpu_share_is_one_fit() -> None:
    """ "41.3 GiB RAM · 41.3 GiB GPU" read as twice as much. Two machines, or two pools, are two memories."""
    room = {"headroom": GIB, "headroom_after_reclaim": 30 * GIB, "headroom_of": "GB10"}
    shared, apart = (machine(tick=tick(*pools, **room)) for pools in ((RAM,), (RAM, CARD)))
    with_carve_out, apart = apart, machine(tick=tick(RAM, CARD, **(room | {"headroom_after_reclaim": 29 * GIB})))
    larger = replace(apart, name="c", tick=tick(replace(RAM, available=50 * GIB), CARD))

    def texts(*machines: Machine) -> list[str]:
        return [one.text for one in list_fits(machines)]

    assert texts(shared) == texts(with_carve_out) == ["b, CPU or GPU"]
    assert texts(apart) == ["b RAM", "b GPU"]
    assert texts(shared, larger) == ["c RAM", "b GPU"]


def test_machines_that_mdns_found_are_beside_the_wall() -> None:
    found = FoundMachine("spark-9", "http://spark-9:6360", "run9")
    wall = build_wall(Fleet().with_found([found])(calm_workstation()), no_past)

    assert [one.name for one in wall.found] == ["spark-9"]
    assert "spark-9" not in {one.machine.name for one in wall.tiles}


def test_own_past_is_read_from_the_history() -> None:
    """Ten minutes in steps of ten seconds, with the level of each."""
    snapshot, history = calm_workstation(), History()
    own = tick(replace(RAM, id="ram"))
    for second in range(700):
        history.add(1000.0 + second, {"pressure.ram.ratio": 0.5, "pressure.ram.level": float(second > 600)})
    past = read_own_past(history, snapshot, own, None)

    assert 55 <= len(past.trend) <= 60
    assert {one.used["ram"] for one in past.trend} == {0.5}
    assert past.trend[0].level == "low"
    assert past.trend[-1].level == "medium"
    assert read_own_past(None, snapshot, own, None).trend == ()
    assert read_own_past(History(), snapshot, own, None).trend == ()


def test_names_of_other_machines_are_text() -> None:
    """Names, kinds and processes of another machine break no page."""
    pages = Pages()
    pages.machines = Fleet().machines

    page = pages.page("machines", calm_workstation())

    reader = Reader(page)
    assert reader.open == []
    assert "</script><b>x" in reader.text
    assert b"<script>alert" not in page
    assert b"machines/%3C/script%3E%3Cb%3Ex" in page


def test_updates_of_the_wall_stay_in_the_window_of_the_stream() -> None:
    """The next update refers to the one before, up to 32 KiB back: 24 tiles are smaller than that."""
    pages = Pages()
    pages.machines = Fleet().machines

    assert len(pages.fragment("machines", calm_workstation())) < 32 << 10


def test_machine_without_figures_has_reasons_and_no_numbers() -> None:
    tile = tiles()["locked"]

    assert tile.picture.towers == ()
    assert tile.note == "it answers 401: check the token"
    assert tile.machine.last_tick_unix is Absent.NOT_AVAILABLE
