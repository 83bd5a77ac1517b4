"""The history page in a real browser."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from datetime import datetime, timezone
from urllib.parse import parse_qs, urlparse

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, running_daemon
from support.live_page import pass_seconds, showing, visiting
from support.sample_site import Site, served
from support.sample_snapshots import critical_gb10, mig_server

DATA = 'JSON.parse(document.getElementById("past-data").textContent)'
BOX = "[data-chart=ram]"
# A live range of an hour refreshes every 5 s.
POLL_SECONDS = 7
# Position of the bucket with the spike, as a fraction of the width.
SPIKE_AT = f"""(() => {{
  const {{ unix, below, above }} = {DATA}.charts[0].curves[0];
  const spreads = above.map((more, at) => more + below[at]);
  const {{ start, end }} = document.querySelector("[data-chart=ram] svg.past").dataset;
  return (unix[spreads.indexOf(Math.max(...spreads))] - start) / (end - start);
}})()"""
# Left and right ends of the lines of the chart, as fractions of the width.
ENDS = """[...document.querySelectorAll("[data-chart=ram] .curve")].map((line) => {
  const { x, width } = line.getBBox();
  return [x / 1200, (x + width) / 1200];
})"""

# Pairs of words in one plot that meet, and words of the page that are cut.
MEETING = """[...document.querySelectorAll(".past-chart > svg")].flatMap((svg) => {
  const words = [...svg.querySelectorAll("text")].filter((one) => one.checkVisibility());
  const boxes = words.map((one) => [one.textContent, one.getBoundingClientRect()]);
  return boxes.flatMap(([text, one], at) => boxes.slice(at + 1)
    .filter(([, other]) => one.left < other.right && other.left < one.right
      && one.top < other.bottom - 2 && other.top < one.bottom - 2)
    .map(([more]) => `${text} / ${more}`));
})"""
CUT = """[...document.querySelectorAll(".past-legend span")].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.textContent)"""
# Words of levels that are not outside the plots, or that the edge of the page cuts.
IN_PLOTS = """[...document.querySelectorAll(".levels text")].filter((one) => {
  const box = one.getBoundingClientRect(), chart = one.closest(".past-chart");
  return box.left < chart.querySelector(".past").getBoundingClientRect().right
    || box.right > one.closest("svg").getBoundingClientRect().right;
}).length"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("past"), "--demo", "dgx-spark", "--speed", "1") as one:
        yield one


def asked(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlparse(page.url).query).items()}


def drag(page: Page, start: float, end: float) -> None:
    """Drag over the first chart, between two fractions of its width."""
    box = page.locator(f"{BOX} svg.past").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 70, steps=4)
    page.mouse.up()


def table(page: Page) -> list[str]:
    return page.locator(".past-table tbody tr").all_inner_texts()


