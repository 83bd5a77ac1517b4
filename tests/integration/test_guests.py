"""Units of one name in several containers, in the running daemon: guests of a host, and the host itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.container_host import OFTEN
from support.daemon_process import RunningDaemon, running_daemon
from support.process_folders import add_process, stat_line, statm_line

PAGE = 4096
MEMINFO = b"MemTotal: 32658204 kB\nMemFree: 8164552 kB\nMemAvailable: 19349988 kB\n"
# PID, resident pages and cgroup. The second process of 101 is in the same unit.
PROCESSES = (
    (1500, 900_000, "/lxc/101/ns/system.slice/ollama.service"),
    (1501, 100_000, "/lxc/101/ns/system.slice/ollama.service"),
    (1600, 15_000, "/lxc/102/ns/system.slice/ollama.service"),
    (1700, 5_000, "/system.slice/ollama.service"),
    (1800, 7_000, "/machine.slice/systemd-nspawn@web.service/payload/system.slice/ollama.service"),
    (1900, 8_000, "/user.slice/user-1000.slice/user@1000.service/app.slice/ollama.service"),
)
UNITS = {
    "ollama.service in lxc/101": 1_000_000 * PAGE,
    "ollama.service in lxc/102": 15_000 * PAGE,
    "ollama.service": 5_000 * PAGE,
    "ollama.service in nspawn/web": 7_000 * PAGE,
    "ollama.service in user/1000": 8_000 * PAGE,
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("host")
    procfs, empty = folder / "proc", folder / "sys"
    procfs.mkdir()
    empty.mkdir()
    (procfs / "stat").write_bytes(b"cpu 1\nbtime 1760000000\n")
    (procfs / "meminfo").write_bytes(MEMINFO)
    for pid, pages, cgroup in PROCESSES:
        files = {"statm": statm_line(pages), "cgroup": f"0::{cgroup}\n".encode()}
        add_process(procfs, stat_line(pid, "ollama", rss=pages, start=pid), **files)
    roots = ("--procfs", str(procfs), "--sysfs", str(empty), "--rootfs", str(folder))
    with running_daemon(folder, *roots, config=OFTEN) as daemon:
        daemon.wait_for("/api/v1/processes", lambda found: len(found) == len(PROCESSES))
        yield daemon


def rss_by_name(daemon: RunningDaemon, kind: str) -> dict[str | None, int]:
    owners = daemon.get(f"/api/v1/owners?by={kind}").json["owners"]
    return {owner["name"]: owner["rss_bytes"] for owner in owners}


def test_units_of_one_name_are_separate_owners(host: RunningDaemon) -> None:
    assert rss_by_name(host, "unit") == UNITS


def test_container_is_named(host: RunningDaemon) -> None:
    processes = {one["pid"]: one for one in host.get("/api/v1/processes").json}

    assert rss_by_name(host, "container") == {
        "101": 1_000_000 * PAGE,
        "102": 15_000 * PAGE,
        "web": 7_000 * PAGE,
        None: 13_000 * PAGE,
    }
    assert (processes[1600]["unit"], processes[1600]["container"]) == ("ollama.service in lxc/102", "102")
    assert (processes[1700]["unit"], processes[1700]["container"]) == ("ollama.service", None)


def test_metrics_have_a_series_of_each_unit(host: RunningDaemon) -> None:
    lines = [line for line in host.get("/metrics").text.splitlines() if 'kind="unit"' in line]

    for name, size in UNITS.items():
        (line,) = [one for one in lines if one.startswith("memwatch_owner_resident_bytes{") and f'"{name}"' in one]
        assert float(line.rpartition(" ")[2]) == size


def test_pages_name_the_container(host: RunningDaemon) -> None:
    """The list of processes, its groups, and the page of a process."""
    processes, groups = host.get("/processes").text, host.get("/processes?by=unit").text

    for name in UNITS:
        assert name in groups
    assert "ollama.service in lxc/101" in processes
    assert "ollama.service in nspawn/web" in host.get("/processes/1800").text
