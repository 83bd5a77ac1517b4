"""The page of the past says what the API says, in a table and in files; a query it cannot use gets a sentence."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from starlette.datastructures import QueryParams

from memwatch_web.pages.history_page import answer_of
from memwatch_web.pages.history_view import Refused, View
from memwatch_web.pages.renderer import Pages
from support.daemon_process import RunningDaemon, running_daemon
from support.html_reader import Reader
from support.paths import STATIC
from support.sample_past import END, SECONDS, past_of
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, hostile_names, mig_server

PAGES = Pages()
CALM = calm_workstation()
PAST = past_of(CALM)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A DGX Spark with a past of seven minutes: a model was loaded, a leak went critical, a process was killed."""
    with running_daemon(tmp_path_factory.mktemp("past"), "--demo", "dgx-spark", "--speed", "1") as one:
        yield one


def fixed_window(daemon: RunningDaemon) -> str:
    """The minutes before now, as a permalink."""
    end = int(daemon.snapshot()["unix"])
    return f"from={end - 400}&to={end}"


def shown(sample: Any, query: str = "") -> tuple[View | Refused, bytes]:
    snapshot = SAMPLES[sample]() if isinstance(sample, str) else sample
    answer = answer_of(past_of(snapshot), QueryParams(query), snapshot)
    return answer, PAGES.history(snapshot, answer)


def hrefs(page: str) -> dict[str, str]:
    """Where the links with an id lead."""
    links = re.findall(r'<a (?:class="\w+" )?(?:id="([\w-]+)" href="([^"]*)"|href="([^"]*)" id="([\w-]+)")', page)
    return {one or other: html.unescape(first or second) for one, first, second, other in links}


def table_of(page: str) -> dict[str, list[float]]:
    """Least, mean and greatest by series, as the table of the page has them."""
    rows = re.findall(r'<tr data-series="([^"]+)">(.*?)</tr>', page, re.DOTALL)
    return {
        name: [float(value) for value in re.findall(r'<data class="figure" value="([^"]+)"', row)]
        for name, row in rows
    }


def test_the_table_says_what_the_api_says(daemon: RunningDaemon) -> None:
    """Least, mean and greatest of each series, from the same buckets that a script gets."""
    page = daemon.get(f"/history?{fixed_window(daemon)}").text
    answer = daemon.get("/" + hrefs(page)["past-json"]).json

    table = table_of(page)

    assert set(table) == {series["name"] for series in answer["series"]}
    assert len(table) >= 4
    for series in answer["series"]:
        least, mean, most = ([value for value in series[one] if value is not None] for one in ("min", "avg", "max"))
        assert table[series["name"]] == pytest.approx([min(least), sum(mean) / len(mean), max(most)])


def test_what_is_drawn_is_what_the_api_says(daemon: RunningDaemon) -> None:
    """The data that the script draws are the same columns, to the byte and to a hundred-thousandth."""
    page = daemon.get(f"/history?{fixed_window(daemon)}").text
    answer = daemon.get("/" + hrefs(page)["past-json"]).json
    found = re.search(r'<script type="application/json" id="past-data" data-part>(.*?)</script>', page, re.DOTALL)
    assert found is not None

    curves = [curve for chart in json.loads(found[1])["charts"] for curve in chart["curves"]]

    assert [curve["name"] for curve in curves] == list(table_of(page))
    drawn = {(curve["name"], figure): curve[figure] for curve in curves for figure in ("min", "avg", "max")}
    for series in answer["series"]:
        for figure in ("min", "avg", "max"):
            exact = 1 if series["unit"] == "bytes" else 1e-5
            assert drawn[series["name"], figure] == pytest.approx(series[figure], abs=exact)


