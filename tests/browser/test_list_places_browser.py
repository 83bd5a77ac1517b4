"""Rows of a live list keep their places until the list is sorted, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, Route

from memwatch.core.model import Process
from memwatch.core.snapshot import Level, Pressure, Snapshot
from support.browsing import SharedBrowser, wait_for_frames
from support.live_page import pass_seconds, showing, wait_for_ticks
from support.sample_parts import GIB, vram
from support.sample_site import Site
from support.sample_snapshots import calm_workstation, discrete_gpu

SHOWN = """[...document.querySelectorAll("#process-rows tr:not(.detail-row)")]
    .filter((row) => getComputedStyle(row).visibility === "visible")
    .map((row) => (row.classList.contains("gone") ? "ended " : "") + row.querySelector("a").innerText)"""
COUNT_SORTS = "window.sorts = 0; document.addEventListener('memwatch:sorted', () => { window.sorts += 1; });"
# As in app.js.
SORT_SECONDS, HELD_SECONDS = 30, 10


def build_process(name: str, gib: int) -> Process:
    first = calm_workstation().processes[0]
    pid = 100 + ord(name)
    return replace(first, pid=pid, name=name, script="", footprint_bytes=gib * GIB, footprint_range=None)


def build_machine(**sizes: int) -> Snapshot:
    """Return a machine whose processes have these names, and sizes in GiB."""
    return replace(calm_workstation(), processes=tuple(build_process(*one) for one in sizes.items()))


@contextmanager
def watching(browser: SharedBrowser, site: Site, *, controls_clock: bool = True) -> Iterator[Page]:
    with showing(browser, site, "/processes", controls_clock=controls_clock) as page:
        page.evaluate(COUNT_SORTS)
        wait_for_ticks(page)
        yield page


def show(page: Page, site: Site, snapshot: Snapshot) -> list[str]:
    site.snapshot = snapshot
    wait_for_ticks(page)
    wait_for_frames(page)
    found: list[str] = page.evaluate(SHOWN)
    return found


def test_rows_that_overtake_each_other_keep_their_places_until_the_list_is_sorted(browser: SharedBrowser) -> None:
    """Half a minute after the order has changed, without a row that moves."""
    site = Site(build_machine(a=9, b=5, c=2))
    with watching(browser, site) as page:
        before = page.evaluate("window.moved")

        assert show(page, site, build_machine(a=9, b=5, c=50)) == ["a", "b", "c"]
        pass_seconds(page, SORT_SECONDS - 10)
        assert page.evaluate(SHOWN) == ["a", "b", "c"]
        pass_seconds(page, 15)
        assert page.evaluate(SHOWN) == ["c", "a", "b"]
        assert page.evaluate("window.sorts") == 1
        assert page.evaluate("window.moved") - before < 0.005


def test_list_is_sorted_at_once_when_the_level_rises(browser: SharedBrowser) -> None:
    site = Site(build_machine(a=9, b=5, c=2))
    with watching(browser, site, controls_clock=False) as page:
        grown = build_machine(a=9, b=5, c=50)
        assert show(page, site, grown) == ["a", "b", "c"]
        worst = [replace(one, level=Level.CRITICAL) for one in grown.pressure]

        assert show(page, site, replace(grown, pressure=tuple(worst))) == ["c", "a", "b"]


def build_gpus(*levels: Level) -> Snapshot:
    """Return a machine with GPUs at these levels."""
    cards = tuple(vram(f"gpu{n}", f"VRAM {n}", size=80 * GIB, used=70 * GIB, reserved=0) for n in range(4))
    verdicts = tuple(Pressure(card.id, level, level, 0.9) for card, level in zip(cards, levels, strict=True))
    base = discrete_gpu()
    return replace(base, pools=(base.pools[0], *cards), shares=(), devices=(), pressure=verdicts)


def test_row_whose_level_rises_is_in_its_place_at_once(browser: SharedBrowser) -> None:
    """Its machine keeps its level: "medium GPU 7 · MIG 2" stood above "high VRAM 3" for half a minute."""
    medium, high, critical = Level.MEDIUM, Level.HIGH, Level.CRITICAL
    site = Site(build_gpus(critical, medium, medium, Level.LOW))
    rows = "[...document.querySelectorAll('#firing-rows .firing-place')].map((one) => one.innerText)"
    with showing(browser, site, "/", controls_clock=False) as page:
        wait_for_ticks(page)
        assert page.evaluate(rows) == ["VRAM 0", "VRAM 1", "VRAM 2"]
        show(page, site, build_gpus(critical, medium, high, Level.LOW))
        assert page.evaluate(rows) == ["VRAM 0", "VRAM 2", "VRAM 1"]


def test_another_order_that_a_user_asks_for_is_shown_at_once(browser: SharedBrowser) -> None:
    site = Site(build_machine(a=9, b=5, c=2))
    with watching(browser, site, controls_clock=False) as page:
        page.get_by_role("button", name="Name").click()
        page.locator("th[aria-sort=ascending]").get_by_role("button", name="Name").click()

        page.wait_for_function(f'() => JSON.stringify({SHOWN}) === \'["c","b","a"]\'')


def test_view_chosen_while_the_stream_connects_is_shown(browser: SharedBrowser) -> None:
    """On a slow link, a search follows a sort whose request is under way."""
    held: list[Route] = []
    with watching(browser, Site(build_machine(a=9, b=5, c=2)), controls_clock=False) as page:
        page.route("**/live?*sort=name", lambda route: held.append(route))
        with page.expect_request("**/live?*sort=name"):
            page.get_by_role("button", name="Name").click()
        page.get_by_role("searchbox").fill("b")
        page.wait_for_url("**/processes?*q=b")
        held[0].continue_()

        page.wait_for_function(f"() => JSON.stringify({SHOWN}) === '[\"b\"]'")


def test_new_process_takes_the_place_of_one_that_ended(browser: SharedBrowser) -> None:
    """The page below the list does not move: after a sort the places that no row takes are empty."""
    site = Site(build_machine(a=9, b=5, c=2))
    with watching(browser, site) as page:
        below = page.locator(".basis").bounding_box()

        assert show(page, site, build_machine(a=9, c=2)) == ["a", "ended b", "c"]
        lines = page.locator(".gone .figure").evaluate_all(
            "all => all.map(a => getComputedStyle(a).textDecorationLine)"
        )
        assert set(lines) == {"line-through"}
        assert show(page, site, build_machine(a=9, c=2, d=1)) == ["a", "d", "c"]
        assert show(page, site, build_machine(c=2, d=1)) == ["ended a", "d", "c"]
        pass_seconds(page, SORT_SECONDS + 1)
        assert page.evaluate(SHOWN) == ["c", "d"]
        assert page.locator(".basis").bounding_box() == below
        assert show(page, site, build_machine(c=2, d=1, e=7)) == ["c", "d", "e"]
        assert page.locator(".basis").bounding_box() == below


@pytest.mark.parametrize("use", ["pointer", "focus"])
def test_list_in_use_is_not_sorted(browser: SharedBrowser, use: str) -> None:
    """Until the pointer has rested for a while, or the focus has left the list."""
    site = Site(build_machine(a=9, b=5, c=2))
    with watching(browser, site) as page:
        link = page.locator("#process-rows a").first
        if use == "focus":
            link.focus()
        place = link.bounding_box()
        assert place is not None
        show(page, site, build_machine(a=9, b=5, c=50))
        for step in range(SORT_SECONDS // 4 + 2):
            if use == "pointer":
                page.mouse.move(place["x"] + 5 + step, place["y"] + 5)
            pass_seconds(page, 4)
        assert page.evaluate(SHOWN) == ["a", "b", "c"]

        page.evaluate("document.activeElement.blur()")
        pass_seconds(page, HELD_SECONDS + 1)
        assert page.evaluate(SHOWN) == ["c", "a", "b"]


def test_ended_process_of_the_overview_is_struck_through_until_the_list_is_sorted(browser: SharedBrowser) -> None:
    """With no other process for its row, the first row of "Who holds it" was blank."""
    site = Site(build_machine(a=9, b=8, c=7))
    seen = """[...document.querySelectorAll("#who-rows tr")]
        .filter((row) => getComputedStyle(row).visibility === "visible")
        .map((row) => getComputedStyle(row).textDecorationLine + " " + row.querySelector("a").innerText)"""
    with showing(browser, site, "/") as page:
        wait_for_ticks(page)
        site.snapshot = build_machine(b=8, c=7)
        wait_for_ticks(page)
        assert page.evaluate(seen) == ["line-through a", "none b", "none c"]
        pass_seconds(page, SORT_SECONDS + 1)
        assert page.evaluate(seen) == ["none b", "none c"]


def test_largest_processes_of_the_overview_keep_their_rows(browser: SharedBrowser) -> None:
    site = Site(build_machine(a=9, b=8, c=7, d=6, e=5))
    with showing(browser, site, "/") as page:
        wait_for_ticks(page)
        read = "[...document.querySelectorAll('#who-rows .who-name a')].map((one) => one.innerText)"
        assert page.evaluate(read) == ["a", "b", "c", "d", "e"]
        site.snapshot = build_machine(a=9, b=8, c=7, d=6, e=50)
        wait_for_ticks(page)

        assert page.evaluate(read) == ["a", "b", "c", "d", "e"]
