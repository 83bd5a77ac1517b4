"""A /proc mounted with hidepid is reported as the cause of missing processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.hidepid_host import GID, hidden_machine

OFTEN = '[processes]\ninterval = "1s"\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("hidepid")
    through, arguments = hidden_machine(folder)
    with running_daemon(folder, *arguments, config=OFTEN, through=through) as running:
        running.wait_for("/api/v1/snapshot", lambda found: found["process_scan"])
        yield running


def test_hidden_processes_are_reported_with_cause_and_remedy(daemon: RunningDaemon) -> None:
    """The list is partial, and process 1 is not in it."""
    found = daemon.snapshot()

    assert found["process_scan"]["process_list"] == "partial"
    note = found["process_scan"]["note"]
    assert "Processes of other users are hidden" in note
    assert "/proc is mounted with hidepid=invisible" in note
    assert f"SupplementaryGroups={GID}" in note
    assert "CAP_SYS_PTRACE" in note
    assert 1 not in {process["pid"] for process in found["processes"]}


def test_doctor_names_the_mount_option_and_the_remedy(daemon: RunningDaemon) -> None:
    checks = daemon.get("/api/v1/doctor").json["checks"]

    (check,) = [one for one in checks if one["id"] == "processes.hidden"]
    assert check["verdict"] == "hint"
    assert check["text"].endswith("/proc is mounted with hidepid=invisible")
    assert check["remedy"].startswith(f"run memwatchd in group {GID}")


@pytest.mark.parametrize("path", ["/", "/processes"])
def test_page_shows_why_processes_are_missing(path: str, daemon: RunningDaemon) -> None:
    assert "/proc is mounted with hidepid=invisible" in daemon.get(path, accept="text/html").text


def test_client_shows_why_processes_are_missing(daemon: RunningDaemon) -> None:
    shown = memwatch("--url", daemon.url, "top").stdout, memwatch("--url", daemon.url, "doctor").stdout

    assert all("/proc is mounted with hidepid=invisible" in text for text in shown)
