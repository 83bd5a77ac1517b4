"""Exports of each simulated machine, made once in this process: its snapshot, its JSON and its metrics.

A daemon's parts run as the daemon connects them, with two differences: the clock is manual, and each tick runs all
collectors, also those that have a thread in a daemon. The NVIDIA driver is read in another process, once for all
machines: see `nvml_readings`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import generate_latest

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import BaseCollector, Collector, CollectorEntry, Host
from memwatch.core.collectors.tegra import TegrastatsCollector
from memwatch.core.drivers.tegra.tegrastats import parse_line
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots
from memwatch.core.linux.gpu_presence import is_nvidia_here
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.sampler import Gatherer, Sampler
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch.library.local_reading import NOT_NEEDED
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.loop import Monitor
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from memwatchd.settings.schema import Settings
from simulators.nvml_readings import RecordedNvml, read_all
from simulators.nvml_state_file import state_file
from simulators.sample_nvml import READY
from support.fakes import FakeClock
from support.machine_folders import NAMES, NVML_STATE
from support.paths import MACHINES

TICKS = 3
# Every second a tick, so that collectors with a period of 10 s run once and the others at each tick.
INTERVAL_SECONDS = 1.0


class Export(Struct, frozen=True):
    """Output of a daemon on the machine after three ticks. `metrics` is all of /metrics."""

    snapshot: Snapshot
    json: Any
    metrics: str


class Source(Struct, frozen=True):
    """A machine: its folder, and the response of its NVML helper if it has a GPU by NVIDIA."""

    folder: Path
    nvml: bytes | None = None

    @property
    def roots(self) -> Roots:
        return Roots(self.folder / "proc", self.folder / "sys", self.folder / "root")


class RecordedTegrastats(BaseCollector):
    """The tegrastats collector with a recorded line of the program."""

    name = TegrastatsCollector.name

    def __init__(self, line: bytes) -> None:
        super().__init__(Roots())
        self._line = line

    def collect(self) -> Findings:
        return Findings(tegrastats=parse_line(self._line))


class _MachineDaemon(Daemon):
    """Daemon without threads, for one machine."""

    def __init__(self, source: Source, settings: Settings, left_out: frozenset[str]) -> None:
        self._source, self._left_out = source, left_out
        self.clock = FakeClock()
        super().__init__(settings, lambda _: settings)

    def _monitor_machine(self, roots: Roots) -> tuple[Monitor, Gatherer]:
        host = wiring.build_host(self.settings)
        entries = list_collectors(host, self._left_out | self.settings.collectors.disabled)
        sampler = Sampler([_entry_of_a_tick(entry, self._source, host) for entry in entries], self.clock)
        identity, reports = read_identity(roots), AllocatorReports(roots.procfs)
        return Monitor(sampler, self.clock, self.live.rules, identity, reports=reports), sampler

    def tick(self) -> Snapshot:
        self.clock.now += INTERVAL_SECONDS
        return self.monitor.tick()

    @property
    def latest(self) -> Snapshot:
        assert self.monitor.latest is not None
        return self.monitor.latest

    def close(self) -> None:
        self.stop()


def _entry_of_a_tick(entry: CollectorEntry, source: Source, host: Host) -> CollectorEntry:
    """Return an entry that runs on ticks. Collectors that would start a program have recorded data."""
    make: Callable[[], Collector] = entry.make
    line = source.folder / "tegrastats"
    if entry.name == RecordedNvml.name and source.nvml is not None:
        make = partial(RecordedNvml, host.roots, host.gpu_pids, source.nvml)
    elif entry.name == RecordedTegrastats.name and line.exists():
        make = partial(RecordedTegrastats, line.read_bytes())
    return replace(entry, make=make, may_block=False)


@contextmanager
def machine_daemon(
    source: Source, left_out: frozenset[str] = frozenset(), **environ: str
) -> Iterator[_MachineDaemon]:
    """Yield the daemon of a machine after three ticks.

    `left_out`: collectors that it does not have. `environ`: settings by the names of the environment.
    """
    roots = source.roots
    flags = {"procfs": roots.procfs, "sysfs": roots.sysfs, "rootfs": roots.rootfs, "interval": "1s"}
    settings = load({flag: str(value) for flag, value in flags.items()}, environ, default_file=Path("/nonexistent"))
    with closing(_MachineDaemon(source, settings, left_out)) as daemon:
        daemon.config.started(settings)
        for _ in range(TICKS):
            daemon.tick()
        yield daemon


def export_source(source: Source) -> Export:
    with machine_daemon(source) as daemon:
        snapshot = daemon.latest
        metrics = daemon.exporter().render(snapshot, generate_latest).decode()
    return Export(snapshot, json.loads(to_bytes(snapshot_json(snapshot))), metrics)


def export_folder(folder: Path) -> Export:
    """Return the export of a machine folder, with the NVIDIA driver that its state file describes."""
    machine = (described_driver(folder), Source(folder).roots)
    return export_source(Source(folder, read_all({folder.name: machine})[folder.name]))


def described_driver(folder: Path) -> str | None:
    return (folder / NVML_STATE).read_text() if (folder / NVML_STATE).exists() else None


def folder_of(name: str) -> Path:
    """Return the folder of a machine. Some simulated drivers share one."""
    return MACHINES / (READY[name].host or name) if name in READY else MACHINES / name


@cache
def nvml_responses() -> Mapping[str, bytes]:
    """Return the response of the NVML helper for each machine that has a GPU by NVIDIA."""
    states = {name: described_driver(MACHINES / name) for name in NAMES}
    states |= {name: state_file(machine) for name, machine in READY.items()}
    machines = {name: (state, Source(folder_of(name)).roots) for name, state in states.items()}
    return read_all({name: (state, roots) for name, (state, roots) in machines.items() if is_nvidia_here(roots)})


def read_alone(name: str) -> Snapshot:
    """Return the machine as the library reads it without a daemon, by its name in `golden.RUN_HERE`."""
    with machine_daemon(Source(folder_of(name), nvml_responses().get(name)), NOT_NEEDED) as daemon:
        return daemon.latest


@cache
def export_of(name: str) -> Export:
    """Return the export of a machine by its name in `golden.RUN_HERE`."""
    return export_source(Source(folder_of(name), nvml_responses().get(name)))
