"""Sorting and filtering of the process list in a real browser, during updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Page, expect

from memwatch.core.model import Process
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch_web.pages.renderer import Pages
from support.axe import faults
from support.browsing import SharedBrowser
from support.live_page import showing, wait_for_ticks
from support.many_processes import many_processes
from support.paths import STATIC
from support.sample_parts import GIB, MIB, UNIX
from support.sample_site import Site
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners

NAMES = (
    "[...document.querySelectorAll('.sortable tbody tr:not(.detail-row) th')]"
    ".map((th) => (th.querySelector('a') ?? th).innerText)"
)


def names(page: Page) -> list[str]:
    found: list[str] = page.evaluate(NAMES)
    return found


def wait_for_names(page: Page, *first: str) -> None:
    """Wait until the table begins with these names."""
    page.wait_for_function(
        f"first => JSON.stringify({NAMES}.slice(0, first.length)) === JSON.stringify(first)", arg=first
    )


def test_sort_order_survives_updates(browser: SharedBrowser) -> None:
    """A click sorts, a second one reverses. Updates keep order, focus and URL; a new row comes last."""
    site = Site(calm_workstation())
    with showing(browser, site, "/processes") as page:
        wait_for_ticks(page)
        assert names(page)[0] == "python3"

        page.get_by_role("button", name="Name").click()
        wait_for_names(page, "chromium", "dockerd")
        wait_for_ticks(page)
        assert names(page)[:2] == ["chromium", "dockerd"]
        page.keyboard.press("Enter")
        wait_for_names(page, "systemd")

        first = site.snapshot.processes[0]
        site.snapshot = replace(
            site.snapshot, processes=(*site.snapshot.processes, replace(first, name="zz", pid=9))
        )
        page.wait_for_selector("text=zz")
        assert (names(page)[0], names(page)[-1]) == ("systemd", "zz")
        assert page.evaluate("document.activeElement.innerText") == "Name"
        expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
        assert page.url.endswith("/processes?sort=-name")


def test_filter_survives_updates(browser: SharedBrowser) -> None:
    """The filter text stays in the field and in the URL."""
    with showing(browser, Site(critical_gb10()), "/processes") as page:
        wait_for_ticks(page)

        page.get_by_role("searchbox").type("vll")
        expect(page.locator("#shown")).to_have_text("1 of 312 processes matches")
        wait_for_ticks(page)
        assert names(page) == ["vllm"]
        assert page.get_by_role("searchbox").input_value() == "vll"
        assert page.evaluate("document.activeElement.name") == "q"
        assert page.url.endswith("?q=vll")
        page.keyboard.press("Enter")
        assert names(page) == ["vllm"]

        page.get_by_role("searchbox").fill("")
        expect(page.locator("#shown")).to_have_text("5 of 312 processes, the largest")
        wait_for_ticks(page)
        assert len(names(page)) == 5
        assert page.url.endswith("/processes")


def test_url_restores_the_view(browser: SharedBrowser) -> None:
    with showing(browser, Site(calm_workstation()), "/processes?sort=pid&q=mira") as page:
        at_first = names(page)
        wait_for_ticks(page)

        assert at_first == names(page) == ["gnome-shell", "chromium", "python3", "rust-analyzer"]
        page.get_by_role("button", name="PID").click()
        wait_for_names(page, "rust-analyzer")


def test_grouping_keeps_the_filter(browser: SharedBrowser) -> None:
    """By container, with its largest processes below."""
    with showing(browser, Site(many_owners()), "/processes") as page:
        page.get_by_role("searchbox").fill("llama")
        expect(page.locator("#shown")).to_contain_text("match")
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

        rows = page.locator(".sortable tbody tr:not(.detail-row) th a")
        assert rows.all_inner_texts() == ["rust-analyzer", "python3", "chromium", "gnome-shell"]
        page.get_by_role("button", name="PID").click()
        page.wait_for_url("**sort=pid**")
        assert "q=mira" in page.url


def test_search_finds_600_processes_on_the_server(browser: SharedBrowser, tmp_path: Path) -> None:
    """With a script while updates come, and again after a lost stream; hostile names and words stay text."""
    site = Site(many_processes(tmp_path))
    with showing(browser, site, "/processes") as page:
        expect(page.locator("#shown")).to_have_text("50 of 601 processes, the largest")
        box = page.get_by_role("searchbox")
        for words, count, first in (
            ("nightly", "1 of 601 processes matches", "nightly.py"),
            ("<b>", "1 of 601 processes matches", "<b>\\xff\\u001b[2J"),
            ('"><img src=x onerror=alert(1)>', "0 of 601 processes match", None),
            ("\u202e&sort=pid%00", "0 of 601 processes match", None),
            ("worker1003", "1 of 601 processes matches", "worker1003"),
        ):
            box.fill(words)
            expect(page.locator("#shown")).to_have_text(count)
            wait_for_ticks(page)
            assert names(page) == ([first] if first else [])
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wait_for_ticks(page)
        assert names(page) == ["worker1003"]
        page.reload()
        assert names(page) == ["worker1003"]


def test_search_works_without_javascript(browser: SharedBrowser, tmp_path: Path) -> None:
    with showing(browser, Site(many_processes(tmp_path)), "/processes", java_script_enabled=False) as page:
        page.get_by_role("searchbox").fill("job3")
        page.get_by_role("searchbox").press("Enter")
        page.wait_for_url("**q=job3**")

        expect(page.locator("#shown")).to_have_text("86 of 601 processes match")


def test_list_fits_a_phone(browser: SharedBrowser, tmp_path: Path) -> None:
    """At 320 px nothing scrolls sideways, not even the table, and axe finds nothing."""
    options: dict[str, Any] = {"viewport": {"width": 320, "height": 700}}
    with showing(browser, Site(many_processes(tmp_path)), "/processes?q=worker15", **options) as page:
        wait_for_ticks(page)
        wide = page.evaluate(
            "[...document.querySelectorAll('html, .scroll')].map((e) => e.scrollWidth - e.clientWidth)"
        )
        assert max(wide) <= 0
        assert faults(page) == []


def test_growth_of_hundreds_of_mib_stays_in_its_column(browser: SharedBrowser) -> None:
    """Its star was beside the next figure: "+388.0 MiB*" is wider than "+58.0 GiB*"."""
    growth = GrowthTracker()
    one = Process(5, UNIX - 1e6, "ipykernel_launcher", GIB, GIB, "rss")
    for at in range(0, 301, 10):
        growth.add(
            float(at), [replace(one, footprint_bytes=GIB + (at * MIB if at < 300 else 388 * MIB))], LeakRules()
        )
    page = Pages(growth=growth).page("processes", replace(calm_workstation(), processes=(one,))).decode()
    styles = "".join((STATIC / name).read_text() for name in ("app.css", "processes.css"))

    shown = browser.new_page(viewport={"width": 1440, "height": 900})
    shown.set_content(page.replace("</head>", f"<style>{styles}</style></head>"))
    wide = shown.evaluate(
        "[...document.querySelectorAll('.growing :is(td, th)')]"
        ".filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent.trim())"
    )
    found = shown.locator(".growing tbody").inner_text()
    shown.close()

    assert "+388.0 MiB*" in found
    assert wide == []
