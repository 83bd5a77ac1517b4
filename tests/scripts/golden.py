"""The stable part of /metrics of machine folders, without values that vary from run to run.

`make golden` writes them: see `scripts.make_golden`.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from simulators.nvml_machine import Simulator
from simulators.sample_nvml import READY, WITH_MISSING_PIDS
from simulators.tegra_machine import Tegrastats
from support.daemon_process import RunningDaemon
from support.machine_exports import folder_of
from support.machine_folders import NAMES, NVML_STATE, machine_folder
from support.paths import MACHINES

# Other page sizes are simulated by an argument of the collectors; a running daemon uses its own kernel's page size.
# A missing PID is confirmed some seconds after the start, so that the metrics would depend on the time.
OTHER_PAGES = {name for name in NAMES if machine_folder(name).page_size != mmap.PAGESIZE}
NOT_HERE = {*OTHER_PAGES, *WITH_MISSING_PIDS}
RUN_HERE = tuple(name for name in dict.fromkeys((*NAMES, *READY)) if name not in NOT_HERE)
VOLATILE = (
    "memwatch_build_info{",
    "memwatch_collector_duration_seconds{",
    "memwatch_collector_last_success_timestamp_seconds{",
    "memwatch_collector_run_seconds",
    "memwatch_failed_logins_total ",
    "memwatch_log_lines_dropped_total ",
    "memwatch_machine_info{",
    "memwatch_memory_locked ",
    "memwatch_pressure_seconds_total{",
    "memwatch_snapshot_timestamp_seconds ",
    "memwatch_config_last_reload_success_timestamp_seconds ",
    "memwatch_tick_duration_seconds ",
    "memwatch_tick_lag_seconds ",
    "memwatch_tick_run_seconds",
    "process_",
)
# A machine that is critical begins an incident; its id is the time.
OF_INCIDENTS = "memwatch_incident_info"
# Every daemon exports these families; no golden file has their samples.
ALWAYS = {name.rstrip("{ ") for name in VOLATILE if name.startswith("memwatch_")}
HELP = MACHINES / "metrics_help.txt"
# On a slow machine an alert would fire before the scrape.
NO_ALERTS = {"MEMWATCHD_ALERTS_PENDING_FOR": "1h", "MEMWATCHD_ALERTS_GPU_PENDING_FOR": "1h"}


class Host(Struct, frozen=True):
    """Machine to run the daemon on: its folders, its environment, and the file with its metrics."""

    roots: list[str]
    environ: Mapping[str, str]
    golden: Path
    waits_for: Sequence[str] = ()


def golden_file(name: str) -> Path:
    """Return the file with the metrics of a machine. Machines of one folder have a name for each."""
    folder = folder_of(name)
    variant = "" if folder.name == name else f".{name.removeprefix(folder.name).strip('-')}"
    return folder / f"metrics{variant}.txt"


def roots_arguments(name: str) -> list[str]:
    return arguments_of(MACHINES / name)


def arguments_of(folder: Path) -> list[str]:
    return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]


def host_of(name: str, scratch: Path) -> Host:
    """Return a machine by name, with a simulated driver for NVIDIA's and a simulated tegrastats for Jetsons."""
    machine = READY.get(name)
    if machine is None:
        return host_in(MACHINES / name, scratch)
    host = host_in(folder_of(name), scratch)
    environ = {**Simulator.of(scratch, machine).environ, **host.environ}
    return Host(host.roots, environ, golden_file(name), ["nvml", *host.waits_for])


def host_in(folder: Path, scratch: Path) -> Host:
    """Return the machine in a folder, with the drivers that are described in it."""
    environ: dict[str, str] = {}
    waits_for = []
    if (folder / NVML_STATE).exists():
        environ |= Simulator.of_state(scratch, (folder / NVML_STATE).read_text()).environ
        waits_for.append("nvml")
    if (folder / "tegrastats").exists():
        environ |= Tegrastats.of(scratch, folder.name).environ
        waits_for.append("tegrastats")
    return Host(arguments_of(folder), environ, folder / "metrics.txt", waits_for)


def exported(daemon: RunningDaemon, waits_for: Sequence[str] = ()) -> str:
    """Return the stable part of /metrics once every collector has started."""
    daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
    for name in waits_for:
        daemon.wait_until_ok(name)
    return stable_part(daemon.get("/metrics").text)


def stable_part(exposition: str) -> str:
    """Return the lines that are the same in every run, and their HELP and TYPE lines."""
    lines = exposition.splitlines(keepends=True)
    stable = [line for line in lines if not line.startswith(VOLATILE) and " process_" not in line]
    return "".join(line for line in stable if family_of(line) != OF_INCIDENTS)


def family_of(line: str) -> str:
    """Return the metric name in a sample, or in a HELP or TYPE line."""
    return line.split()[2] if line.startswith("#") else re.split("[{ ]", line, maxsplit=1)[0]


def by_family(text: str) -> dict[str, str]:
    """Return the lines of each family, in the order of the text."""
    found: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        found[family_of(line)] = found.get(family_of(line), "") + line
    return found


def samples_of(exposition: str) -> str:
    return "".join(line for line in exposition.splitlines(keepends=True) if not line.startswith("#"))


def with_help(samples: str) -> str:
    """Return the exposition as sent by the daemon: HELP and TYPE lines before the samples of each family."""
    known, found = by_family(HELP.read_text()), by_family(samples)
    return "".join(head + found.get(name, "") for name, head in known.items() if name in found or name in ALWAYS)


def help_of(expositions: Iterable[str]) -> str:
    """Return HELP and TYPE lines of all families once, in an order that agrees with each exposition."""
    heads: dict[str, str] = {}
    order: TopologicalSorter[str] = TopologicalSorter()
    for exposition in expositions:
        found = by_family("".join(line for line in exposition.splitlines(keepends=True) if line.startswith("#")))
        heads |= found
        for before, after in pairwise(found):
            order.add(after, before)
    return "".join(heads[name] for name in order.static_order())
