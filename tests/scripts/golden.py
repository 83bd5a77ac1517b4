"""What /metrics of a machine folder says, without the figures that differ from run to run.

`PYTHONPATH=tests python -m scripts.golden` writes tests/machines/*/metrics.txt anew: read the difference before you
keep it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from support.daemon_process import RunningDaemon, running_daemon
from support.machine_folders import NAMES
from support.nvml_machine import Simulator
from support.paths import MACHINES
from support.sample_nvml import READY
from support.tegra_machine import Tegrastats

# Pages of 64 KiB are simulated by an argument of the collectors; a running daemon asks its own kernel.
RUN_HERE = tuple(dict.fromkeys((*(name for name in NAMES if name != "arm64-64k-pages"), *READY)))
VOLATILE = (
    "memwatch_collector_duration_seconds{",
    "memwatch_collector_last_success_timestamp_seconds{",
    "memwatch_memory_locked ",
    "memwatch_snapshot_timestamp_seconds ",
    "memwatch_tick_duration_seconds ",
    "memwatch_tick_lag_seconds ",
    "process_",
)


class Host(Struct, frozen=True):
    """A machine to run the daemon on: where it looks, what is in its environment, where its metrics are written."""

    roots: list[str]
    environ: Mapping[str, str]
    golden: Path
    waits_for: Sequence[str] = ()


def roots_arguments(name: str) -> list[str]:
    folder = MACHINES / name
    return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]


def host_of(name: str, scratch: Path) -> Host:
    """A machine by its name, NVIDIA's with their simulated driver, Jetsons with their tegrastats."""
    machine = READY.get(name)
    folder = MACHINES / str(machine.host if machine else name)
    environ: dict[str, str] = {}
    waits_for = []
    if machine:
        environ |= Simulator.of(scratch, machine).environ
        waits_for.append("nvml")
    if (folder / "tegrastats").exists():
        environ |= Tegrastats.of(scratch, folder.name).environ
        waits_for.append("tegrastats")
    variant = "" if folder.name == name else f".{name.removeprefix(folder.name).strip('-')}"
    return Host(roots_arguments(folder.name), environ, folder / f"metrics{variant}.txt", waits_for)


def exported(daemon: RunningDaemon, waits_for: Sequence[str] = ()) -> str:
    """The stable part of /metrics once every collector has said what it has to say."""
    daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
    for name in waits_for:
        daemon.wait_until_ok(name)
    lines = daemon.get("/metrics").text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(VOLATILE) and " process_" not in line)


if __name__ == "__main__":
    for machine in RUN_HERE:
        with tempfile.TemporaryDirectory() as scratch:
            host = host_of(machine, Path(scratch))
            with running_daemon(Path(scratch), "--interval", "200ms", *host.roots, environ=host.environ) as running:
                host.golden.write_text(exported(running, host.waits_for))
            print(host.golden)
