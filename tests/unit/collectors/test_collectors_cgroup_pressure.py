"""The cgroup that waits for memory while the machine has plenty is named, and nobody is searched in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.collectors import cgroup_pressure
from memwatch.linux.files import Unavailable
from memwatch.linux.psi_trigger import parse_waiting
from support.psi_host import Host


@pytest.mark.parametrize("layout", ["unified", "hybrid"])
def test_the_innermost_group_that_waits_is_named(layout: str, tmp_path: Path) -> None:
    """Not the slice around it, and not the neighbour that waits a little."""
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


def test_waiting_that_is_everybodys_is_nobodys() -> None:
    """Three groups that wait a third each: the machine waits, and no limit is to blame."""
    before = {"/": 0.0, "/a": 0.0, "/b": 0.0, "/c": 0.0}

    assert cgroup_pressure.worst_of(before, {"/": 0.9, "/a": 0.3, "/b": 0.3, "/c": 0.3}, 1.0) is None
    assert cgroup_pressure.worst_of(before, {"/": 0.01, "/a": 0.01, "/b": 0.0}, 1.0) is None


@pytest.mark.parametrize(("used", "rate"), [(0.7, 0.3), (0.2, 0.01)], ids=["full", "calm"])
def test_nobody_is_searched_without_need(used: float, rate: float, tmp_path: Path) -> None:
    """A machine that is full waits for that reason, and one that does not wait has no victim."""
    host, now = Host(tmp_path, used=used), [0.0]
    collector = cgroup_pressure.Collector(host.roots, lambda: now[0])
    for second in range(5):
        now[0] = float(second)
        host.wait(second * rate, job=second * rate)
        found = collector.collect().cgroup_pressure
    collector.close()

    assert found is None


def test_a_forest_of_groups_is_searched_in_part(tmp_path: Path) -> None:
    """2,000 groups: the first 500 are looked at, so a search has its price and no more."""
    host = Host(tmp_path)
    host.wait(0.0, **{f"group{number}": 0.0 for number in range(600)})

    assert len(list(cgroup_pressure.waiting_groups(host.groups))) == cgroup_pressure.MOST_GROUPS


def test_without_version_2_nothing_is_counted(tmp_path: Path) -> None:
    """Said in words, once."""
    host = Host(tmp_path)
    (host.roots.procfs / "self/mountinfo").write_text("")

    with pytest.raises(Unavailable, match="version 1 does not count waiting"):
        cgroup_pressure.Collector(host.roots)


@pytest.mark.parametrize("text", ["", "some", "some avg10=0.00 total=x", "full avg10=0.00 total=7", "\0" * 100])
def test_garbled_pressure_is_no_figure(text: str) -> None:
    """And no crash."""
    assert parse_waiting(text.encode()) is None
