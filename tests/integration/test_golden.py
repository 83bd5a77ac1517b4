"""On every simulated machine the running daemon says exactly what is written down for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import (
    ALWAYS,
    HELP,
    NO_ALERTS,
    RUN_HERE,
    by_family,
    exported,
    host_of,
    roots_arguments,
    with_help,
)
from support.daemon_process import MEMWATCHD, clean_environment, running_daemon
from support.machine_folders import NAMES, machine_folder
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS


@pytest.mark.parametrize("name", RUN_HERE)
def test_metrics_are_as_written_down(name: str, tmp_path: Path) -> None:
    """The whole of /metrics, help texts included, but for times and our own figures."""
    host = host_of(name, tmp_path)
    environ = {**host.environ, **NO_ALERTS}
    with running_daemon(tmp_path, "--interval", "200ms", *host.roots, environ=environ) as daemon:
        found = exported(daemon, host.waits_for)

    assert found == with_help(host.golden.read_text())


def test_each_help_line_belongs_to_a_machine() -> None:
    """A family that is no longer exported leaves no HELP line behind."""
    samples = [by_family(file.read_text()) for file in MACHINES.glob("*/metrics*.txt")]

    assert set(by_family(HELP.read_text())) == ALWAYS.union(*samples)


def without_gpus() -> list[str]:
    """Machines whose memory is told by the files of /proc alone."""
    return [name for name in RUN_HERE if name in NAMES and "amdgpu" not in machine_folder(name).expected]


@pytest.mark.parametrize("name", without_gpus())
def test_a_single_reading_has_the_machines_memory(name: str) -> None:
    """--once --json on a folder: System RAM is the expected one, and all pools add up to the machine's memory."""
    command = [MEMWATCHD, "--once", "--json", *roots_arguments(name)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, env=clean_environment(), check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    snapshot = json.loads(done.stdout)
    found = machine_folder(name).expected
    (ram,) = (pool for pool in snapshot["pools"] if pool["kind"] == "system_ram")
    wanted = with_zram(found["meminfo"]["pools"][0], found.get("zram", {}).get("zram"))
    for field in ("id", "label", "size_bytes", "used_bytes", "available_bytes", "free_bytes"):
        assert ram[field] == wanted[field] or ram["absent"][field] == wanted[field]
    assert unattributed(ram) == wanted["unattributed_bytes"]
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in snapshot["pools"])


def unattributed(ram: dict[str, Any]) -> int | str:
    """With what GPUs hold of System RAM put back: to the files of the host alone it is nobody's."""
    rest: int | None = ram["unattributed_bytes"]
    why: str = ram["absent"].get("unattributed_bytes", "")
    devices: int = ram["contents"].get("devices_bytes", 0)
    return why if rest is None else rest + devices


def with_zram(pool: dict[str, Any], zram: dict[str, int] | None) -> dict[str, Any]:
    """zram's pages are in no line of meminfo, so that collector alone counts them to nobody."""
    return pool | {"unattributed_bytes": pool["unattributed_bytes"] - zram["memory_bytes"]} if zram else pool
