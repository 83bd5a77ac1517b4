"""Keyboard shortcuts: help, filter and pages; never while typing, with a modifier, or when disabled."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from memwatch_web.pages.template_environment import KEYS, PATHS
from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.sample_site import Site, served
from support.sample_snapshots import calm_workstation


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Site(calm_workstation())) as one:
        yield one


@pytest.fixture
def page(visited_page: Page, address: str) -> Page:
    visited_page.goto(f"{address}/processes")
    return visited_page


def test_question_mark_opens_the_help_and_escape_returns(page: Page) -> None:
    """The focus returns to where it was. Both themes are accessible."""
    link = page.get_by_role("link", name="Devices")
    link.focus()
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(help_).to_be_visible()
    assert faults_in_both_themes(page) == []
    page.keyboard.press("Escape")

    expect(help_).to_be_hidden()
    expect(link).to_be_focused()


def test_button_opens_the_help(page: Page) -> None:
    button = page.get_by_role("button", name="Keyboard shortcuts")
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()

    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(button).to_be_focused()


def test_slash_focuses_the_filter_where_keys_are_text(page: Page) -> None:
    page.keyboard.press("/")
    field = page.get_by_role("searchbox", name="Find")
    expect(field).to_be_focused()
    page.keyboard.type("/?go")

    expect(field).to_have_value("/?go")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert "/processes" in page.url


@pytest.mark.parametrize("name", [name for name in PATHS if name not in ("machines", "processes")])
def test_g_and_a_letter_open_a_page(page: Page, address: str, name: str) -> None:
    page.keyboard.press("g")
    page.keyboard.press(KEYS[name])

    page.wait_for_url(address + PATHS[name])


def test_other_keys_do_nothing(page: Page) -> None:
    """A letter without g, an unknown one after it, and keys with a modifier."""
    url = page.url
    for key in ("o", "g", "x", "o", "Control+/", "Alt+g", "o"):
        page.keyboard.press(key)
    page.evaluate("() => new Promise(requestAnimationFrame)")

    assert page.url == url
    expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_slash_without_a_filter_is_left_to_the_browser(page: Page, address: str) -> None:
    page.goto(f"{address}/about")
    page.evaluate("document.addEventListener('keydown', (event) => { window.taken = event.defaultPrevented; })")
    page.keyboard.press("/")

    assert page.evaluate("window.taken") is False


def test_disabled_shortcuts_stay_disabled(browser: SharedBrowser, address: str) -> None:
    with opened(browser, f"{address}/processes") as page:
        page.keyboard.press("?")
        page.get_by_label("Use shortcuts").uncheck()
        page.keyboard.press("Escape")
        page.reload()
        expect(page.get_by_role("button", name="Keyboard shortcuts")).to_be_visible()
        page.keyboard.press("?")
        page.keyboard.press("/")

        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_history_keeps_its_own_keys(page: Page, address: str) -> None:
    page.goto(f"{address}/history?range=1h")
    page.locator("[data-chart] svg.past").first.wait_for()
    page.locator("[data-chart]").first.focus()
    page.keyboard.press("+")

    page.wait_for_url(re.compile("from="))
