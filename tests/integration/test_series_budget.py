"""Series of /metrics: as many as on a simulated machine, bounded by settings, and the same at each scrape.

Their budget is a law of every machine in test_golden.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.golden import host_of
from support.daemon_process import running_daemon
from support.exposition import count_series, permitted_series
from support.machine_exports import export_of

CHANGING = ("#", "memwatch_pressure_reason", "memwatch_time_to_full_seconds")


def test_budget_counts_all_series_of_the_daemon(tmp_path: Path) -> None:
    """A daemon exports the series that the budget counts in an export of the same machine."""
    host = host_of("8x-h100", tmp_path)
    with running_daemon(tmp_path, *host.roots, environ=host.environ) as daemon:
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        names = names_in(daemon.get("/metrics").text)

    assert names == names_in(export_of("8x-h100").metrics)


def names_in(exposition: str) -> set[str]:
    lines = exposition.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith(("#", "memwatch_build_info"))}


def test_budget_depends_on_gpus_and_limits() -> None:
    """150 series without a GPU, 240 with one, 141 and 60 per GPU with more, and 14 per limit of a cgroup."""
    gpus = [f'memwatch_device_info{{device="gpu{number}"}} 1.0\n' for number in range(3)]
    limit = 'memwatch_share_limit_bytes{device="gpu0",kind="gpu_limit",share="a"} 1.0\n'
    head = "# HELP memwatch_device_info Devices.\n"

    assert [permitted_series(head + "".join(gpus[:count])) for count in range(4)] == [150, 240, 261, 321]
    assert permitted_series(head + gpus[0] + limit * 2) == 240 + 28
    assert count_series(head + "".join(gpus)) == 3


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
    assert len(processes) == len(set(processes)) <= 5 * (2 + text.count("\nmemwatch_device_info{"))


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
