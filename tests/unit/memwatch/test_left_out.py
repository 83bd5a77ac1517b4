"""Lists with a maximum count the entries that they leave out, and say so where they are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from memwatch.collectors import cgroup_pressure, dmem
from memwatch.doctor.checks import run_checks
from memwatch.linux.files import Roots
from memwatch.listing import LISTS, left_out_texts
from memwatch.neighbours.found import MAX_FOUND, FoundMachine, FoundMachines
from memwatch.neighbours.machines import list_machines
from memwatch.neighbours.tick import build_tick
from memwatch.render.json import snapshot_json
from memwatch.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatch_web.pages.renderer import Pages
from support.psi_host import Host
from support.sample_snapshots import calm_workstation


def with_left_out() -> Snapshot:
    return replace(calm_workstation(), left_out={**dict.fromkeys(LISTS, 0), "dmem_users": 3})


def test_each_list_has_a_sentence_only_if_it_leaves_out_entries() -> None:
    assert list(left_out_texts(dict.fromkeys(LISTS, 0))) == []
    assert list(left_out_texts({"incidents": 2, "dmem_users": 1}, "incidents")) == [
        "2 more incidents began while the highest number was open, and are not followed"
    ]
    assert len(list(left_out_texts(dict.fromkeys(LISTS, 1)))) == len(LISTS)


def test_metric_json_and_doctor_tell_the_number() -> None:
    snapshot = with_left_out()

    metrics = Exporter("1", dict).render(snapshot, generate_latest).decode()
    checks = {check.id: check.text for check in run_checks(snapshot)}

    assert re.findall(r"memwatch_list_left_out\{.*", metrics) == ['memwatch_list_left_out{list="dmem_users"} 3.0']
    assert snapshot_json(snapshot)["left_out"]["dmem_users"] == 3
    assert [name for name in checks if name.startswith("lists.")] == ["lists.dmem_users"]
    assert checks["lists.dmem_users"].startswith("3 more cgroups")


def test_page_of_incidents_tells_the_number() -> None:
    assert b"7 more incidents began" in Pages().incidents([], left_out=7)
    assert b"more incidents began" not in Pages().incidents([])


def test_machines_beyond_the_maximum_are_counted_until_they_leave() -> None:
    found = FoundMachines()
    for number in range(MAX_FOUND + 5):
        for _ in range(2):  # announcements are repeated
            found.put(
                f"10.0.0.{number}",
                "service",
                FoundMachine(f"m{number:02}", f"http://m{number}:6360", f"run{number}"),
            )

    assert found.count_left_out() == 5
    own = build_tick(calm_workstation(), "0")
    shown = list_machines(own, [], found.others(set(), set()), found.count_left_out())
    assert len(shown) == 1 + MAX_FOUND
    assert [one.name for one in shown if "5 more machines were found" in one.text] == [shown[-1].name]

    found.remove(f"10.0.0.{MAX_FOUND}", "service")
    assert found.count_left_out() == 4
    found.remove("10.0.0.0", "service")
    found.put(f"10.0.0.{MAX_FOUND + 1}", "service", FoundMachine("late", "http://late:6360", "late"))
    assert found.count_left_out() == 3
    found.clear()
    assert found.count_left_out() == 0


@pytest.mark.parametrize(("groups", "left_out"), [(400, 0), (600, 100)])
def test_cgroups_that_were_not_searched_are_counted(groups: int, left_out: int, tmp_path: Path) -> None:
    host, now = Host(tmp_path), [0.0]
    collector = cgroup_pressure.Collector(host.roots, lambda: now[0])
    host.wait(0.0, **{f"group{number}": 0.0 for number in range(groups)})
    (host.groups / "cgroup.stat").write_text(f"nr_descendants {groups}\nnr_dying_descendants 0\n")
    for second in range(3):
        now[0] = float(second)
        host.wait(second * 0.3)
        found = collector.collect()
    collector.close()

    assert found.left_out == {"cgroup_pressure": left_out}


def test_cgroups_with_gpu_memory_beyond_the_maximum_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/cgroup"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("33 22 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    root.mkdir(parents=True)
    region = "drm/0000:03:00.0/vram"
    (root / "dmem.capacity").write_text(f"{region} {1 << 34}\n")
    for number in range(dmem.MAX_USERS + 4):
        folder = root / f"job{number}"
        folder.mkdir()
        (folder / "dmem.current").write_text(f"{region} {1 << 20}\n")
        (folder / "dmem.max").write_text(f"{region} max\n")
    collector = dmem.Collector(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))

    found = collector.collect()
    collector.close()

    assert found.left_out == {"dmem_cgroups": 0, "dmem_users": 4}
