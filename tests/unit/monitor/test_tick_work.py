"""A tick at rest makes the recorded number of calls of our functions, however busy this machine is.

Times differ by 20 % from run to run, a number of calls does not: so no change makes every second dearer unseen.
Work of the interpreter's own functions is not counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import memwatch
import memwatch_monitor
import memwatch_web
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from memwatch_web.metrics.families import Exporter
from support.fakes import FakeClock
from support.monitors import create_monitor
from support.paths import MACHINES

OURS = tuple(str(Path(str(package.__file__)).parent) for package in (memwatch, memwatch_monitor, memwatch_web))
# Until trends are full and every collector has had its turn.
WARM_TICKS, TICKS = 120, 60
# More than the difference between Python 3.10 and 3.14, less than a change that a review should see.
TOLERANCE = 0.1
# Calls of a tick at rest, of those collectors that are read within it, and of a later exposition and a later
# scrape, also at rest.
CALLS = {
    "workstation": (329, 199, 448),
    "gb10": (343, 200, 469),
    "mi210": (754, 244, 512),
    "jetson-agx-orin-jp6": (465, 206, 450),
    "numa-server-2tib": (415, 199, 469),
}


class CallCounter:
    """Counts calls of functions in our packages. Comprehensions do not count: Python 3.12 inlines them."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> CallCounter:
        self._before = sys.getprofile()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            self.calls += 1


def monitor_of(name: str, clock: FakeClock) -> Monitor:
    folder = MACHINES / name
    host = Host(Roots(folder / "proc", folder / "sys", folder / "root"))
    quick = [entry for entry in list_collectors(host) if not entry.may_block]
    return create_monitor(Sampler(quick, clock), clock, MonitorRules(), Identity("box", "boot"))


def count_calls(name: str) -> tuple[float, int, int]:
    """Return the calls of an average tick, of an exposition, and of a scrape after another one and a tick."""
    clock = FakeClock()
    monitor = monitor_of(name, clock)
    for _ in range(WARM_TICKS):
        snapshot = monitor.tick()
        clock.now += 1
    with CallCounter() as ticks:
        for _ in range(TICKS):
            monitor.tick()
            clock.now += 1
    exporter = Exporter("1", monitor.features)
    exporter.snapshot = snapshot
    list(exporter.collect())  # builds the families that are kept
    with CallCounter() as exposition:
        found = list(exporter.collect())
    render = exporter.renderer(exporter.negotiate_format("")[0])
    render(snapshot)
    snapshot = monitor.tick()
    with CallCounter() as scrape:
        found_bytes = render(snapshot)
    assert found
    assert b"memwatch_pool_used_bytes" in found_bytes
    return ticks.calls / TICKS, exposition.calls, scrape.calls


@pytest.mark.parametrize("name", CALLS)
def test_tick_and_exposition_make_as_many_calls_as_recorded(name: str) -> None:
    """If it is more, spend less, or record the new figure with its reason. If it is less, record what was won."""
    found = count_calls(name)

    assert found == pytest.approx(CALLS[name], rel=TOLERANCE)


def test_counter_counts_our_functions_only() -> None:
    with CallCounter() as counted:
        memwatch.core.units.size(5 << 30)
        sorted([3, 1, 2], key=lambda one: -one)

    assert counted.calls >= 1
    with CallCounter() as counted:
        sorted([3, 1, 2], key=lambda one: -one)
    assert counted.calls == 0
