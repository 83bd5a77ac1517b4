"""The theme switch, the theme of printed pages, and the manifest for a phone's home screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from support.axe import faults
from support.browsing import SharedBrowser
from support.sample_site import Site, served
from support.sample_snapshots import critical_gb10

Theme = Literal["light", "dark"]

LIGHT, DARK, PAPER = "rgb(244, 245, 247)", "rgb(14, 17, 22)", "rgb(255, 255, 255)"
GROUND = "getComputedStyle(document.body).backgroundColor"
CARD = "getComputedStyle(document.querySelector('.card')).backgroundColor"
TEXT = "getComputedStyle(document.body).color"
# The ground of every frame from the first one with a body.
WATCH_FRAMES = """
window.grounds = new Set();
const look = () => {
  if (document.body) window.grounds.add(getComputedStyle(document.body).backgroundColor);
  requestAnimationFrame(look);
};
look();
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Site(critical_gb10())) as one:
        yield one


@contextmanager
def visiting(browser: SharedBrowser, theme: Theme = "light", scripts: bool = True) -> Iterator[BrowserContext]:
    """Open a browser whose system has a theme."""
    context = browser.new_context(color_scheme=theme, java_script_enabled=scripts)
    try:
        yield context
    finally:
        context.close()


def opened(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url)
    return page


def theme_colours(page: Page) -> set[str | None]:
    return {one.get_attribute("content") for one in page.locator("meta[name=theme-color]").all()}


@pytest.mark.parametrize(("system", "chosen", "ground"), [("light", "dark", DARK), ("dark", "light", LIGHT)])
def test_chosen_theme_is_kept(
    browser: SharedBrowser, address: str, system: Theme, chosen: Theme, ground: str
) -> None:
    """On other pages, after a reload, in other tabs, until the theme of the system is chosen again."""
    with visiting(browser, system) as context:
        page, other = opened(context, address), opened(context, f"{address}/alerts")
        before = page.evaluate(GROUND)
        page.get_by_label("Theme").select_option(chosen)

        assert page.evaluate(GROUND) == ground != before
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == chosen
        assert len(theme_colours(page)) == 1
        other.wait_for_function(f"() => {GROUND} === '{ground}'")
        expect(other.get_by_label("Theme")).to_have_value(chosen)
        page.goto(f"{address}/history")
        assert page.evaluate(GROUND) == ground
        page.get_by_label("Theme").select_option("System")
        assert page.evaluate(GROUND) == before


def test_chosen_theme_is_there_in_the_first_frame(browser: SharedBrowser, address: str) -> None:
    with visiting(browser, "light") as context:
        opened(context, address).get_by_label("Theme").select_option("dark")
        context.add_init_script(WATCH_FRAMES)
        page = opened(context, address)
        page.get_by_label("Time range").wait_for()

        assert page.evaluate("[...window.grounds]") == [DARK]


def test_page_follows_the_system(browser: SharedBrowser, address: str) -> None:
    with visiting(browser, "light") as context:
        page = opened(context, address)
        page.emulate_media(color_scheme="dark")

        page.wait_for_function(f"() => {GROUND} === '{DARK}'")
        expect(page.locator("meta[name=theme-color]").first).to_have_attribute("content", "#0e1116")


def test_page_without_javascript_follows_the_system_and_has_no_switch(browser: SharedBrowser, address: str) -> None:
    with visiting(browser, "dark", scripts=False) as context:
        page = opened(context, address)

        # A script of the test still runs.
        assert page.evaluate(GROUND) == DARK
        expect(page.locator("#theme")).to_be_hidden()


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_chosen_theme_has_no_fault(browser: SharedBrowser, address: str, chosen: Theme) -> None:
    """On a system with the other one."""
    with visiting(browser, "dark" if chosen == "light" else "light") as context:
        page = opened(context, address)
        page.get_by_label("Theme").select_option(chosen)

        assert faults(page) == []


def test_api_reference_follows_the_switch(browser: SharedBrowser, address: str) -> None:
    """Also what Swagger UI draws, with an operation that is open. It leaves the dark theme again."""
    with visiting(browser, "light") as context:
        page = opened(context, f"{address}/docs")
        page.get_by_text("/api/v1/pools").click()
        page.get_by_role("button", name="Try it out").click()
        titles = []
        for theme in ("light", "dark", "light"):
            page.get_by_label("Theme").select_option(theme)

            assert faults(page, "color-contrast") == []
            titles.append(page.evaluate("getComputedStyle(document.querySelector('.title')).color"))

    light, dark, light_again = titles
    assert light == light_again != dark


def test_paper_is_light(browser: SharedBrowser, address: str) -> None:
    """Whatever is chosen, on a system that is dark."""
    with visiting(browser, "dark") as context:
        page = opened(context, address)
        for chosen in ("System", "Light", "Dark"):
            page.emulate_media(media="screen")
            page.get_by_label("Theme").select_option(chosen)
            page.emulate_media(media="print")

            assert [page.evaluate(one) for one in (GROUND, CARD)] == [PAPER, PAPER], chosen
            assert page.evaluate(TEXT) == "rgb(27, 36, 48)", chosen
            assert faults(page, "color-contrast") == [], chosen


def test_page_can_be_installed_on_a_home_screen(whole_browser: SharedBrowser, address: str) -> None:
    """Chromium reads the manifest without errors; its icons exist and it starts with the overview."""
    with visiting(whole_browser) as context:
        page = opened(context, f"{address}/processes")
        tools = context.new_cdp_session(page)
        found = tools.send("Page.getAppManifest")
        complaints = tools.send("Page.getInstallabilityErrors")["installabilityErrors"]
        content = json.loads(found["data"])
        icons = {one["type"]: page.request.get(f"{address}/static/{one['src']}") for one in content["icons"]}

    assert found["errors"] == []
    assert found["url"] == f"{address}/static/manifest.webmanifest"
    assert complaints == [{"errorId": "in-incognito", "errorArguments": []}]
    assert found["manifest"]["startUrl"] == f"{address}/"
    assert [one.headers["content-type"] for one in icons.values()] == list(icons)
