"""Every page, and both pictures, of machines that are hard to draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.neighbours.machines import list_machines
from memwatch_monitor.neighbours.tick import build_tick
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_data import RANGES, HistoryInput
from memwatch_web.pages.history_page import build_answer, try_query
from memwatch_web.pages.history_view import HistoryView
from memwatch_web.pages.machine_wall import build_tile
from memwatch_web.pages.picture import FORMS, build_picture, parse_query
from memwatch_web.pages.processes import GROUPS, parse_view
from memwatch_web.pages.renderer import MachinePage, Pages
from support.demo_frames import moments_of
from support.hard_machines import HARD_MACHINES, HOSTILE_NAMES, no_figures
from support.html_reader import Reader
from support.sample_past import END, past_of

# What Python and JavaScript write for a value that is not there.
NO_VALUE = re.compile(r"\b(NaN|nan|None(?! reported| configured)|inf|undefined|Absent|Infinity)\b|Undefined")
NO_LENGTH = re.compile(rb' (?:width|height|x|y|d|points)="[^"]*(?:nan|inf)[^"]*"')
# In the name of the machine whose processes have such names.
NAMED = HOSTILE_NAMES[-2]
ZERO = re.compile(r"(?<![\d.,])0(\.0)? ?([KMGT]i)?B\b|(?<![\d.,])0(\.0)?%")


@cache
def machine(name: str) -> tuple[Snapshot, HistoryInput]:
    now = replace(HARD_MACHINES[name](), unix=END)
    return now, past_of(now)


def draw_history(pages: Pages, now: Snapshot, past: HistoryInput) -> bytes:
    query = try_query(past, QueryParams("range=1h"), now)
    return pages.history(now, build_answer(past, query, now))


def draw_process(pages: Pages, now: Snapshot, _: HistoryInput) -> bytes:
    drawn = b""
    for one in now.processes:
        view = pages.view_process(now, one.pid, 0.0, Absent.NOT_PERMITTED)
        assert view is not None
        drawn = pages.process(now, view)
        assert find_no_values(drawn) == []
    return drawn


def draw_machine(pages: Pages, now: Snapshot, _: HistoryInput) -> bytes:
    (one,) = list_machines(build_tick(now, "own"), ())
    assert one.tick is not None
    return pages.machine(now, MachinePage(build_tile(one), None, None, [one.tick] * 3))


def draw_earlier(pages: Pages, now: Snapshot, past: HistoryInput) -> bytes:
    """Draw the moment of three minutes ago, or the page that refuses it where no pool has a past."""
    try:
        return pages.landscape_then(now, past, END - 180, RANGES[0])
    except ProblemError as error:
        assert not any(isinstance(pool.used_bytes, int) for pool in now.pools)
        return pages.refused("Not found", str(error))


Draw = Callable[[Pages, Snapshot, HistoryInput], bytes]


def draw(name: str) -> Draw:
    return lambda pages, now, _: pages.page(name, now)


def draw_processes(by: str) -> Draw:
    return lambda pages, now, _: pages.page("processes", now, view=parse_view(by, "-footprint", ""))


PAGES: dict[str, Draw] = {
    **{name: draw(name) for name in Pages.names},
    **{f"processes by {by}": draw_processes(by) for by in GROUPS},
    "an earlier time": draw_earlier,
    "history with its charts": draw_history,
    "process": draw_process,
    "machine": draw_machine,
}


def render(name: str, page: str) -> bytes:
    now, past = machine(name)
    pages = Pages(past=lambda: past)
    pages.machines = lambda snapshot: list_machines(build_tick(snapshot, "own"), ())
    return PAGES[page](pages, now, past)


def find_no_values(page: bytes) -> list[str]:
    """Return what is written for missing values, with the words around it. Two processes have such names."""
    text = Reader(page).text
    for name in ("NaN", "None"):
        text = re.sub(rf"(?<![\w.]){name}(?![\w.])", "", text) if NAMED in text else text
    return [text[max(0, one.start() - 60) : one.end() + 20] for one in NO_VALUE.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", HARD_MACHINES)
def test_page_is_whole_and_has_no_value_of_a_programming_language(name: str, page: str) -> None:
    found = render(name, page)
    reader = Reader(found)
    ids = reader.values("id")

    assert reader.open == []
    assert [one for one in set(ids) if ids.count(one) > 1] == []
    assert find_no_values(found) == []
    assert NO_LENGTH.findall(found) == []


@pytest.mark.parametrize("page", PAGES)
def test_unknown_figure_is_never_zero(page: str) -> None:
    """Of a machine without any figure, except for its own settings and its past."""
    text = Reader(render("no_figures", page)).text

    assert [text[max(0, one.start() - 60) : one.end() + 10] for one in ZERO.finditer(text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_hostile_names_stay_words(page: str) -> None:
    """No tag, attribute, control character or direction of a name is one of the page."""
    found = render("hostile_everywhere", page)
    handlers = [key for _, attrs in Reader(found).tags for key in attrs if key.startswith("on")]

    assert handlers == []
    assert b"<script>alert" not in found
    assert b"<svg/onload" not in found
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", found)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029\x80-\x9f]", found.decode())


def words(root: ElementTree.Element) -> Iterator[str]:
    for one in root.iter():
        yield from filter(None, (one.text, one.tail))


@pytest.mark.parametrize("size", FORMS)
@pytest.mark.parametrize("name", HARD_MACHINES)
def test_picture_is_a_file_of_its_size(name: str, size: str) -> None:
    now, past = machine(name)
    body = Pages().card(build_picture(Pages(), now, past, parse_query(QueryParams(f"size={size}"), now)))
    root = ElementTree.fromstring(body)
    given = [one.get(key, "0") for one in root.iter() for key in ("x", "y", "width", "height")]
    numbers = [float(one) for one in given if not one.endswith("%")]

    assert root.get("width") == size.partition("x")[0]
    assert all(-100 <= number <= 1300 for number in numbers)
    if name != "hostile_everywhere":
        assert NO_VALUE.findall(" ".join(words(root))) == []


def test_there_are_26_hostile_names() -> None:
    assert len(set(HOSTILE_NAMES)) == 26
    assert all(isinstance(one.used_bytes, Absent) for one in no_figures().pools)


def test_pool_without_a_level_has_no_thresholds_in_its_chart() -> None:
    """The carve-out of an APU is not judged: lines at 60, 80 and 95% would say that it is."""
    now = replace(moments_of("strix-halo").fullest, unix=END)
    past = past_of(now)
    query = try_query(past, QueryParams("range=1h"), now)
    view = build_answer(past, query, now)
    assert isinstance(view, HistoryView)
    drawn = {one.chart.id: one.picture.thresholds for one in view.charts}
    judged = {one.target for one in now.pressure}

    assert {bool(drawn[pool.id]) for pool in now.pools if pool.id in judged} == {True}
    assert [drawn[pool.id] for pool in now.pools if pool.id not in judged] == [()]
