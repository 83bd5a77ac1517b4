"""Pages for a screen on a wall, with ?kiosk: larger, without navigation, footer and controls, and live."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from memwatch_web.pages.template_environment import PATHS
from support.axe import faults
from support.browsing import SharedBrowser
from support.live_page import wait_for_ticks
from support.sample_site import Site, served
from support.sample_snapshots import critical_gb10

CONTROLS = "header.top, footer, .toolbar, button:not(.sort), summary, .past-spans"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Site(critical_gb10())) as one:
        yield one


@pytest.fixture
def page(browser: SharedBrowser) -> Iterator[Page]:
    one = browser.new_page(viewport={"width": 1920, "height": 1080})
    yield one
    one.close()


def headline_height(page: Page) -> float:
    box = page.locator(".status-headline").bounding_box()
    assert box is not None
    return box["height"]


def test_overview_is_larger_live_and_without_controls(page: Page, address: str) -> None:
    """Also after a reload. It fits the width of the screen."""
    page.goto(address)
    usual = headline_height(page)
    page.goto(f"{address}/?kiosk")

    assert headline_height(page) > 1.3 * usual
    for _ in range(2):
        wait_for_ticks(page)
        expect(page.locator(CONTROLS).filter(visible=True)).to_have_count(0)
        page.reload()
    expect(page.locator("svg.past").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920
    assert faults(page) == []


@pytest.mark.parametrize("name", ["history", "processes", "alerts"])
def test_other_pages_have_no_controls(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}{PATHS[name]}?kiosk")
    wait_for_ticks(page)

    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(CONTROLS).filter(visible=True)).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920


def test_stale_data_is_shown_as_stale(browser: SharedBrowser) -> None:
    site = Site(critical_gb10())
    with served(site) as address:
        page = browser.new_page()
        page.goto(f"{address}/?kiosk")
        wait_for_ticks(page)
        site.frozen = True

        expect(page.locator("#stale-banner")).to_be_visible()
        page.close()
