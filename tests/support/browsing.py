"""One Chromium for the browser tests of a worker, and pages whose complaints are collected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, ViewportSize, expect

from support.waiting import MAX_WAIT_SECONDS

# Playwright's own limits are 30 s, and 5 s for expectations: too short on a busy machine.
MAX_WAIT_MS = MAX_WAIT_SECONDS * 1000
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
# Written to the console, where they are complaints.
TELL_VIOLATIONS = (
    "addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective, e.blockedURI))"
)
# Adds up layout shifts without those that follow an input, and those within the foot of a page: a script adds its
# buttons, and nothing stands below it.
WATCH_SHIFTS = """
window.moved = 0;
window.shifts = [];
const isInFoot = ({ node }) => node && (node.closest ? node : node.parentElement)?.closest("footer");
new PerformanceObserver((list) => {
  for (const entry of list.getEntries())
    if (!entry.hadRecentInput && !entry.sources.every(isInFoot)) {
      window.moved += entry.value;
      window.shifts.push([entry.startTime / 1000, entry.value]);
    }
}).observe({ type: "layout-shift", buffered: true });
"""
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class SharedBrowser:
    """Chromium of this worker.

    Contexts have the size of a desktop, wait as long as other tests do, and report policy violations and layout
    shifts. Those of a test are closed at its end.
    """

    def __init__(self, browser: Browser) -> None:
        expect.set_options(timeout=MAX_WAIT_MS)
        self._browser = browser
        self._loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)

    def beside(self, program: str | None, arguments: Sequence[str]) -> SharedBrowser:
        """Return another browser of the same Playwright."""
        asyncio._set_running_loop(self._loop)
        return SharedBrowser(self._browser.browser_type.launch(executable_path=program, args=arguments))

    def new_context(self, **options: Any) -> BrowserContext:
        context = self._browser.new_context(**{"viewport": DESKTOP, **options})
        context.add_init_script(TELL_VIOLATIONS)
        context.add_init_script(WATCH_SHIFTS)
        context.set_default_timeout(MAX_WAIT_MS)
        context.set_default_navigation_timeout(MAX_WAIT_MS)
        return context

    def new_page(self, **options: Any) -> Page:
        return self.new_context(**options).new_page()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Mark Playwright's event loop as running meanwhile. Other tests of this thread run loops of their own.

        Contexts that were opened meanwhile are closed.
        """
        asyncio._set_running_loop(self._loop)
        before = self._browser.contexts
        try:
            yield
        finally:
            asyncio._set_running_loop(self._loop)
            for context in self._browser.contexts:
                if context not in before:
                    context.close()
            asyncio._set_running_loop(None)

    @contextmanager
    def reset(self, page: Page) -> Iterator[Page]:
        """Give a page the size and theme of a new one, and leave its site at the end."""
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        yield page
        page.goto("about:blank")

    def close(self) -> None:
        asyncio._set_running_loop(self._loop)
        self._browser.close()


@contextmanager
def collecting_complaints(page: Page, url: str) -> Iterator[list[str]]:
    """Yield the list that gets console messages, errors, and requests to other servers than that of `url`."""
    root, complaints = "{0.scheme}://{0.netloc}".format(urlsplit(url)), list[str]()

    def add_request(request: Request) -> None:
        if not request.url.startswith((root, "data:")):
            complaints.append(f"asked {request.url}")

    def add_message(message: ConsoleMessage) -> None:
        complaints.append(message.text)

    def add_error(error: Error) -> None:
        complaints.append(str(error))

    page.on("console", add_message)
    page.on("pageerror", add_error)
    page.on("request", add_request)
    try:
        yield complaints
    finally:
        page.remove_listener("console", add_message)
        page.remove_listener("pageerror", add_error)
        page.remove_listener("request", add_request)


@contextmanager
def opened(
    browser: SharedBrowser,
    url: str,
    *,
    may_complain: bool = False,
    controls_clock: bool = False,
    **options: Any,
) -> Iterator[Page]:
    """Open a page in a new context. At its end there is no error, policy violation or external request.

    `may_complain`: for pages whose server fails or refuses. `controls_clock`: `page.clock` can move the time.
    """
    context = browser.new_context(**options)
    if controls_clock:
        context.clock.install()
    page = context.new_page()
    with collecting_complaints(page, url) as complaints:
        page.goto(url)
        try:
            yield page
        finally:
            context.close()
    assert may_complain or not complaints, complaints


def wait_for_frames(page: Page) -> None:
    """Wait until everything that was requested so far is painted and its layout shifts are counted."""
    page.evaluate(TWO_FRAMES)
