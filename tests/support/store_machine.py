"""Machine whose history is stored in a folder, across restarts."""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.model import Process
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.history.writer import HistoryWriter
from memwatch_monitor.loop import Monitor
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, history
from support.open_things import close_at_end
from support.waiting import wait_until

USED = "pool.ram.used_bytes"


SIZE = 4 << 20


BOOTS = ("5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e", "11111111-2222-3333-4444-555555555555")


HOG = Process(4242, 1.0, "hog", 7 * GIB, 7 * GIB, "rss", user="ada", unit=None, container=None)


class Machine(Struct):
    """Machine that runs for a while, is killed or stopped, and starts again with the same state folder."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    boot: str = BOOTS[0]
    flush_seconds: float = 3600.0
    size: int = SIZE

    def start(self) -> Running:
        self.folder.mkdir(exist_ok=True)
        memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),), processes=(HOG,)))
        sampler = Sampler([CollectorEntry("meminfo", lambda: memory, False)], self.clock)
        monitor = create_monitor(sampler, self.clock, MonitorRules(), Identity("spark-1", self.boot))
        history_writer = HistoryWriter(self.folder, self.size, self.clock, self.boot, self.flush_seconds)
        history(monitor).use_writer(history_writer)
        return close_at_end(Running(self, monitor, history_writer, memory))

    def reboot(self, off_seconds: float = 60.0) -> None:
        """Reboot: boot time starts again; the wall clock continues, if it is right."""
        wall = self.clock.wall() + off_seconds
        self.clock = FakeClock(now=20.0, wall_offset=wall - 20.0)
        self.boot = BOOTS[1] if self.boot == BOOTS[0] else BOOTS[0]


class Running(Struct):
    machine: Machine
    monitor: Monitor
    keeper: HistoryWriter
    memory: FakeCollector

    def tick(self, used: float, seconds: float = 1.0) -> None:
        """Run one tick with this much of 64 GiB used, then let time pass."""
        self.memory.findings = replace(self.memory.findings, pools=(ram(int(used)),))
        self.monitor.tick()
        self.machine.clock.now += seconds

    def flush(self) -> None:
        """Have the writer's thread write the rows that are not on disk yet: only it may write to the files.

        It takes a second request after it has written all of the first.
        """
        for _ in range(2):
            with self.keeper._changed:
                self.keeper._flush_now = True
                self.keeper._changed.notify_all()
            wait_until(lambda: not self.keeper._flush_now)
        assert self.keeper._next[0] == history(self.monitor).tiers.tiers[0].added

    def kill(self) -> None:
        """Leave the files as after SIGKILL, in their current state. The machine continues with these."""
        left = Path(f"{self.machine.folder}-")
        shutil.copytree(self.machine.folder, left, symlinks=True)
        self.keeper.stop(30.0)
        self.machine.folder = left

    def close(self) -> None:
        """End the threads, and close the files."""
        self.keeper.stop(30.0)

    def values(self) -> list[float]:
        return [value for _, value in history(self.monitor).tiers.since(USED, -1e12)]

    def events(self) -> list[tuple[str, str]]:
        return [(event.kind, event.text) for event in self.monitor.events.since(0)]
