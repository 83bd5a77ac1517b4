"""Test PIDs that a driver lists and /proc does not have, and processes that lost their parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.processes import CONFIRM_SECONDS, Collector, has_lost_parent
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import OwnerNames
from memwatch.core.linux.process_files import ProcessOwners, Stat
from support.process_folders import add_process, folder_of, stat_line

PERIOD = 10.0


class Scans:
    """A collector with a list of GPU users that a test changes."""

    def __init__(self, folder: Path) -> None:
        self.roots = folder_of(folder / "proc", stat_line(1, "init"), stat_line(50, "python3", start=500))
        self.wanted: frozenset[int] = frozenset({50})
        self.collector = Collector(self.roots, period_seconds=PERIOD, wanted=lambda: self.wanted)

    def scan(self) -> Findings:
        return self.collector.collect()


@pytest.fixture
def scans(tmp_path: Path) -> Scans:
    return Scans(tmp_path)


def test_pid_counts_as_missing_after_two_scans(scans: Scans) -> None:
    """The second scan follows soon, and later ones come at the usual pace."""
    scans.wanted = frozenset({50, 4242})

    assert scans.scan().missing_pids == frozenset()
    assert scans.collector.period_seconds == CONFIRM_SECONDS
    assert scans.scan().missing_pids == {4242}
    assert scans.collector.period_seconds == PERIOD
    scans.wanted = frozenset({50})
    assert scans.scan().missing_pids == frozenset()


def test_process_that_ends_between_list_and_scan_is_not_missing(scans: Scans) -> None:
    """The driver drops it from its next list."""
    scans.wanted = frozenset({50, 4242})
    first = scans.scan()
    scans.wanted = frozenset({50})
    second = scans.scan()
    scans.wanted = frozenset({50, 4242})

    assert [one.missing_pids for one in (first, second, scans.scan())] == [frozenset()] * 3


def test_kernel_thread_and_new_process_are_not_missing(scans: Scans) -> None:
    add_process(scans.roots.procfs, stat_line(77, "nvidia-modeset", flags=0x00200000))
    scans.wanted = frozenset({77})
    scans.scan()
    add_process(scans.roots.procfs, stat_line(88, "new"))
    scans.wanted = frozenset({77, 88})

    assert [scans.scan().missing_pids for _ in range(3)] == [frozenset()] * 3


def test_reused_pid_stays_missing_until_the_driver_drops_it(scans: Scans) -> None:
    """The memory is not that of the new process."""
    scans.wanted = frozenset({4242})
    scans.scan()
    scans.scan()
    add_process(scans.roots.procfs, stat_line(4242, "sleep", start=900))
    reused = scans.scan().missing_pids
    scans.wanted = frozenset()
    dropped = scans.scan().missing_pids
    scans.wanted = frozenset({4242})

    assert [reused, dropped, scans.scan().missing_pids] == [{4242}, set(), set()]


def test_process_that_becomes_visible_is_no_longer_missing(scans: Scans) -> None:
    """It started before other processes did, so it is the one that the driver means."""
    scans.wanted = frozenset({4242})
    scans.scan()
    scans.scan()
    add_process(scans.roots.procfs, stat_line(4242, "sleep", start=400))

    assert scans.scan().missing_pids == frozenset()


def test_process_without_gpu_memory_is_listed_for_a_while(tmp_path: Path) -> None:
    """It would look as if it had ended."""
    scans = Scans(tmp_path)
    scans.collector = Collector(scans.roots, top=0, wanted=lambda: scans.wanted)
    scans.scan()
    scans.wanted = frozenset()

    counts = [len(scans.scan().processes) for _ in range(8)]

    assert counts == [1, 1, 1, 1, 1, 0, 0, 0]


SESSION = "session-7.scope"


def lost(
    unit: str | None = SESSION,
    parent: int = 1,
    group: int = 600,
    name: str = "python3",
    container: str | None = None,
    job: str | None = None,
    in_namespace: bool = False,
) -> bool:
    home = ProcessOwners(OwnerNames(unit, container, None, job), {})
    names = {1: b"systemd", 1200: b"systemd", 600: b"bash"}
    return has_lost_parent(Stat(1, 700, 1, name.encode(), parent, group), home, in_namespace, names.get)


@pytest.mark.parametrize("unit", [SESSION, "app-gnome-Terminal-99.scope", "ssh.service", "user@1000.service"])
def test_child_that_process_1_adopted_lost_its_parent(unit: str) -> None:
    """A login session ended, or its API server was killed: a unit alone is no parent."""
    assert lost(unit)


def test_child_that_the_users_systemd_adopted_lost_its_parent() -> None:
    assert lost(parent=1200)


def test_known_worker_lost_its_parent_wherever_it_is() -> None:
    """It is never started on its own, so that neither its process group nor a missing unit matters."""
    assert lost(name="VLLM::EngineCor", group=700)
    assert lost(name="sglang::schedul", unit=None)


@pytest.mark.parametrize(
    "supervised",
    [
        lost("vllm.service"),
        lost("vllm.service", name="VLLM::EngineCor"),
        lost("docker-1f6b.scope", container="1f6bd2a9e2c7", name="VLLM::EngineCor"),
        lost("slurmstepd.scope", job="4711"),
        lost(parent=600),
        lost(group=700),
        lost(unit=None),
        lost(in_namespace=True, unit=None, name="VLLM::EngineCor"),
    ],
    ids=["service", "worker in a service", "container", "job", "parent", "nohup", "no systemd", "in a container"],
)
def test_supervised_process_and_leader_of_a_group_are_no_orphans(supervised: bool) -> None:
    assert not supervised
