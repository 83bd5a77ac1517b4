"""Grouping, sorting and filtering of the process list."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.snapshot import Snapshot
from memwatch_web.pages.processes import (
    MAX_FOUND,
    MAX_LISTED,
    ListQueryError,
    ListView,
    OwnerGroup,
    ProcessRow,
    build_listing,
    parse_view,
)
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.server_charts import SPARK_HEIGHT, SPARK_WIDTH, build_path
from support.daemon_process import RunningDaemon, running_daemon
from support.html_reader import Reader
from support.many_processes import many_processes
from support.sample_parts import GIB, MIB
from support.sample_snapshots import calm_workstation, many_owners


def names(snapshot: Snapshot, view: ListView, growth: GrowthTracker | None = None) -> list[str]:
    rows = build_listing(snapshot, growth or GrowthTracker(), view).rows
    return [row.of.process.title for row in rows if isinstance(row.of, ProcessRow)]


def test_columns_sort_in_both_orders() -> None:
    """By text or by number. Equal rows are sorted by footprint."""
    snapshot = calm_workstation()

    assert names(snapshot, ListView())[:2] == ["python3", "chromium"]
    assert names(snapshot, ListView(sort="pid", descending=False))[0] == "systemd"
    assert names(snapshot, ListView(sort="name", descending=False))[0] == "chromium"
    assert names(snapshot, ListView(sort="user", descending=True))[:2] == ["dockerd", "systemd"]


def test_unknown_values_are_last_in_both_orders() -> None:
    base = calm_workstation()
    dark = replace(base.processes[0], name="dark", rss_bytes=Absent.NOT_PERMITTED)
    snapshot = replace(base, processes=(dark, *base.processes[1:]))

    assert names(snapshot, ListView(sort="rss", descending=True))[-1] == "dark"
    assert names(snapshot, ListView(sort="rss", descending=False))[-1] == "dark"


@pytest.mark.parametrize(
    ("words", "found"),
    [("PYTHON", ["python3"]), ("postgres", ["postgres"]), ("5502", ["rust-analyzer"]), ("no such", [])],
)
def test_filter_matches_names_users_and_pids(words: str, found: list[str]) -> None:
    """Case-insensitive."""
    snapshot = calm_workstation()
    listing = build_listing(snapshot, GrowthTracker(), ListView(words=words))

    assert names(snapshot, ListView(words=words)) == found
    assert (listing.count, listing.left_out) == (len(found), 0)


@pytest.mark.parametrize(
    ("words", "count", "first"),
    [
        ("worker1003", 1, "worker1003"),
        ("1003", 1, "worker1003"),
        ("NIGHTLY.py", 1, "nightly.py"),
        ("job3.service", 86, "worker1599"),
        ("s3cret", 0, None),
        ("<b>", 1, "<b>\\xff\\u001b[2J"),
        ("\x1b", 1, "<b>\\xff\\u001b[2J"),
        ("worker", 599, "worker1599"),
    ],
)
def test_search_finds_processes_that_are_not_listed(
    tmp_path: Path, words: str, count: int, first: str | None
) -> None:
    """By name, script, PID, user, unit and container, but not by an argument. The largest come first."""
    snapshot = many_processes(tmp_path)
    view = parse_view("process", "-footprint", words)
    listing = build_listing(snapshot, GrowthTracker(), view)

    assert (listing.count, listing.total) == (count, 601)
    assert len(listing.rows) == min(count, MAX_FOUND)
    assert names(snapshot, view)[:1] == ([first] if first else [])


def test_page_counts_all_processes_and_escapes_what_it_found(tmp_path: Path) -> None:
    """The page of one that is not listed opens, too."""
    snapshot, pages = many_processes(tmp_path), Pages()
    found = pages.page("processes", snapshot, view=parse_view("process", "-pid", "<b>"))

    assert "1 of 601 processes matches" in Reader(found).text
    assert b"<b>\\xff" not in found
    assert b'"<b>' not in found
    assert "50 of 601 processes, the largest" in Reader(pages.page("processes", snapshot)).text
    everyone = Reader(pages.page("processes", snapshot, view=parse_view("process", "-pid", "worker"))).text
    assert "599 of 601 processes match, the 100 largest shown" in everyone
    view = pages.view_process(snapshot, 1003, 0.0, Absent.NOT_AVAILABLE)
    assert view is not None
    assert (view.process.title, view.ended) == ("worker1003", False)
    assert pages.view_process(snapshot, 4, 0.0, Absent.NOT_AVAILABLE) is None


def with_processes(count: int) -> Snapshot:
    """Return a machine that lists this many processes, each larger than the one before."""
    base = calm_workstation()
    one = base.processes[0]
    listed = [
        replace(one, pid=10_000 + n, name=f"worker{n:04}", script="", footprint_bytes=n * MIB, footprint_range=None)
        for n in range(count)
    ]
    return replace(base, processes=tuple(listed), process_scan=Absent.NOT_AVAILABLE)


def test_a_long_list_has_its_first_rows_and_says_how_many_are_left() -> None:
    """The largest by default, the first of all in another order; a search looks at all."""
    snapshot, pages = with_processes(5_000), Pages()
    largest, by_name, found = (
        pages.page("processes", snapshot, view=parse_view("process", order, words))
        for order, words in (("-footprint", ""), ("name", ""), ("-footprint", "worker0003"))
    )

    assert names(snapshot, ListView())[:2] == ["worker4999", "worker4998"]
    assert names(snapshot, ListView(sort="name", descending=False))[0] == "worker0000"
    assert largest.count(b'<tr id="process-') == MAX_LISTED
    assert "200 of 5,000 processes, the largest" in Reader(largest).text
    assert "4,800 more listed processes" in Reader(largest).text
    assert "200 of 5,000 processes, the first in this order" in Reader(by_name).text
    assert "1 of 5,000 processes matches" in Reader(found).text
    assert "more listed processes" not in Reader(found).text
    assert len(largest) < 400_000


def test_a_short_list_has_all_rows() -> None:
    page = Pages().page("processes", with_processes(MAX_LISTED))

    assert page.count(b'<tr id="process-') == MAX_LISTED
    assert "200 processes" in Reader(page).text
    assert "more listed" not in Reader(page).text


def test_stream_of_a_search_has_its_order_and_words() -> None:
    view = parse_view("unit", "name", "a&b=\u202e")

    assert view.words == "a&b=\\u202e"
    assert view.stream("processes") == "processes-unit&sort=name&q=a%26b%3D%5Cu202e"
    assert ListView("unit").stream("processes") == "processes-unit"


def test_owner_lists_its_largest_processes() -> None:
    """By container, largest first, processes without one last."""
    listing = build_listing(many_owners(), GrowthTracker(), ListView("container"))

    first = listing.rows[0].of
    assert isinstance(first, OwnerGroup)
    assert first.total.name == "c0ffeec0ffee"
    assert [process.name for process in first.members] == ["llama-server"]
    assert first.more == 1
    assert listing.groups == ("process", "container", "user")


@pytest.mark.parametrize(
    ("by", "sort", "words", "sentence"),
    [
        ("colour", "-rss", "", "by is 'colour': use one of process, container, pod, job, unit, user."),
        (
            "process",
            "size",
            "",
            "sort is 'size': use one of pid, name, user, home, footprint, rss, gpu, growth, with",
        ),
        ("unit", "pid", "", "sort is 'pid': use one of name, processes, footprint, rss, gpu, cgroup, with"),
        ("process", "-rss", "x" * 201, "q has 201 characters: use 200 at most."),
    ],
)
def test_invalid_view_is_refused_with_a_sentence(by: str, sort: str, words: str, sentence: str) -> None:
    """The sentence has the given and the valid values."""
    with pytest.raises(ListQueryError) as caught:
        parse_view(by, sort, words)

    assert sentence in str(caught.value)


def test_growth_column_sorts_and_has_a_sparkline() -> None:
    growth, rules = GrowthTracker(), LeakRules(1200.0)
    snapshot = calm_workstation()
    quick = snapshot.processes[3]
    for at in range(0, 601, 10):
        known = [
            replace(one, footprint_bytes=GIB + at * MIB) if one is quick else one for one in snapshot.processes
        ]
        growth.add(float(at), known, rules)

    text = Reader(Pages(growth=growth).page("processes", snapshot, view=ListView(sort="growth"))).text

    assert names(snapshot, ListView(sort="growth"), growth)[0] == quick.name
    assert " mira — not available 921.6 MiB +600.0 MiB" in text


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=61))
def test_sparkline_stays_in_its_view_box(sizes: list[int]) -> None:
    """Points are ordered in time and inside the view box for any sizes."""
    path = build_path([(10.0 * index, size) for index, size in enumerate(sizes)], 0.0, 600.0)

    points = [tuple(map(int, point.split())) for point in path.removeprefix("M").split("L")]
    assert all(0 <= x <= SPARK_WIDTH and 0 <= y <= SPARK_HEIGHT for x, y in points)
    assert all(before[0] <= after[0] for before, after in pairwise(points))


def test_tiny_changes_are_drawn_flat() -> None:
    """4 KiB of 1 GiB are not visible. A flat line has two points."""
    past = [(10.0 * index, GIB + 4096 * (index % 2)) for index in range(60)]

    assert build_path(past, 0.0, 600.0) == "M0 8L59 8"
    assert build_path(past[:1], 0.0, 600.0) == ""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("listing")) as one:
        yield one


def test_url_selects_sorting_grouping_and_filter(daemon: RunningDaemon) -> None:
    """It works without JavaScript, and the table headers keep the view."""
    page = Reader(daemon.get("/processes?sort=pid&q=postgres").body)
    sorts = [(attrs["id"], attrs["value"]) for tag, attrs in page.tags if tag == "button" and "value" in attrs]

    assert ("sort-process-pid", "-pid") in sorts
    assert ("sort-process-name", "name") in sorts
    assert "ascending" in page.values("aria-sort")
    assert "postgres" in page.values("value")
    assert daemon.get("/processes?by=user&sort=-rss").status == 200


def test_invalid_url_is_refused(daemon: RunningDaemon) -> None:
    """422 with the valid values."""
    answers = [daemon.get(f"/processes?{query}") for query in ("by=x", "sort=x", "sort=", "q=" + "x" * 300)]

    assert {answer.status for answer in answers} == {422}
    assert "use one of process, container" in answers[0].json["detail"]
    assert daemon.get("/live?page=processes-x").status == 422
    assert daemon.get("/live?page=processes&sort=x").status == 422
    assert daemon.get("/live?page=processes&q=" + "x" * 201).status == 422
