"""A chart of the history: its data, its picture, and the events that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import pytest
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from memwatch.core.events import Event
from memwatch.core.units import MIB
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render.drawing import list_steps
from memwatch.reporting.render.words import moment
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.charts import Gap
from memwatch_web.pages.history_chart import PLOT, TOP, write_step
from memwatch_web.pages.history_page import build_answer, parse_pool_query, try_query
from memwatch_web.pages.history_view import HistoryView, SeriesSummary, build_view
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import shared_environment
from support.demo_frames import moments_of
from support.sample_past import GAP, SECONDS, SPIKE, past_of
from support.sample_snapshots import critical_gb10

SNAPSHOT = critical_gb10()
PAST = past_of(SNAPSHOT)


def view_of(query: str) -> HistoryView:
    return build_view(PAST, parse_pool_query(PAST, QueryParams(query), SNAPSHOT), SNAPSHOT)


def data_of(query: str) -> Mapping[str, Any]:
    return view_of(query).data


def test_layers_of_the_stack_add_up_to_the_curve() -> None:
    """Used memory is the sum of the layers below the last one, at every time."""
    data = data_of("range=1h")
    (chart,) = data["charts"]
    layers, (curve,) = chart["stack"]["layers"], chart["curves"]

    assert [layer["holder"] for layer in layers] == ["gpu", "processes", "unattributed", "reclaimable"]
    assert len(layers[0]["values"]) == len(curve["unix"])
    for used, *parts in zip(curve["avg"], *(layer["values"] for layer in layers[:-1]), strict=True):
        assert (used is None) == (parts[0] is None)
        if used is not None:
            assert sum(parts) * MIB == pytest.approx(used, abs=2 * MIB + 5e-5 * used)


@pytest.mark.parametrize("held_bytes", [0, 100 << 10, 1 << 30])
def test_layers_of_the_stack_are_the_pieces_of_the_tower(held_bytes: int) -> None:
    """The script writes the figures of one into the other. A layer below half a MiB is 0 MiB, and has a piece."""
    shares = tuple(replace(one, used_bytes=held_bytes) for one in SNAPSHOT.shares)
    snapshot = replace(SNAPSHOT, shares=shares)
    past = past_of(snapshot)
    view = build_view(past, parse_pool_query(past, QueryParams("range=1h"), snapshot), snapshot)
    tower = view.charts[0].picture.tower

    assert tower is not None
    pieces = [one.holder for one in tower.pieces]
    assert ("gpu" in pieces) == (held_bytes > 0)
    assert [one["holder"] for one in view.data["charts"][0]["stack"]["layers"]] == pieces


def test_legend_of_a_live_range_has_the_figures_of_the_overview() -> None:
    """The last interval is up to ten seconds old, and its mean another figure: 34.3 GiB beside 34.6 GiB."""
    pool = SNAPSHOT.pools[0]
    assert isinstance(pool.used_bytes, int)
    used = pool.used_bytes + (1 << 30)
    grown = replace(pool, used_bytes=used, available_bytes=pool.size_bytes - used, contents=())
    snapshot = replace(SNAPSHOT, pools=(grown, *SNAPSHOT.pools[1:]))
    query = parse_pool_query(PAST, QueryParams("range=1h"), snapshot)

    chart = build_view(PAST, query, snapshot).charts[0]

    assert [one.last for one in chart.figures] == [grown.used_bytes]
    assert chart.picture.tower is not None
    assert chart.picture.tower.used_ratio == pytest.approx(used / pool.size_bytes)


@pytest.mark.parametrize(("query", "ends"), [("range=10m", [SNAPSHOT.unix]), ("from=-600&to=-300", [])])
def test_live_chart_ends_with_its_time(query: str, ends: list[float]) -> None:
    """The state above the charts is newer until they are drawn again: they said "now" of figures 12 s older."""
    bounds = re.sub(r"-\d+", lambda found: str(int(SNAPSHOT.unix) + int(found[0])), query)
    pages, wanted = Pages(), try_query(PAST, QueryParams(bounds), SNAPSHOT)

    answer = build_answer(PAST, wanted, SNAPSHOT)
    assert isinstance(answer, HistoryView)
    page = pages.history(SNAPSHOT, answer).decode()

    for chart in answer.charts:
        assert [word.unix for word, _ in chart.picture.times if not word.kind] == ends
    clock = f'<tspan data-unix="{int(SNAPSHOT.unix)}" data-seconds>{moment(SNAPSHOT.unix)[11:19]}</tspan>'
    assert page.count(clock) == len(answer.charts) * len(ends)


def test_time_of_a_forecast_stands_in_the_legend() -> None:
    """It lay over the curve, the forecast and the line of a threshold in a chart of 600 pixels."""
    view = view_of("range=1h&pool=ram")
    page = cast("Any", shared_environment().get_template("past_parts.html").module)

    legend, _, chart = page.chart(view.charts[0], view).partition("</ul>")

    assert view.charts[0].picture.full_at is not None
    assert "full ~" in legend
    assert "full ~" not in chart
    assert [flag.kind for flag in view.charts[0].picture.flags if flag.text == " XID"] == ["critical"]


def test_levels_of_mig_instances_have_their_names_in_the_chart_of_their_gpu() -> None:
    """The flag "27 medium" stood above "OK throughout."."""
    snapshot = moments_of("h100x8-mig").fullest
    past = past_of(snapshot)
    event = Event(9, snapshot.unix - 3000, "level", "GPU 7 · MIG 2: OK → medium", "gpu7.mig2")
    past = replace(past, events=[event, *past.events])

    view = build_view(past, parse_pool_query(past, QueryParams("range=1h&pool=gpu7"), snapshot), snapshot)

    (chart,) = view.charts
    assert re.match(r"OK throughout; MIG 2 medium for \d+ min( \d+ s)? \(", chart.levels)
    assert " MIG 2 medium" in [flag.text for flag in chart.picture.flags]


def test_tower_of_a_range_before_the_history_has_no_figures() -> None:
    """The page failed while it was zoomed beyond its data."""
    query = parse_pool_query(PAST, QueryParams("range=1h"), SNAPSHOT)
    window = replace(query.window, start=SNAPSHOT.unix - 30 * SECONDS, end=SNAPSHOT.unix - 29 * SECONDS, live=False)

    tower = build_view(PAST, replace(query, window=window), SNAPSHOT).charts[0].picture.tower

    assert tower is not None
    assert (tower.used_ratio, tower.unix) == (None, None)


def test_gap_has_no_layers() -> None:
    data = data_of("range=1h")
    chart = data["charts"][0]
    start = SNAPSHOT.unix - SECONDS

    inside = [
        value
        for unix, value in zip(chart["curves"][0]["unix"], chart["stack"]["layers"][0]["values"], strict=True)
        if start + GAP.start + 10 < unix < start + GAP.stop - 10
    ]

    assert set(inside) <= {None}


def test_forecast_and_events_are_drawn() -> None:
    """The forecast reaches the top at the time that its words name, and the chart leaves room for it."""
    picture = view_of("range=1h&pool=ram").charts[0].picture

    assert picture.full_at == picture.now + 40.0
    assert picture.end == pytest.approx(SNAPSHOT.unix + 50.0, abs=10.0)
    assert picture.forecast is not None
    assert picture.forecast.points[-1][1] == TOP
    assert "OOM killer: killed python (4242), 9.1 GiB anonymous" in [flag.title for flag in picture.flags]
    assert " XID" in [flag.text for flag in picture.flags]


def test_tower_is_the_composition_of_the_last_time() -> None:
    """Its pieces stand on each other from the ground, at the scale of the plot."""
    view = view_of("range=1h")
    chart, pool = view.charts[0], SNAPSHOT.pools[0]
    tower = chart.picture.tower

    assert tower is not None
    assert tower.used_ratio == pytest.approx(0.964, abs=0.002)
    assert tower.unix == SNAPSHOT.unix
    ground = TOP + PLOT
    for piece in tower.pieces:
        assert piece.size_bytes is not None
        assert piece.y + piece.height == pytest.approx(ground)
        assert piece.height == pytest.approx(PLOT * piece.size_bytes / pool.size_bytes)
        ground = piece.y


def test_every_length_in_time_has_one_axis() -> None:
    """All charts of a page have the same edges, also those that hold no pool."""
    query = QueryParams("range=1h&series=pool.ram.used_bytes,psi.some.ratio_10s,self.cpu_seconds")
    answer = build_answer(PAST, try_query(PAST, query, SNAPSHOT), SNAPSHOT)

    assert isinstance(answer, HistoryView)
    assert len(answer.charts) == 3
    assert len({(one.picture.start, one.picture.now, one.picture.end) for one in answer.charts}) == 1


@pytest.mark.parametrize(
    ("top", "unit", "words"),
    [
        (1.0, "ratio", ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (128 * 2.0**30, "bytes", ["0 B", "32 GiB", "64 GiB", "96 GiB", "128 GiB"]),
        (121.7 * 2.0**30, "bytes", ["0 B", "32 GiB", "64 GiB", "96 GiB", "121.7 GiB"]),
        (7.0, "count", ["0", "2", "4", "6", "7"]),
    ],
)
def test_axis_has_round_figures(top: float, unit: str, words: list[str]) -> None:
    assert [write_step(value, unit) for value in list_steps(top, unit)] == words


def test_event_of_an_incident_opens_its_page() -> None:
    """Others show the minutes around them."""
    unix = SNAPSHOT.unix - SECONDS + SPIKE.start
    identity = "20261130T153038Z-2"
    one = Incident(identity, "critical", "ram", "System RAM", unix - 1, unix + 60, "System RAM was critical")
    events = [event for event in PAST.events if event.kind in ("level", "mark")]
    told = Event(99, unix + 120, "incident", f"train.py (PID 7) took 12.3 GiB. ({identity})", "ram")
    past = replace(PAST, incidents=(one,), events=[told, *events])
    view = build_view(past, parse_pool_query(past, QueryParams("range=1h"), SNAPSHOT), SNAPSHOT)
    links = {entry.annotation.kind: entry.incident for entry in view.entries}

    assert links["level"] == f"incidents/{identity}"
    assert links["incident"] == f"incidents/{identity}"
    assert links["mark"] == ""
    page = shared_environment().get_template("past_parts.html").module
    rows = cast("Any", page).entries(view.entries, "")
    assert "train.py (PID 7) took " in rows
    assert f"({identity})" not in rows
    flags = {flag.kind: flag for flag in view.charts[0].picture.flags}
    assert flags["mark"].href.startswith("history?")
    assert f"incidents/{identity}" in {flag.href for flag in view.charts[0].picture.flags}
    (recorded,) = [entry.number for entry in view.entries if entry.annotation.kind == "incident"]
    assert recorded not in {flag.number for flag in view.charts[0].picture.flags}


def test_legend_says_that_a_curve_is_of_earlier_where_another_goes_on() -> None:
    """A process whose footprint became a range had "footprint —" beside both of its bounds."""
    view = view_of("range=1h")
    (now,) = view.charts[0].figures
    gone, never = replace(now, last=None), replace(now, last=None, mean=None)
    page = cast("Any", shared_environment().get_template("past_parts.html").module)

    def values(*figures: SeriesSummary) -> list[str]:
        chart = replace(view.charts[0], figures=figures)
        legend = page.chart(chart, view).partition('class="past-legend"')[2].partition("</ul>")[0]
        return re.findall("<b>(.*?)</b>", legend)

    assert values(now, gone, never)[1:] == ["earlier", "—"]
    assert values(gone) == ["—"]


def test_earlier_gaps_are_folded() -> None:
    """A busy machine had a line for each of dozens."""
    view = replace(view_of("range=1h"), gaps=tuple(Gap(60.0 * n, 60.0 * n + 5, f"gap {n}") for n in range(9)))
    page = cast("Any", shared_environment().get_template("past_parts.html").module)

    shown, _, folded = page.list(view, SNAPSHOT).partition("3 earlier gaps")

    assert re.findall(r"gap.(\d)<", shown) == list("345678")
    assert re.findall(r"gap.(\d)<", folded) == list("012")


@pytest.mark.parametrize(
    ("query", "sentence"), [("pool=nvram", "pool is 'nvram': use one of ram."), ("range=2h", "range is '2h'")]
)
def test_invalid_query_is_refused_with_the_valid_values(query: str, sentence: str) -> None:
    with pytest.raises(ProblemError, match=sentence):
        parse_pool_query(PAST, QueryParams(query), SNAPSHOT)
