"""What /metrics of a machine folder says, without the figures that differ from run to run.

`python tests/golden.py` writes tests/machines/*/metrics.txt anew: read the difference before you keep it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from daemon_process import RunningDaemon, running_daemon
from machine_folders import FOLDER, NAMES

# Pages of 64 KiB are simulated by an argument of the collectors; a running daemon asks its own kernel.
RUN_HERE = tuple(name for name in NAMES if name != "arm64-64k-pages")
VOLATILE = (
    "memwatch_collector_duration_seconds{",
    "memwatch_collector_last_success_timestamp_seconds{",
    "memwatch_memory_locked ",
    "memwatch_snapshot_timestamp_seconds ",
    "memwatch_tick_duration_seconds ",
    "memwatch_tick_lag_seconds ",
    "process_",
)


def roots_arguments(name: str) -> list[str]:
    folder = FOLDER / name
    return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]


def exported(daemon: RunningDaemon) -> str:
    """The stable part of /metrics once every collector has said what it has to say."""
    daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
    lines = daemon.get("/metrics").text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(VOLATILE) and " process_" not in line)


def golden_path(name: str) -> Path:
    return FOLDER / name / "metrics.txt"


if __name__ == "__main__":
    for machine in RUN_HERE:
        with (
            tempfile.TemporaryDirectory() as scratch,
            running_daemon(Path(scratch), "--interval", "200ms", *roots_arguments(machine)) as running,
        ):
            golden_path(machine).write_text(exported(running))
            print(golden_path(machine))
