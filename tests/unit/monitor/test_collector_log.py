"""Collectors that do not apply to a machine are no news: the log has one line for all of them."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatchd.daemon import log_collectors
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor

NO_DRIVER = "libnvidia-ml.so.1 cannot be loaded: no NVIDIA driver is installed"


def test_collectors_that_do_not_apply_share_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """One with a remedy has its own, with the remedy. A collector that worked before is reported when it stops."""
    collectors = [
        FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),))),
        FakeCollector("zram", error=SourceUnavailable("/sys/block: no zram device")),
        FakeCollector("kubernetes", error=SourceUnavailable("/var/log/containers: No such file or directory")),
        FakeCollector("nvml", error=SourceUnavailable(NO_DRIVER)),
    ]
    clock = FakeClock()
    entries = [CollectorEntry(one.name, partial(lambda made: made, one), False) for one in collectors]
    sampler = Sampler(entries, clock)
    monitor = create_monitor(sampler, clock, MonitorRules(), Identity("host", "boot"))
    caplog.set_level(logging.INFO)

    log_collectors(monitor.tick())
    at_start = [record.message for record in caplog.records if record.name != "memwatch_monitor.loop"]
    collectors[0].error = SourceUnavailable("/proc/meminfo: gone")
    clock.now += 10.0
    monitor.tick()

    assert at_start == [
        f"nvml is unavailable: {NO_DRIVER}; install NVIDIA's driver, and its library in a container",
        "working collectors: meminfo",
        "collectors not applicable here: zram, kubernetes",
    ]
    assert "collector meminfo is unavailable: /proc/meminfo: gone" in caplog.text
