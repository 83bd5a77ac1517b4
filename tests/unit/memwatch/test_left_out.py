"""Lists with a maximum count the entries that they leave out, and say so where they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from memwatch.cli.holders import engine_lines
from memwatch.cli.incidents import read_left_out
from memwatch.cli.run import Peaks
from memwatch.cli.status import lease_lines
from memwatch.core.accounting.compose import Composer
from memwatch.core.budget import EVENT_STREAMS, KINDS, Account, Budgets, Kind, users_part
from memwatch.core.collectors import cgroup_pressure, containers, dmem
from memwatch.core.drivers.nvml.records import GpuReading, NvmlReading
from memwatch.core.events import EventLog
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.leases import Lease
from memwatch.core.linux import kmsg_parser, listeners
from memwatch.core.linux.files import Roots
from memwatch.core.linux.kmsg_parser import MAX_ERRORS, KernelLogTracker
from memwatch.core.listing import LISTS, left_out_texts
from memwatch.core.model import Absent
from memwatch.core.processes.growth import GrowthTracker
from memwatch.core.snapshot import Snapshot
from memwatch.library import profiler
from memwatch.reporting.doctor.checks import run_checks
from memwatch.reporting.render.json import snapshot_json
from memwatch.training import oom_autopsy
from memwatch_monitor.incident_observer import MAX_ANNOUNCED, IncidentObserver
from memwatch_monitor.neighbours.found import FoundMachine, FoundMachines
from memwatch_monitor.neighbours.machines import list_machines
from memwatch_monitor.neighbours.tick import build_tick
from memwatch_web.metrics.families import Exporter
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import create_environment
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from memwatchd.settings.schema import Settings
from memwatchd.systemd.serve import MAX_MEMBERS, read_members
from support.paths import ROOT as PROJECT
from support.psi_host import Host
from support.sample_snapshots import calm_workstation

MAX_FOUND = users_part(KINDS["machines_found"].most)


def with_left_out() -> Snapshot:
    return replace(calm_workstation(), left_out={**dict.fromkeys(LISTS, 0), "dmem_users": 3})


def test_each_list_has_a_sentence_only_if_it_leaves_out_entries() -> None:
    assert list(left_out_texts(dict.fromkeys(LISTS, 0))) == []
    assert list(left_out_texts({"incidents": 2, "dmem_users": 1}, "incidents")) == [
        f"2 more {KINDS['incidents'].refused}"
    ]
    assert len(list(left_out_texts(dict.fromkeys(LISTS, 1)))) == len(LISTS)


def test_refusals_of_budgets_are_a_metric_and_a_line_of_the_doctor() -> None:
    budgets = Budgets()
    for number in range(20):
        budgets["leases"].admit(number, Account("uid 1000"))
    snapshot = replace(calm_workstation(), left_out=budgets.left_out())

    metrics = Exporter("1", budgets=budgets).render(snapshot, generate_latest).decode()
    checks = {check.id: check.text for check in run_checks(snapshot)}

    refused = re.findall(r"memwatch_budget_refused_total\{.*", metrics)
    assert refused == ['memwatch_budget_refused_total{kind="leases"} 4.0']
    assert checks["lists.leases"] == f"4 more {KINDS['leases'].refused}"


def incident_lines(snapshot: Snapshot) -> list[str]:
    return read_left_out(snapshot_json(snapshot), "incidents", "incidents_kept", "last_words")


def mark_lines(snapshot: Snapshot) -> list[str]:
    return read_left_out(snapshot_json(snapshot), "marks")


BUDGETS = [*KINDS.values(), EVENT_STREAMS]
# The page with the list of a kind, and the lines of the CLI that have it from a snapshot. All are on /about, too.
SHOWN: dict[str, tuple[str, Callable[[Snapshot], Iterable[str]] | None]] = {
    "engines": ("overview", engine_lines),
    "event_streams": ("about", None),
    "leases": ("overview", lease_lines),
    "pressure_clients": ("about", None),
    "incidents": ("incidents", incident_lines),
    "incidents_kept": ("incidents", incident_lines),
    "last_words": ("incidents", incident_lines),
    "marks": ("history", mark_lines),
    "reports": ("processes", None),
    "machines_found": ("machines", None),
}


@pytest.mark.parametrize("kind", BUDGETS, ids=lambda kind: kind.name)
def test_each_budget_is_a_setting_and_says_its_overflow_where_its_list_is_shown(kind: Kind) -> None:
    """Over the table of kinds: API, metric, doctor, /about, the page of its list, and the settings."""
    budgets = Budgets()
    budget = budgets[kind.name]
    for number in range(kind.most + 4):
        budget.admit(number, Account("uid 1000"), size=-number)
    if kind.rotates:  # what makes room for the next of its account is not counted
        for number in range(kind.most):
            budget.admit(f"other {number}", Account("uid 1001"), size=1)
    counts = budgets.left_out()
    if kind.name == "engines":
        counts["engines"] = budget.refused  # by the collector: those that are not followed now
    server = next(islice(read_frames(path_of("dgx-spark")), 60, None))  # has a model server
    lease = Lease("lease_1", "job", "ram", 7, 1 << 30, {"ram": 1 << 30}, server.unix, server.unix + 60)
    snapshot = replace(server, left_out=counts, engines_not_followed=counts.get("engines", 0), leases=(lease,))
    (text,) = left_out_texts(counts)
    page, lines = SHOWN[kind.name]

    assert counts[kind.name] == budget.refused > 0
    assert snapshot_json(snapshot)["left_out"][kind.name] == budget.refused
    metrics = Exporter("1", budgets=budgets).render(snapshot, generate_latest).decode()
    assert f'memwatch_budget_refused_total{{kind="{kind.name}"}} {budget.refused}.0' in metrics
    assert {check.id: check.text for check in run_checks(snapshot)}[f"lists.{kind.name}"] == text
    shown = render(page, snapshot, budgets)
    assert re.search(rf"{budget.refused} (more|[a-z ]+not followed)", shown)
    assert text in render("about", snapshot, budgets)
    if lines is not None:
        assert any(f"{budget.refused} more" in line for line in lines(snapshot))
    if kind is not EVENT_STREAMS:
        assert Settings().budgets.limits[kind.name] == kind.most
    assert f"`{kind.name}`" in (PROJECT / "docs/explanation/budgets.md").read_text()


@pytest.mark.parametrize("answer", [None, [], {}, {"left_out": []}, {"left_out": {"marks": "3\x1b[0m"}}])
def test_answer_without_numbers_of_lists_has_no_line(answer: object) -> None:
    assert read_left_out(answer, "marks") == []


def render(page: str, snapshot: Snapshot, budgets: Budgets) -> str:
    if page == "incidents":
        observer = IncidentObserver(EventLog(), GrowthTracker(), budgets=budgets)
        return Pages().incidents([], more=observer.left_out()).decode()
    if page == "machines":
        found = [FoundMachine("spark", "http://10.0.0.2:6360", "ab")]
        shown = list_machines(build_tick(snapshot, "0"), [], found, snapshot.left_out["machines_found"])
        return " ".join(one.text for one in shown)
    if page == "history":
        template = create_environment().get_template("past_parts.html")
        past = SimpleNamespace(left_out="", entries=(), gaps=())
        return str(template.make_module().list(past, snapshot))  # type: ignore[attr-defined]
    return Pages().page(page, snapshot).decode()


def test_metric_json_and_doctor_tell_the_number() -> None:
    snapshot = with_left_out()

    metrics = Exporter("1").render(snapshot, generate_latest).decode()
    checks = {check.id: check.text for check in run_checks(snapshot)}

    assert re.findall(r"memwatch_list_left_out\{.*", metrics) == ['memwatch_list_left_out{list="dmem_users"} 3.0']
    assert snapshot_json(snapshot)["left_out"]["dmem_users"] == 3
    assert [name for name in checks if name.startswith("lists.")] == ["lists.dmem_users"]
    assert checks["lists.dmem_users"].startswith("3 more cgroups")


def test_page_of_incidents_tells_the_number() -> None:
    observer = IncidentObserver(EventLog(), GrowthTracker(), budgets=(budgets := Budgets()))
    for number in range(15):
        budgets["incidents"].admit(number, Account("uid 1001"))
    page = Pages().incidents([], more=observer.left_out())

    assert b"3 more of uid 1001 are not followed within the last hour" in page
    assert b"more of" not in Pages().incidents([])


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


def test_logs_of_containers_beyond_the_maximum_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / containers.FOLDER
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.log").touch()
    monkeypatch.setattr(containers, "MAX_LINKS", 3)

    assert containers.KubernetesCollector(Roots(rootfs=tmp_path)).collect().left_out == {"container_logs": 2}


def test_driver_errors_beyond_the_maximum_are_counted() -> None:
    tracker = KernelLogTracker()
    for number in range(MAX_ERRORS + 3):
        text = (
            f"NVRM: Xid (PCI:0000:{number % 256:02x}:{number // 256:02x}): 79, pid=1, GPU has fallen off the bus."
        )
        tracker.read(text.encode(), 1.0)

    assert (len(tracker.log.driver_errors), tracker.left_out) == (MAX_ERRORS, 3)


def test_cgroups_that_the_nvidia_driver_was_not_asked_about_are_counted() -> None:
    gpu = GpuReading(0, "GPU-1", "0000:01:00.0", "NVIDIA GB10", limits=(), cgroups_left_out=7)

    found = Composer().compose((Findings(nvml=NvmlReading("1", "1", (gpu,))),))

    assert (found.left_out or {})["nvidia_cgroups"] == 7


def test_namespaces_with_too_many_listening_sockets_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "MAX_ROWS", 2)
    row = "  {0}: 0100007F:1F9{0} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 {0} 1 0 100\n"
    (tmp_path / "tcp").write_text("sl local\n" + "".join(row.format(number) for number in range(3)))
    tables = listeners.ListenerTables()

    assert (len(tables.read(tmp_path)), tables.cut) == (2, 1)


def test_kills_beyond_those_of_one_tick_are_counted() -> None:
    observer = IncidentObserver(EventLog(), GrowthTracker())
    for number in range(MAX_ANNOUNCED + 2):
        observer.announce(ServiceKill(number, 1.0, "oomd_prekill", "about to kill"))

    assert observer.announced_left_out == 2


def test_group_with_too_many_processes_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(1, MAX_MEMBERS + 1)))

    assert not read_members(tmp_path).is_whole


def test_crash_records_beyond_the_maximum_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "fs/pstore"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"dmesg-{number}").write_text("Kernel panic - not syncing: dead\n")

    found = kmsg_parser.find_crash_records(Roots(sysfs=tmp_path, rootfs=tmp_path), 0.0)

    assert found[-1] == "3 more crash records"


def test_tree_with_too_many_processes_has_lower_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwatch.cli.run.MAX_PROCESSES", 2)
    peaks = Peaks()
    peaks.see_tree({1: 1})
    assert not peaks.json()["partial"]
    peaks.see_tree({1: 1, 2: 1})

    assert peaks.json()["partial"]


@pytest.mark.process
def test_stages_beyond_the_maximum_are_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "MAX_STAGES", 2)
    found = profiler.MemoryProfiler(interval=60.0)
    for name in ("a", "b", "c"):
        found.stage(name)

    assert [peak.stage for peak in found.report().peaks] == ["start", "a", profiler.OTHER_STAGES]


def test_largest_processes_are_not_known_if_not_all_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (1, 2):
        (tmp_path / str(pid)).mkdir()
    monkeypatch.setattr(oom_autopsy, "read_roots", lambda _: (tmp_path, tmp_path, tmp_path))
    monkeypatch.setattr(oom_autopsy, "MAX_READ", 1)

    assert oom_autopsy.list_resident() is Absent.NOT_AVAILABLE
