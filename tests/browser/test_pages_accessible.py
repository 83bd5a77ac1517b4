"""Accessibility: axe-core finds no serious fault, and all pages work by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from memwatch_web.pages.template_environment import LINKS, PATHS
from support.axe import faults, faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.daemon_process import running_daemon
from support.live_page import evaluate_at, showing, visiting
from support.sample_site import Site
from support.sample_snapshots import critical_gb10

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# With launch lines.
MODEL = "fit?hidden_size=4096&intermediate_size=14336&n_layers=32&vocab_size=128256&n_heads=32&n_kv_heads=8"


@pytest.mark.long
def test_fit_answers_runbooks_and_error_pages_have_no_serious_fault(browser: SharedBrowser, tmp_path: Path) -> None:
    """A fitting and an oversized model, the runbooks and a missing page, from a daemon, in both themes."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        incident = f"incidents/{daemon.get('/api/v1/incidents').json[0]['id']}"
        others = ("runbooks", "incidents", incident, "no/such/page")
        for question in ("fit", "fit?bytes=20GiB", MODEL, "fit?bytes=2TiB", *others):
            with opened(browser, f"{daemon.url}/{question}", may_complain=True) as page:
                assert faults_in_both_themes(page) == [], question


def test_faults_are_detected(browser: SharedBrowser) -> None:
    """A button without a name and low contrast are reported."""
    page = browser.new_page()
    page.set_content("<main><button></button><p style='color:#ccc;background:#fff'>pale</p></main>")

    found = [line.partition(":")[0] for line in faults(page)]

    assert {"button-name", "color-contrast"} <= set(found)
    page.close()


# Of each visible placeholder: its contrast, and by how much it is wider than its field.
PLACEHOLDERS = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const pen = document.createElement("canvas").getContext("2d");
  const fields = [...document.querySelectorAll("main [placeholder]:not([placeholder=''])")];
  return fields.filter((one) => one.offsetWidth).map((one) => {
    const style = getComputedStyle(one), words = getComputedStyle(one, "::placeholder");
    const [dark, bright] = [light(words.color), light(style.backgroundColor)].sort((a, b) => a - b);
    pen.font = style.font;
    const room = one.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const wide = one.localName === "textarea" ? 0 : pen.measureText(one.placeholder).width - room;
    return [one.placeholder, (bright + 0.05) / (dark + 0.05) * words.opacity, wide];
  });
}"""
MIN_CONTRAST = 4.5

FOCUSED = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const inside = box.bottom > 0 && box.top < innerHeight && box.width > 1 && box.height > 0;
  const words = one.ariaLabel || one.innerText || one.title || one.textContent;
  return {words: words.trim(), outline: style.outlineStyle, inside};
}"""


@pytest.mark.parametrize("name", ["processes", "alerts", "fit"])
def test_placeholders_are_readable_and_whole(visited_page: Page, name: str) -> None:
    """In both themes, also on phones. axe-core does not look at them."""
    page = visited_page
    with visiting(page, Site(critical_gb10()), f"/{name}"):
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            for width, found in evaluate_at(page, (1280, 390, 320), PLACEHOLDERS).items():
                assert found
                assert [one for one in found if one[1] < MIN_CONTRAST or one[2] > 0] == [], (theme, width)


def walked(page: Page, most: int = 64) -> Iterator[dict[str, Any]]:
    """Yield the focused elements of a walk with the tab key."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            return
        yield page.evaluate(FOCUSED)
    raise AssertionError(f"after {most} steps it is still on the page")


@pytest.mark.parametrize(
    "name", [name if name == "overview" else pytest.param(name, marks=pytest.mark.long) for name in PATHS]
)
def test_keyboard_reaches_everything_with_a_visible_focus(browser: SharedBrowser, name: str) -> None:
    """Each stop is on the screen and has an outline. The first one skips the header, then come the pages."""
    with showing(browser, Site(critical_gb10()), PATHS[name]) as page:
        stops = list(walked(page))
        all_ = page.locator("a[href], button:enabled, input, select, summary, [tabindex='0']")
        reachable = all_.filter(visible=True).count()

    words = [stop["words"] for stop in stops]
    assert words[0] == "Skip to content"
    links = [one.capitalize() for one in LINKS if one != "machines"]  # shown with neighbours only
    assert words[2 : 2 + len(links)] == links
    assert [stop for stop in stops if stop["outline"] == "none" or not stop["inside"]] == []
    assert len(stops) == reachable


def test_overview_works_by_keyboard(browser: SharedBrowser) -> None:
    """Skip link, range buttons of the chart, and details."""
    with showing(browser, Site(critical_gb10())) as page:
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#live') !== null")

        ranges = page.get_by_label("Time range")
        ranges.get_by_role("link", name="1 h").focus()
        page.keyboard.press("Enter")
        expect(ranges.get_by_role("link", name="1 h")).to_have_attribute("aria-current", "true")

        details = page.locator("#live details").first
        details.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(details).to_have_attribute("open", "")
