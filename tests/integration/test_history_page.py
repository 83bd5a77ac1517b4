"""The history page: statistics, exports, queries and escaping."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from memwatch.core.snapshot import Snapshot
from memwatch_web.pages.history_chart import PLOT
from memwatch_web.pages.history_data import HistoryInput
from memwatch_web.pages.history_page import build_answer, try_query
from memwatch_web.pages.history_view import HistoryView, RejectedQuery
from memwatch_web.pages.past_picture import UNITS
from memwatch_web.pages.renderer import Pages
from support.daemon_process import RunningDaemon, running_daemon
from support.html_reader import Reader
from support.paths import STATIC
from support.sample_mig import eight_by_seven
from support.sample_past import END, past_of
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, hostile_names, mig_server

PAGES = Pages()
CALM = calm_workstation()
PAST = past_of(CALM)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A DGX Spark demo with seven minutes of history: model load, leak, OOM kill."""
    with running_daemon(tmp_path_factory.mktemp("past"), "--demo", "dgx-spark", "--speed", "1") as one:
        yield one


def fixed_window(daemon: RunningDaemon) -> str:
    """Return the query of the last 400 s with fixed bounds."""
    end = int(daemon.snapshot()["unix"])
    return f"from={end - 400}&to={end}"


def answer_of(past: HistoryInput, query: str | dict[str, str], snapshot: Snapshot) -> HistoryView | RejectedQuery:
    return build_answer(past, try_query(past, QueryParams(query), snapshot), snapshot)


def shown(sample: Any, query: str = "") -> tuple[HistoryView | RejectedQuery, bytes]:
    snapshot = SAMPLES[sample]() if isinstance(sample, str) else sample
    answer = answer_of(past_of(snapshot), query, snapshot)
    return answer, PAGES.history(snapshot, answer)


def hrefs(page: str) -> dict[str, str]:
    """Return the links by id."""
    links = re.findall(r'<a (?:class="\w+" )?(?:id="([\w-]+)" href="([^"]*)"|href="([^"]*)" id="([\w-]+)")', page)
    return {one or other: html.unescape(first or second) for one, first, second, other in links}


def table_of(page: str) -> dict[str, list[float]]:
    """Return min, avg and max by series from the table of the page."""
    rows = re.findall(r'<tr data-series="([^"]+)">(.*?)</tr>', page, re.DOTALL)
    return {
        name: [float(value) for value in re.findall(r'<data class="figure" value="([^"]+)"', row)]
        for name, row in rows
    }


def test_table_matches_the_api(daemon: RunningDaemon) -> None:
    """Min, avg and max of each series come from the same buckets."""
    page = daemon.get(f"/history?{fixed_window(daemon)}").text
    answer = daemon.get("/" + hrefs(page)["past-json"]).json

    table = table_of(page)

    assert set(table) == {series["name"] for series in answer["series"]}
    assert len(table) >= 4
    for series in answer["series"]:
        least, mean, most = ([value for value in series[one] if value is not None] for one in ("min", "avg", "max"))
        assert table[series["name"]] == pytest.approx([min(least), sum(mean) / len(mean), max(most)])