def test_csv_equals_json(daemon: RunningDaemon) -> None:
    """Every moment and every figure, in a file with a name; times are RFC 3339 and units stand in the header."""
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
    """Between two runs of a daemon nothing is known, and nothing is made up: not in files, not on the page."""
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
        time.sleep(pause)

    gap = max(range(len(series["unix"]) - 1), key=lambda at: series["unix"][at + 1] - series["unix"][at])
    assert [series[column][gap] for column in ("min", "avg", "max")] == [None] * 3
    # Two answers need not cut the same seconds into the same steps, so the line has no number of its own.
    times = [datetime.fromisoformat(row[0].replace("Z", "+00:00")).timestamp() for row in rows[1:]]
    empty = [at for at, row in enumerate(rows[1:]) if row[1:] == ["", "", ""]]
    # Ten ticks a second leave holes where the machine stands still for some; the one between two runs is wider.
    (wide,) = [at for at in empty if times[at + 1] - times[at - 1] > 1.5]
    assert times[wide + 1] == pytest.approx(series["unix"][gap + 1], abs=0.15)
    assert all(all(row[1:]) for at, row in enumerate(rows[1:]) if at not in empty)
    assert "memwatchd did not run: nothing is known of" in page
    assert "memwatchd was started again" in page or "memwatchd started watching" in page


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("range=2h", "range is '2h': use one of 1h, 24h, 7d, 30d."),
        ("from=yesterday", "from is 'yesterday': give Unix seconds or a time such as 2026-01-31T12:00:00Z."),
        ("from=2&to=1", "from must be earlier than to."),
        ("from=-5&to=1", "from is before 1970"),
        ("from=99999999999", "which is in the future"),
        ("to=1e400", "to is '1e400'"),
        ("series=pool.ram.nonsense", "series is 'pool.ram.nonsense': no such series. There are: "),
        ("series=" + "pool.ram.used_bytes," * 30, "at most 20 in one request."),
        ("series=%3Cscript%3Ealert(1)%3C/script%3E", "series is '<script>alert(1)</script>'"),
    ],
)
def test_a_query_that_cannot_be_used_gets_a_page_with_a_sentence(
    daemon: RunningDaemon, query: str, sentence: str
) -> None:
    """422, the value and what would work, and a way on; no blank page and no JSON."""
    answer = daemon.get(f"/history?{query}")

    page = Reader(answer.body)
    assert answer.status == 422
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert sentence in page.text
    assert "Show the last 1 h, 24 h, 7 d, 30 d" in page.text
    assert page.open == []
    assert b"<script>alert" not in answer.body


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(query={"from": "1e308"})
@example(query={"from": "0001-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z"})
@example(query={"series": "\x00", "range": "9" * 5000})
@example(query={"from": "", "to": "", "range": "", "series": ""})
@given(
    query=st.dictionaries(
        st.sampled_from(["range", "from", "to", "series"]), st.text(max_size=30) | st.floats().map(str), max_size=4
    )
)
def test_rubbish_in_a_query_is_a_page_or_a_sentence(query: dict[str, str]) -> None:
    """Whatever somebody types or sends."""
    answer = answer_of(PAST, QueryParams(query), CALM)

    page = Reader(PAGES.history(CALM, answer))

    assert page.open == []
    assert isinstance(answer, View) or answer.sentence


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_machine_has_a_sound_page(sample: str) -> None:
    """Every tag closes, no id is there twice, nothing is inline and no link leads away."""
    _, body = shown(sample)

    page = Reader(body)
    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert page.values("style") == []
    assert not [link for link in page.values("src") + page.values("href") if re.match(r"\w+:|//", link)]


@pytest.mark.parametrize(
    "sentence",
    [
        "CUDA Pool ⊂ System RAM",
        "headroom of NVIDIA GB10",
        "memwatchd did not run: nothing is known of 5 min",
        "Before VAE Load (process 4242)",
        "<script>alert(3)</script>",
        "the driver of gpu0 reported XID 31: MMU fault",
        "In what is known of this time critical for",
        "save as CSV or JSON",
    ],
)
def test_the_page_says(sentence: str) -> None:
    """Word for word."""
    assert sentence in Reader(shown(critical_gb10())[1]).text


def test_names_chosen_by_others_stay_text() -> None:
    """A mark, a process or a host is no markup and closes no script."""
    _, body = shown(hostile_names())

    assert b"<script>alert" not in body
    assert b"\x1b" not in body


