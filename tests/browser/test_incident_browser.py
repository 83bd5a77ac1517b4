"""The page of an incident in a real browser: one screen, phones, accessibility, copies, and no script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened, wait_for_frames
from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import wait_until

DESKTOP, PHONES = ViewportSize(width=1440, height=900), (390, 320)
# Chrome calls 0.1 good.
MAX_SHIFT = 0.02
SIZES, WEIGHTS = {"11px", "13px", "16px", "22px", "40px"}, {"400", "600", "700"}
# Of a machine whose figures are real there is no banner.
AS_ON_A_MACHINE = """() => {
  document.querySelector('.simulated')?.remove();
  return document.querySelector('main').getBoundingClientRect().bottom;
}"""
FONTS = """() => {
  const found = [...document.querySelectorAll('main *')].filter((one) => one.checkVisibility() &&
    [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return found.map((one) => [getComputedStyle(one).fontSize, getComputedStyle(one).fontWeight]);
}"""
# Texts of the picture that is shown, which are outside of it.
CUT = """() => {
  const picture = [...document.querySelectorAll('.incident-picture')].find((one) => one.checkVisibility());
  const frame = picture.getBoundingClientRect();
  return [...picture.querySelectorAll('text')].filter((text) => {
    const box = text.getBoundingClientRect();
    const beside = box.left < frame.left - 1 || box.right > frame.right + 1;
    return beside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  }).map((text) => text.textContent);
}"""
TYPES = "async () => (await navigator.clipboard.read()).flatMap((item) => item.types)"
REFUSE = "() => { navigator.clipboard.write = () => Promise.reject(new Error('refused')); }"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A DGX Spark demo, which has had an OOM kill."""
    with running_daemon(tmp_path_factory.mktemp("incident"), "--demo", "dgx-spark") as one:
        yield one


@pytest.fixture(scope="module")
def incident(daemon: RunningDaemon) -> Any:
    found = daemon.wait_for("/api/v1/incidents", lambda found: any(one["victim"] for one in found))
    return next(one for one in found if one["victim"])


@pytest.fixture(scope="module")
def url(daemon: RunningDaemon, incident: Any) -> str:
    return f"{daemon.url}/incidents/{incident['id']}"


def test_incident_fits_one_screen(browser: SharedBrowser, url: str, incident: Any) -> None:
    """Title, facts, picture, seven entries and the evidence, without scrolling."""
    with opened(browser, url, viewport=DESKTOP) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(incident["title"])
        bottom = page.evaluate(AS_ON_A_MACHINE)
        fonts = page.evaluate(FONTS)

    assert bottom <= DESKTOP["height"]
    assert {size for size, _ in fonts} <= SIZES
    assert {weight for _, weight in fonts} <= WEIGHTS


@pytest.mark.parametrize("width", [1440, 390, 320])
def test_scripts_of_an_incident_move_nothing(browser: SharedBrowser, url: str, width: int) -> None:
    """Times in the zone of the reader and the words of the buttons are no wider than what they replace."""
    with opened(browser, url, viewport=ViewportSize(width=width, height=900)) as page:
        expect(page.get_by_role("link", name="Copy link")).to_be_visible()
        wait_for_frames(page)
        moved = page.evaluate("window.moved")

    assert moved <= MAX_SHIFT


def test_page_and_list_are_accessible_and_fit_phones(
    browser: SharedBrowser, daemon: RunningDaemon, url: str
) -> None:
    """No serious fault by axe-core, nothing scrolls sideways, and no word of the picture is cut."""
    for address in (url, f"{daemon.url}/incidents"):
        with opened(browser, address, viewport=DESKTOP) as page:
            assert faults_in_both_themes(page) == []
            assert cut(page, address == url) == []
            for width in PHONES:
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert cut(page, address == url) == []


def cut(page: Page, has_picture: bool) -> list[str]:
    return list(page.evaluate(CUT)) if has_picture else []


def test_link_report_and_picture_are_copied(
    browser: SharedBrowser, daemon: RunningDaemon, url: str, incident: Any
) -> None:
    """The report is that of the command line. The picture is a PNG."""
    allowed = ["clipboard-read", "clipboard-write"]
    with opened(browser, url, viewport=DESKTOP, permissions=allowed) as page:
        page.get_by_role("link", name="Copy link").click()
        expect(page.locator("#announcement")).to_have_text("Copied")
        link = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("link", name="Copy Markdown").click()
        # A promise is true at once for `wait_for_function`.
        wait_until(lambda: page.evaluate("navigator.clipboard.readText()") != link)
        report = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("link", name="Copy picture").click()
        wait_until(lambda: page.evaluate(TYPES) == ["image/png"])
        stays = page.url

    assert link == stays == url
    assert incident["title"] in report.splitlines()[0]
    assert report.replace("\r\n", "\n") == daemon.get(f"/incidents/{incident['id']}/report.md").body.decode()


def test_link_opens_where_copying_is_not_allowed(browser: SharedBrowser, url: str, incident: Any) -> None:
    with opened(browser, url, viewport=DESKTOP) as page:
        page.evaluate(REFUSE)
        page.get_by_role("link", name="Copy Markdown").click()
        page.wait_for_url(f"{url}/report.md")

        assert incident["title"] in page.content()


def test_page_is_complete_without_a_script(browser: SharedBrowser, url: str, incident: Any) -> None:
    """The links open what they would copy."""
    with opened(browser, url, viewport=DESKTOP, java_script_enabled=False) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(incident["title"])
        expect(page.locator(".incident-wide")).to_be_visible()
        expect(page.locator(".incident-narrow")).to_be_hidden()
        page.get_by_role("link", name="Picture").click()
        page.wait_for_url(f"{url}/picture.svg")


def test_entry_opens_the_history_of_its_time(browser: SharedBrowser, url: str) -> None:
    with opened(browser, url, viewport=DESKTOP) as page:
        page.get_by_role("link", name="History around").first.click()
        page.wait_for_url("**/history?from=*")
        expect(page.get_by_role("heading", name="System RAM").first).to_be_visible()