def unpacked(curve: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return the columns as the script computes them."""
    mean, below, above = curve["avg"], curve["below"], curve["above"]
    return {
        "min": [None if one is None else one - less for one, less in zip(mean, below, strict=True)],
        "avg": mean,
        "max": [None if one is None else one + more for one, more in zip(mean, above, strict=True)],
    }


def test_chart_data_matches_the_api(daemon: RunningDaemon) -> None:
    """The same columns, rounded to five digits or four decimals."""
    page = daemon.get(f"/history?{fixed_window(daemon)}").text
    answer = daemon.get("/" + hrefs(page)["past-json"]).json
    found = re.search(r'<script type="application/json" id="past-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None

    curves = [curve for chart in json.loads(found[1])["charts"] for curve in chart["curves"]]

    assert [curve["name"] for curve in curves] == list(table_of(page))
    drawn = {(curve["name"], figure): values for curve in curves for figure, values in unpacked(curve).items()}
    for series in answer["series"]:
        for figure in ("min", "avg", "max"):
            assert drawn[series["name"], figure] == pytest.approx(series[figure], rel=1e-4, abs=1e-4)


def test_picture_of_a_pool_is_drawn_on_request(daemon: RunningDaemon) -> None:
    picture, unknown = daemon.get("/history/picture"), daemon.get("/history/picture?pool=none")

    assert picture.headers["content-type"] == "image/svg+xml"
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)(?=L|\")", picture.text)]
    assert len(heights) > 2
    assert all(34 <= height <= 234 for height in heights)
    assert unknown.status == 422


def test_landscape_of_an_earlier_time_has_its_towers_and_holders(daemon: RunningDaemon) -> None:
    """The overview has the past of now inline, and asks for this one while the pointer is on it."""
    then = int(daemon.snapshot()["unix"]) - 20
    found, wrong = daemon.get(f"/landscape?at={then}"), daemon.get("/landscape?range=2y")

    assert found.status == 200
    assert "s ago · Esc = now" in found.text
    assert 'id="who"' in found.text
    assert wrong.status == 422
    assert 'class="past"' in daemon.get("/").text
    assert daemon.get("/?range=1h").status == 200
    assert daemon.get("/?range=2y").status == 422


def test_picture_of_now_and_of_an_earlier_time(daemon: RunningDaemon) -> None:
    """A file that needs no other; its address is in the head of the overview only if others can reach the pages."""
    then = int(daemon.snapshot()["unix"]) - 200
    now, before, future = (
        daemon.get(path) for path in ("/picture.svg", f"/picture.svg?at={then}", f"/picture.svg?at={then + 9000}")
    )

    assert [one.status for one in (now, before, future)] == [200, 200, 422]
    assert now.headers["content-type"] == "image/svg+xml"
    assert "CUDA Pool" in now.text
    assert "⊂ System RAM" in before.text
    assert now.text != before.text
    assert 'property="og:title"' in daemon.get("/").text
    assert "og:image" not in daemon.get("/").text


def test_csv_matches_json(daemon: RunningDaemon) -> None:
    """The same rows in a named file, with RFC 3339 times and units in the header."""
    links = hrefs(daemon.get(f"/history?{fixed_window(daemon)}").text)

    answer, file = daemon.get("/" + links["past-json"]).json, daemon.get("/" + links["past-csv"])
    header, *rows = csv.reader(io.StringIO(file.text))

    assert file.headers["content-type"].startswith("text/csv")
    assert re.fullmatch(
        r'attachment; filename="memwatch-spark-1a2b-\d{8}T\d{6}Z-\d{8}T\d{6}Z\.csv"',
        file.headers["content-disposition"],
    )
    assert header[0] == "time"
    assert header[1] == "pool.ram.used_bytes min [bytes]"
    times = [datetime.fromisoformat(row[0].replace("Z", "+00:00")).timestamp() for row in rows]
    assert times == sorted(times)
    for number, series in enumerate(answer["series"]):
        for offset, figure in enumerate(("min", "avg", "max")):
            column = 1 + 3 * number + offset
            assert header[column] == f"{series['name']} {figure} [{series['unit']}]"
            found = [(at, row[column]) for at, row in zip(times, rows, strict=True) if row[column]]
            known = [
                (at, value) for at, value in zip(series["unix"], series[figure], strict=True) if value is not None
            ]
            assert [at for at, _ in found] == pytest.approx([at for at, _ in known])
            assert [float(value) for _, value in found] == [value for _, value in known]


def test_a_gap_is_an_empty_cell_in_csv_and_null_in_json(tmp_path: Path) -> None:
    """No values are invented between two runs of a daemon, neither in files nor on the page."""
    state = ("--state-dir", str(tmp_path / "state"), "--interval", "100ms")
    began = time.time()
    for pause in (1.5, 0.0):
        with running_daemon(tmp_path, *state) as daemon:
            daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 12)
            window = f"from={began - 1}&to={time.time() + 1}"
            page = daemon.get(f"/history?{window}&series=pool.ram.used_bytes").text
            links = hrefs(page)
            series = daemon.get("/" + links["past-json"]).json["series"][0]
            rows = list(csv.reader(io.StringIO(daemon.get("/" + links["past-csv"]).text)))
        if pause:
            time.sleep(pause)
            between = time.time() - pause / 2

    gap = max(at for at, unix in enumerate(series["unix"]) if unix <= between)
    assert [series[column][gap] for column in ("min", "avg", "max")] == [None] * 3
    # Two answers may divide the same seconds differently, so the row has no fixed number.
    times = [datetime.fromisoformat(row[0].replace("Z", "+00:00")).timestamp() for row in rows[1:]]
    empty = [at for at, row in enumerate(rows[1:]) if row[1:] == ["", "", ""]]
    # At ten samples a second, a busy machine leaves gaps as well.
    wide = max(at for at, unix in enumerate(times) if unix <= between)
    assert wide in empty
    assert times[wide + 1] == pytest.approx(series["unix"][gap + 1], abs=0.15)
    assert all(all(row[1:]) for at, row in enumerate(rows[1:]) if at not in empty)
    assert ": memwatchd was not running" in page
    assert "memwatchd restarted" in page or "memwatchd started on" in page


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("range=2h", "range is '2h': use one of 10m, 1h, 6h, 24h, 7d, 30d."),
        ("from=yesterday", "from is 'yesterday': give Unix seconds or a time such as 2026-01-31T12:00:00Z."),
        ("from=yesterday&from=1", "from is given 2 times: give it once."),
        ("from=2&to=1", "from must be earlier than to."),
        ("from=-5&to=1", "from is before 1970"),
        ("from=99999999999", "which is in the future"),
        ("to=1e400", "to is '1e400'"),
        ("series=pool.ram.nonsense", "series is 'pool.ram.nonsense': no such series. Available: "),
        ("series=" + "pool.ram.used_bytes," * 30, "at most 20 in one request."),
        ("series=%3Cscript%3Ealert(1)%3C/script%3E", "series is '<script>alert(1)</script>'"),
    ],
)
def test_invalid_query_shows_a_page_with_the_reason(daemon: RunningDaemon, query: str, reason: str) -> None:
    """422 with the given and the valid values and links to valid ranges."""
    answer = daemon.get(f"/history?{query}")

    page = Reader(answer.body)
    assert answer.status == 422
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert reason in page.text
    assert "Show last 10 m, 1 h, 6 h, 24 h, 7 d, 30 d" in page.text
    assert page.open == []
    assert b"<script>alert" not in answer.body


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(query={"from": "1e308"})
@example(query={"from": "0001-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z"})
@example(query={"series": "\x00", "range": "9" * 5000})
@example(query={"from": "", "to": "", "range": "", "series": ""})
@given(
    query=st.dictionaries(
        st.sampled_from(["range", "from", "to", "series"]), st.text(max_size=30) | st.floats().map(str), max_size=4
    )
)
def test_any_query_shows_a_page(query: dict[str, str]) -> None:
    answer = answer_of(PAST, query, CALM)

    page = Reader(PAGES.history(CALM, answer))

    assert page.open == []
    assert isinstance(answer, HistoryView) or answer.sentence


@pytest.mark.parametrize("sample", SAMPLES)
def test_page_of_every_machine_has_valid_markup(sample: str) -> None:
    """Tags are balanced, ids are unique, and there are no inline styles or external links."""
    _, body = shown(sample)

    page = Reader(body)
    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert page.values("style") == []
    assert not [link for link in page.values("src") + page.values("href") if re.match(r"\w+:|//", link)]


@pytest.mark.parametrize(
    "reason",
    [
        "CUDA Pool ⊂ System RAM",
        "can be allocated on NVIDIA GB10",
        "no data for 5 min",
        "Before VAE Load (process 4242)",
        "<script>alert(3)</script>",
        "the driver of gpu0 reported XID 31: MMU fault",
        "Critical for ",
        "download CSV or JSON",
    ],
)
def test_page_contains_text(reason: str) -> None:
    assert reason in Reader(shown(critical_gb10())[1]).text


def test_foreign_names_are_escaped() -> None:
    """Marks, processes and hosts inject no markup."""
    _, body = shown(hostile_names())

    assert b"<script>alert" not in body
    assert b"\x1b" not in body


def test_selected_series_are_shown_and_kept_by_links() -> None:
    answer, body = shown(critical_gb10(), "range=1h&series=swap.used_bytes&series=psi.some.ratio_10s")
    page = Reader(body)
    queues = [attrs for tag, attrs in page.tags if tag == "input" and attrs.get("type") == "checkbox"]
    ways = [href for href in page.values("href") if href.startswith("history?")]

    assert isinstance(answer, HistoryView)
    assert [one.chart.label for one in answer.charts] == ["Memory pressure (PSI)", "Swap"]
    assert {box["value"] for box in queues if "checked" in box} == {"swap.used_bytes", "psi.some.ratio_10s"}
    # The only link without them resets to the default.
    assert [way for way in ways if "series=swap.used_bytes,psi.some.ratio_10s" not in way] == ["history?range=1h"]


def test_every_link_is_a_valid_query() -> None:
    snapshot = critical_gb10()
    past = past_of(snapshot)
    page = Reader(shown(snapshot, "range=1h")[1])
    ways = sorted({href.partition("?")[2] for href in page.values("href") if href.startswith("history?")})

    answers = [answer_of(past, way, snapshot) for way in ways]

    assert len(ways) >= 12
    assert [answer for answer in answers if isinstance(answer, RejectedQuery)] == []


def test_missing_data_has_no_level_and_no_latest_value() -> None:
    """A window before the history has no level. A series that ended has no current value."""
    snapshot = critical_gb10()
    past = past_of(snapshot)
    past.history.machine.add(END + 1, {"pool.gone.used_bytes": 5.0})
    for second in range(2, 200, 2):
        past.history.machine.add(END + second, {"self.cpu_seconds": 5.0})
    later = replace(snapshot, unix=snapshot.unix + 200)

    before = answer_of(past, f"from={snapshot.unix - 9000}&to={snapshot.unix - 8000}", later)
    gone = answer_of(past, "series=pool.gone.used_bytes", later)

    assert isinstance(before, HistoryView)
    assert isinstance(gone, HistoryView)
    assert before.charts[0].levels == "No level data in this range."
    assert [gap.words for gap in before.gaps] == ["no history in this range"]
    assert (gone.charts[0].figures[0].maximum, gone.charts[0].figures[0].last) == (5.0, None)


def test_time_at_a_level_is_an_upper_bound_at_low_resolution() -> None:
    """Five minutes with one critical second were not critical for five minutes."""
    hour, day = (shown(critical_gb10(), f"range={name}")[0] for name in ("1h", "24h"))

    assert isinstance(hour, HistoryView)
    assert isinstance(day, HistoryView)
    assert re.search(r"Critical for \d+ min", hour.charts[0].levels)
    assert re.search(r"Critical for up to \d+ min", day.charts[0].levels)


def test_chart_has_a_gap_in_its_line_and_in_its_layers() -> None:
    """There is one piece before the gap and one after it, and the gap is drawn between them."""
    answer, body = shown(critical_gb10(), "range=1h&series=pool.ram.used_bytes")

    assert isinstance(answer, HistoryView)
    picture = answer.charts[0].picture
    before, after = picture.traces[0].lines
    (gap,) = [(at * UNITS, (at + width) * UNITS) for at, width in picture.gaps if width > 0.05]
    assert before.points[-1][0] == pytest.approx(gap[0], abs=5)
    assert after.points[0][0] == pytest.approx(gap[1], abs=5)
    assert len([layer for layer in picture.layers if layer.kind == "devices"]) == 2
    assert body.count(b'class="gap"') == len(picture.gaps)


def test_every_pool_of_a_machine_with_many_gpus_has_its_composition() -> None:
    """Each to its own scale: the tower beside a chart is as high as the use of its pool."""
    snapshot = replace(eight_by_seven(), unix=END)
    answer, body = shown(snapshot)

    assert isinstance(answer, HistoryView)
    drawn = {chart.chart.id: chart.picture for chart in answer.charts if chart.picture.layers}
    assert len(snapshot.pools) == 9
    assert set(drawn) == {pool.id for pool in snapshot.pools}
    assert body.count(b'class="then"') == 9
    for pool in snapshot.pools:
        tower = drawn[pool.id].tower
        assert tower is not None
        assert tower.used_ratio is not None
        held = sum(piece.height for piece in tower.pieces if piece.kind != "page_cache")
        assert held == pytest.approx(PLOT * tower.used_ratio, abs=0.01)


def test_empty_history_is_stated() -> None:
    assert "No history yet." in Reader(PAGES.page("history", CALM)).text


def test_page_with_its_assets_is_below_90_kb() -> None:
    """Compressed, for the largest page."""
    _, body = shown(mig_server())
    files = {
        name for name in Reader(body).values("src") + Reader(body).values("href") if name.startswith("static/")
    }

    sizes = [len(gzip.compress((STATIC / name.removeprefix("static/")).read_bytes())) for name in files]

    assert len(sizes) >= 8
    assert sum(sizes) + len(gzip.compress(body)) < 90_000
