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
    shifts. Those of a test are closed at its end. Pages without options share one: its renderer is warm, which
    takes a quarter of the CPU time of a visit off.
    """

    _warm: BrowserContext | None = None
    # Keeps the renderer between tests.
    _parked: Page | None = None

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
    def new_warm_page(self, url: str) -> Iterator[Page]:
        """Yield a new page of the shared context, for `url`. It leaves no cookie and nothing stored behind.

        After a failure the context is closed.
        """
        context = self._warm = self._warm or self.new_context()
        page = context.new_page()
        try:
            yield page
            context.clear_cookies()
            _clear_storage(page, url)
        except BaseException:
            self._warm = self._parked = None
            context.close()
            raise
        if self._parked is None:
            page.goto("about:blank")
            self._parked = page
        else:
            page.close()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Mark Playwright's event loop as running meanwhile. Other tests of this thread run loops of their own.

        Contexts that were opened meanwhile are closed, except the shared one.
        """
        asyncio._set_running_loop(self._loop)
        before = self._browser.contexts
        try:
            yield
        finally:
            asyncio._set_running_loop(self._loop)
            for context in self._browser.contexts:
                if context not in before and context is not self._warm:
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
    is_first: bool = False,
    viewport: ViewportSize = DESKTOP,
    **options: Any,
) -> Iterator[Page]:
    """Open a new page. At its end there is no error, policy violation or external request.

    `may_complain`: for pages whose server fails or refuses. `controls_clock`: `page.clock` can move the time.
    `is_first`: as in a browser that was never here. This, a clock and other `options` take a new context.
    """
    own = controls_clock or is_first or bool(options)
    with _new_context_page(browser, controls_clock, options) if own else browser.new_warm_page(url) as page:
        if viewport != DESKTOP:
            page.set_viewport_size(viewport)
        with collecting_complaints(page, url) as complaints:
            page.goto(url)
            yield page
        assert may_complain or not complaints, complaints


@contextmanager
def _new_context_page(browser: SharedBrowser, controls_clock: bool, options: dict[str, Any]) -> Iterator[Page]:
    context = browser.new_context(**options)
    try:
        if controls_clock:
            context.clock.install()
        yield context.new_page()
    finally:
        context.close()


def _clear_storage(page: Page, url: str) -> None:
    """Delete what pages of this address have stored, whatever the page shows now."""
    tools = page.context.new_cdp_session(page)
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    tools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    tools.detach()


def wait_for_frames(page: Page) -> None:
    """Wait until everything that was requested so far is painted and its layout shifts are counted."""
    page.evaluate(TWO_FRAMES)
