"""Run 129,600 ticks (a day and a half) in four minutes: the daemon's parts on a simulated clock.

PYTHONPATH=tests python tests/faults/day.py FOLDER URL [HOURS]

FOLDER simulates a machine: memory fills up twice an hour, the GPU is loaded and unloaded, and processes start and
end. The settings are reloaded a hundred times a day. Collectors with their own thread run on the tick instead, so
every run is the same. The disk, SQLite and the receiver at URL are real. Prints one JSON line per simulated hour.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

from msgspec.structs import asdict, replace

from memwatch.core.linux.files import Roots
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.sampler import Gatherer, Sampler
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.history.writer import HistoryWriter
from memwatch_monitor.loop import Monitor
from memwatch_web.metrics.families import Exporter, negotiate_format
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from scripts.soak import Reading, figure_in
from support.daemon_process import descriptors
from support.fakes import FakeClock
from support.monitors import alerting, history
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_samples import SECRET

HOUR, RELOADS = 3600, 100
FULL_EVERY, FULL_FROM, FULL_UNTIL = 1800, 600, 900
SETTINGS = """
[sampling]
procfs = "{folder}/proc"
sysfs = "{folder}/sys"
rootfs = "{folder}/root"
[state]
dir = "{folder}/state"
[history]
medium_length = "6h"
coarse_length = "12h"
disk_size = "8MiB"
[processes]
metrics = true
top = {top}
[collectors]
nvml.enabled = false
amdsmi.enabled = false
amd_cli.enabled = false
tegra.enabled = false
nvmap.enabled = false
tegrastats.enabled = false
containers.enabled = false
[[alerts.webhooks]]
name = "site"
url = "{url}"
secret = "{secret}"
"""


class Day(Daemon):
    """The daemon without its clock, collector threads and web server."""

    clock: FakeClock

    def _monitor_machine(self, roots: Roots) -> tuple[Monitor, Gatherer]:
        self.clock = FakeClock()
        listed = wiring.list_enabled_collectors(self.settings)
        sampler = Sampler([replace(entry, may_block=False) for entry in listed], self.clock)
        rules, identity = wiring.build_rules(self.settings), read_identity(roots)
        return Monitor(sampler, self.clock, rules, identity, reports=AllocatorReports(roots.procfs)), sampler

    def first_tick(self) -> None:
        assert self.state.folder is not None
        size, boot = self.settings.history.disk_size, self.monitor.identity.boot_id
        history(self.monitor).use_writer(
            HistoryWriter(self.state.folder, size, self.clock, boot, flush_seconds=0.05)
        )
        self.monitor.tick()


class Machine:
    """The machine's folder and its changes during the day."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(MACHINES / "rx-7900-xtx", folder, symlinks=True, dirs_exist_ok=True)
        self._meminfo = folder / "proc/meminfo"
        self._text = self._meminfo.read_text()
        self._vram = next(folder.glob("sys/devices/**/mem_info_vram_used"))
        self._processes = [folder / "proc" / pid for pid in ("5230", "4821")]
        self._next_pid = 10_000

    def live(self, second: int) -> None:
        if second % 10 == 0:
            full = FULL_FROM <= second % FULL_EVERY < FULL_UNTIL
            available = 1_000_000 + second % 7 * 1000 if full else 40_000_000 + second % 3600 * 1000
            text = re.sub(r"(MemAvailable: )[ 0-9]+", rf"\g<1>{available:>12} ", self._text)
            self._write(self._meminfo, text)
            self._write(self._vram, f"{(second % 1200) * 15 << 20:<20}\n")
        if second % 30 == 0:
            moved = self._processes.pop(0)
            self._next_pid += 1
            self._processes.append(moved.rename(moved.with_name(str(self._next_pid))))

    def _write(self, file: Path, text: str) -> None:
        """Write in place with the same length: the daemon keeps kernel files open."""
        with file.open("r+b", buffering=0) as opened:
            opened.write(text.encode())


def read(ticks: int, began: float) -> Reading:
    rss, anonymous, threads = (figure_in(os.getpid(), name) for name in ("VmRSS", "RssAnon", "Threads"))
    count = descriptors(os.getpid())
    return Reading(time.monotonic() - began, ticks, rss << 10, anonymous << 10, count, threads)


def wait_until_delivered(daemon: Day) -> None:
    """Wait for the network, as the clock runs a thousand times too fast."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while alerting(daemon.monitor).receivers[0].pending():
        assert time.monotonic() < until, "a message was not delivered"
        time.sleep(0.001)


def run(folder: Path, url: str, hours: int) -> None:
    machine, file = Machine(folder), folder / "settings.toml"

    def write_settings(number: int) -> None:
        file.write_text(SETTINGS.format(folder=folder, url=url, secret=SECRET, top=10 + number % 2))
        file.chmod(0o600)

    write_settings(0)
    daemon = Day(load({"config": str(file)}, {}), lambda _: load({"config": str(file)}, {}))
    exporter = Exporter("0", daemon.monitor.features, lambda: 10)
    encode, _ = negotiate_format("")
    daemon.start()
    daemon.first_tick()
    began = time.monotonic()
    for second in range(1, hours * HOUR + 1):
        machine.live(second)
        daemon.clock.now += 1.0
        snapshot = daemon.monitor.tick()
        wait_until_delivered(daemon)
        if second % 15 == 0:
            exporter.render(snapshot, encode)
        if second % 60 == 0:
            to_bytes(snapshot_json(snapshot))
        if second % (24 * HOUR // RELOADS) == 0:
            write_settings(second)
            daemon.reload()
        if second % HOUR == 0:
            report(daemon, read(second, began), folder)
    daemon.stop()


def report(daemon: Day, reading: Reading, folder: Path) -> None:
    size = sum(file.stat().st_size for file in (folder / "state").glob("*.ring"))
    full = [len(tier) for tier in history(daemon.monitor).tiers.tiers]
    states = sorted({one.state for one in daemon.monitor.latest.collectors}) if daemon.monitor.latest else []
    print(json.dumps({**asdict(reading), "disk_bytes": size, "rows": full, "states": states}), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 36)