def test_a_chosen_series_is_the_only_one_and_stays_chosen() -> None:
    """What the form sends is shown, and every link of the page keeps it."""
    answer, body = shown(critical_gb10(), "range=1h&series=swap.used_bytes&series=psi.some.ratio_10s")
    page = Reader(body)
    boxes = [attrs for tag, attrs in page.tags if tag == "input" and attrs.get("type") == "checkbox"]
    ways = [href for href in page.values("href") if href.startswith("history?")]

    assert isinstance(answer, View)
    assert [one.chart.label for one in answer.drawn] == ["Waiting for memory", "Swap"]
    assert {box["value"] for box in boxes if "checked" in box} == {"swap.used_bytes", "psi.some.ratio_10s"}
    # The one way without them leads to the usual ones.
    assert [way for way in ways if "series=swap.used_bytes,psi.some.ratio_10s" not in way] == ["history?range=1h"]


def test_every_link_leads_to_a_page() -> None:
    """Whatever is pressed, it is no refusal."""
    snapshot = critical_gb10()
    past = past_of(snapshot)
    page = Reader(shown(snapshot, "range=1h")[1])
    ways = sorted({href.partition("?")[2] for href in page.values("href") if href.startswith("history?")})

    answers = [answer_of(past, QueryParams(way), snapshot) for way in ways]

    assert len(ways) >= 12
    assert [answer for answer in answers if isinstance(answer, Refused)] == []


def test_what_is_not_known_is_not_called_low_and_not_the_latest() -> None:
    """A window before everything has no level; a series that has ended has no figure of now."""
    snapshot = critical_gb10()
    past = past_of(snapshot)
    past.history.add(END + 1, {"pool.gone.used_bytes": 5.0})
    for second in range(2, 200, 2):
        past.history.add(END + second, {"self.cpu_seconds": 5.0})
    later = replace(snapshot, unix=snapshot.unix + 200)

    before = answer_of(past, QueryParams(f"from={snapshot.unix - 9000}&to={snapshot.unix - 8000}"), later)
    gone = answer_of(past, QueryParams("series=pool.gone.used_bytes"), later)

    assert isinstance(before, View)
    assert isinstance(gone, View)
    assert before.drawn[0].levels == "Of this time no level is known."
    assert [gap.words for gap in before.gaps] == ["nothing is remembered of this time"]
    assert (gone.drawn[0].figures[0].most, gone.drawn[0].figures[0].last) == (5.0, None)


def test_a_point_that_stands_for_minutes_is_an_upper_bound() -> None:
    """Five minutes with a critical second in them were not five minutes of critical."""
    hour, day = (shown(critical_gb10(), f"range={name}")[0] for name in ("1h", "24h"))

    assert isinstance(hour, View)
    assert isinstance(day, View)
    assert re.search(r" critical for \d+ min", hour.drawn[0].levels)
    assert re.search(r" critical for at most \d+ min", day.drawn[0].levels)


def test_without_a_script_there_is_a_picture_and_the_gap_is_open() -> None:
    """The line of the server has one piece before the gap and one after it."""
    answer, body = shown(critical_gb10(), "range=1h&series=pool.ram.used_bytes")

    assert isinstance(answer, View)
    before, after = answer.drawn[0].figures[0].pieces
    assert float(before.split()[-1].split(",")[0]) < 1000 * 2010 / SECONDS < float(after.split(",")[0])
    assert body.count(b"<polyline") == 2


def test_before_the_first_tick_is_remembered_that_is_said() -> None:
    """An empty page is a sentence."""
    assert "Nothing is remembered yet." in Reader(PAGES.page("history", CALM)).text


def test_the_page_with_everything_it_loads_is_small() -> None:
    """120 KB compressed, for the most that is shown at once."""
    _, body = shown(mig_server())
    files = {
        name for name in Reader(body).values("src") + Reader(body).values("href") if name.startswith("static/")
    }

    sizes = [len(gzip.compress((STATIC / name.removeprefix("static/")).read_bytes())) for name in files]

    assert len(sizes) >= 9
    assert sum(sizes) + len(gzip.compress(body)) < 120_000
