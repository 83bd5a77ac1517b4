"""The wall of machines in a browser: one screen for 24, phones, filter, keyboard, accessibility."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, wait_for_frames
from support.live_page import evaluate_at, resize, showing, visiting, wait_for_ticks
from support.sample_fleet import Fleet
from support.sample_site import Site
from support.sample_snapshots import calm_workstation
from support.type_scale import wrong_type

# Words of tiles that are cut at the right or at the bottom. What only screen readers read has no room by design.
CUT = """[...document.querySelectorAll(".machine-tile :not(.unseen, svg, svg *)")]
  .filter(({ clientWidth: width, clientHeight: height, scrollWidth: wide, scrollHeight: high }) =>
    width && (wide > width + 1 || high > height + 4))
  .map((one) => one.textContent)"""
TOWERS_END = """() => [...document.querySelectorAll(".machine-picture")].map((one) => {
  const box = one.getBoundingClientRect(), tile = one.closest(".machine-tile").getBoundingClientRect();
  return box.left >= tile.left && box.right <= tile.right && box.bottom <= tile.bottom;
})"""


def fleet() -> Site:
    return Site(calm_workstation(), machines=Fleet().machines)


def test_24_machines_are_on_one_screen_without_a_fault(browser: SharedBrowser) -> None:
    """In both themes; five sizes of type and three weights; every picture is in its tile."""
    with showing(browser, fleet(), "/machines", viewport={"width": 1440, "height": 900}) as page:
        wait_for_ticks(page)
        height, width = page.evaluate("[document.body.scrollHeight, document.documentElement.scrollWidth]")
        wrong = wrong_type(page)
        within = page.evaluate(TOWERS_END)
        bottom = page.locator(".machine-tile").last.bounding_box()
        found = faults_in_both_themes(page)

    assert found == []
    assert len(within) == 24
    assert all(within)
    assert bottom is not None
    assert bottom["y"] + bottom["height"] <= 900
    assert (height <= 900, width) == (True, 1440)
    assert wrong == set()


def test_curve_of_a_tile_is_cut_at_its_frame(visited_page: Page) -> None:
    """Its ends and corners reached over the frame at the top and at the right."""
    with visiting(visited_page, fleet(), "/machines"):
        frames = visited_page.evaluate("""[...document.querySelectorAll(".machine-line")].map((line) => {
          const frame = line.parentElement, sides = ["width", "height"].map((side) => frame.getAttribute(side));
          return [...sides, getComputedStyle(frame).overflow].join(" ");
        })""")

    assert {*frames} == {"104 74 hidden"}


def test_no_word_of_a_tile_is_cut(visited_page: Page) -> None:
    """Names of many letters, long kinds and reasons have a second line."""
    with visiting(visited_page, fleet(), "/machines"):
        cut = evaluate_at(visited_page, (1440, 1280, 390), CUT)

    assert cut == {1440: [], 1280: [], 390: []}


def test_ticks_of_a_machine_have_all_its_pools(visited_page: Page) -> None:
    """Eight GPUs and System RAM, on a page that does not scroll sideways."""
    with visiting(visited_page, fleet(), "/machines/dgx-h100-03", width=1440):
        heads = visited_page.locator(".machine-ticks thead th").all_inner_texts()
        cells = visited_page.locator(".machine-ticks tbody tr").first.locator("td.number").all_inner_texts()
        table = visited_page.evaluate(
            "(({scrollWidth: a, clientWidth: b}) => [a, b])(document.querySelector('.machine-ticks'))"
        )

    pools = [head.removesuffix(" available") for head in heads if head.endswith(" available")]
    assert pools == ["System RAM", *(f"VRAM {number}" for number in range(8))]
    assert len(cells) == 9
    assert table[0] == table[1]


def test_wall_is_one_column_on_a_phone(visited_page: Page) -> None:
    page = visited_page
    with visiting(page, fleet(), "/machines"):
        for width in (390, 320):
            resize(page, width, 844)
            lefts = page.evaluate("[...document.querySelectorAll('.machine-tile')].map((one) => one.offsetLeft)")
            heights = page.evaluate(
                "[...document.querySelectorAll('.machine-tile')].map((one) => one.offsetHeight)"
            )

            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert len(set(lefts)) == 1, width
            assert max(heights) <= 180, width


def shown_names(page: Page) -> list[str]:
    return [one.strip() for one in page.locator(".machine-tile:visible h2 a").all_inner_texts()]


def test_filter_shows_what_matches_also_after_an_update(browser: SharedBrowser) -> None:
    """By name, kind, level or process. It is kept in the address."""
    with showing(browser, fleet(), "/machines") as page:
        page.keyboard.press("/")
        page.keyboard.type("h100")
        expect(page.locator(".machine-tile:visible")).to_have_count(2)
        wait_for_ticks(page, 3)
        by_kind = shown_names(page)
        counted = page.locator("#shown").inner_text()
        address = page.url
        page.get_by_role("searchbox").fill("train.py")
        expect(page.locator(".machine-tile:visible")).to_have_count(1)
        by_process = shown_names(page)
        page.get_by_role("searchbox").fill("no answer")
        expect(page.locator(".machine-tile:visible")).to_have_count(2)
        page.goto(address)
        expect(page.locator(".machine-tile:visible")).to_have_count(2)

    assert by_kind == ["dgx-h100-03", "dgx-h100-04"]
    assert counted == "2 of 24"
    assert by_process == ["spark-1a2b"]
    assert address.endswith("?q=h100")


def test_tile_is_a_link_to_its_machine(browser: SharedBrowser) -> None:
    """Also by keyboard, with a visible ring, and anywhere on the tile."""
    with showing(browser, fleet(), "/machines", may_complain=True) as page:
        link = page.get_by_role("link", name="gh200-01")
        link.focus()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        ring = page.evaluate("getComputedStyle(document.activeElement, '::after').outlineStyle")
        box = page.locator("#machine-of-gh200-01").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] - 12, box["y"] + box["height"] - 10)
        page.wait_for_url("**/machines/gh200-01")

    assert ring == "solid"


@pytest.mark.parametrize("name", ["dgx-h100-03", "lab-ws-4", "locked"])
def test_page_of_a_machine_has_no_fault(browser: SharedBrowser, name: str) -> None:
    """Its picture, its pools in figures and its ticks; also on a phone, and for one that never answered."""
    with showing(browser, fleet(), f"/machines/{name}", viewport={"width": 1440, "height": 900}) as page:
        wrong, found = wrong_type(page), faults_in_both_themes(page)
        page.set_viewport_size({"width": 320, "height": 844})
        wait_for_frames(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        rows = page.locator(".machine-pools tbody tr").count()

    assert (found, wrong) == ([], set())
    assert width == 320
    assert rows == {"dgx-h100-03": 9, "lab-ws-4": 2, "locked": 0}[name]


def test_page_of_a_machine_is_updated_in_place(browser: SharedBrowser) -> None:
    """Without a reload; times stay in the local time zone."""
    with showing(browser, fleet(), "/machines/spark-1a2b", timezone_id="Asia/Kolkata") as page:
        times = page.locator("table time").all_inner_texts()
        page.evaluate("document.querySelector('h1').textContent = 'before'; window.stayed = true")
        page.wait_for_function("() => document.querySelector('h1').textContent === 'spark-1a2b'")
        after = page.locator("table time").all_inner_texts()
        stayed = page.evaluate("window.stayed")

    assert stayed
    assert times == after
    assert times
    assert all("UTC" not in one for one in times)
