"""Pages in a real browser: security policy, live updates, stale data, the overview chart."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import product
from urllib.parse import urljoin

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, Route, expect

from memwatch.model import Absent
from memwatch.snapshot import Level
from scripts.screenshots import PAGES
from support.live_page import wait_for_ticks
from support.sample_site import IN_A_BROWSER, Site, served
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, hostile_names, many_owners

TELL_VIOLATIONS = (
    "addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective, e.blockedURI))"
)


@contextmanager
def opened(browser: Browser, site: Site, path: str = "/", scripts: bool = True) -> Iterator[tuple[Page, list[str]]]:
    """Open a page of a running site and collect its errors."""
    complaints: list[str] = []
    with served(site) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, java_script_enabled=scripts)
        if scripts:
            context.add_init_script(TELL_VIOLATIONS)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.extend(foreign(request.url, address)))
        page.goto(address + path)
        try:
            yield page, complaints
        finally:
            context.close()


def foreign(url: str, address: str) -> list[str]:
    return [] if url.startswith((address, "data:")) else [f"asked {url}"]


@pytest.mark.parametrize("sample", IN_A_BROWSER)
def test_sample_page_has_no_error(browser: Browser, sample: str) -> None:
    """No error, policy violation or external request, also during updates."""
    with opened(browser, Site(SAMPLES[sample]())) as (page, complaints):
        wait_for_ticks(page)

        assert complaints == []
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))


@pytest.mark.parametrize("name", PAGES)
def test_page_respects_the_security_policy(browser: Browser, name: str) -> None:
    with opened(browser, Site(critical_gb10()), PAGES[name]) as (page, complaints):
        page.wait_for_timeout(700)

        assert complaints == []


def test_api_reference_works_offline(browser: Browser) -> None:
    with opened(browser, Site(critical_gb10()), "/docs") as (page, complaints):
        page.get_by_text("/api/v1/pools").click()
        page.get_by_role("button", name="Try it out").click()

        expect(page.get_by_role("button", name="Execute")).to_be_visible()
        assert complaints == []


@pytest.mark.parametrize("sample", IN_A_BROWSER)
def test_phone_has_no_horizontal_scrolling(browser: Browser, sample: str) -> None:
    """Wide tables scroll within their card."""
    with opened(browser, Site(SAMPLES[sample]())) as (page, _):
        for width, path in product(
            (360, 390), ("/", "/history", "/processes", "/processes?by=container", "/about")
        ):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(urljoin(page.url, path))
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_phone_has_room_for_footprints_in_two_units(browser: Browser) -> None:
    snapshot = many_owners()
    bounds = {"footprint_bytes": Absent.NOT_AVAILABLE, "footprint_range": (512 << 20, 1 << 30)}
    processes = tuple(replace(one, **bounds) for one in snapshot.processes)
    with opened(browser, Site(replace(snapshot, processes=processes))) as (page, _):
        expect(page.locator(".who-table .range").first).to_have_text("512.0 MiB – 1.0 GiB")
        for width in (360, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_update_keeps_chart_details_focus_and_scroll(browser: Browser) -> None:
    site = Site(critical_gb10())
    with opened(browser, site) as (page, complaints):
        wait_for_ticks(page)
        page.locator("#why-ram summary").click()
        page.evaluate("window.canvas = document.querySelector('#chart canvas')")
        page.evaluate("scrollTo(0, 150)")
        ram = site.snapshot.pools[0]
        site.snapshot = replace(
            site.snapshot, pools=(replace(ram, used_bytes=60 << 30, available_bytes=ram.size_bytes - (60 << 30)),)
        )

        expect(page.locator("#status .status-value data").first).to_have_text("60.0 GiB")

        expect(page.locator("#why-ram")).to_have_attribute("open", "")
        assert page.evaluate(
            "window.canvas.isConnected && document.querySelector('#chart canvas') === window.canvas"
        )
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("scrollY") == 150
        assert complaints == []


@pytest.mark.host
def test_silent_server_is_stale_and_recovers(browser: Browser) -> None:
    """Grey page, banner with the time, title and icon within seconds, until the next sample."""
    site = Site(calm_workstation())
    with opened(browser, site) as (page, complaints):
        wait_for_ticks(page)

        site.frozen = True
        expect(page.locator("body")).to_have_class("stale", timeout=4000)
        expect(page.locator("#stale-banner")).to_have_text(
            re.compile(r"^No new data for \d+ s\. Showing data from \d\d:\d\d:\d\d\.$")
        )
        assert page.title() == "stale · 39.6% · workbench"
        assert page.locator("#icon").get_attribute("href") == "static/icon-stale.svg"
        assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"

        site.frozen = False
        expect(page.locator("body")).not_to_have_class(re.compile("stale"), timeout=4000)
        expect(page.locator("#stale-banner")).to_be_hidden()
        assert page.title() == "39.6% · workbench"
        assert complaints == []


def test_lost_stream_is_reopened(browser: Browser) -> None:
    """Also after refusals, which do not replace the page."""
    site = Site(calm_workstation())
    with opened(browser, site) as (page, _):
        wait_for_ticks(page)

        site.refusing = True
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#pool-ram")).to_be_visible()
        site.refusing = False

        expect(page.locator("body")).not_to_have_class(re.compile("stale"), timeout=60_000)


def test_stream_refused_at_page_load_is_retried(browser: Browser) -> None:
    """The page is live once a stream is free."""
    site = Site(calm_workstation())
    site.refusing = True
    with opened(browser, site) as (page, _):
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


def test_hidden_page_follows_the_title_only(browser: Browser) -> None:
    """A page in the background does not receive the page, and shows the present at once when it is shown."""
    site = Site(calm_workstation())
    streams: list[str] = []
    with opened(browser, site) as (page, complaints):
        wait_for_ticks(page)
        page.on("request", lambda request: streams.append(request.url.removeprefix(urljoin(page.url, "/"))))
        set_hidden(page, True)
        page.wait_for_timeout(300)
        before = page.locator("#live").inner_text()
        site.snapshot = critical_gb10()
        expect(page).to_have_title(re.compile("critical"))
        hidden = page.locator("#live").inner_text()
        set_hidden(page, False)
        expect(page.locator("#live")).to_contain_text("CUDA Pool")

        assert hidden == before
        assert [url for url in streams if url.startswith("live")] == ["live?page=title", "live?page=overview"]
        assert complaints == []


def late(route: Route) -> None:
    time.sleep(0.4)
    route.continue_()


def test_stream_opens_with_a_late_extension(browser: Browser) -> None:
    """Scripts may arrive in any order."""
    with opened(browser, Site(calm_workstation())) as (page, complaints):
        page.route("**/htmx-sse-*.js", late)
        page.reload()

        wait_for_ticks(page)
        assert complaints == []


def test_repeated_sample_is_stale(browser: Browser) -> None:
    """A server that repeats an old snapshot counts as disconnected."""
    with opened(browser, Site(replace(calm_workstation(), interval_seconds=0.2), still=True)) as (page, _):
        expect(page.locator("body")).to_have_class("stale")


def test_level_change_is_announced_and_shown_in_the_tab(browser: Browser) -> None:
    """Screen readers get level changes only. A background tab shows the level."""
    site = Site(calm_workstation())
    with opened(browser, site) as (page, complaints):
        wait_for_ticks(page)
        expect(page.get_by_role("status")).to_be_empty()

        verdict = replace(site.snapshot.pressure[0], level=Level.CRITICAL, ratio=0.97)
        site.snapshot = replace(site.snapshot, pressure=(verdict,))

        expect(page.get_by_role("status")).to_have_text("System RAM is critical: 97.0% used")
        assert page.title() == "critical 97.0% · workbench"
        assert page.locator("#icon").get_attribute("href") == "static/icon-critical.svg"
        assert complaints == []


def test_page_without_javascript_has_everything_with_a_picture_of_the_chart(browser: Browser) -> None:
    """It refreshes itself and has a hint."""
    with opened(browser, Site(critical_gb10()), scripts=False) as (page, _):
        expect(page.locator("#share-cuda0 .relation")).to_have_text("CUDA Pool ⊂ System RAM")
        expect(page.locator(".hint")).to_be_visible()
        picture = page.get_by_role("img", name="Use of System RAM in the last 10 min")
        expect(picture).to_be_visible()
        expect(page.locator("#chart p")).to_contain_text("System RAM used, 0 to 119.7 GiB")
        drawn = page.request.get(urljoin(page.url, picture.get_attribute("src") or ""))
        assert drawn.headers["content-type"] == "image/svg+xml"
        assert drawn.text().count("<polyline") == 1
        expect(page.locator("time").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d UTC$"))
        expect(page.locator("#zone")).to_have_text("Times in UTC")


@pytest.mark.parametrize(("path", "seconds"), [("/alerts", 60), ("/history", 60), ("/", 5)])
def test_page_without_javascript_leaves_time_to_fill_in_its_form(browser: Browser, path: str, seconds: int) -> None:
    """A refresh empties it. Pages without a form show new figures sooner."""
    with opened(browser, Site(critical_gb10()), path, scripts=False) as (page, _):
        expect(page.locator("meta[http-equiv=refresh]")).to_have_attribute("content", str(seconds))


def test_times_are_local_and_other_days_have_a_date(browser: Browser) -> None:
    """The current time is without a date, an event of November 2026 has one, later with its year."""
    context = browser.new_context(locale="en-GB", timezone_id="Asia/Tokyo")
    with served(Site(critical_gb10())) as address:
        page = context.new_page()
        page.goto(f"{address}/alerts")

        expect(page.locator(".as-of time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        expect(page.locator("#zone")).to_have_text("Times in GMT+9")
        for year, text in ((2026, "20 Nov, 19:22:33"), (2027, "20 Nov 2026, 19:22:33")):
            page.clock.set_fixed_time(datetime(year, 11, 26, tzinfo=timezone.utc))
            page.reload()
            expect(page.locator(".events time").last).to_have_text(text)
    context.close()


def test_hostile_names_run_no_script(browser: Browser) -> None:
    """Not even after a dozen updates."""
    with opened(browser, Site(hostile_names())) as (page, complaints):
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        wait_for_ticks(page, 12)

        expect(page.locator(".who-table tbody th a").first).to_have_text("<script>alert(1)</script>")
        assert complaints == []
