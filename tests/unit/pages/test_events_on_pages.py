"""Events and pressure reasons on the overview."""

from __future__ import annotations

import html
import re

from msgspec.structs import replace

from memwatch.core.events import EventLog
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch.reporting.render.words import moment
from memwatch_monitor.notify.status import AlertView
from memwatch_web.pages.renderer import Pages
from support.sample_snapshots import calm_workstation


def text_of(page: bytes) -> str:
    """Return the visible text with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.decode())).split())


def test_events_are_shown_newest_first() -> None:
    """Names in event texts are escaped."""
    log, calm = EventLog(), calm_workstation()
    noon = calm.unix // 86_400 * 86_400 + 43_200
    log.add(noon - 12.0, "level", "System RAM: OK → high (87.5% used; 8.0 GiB of 64.0 GiB available)", "ram")
    log.add(noon, "oom_kill", "OOM killer: killed <b>x</b> (7), 1.0 GiB anonymous")

    page = Pages(events=lambda: log.latest(8)).page("overview", replace(calm, unix=noon + 60.0))

    text = text_of(page)
    assert "12:00:00 UTC OOM kill: <b>x</b>, 1.0 GiB" in text
    assert text.index("12:00:00 UTC") < text.index("11:59:48 UTC System RAM: OK → high (87.5%)")
    assert b"<b>x" not in page


def test_event_of_another_day_has_its_date() -> None:
    """Half a day ago and more; a younger one has its clock, also of the day before. The title has both."""
    log = EventLog()
    calm = calm_workstation()
    log.add(calm.unix - 43_200.0, "oom_kill", "OOM killer: killed hog")
    log.add(calm.unix - 43_199.0, "started", "memwatchd started on spark-1")

    page = Pages(events=lambda: log.latest(8)).page("overview", calm)
    text = text_of(page)

    before, after = (moment(calm.unix - ago) for ago in (43_200.0, 43_199.0))
    assert f"{before[:10]} OOM killer: killed hog" in text
    assert f"More {after[11:]} memwatchd started" in text
    assert f'title="{before}"' in page.decode()


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


def test_event_of_an_incident_has_no_id_on_pages() -> None:
    """The row links to the incident. Its id in the event log is for a command line. The overview is short."""
    log, calm = EventLog(), calm_workstation()
    log.add(calm.unix, "incident", "train.py (PID 7) took 12.3 GiB. (20261130T153038Z-2)", "ram")
    alerting = AlertView(events=log.latest(8))
    pages = Pages(events=lambda: log.latest(8), alerting=lambda: alerting)

    for name, words in (("overview", "train.py took 12.3 GiB"), ("alerts", "train.py (PID 7) took 12.3 GiB.")):
        text = text_of(pages.page(name, calm))
        assert words in text
        assert "20261130T153038Z" not in text
