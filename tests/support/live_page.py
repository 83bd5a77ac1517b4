"""Open pages of a site, and wait for their ticks."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from playwright.sync_api import Locator, Page

from support.browsing import SharedBrowser, opened, wait_for_frames
from support.open_things import kept_open
from support.sample_site import Site, Stage, served

LIVE = 'document.querySelector("#latest").textContent'
CLOCK_MS = "performance.now()"


@contextmanager
def showing(browser: SharedBrowser, site: Site, path: str = "/", **options: Any) -> Iterator[Page]:
    """Serve a site and open one of its pages, which is closed before its stream ends."""
    with served(site) as address, opened(browser, address + path, **options) as page:
        yield page


@contextmanager
def visiting(page: Page, site: Site, path: str = "/", width: int = 1280, height: int = 800) -> Iterator[None]:
    """Serve a site meanwhile, and show one of its pages in a page that is open already.

    All have one address: a browser reads the static files of each address again, half of the cost of a visit. Ticks
    come as rarely as those of a machine: five a second, rendered and merged, cost as much as a visit every 3 s.
    """
    site.interval_seconds = 1.0
    with _stage().showing(site) as address:
        page.set_viewport_size({"width": width, "height": height})
        page.goto(address + path)
        yield
        page.goto("about:blank")


def resize(page: Page, width: int, height: int = 900) -> None:
    """Show a page that is open in another size, until it is painted: a fifth of the cost of a visit."""
    page.set_viewport_size({"width": width, "height": height})
    wait_for_frames(page)


def evaluate_at(page: Page, widths: Sequence[int], script: str, argument: Any = None) -> dict[int, Any]:
    """Return what a script finds in a page that is open, at each width."""
    found = {}
    for width in widths:
        resize(page, width)
        found[width] = page.evaluate(script, argument)
    return found


def box(locator: Locator) -> dict[str, float]:
    """Return the place of an element that has one."""
    found = locator.bounding_box()
    assert found is not None
    return {"x": found["x"], "y": found["y"], "width": found["width"], "height": found["height"]}


@cache
def _stage() -> Stage:
    stack = ExitStack()
    atexit.register(stack.close)
    with kept_open():
        return stack.enter_context(Stage().opened())


def wait_for_ticks(page: Page, ticks: int = 2) -> None:
    for _ in range(ticks):
        page.wait_for_function(f"before => {LIVE} !== before", arg=page.evaluate(LIVE))


def pass_seconds(page: Page, seconds: int) -> None:
    """Let the controlled clock of a page go on by this much, with a tick in each second, so that it stays live.

    That clock also runs by itself: on a busy host a part of the time passes while the page waits for its ticks.
    """
    end = page.evaluate(CLOCK_MS) + 1000 * seconds
    while (left := end - page.evaluate(CLOCK_MS)) > 0:
        wait_for_ticks(page, 1)
        page.clock.fast_forward(max(0, min(1000, int(left))))
