"""Play a scripted incident through the real loop: findings in, incidents out.

The sizes of processes are known to the loop as on a machine: from a scan every ten seconds, or every second above
60 % of use. Lines of the kernel and of services go through their parsers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.budget import Account
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.collectors.journal import KillLineTracker
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import ProcessEnd
from memwatch.core.linux.cgroup_kills import CgroupKill, CgroupKills
from memwatch.core.linux.kmsg_parser import KernelLogTracker
from memwatch.core.model import Absent, Content, Device, Pool, PoolKind, Process, Quality, Share, ShareKind
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Kernel, MemoryPsi, PsiLine
from memwatch.reporting.incidents.records import Incident
from memwatch_monitor.feature import MonitorRules
from support.fakes import FakeClock, FakeCollector
from support.monitors import create_monitor, incidents

GIB = 1 << 30
Points = tuple[tuple[float, float], ...]
T = TypeVar("T", bound=tuple[Any, ...])
BEGAN = 1_700_000_000.0
# An incident is complete so long after the end of its script.
COMPLETE_SECONDS = 240.0


class Actor(Struct, frozen=True):
    """A process. `sizes`: GiB by second, interpolated; it starts with the first point and ends with the last.

    `gpu`: its memory is that of a GPU, in the pool or share of that name.
    """

    pid: int
    name: str
    sizes: Points
    unit: str | None = None
    container: str | None = None
    pod: str | None = None
    gpu: str = ""

    def at(self, second: float) -> int | None:
        if not self.sizes[0][0] <= second <= self.sizes[-1][0]:
            return None
        return int(interpolate(self.sizes, second) * GIB)

    def process(self, second: float) -> Process | None:
        size = self.at(second)
        if size is None:
            return None
        rss = 200 << 20 if self.gpu else size
        started = 1000.0 + BEGAN + self.sizes[0][0] - (86_400 if self.sizes[0][0] == 0 else 0)
        held = {self.gpu: size} if self.gpu else {}
        return Process(
            self.pid,
            started,
            self.name,
            rss,
            rss + sum(held.values()),
            "rss",
            user="ada",
            unit=self.unit,
            container=self.container,
            pod=self.pod,
            device_bytes=held,
        )


class Truth(Struct, frozen=True):
    """The right answer. `culprit`: PID, or a container or unit, or None if it cannot be decided."""

    kind: str
    culprit: int | str | None
    killer: str | None = None
    victim: int | str | None = None


class Scenario(Struct, frozen=True):
    """A scripted incident. Times are seconds from its start, sizes GiB.

    `other`: memory of no actor. `unattributed`: its part that no process is listed with. `kernel`, `logs`: log
    lines. `ends`: ends that the kernel reports. `oom_kills`: times at which its counter rises, `cgroup_kills`:
    those at which the counters of a cgroup do.
    """

    name: str
    source: str
    size: float
    actors: tuple[Actor, ...]
    truth: Truth
    seconds: float = 60.0
    other: Points = ((0.0, 2.0),)
    unattributed: Points = ()
    cache: Points = ((0.0, 1.0),)
    stalls: Points = ()
    kernel: tuple[tuple[float, str], ...] = ()
    logs: tuple[tuple[float, str, str], ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    ends: tuple[tuple[float, int, int | None], ...] = ()
    oom_kills: tuple[float, ...] = ()
    cgroup_kills: tuple[tuple[float, CgroupKill], ...] = ()
    shares: tuple[Share, ...] = ()
    vram: float = 0.0
    unified: bool = False
    lost_gpu: float | None = None
    gap: tuple[float, float] | None = None
    step: float = 1.0
    kernel_log_is_read: bool = True


def interpolate(points: Points, second: float) -> float:
    before = points[0]
    for point in points:
        if point[0] >= second:
            span = point[0] - before[0]
            return point[1] if not span else before[1] + (point[1] - before[1]) * (second - before[0]) / span
        before = point
    return before[1]


class ScriptedEnds:
    """Source of ends that the script sets."""

    def __init__(self, script: Scenario, clock: FakeClock) -> None:
        self.ended: dict[int, float | Absent] = {}
        self._waiting = list(script.ends)
        self._clock, self._zero = clock, clock.now

    def follow(self, processes: Sequence[Process]) -> None: ...

    def take(self) -> tuple[ProcessEnd, ...]:
        now = self._clock.now - self._zero
        due = [one for one in self._waiting if one[0] <= now]
        self._waiting = [one for one in self._waiting if one[0] > now]
        return tuple(ProcessEnd(pid, BEGAN + self._zero + at, status) for at, pid, status in due)


class Player:
    """One machine that plays a script."""

    def __init__(self, script: Scenario) -> None:
        self.script = script
        self.clock = FakeClock(wall_offset=BEGAN)
        self._kernel, self._services = KernelLogTracker(), KillLineTracker()
        self._scanned_at, self._processes = -1e9, ()  # type: tuple[float, tuple[Process, ...]]
        self._source = FakeCollector("meminfo")
        sampler = Sampler([CollectorEntry("meminfo", lambda: self._source, False)], self.clock)
        self.monitor = create_monitor(sampler, self.clock, MonitorRules(), Identity("spark-1", "boot-1"))
        incidents(self.monitor).ended.ends = ScriptedEnds(script, self.clock)
        self._zero = self.clock.now

    def play(self, after: float = 90.0) -> list[Incident]:
        """Play the script and some time after it. Return the incidents, oldest first, with their timelines."""
        second, total = 0.0, self.script.seconds + after
        while second <= total:
            gap = self.script.gap
            if gap is None or not gap[0] < second < gap[1]:
                self.tick(second)
            second += self.script.step
        found = incidents(self.monitor).log
        whole = [found.find(one.id) for one in reversed(found.heads())]
        return [one for one in whole if one is not None]

    def tick(self, second: float) -> None:
        self.clock.now = self._zero + second
        for at, line in self._due(self.script.kernel, second):
            self._kernel.read(line.encode(), BEGAN + self._zero + at)
        for at, unit, text in self._due(self.script.logs, second):
            self._services.read(unit, text, BEGAN + self._zero + at)
        for at, text in self._due(self.script.marks, second):
            self.monitor.events.mark(BEGAN + self._zero + at, text, Account("uid 1000"))
        self._source.findings = self.findings(second)
        self.monitor.tick()

    def _due(self, lines: tuple[T, ...], second: float) -> list[T]:
        return [one for one in lines if second - self.script.step < one[0] <= second]

    def findings(self, second: float) -> Findings:
        script = self.script
        living = [process for actor in script.actors if (process := actor.process(second)) is not None]
        held = sum(actor.at(second) or 0 for actor in script.actors if not actor.gpu or script.unified)
        other = int(interpolate(script.other, second) * GIB)
        size, used = int(script.size * GIB), held + other
        used = min(used, size)
        if second - self._scanned_at >= (1.0 if used > 0.6 * size else 10.0):
            self._scanned_at, self._processes = second, tuple(living)
        found = Findings(
            pools=(self._ram(second, size, used),),
            processes=self._processes,
            kernel=Kernel(oom_kills_total=sum(at <= second for at in script.oom_kills)),
            kernel_log=self._kernel.log if script.kernel_log_is_read else None,
            shares=script.shares,
            service_kills=self._services.kills,
            cgroup_kills=self._scan(second),
        )
        if script.stalls:
            ratio = interpolate(script.stalls, second)
            line = PsiLine(ratio, ratio, ratio, second)
            found = replace(found, psi=MemoryPsi(line, PsiLine(ratio / 2, 0.0, 0.0, second / 2)))
        return self._with_gpu(found, second)

    def _scan(self, second: float) -> CgroupKills | None:
        """Return the counters of cgroups, which are read a tick after the kill was counted."""
        counted = sum(at + self.script.step <= second for at in self.script.oom_kills)
        found = tuple(kill for at, kill in self.script.cgroup_kills if at + self.script.step <= second)
        number = found[-1].number if found else 0
        return CgroupKills(counted, number, found) if self.script.cgroup_kills else None

    def _ram(self, second: float, size: int, used: int) -> Pool:
        unattributed = int(interpolate(self.script.unattributed, second) * GIB) if self.script.unattributed else 0
        cache = min(int(interpolate(self.script.cache, second) * GIB), size - used)
        contents = {
            "anonymous": used - unattributed,
            "unattributed": unattributed,
            "page_cache": cache,
            "free": size - used - cache,
        }
        return Pool(
            "ram",
            PoolKind.SYSTEM_RAM,
            "System RAM",
            size,
            used,
            size - used,
            "test",
            Quality.MEASURED,
            free_bytes=size - used - cache,
            unattributed_bytes=unattributed,
            contents=tuple(Content(kind, part) for kind, part in contents.items()),
        )

    def _with_gpu(self, found: Findings, second: float) -> Findings:
        script = self.script
        held = sum(actor.at(second) or 0 for actor in script.actors if actor.gpu)
        if script.unified:
            share = Share(
                "cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", held, "nvml", Quality.MEASURED, device="gpu0"
            )
            return replace(found, shares=(share,))
        if not script.vram:
            return found
        size = int(script.vram * GIB)
        pool = Pool(
            "gpu0.vram",
            PoolKind.VRAM,
            "gpu0 VRAM",
            size,
            min(held, size),
            max(0, size - held),
            "nvml",
            Quality.MEASURED,
        )
        is_lost = script.lost_gpu is not None and second >= script.lost_gpu
        device = Device(
            "gpu0",
            "nvidia",
            "NVIDIA RTX 4090",
            "discrete",  # type: ignore[arg-type]
            allocates_from=("gpu0.vram",),
            state="lost" if is_lost else "ok",
            errors={"xid_79": 1} if is_lost else {},
        )
        return replace(found, pools=(*found.pools, pool), devices=(device,))
