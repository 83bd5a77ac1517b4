"""Series of one process, its unit and its container on the process page."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.model import Absent, Process
from memwatch.core.owners import sum_owners
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history.tiers import History
from memwatch_web.pages.charts import build_charts
from memwatch_web.pages.history_page import find_owner_series, find_series
from support.sample_snapshots import critical_gb10

GIB = 1 << 30
TRAIN = Process(41, 1000.0, "train.py", GIB, GIB, "rss", unit="a.service", container="0123456789ab")


def recorded(*processes: Process) -> AllSeries:
    holders = HolderHistory()
    holders.add(500.0, replace(critical_gb10(), processes=processes, owners=sum_owners(processes)))
    return AllSeries(History(), holders)


def test_series_are_those_of_the_same_process() -> None:
    past = recorded(replace(TRAIN, device_bytes={"cuda": GIB}))

    assert find_series(past, TRAIN) == ("process.41-1000.footprint_bytes", "process.41-1000.device_bytes")
    assert find_series(past, replace(TRAIN, start_time=2000.0)) == ()
    assert find_series(past, replace(TRAIN, start_time=Absent.NOT_AVAILABLE)) == ()
    assert find_series(past, replace(TRAIN, pid=42)) == ()


def test_owners_have_a_series_if_they_are_recorded() -> None:
    past = recorded(TRAIN)

    assert find_owner_series(past, TRAIN) == {
        "unit": "unit.a.service.footprint_bytes",
        "container": "container.0123456789ab.footprint_bytes",
    }
    assert find_owner_series(past, replace(TRAIN, unit="b.service", container=None)) == {}
    assert find_owner_series(past, replace(TRAIN, unit=Absent.NOT_PERMITTED, container=None)) == {}


def test_charts_name_holders_by_title() -> None:
    past = recorded(replace(TRAIN, device_bytes={"cuda": GIB}))
    charts = build_charts(past.names(), critical_gb10(), past.titles())

    assert [(chart.label, chart.unit) for chart in charts] == [
        ("Processes", "bytes"),
        ("Units", "bytes"),
        ("Containers", "bytes"),
    ]
    assert [curve.label for curve in charts[0].curves] == ["train.py (PID 41)", "train.py (PID 41) GPU memory"]
    (unknown,) = build_charts(["process.7-9.footprint_low_bytes"], critical_gb10())
    assert unknown.curves[0].label == "PID 7 at least"
