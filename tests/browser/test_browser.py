"""The page of the running daemon in a real browser: a process takes memory, and the bar moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from scripts.screenshots import chromium
from support.alert_machine import quick_config
from support.daemon_process import running_daemon
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_receiver import receiving

MIB = 1 << 20
TAKE = "import sys; held = b'x' * (512 << 20); print('held', flush=True); sys.stdin.read()"
BYTES = 'Number(document.querySelector("#pool-ram rect.use-anonymous").dataset.bytes)'
WIDTH = 'parseFloat(document.querySelector("#pool-ram rect.use-anonymous").getAttribute("width"))'


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
    page.wait_for_function(f"wanted => {expression}", arg=arg, timeout=60_000)


@pytest.mark.alone
def test_the_bar_moves_when_a_process_takes_512_mib(tmp_path: Path) -> None:
    """The processes' part grows by what was taken, to scale, and shrinks when it is given back."""
    complaints: list[str] = []
    with running_daemon(tmp_path, "--interval", "500ms") as daemon, chromium() as browser:
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(daemon.url)
        bytes_before, width_before = page.evaluate(BYTES), page.evaluate(WIDTH)

        with process_that_takes_512_mib():
            wait_for(page, f"{BYTES} >= wanted", bytes_before + 400 * MIB)
            bytes_held, width_held = page.evaluate(BYTES), page.evaluate(WIDTH)
        wait_for(page, f"{BYTES} <= wanted", bytes_held - 300 * MIB)
        size = daemon.snapshot()["pools"][0]["size_bytes"]

    assert width_held > width_before
    assert width_held == pytest.approx(bytes_held / size * 100, abs=0.2)
    assert complaints == []


def test_the_page_of_a_daemon_that_is_gone_looks_gone(tmp_path: Path) -> None:
    """A frozen figure that looks live is the worst bug a monitor can have."""
    with running_daemon(tmp_path) as daemon, chromium() as browser:
        page = browser.new_page()
        page.goto(daemon.url)
        page.wait_for_selector("#stale-banner", state="hidden")
        daemon.process.kill()

        page.wait_for_selector("#stale-banner:not([hidden])", timeout=60_000)
        words = page.inner_text("#stale-banner")
        title = page.title()

    assert "figures are from" in words
    assert title.startswith("no answer")


def test_alerts_are_tried_and_silenced_by_buttons(tmp_path: Path) -> None:
    """A click sends a test message that arrives; a form silences all with a reason, a click ends that."""
    complaints: list[str] = []
    with (
        receiving(200) as site,
        running_daemon(tmp_path, "--interval", "500ms", config=quick_config(site)) as daemon,
        chromium() as browser,
    ):
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{daemon.url}/alerts")

        page.click("#test-alert")
        page.wait_for_selector("#receiver-site0 >> text=ok", timeout=60_000)
        page.fill("[name=hours]", "2.5")
        page.wait_for_timeout(1200)
        page.fill("[name=reason]", "a disk is changed")
        page.press("[name=reason]", "Enter")
        page.wait_for_selector("#silences >> text=a disk is changed")
        made = daemon.get("/api/v1/silences").json
        page.click("text=End it", timeout=60_000)
        page.wait_for_selector("text=End it", state="detached", timeout=60_000)
        silences = daemon.get("/api/v1/silences").json
        wide = page.evaluate("document.documentElement.scrollWidth")

    assert len(site.deliveries) == 1
    assert [(one["comment"], one["made_by"]) for one in made] == [("a disk is changed", "this machine")]
    assert made[0]["until_unix"] - made[0]["created_unix"] == 2.5 * 3600
    assert silences == []
    assert wide <= 390
    assert page.url.endswith("/alerts#silences")
    assert complaints == []
