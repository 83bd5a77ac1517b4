"""Events and pressure reasons on the overview."""

from __future__ import annotations

import html
import re

from msgspec.structs import replace

from memwatch.core.events import EventLog
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch_web.pages.renderer import Pages
from support.sample_snapshots import calm_workstation


def text_of(page: bytes) -> str:
    """Return the visible text with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.decode())).split())


def test_events_are_shown_newest_first() -> None:
    """Names in event texts are escaped."""
    log = EventLog()
    log.add(1_800_000_000.0, "level", "System RAM: OK → high (87.5% used; 8.0 GiB of 64.0 GiB available)", "ram")
    log.add(1_800_000_012.0, "oom_kill", "OOM killer: killed <b>x</b> (7), 1.0 GiB")

    page = Pages(events=lambda: log.latest(8)).page("overview", calm_workstation())

    text = text_of(page)
    assert "08:00:12 UTC OOM killer: killed <b>x</b> (7), 1.0 GiB" in text
    assert text.index("08:00:12 UTC") < text.index("08:00:00 UTC System RAM: OK → high (87.5% used;")
    assert b"<b>x" not in page


def test_event_of_another_day_has_its_date() -> None:
    log = EventLog()
    calm = calm_workstation()
    midnight = calm.unix // 86_400 * 86_400
    log.add(midnight - 1.0, "oom_kill", "OOM killer: killed hog")
    log.add(midnight, "started", "memwatchd started on spark-1")

    text = text_of(Pages(events=lambda: log.latest(8)).page("overview", calm))

    assert "2026-11-20 23:59:59 UTC OOM killer: killed hog" in text
    assert " 00:00:00 UTC memwatchd started" in text
    assert "2026-11-21 00:00:00" not in text


def test_empty_event_list_is_a_sentence() -> None:
    assert "No events yet." in text_of(Pages().page("overview", calm_workstation()))


def test_verdict_shows_forecast_and_resident_memory() -> None:
    calm = calm_workstation()
    verdict = Pressure(
        "ram",
        Level.HIGH,
        Level.HIGH,
        0.82,
        (Reason("util", "82.0% used, excluding 40.0 GiB resident"),),
        seconds_to_full=41.0,
        resident_bytes=40 << 30,
    )

    text = text_of(Pages().page("overview", replace(calm, pressure=(verdict,))))

    assert (
        "System RAM is high: full in about 40 s at the current rate; 82.0% used, excluding 40.0 GiB resident"
        in text
    )
    assert "82.0% excluding resident memory" in text
