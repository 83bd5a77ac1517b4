"""Take screenshots of every page of every demo, and of every sample machine, light and dark, wide and narrow.

PYTHONPATH=tests python -m scripts.screenshots [NAME...]   into out/screenshots; NAME of a demo or a sample machine
PYTHONPATH=tests python -m scripts.screenshots --readme    those of README and docs, into docs
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from memwatch_web.pages.template_environment import LINKS, PATHS
from memwatchd.settings.schema import DEMOS
from support.daemon_process import RunningDaemon, running_daemon
from support.needed_programs import path_of
from support.neighbours import neighbours, wait_for_state
from support.paths import ROOT
from support.sample_site import Site, served
from support.sample_snapshots import SAMPLES

NEEDED_PROGRAMS = ("chromium-headless-shell",)

FOLDER = ROOT / "out" / "screenshots"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Of each context. A new renderer takes 0.13 s of CPU time more than one in use.
    "--renderer-process-limit=1",
)
LOOKS = (("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light"), ("phone-dark", 390, "dark"))
# Pages of a sample machine.
PAGES = {**PATHS, "docs": "/docs"}
# Further pages of a daemon.
MORE = {**LINKS, "refused": "/no/such/page"}
# The speed of a demo until its level is reached, and the maximum wait for that.
SPEED, MAX_WAIT_SECONDS = 20, 60.0
SETTLED_MS = 900


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_of(NEEDED_PROGRAMS[0]), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(browser: Browser, url: str, width: int, theme: str, height: int = 900) -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(SETTLED_MS)
    yield page
    context.close()


def take_all(browser: Browser, address: str, name: str, pages: dict[str, str]) -> None:
    for page, path in pages.items():
        for look, width, theme in LOOKS:
            target = FOLDER / f"{name}-{page}-{look}.png"
            with opened_page(browser, address + path, width, theme) as opened:
                opened.screenshot(path=target, full_page=True)
            print(target)


@contextmanager
def demo(
    name: str, level: str, speed: int = SPEED, config: str = "", max_wait_seconds: float = MAX_WAIT_SECONDS
) -> Iterator[RunningDaemon]:
    """Run a demo until it has reached a level, or until the maximum wait."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_daemon(Path(folder), "--demo", name, "--speed", str(speed), config=config) as one,
    ):
        until = time.monotonic() + max_wait_seconds
        while level not in worst_levels(one) and time.monotonic() < until:
            time.sleep(0.1)
        yield one


def worst_levels(daemon: RunningDaemon) -> set[str]:
    return {verdict["level"] for verdict in daemon.get("/api/v1/pressure").json}


def take_for_readme(browser: Browser) -> None:
    """Take the screenshots of README and docs, small enough for the repository: WebP by the developer tools."""
    with demo("dgx-spark", "high", speed=5) as daemon:
        keep(browser, daemon, "overview", 1280, 990, "light")
    with demo("dgx-spark", "critical", speed=5) as daemon:
        keep(browser, daemon, "critical", 1280, 990, "dark")
    with demo("dgx-spark", "critical", speed=5) as daemon:
        keep(browser, daemon, "phone", 390, 844, "light")
    with demo("dgx-spark", "critical", speed=5) as daemon:
        target = ROOT / "docs" / "picture-dark.svg"
        target.write_text(daemon.get("/picture.svg?theme=dark").text)
        print(target, target.stat().st_size)
    with three_machines() as daemon:
        keep(browser, daemon, "machines", 1280, 400, "light", "/machines")


@contextmanager
def three_machines() -> Iterator[RunningDaemon]:
    """Run a demo with two neighbours, one of which is killed at critical pressure, until it is silent.

    At another speed than 1 its clock would run ahead.
    """
    with (
        demo("dgx-spark", "critical", speed=1, max_wait_seconds=400.0) as dying,
        demo("rtx4090", "low", speed=1) as other,
        demo("strix-halo", "low", speed=1, config=neighbours({"spark-2": dying.url, "ember": other.url})) as daemon,
    ):
        wait_for_state(daemon, "spark-2", "up")
        time.sleep(3.0)
        dying.process.kill()
        wait_for_state(daemon, "spark-2", "silent")
        yield daemon


def keep(
    browser: Browser, daemon: RunningDaemon, name: str, width: int, height: int, theme: str, path: str = "/"
) -> None:
    target = ROOT / "docs" / f"page-{name}.webp"
    with opened_page(browser, daemon.url + path, width, theme, height) as page:
        tools = page.context.new_cdp_session(page)
        picture = tools.send("Page.captureScreenshot", {"format": "webp", "quality": 34})
    target.write_bytes(base64.b64decode(picture["data"]))
    print(target, target.stat().st_size)


def main(wanted: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        if wanted == ["--readme"]:
            take_for_readme(browser)
            return
        for name in [one for one in DEMOS if not wanted or one in wanted]:
            with demo(name, "critical") as daemon:
                take_all(browser, daemon.url, name, {**PAGES, **MORE} if name == DEMOS[0] else LINKS)
        for name in [one for one in SAMPLES if not wanted or one in wanted]:
            # Constant values, and a stream with frequent events so that it stays live.
            with served(Site(SAMPLES[name](), interval_seconds=0.3)) as address:
                take_all(browser, address, name, PATHS if name == "critical_gb10" else {"overview": "/"})


if __name__ == "__main__":
    main(sys.argv[1:])
