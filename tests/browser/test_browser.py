"""Pages of a running daemon in a real browser.

A page is closed before its daemon ends: its stream would otherwise reconnect and write an error to the console.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from memwatch_web.pages.landscape_page import TOWER
from support.alert_machine import AlertMachine, quick_config
from support.browsing import SharedBrowser, opened
from support.daemon_process import running_daemon
from support.live_page import wait_for_ticks
from support.sample_site import Site, served
from support.sample_snapshots import calm_workstation
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_receiver import receiving

MIB, GIB = 1 << 20, 1 << 30
TAKE = "import sys; held = b'x' * (512 << 20); print('held', flush=True); sys.stdin.read()"
# What processes hold, in the tower of a wide page.
PROCESSES = "#pool-ram :is(.now, .now-wide) rect:is(.b-anonymous-family, .b-anonymous)"
PARTS = f'[...document.querySelectorAll("{PROCESSES}")].slice(0, 1)'
BYTES = f"{PARTS}.reduce((sum, one) => sum + Number(one.dataset.gib), 0)"
HEIGHT = f'{PARTS}.reduce((sum, one) => sum + parseFloat(one.getAttribute("height")), 0)'


@contextmanager
def process_that_takes_512_mib() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        yield
    finally:
        child.communicate(timeout=MAX_WAIT_SECONDS)


def wait_for(page: Page, expression: str, arg: float) -> None:
    page.wait_for_function(f"wanted => {expression}", arg=arg)


@pytest.mark.host
def test_bar_follows_a_process_that_takes_512_mib(browser: SharedBrowser, tmp_path: Path) -> None:
    """The segment of processes grows to scale, and shrinks when the memory is freed."""
    with (
        running_daemon(tmp_path, "--interval", "500ms", watches_this_machine=True) as daemon,
        opened(browser, daemon.url) as page,
    ):
        before, height_before = page.evaluate(BYTES), page.evaluate(HEIGHT)

        with process_that_takes_512_mib():
            wait_for(page, f"{BYTES} >= wanted", before + 400 * MIB / GIB)
            held, height_held = page.evaluate(f"[{BYTES}, {HEIGHT}]")
        wait_for(page, f"{BYTES} <= wanted", held - 300 * MIB / GIB)
        size = daemon.snapshot()["pools"][0]["size_bytes"]

    assert height_held > height_before
    assert height_held == pytest.approx(held * GIB / size * TOWER, abs=0.2)


def test_page_of_a_killed_daemon_is_stale(browser: SharedBrowser, tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        page = browser.new_page()
        page.goto(daemon.url)
        page.wait_for_selector("#stale-banner", state="hidden")
        daemon.process.kill()

        page.wait_for_selector("#stale-banner:not([hidden])")
        words = page.inner_text("#stale-banner")
        title = page.title()
    page.close()

    assert "Showing data from" in words
    assert title.startswith("stale")


def test_test_notification_and_silence_work_by_buttons(browser: SharedBrowser, tmp_path: Path) -> None:
    """One click sends a test notification. The form creates a silence, another click expires it."""
    machine = AlertMachine.of(tmp_path)  # a kill on this machine would be delivered as well
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
        opened(browser, f"{daemon.url}/alerts", viewport={"width": 390, "height": 800}) as page,
    ):
        page.click("#test-alert")
        page.wait_for_selector("#receiver-site0 >> text=ok")
        delivery = page.get_by_role("region", name="Deliveries").locator("tbody tr")
        expect(delivery).to_have_text(re.compile(r"test\s+site0\s+delivered \(200\)\s+1\s+\d\d:\d\d:\d\d"))
        page.fill("[name=hours]", "2.5")
        wait_for_ticks(page)  # updates keep the text
        page.fill("[name=reason]", "a disk is changed")
        page.press("[name=reason]", "Enter")
        page.wait_for_selector("#silences >> text=a disk is changed")
        made = daemon.get("/api/v1/silences").json
        page.click('button:text-is("End")')
        page.wait_for_selector('button:text-is("End")', state="detached")
        silences = daemon.get("/api/v1/silences").json
        wide, address = page.evaluate("document.documentElement.scrollWidth"), page.url

    assert len(site.deliveries) == 1
    assert [one["comment"] for one in made] == ["a disk is changed"]
    assert f"uid {os.geteuid()}" in made[0]["made_by"]
    assert made[0]["until_unix"] - made[0]["created_unix"] == 2.5 * 3600
    assert silences == []
    assert wide <= 390
    assert address.endswith("/alerts#silences")


def test_tests_between_pages_can_run_event_loops(browser: SharedBrowser) -> None:
    """Chromium stays for the whole worker, whose next file may call asyncio.run()."""
    with browser.in_use():
        browser.new_page().goto("about:blank")

    assert asyncio.run(asyncio.sleep(0, "done")) == "done"

    with browser.in_use():
        assert browser.new_page().evaluate("1 + 1") == 2


STORED = "[document.cookie, localStorage.length, sessionStorage.length]"
STORE = "document.cookie = 'a=1', localStorage.a = sessionStorage.a = 1"


def test_page_of_a_test_leaves_nothing_stored_for_the_next_one(browser: SharedBrowser) -> None:
    """Both have one context, because a new one has a new renderer."""
    with served(Site(calm_workstation())) as address:
        with opened(browser, address) as page:
            page.evaluate(STORE)
            before, context = page.evaluate(STORED), page.context
        with opened(browser, address) as page:
            after = page.evaluate(STORED)
            assert page.context is context

    assert (before, after) == (["a=1", 1, 1], ["", 0, 0])
