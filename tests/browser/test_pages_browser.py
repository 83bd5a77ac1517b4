"""Pages in a real browser: security policy, live updates, stale data, the overview chart."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from urllib.parse import urljoin

import pytest
from msgspec.structs import replace
from playwright.sync_api import CDPSession, Page, Route, expect

from memwatch.core.model import Absent
from memwatch.core.snapshot import Level
from support.browsing import SharedBrowser, wait_for_frames
from support.demo_frames import moments_of
from support.live_page import resize, showing, visiting, wait_for_ticks
from support.sample_site import Site
from support.sample_snapshots import calm_workstation, critical_gb10, hostile_names, many_owners

# Lines of the first footprint, of its lower and of its upper bound.
LINES_OF_BOUNDS = """(() => {
    const range = document.querySelector(".who-table .range");
    return [range, ...range.children].map((one) => new Set([...one.getClientRects()].map((box) => box.top)).size);
})()"""
CUT_NAMES = """[...document.querySelectorAll(".who-table .who-name a")]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""

# Figures whose unit is on another line, with the words around them.
TORN = r"""(() => {
  const found = [], nodes = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node; (node = nodes.nextNode()); ) {
    if (!node.parentElement.checkVisibility() || node.parentElement.closest("svg, pre, .unseen")) continue;
    for (const match of node.data.matchAll(/\d[ \u00a0](?:[KMGTPE]iB|B|ms|s|min|h|d|W|°C)(?![\w])/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width);
      if (new Set(boxes.map((box) => Math.round(box.top))).size > 1) found.push(node.data.trim());
    }
  }
  return found;
})()"""
# Words of a process beside another one without room for a point between them, and points in the words themselves.
LOOSE_POINTS = """[...document.querySelectorAll(".narrow")].filter((words) => words.innerText.includes("·")
    || [...words.children].some((one, at, all) => {
      const [box, before] = [one, all[at - 1] ?? words].map((element) => element.getBoundingClientRect());
      return at && box.top === before.top ? box.left - before.right < 10
        : box.left > words.getBoundingClientRect().left;
    })).map((words) => words.innerText)"""


def test_patterns_respect_the_security_policy(browser: SharedBrowser) -> None:
    with showing(browser, Site(critical_gb10()), "/patterns") as page:
        page.wait_for_load_state("load")
        wait_for_frames(page)


def test_api_reference_works_offline(browser: SharedBrowser) -> None:
    with showing(browser, Site(critical_gb10()), "/docs") as page:
        page.get_by_text("/api/v1/pools").click()
        page.get_by_role("button", name="Try it out").click()

        expect(page.get_by_role("button", name="Execute")).to_be_visible()


def test_phone_has_room_for_footprints_in_two_units(browser: SharedBrowser) -> None:
    snapshot = many_owners()
    bounds = {"footprint_bytes": Absent.NOT_AVAILABLE, "footprint_range": (512 << 20, 1 << 30)}
    processes = tuple(replace(one, name="llama-server", script="", **bounds) for one in snapshot.processes)
    with showing(browser, Site(replace(snapshot, processes=processes))) as page:
        expect(page.locator(".who-table .range").first).to_have_text("512.0 MiB – 1.0 GiB")
        for width, lines in ((390, 1), (320, 2)):
            resize(page, width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(LINES_OF_BOUNDS) == [lines, 1, 1]
        resize(page, 390, 800)
        assert page.evaluate(CUT_NAMES) == []


def test_update_keeps_picture_details_focus_and_scroll(browser: SharedBrowser) -> None:
    site = Site(critical_gb10())
    with showing(browser, site, viewport={"width": 1280, "height": 600}) as page:
        wait_for_ticks(page)
        page.locator("#why summary").click()
        page.evaluate("window.picture = document.querySelector('#landscape svg.past')")
        page.evaluate("scrollTo(0, 150)")
        ram = site.snapshot.pools[0]
        site.snapshot = replace(
            site.snapshot, pools=(replace(ram, used_bytes=60 << 30, available_bytes=ram.size_bytes - (60 << 30)),)
        )

        expect(page.locator("#status .status-value data").first).to_have_text("60.0 GiB")

        expect(page.locator("#why")).to_have_attribute("open", "")
        assert page.evaluate(
            "window.picture.isConnected && document.querySelector('#landscape svg.past') === window.picture"
        )
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("scrollY") == 150


@pytest.mark.host
def test_silent_server_is_stale_and_recovers(browser: SharedBrowser) -> None:
    """Grey page, banner with the time, title and icon within seconds, until the next sample."""
    site = Site(calm_workstation())
    with showing(browser, site) as page:
        wait_for_ticks(page)

        site.frozen = True
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#stale-banner")).to_have_text(
            re.compile(r"^No new data for \d+ s\. Showing data from \d\d:\d\d:\d\d\.$")
        )
        assert page.title() == "stale · 39.6% · workbench"
        assert page.locator("#icon").get_attribute("href") == "static/icon-stale.svg"
        assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"

        site.frozen = False
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))
        expect(page.locator("#stale-banner")).to_be_hidden()
        assert page.title() == "39.6% · workbench"


