"""Transfer of the first visit to each page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser

from memwatch_web.pages.renderer import PATHS
from scripts.screenshots import chromium
from support.daemon_process import RunningDaemon, running_daemon

MAX_BYTES = 120 << 10


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("demo"), "--demo", "dgx-spark") as daemon:
        yield daemon


@pytest.mark.parametrize("name", PATHS)
def test_first_visit_transfers_at_most_120_kib(browser: Browser, demo: RunningDaemon, name: str) -> None:
    """All bytes on the wire, headers included. No external request."""
    sizes: dict[str, float] = {}
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    with closing(context):
        page = context.new_page()
        tools = context.new_cdp_session(page)
        page.on("request", lambda request: asked.append(request.url))
        tools.send("Network.enable")
        tools.on(
            "Network.loadingFinished", lambda done: sizes.update({done["requestId"]: done["encodedDataLength"]})
        )
        page.goto(demo.url + PATHS[name])
        page.wait_for_function(
            "() => document.querySelector('#chart .u-over') || !document.querySelector('#chart')"
        )
        page.wait_for_timeout(200)

    assert len(sizes) >= 6
    assert 10_000 < sum(sizes.values()) <= MAX_BYTES
    assert [url for url in asked if not url.startswith((demo.url, "data:"))] == []
