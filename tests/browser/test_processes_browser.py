"""In a real browser: the list of processes is its reader's to sort and filter, and stays so as figures come in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from scripts.screenshots import chromium
from support.live_page import wait_for_ticks
from support.sample_site import Site, served
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners

NAMES = "[...document.querySelectorAll('.sortable tbody tr:not(.said):not([hidden]) th')].map((th) => th.innerText)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@contextmanager
def opened(browser: Browser, site: Site, path: str, scripts: bool = True) -> Iterator[Page]:
    with served(site) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, java_script_enabled=scripts)
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + path)
        try:
            yield page
        finally:
            context.close()
        assert complaints == []


def names(page: Page) -> list[str]:
    found: list[str] = page.evaluate(NAMES)
    return found


def test_an_order_stays_while_figures_come_in(browser: Browser) -> None:
    """A click sorts at once, a second one turns it round; ticks keep the order, the focus and the address."""
    site = Site(calm_workstation())
    with opened(browser, site, "/processes") as page:
        wait_for_ticks(page)
        assert names(page)[0] == "python3"

        page.get_by_role("button", name="Name").click()
        assert names(page)[:2] == ["chromium", "dockerd"]
        wait_for_ticks(page)
        assert names(page)[:2] == ["chromium", "dockerd"]
        page.keyboard.press("Enter")
        assert names(page)[0] == "systemd"

        first = site.snapshot.processes[0]
        site.snapshot = replace(
            site.snapshot, processes=(*site.snapshot.processes, replace(first, name="zz", pid=9))
        )
        page.wait_for_selector("text=zz")
        assert names(page)[:2] == ["zz", "systemd"]
        assert page.evaluate("document.activeElement.innerText") == "Name"
        expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
        assert page.url.endswith("/processes?sort=-name")


def test_words_hide_the_others_while_figures_come_in(browser: Browser) -> None:
    """What is typed stays, counts, and is in the address; cleared, all are back."""
    with opened(browser, Site(critical_gb10()), "/processes") as page:
        wait_for_ticks(page)

        page.get_by_role("searchbox").type("vll")
        wait_for_ticks(page)
        assert names(page) == ["vllm"]
        assert page.get_by_role("searchbox").input_value() == "vll"
        assert page.evaluate("document.activeElement.name") == "q"
        expect(page.locator("#shown")).to_have_text("1 of 5")
        assert page.url.endswith("?q=vll")
        page.keyboard.press("Enter")
        assert names(page) == ["vllm"]

        page.get_by_role("searchbox").fill("")
        wait_for_ticks(page)
        assert len(names(page)) == 5
        assert page.url.endswith("/processes")


def test_an_address_opens_the_same_view_again(browser: Browser) -> None:
    """What somebody is sent shows what the sender saw, from the first look on."""
    with opened(browser, Site(calm_workstation()), "/processes?sort=pid&q=mira") as page:
        at_first = names(page)
        wait_for_ticks(page)

        assert at_first == names(page) == ["gnome-shell", "chromium", "python3", "rust-analyzer"]
        page.get_by_role("button", name="PID").click()
        assert names(page)[0] == "rust-analyzer"


def test_groups_are_live_and_keep_the_words(browser: Browser) -> None:
    """By container, with the largest of its processes below; the words go along from group to group."""
    with opened(browser, Site(many_owners()), "/processes") as page:
        page.get_by_role("searchbox").fill("llama")
        page.get_by_role("link", name="Containers").click()
        page.wait_for_url("**/processes?by=container&q=llama")
        wait_for_ticks(page)

        assert len(names(page)) == 1
        expect(page.locator(".sortable .said:visible")).to_contain_text("llama-server")


def test_without_a_script_the_server_does_it(browser: Browser) -> None:
    """A heading, then words and Enter: both are loaded anew, and each keeps the other."""
    with opened(browser, Site(calm_workstation()), "/processes", scripts=False) as page:
        page.get_by_role("button", name="PID").click()
        page.wait_for_url("**sort=-pid**")
        page.get_by_role("searchbox").fill("mira")
        page.get_by_role("searchbox").press("Enter")
        page.wait_for_url("**q=mira**")

        rows = page.locator(".sortable tbody tr:not(.said):visible th")
        assert rows.all_inner_texts() == ["rust-analyzer", "python3", "chromium", "gnome-shell"]
        page.get_by_role("button", name="PID").click()
        page.wait_for_url("**sort=pid**")
        assert "q=mira" in page.url
