"""Accessibility: axe-core finds no serious fault, and all pages work by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from memwatch_web.pages.template_environment import LINKS, PATHS
from support.axe import faults
from support.daemon_process import running_daemon
from support.sample_site import Site, served
from support.sample_snapshots import SAMPLES, critical_gb10

# In Swagger UI the headings that expand an operation contain buttons.
OF_SWAGGER = "nested-interactive: ['.opblock-summary-control']"

# With launch lines.
MODEL = "fit?hidden_size=4096&intermediate_size=14336&n_layers=32&vocab_size=128256&n_heads=32&n_kv_heads=8"

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.mark.parametrize("sample", [pytest.param(name, marks=pytest.mark.long) for name in SAMPLES])
def test_sample_pages_have_no_serious_fault(browser: Browser, sample: str) -> None:
    """Every page of every sample machine, in both themes. A theme changes colours only."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    with served(Site(SAMPLES[sample](), interval_seconds=1.0)) as address:
        for name, path in PATHS.items():
            page.emulate_media(color_scheme="light")
            page.goto(address + path)
            light = faults(page)
            page.emulate_media(color_scheme="dark")

            assert light == [], name
            assert faults(page, "color-contrast") == [], name
    page.close()


@pytest.mark.parametrize(
    ("path", "theme"),
    [
        ("/docs", "dark"),
        pytest.param("/patterns", "light", marks=pytest.mark.long),
        pytest.param("/patterns", "dark", marks=pytest.mark.long),
        pytest.param("/docs", "light", marks=pytest.mark.long),
    ],
)
def test_patterns_and_api_reference_have_no_serious_fault(
    browser: Browser, path: str, theme: Literal["light", "dark"]
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    with served(Site(critical_gb10())) as address:
        page.goto(address + path)
        page.wait_for_load_state("networkidle")

        found = [fault for fault in faults(page) if not fault.startswith(OF_SWAGGER)]

        assert found == []
    page.close()


@pytest.mark.parametrize("path", ["/", "/history", "/processes"])
def test_largest_pages_have_no_serious_fault(browser: Browser, path: str) -> None:
    """The same for three pages of one machine in one theme, quickly."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    with served(Site(critical_gb10(), interval_seconds=1.0)) as address:
        page.goto(address + path)

        assert faults(page) == []
    page.close()


@pytest.mark.long
def test_fit_answers_runbooks_and_error_pages_have_no_serious_fault(browser: Browser, tmp_path: Path) -> None:
    """A fitting and an oversized model, the runbooks and a missing page, from a daemon, in both themes."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        incident = f"incidents/{daemon.get('/api/v1/incidents').json[0]['id']}"
        others = ("runbooks", "incidents", incident, "no/such/page")
        for question in ("fit", "fit?bytes=20GiB", MODEL, "fit?bytes=2TiB", *others):
            for theme in THEMES:
                page = browser.new_page(color_scheme=theme)
                page.goto(f"{daemon.url}/{question}")

                assert faults(page) == [], (question, theme)
                page.close()


def test_faults_are_detected(browser: Browser) -> None:
    """A button without a name and low contrast are reported."""
    page = browser.new_page()
    page.set_content("<main><button></button><p style='color:#ccc;background:#fff'>pale</p></main>")

    found = [line.partition(":")[0] for line in faults(page)]

    assert {"button-name", "color-contrast"} <= set(found)
    page.close()


FOCUSED = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const inside = box.bottom > 0 && box.top < innerHeight && box.width > 1 && box.height > 1;
  return {words: (one.ariaLabel || one.innerText || one.title).trim(), outline: style.outlineStyle, inside};
}"""


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
def test_keyboard_reaches_everything_with_a_visible_focus(browser: Browser, name: str) -> None:
    """Each stop is on the screen and has an outline. The first one skips the header, then come the pages."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    with served(Site(critical_gb10())) as address:
        page.goto(address + PATHS[name])
        if page.locator("#chart").count():
            page.get_by_label("Time range").wait_for()  # inserted by the chart, before or behind the focus
        stops = list(walked(page))

    words = [stop["words"] for stop in stops]
    assert words[0] == "Skip to content"
    links = [one.capitalize() for one in LINKS if one != "machines"]  # shown with neighbours only
    assert words[2 : 2 + len(links)] == links
    assert [stop for stop in stops if stop["outline"] == "none" or not stop["inside"]] == []
    reachable = page.locator("a[href], button, input, select, summary, [tabindex='0']").filter(visible=True).count()
    assert len(stops) == reachable
    page.close()


def test_overview_works_by_keyboard(browser: Browser) -> None:
    """Skip link, range buttons of the chart, and details."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    with served(Site(critical_gb10())) as address:
        page.goto(address)
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
    page.close()