def test_lost_stream_is_reopened(browser: SharedBrowser) -> None:
    """Also after refusals, which do not replace the page."""
    site = Site(calm_workstation())
    with showing(browser, site, may_complain=True) as page:
        wait_for_ticks(page)

        site.refusing = True
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#pool-ram")).to_be_visible()
        site.refusing = False

        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


def test_stream_refused_at_page_load_is_retried(browser: SharedBrowser) -> None:
    """The page is live once a stream is free."""
    site = Site(calm_workstation())
    site.refusing = True
    with showing(browser, site, may_complain=True) as page:
        expect(page.locator("body")).to_have_class("stale")
        site.refusing = False

        wait_for_ticks(page, 1)
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


def set_hidden(page: Page, hidden: bool) -> None:
    """Do what the browser does when its tab goes to the background: headless Chromium has no background."""
    page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_hidden_page_follows_the_title_only(browser: SharedBrowser) -> None:
    """A page in the background does not receive the page, and shows the present at once when it is shown."""
    site = Site(calm_workstation())
    streams: list[str] = []
    with showing(browser, site) as page:
        wait_for_ticks(page)
        page.on("request", lambda request: streams.append(request.url.removeprefix(urljoin(page.url, "/"))))
        with page.expect_response("**/live?page=title"):
            set_hidden(page, True)
        before = page.locator("#live").inner_text()
        site.snapshot = critical_gb10()
        expect(page).to_have_title(re.compile("critical"))
        hidden = page.locator("#live").inner_text()
        set_hidden(page, False)
        expect(page.locator("#live")).to_contain_text("CUDA Pool")

        assert hidden == before
        live = [url for url in streams if url.startswith("live")]
        assert live == ["live?page=title", "live?page=overview&form=wide"]


def late(route: Route) -> None:
    time.sleep(0.4)
    route.continue_()


def test_stream_opens_with_a_late_extension(browser: SharedBrowser) -> None:
    """Scripts may arrive in any order."""
    with showing(browser, Site(calm_workstation())) as page:
        page.route("**/htmx-sse-*.js", late)
        page.reload()

        wait_for_ticks(page)


def test_repeated_sample_is_stale(browser: SharedBrowser) -> None:
    """A server that repeats an old snapshot counts as disconnected."""
    with showing(browser, Site(replace(calm_workstation(), interval_seconds=0.2), still=True)) as page:
        expect(page.locator("body")).to_have_class("stale")


def test_level_change_is_announced_and_shown_in_the_tab(browser: SharedBrowser) -> None:
    """Screen readers get level changes only. A background tab shows the level."""
    site = Site(calm_workstation())
    with showing(browser, site) as page:
        wait_for_ticks(page)
        expect(page.get_by_role("status")).to_be_empty()

        verdict = replace(site.snapshot.pressure[0], level=Level.CRITICAL, ratio=0.97)
        site.snapshot = replace(site.snapshot, pressure=(verdict,))

        expect(page.get_by_role("status")).to_have_text("System RAM is critical: 97.0% used")
        assert page.title() == "critical 97.0% · workbench"
        assert page.locator("#icon").get_attribute("href") == "static/icon-critical.svg"