def test_dragging_zooms_and_the_url_is_a_permalink(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """Another browser that loads the URL shows the same values and bounds."""
    with opened(browser, f"{daemon.url}/history?range=1h") as page:
        page.wait_for_selector(f"{BOX} svg.past")
        whole = page.evaluate(DATA)
        drag(page, 0.9, 0.95)
        page.wait_for_url(re.compile("from="))
        expect(page.locator("#past-reset")).to_be_visible()
        seen, address, bounds = table(page), page.url, page.evaluate(DATA)

        with opened(browser, address, is_first=True) as other:
            other.wait_for_selector(f"{BOX} svg.past")
            again, same = table(other), other.evaluate(DATA)

    assert whole["live"]
    assert not bounds["live"]
    assert bounds["end"] - bounds["start"] == pytest.approx(180, abs=8)
    late = bounds["now"] - whole["now"]  # a live range moves until the pointer is pressed
    assert -8 <= bounds["start"] - (whole["start"] + 0.9 * 3600) <= late + 8
    assert asked_range(address) == "1h"
    assert (again, same["start"], same["end"]) == (seen, bounds["start"], bounds["end"])
    assert same["charts"] == bounds["charts"]


def asked_range(address: str) -> str:
    return parse_qs(urlparse(address).query)["range"][0]


def test_keys_and_buttons_move_and_zoom(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """Arrows move, plus and minus zoom, zero returns to live. The focus stays."""
    with opened(browser, f"{daemon.url}/history?range=1h") as page:
        page.wait_for_selector(f"{BOX} svg.past")
        page.locator(BOX).focus()
        spans = []
        for key in ("ArrowLeft", "+", "+", "-", "ArrowRight", "0"):
            before = page.url
            page.keyboard.press(key)
            page.wait_for_function("before => location.href !== before", arg=before)
            page.wait_for_function(f"before => {DATA}.live || true", arg=before)
            bounds = page.evaluate(DATA)
            spans.append(bounds["end"] - bounds["start"])
            assert page.evaluate("document.activeElement.dataset.chart") == "ram"
        page.locator("#past-closer").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("from="))

        expect(page.locator("#past-closer")).to_be_focused()
        assert [round(span / 900) for span in spans] == [4, 2, 1, 2, 2, 4]


def test_event_links_to_its_minutes(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """A followed event keeps the focus."""
    with opened(browser, f"{daemon.url}/history") as page:
        page.wait_for_selector(f"{BOX} svg.past")
        line = page.locator(".past-oom_kill a").first
        at = float(line.get_attribute("data-at") or 0)
        line.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("from="))

        expect(page.locator(".past-oom_kill a").first).to_be_focused()
        bounds = page.evaluate(DATA)
        assert bounds["start"] < at < bounds["end"]
        assert bounds["end"] - bounds["start"] <= 602


def test_pointer_shows_the_values_of_its_time(browser: SharedBrowser) -> None:
    """The legends of all charts follow the pointer. Without one they show the latest values."""
    with served(Site(critical_gb10())) as address, opened(browser, f"{address}/history") as page:
        legend = page.locator("#past-legend-ram b").first
        latest = legend.inner_text()
        box = page.locator(f"{BOX} svg.past").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * page.evaluate(SPIKE_AT), box["y"] + 60)

        expect(legend).to_have_text(re.compile(r"^1\d\d\.\d GiB \(\d+\.\d – 115\.4\)$"))
        expect(page.locator("#past-legend-pressure b").first).to_have_text(re.compile("96.4"))
        expect(page.locator(f"{BOX} >> xpath=.. >> css=.past-at")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
        page.mouse.move(box["x"] + box["width"] * 2150 / 3600, box["y"] + 60)
        expect(legend).to_have_text("—")
        page.mouse.move(5, 5)
        expect(legend).to_have_text(latest)


def test_live_range_has_the_forecast(browser: SharedBrowser) -> None:
    """Dotted, right of now, from the line of use to the top. A range that ended has none."""
    snapshot = critical_gb10()
    verdict = replace(snapshot.pressure[0], seconds_to_full=300.0)
    with (
        served(Site(replace(snapshot, pressure=(verdict,)))) as address,
        opened(browser, f"{address}/history?range=1h") as page,
    ):
        forecast = page.locator(f"{BOX} .l-forecast")
        box, plot = forecast.bounding_box(), page.locator(f"{BOX} .plot-ground").bounding_box()
        expect(page.locator("#past-legend-ram .full-at")).to_have_text(re.compile(r"^full ~\d\d:\d\d:\d\d$"))
        page.locator("#past-earlier").click()
        page.wait_for_url(re.compile("from="))
        expect(forecast).to_have_count(0)

    assert box is not None
    assert plot is not None
    assert box["x"] > plot["x"] + 0.9 * plot["width"]
    assert box["y"] == pytest.approx(plot["y"], abs=2)
    assert box["x"] + box["width"] <= plot["x"] + plot["width"] + 2


def test_events_are_listed_newest_first_and_older_ones_on_request(browser: SharedBrowser) -> None:
    """The list stays open when the range refreshes. Numbers are those of the chart, oldest first."""
    site = Site(critical_gb10())
    site.add_marks(20)
    with served(site) as address, opened(browser, f"{address}/history") as page:
        numbers = [int(one) for one in page.locator("#past-list .past-number").all_text_contents()]
        seen = page.locator("#past-list li[id]").filter(visible=True)
        expect(seen).to_have_count(12)
        page.locator("#past-older summary").click()
        expect(seen).to_have_count(len(numbers))
        before = page.evaluate(f"{DATA}.now")
        page.wait_for_function(f"before => {DATA}.now > before", arg=before)

        expect(page.locator("#past-older")).to_have_attribute("open", "")
        assert numbers == sorted(numbers, reverse=True)
        assert len(numbers) >= 20


def test_composition_has_the_time_of_its_figures(browser: SharedBrowser) -> None:
    """That of the last interval, or of a live range that of its last refresh.

    The head of the page is newer: 12.2% stood beside 49.0%, and both were now.
    """
    with served(Site(critical_gb10())) as address, opened(browser, f"{address}/history?range=1h") as page:
        composition = page.locator(f"{BOX} >> xpath=.. >> css=.moment")
        expect(composition).to_have_text(re.compile(r"^\d\d:\d\d:\d\d \d\d\.\d% used"))
        page.locator("#past-earlier").click()
        day_before = r"(\D{3} \d+, (20\d\d, )?)?"  # in the first hours of a day
        expect(composition).to_have_text(re.compile(rf"^{day_before}\d\d:\d\d:\d\d (\d\d\.\d% used|no data)"))
        page.goto(f"{address}/history?range=7d")
        expect(composition).to_have_text(re.compile(r"^(\D{3} \d+, )?\d\d:\d\d:\d\d \d\d\.\d% used"))


def test_composition_of_another_year_has_its_date(browser: SharedBrowser) -> None:
    """Also of a range that is shorter than a day."""
    with served(Site(critical_gb10())) as address, opened(browser, address, is_first=True) as page:
        page.clock.set_fixed_time(datetime(2035, 1, 1, tzinfo=timezone.utc))
        page.goto(f"{address}/history?range=1h")
        page.locator("#past-earlier").click()

        composition = page.locator(f"{BOX} >> xpath=.. >> css=.moment")
        expect(composition).to_have_text(re.compile(r"^\D{3} \d+, 20\d\d, \d\d:\d\d:\d\d (\d\d\.\d% used|no data)"))


def test_gap_is_not_drawn_over(browser: SharedBrowser) -> None:
    """There is a line on both sides of a gap and none within."""
    places = "all => all.map((one) => ['x', 'width'].map((name) => parseFloat(one.getAttribute(name))))"
    with (
        served(Site(critical_gb10())) as address,
        opened(browser, f"{address}/history?series=pool.ram.used_bytes") as page,
    ):
        page.wait_for_selector(f"{BOX} svg.past")
        (_, before), (after, _) = page.evaluate(ENDS)
        gap = page.locator(f"{BOX} .gap").evaluate_all(places)

    wide = [(at / 100, (at + width) / 100) for at, width in gap if width > 5]
    assert wide == [(pytest.approx(before, abs=0.005), pytest.approx(after, abs=0.005))]


def test_pointer_moves_the_tower_and_the_words_of_the_composition(browser: SharedBrowser) -> None:
    """The pieces of the tower are those of the layers at the time under the pointer, and return to the end."""
    heights = "all => all.slice(1, -1).map((one) => Number(one.getAttribute('height')))"
    with served(Site(critical_gb10())) as address, opened(browser, f"{address}/history?range=1h") as page:
        pieces, composition = page.locator(f"{BOX} .then rect"), page.locator(f"{BOX} >> xpath=.. >> css=.moment")
        latest, words = pieces.evaluate_all(heights), composition.inner_text()
        box = page.locator(f"{BOX} svg.past").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 80)
        expect(composition).not_to_have_text(words)
        then, used = pieces.evaluate_all(heights), composition.locator(".moment-used").inner_text()
        page.mouse.move(5, 5)
        expect(composition).to_have_text(words)
        again = pieces.evaluate_all(heights)

    assert sum(then[:-1]) / 2 == pytest.approx(float(used.partition("%")[0]), abs=0.2)
    assert sum(then[:-1]) < sum(latest[:-1])
    assert again == latest


