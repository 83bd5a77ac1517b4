"""The page of one process in a real browser: its footprint over time, ranges, live updates and links."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, running_daemon
from support.live_page import wait_for_ticks

DATA = 'JSON.parse(document.getElementById("past-data").textContent)'
# Distance in pixels between the highest and the lowest point of the first curve.
CURVE_HEIGHT = "document.querySelector('[data-chart=process] .curve.series-1').getBBox().height"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A DGX Spark demo with seven minutes of history, in which the largest process loads a model."""
    with running_daemon(tmp_path_factory.mktemp("process"), "--demo", "dgx-spark", "--speed", "1") as one:
        yield one


@pytest.fixture(scope="module")
def pid(daemon: RunningDaemon) -> int:
    largest = max(daemon.get("/api/v1/processes").json, key=lambda one: one["footprint_bytes"])
    return int(largest["pid"])


def test_footprint_over_time_is_a_curve_that_stays_during_updates(
    browser: SharedBrowser, daemon: RunningDaemon, pid: int
) -> None:
    """The demo loads 64 GiB: the curve rises by that much. The figures above it are live."""
    with opened(browser, f"{daemon.url}/processes/{pid}") as page:
        page.wait_for_selector("[data-chart=process] svg.past")
        expect(page.get_by_role("heading", name="Footprint over time")).to_be_visible()
        (chart,) = page.evaluate(DATA)["charts"]
        wait_for_ticks(page, 3)
        height = page.evaluate(CURVE_HEIGHT)
        legend = page.locator("#past-legend-process").inner_text()

    footprint, gpu = chart["curves"]
    assert re.fullmatch(rf"process\.{pid}-\d+\.footprint_bytes", footprint["name"])
    assert gpu["name"].endswith(".device_bytes")
    assert max(footprint["avg"]) > 64 << 30
    assert height > 100
    assert "footprint" in legend
    assert "GPU memory" in legend
    assert "GiB" in legend


def test_range_is_chosen_without_a_page_load(browser: SharedBrowser, daemon: RunningDaemon, pid: int) -> None:
    """The links of ranges and events stay on the page, its URL reproduces the view, and Back undoes it."""
    with opened(browser, f"{daemon.url}/processes/{pid}?range=10m") as page:
        page.wait_for_selector("[data-chart=process] svg.past")
        page.evaluate("window.stays = true")
        page.get_by_role("link", name="1 h", exact=True).click()
        page.wait_for_url(f"**/processes/{pid}?range=1h")
        page.wait_for_function(f"() => {DATA}.end - {DATA}.start === 3600")
        page.go_back()
        page.wait_for_url(f"**/processes/{pid}?range=10m")
        page.wait_for_function(f"() => {DATA}.end - {DATA}.start === 600")
        assert page.evaluate("window.stays")
        csv = page.locator("#past-csv").evaluate("link => link.href")

    assert f"{daemon.url}/api/v1/history?series=process.{pid}-" in csv
    assert daemon.get(csv.removeprefix(daemon.url)).status == 200


def test_curve_is_drawn_without_javascript(browser: SharedBrowser, daemon: RunningDaemon, pid: int) -> None:
    with opened(browser, f"{daemon.url}/processes/{pid}?range=1h", java_script_enabled=False) as page:
        lines = page.locator("#past .curve").evaluate_all("all => all.map((one) => one.getTotalLength())")
        page.get_by_role("link", name="10 m", exact=True).click()
        page.wait_for_url(f"**/processes/{pid}?range=10m")

    assert max(lines) > 100


def test_unit_and_container_link_to_their_footprint(
    browser: SharedBrowser, daemon: RunningDaemon, pid: int
) -> None:
    with opened(browser, f"{daemon.url}/processes/{pid}") as page:
        page.locator("dt:text-is('Container') + dd a").click()
        page.wait_for_url("**/history?series=container.*.footprint_bytes")
        page.wait_for_selector("[data-chart=container] svg.past")
        expect(page.get_by_role("heading", name="Containers")).to_be_visible()


def test_process_page_has_no_serious_fault(browser: SharedBrowser, daemon: RunningDaemon, pid: int) -> None:
    with opened(browser, f"{daemon.url}/processes/{pid}") as page:
        page.wait_for_selector("[data-chart=process] svg.past")
        assert faults_in_both_themes(page) == []


def test_invalid_range_is_refused(daemon: RunningDaemon, pid: int) -> None:
    refused = daemon.get(f"/processes/{pid}?range=2y", Accept="text/html")

    assert refused.status == 422
    assert "use one of 10m" in refused.text
