"""Browser notifications: only after a click, only when memory becomes critical."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace
from playwright.sync_api import BrowserContext, Page, expect

from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level
from support.browsing import SharedBrowser
from support.live_page import wait_for_ticks
from support.sample_site import Site, served
from support.sample_snapshots import calm_workstation

# Records permission requests and notifications, which are otherwise visible to a person only.
WITNESS = """
window.asked = 0; window.shown = [];
const ask = Notification.requestPermission.bind(Notification);
window.Notification = class extends Notification {
  static requestPermission() { window.asked += 1; return ask(); }
  constructor(title, options) { super(title, options); window.shown.push([title, options.body]); }
};
"""


@contextmanager
def visiting(browser: SharedBrowser, address: str) -> Iterator[tuple[BrowserContext, Page]]:
    context = browser.new_context()
    context.grant_permissions(["notifications"], origin=address)
    context.add_init_script(WITNESS)
    page = context.new_page()
    page.goto(address)
    try:
        yield context, page
    finally:
        context.close()


def turn_critical(site: Site, page: Page) -> None:
    calm = site.snapshot
    verdict = replace(calm.pressure[0], level=Level.CRITICAL, ratio=0.97)
    site.snapshot = replace(calm, pressure=(verdict,))
    expect(page.get_by_role("status")).to_have_text("System RAM is critical: 97.0% used")
    site.snapshot = calm
    expect(page.get_by_role("status")).to_contain_text("OK")


def test_page_neither_asks_nor_notifies_without_a_click(whole_browser: SharedBrowser) -> None:
    """Not even with a permission already granted."""
    site = Site(calm_workstation())
    with served(site) as address, visiting(whole_browser, address) as (_, page):
        wait_for_ticks(page)
        expect(page.locator("#notify")).to_have_attribute("aria-pressed", "false")
        turn_critical(site, page)

        assert page.evaluate("[window.asked, window.shown]") == [0, []]


def test_silenced_level_is_notified_when_the_silence_ends(whole_browser: SharedBrowser) -> None:
    """The page says that no one is notified. The level lasts longer than the silence."""
    site = Site(calm_workstation())
    calm = site.snapshot
    critical = replace(calm, pressure=(replace(calm.pressure[0], level=Level.CRITICAL, ratio=0.97),))
    with served(site) as address, visiting(whole_browser, address) as (_, page):
        page.locator("#notify").click()
        site.snapshot = replace(critical, silences=(Silence("sil_1", time.time() + 600, time.time(), 0.0),))
        expect(page.get_by_role("status")).to_have_text("System RAM is critical: 97.0% used")
        expect(page).to_have_title(
            re.compile(r"critical 97\.0% · .* · silenced until .*\d\d:\d\d: no one is notified")
        )
        assert page.evaluate("window.shown") == []

        site.snapshot = critical
        page.wait_for_function("() => window.shown.length > 0")
        assert page.evaluate("window.shown") == [
            ["critical 97.0% · workbench", "System RAM is critical: 97.0% used"]
        ]


def test_click_enables_one_notification_for_each_critical_level(whole_browser: SharedBrowser) -> None:
    """The setting is kept across pages. A second click disables it."""
    site = Site(calm_workstation())
    with served(site) as address, visiting(whole_browser, address) as (_, page):
        page.locator("#notify").click()
        expect(page.locator("#notify")).to_have_attribute("aria-pressed", "true")
        page.goto(f"{address}/about")
        wait_for_ticks(page)
        expect(page.locator("#notify")).to_have_attribute("aria-pressed", "true")
        turn_critical(site, page)
        assert page.evaluate("window.shown") == [
            ["critical 97.0% · workbench", "System RAM is critical: 97.0% used"]
        ]

        page.locator("#notify").click()
        expect(page.locator("#notify")).to_have_attribute("aria-pressed", "false")
        turn_critical(site, page)
        assert len(page.evaluate("window.shown")) == 1
