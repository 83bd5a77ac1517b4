"""Golden output: the running daemon on every simulated machine."""

from __future__ import annotations

import json
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
from support.daemon_process import MEMWATCHD, run_program, running_daemon
from support.machine_folders import NAMES, machine_folder
from support.paths import MACHINES


@pytest.mark.parametrize("name", RUN_HERE)
def test_metrics_match_the_golden_file(name: str, tmp_path: Path) -> None:
    """All of /metrics with HELP lines, except times and the daemon's own usage."""
    host = host_of(name, tmp_path)
    environ = {**host.environ, **NO_ALERTS}
    with running_daemon(tmp_path, "--interval", "200ms", *host.roots, environ=environ) as daemon:
        found = exported(daemon, host.waits_for)

    assert found == with_help(host.golden.read_text())


def test_each_help_line_belongs_to_an_exported_family() -> None:
    """A family that is no longer exported leaves no HELP line behind."""
    samples = [by_family(file.read_text()) for file in MACHINES.glob("*/metrics*.txt")]

    assert set(by_family(HELP.read_text())) == ALWAYS.union(*samples)


def without_gpus() -> list[str]:
    """Return the machines whose memory is described by /proc alone."""
    others = ("lxc-alpine", "rx-580-linux-4.19")
    names = [name for name in RUN_HERE if name in NAMES and name not in others]
    return [name for name in names if "amdgpu" not in machine_folder(name).expected]


@pytest.mark.parametrize("name", without_gpus())
def test_once_json_has_the_machines_memory(name: str) -> None:
    """--once --json on a folder: System RAM matches, and all pools add up to the machine's memory."""
    done = run_program(MEMWATCHD, "--once", "--json", *roots_arguments(name))

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    snapshot = json.loads(done.stdout)
    found = machine_folder(name).expected
    (ram,) = (pool for pool in snapshot["pools"] if pool["kind"] == "system_ram")
    expected_ram = with_zram(found["meminfo"]["pools"][0], found.get("zram", {}).get("zram"))
    for field in ("id", "label", "size_bytes", "used_bytes", "available_bytes", "free_bytes"):
        assert ram[field] == expected_ram[field] or ram["absent"][field] == expected_ram[field]
    assert unattributed(ram) == expected_ram["unattributed_bytes"]
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in snapshot["pools"])


def unattributed(ram: dict[str, Any]) -> int | str:
    """Return unattributed memory including GPU buffers, which meminfo alone does not attribute."""
    rest: int | None = ram["unattributed_bytes"]
    why: str = ram["absent"].get("unattributed_bytes", "")
    devices: int = ram["contents"].get("devices_bytes", 0)
    return why if rest is None else rest + devices


def with_zram(pool: dict[str, Any], zram: dict[str, int] | None) -> dict[str, Any]:
    """Subtract zram's pages, which no line of meminfo contains, from unattributed memory."""
    return pool | {"unattributed_bytes": pool["unattributed_bytes"] - zram["memory_bytes"]} if zram else pool
