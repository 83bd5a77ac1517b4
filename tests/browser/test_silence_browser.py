"""A silence is named where the level is, and ended there by one click, also without JavaScript."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from memwatch.core.silences import Silence
from support.axe import faults
from support.browsing import SharedBrowser, opened
from support.daemon_process import get, running_daemon
from support.live_page import resize, showing, visiting
from support.sample_site import Site
from support.sample_snapshots import critical_gb10


def silenced_gb10() -> Site:
    now = time.time()
    made = [
        Silence("sil_all", now + 3600, now, 0.0, made_by="root (uid 0)"),
        Silence("sil_cuda", now + 7 * 86_400, now, 0.0, target="cuda0", made_by="ada (uid 1000)"),
    ]
    return Site(replace(critical_gb10(), silences=tuple(made)))


def test_overview_at_critical_names_silences_and_their_ends(visited_page: Page) -> None:
    """That of the level is in its state, without a button for a further one. Nothing is wider than the screen."""
    page = visited_page
    with visiting(page, silenced_gb10()):
        told = page.locator("#status-do .do-told")
        expect(told).to_contain_text(
            re.compile(r"^\s*Silenced by root until .*\d\d:\d\d: no one is notified\s*End silence\s*$")
        )
        expect(page.locator(".silenced li").first).to_contain_text("CUDA Pool is silenced by ada until ")
        expect(page.get_by_role("button", name="Silence 1 h")).to_have_count(0)
        for width in (1280, 360):
            resize(page, width)
            expect(told).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert faults(page) == [], width


def test_title_has_the_end_in_the_time_zone_of_the_browser(browser: SharedBrowser) -> None:
    """A page without a script has it in UTC."""
    site = silenced_gb10()
    end = site.snapshot.silences[0].until_unix
    with showing(browser, site, "/alerts", locale="en-GB", timezone_id="Asia/Kathmandu") as page:
        local = page.evaluate("unix => Times.minutes(unix)", end)
        expect(page).to_have_title(re.compile(f" · silenced by root until {local}: no one is notified$"))
        expect(page.locator(".silenced time").first).to_have_text(local)
    with showing(browser, site, "/about", java_script_enabled=False) as page:
        expect(page).to_have_title(re.compile(r" \d\d:\d\d UTC: no one is notified$"))


@pytest.mark.parametrize("has_script", [True, False])
def test_silence_is_ended_from_the_overview(browser: SharedBrowser, tmp_path: Path, has_script: bool) -> None:
    """Without a script, the page of alerts follows."""
    with running_daemon(tmp_path) as daemon:
        get(daemon.port, "/api/v1/silences?seconds=3600", method="POST")
        with opened(browser, daemon.url, java_script_enabled=has_script) as page:
            page.get_by_role("button", name="End silence").click()
            daemon.wait_for("/api/v1/silences", lambda found: found == [])
            expect(page.locator(".do-silenced, .silenced")).to_have_count(0)
            address = page.url

    assert address.endswith("/" if has_script else "/alerts#silences")
