"""What happened stands on the page, and pressure's words with it."""

from __future__ import annotations

import html
import re

from msgspec.structs import replace

from memwatch.events import EventLog
from memwatch.snapshot import Level, Pressure, Reason
from memwatch_web.pages.renderer import Pages
from support.sample_snapshots import calm_workstation


def text_of(page: bytes) -> str:
    """What a reader sees: without markup, and blanks as one."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.decode())).split())


def test_what_happened_is_on_the_page_newest_first() -> None:
    """Every change of level, kill and complaint in its own words, whatever names are in them."""
    log = EventLog()
    log.add(1_800_000_000.0, "level", "System RAM: low → high (87.5 % used; 8.0 GiB of 64.0 GiB left)", "ram")
    log.add(1_800_000_012.0, "oom_kill", "the kernel killed <b>x\x1b</b> (pid 7, 1.0 GiB) for want of memory")

    page = Pages(events=lambda: log.latest(8)).page("overview", calm_workstation())

    text = text_of(page)
    assert "08:00:12 UTC the kernel killed <b>x\\u001b</b> (pid 7, 1.0 GiB)" in text
    assert text.index("08:00:12 UTC") < text.index("08:00:00 UTC System RAM: low → high (87.5 % used;")
    assert b"<b>x" not in page


def test_what_happened_on_another_day_has_its_date() -> None:
    """A list that goes back over a restart says which evening it was; what is of today stays short."""
    log = EventLog()
    calm = calm_workstation()
    midnight = calm.unix // 86_400 * 86_400
    log.add(midnight - 1.0, "oom_kill", "the kernel killed hog")
    log.add(midnight, "started", "memwatchd started watching spark-1")

    text = text_of(Pages(events=lambda: log.latest(8)).page("overview", calm))

    assert "2026-11-20 23:59:59 UTC the kernel killed hog" in text
    assert " 00:00:00 UTC memwatchd started" in text
    assert "2026-11-21 00:00:00" not in text


def test_where_nothing_happened_that_is_said() -> None:
    """An empty list is a sentence."""
    assert "What happened Nothing yet." in text_of(Pages().page("overview", calm_workstation()))


def test_a_forecast_and_what_is_resident_are_said_in_words() -> None:
    """The page says when memory is full, and that a level is judged on what is not there to stay."""
    calm = calm_workstation()
    verdict = Pressure(
        "ram",
        Level.HIGH,
        Level.HIGH,
        0.82,
        (Reason("util", "82.0 % used, excluding 40.0 GiB resident"),),
        seconds_to_full=41.0,
        resident_bytes=40 << 30,
    )

    text = text_of(Pages().page("overview", replace(calm, pressure=(verdict,))))

    assert "System RAM is high: 82.0 % used, excluding 40.0 GiB resident; full in about 40 s" in text
    assert "82.0 % of what is not resident" in text
