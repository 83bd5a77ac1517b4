"""Budget for the number of series per machine, checked for every simulated machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.golden import RUN_HERE, VOLATILE, host_of
from support.daemon_process import running_daemon
from support.paths import MACHINES

GOLDEN = sorted(MACHINES.glob("*/metrics*.txt"))
NO_GPU, ONE_GPU = 80, 150
HOST, PER_GPU = 60, 40
# A limit of a cgroup is a share and a pressure target; there are 64 at most.
PER_LIMIT = 8
# Series about the daemon itself and process_*, the same on every machine: VOLATILE without the two per collector.
OWN = 6 + 6
PER_COLLECTOR = 2
LIMITS = re.compile(r'^memwatch_share_limit_bytes\{.*kind="gpu_limit"', re.MULTILINE)
CHANGING = ("#", "memwatch_pressure_reason", "memwatch_time_to_full_seconds")


def series_of(metrics: str) -> int:
    return sum(not line.startswith("#") for line in metrics.splitlines())


def budget(metrics: str) -> tuple[int, int]:
    """Return the total number of series of a machine with this golden file, and the permitted number."""
    gpus = metrics.count("memwatch_device_info{")
    collectors = metrics.count("memwatch_collector_up{")
    found = series_of(metrics) + OWN + PER_COLLECTOR * collectors
    limits = len(LIMITS.findall(metrics))
    return found, {0: NO_GPU, 1: ONE_GPU}.get(gpus, HOST + PER_GPU * gpus) + PER_LIMIT * limits


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_machine_is_within_its_series_budget(file: Path) -> None:
    """At most 80 series without a GPU, 150 with one, and 60 plus 40 per GPU with more; 8 per cgroup limit."""
    found, allowed = budget(file.read_text())

    assert found <= allowed


def test_budget_counts_all_series_of_the_daemon(tmp_path: Path) -> None:
    """The series added to the golden files above are those that a daemon also exports."""
    host = host_of("8x-h100", tmp_path)
    with running_daemon(tmp_path, *host.roots, environ=host.environ) as daemon:
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        text = daemon.get("/metrics").text

    golden = host.golden.read_text()
    extra = [line for line in text.splitlines() if line.startswith(VOLATILE) and not line.startswith("#")]
    assert len(extra) == OWN + PER_COLLECTOR * golden.count("memwatch_collector_up{")
    assert series_of(text) == budget(golden)[0]


def test_process_series_are_bounded_by_top(tmp_path: Path) -> None:
    """Each process has at most one series for RAM and one for each device's share or pool."""
    config = '[processes]\ntop = 5\ninterval = "1s"\nmetrics = true\n'
    host = host_of("8x-h100", tmp_path)
    with running_daemon(tmp_path, *host.roots, environ=host.environ, config=config) as daemon:
        daemon.wait_until_ok("processes")
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/processes", bool)
        text = daemon.get("/metrics").text

    processes = re.findall(r'^memwatch_process_memory_bytes\{.*pid="(\d+)".*where="(\w+)"', text, re.MULTILINE)
    assert 0 < len({pid for pid, _ in processes}) <= 5
    assert len(processes) == len(set(processes)) <= 5 * (1 + text.count("memwatch_device_info{"))


def test_labels_do_not_change_with_time(tmp_path: Path) -> None:
    """Two scrapes have the same series: no label contains a changing value, time or text."""
    with running_daemon(tmp_path, "--interval", "200ms") as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))

        def names() -> set[str]:
            lines = daemon.get("/metrics").text.splitlines()
            return {line.rpartition(" ")[0] for line in lines if not line.startswith(CHANGING)}

        first = names()
        seq = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/snapshot", lambda found: found["seq"] > seq + 5)
        assert names() == first


def test_every_machine_has_a_golden_file() -> None:
    """The budget check covers all simulated machines."""
    assert {file.parent.name for file in GOLDEN} >= {name for name in RUN_HERE if (MACHINES / name).is_dir()}
