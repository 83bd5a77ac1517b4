"""Sorting and filtering of the process list in a real browser, during updates."""

from __future__ import annotations

from msgspec.structs import replace
from playwright.sync_api import Page, expect

from support.browsing import SharedBrowser
from support.live_page import showing, wait_for_ticks
from support.sample_site import Site
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners

NAMES = (
    "[...document.querySelectorAll('.sortable tbody tr:not(.detail-row):not([hidden]) th')]"
    ".map((th) => th.innerText)"
)


def names(page: Page) -> list[str]:
    found: list[str] = page.evaluate(NAMES)
    return found


def test_sort_order_survives_updates(browser: SharedBrowser) -> None:
    """A click sorts, a second one reverses. Updates keep order, focus and URL."""
    site = Site(calm_workstation())
    with showing(browser, site, "/processes") as page:
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


def test_filter_survives_updates(browser: SharedBrowser) -> None:
    """The filter text stays in the field and in the URL."""
    with showing(browser, Site(critical_gb10()), "/processes") as page:
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


def test_url_restores_the_view(browser: SharedBrowser) -> None:
    with showing(browser, Site(calm_workstation()), "/processes?sort=pid&q=mira") as page:
        at_first = names(page)
        wait_for_ticks(page)

        assert at_first == names(page) == ["gnome-shell", "chromium", "python3", "rust-analyzer"]
        page.get_by_role("button", name="PID").click()
        assert names(page)[0] == "rust-analyzer"


def test_grouping_keeps_the_filter(browser: SharedBrowser) -> None:
    """By container, with its largest processes below."""
    with showing(browser, Site(many_owners()), "/processes") as page:
        page.get_by_role("searchbox").fill("llama")
        page.get_by_role("link", name="Containers").click()
        page.wait_for_url("**/processes?by=container&q=llama")
        wait_for_ticks(page)

        assert len(names(page)) == 1
        expect(page.locator(".sortable .detail-row:visible")).to_contain_text("llama-server")


def test_server_sorts_and_filters_without_javascript(browser: SharedBrowser) -> None:
    """Sorting keeps the filter, and filtering keeps the order."""
    with showing(browser, Site(calm_workstation()), "/processes", java_script_enabled=False) as page:
        page.get_by_role("button", name="PID").click()
        page.wait_for_url("**sort=-pid**")
        page.get_by_role("searchbox").fill("mira")
        page.get_by_role("searchbox").press("Enter")
        page.wait_for_url("**q=mira**")

        rows = page.locator(".sortable tbody tr:not(.detail-row):visible th")
        assert rows.all_inner_texts() == ["rust-analyzer", "python3", "chromium", "gnome-shell"]
        page.get_by_role("button", name="PID").click()
        page.wait_for_url("**sort=pid**")
        assert "q=mira" in page.url
