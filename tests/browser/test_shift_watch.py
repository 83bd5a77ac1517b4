"""The witness of movement that all pages of these tests have, and how much pages move while a machine fills up."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from memwatch_web.pages.template_environment import PATHS
from memwatchd.settings.schema import DEMOS
from support.browsing import SharedBrowser, collecting_complaints, wait_for_frames
from support.budget import within
from support.daemon_process import running_daemon

PAGE = "data:text/html,<main><p>one</p><p>two</p></main><footer><span>three</span><a>four</a></footer>"
WIDTHS = (1440, 390)
# Promised for each page, as Chromium counts: the worst five seconds, which a pause of one second ends. A busy
# machine paints in more steps, so that three times as much fails, as with all measurements.
MAX_SHIFT = 0.1
# Of a unified machine and of eight GPUs. Each takes two and a half minutes, so that a change leaves out the others.
DEMOS_OF_A_CHANGE = ("dgx-spark", "h100x8-mig")
MORE = {"units": "/processes?by=unit", "users": "/processes?by=user", "incidents": "/incidents", "fit": "/fit"}
# Ten minutes of the machine at five times its speed: a model loads, a level rises, a process is killed, and the
# recording begins again.
SPEED, PLAYED_SECONDS = 5, 600
# Shifts of the time: to open and to read all pages takes minutes on a busy machine.
WORST = """(seconds) => {
  let [worst, sum, first, last] = [0, 0, -Infinity, -Infinity];
  for (const [at, value] of window.shifts.filter(([at]) => at <= seconds)) {
    if (at - last > 1 || at - first > 5) [sum, first] = [0, at];
    [sum, last] = [sum + value, at];
    worst = Math.max(worst, sum);
  }
  return worst;
}"""


@pytest.mark.parametrize(("place", "is_seen"), [("main", True), ("footer", False)])
def test_movement_is_seen_except_within_the_foot(browser: SharedBrowser, place: str, is_seen: bool) -> None:
    page = browser.new_page()
    page.goto(PAGE)
    wait_for_frames(page)
    insert = "(place) => document.querySelector(place).insertAdjacentHTML('afterbegin', '<h1>late</h1>')"
    page.evaluate(insert, place)
    wait_for_frames(page)

    assert (page.evaluate("window.moved") > 0) is is_seen


# Alone, as 26 pages keep more than one core busy: beside other long tests their updates come too late.
@pytest.mark.long
@pytest.mark.host
@pytest.mark.parametrize("demo", DEMOS_OF_A_CHANGE)
def test_no_page_moves_in_ten_minutes_in_which_a_machine_fills_up(
    browser: SharedBrowser, tmp_path: Path, demo: str
) -> None:
    """All pages at once, on a desktop and on a phone, with a level that rises and a kill."""
    check_movement(browser, tmp_path, demo)


@pytest.mark.long
@pytest.mark.host
@pytest.mark.parametrize("demo", [demo for demo in DEMOS if demo not in DEMOS_OF_A_CHANGE])
def test_no_page_of_another_demo_moves_in_ten_minutes(browser: SharedBrowser, tmp_path: Path, demo: str) -> None:
    check_movement(browser, tmp_path, demo)


def check_movement(browser: SharedBrowser, tmp_path: Path, demo: str) -> None:
    with running_daemon(tmp_path, "--demo", demo, "--at", "0s", "--speed", str(SPEED)) as daemon:
        largest = max(daemon.get("/api/v1/processes").json, key=lambda one: one["footprint_bytes"] or 0)
        paths = {**PATHS, **MORE, "process": f"/processes/{largest['pid']}"}
        pages: dict[tuple[str, int], Page] = {}
        for width in WIDTHS:
            for name, path in paths.items():
                page = pages[name, width] = browser.new_page(viewport={"width": width, "height": 900})
                with collecting_complaints(page, daemon.url) as complaints:
                    page.goto(daemon.url + path)
                assert complaints == []
        next(iter(pages.values())).wait_for_timeout(PLAYED_SECONDS / SPEED * 1000)
        moved = {key: page.evaluate(WORST, PLAYED_SECONDS / SPEED) for key, page in pages.items()}
        stale = [key for key, page in pages.items() if page.locator("body.stale").count()]
        for page in pages.values():
            page.close()

    assert stale == []
    for (name, width), found in moved.items():
        within(f"{demo}, {name}, {width} px: movement in ten minutes", found, MAX_SHIFT, "of the screen")
