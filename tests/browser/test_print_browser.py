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
# Colour of the first canvas at fractions of its width and height.
PIXEL = """(place) => {
  const canvas = document.querySelector("canvas");
  const [x, y] = [place[0] * canvas.width, place[1] * canvas.height];
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
}"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(Site(critical_gb10())) as one:
        yield one


def printed(page: Page) -> None:
    """Show the page as on paper."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]


def test_printed_chart_has_its_whole_range(browser: SharedBrowser, address: str) -> None:
    """Drawn for the paper, then scaled to the card; afterwards it has the size of the window again."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}/history?range=1h")
    canvas = page.locator("canvas").first
    canvas.wait_for()
    wide = canvas.bounding_box()
    printed(page)
    card, drawn = (one.bounding_box() for one in (page.locator(".card:has(canvas)").first, canvas))
    ratio = page.evaluate(
        "(() => { const one = document.querySelector('canvas'); return one.width / one.height; })()"
    )

    assert wide is not None
    assert card is not None
    assert drawn is not None
    assert wide["width"] > 550
    assert card["x"] <= drawn["x"]
    assert drawn["x"] + drawn["width"] <= card["x"] + card["width"] <= PAPER["width"]
    assert drawn["width"] > 0.85 * PAPER["width"]
    assert drawn["width"] / drawn["height"] == pytest.approx(ratio, rel=0.02)

    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("html[data-printing]")).to_have_count(0)
    again = canvas.bounding_box()
    assert again is not None
    assert again["width"] == pytest.approx(wide["width"], abs=1)
    page.close()


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
    page = browser.new_page(color_scheme="dark")
    page.goto(f"{address}/history?range=1h")
    page.locator("canvas").first.wait_for()
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--gpu').trim()"
    dark, stack = page.evaluate(colour), page.evaluate(PIXEL, [0.41, 0.77])
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    light, on_paper = page.evaluate(colour), page.evaluate(PIXEL, [0.41, 0.77])
    page.close()

    assert stack == [*bytes.fromhex(dark[1:]), 255]
    assert on_paper == [*bytes.fromhex(light[1:]), 255]
    assert stack != on_paper


def test_printed_file_has_pages(browser: SharedBrowser, address: str) -> None:
    """Chromium sends the events of printing: the attribute is set while it makes the file, and then removed."""
    page = browser.new_page(color_scheme="dark")
    page.goto(f"{address}/history?range=1h")
    page.locator("canvas").first.wait_for()
    page.evaluate(
        "window.printing = [];"
        "new MutationObserver(() => window.printing.push(document.documentElement.hasAttribute('data-printing')))"
        ".observe(document.documentElement, { attributes: true, attributeFilter: ['data-printing'] })"
    )
    content = page.pdf(format="A4")
    seen = page.evaluate("window.printing")
    page.close()

    assert content.startswith(b"%PDF")
    assert seen[0] is True
    assert seen[-1] is False


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
