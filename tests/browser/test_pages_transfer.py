"""Transfer of the first visit to each page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from memwatch_web.pages.template_environment import PATHS
from scripts.golden import roots_arguments
from simulators.nvml_machine import Simulator
from simulators.sample_nvml import EIGHT_H100, H100_MIG
from support.browsing import SharedBrowser
from support.daemon_process import RunningDaemon, running_daemon
from support.hour_of_past import write_hour_of_past
from support.waiting import wait_until

MAX_BYTES, MAX_OF_OVERVIEW = 100_000, 90_000
LAST = EIGHT_H100.gpus[7]
SPLIT = replace(H100_MIG.gpus[0], uuid=LAST.uuid, bus_id=LAST.bus_id)
EIGHT_WITH_MIG = replace(EIGHT_H100, gpus=(*EIGHT_H100.gpus[:7], SPLIT))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Eight GPUs, one of them split into MIG instances, with an hour of history: a demo has seven minutes."""
    folder = tmp_path_factory.mktemp("full")
    write_hour_of_past(folder / "state", "h100x8-mig")
    simulator, roots = Simulator.of(folder, EIGHT_WITH_MIG), roots_arguments("8x-h100")
    with running_daemon(folder, *roots, f"--state-dir={folder / 'state'}", environ=simulator.environ) as daemon:
        yield daemon


def is_loaded(page: Page, urls: dict[str, str], sizes: dict[str, float]) -> bool:
    """Check that every request has ended, except for the stream."""
    page.evaluate("0")  # receives the events so far
    return all(request in sizes or "/live?" in url for request, url in urls.items())


@pytest.mark.parametrize("name", PATHS)
def test_first_visit_transfers_at_most_100_kb(browser: SharedBrowser, full: RunningDaemon, name: str) -> None:
    """All bytes on the wire, headers included, of the overview 90 kB. No external request."""
    sizes: dict[str, float] = {}
    urls: dict[str, str] = {}
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    with closing(context):
        page = context.new_page()
        tools = context.new_cdp_session(page)
        page.on("request", lambda request: asked.append(request.url))
        tools.send("Network.enable")
        tools.on("Network.requestWillBeSent", lambda sent: urls.update({sent["requestId"]: sent["request"]["url"]}))
        tools.on(
            "Network.loadingFinished", lambda done: sizes.update({done["requestId"]: done["encodedDataLength"]})
        )
        page.goto(full.url + PATHS[name])
        wait_until(lambda: is_loaded(page, urls, sizes), describe=lambda: set(urls) - set(sizes))

    assert len(sizes) >= 6
    assert 10_000 < sum(sizes.values()) <= (MAX_OF_OVERVIEW if name == "overview" else MAX_BYTES)
    assert [url for url in asked if not url.startswith((full.url, "data:"))] == []
