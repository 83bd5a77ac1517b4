"""Every page of every sample machine: one visit checks errors, policy, layout shift, accessibility and phones."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from memwatch_web.pages.template_environment import PATHS
from support.axe import faults_in_both_themes
from support.browsing import DESKTOP, SharedBrowser, collecting_complaints, opened, wait_for_frames
from support.live_page import wait_for_ticks
from support.sample_site import Site, served
from support.sample_snapshots import SAMPLES

PAGES = {**PATHS, "containers": "/processes?by=container", "docs": "/docs", "patterns": "/patterns"}
# Visited by every run of the tests: all pages of one machine, and the largest ones of another.
OFTEN = {
    "critical_gb10": set(PAGES) - {"patterns"},
    "mig_server": {"overview", "history", "processes", "containers"},
}
# These do not show the machine.
OF_ONE_SAMPLE = ("docs", "patterns")
VISITS = [
    pytest.param(sample, name, marks=() if name in OFTEN.get(sample, ()) else pytest.mark.long)
    for sample in SAMPLES
    for name in PAGES
    if sample == "critical_gb10" or name not in OF_ONE_SAMPLE
]
# The space of the charts is reserved. A busy machine may paint other pages before their script, which moves them.
MAX_SHIFTS = {"history": 0.01, "overview": 0.05, "processes": 0.05}
# 0.012 as measured with style sheets delayed by 0.3 s; 0.13 if a line of the head comes or goes.
MAX_SHIFT_ON_A_PHONE = 0.02
# In Swagger UI the headings that expand an operation contain buttons.
OF_SWAGGER = "nested-interactive: ['.opblock-summary-control']"
PHONES = (390, 360)


@pytest.mark.parametrize(("sample", "name"), VISITS)
def test_page_has_no_fault(visited_page: Page, sample: str, name: str) -> None:
    """No error, policy violation or external request, also during an update; nothing moves; no fault by axe-core.

    Both themes are accessible. On phones wide tables scroll within their card.
    """
    page = visited_page
    with (
        served(Site(SAMPLES[sample](), interval_seconds=1.0)) as address,
        collecting_complaints(page, address) as complaints,
    ):
        page.goto(address + PAGES[name])
        wait_until_complete(page, name)
        moved = page.evaluate("window.moved")
        wrong = [fault for fault in faults_in_both_themes(page) if not fault.startswith(OF_SWAGGER)]
        widths = {width: width_on_a_phone(page, width) for width in PHONES}
        page.goto("about:blank")  # before the end of its streams, which would be an error

    assert complaints == []
    assert wrong == []
    assert moved <= MAX_SHIFTS.get(name, moved)
    assert widths == {width: width for width in PHONES}


@pytest.mark.parametrize("sample", ["critical_gb10", "mig_server"])
def test_history_on_a_phone_does_not_shift(browser: SharedBrowser, sample: str) -> None:
    """The local times that a script writes are shorter than those in UTC: only the link moves to their line."""
    viewport = ViewportSize(width=max(PHONES), height=DESKTOP["height"])
    with (
        served(Site(SAMPLES[sample](), interval_seconds=1.0)) as address,
        opened(browser, f"{address}/history", viewport=viewport) as page,
    ):
        wait_until_complete(page, "history")
        moved = page.evaluate("window.moved")
        page.goto("about:blank")

    assert moved <= MAX_SHIFT_ON_A_PHONE


def wait_until_complete(page: Page, name: str) -> None:
    """Wait for charts, for two updates, or for the operations of the API."""
    if name == "docs":
        page.locator(".opblock").first.wait_for()
    elif name == "history":
        drawn = page.locator("[data-chart] svg.past").or_(page.get_by_text("No history yet."))
        drawn.first.wait_for()
    if page.locator("#latest").count():
        wait_for_ticks(page)
        expect(page.locator("body")).not_to_have_class(re.compile("stale"))
    wait_for_frames(page)


def width_on_a_phone(page: Page, width: int) -> int:
    """Return the width of the content of a page that is as wide as a phone."""
    page.set_viewport_size({"width": width, "height": DESKTOP["height"]})
    wait_for_frames(page)
    return int(page.evaluate("document.documentElement.scrollWidth"))
