"""The witness of movement that all pages of these tests have, and how much pages move while a machine fills up."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from memwatch_web.pages.template_environment import PATHS
from support.browsing import SharedBrowser, collecting_complaints, wait_for_frames
from support.daemon_process import running_daemon

PAGE = "data:text/html,<main><p>one</p><p>two</p></main><footer><span>three</span><a>four</a></footer>"
WIDTHS = (1440, 390)
MAX_SHIFT = 0.1
# Not held yet for eight GPUs: their ranks load within 20 s and overtake each other in lists by size.
# Nor is the page of alerts, where each alert that fires is a row.
MOVING_WITH_EIGHT = ("processes", "units")
# Events and pools arrive in two tables side by side.
MAX_SHIFTS_OF_EIGHT = {("overview", 1440): 0.15}
# On a phone the restart of the recording takes the share of the GPU away for two seconds, and three lines with it.
MAX_SHIFTS_OF_ONE = {("devices", 390): 0.22, ("processes", 390): 0.13}
# Ten minutes of the machine at twice its speed: a model loads, a level rises, a process is killed, the recording
# begins again.
SPEED, PLAYED_SECONDS = 2, 600


@pytest.mark.parametrize(("place", "is_seen"), [("main", True), ("footer", False)])
def test_movement_is_seen_except_within_the_foot(browser: SharedBrowser, place: str, is_seen: bool) -> None:
    page = browser.new_page()
    page.goto(PAGE)
    wait_for_frames(page)
    insert = "(place) => document.querySelector(place).insertAdjacentHTML('afterbegin', '<h1>late</h1>')"
    page.evaluate(insert, place)
    wait_for_frames(page)

    assert (page.evaluate("window.moved") > 0) is is_seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("demo", "limits"), [("dgx-spark", MAX_SHIFTS_OF_ONE), ("h100x8-mig", MAX_SHIFTS_OF_EIGHT)]
)
def test_no_page_moves_in_ten_minutes_in_which_a_machine_fills_up(
    browser: SharedBrowser, tmp_path: Path, demo: str, limits: dict[tuple[str, int], float]
) -> None:
    """All pages but that of alerts at once, on a desktop and on a phone, with a level that rises and a kill."""
    with running_daemon(tmp_path, "--demo", demo, "--at", "0s", "--speed", str(SPEED)) as daemon:
        largest = max(daemon.get("/api/v1/processes").json, key=lambda one: one["footprint_bytes"] or 0)
        paths = {**PATHS, "units": "/processes?by=unit", "process": f"/processes/{largest['pid']}"}
        del paths["alerts"]
        if limits is MAX_SHIFTS_OF_EIGHT:
            paths = {name: path for name, path in paths.items() if name not in MOVING_WITH_EIGHT}
        pages: dict[tuple[str, int], Page] = {}
        for width in WIDTHS:
            for name, path in paths.items():
                page = pages[name, width] = browser.new_page(viewport={"width": width, "height": 900})
                with collecting_complaints(page, daemon.url) as complaints:
                    page.goto(daemon.url + path)
                assert complaints == []
        next(iter(pages.values())).wait_for_timeout(PLAYED_SECONDS / SPEED * 1000)
        moved = {key: page.evaluate("window.moved") for key, page in pages.items()}
        stale = [key for key, page in pages.items() if page.locator("body.stale").count()]
        for page in pages.values():
            page.close()

    assert stale == []
    assert {key: found for key, found in moved.items() if found > limits.get(key, MAX_SHIFT)} == {}
