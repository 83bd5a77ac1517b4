"""Budget for the number of series per machine, checked for every simulated machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memwatch.monitor.between_scrapes import WITH_THREAD
from memwatch.snapshot import Level
from scripts.golden import RUN_HERE, VOLATILE, host_of
from support.daemon_process import running_daemon
from support.paths import MACHINES

GOLDEN = sorted(MACHINES.glob("*/metrics*.txt"))
NO_GPU, ONE_GPU = 150, 240
HOST, PER_GPU = 130, 60
# A limit of a cgroup is a share and a pressure target; there are 64 at most.
PER_LIMIT = 14
# Series about the daemon itself and process_*, the same on every machine: VOLATILE without those counted below.
OWN = 6 + 6 + 1 + 8
PER_COLLECTOR, PER_THREAD = 2, 6
PER_TARGET = len(Level)
LIMITS = re.compile(r'^memwatch_share_limit_bytes\{.*kind="gpu_limit"', re.MULTILINE)
CHANGING = ("#", "memwatch_pressure_reason", "memwatch_time_to_full_seconds")


def series_of(metrics: str) -> int:
    return sum(not line.startswith("#") for line in metrics.splitlines())


def threads_of(metrics: str) -> int:
    """Return the number of collectors with a histogram."""
    return len(WITH_THREAD.intersection(re.findall(r'memwatch_collector_up{collector="(\w+)"', metrics)))


def budget(metrics: str) -> tuple[int, int]:
    """Return the total number of series of a machine with this golden file, and the permitted number."""
    gpus = metrics.count("memwatch_device_info{")
    collectors = metrics.count("memwatch_collector_up{")
    found = series_of(metrics) + OWN + PER_COLLECTOR * collectors + PER_THREAD * threads_of(metrics)
    found += PER_TARGET * metrics.count("memwatch_pressure_level{")
    limits = len(LIMITS.findall(metrics))
    return found, {0: NO_GPU, 1: ONE_GPU}.get(gpus, HOST + PER_GPU * gpus) + PER_LIMIT * limits


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_machine_is_within_its_series_budget(file: Path) -> None:
    """At most 150 series without a GPU, 240 with one, and 130 plus 60 per GPU with more; 14 per cgroup limit."""
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
    per_target = PER_TARGET * golden.count("memwatch_pressure_level{")
    per_collector = PER_COLLECTOR * golden.count("memwatch_collector_up{") + PER_THREAD * threads_of(golden)
    assert len(extra) == OWN + per_collector + per_target
    assert series_of(text) == budget(golden)[0]


def test_process_series_are_bounded_by_top(tmp_path: Path) -> None:
    """Each process has at most two series for RAM and swap, and one for each device's share or pool."""
    config = '[processes]\ntop = 5\ninterval = "1s"\nmetrics = true\n'
    host = host_of("8x-h100", tmp_path)
    with running_daemon(tmp_path, *host.roots, environ=host.environ, config=config) as daemon:
        daemon.wait_until_ok("processes")
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/processes", bool)
        text = daemon.get("/metrics").text

    processes = re.findall(r'^memwatch_process_(\w+)_bytes\{.*pid="(\d+)"(.*)\}', text, re.MULTILINE)
    assert 0 < len({pid for _, pid, _ in processes}) <= 5
    assert len(processes) == len(set(processes)) <= 5 * (2 + text.count("memwatch_device_info{"))


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
