"""On every simulated machine the running daemon says exactly what is written down for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from daemon_process import MEMWATCHD, clean_environment, running_daemon
from golden import RUN_HERE, exported, host_of, roots_arguments
from machine_folders import NAMES, machine_folder


@pytest.mark.parametrize("name", RUN_HERE)
def test_metrics_are_as_written_down(name: str, tmp_path: Path) -> None:
    """The whole of /metrics, help texts included, but for times and our own figures."""
    host = host_of(name, tmp_path)
    with running_daemon(tmp_path, "--interval", "200ms", *host.roots, environ=host.environ) as daemon:
        found = exported(daemon, host.waits_for)

    assert found == host.golden.read_text()


@pytest.mark.parametrize("name", [name for name in RUN_HERE if name in NAMES])
def test_a_single_reading_has_the_machines_memory(name: str) -> None:
    """--once --json on a folder: the pools are the expected ones, and they add up to the machine's memory."""
    command = [MEMWATCHD, "--once", "--json", *roots_arguments(name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=clean_environment(), check=False)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    snapshot = json.loads(done.stdout)
    found = machine_folder(name).expected
    expected = [with_holders(pool, found) for pool in found["memory"]["pools"]]
    for pool, wanted in zip(snapshot["pools"], expected, strict=True):
        for field in (
            "id",
            "label",
            "size_bytes",
            "used_bytes",
            "available_bytes",
            "free_bytes",
            "unattributed_bytes",
        ):
            assert pool[field] == wanted[field] or pool["absent"][field] == wanted[field]
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in expected)


def with_holders(pool: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What zram and a Tegra's GPU hold is in no line of meminfo, so that collector alone counts it to nobody."""
    zram = found.get("zram", {}).get("zram", {}).get("memory_bytes", 0)
    gpu = found.get("tegra", {}).get("tegra", {}).get("gpu_bytes", 0)
    held = zram + (gpu if isinstance(gpu, int) else 0)
    return pool | {"unattributed_bytes": pool["unattributed_bytes"] - held} if held else pool
