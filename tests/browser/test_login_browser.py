"""A browser without a login gets a page that explains it, in the style of the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, running_daemon
from support.login_settings import PASSWORD, TOKEN, login_config


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("login-page")
    with running_daemon(folder, config=login_config(folder)) as running:
        yield running


@pytest.mark.parametrize("has_script", [True, False])
def test_page_without_a_login_says_how_to_log_in(
    browser: SharedBrowser, daemon: RunningDaemon, has_script: bool
) -> None:
    """Its style is that of the pages, it asks the same address again, and nothing is wider than a small phone."""
    address = f"{daemon.url}/processes?q=python"
    with opened(
        browser, address, may_complain=True, java_script_enabled=has_script, viewport={"width": 320, "height": 800}
    ) as page:
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        expect(page.get_by_role("listitem")).to_have_count(2)
        card = page.locator(".card")
        expect(card).to_have_css("border-top-left-radius", "12px")
        assert card.evaluate("card => card.getBoundingClientRect().right") <= 320
        if has_script:
            assert faults_in_both_themes(page) == []
        with page.expect_navigation(url=address) as again:
            page.get_by_role("link", name="Log in").click()
        assert again.value.status == 401


@pytest.mark.parametrize(("user", "password"), [("token", TOKEN), ("ada", PASSWORD)])
def test_page_opens_for_the_users_that_the_login_page_names(
    browser: SharedBrowser, daemon: RunningDaemon, user: str, password: str
) -> None:
    """Chromium answers the challenge. It sends the same login for styles and the stream."""
    login = {"username": user, "password": password}
    with opened(browser, f"{daemon.url}/processes", http_credentials=login) as page:
        expect(page.get_by_role("heading", name="Processes")).to_be_visible()
