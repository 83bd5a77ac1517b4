"""Printed pages: the whole range of a chart on the paper, in light colours; and pages with forced colours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from support.browsing import SharedBrowser
from support.sample_site import Site, served
from support.sample_snapshots import critical_gb10

# A4 within the margins of Chromium.
PAPER = {"width": 718, "height": 1050}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Site(critical_gb10())) as one:
        yield one


def printed(page: Page) -> None:
    """Show the page as on paper."""
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]


def test_printed_chart_has_its_whole_range(browser: SharedBrowser, address: str) -> None:
    """The chart is as wide as the card on the paper, with all of its lines and times."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}/history?range=1h")
    chart = page.locator("[data-chart=ram]")
    chart.locator("svg.past").wait_for()
    printed(page)
    card, drawn = (one.bounding_box() for one in (page.locator(".past-card").first, chart))
    inner = chart.locator("svg.past, .then").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().right)"
    )
    page.close()

    assert card is not None
    assert drawn is not None
    assert drawn["width"] > 0.85 * PAPER["width"]
    assert max(inner) <= drawn["x"] + drawn["width"] + 1 <= card["x"] + card["width"] + 1 <= PAPER["width"] + 1


def test_printed_landscape_is_whole(browser: SharedBrowser, address: str) -> None:
    """The past and the holders stand side by side in the card, and the past takes what the holders leave."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    past, now = page.locator("svg.past").first, page.locator(".tower svg[class^=now]").filter(visible=True)
    past.wait_for()
    printed(page)
    expect(now).to_have_count(1)
    card, drawn, holders = (one.bounding_box() for one in (page.locator("#landscape"), past, now))
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()

    assert card is not None
    assert drawn is not None
    assert holders is not None
    assert wide <= PAPER["width"]
    assert card["x"] <= drawn["x"]
    assert drawn["x"] + drawn["width"] <= holders["x"] + 1
    assert holders["x"] + holders["width"] <= card["x"] + card["width"] <= PAPER["width"]
    assert drawn["width"] + holders["width"] > 0.85 * PAPER["width"]
    assert drawn["y"] + drawn["height"] <= card["y"] + card["height"]
    assert card["height"] < PAPER["height"]


def test_chart_of_a_dark_page_is_printed_in_light_colours(browser: SharedBrowser, address: str) -> None:
    fill = "(one) => getComputedStyle(one).fill"
    page = browser.new_page(color_scheme="dark")
    page.goto(f"{address}/history?range=1h")
    layer = page.locator("[data-chart=ram] .past .b-devices").first
    dark = layer.evaluate(fill)
    printed(page)
    on_paper = layer.evaluate(fill)
    page.emulate_media(media="screen", color_scheme="light")
    light = layer.evaluate(fill)
    page.close()

    assert dark != on_paper
    assert on_paper == light


def test_forced_colours_keep_holders_apart(browser: SharedBrowser, address: str) -> None:
    """Kinds of bytes of the picture keep their own colours."""
    page = browser.new_page(forced_colors="active")
    page.goto(address)
    colours = {}
    for kind in ("devices", "anonymous", "shared_memory", "kernel"):
        segment = page.locator(f"#pool-ram rect:is(.b-{kind}, .b-{kind}-family)").first
        colours[kind] = segment.evaluate("(one) => getComputedStyle(one).fill")
    page.close()

    assert len(set(colours.values())) == 4
