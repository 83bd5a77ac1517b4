"""Measure machines that serve models, all at the same time and beside other monitors: CPU, wake-ups, memory, disk.

Each machine runs three times: with a PSI trigger of 0.5 s (CAP_SYS_RESOURCE), without the right (a trigger of 2 s),
and without PSI. All run at once, so that other work on the host is charged to all alike.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

from bench_machines import READERS, bare_reader
from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from peers import subjects
from sheet import Column, Sheet
from subjects import MIB, children_of, pss_mib, rss_mib, running, spent, written_bytes

from simulators import sample_nvml, sample_nvml_integrated
from simulators.nvml_machine import LOG, Simulator
from simulators.nvml_state import Machine
from simulators.tegra_machine import Tegrastats
from support.daemon_process import WITHOUT_COVERAGE, running_daemon
from support.engine_servers import engine_process
from support.moving_memory import CopiedMachine
from support.paths import MACHINES, ROOT
from support.process_folders import add_process, stat_line, statm_line

# Hardware that is missing at the start is looked for again after 10 and 30 s.
SETTLE_SECONDS, STRETCH_SECONDS = 45.0, 10.0
SERVER_PROCESSES, FIRST_PID = 300, 60_000
PACKAGES = ("daemon/memwatch", "daemon/memwatch_monitor", "daemon/memwatchd", "web/memwatch_web")
KERNEL_FILE = Path("/proc/pressure/memory")
TRIGGER, UNIT, NO_PSI = "0.5 s trigger", "default unit", "no PSI"
PEERS = ("node_exporter, memory", "node_exporter, default", "collectd, memory")


class Spec(Struct, frozen=True):
    """Kind of machine. `engine`: a vLLM serves on it. `moves`: 1 GiB of its memory moves all the time.

    `state`: the daemon has a state folder, as that of the unit has.
    """

    name: str
    machine: str
    used: float
    driver: Machine | None = None
    engine: bool = False
    moves: bool = False
    processes: int = 0
    tegrastats: bool = False
    state: bool = True


SPARK, SERVER = sample_nvml_integrated.GB10, sample_nvml.EIGHT_H100
AUDIENCE = (
    Spec("DGX Spark, 85 % used, serves a model", "gb10", 0.85, SPARK, engine=True),
    Spec("Jetson AGX Orin, 85 % used", "jetson-agx-orin-jp6", 0.85, tegrastats=True),
    Spec(
        "8 H100, 85 % used, serves a model, 300 processes",
        "8x-h100",
        0.85,
        SERVER,
        engine=True,
        processes=SERVER_PROCESSES,
    ),
)
SPARKS = (
    Spec("DGX Spark, 40 % used, idle", "gb10", 0.40, SPARK),
    Spec("DGX Spark, 64 % used, at rest", "gb10", 0.64, SPARK),
    Spec("DGX Spark, 85 % used, at rest", "gb10", 0.85, SPARK),
    Spec("DGX Spark, 92 % used, at rest", "gb10", 0.92, SPARK),
    Spec("DGX Spark, 85 % used, at rest, without a state folder", "gb10", 0.85, SPARK, state=False),
    Spec("DGX Spark, 64 % used, 1 GiB moves ten times a second", "gb10", 0.64, SPARK, moves=True),
)


class Watched(Struct, frozen=True):
    """Main process of a daemon or of a peer."""

    pid: int


class Seen(Struct, frozen=True):
    """Least CPU of the stretches in % of a core, median wake-ups a second, MiB, and bytes written a day."""

    percent: float
    wakeups: float
    rss_mib: float
    helper_mib: float
    written_mb_a_day: float


def start_daemon(stack: ExitStack, spec: Spec, psi: str, engine_port: int) -> Watched:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"))))
    folder.chmod(0o755)
    machine = CopiedMachine(MACHINES / spec.machine, folder / "machine")
    machine.use(spec.used)
    use_psi(folder / "machine/proc/pressure/memory", psi)
    add_processes(folder / "machine/proc", spec.processes)
    environ = {**WITHOUT_COVERAGE, **drivers_of(spec, folder)}
    config = engine_config(engine_port) if spec.engine else ""
    daemon = stack.enter_context(
        running_daemon(
            folder,
            *machine.roots,
            "--log-level=error",  # the lines of a log are no part of the figures
            *([f"--state-dir={folder / 'state'}"] if spec.state else []),
            config=config,
            environ=environ,
            without_privileges=psi == UNIT,
        )
    )
    if spec.moves:
        stack.enter_context(machine.moving())
    return Watched(daemon.pid)


def use_psi(file: Path, psi: str) -> None:
    """Give the machine this kernel's PSI file, which has triggers, or none."""
    if psi == NO_PSI:
        shutil.rmtree(file.parent)
    else:
        file.unlink()
        file.symlink_to(KERNEL_FILE)


def add_processes(procfs: Path, count: int) -> None:
    for pid in range(FIRST_PID, FIRST_PID + count):
        files = {"cgroup": b"0::/system.slice/job%d.service\n" % (pid % 40), "statm": statm_line(5000)}
        add_process(procfs, stat_line(pid, "worker", 5000), **files)


def drivers_of(spec: Spec, folder: Path) -> Mapping[str, str]:
    if spec.driver is not None:
        environ = Simulator.of(folder, spec.driver).environ
        return {name: value for name, value in environ.items() if name != LOG}  # its log is no part of the figures
    return Tegrastats.of(folder, spec.machine).environ if spec.tegrastats else {}


