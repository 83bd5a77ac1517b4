"""The devices page in a browser: eight GPUs on one screen, phones, details that stay open, accessibility."""

from __future__ import annotations

from itertools import islice

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from memwatch.core.model import Absent
from memwatch.core.snapshot import Reason, Snapshot
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser
from support.live_page import evaluate_at, showing, visiting, wait_for_ticks
from support.sample_mig import eight_by_seven
from support.sample_site import Site
from support.sample_snapshots import critical_gb10
from support.type_scale import wrong_type

CUT = """() => [...document.querySelectorAll(
    ".device-figure > *, .device-caption b, .device-holders b, .device-reason")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


def eight_gpus() -> Snapshot:
    """Eight H100 shortly before they are full, the last one with three MIG instances."""
    return next(islice(read_frames(path_of("h100x8-mig")), 330, None))


def test_eight_gpus_are_on_one_screen_without_a_fault(browser: SharedBrowser) -> None:
    """In both themes, with and without the details of a device; five sizes of type and three weights."""
    with showing(browser, Site(eight_gpus()), "/devices", viewport={"width": 1440, "height": 900}) as page:
        wait_for_ticks(page)
        height, width = page.evaluate("[document.body.scrollHeight, document.documentElement.scrollWidth]")
        rows, cut = page.locator(".device-row").count(), page.evaluate(CUT)
        page.locator("summary").first.click()
        wrong = wrong_type(page)
        found = faults_in_both_themes(page)

    assert (found, cut) == ([], [])
    assert rows == 8
    assert (height <= 900, width) == (True, 1440)
    assert wrong == set()


@pytest.mark.parametrize("width", [1920, 1440, 1210, 1000, 390, 320])
def test_range_of_what_can_be_allocated_is_whole(browser: SharedBrowser, width: int) -> None:
    """At 1440 pixels "754.1 MiB – 31.3 GiB" stood in the figure beside it."""
    base = critical_gb10()
    low, high = int(754.1 * 1024**2), int(131.3 * 1024**3)
    device = replace(base.devices[0], headroom_bytes=low, headroom_after_reclaim_bytes=high, busy_ratio=1.0)
    site = Site(replace(base, devices=(device,)))
    with showing(browser, site, "/devices", viewport={"width": width, "height": 844}) as page:
        assert "754.1\xa0MiB" in page.locator(".device-figures").inner_text().replace(" ", "\xa0")
        assert page.evaluate(CUT) == []


def test_devices_do_not_scroll_sideways_on_a_phone(visited_page: Page) -> None:
    with visiting(visited_page, Site(eight_by_seven()), "/devices", width=390):
        visited_page.locator("summary").first.click()
        scrolled = evaluate_at(visited_page, (390, 320), "document.documentElement.scrollWidth")

    assert scrolled == {390: 390, 320: 320}


@pytest.mark.parametrize("width", [1440, 1000, 390, 320])
def test_reason_of_a_level_is_never_cut(browser: SharedBrowser, width: int) -> None:
    """It was "all tasks stalled on mem…", beside an empty half of the row."""
    reason = "all tasks stalled on memory for 43% of the last 10 s"
    base = critical_gb10()
    stalled = replace(base.pressure[0], seconds_to_full=Absent.NOT_AVAILABLE, reasons=(Reason("psi_full", reason),))
    snapshot = replace(base, pressure=(stalled, *base.pressure[1:]))
    with showing(browser, Site(snapshot), "/devices", viewport={"width": width, "height": 844}) as page:
        said, cut = page.locator(".device-reason").inner_text(), page.evaluate(CUT)
        scrolled = page.evaluate("document.documentElement.scrollWidth")

    assert (said, cut, scrolled) == (reason, [], width)


def test_details_have_everything_and_stay_open(browser: SharedBrowser) -> None:
    with showing(browser, Site(eight_gpus()), "/devices#device-gpu3") as page:
        row = page.locator("#device-gpu3")
        row.locator("summary").click()
        wait_for_ticks(page, 2)
        expect(row.get_by_role("heading", name="Identity")).to_be_visible()
        words = row.inner_text()
        inside = row.evaluate("(one) => one.getBoundingClientRect().top < innerHeight")
        closed = page.locator("#device-gpu2").inner_text()

    assert inside
    for heading in ("Memory", "Processes", "Identity", "Detection", "Driver errors", "Sensors"):
        assert heading in words
        assert heading not in closed
