"""A reading of a machine: collect, count kills, judge, compose a snapshot. The loop composes its ticks here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.clock import Clock, Moment, SystemClock
from memwatch.core.collectors import COLLECTORS
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import NOT_PERMITTED, Roots
from memwatch.core.model import Absent, AllocatorReport
from memwatch.core.pressure.inputs import collect_inputs, ram_used_ratio
from memwatch.core.pressure.judge import JudgeState, judge
from memwatch.core.pressure.oom_kills import NewKills, OomKillCount, count_new_kills
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.processes.unreturned import ReturnChanges, ReturnTracker
from memwatch.core.reading.identity import Identity, read_identity
from memwatch.core.reading.sampler import FIRST_SECONDS, Gatherer, Sampler
from memwatch.core.reading.schedule import Pace, next_pace, suspended_seconds
from memwatch.core.reading.self_usage import SelfUsageReader
from memwatch.core.snapshot import CollectorStatus, Machine, NeighbourStatus, Pressure, SelfUsage, Snapshot

# The fields that come from the findings unchanged.
COPIED = tuple(
    name for name in Snapshot.__struct_fields__ if name in Findings.__struct_fields__ and name != "tegrastats"
)
copied_of: attrgetter[tuple[Any, ...]] = attrgetter(*COPIED)
# The collector of each field that only one provides.
COLLECTOR_OF: Mapping[str, str] = {field: one.name for one in COLLECTORS for field in one.sole_fields}
# The collector of other systems than Linux; those above do not run there.
NOT_LINUX = "psutil_host"


class Additions(Struct, frozen=True):
    """Additions of a running daemon to a snapshot. A reading without a daemon has none of it.

    `lag_seconds`: lateness of the tick; `left_out`: entries beyond the maximum of lists that no collector has.
    """

    lag_seconds: float = 0.0
    claims: tuple[AllocatorReport, ...] = ()
    neighbours: tuple[NeighbourStatus, ...] = ()
    left_out: Mapping[str, int] = {}


NOTHING_ADDED = Additions()
# The cost of a daemon where there is none.
NO_USAGE = SelfUsage(Absent.NOT_AVAILABLE, 0.0, 0.0, 0.0, memory_locked=False)
Found = tuple[Findings, tuple[CollectorStatus, ...]]


class Reading(Struct, frozen=True):
    """A snapshot, the OOM kills since the reading before, and memory that was or was not returned.

    `awaits_kill`: a kill was counted, and its scope comes soon.
    """

    snapshot: Snapshot
    kills: NewKills
    awaits_kill: bool
    returns: ReturnChanges


class SnapshotComposer:
    """Composes snapshots, with the state of the readings before: levels, forecasts, OOM kills, memory of ended
    processes. Not thread-safe."""

    def __init__(self, identity: Identity, self_usage: SelfUsageReader | None = None) -> None:
        self.identity: Identity = identity
        self.self_usage: SelfUsageReader = self_usage or SelfUsageReader()
        self._judge_state, self._oom_kills = JudgeState(), OomKillCount()
        self._returns = ReturnTracker()
        self._seq = 0

    def restart(self, kills: OomKillCount | None = None) -> None:
        """Begin levels and forecasts again. `kills`: those counted before."""
        self._judge_state, self._oom_kills = JudgeState(), kills or OomKillCount()

    def compose(
        self,
        now: Moment,
        found: Found,
        rules: PressureRules,
        interval_seconds: float,
        resumed: bool,
        additions: Additions = NOTHING_ADDED,
    ) -> Reading:
        """Return the snapshot of what was found. `resumed`: the machine was suspended since the reading before."""
        findings = found[0]
        self._oom_kills, kills = count_new_kills(
            self._oom_kills,
            findings.kernel,
            findings.kernel_log,
            now.monotonic,
            ram_used_ratio(findings.pools),
            findings.cgroup_kills,
            findings.cgroup_oom_kills_total,
        )
        evidence = collect_inputs(findings, now.monotonic, rules, resumed, kills, additions.claims)
        pressure, self._judge_state = judge(evidence, self._judge_state, rules)
        self._seq += 1
        usage = self.self_usage.read(now.monotonic, additions.lag_seconds)
        snapshot = build_snapshot(
            self._seq, now, self.identity, found, interval_seconds, usage, pressure, additions
        )
        returns = self._returns.add(now.boottime, snapshot)
        if returns.current:
            snapshot = replace(snapshot, not_returned=returns.current)
        return Reading(snapshot, kills, self._oom_kills.owed > 0, returns)


class MemoryReader:
    """Reader of a machine without a daemon. Its snapshots have no levels, and no cost of a daemon.

    Its collectors stay open between readings. Not thread-safe.
    """

    def __init__(self, sampler: Gatherer, clock: Clock, identity: Identity, interval_seconds: float = 1.0) -> None:
        self._sampler, self._clock, self._identity = sampler, clock, identity
        self._interval_seconds = interval_seconds
        self._seq = 0

    def read(self) -> Snapshot:
        """Read the machine. The first reading starts the collectors and waits for drivers, up to FIRST_SECONDS."""
        now, found = self._gather()
        return build_snapshot(self._seq, now, self._identity, found, self._interval_seconds)

    def _gather(self) -> tuple[Moment, Found]:
        self._seq += 1
        if self._seq == 1:
            self._sampler.start()
            self._sampler.wait_for_first(FIRST_SECONDS)
        return Moment.of(self._clock), self._sampler.gather()

    def close(self) -> None:
        """End the threads and helper processes, and close all files."""
        self._sampler.close()


class MachineReader(MemoryReader):
    """Reader of a machine without a daemon, with levels, at the pace of a daemon."""

    def __init__(
        self,
        sampler: Gatherer,
        clock: Clock,
        identity: Identity,
        rules: PressureRules,
        interval_seconds: float,
    ) -> None:
        super().__init__(sampler, clock, identity, interval_seconds)
        self._composer = SnapshotComposer(identity)
        self._rules = rules
        self._before: Moment | None = None
        self._pace = Pace()

    def read(self) -> Snapshot:
        now, found = self._gather()
        resumed = self._before is not None and bool(suspended_seconds(self._before, now))
        self._before = now
        snapshot = self._composer.compose(now, found, self._rules, self._interval_seconds, resumed).snapshot
        self._pace = next_pace(self._pace, snapshot.pressure, now.monotonic)
        self._sampler.set_fast(self._pace.fast)
        return snapshot

    def close(self) -> None:
        super().close()
        self._composer.self_usage.close()


class DirectReading(Struct, frozen=True):
    """Collectors and rules for reading a machine. `replay` returns a snapshot of a recording instead."""

    roots: Roots
    collectors: Sequence[CollectorEntry]
    rules: PressureRules = PressureRules()
    interval_seconds: float = 1.0
    replay: Callable[[], Snapshot] | None = None

    def create_reader(self) -> MachineReader:
        clock = SystemClock()
        sampler = Sampler(self.collectors, clock)
        return MachineReader(sampler, clock, read_identity(self.roots), self.rules, self.interval_seconds)

    def snapshots(self) -> Generator[Snapshot, None, None]:
        """Yield a snapshot on each call of `next`. The collectors stay open in between."""
        with closing(self.create_reader()) as reader:
            while True:
                yield reader.read()


def read_machine(reading: DirectReading) -> Snapshot:
    """Read a machine once, and close its collectors."""
    if reading.replay is not None:
        return reading.replay()
    with closing(reading.create_reader()) as reader:
        return reader.read()


def build_snapshot(
    seq: int,
    now: Moment,
    identity: Identity,
    found: Found,
    interval_seconds: float,
    self_usage: SelfUsage = NO_USAGE,
    pressure: tuple[Pressure, ...] = (),
    additions: Additions = NOTHING_ADDED,
) -> Snapshot:
    findings, statuses = found
    fields = build_fields(findings, statuses)
    fields["left_out"] = {**fields.get("left_out", {}), **additions.left_out}
    return Snapshot(
        seq=seq,
        unix=now.wall,
        monotonic=now.monotonic,
        boot_id=identity.boot_id,
        host=identity.host,
        interval_seconds=interval_seconds,
        simulated=identity.simulated,
        self_usage=self_usage,
        pressure=pressure,
        collectors=statuses,
        claims=additions.claims,
        neighbours=additions.neighbours,
        **fields,
    )


def build_fields(findings: Findings, statuses: Sequence[CollectorStatus]) -> dict[str, Any]:
    """Return the fields that were found, and a reason for each other one that a single collector provides."""
    fields = zip(COPIED, copied_of(findings), strict=True)
    found: dict[str, Any] = {name: value for name, value in fields if value is not None}
    if findings.tegrastats is not None:
        from memwatch.core.accounting.tegra import build_tegrastats

        found["tegrastats"] = build_tegrastats(findings)
    found.setdefault("machine", Machine())
    return found | find_absent_reasons(COLLECTOR_OF.keys() - found.keys(), statuses)


def find_absent_reasons(fields: Iterable[str], statuses: Sequence[CollectorStatus]) -> dict[str, Absent]:
    """Return why each of these snapshot fields is absent, based on the state of its collector.

    "Unavailable" means that the machine does not support the value or denies access to it. A collector that fails,
    has not finished its first run or is disabled might still provide it: "not available".
    """
    by_name = {one.name: one for one in statuses}
    return {field: _reason(by_name.get(COLLECTOR_OF[field]), NOT_LINUX in by_name) for field in fields}


def _reason(status: CollectorStatus | None, elsewhere: bool) -> Absent:
    if status is None:
        return Absent.NOT_SUPPORTED if elsewhere else Absent.NOT_AVAILABLE
    if status.state != "unavailable":
        return Absent.NOT_AVAILABLE
    return Absent.NOT_PERMITTED if NOT_PERMITTED in (status.error or "") else Absent.NOT_SUPPORTED
