"""The navigation: the number of firing alerts beside the link to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.alert_machine import AlertMachine, quick_config
from support.axe import faults
from support.browsing import SharedBrowser
from support.daemon_process import get, running_daemon
from support.sample_site import Site, served
from support.sample_snapshots import calm_workstation

PAGES = ("/", "/about")


@pytest.fixture
def page(browser: SharedBrowser) -> Iterator[Page]:
    one = browser.new_page()
    yield one
    one.close()


@pytest.mark.parametrize("path", PAGES)
def test_navigation_follows_the_number_of_firing_alerts(page: Page, path: str) -> None:
    """Rendered by the server, then updated by the stream. Nothing is shown at zero."""
    site = Site(calm_workstation())
    site.firing = 3
    with served(site) as address:
        page.goto(address + path)
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Alerts")
        expect(link).to_have_accessible_name("Alerts, 3 firing")
        expect(link).to_have_text("Alerts3")
        assert faults(page) == []

        site.firing = 12
        expect(link).to_have_accessible_name("Alerts, 12 firing")
        expect(link).to_have_text("Alerts12")
        site.firing = 0
        expect(link).to_have_accessible_name("Alerts")
        expect(page.locator("#firing")).to_be_hidden()


# The left edges of the words of "Alerts" and of the link after it.
WORDS = """() => ["#nav-alerts", "#nav-alerts + a"].map((one) => {
  const link = document.querySelector(one);
  return link.getBoundingClientRect().x + parseFloat(getComputedStyle(link).paddingLeft);
})"""


def test_number_of_alerts_leaves_no_hole_and_covers_nothing(page: Page) -> None:
    """It kept 35 pixels free while no alert fired. In the narrowest header of one line, with two digits."""
    site = Site(calm_workstation())
    page.set_viewport_size({"width": 1080, "height": 600})
    with served(site) as address:
        page.goto(address)
        before = page.evaluate(WORDS)
        site.firing = 12
        expect(page.locator("#firing")).to_have_text("12")
        box, after = page.locator("#firing").bounding_box(), page.evaluate(WORDS)

    assert after == before
    assert box is not None
    assert box["x"] + box["width"] <= after[1]
    assert after[1] - box["x"] < 30


def test_hidden_page_follows_the_number(page: Page) -> None:
    """By the stream of titles."""
    site = Site(calm_workstation())
    with served(site) as address:
        page.goto(address)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        site.firing = 2

        expect(page.locator("#nav-alerts")).to_have_accessible_name("Alerts, 2 firing")


def test_alert_that_fires_is_counted_on_every_page(page: Page, tmp_path: Path) -> None:
    """Also on pages without a live part. A silenced alert is not counted."""
    machine = AlertMachine.of(tmp_path)
    with running_daemon(tmp_path, *machine.arguments, config=quick_config()) as daemon:
        page.goto(daemon.url)
        link = page.locator("#nav-alerts")
        expect(link).to_have_accessible_name("Alerts")
        machine.fill()
        expect(link).to_have_accessible_name("Alerts, 1 firing")
        for path in ("/docs", "/runbooks", "/fit", "/no/such/page"):
            page.goto(daemon.url + path)
            expect(link).to_have_accessible_name("Alerts, 1 firing")

        page.goto(daemon.url)
        get(daemon.port, "/api/v1/silences?seconds=3600", method="POST")
        expect(link).to_have_accessible_name("Alerts")