def engine_config(port: int) -> str:
    return f'[[engines]]\nname = "server"\nkind = "vllm"\nurl = "http://127.0.0.1:{port}"\n'


def with_helper(watched: Watched) -> list[int]:
    """Return the daemon and its helper. tegrastats is NVIDIA's, and here a simulation in Python."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(watched.pid)}
    return [watched.pid, *(pid for pid, words in names.items() if b"tegrastats" not in words)]


def watch(groups: Mapping[str, Watched], seconds: float) -> dict[str, Seen]:
    """Return the figures of all groups over the same stretches of ten seconds."""
    pids = {name: with_helper(one) for name, one in groups.items()}
    written = {name: sum(map(written_bytes, of)) for name, of in pids.items()}
    began, last = time.monotonic(), {name: spent(of) for name, of in pids.items()}
    percents: dict[str, list[float]] = {name: [] for name in groups}
    wakeups: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(max(1, round(seconds / STRETCH_SECONDS))):
        at = time.monotonic()
        time.sleep(STRETCH_SECONDS)
        now, passed = {name: spent(of) for name, of in pids.items()}, time.monotonic() - at
        for name in groups:
            percents[name].append((now[name][0] - last[name][0]) / passed * 100)
            wakeups[name].append((now[name][1] - last[name][1]) / passed)
        last = now
    a_day = 86_400 / (time.monotonic() - began) / 1e6
    return {
        name: Seen(
            min(percents[name]),
            statistics.median(wakeups[name]),
            rss_mib(of[0]),
            sum(map(pss_mib, of[1:])),
            (sum(map(written_bytes, of)) - written[name]) * a_day,
        )
        for name, of in pids.items()
    }


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add the distribution and those that it needs here to `found`, without extras."""
    one = distribution(name)
    found[canonicalize_name(name)] = one
    for requirement in map(Requirement, one.requires or ()):
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and canonicalize_name(requirement.name) not in found:
            needed(requirement.name, found)
    return found


def size_of(one: Distribution) -> int:
    """Return the bytes of its files, without byte code."""
    files = [Path(str(one.locate_file(file))) for file in one.files or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file())


@cache
def installed_mib() -> float:
    """Return the size of the program with its dependencies, without byte code and the interpreter."""
    others = needed("memwatchd", {})
    ours = sum(
        file.stat().st_size
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    )
    return (ours + sum(size_of(one) for name, one in others.items() if not name.startswith("memwatch"))) / MIB


def bench_rest(sheet: Sheet, seconds: float) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(engine_process("vllm"))
        groups = {
            f"{spec.name}\n{psi}": start_daemon(stack, spec, psi, port)
            for spec in (*AUDIENCE, *SPARKS)
            for psi in (TRIGGER, UNIT, NO_PSI)
        }
        for number in range(READERS):
            groups[f"reader {number}"] = Watched(stack.enter_context(bare_reader()))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for subject in subjects(scratch):
            if subject.name in PEERS:
                groups[subject.name] = Watched(stack.enter_context(running(subject))[0])
        time.sleep(SETTLE_SECONDS)
        waited = stalled_seconds()
        found = watch(groups, seconds)
        waited = stalled_seconds() - waited
    print_rest(sheet, found)
    sheet.end(
        f"Tasks of this machine waited {1000 * waited:.0f} ms for memory meanwhile. "
        "If it is more than 0, the triggers rang, and the daemons with one looked more often.",
        "",
    )


def stalled_seconds() -> float:
    """Return how long tasks of this machine have waited for memory since boot; 0 without PSI."""
    found = (
        re.search(r"^some .*total=(\d+)", KERNEL_FILE.read_text(), re.MULTILINE) if KERNEL_FILE.exists() else None
    )
    return int(found[1]) / 1e6 if found else 0.0


def print_rest(sheet: Sheet, found: Mapping[str, Seen]) -> None:
    bare = statistics.mean(found[f"reader {number}"].percent for number in range(READERS))
    per_kind = [
        column
        for psi in (TRIGGER, UNIT, NO_PSI)
        for column in (
            Column(f"CPU %, {psi}", ".3f"),
            Column(f"× a bare read, {psi}"),
            Column(f"wake-ups/s, {psi}"),
        )
    ]
    memory = Column("RSS MiB"), Column("helper PSS MiB"), Column("written MB/day", ".0f")
    sheet.head("rest", "with its helper, no client", *per_kind, *memory, Column("installed MiB", ".0f"))
    for spec in (*AUDIENCE, *SPARKS):
        own = [found[f"{spec.name}\n{psi}"] for psi in (TRIGGER, UNIT, NO_PSI)]
        cells = [cell for one in own for cell in (one.percent, one.percent / bare, one.wakeups)]
        unit = own[1]
        sheet.row(spec.name, *cells, unit.rss_mib, unit.helper_mib, unit.written_mb_a_day, installed_mib())
    others = len(per_kind) - 3
    for name in (*(peer for peer in PEERS if peer in found), "reader 0"):
        one = found[name]
        words = "bare read of four files" if name == "reader 0" else name
        sheet.row(
            words, None, None, None, one.percent, one.percent / bare, one.wakeups, *[None] * (others - 3),
            one.rss_mib, None, None, None, is_ours=False,
        )  # fmt: skip