def test_page_without_javascript_has_everything_with_its_picture(browser: SharedBrowser) -> None:
    """It refreshes itself and has a hint."""
    with showing(browser, Site(critical_gb10()), java_script_enabled=False) as page:
        expect(page.locator(".now-wide").first).to_contain_text("⊂ System RAM")
        expect(page.locator(".hint")).to_be_visible()
        expect(page.locator("svg.past")).to_be_visible()
        expect(page.locator("time").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        expect(page.locator("#zone")).to_have_text("Times in UTC")


@pytest.mark.parametrize(("path", "seconds"), [("/alerts", 60), ("/history", 60), ("/", 5)])
def test_page_without_javascript_leaves_time_to_fill_in_its_form(
    browser: SharedBrowser, path: str, seconds: int
) -> None:
    """A refresh empties it. Pages without a form show new figures sooner."""
    with showing(browser, Site(critical_gb10()), path, java_script_enabled=False) as page:
        expect(page.locator("meta[http-equiv=refresh]")).to_have_attribute("content", str(seconds))


def test_page_without_javascript_keeps_the_text_of_the_silence_form(browser: SharedBrowser) -> None:
    """It refreshes after a minute of the browser's time, not before."""
    with showing(browser, Site(critical_gb10()), "/alerts", java_script_enabled=False) as page:
        expect(page.locator(".hint")).to_contain_text("Refreshes every 60 s.")
        page.get_by_label("Comment").fill("maintenance")
        tools, expired = page.context.new_cdp_session(page), list[object]()
        tools.on("Emulation.virtualTimeBudgetExpired", lambda event: expired.append(event))
        skip_seconds(tools, 50)
        while not expired:
            page.wait_for_timeout(10)
        expect(page.get_by_label("Comment")).to_have_value("maintenance")

        with page.expect_request(re.compile("/alerts$")):
            skip_seconds(tools, 15)


def skip_seconds(tools: CDPSession, seconds: int) -> None:
    """Move the browser's own clock, which pages without scripts have as well. It stands still afterwards."""
    tools.send("Emulation.setVirtualTimePolicy", {"policy": "advance", "budget": 1000 * seconds})


def test_times_are_local_and_other_days_have_a_date(browser: SharedBrowser) -> None:
    """The current time is without a date, an event of November 2026 has one, later with its year."""
    tokyo = {"locale": "en-GB", "timezone_id": "Asia/Tokyo"}
    with showing(browser, Site(critical_gb10()), "/alerts", **tokyo) as page:
        expect(page.locator(".as-of time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        expect(page.locator("#zone")).to_have_text("Times in GMT+9")
        for year, text in ((2026, "20 Nov, 19:22:33"), (2027, "20 Nov 2026, 19:22:33")):
            page.clock.set_fixed_time(datetime(year, 11, 26, tzinfo=timezone.utc))
            page.reload()
            expect(page.locator(".events time").last).to_have_text(text)


def test_times_in_a_column_have_no_date_within_half_a_day(browser: SharedBrowser) -> None:
    """Also past midnight. Later they are a date alone, which has room in the column."""
    tokyo = {"locale": "en-GB", "timezone_id": "Asia/Tokyo"}
    with showing(browser, Site(critical_gb10()), **tokyo) as page:
        for day, hour, text in ((20, 20, "19:22:33"), (26, 0, "20 Nov")):
            page.clock.set_fixed_time(datetime(2026, 11, day, hour, tzinfo=timezone.utc))
            page.reload()
            expect(page.locator(".event-time time").last).to_have_text(text)


def test_hostile_names_run_no_script(browser: SharedBrowser) -> None:
    """Not even after a dozen updates."""
    with showing(browser, Site(hostile_names())) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        wait_for_ticks(page, 12)

        expect(page.locator(".who-table tbody th a").first).to_have_text("<script>alert(1)</script>")
        assert dialogs == []


@pytest.mark.parametrize("demo", ["dgx-spark", "h100x8-mig"])
def test_no_figure_is_parted_from_its_unit(visited_page: Page, demo: str) -> None:
    """At any width from that of a small phone on, at the moment with the most memory in use."""
    torn = {}
    for path in ("/", "/devices", "/alerts"):
        with visiting(visited_page, Site(moments_of(demo).fullest), path):
            for width in (*range(320, 480, 6), 1240):
                resize(visited_page, width)
                torn[path, width] = visited_page.evaluate(TORN)

    assert {key: found for key, found in torn.items() if found} == {}


@pytest.mark.parametrize("width", [320, 390])
def test_words_of_a_process_have_points_only_between_them(visited_page: Page, width: int) -> None:
    with visiting(visited_page, Site(moments_of("h100x8-mig").fullest), "/processes", width=width):
        assert visited_page.locator(".narrow").count() > 1
        assert visited_page.evaluate(LOOSE_POINTS) == []
