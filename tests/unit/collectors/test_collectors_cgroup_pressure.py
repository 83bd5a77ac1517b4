"""Test that the cgroup that waits for memory on an otherwise calm machine is named, without needless searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors import cgroup_pressure
from memwatch.core.collectors.base import NonBlockingCollector
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.linux.memory_events import parse_waiting
from support.psi_host import Host


@pytest.mark.parametrize("layout", ["unified", "hybrid"])
def test_innermost_waiting_cgroup_is_named(layout: str, tmp_path: Path) -> None:
    """Neither the slice around it nor the neighbour with a short wait is named."""
    host, now = Host(tmp_path, layout), [0.0]
    collector = cgroup_pressure.Collector(host.roots, lambda: now[0])
    found = []
    for second in range(4):
        now[0] = float(second)
        waited = second * 0.3
        host.wait(waited, apps=waited, apps_train=waited * 0.9, apps_web=waited * 0.1)
        found.append(collector.collect().cgroup_pressure)
    now[0] += 30.0
    later = collector.collect().cgroup_pressure
    collector.close()

    assert found[:2] == [None, None]
    assert found[-1] is not None
    assert found[-1].cgroup == "/apps/train"
    assert found[-1].some_ratio == pytest.approx(0.27)
    assert later is None


def test_tick_looks_for_stalls_and_leaves_a_search_to_the_thread(tmp_path: Path) -> None:
    """No thread wakes up for one file. A file that cannot be read is reported by the thread as well."""
    host, now = Host(tmp_path), [0.0]
    collector = cgroup_pressure.Collector(host.roots, lambda: now[0])
    is_left_to_tick, found = [], []
    for second in range(6):
        now[0] = float(second)
        waited = max(0, second - 2) * 0.3
        host.wait(waited, apps=waited)
        is_left_to_tick.append(collector.send_request())
        assert collector.has_answer(0.0)
        found.append(collector.collect().cgroup_pressure)
    collector.close()

    assert isinstance(collector, NonBlockingCollector)
    assert is_left_to_tick == [True, True, True, False, False, False]
    assert [one is not None for one in found] == [False, False, False, False, True, True]
    assert not collector.send_request()


def test_wait_spread_over_groups_names_no_cgroup() -> None:
    """Three groups that wait one third each: the whole machine waits, and no single limit is the cause."""
    before = {"/": 0.0, "/a": 0.0, "/b": 0.0, "/c": 0.0}

    assert cgroup_pressure.find_worst(before, {"/": 0.9, "/a": 0.3, "/b": 0.3, "/c": 0.3}, 1.0) is None
    assert cgroup_pressure.find_worst(before, {"/": 0.01, "/a": 0.01, "/b": 0.0}, 1.0) is None


@pytest.mark.parametrize(("used", "rate"), [(0.82, 0.3), (0.2, 0.01)], ids=["full", "calm"])
def test_groups_are_not_searched_without_need(used: float, rate: float, tmp_path: Path) -> None:
    """On a full machine the pressure is the machine's, and without waiting no cgroup is under pressure."""
    host, now = Host(tmp_path, used=used), [0.0]
    collector = cgroup_pressure.Collector(host.roots, lambda: now[0])
    for second in range(5):
        now[0] = float(second)
        host.wait(second * rate, job=second * rate)
        found = collector.collect().cgroup_pressure
    collector.close()

    assert found is None


def test_search_of_groups_is_bounded(tmp_path: Path) -> None:
    """Of 2,000 groups the first 500 are read, which bounds the cost of a search."""
    host = Host(tmp_path)
    host.wait(0.0, **{f"group{number}": 0.0 for number in range(600)})

    assert len(list(cgroup_pressure.waiting_groups(host.groups))) == cgroup_pressure.MAX_GROUPS


def test_collector_is_unavailable_without_cgroup_v2(tmp_path: Path) -> None:
    """The reason is reported once."""
    host = Host(tmp_path)
    (host.roots.procfs / "self/mountinfo").write_text("")

    with pytest.raises(SourceUnavailable, match="version 1 has no PSI"):
        cgroup_pressure.Collector(host.roots)


@pytest.mark.parametrize("text", ["", "some", "some avg10=0.00 total=x", "full avg10=0.00 total=7", "\0" * 100])
def test_garbled_pressure_is_no_value(text: str) -> None:
    """It raises nothing either."""
    assert parse_waiting(text.encode()) is None
