"""Takes pictures of every page with every sample machine, light and dark, wide and narrow, into out/screenshots."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from sample_site import Site, served
from sample_snapshots import SAMPLES

FOLDER = Path(__file__).parent.parent / "out" / "screenshots"
CHROMIUM = "/usr/bin/chromium"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOOKS = (("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light"), ("phone-dark", 390, "dark"))
PAGES = {
    "overview": "/",
    "history": "/history",
    "processes": "/processes",
    "alerts": "/alerts",
    "about": "/about",
    "docs": "/docs",
}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


def take(browser: Browser, address: str, path: str, target: Path, width: int, theme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
    )
    page = context.new_page()
    page.goto(address + path)
    page.wait_for_timeout(900)
    page.screenshot(path=target, full_page=True)
    context.close()


def main(wanted: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name in wanted or SAMPLES:
            # Still figures, and a stream that says so often enough to look alive.
            with served(Site(SAMPLES[name](), interval_seconds=0.3)) as address:
                for page, path in PAGES.items() if name == "critical_gb10" else [("overview", "/")]:
                    for look, width, theme in LOOKS:
                        target = FOLDER / f"{name}-{page}-{look}.png"
                        take(browser, address, path, target, width, theme)
                        print(target)


if __name__ == "__main__":
    main(sys.argv[1:])