def test_mark_of_an_event_shows_its_minutes(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """A mark without an incident stays on the page; that of a kill opens its incident."""
    with opened(browser, f"{daemon.url}/history?range=10m") as page:
        page.evaluate("window.stays = true")
        page.locator(f"{BOX} a[data-zoom]").first.click()
        page.wait_for_url(re.compile("from="))
        assert page.evaluate("window.stays")
        page.goto(f"{daemon.url}/history?range=10m")
        page.locator(f"{BOX} a:has(.t-critical)").first.click()
        page.wait_for_url(re.compile("/incidents/"))


def test_live_range_refreshes_while_visible(browser: SharedBrowser) -> None:
    """A field that is being filled in keeps its text and the focus."""
    with showing(browser, Site(critical_gb10()), "/history", controls_clock=True) as page:
        page.locator("#past-custom summary").click()
        page.locator("#past-custom [name=to]").fill("2026-01-31")
        first = page.evaluate(f"{DATA}.now")
        pass_seconds(page, POLL_SECONDS)
        page.wait_for_function(f"first => {DATA}.now > first", arg=first)
        expect(page.locator("#past-custom [name=to]")).to_be_focused()
        expect(page.locator("#past-custom [name=to]")).to_have_value("2026-01-31")
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
        second = page.evaluate(f"{DATA}.now")
        pass_seconds(page, POLL_SECONDS)

        assert page.evaluate(f"{DATA}.now") == second
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


def test_fixed_range_does_not_refresh(browser: SharedBrowser) -> None:
    with showing(browser, Site(critical_gb10()), "/history", controls_clock=True) as page:
        page.locator("#past-earlier").click()
        page.wait_for_url(re.compile("from="))
        page.wait_for_function(f"() => !{DATA}.live")
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        pass_seconds(page, POLL_SECONDS)

        assert [url for url in requests if "/history" in url] == []
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


def test_stopped_daemon_is_stale_and_recovers(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    with opened(browser, f"{daemon.url}/history", may_complain=True) as page:
        page.wait_for_selector(f"{BOX} svg.past")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            expect(page.locator("body")).to_have_class(re.compile("stale"))
        finally:
            daemon.process.send_signal(signal.SIGCONT)

        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


def test_page_without_javascript_has_charts_levels_and_form(browser: SharedBrowser) -> None:
    with (
        served(Site(critical_gb10())) as address,
        opened(browser, f"{address}/history", java_script_enabled=False) as page,
    ):
        expect(page.locator(f"{BOX} .curve").first).to_be_visible()
        expect(page.locator("#past-levels-ram")).to_contain_text("Critical for")
        page.get_by_text("What to draw").click()
        page.get_by_label("some tasks stalled", exact=True).check()
        page.get_by_role("button", name="Draw").click()
        expect(page.locator("[data-chart=psi] .curve")).to_have_count(2)
        page.get_by_role("link", name="24 h").click()

        assert asked(page)["range"] == "24h"
        assert "psi.some.ratio_10s" in asked(page)["series"]


@pytest.mark.parametrize("query", ["?range=30d", "?series=" + "x" * 200], ids=["a month", "an error"])
def test_phone_has_no_horizontal_scrolling(visited_page: Page, query: str) -> None:
    for width in (360, 390):
        with visiting(visited_page, Site(mig_server()), f"/history{query}", width=width):
            assert visited_page.evaluate("document.documentElement.scrollWidth") <= width


def test_mark_appears_as_an_annotation(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """The text of a mark is escaped in the list and in the charts."""
    with opened(browser, f"{daemon.url}/history") as page:
        text = "<b>V</b> loads"
        page.evaluate(
            "body => fetch('api/v1/marks', "
            "{ method: 'POST', headers: { 'content-type': 'application/json' }, body })",
            json.dumps({"text": text}),
        )

        # It appears without a reload: the range is live.
        expect(page.locator(".past-mark").first).to_contain_text(text)
        expect(page.locator(f"{BOX} .flag-word.t-mark").first).to_have_text(re.compile(r"^\d+ <b>V"))


@pytest.mark.parametrize("width", [320, 390, 1440, 1920])
def test_no_word_of_a_chart_is_cut_or_meets_another(visited_page: Page, width: int) -> None:
    """Times do not touch "now", labels of a legend are whole, and no line crosses the word of a level."""
    with visiting(visited_page, Site(critical_gb10()), "/history?range=10m", width=width):
        visited_page.wait_for_selector(f"{BOX} svg.past")
        levels = visited_page.locator(".levels text").all_text_contents()
        found = [visited_page.evaluate(script) for script in (MEETING, CUT, IN_PLOTS)]

    assert levels == ["critical", "high", "medium"]
    assert found == [[], [], 0]


def test_short_names_of_the_statistics_take_one_line_on_a_phone(visited_page: Page) -> None:
    """With the key of the chart, "VRAM 0" was "VRAM" and "0" at 320 pixels."""
    snapshot = next(read_frames(path_of("h100x8-mig")))
    with visiting(visited_page, Site(snapshot), "/history?range=10m", width=320):
        heights = visited_page.evaluate(
            """[...document.querySelectorAll(".past-table th[scope=row]")]
              .filter((one) => /^VRAM \\d$/.test(one.textContent.trim()))
              .map((one) => one.getBoundingClientRect().height)"""
        )

    assert len(heights) == 8
    assert max(heights) < 30


def test_cards_of_eight_gpus_end_near_their_neighbours(visited_page: Page) -> None:
    """A legend with a line for each of nine pools left 90 pixels empty in the card beside it."""
    snapshot = next(read_frames(path_of("h100x8-mig")))
    with visiting(visited_page, Site(snapshot), "/history?range=10m", width=1440):
        empty = visited_page.evaluate(
            """[...document.querySelectorAll(".past-card")].map((card) => card.getBoundingClientRect().bottom
              - Math.max(...[...card.children].map((one) => one.getBoundingClientRect().bottom)))"""
        )

    assert len(empty) == 10
    assert max(empty) <= 60


@pytest.mark.parametrize("width", [320, 390])
def test_time_of_a_composition_is_beside_its_use_on_a_phone(visited_page: Page, width: int) -> None:
    """The word "now" had a line for itself."""
    with visiting(visited_page, Site(critical_gb10()), "/history?range=10m", width=width):
        tops = visited_page.evaluate(
            """[...document.querySelector(".moment").children].map((one) => one.getBoundingClientRect().bottom)"""
        )

    when, used, *parts = tops
    assert when == pytest.approx(used, abs=1)
    assert parts == sorted({*parts})
    assert parts[0] > used
