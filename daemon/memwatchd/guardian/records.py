"""Records of the guardian: its settings, the state of the machine that its rules judge, and a decision."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from memwatch.core.model import Absent, PoolKind, Words
from memwatch.core.snapshot import Level

MAX_CONFIG_BYTES = 1 << 20
# In the order in which they are taken, the mildest first.
StepName = Literal["hook", "engine", "reclaim", "sigterm", "sigkill"]
Others = Literal["none", "slice", "any"]
MatchKind = Literal["unit", "user", "command", "container"]


class Match(Struct, frozen=True):
    """A glob pattern for one property of a process, such as `unit:ollama*.service`."""

    kind: MatchKind
    pattern: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}"


class PoolState(Struct, frozen=True):
    """A pool now. At `critical_bytes` or less available it is critical by use.

    `evidence`: codes of the signals of the pool itself for its level, as in `Reason.signal`. `seconds_to_full` at
    the current rate; None if it does not fill up. `ready_bytes`: free pages, file cache and reclaimable slabs, also
    those below the watermarks; None if that was not read. `swap_free_bytes`: free swap.
    """

    id: str
    kind: PoolKind
    size_bytes: int
    available_bytes: int
    critical_bytes: int
    level: Level
    evidence: tuple[str, ...] = ()
    seconds_to_full: float | None = None
    ready_bytes: int | None = None
    swap_free_bytes: int = 0


class Candidate(Struct, frozen=True):
    """A process that may have to end. None: it has no such property; Absent: that is not known.

    `start_time`: seconds since the Unix epoch. `footprint_bytes`: bytes of System RAM that it holds, at least, with
    `device_bytes`, which no kernel counter of processes contains. `device_age_seconds`: age of these; infinite if
    they were never read. `growth_bytes_per_second`: of the footprint since System RAM began to fall, at least; None
    if it is not known. `max_growth_bytes_per_second`: at most.
    `commands`: its script if it is an interpreter, and the kernel's name of it. `kernel_unit`: its unit by its
    cgroup, which the guardian reads itself. `slice`: the slices of its cgroup.
    """

    pid: int
    start_time: float
    name: str
    footprint_bytes: int
    device_bytes: int
    device_age_seconds: float
    growth_bytes_per_second: float | None = None
    max_growth_bytes_per_second: float = 0.0
    commands: tuple[str, ...] = ()
    user: Words = Absent.NOT_AVAILABLE
    unit: Words | None = Absent.NOT_AVAILABLE
    container: Words | None = Absent.NOT_AVAILABLE
    container_name: str | None = None
    cgroup: Words = Absent.NOT_AVAILABLE
    kernel_unit: str | None = None
    slice: Words = Absent.NOT_AVAILABLE
    visible: bool = True
    kernel_thread: bool = False
    engine: bool = False

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_time)

    @property
    def title(self) -> str:
        return f"{self.name} ({self.pid})"


class ProcessKey(NamedTuple):
    """Identity of a process: the number alone may be reused."""

    pid: int
    start_time: float


class State(Struct, frozen=True):
    """The machine now. `now` and `read_at`, the time when the pools were read, are monotonic seconds.

    `own_pids`: processes of the guardian and of the daemon. `fall_bytes_per_second`: fall of available System RAM
    in the time in which the growth of the candidates was measured, at least; None if it is not known or did not
    fall. `max_fall_bytes_per_second`: at most, with what the kernel took below its watermarks or moved to swap.
    """

    now: float
    read_at: float
    pools: tuple[PoolState, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    own_pids: frozenset[int] = frozenset()
    fall_bytes_per_second: float | None = None
    max_fall_bytes_per_second: float = 0.0


class Limits(Struct, frozen=True):
    """The limits that the operator sets. `avoid` is taken last, `never` is never taken. Times are seconds.

    A time of 0 leaves out that step.
    `others`: processes that may end in place of the one that causes the shortage, also without being preferred:
    those of its slice, or any.
    """

    prefer: tuple[Match, ...] = ()
    avoid: tuple[Match, ...] = ()
    never: tuple[Match, ...] = ()
    others: Others = "none"
    has_hook: bool = False
    hook_seconds: float = 5.0
    engine_seconds: float = 5.0
    reclaim_seconds: float = 2.0
    sigterm_seconds: float = 5.0
    sigkill_seconds: float = 5.0


class LoadLimits(Struct, frozen=True):
    """Limits of the load guard. `units`: what may be frozen. Times are seconds: of one freeze, of all in a load."""

    enabled: bool = False
    units: tuple[Match, ...] = ()
    floor_bytes: int = 4 << 30
    freeze_seconds: float = 3.0
    total_seconds: float = 30.0


class Adjustment(NamedTuple):
    """Facts that only the daemon and its settings know. `critical_ratio`: used fraction above which it is critical.

    `resident_bytes` do not count in it. `more_bytes` are available beside MemAvailable: the cache of ZFS.
    """

    critical_ratio: float = 0.95
    resident_bytes: int = 0
    more_bytes: int = 0


AT_START = ("daemon", "procfs", "sysfs", "state_dir", "run_dir")


class Config(Struct, frozen=True):
    """All settings, which its process gets without the modules that read them.

    `daemon`: its URL, `unix:PATH` or `http://127.0.0.1:PORT`. `warnings` are for the log at the start. `reader`:
    the command that prints them again. A reload applies all but those of AT_START.
    """

    limits: Limits = Limits()
    load: LoadLimits = LoadLimits()
    dry_run: bool = True
    hook: tuple[str, ...] = ()
    daemon: str = "unix:/run/memwatchd/memwatchd.sock"
    procfs: str = "/proc"
    sysfs: str = "/sys"
    state_dir: str = "/var/lib/memwatchd-guardian"
    run_dir: str = "/run/memwatchd-guardian"
    adjustment: Adjustment = Adjustment()
    warnings: tuple[str, ...] = ()
    reader: tuple[str, ...] = ()

    @property
    def proc(self) -> Path:
        return Path(self.procfs)


def send(config: Config) -> int:
    """Return an inheritable descriptor from which a new program reads the settings."""
    fd = os.memfd_create("guardian", 0)
    os.write(fd, msgspec.json.encode(config))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive(fd: int) -> Config:
    """Read settings and close the descriptor."""
    with open(fd, "rb") as file:
        return msgspec.json.decode(file.read(MAX_CONFIG_BYTES), type=Config)


class Step(NamedTuple):
    """One attempt to free memory, and how long its effect is waited for.

    `reclaim_bytes`: what the kernel is asked to reclaim. `why_not`: why it is not taken, as a clause; else empty.
    """

    name: StepName
    seconds: float
    reclaim_bytes: int = 0
    why_not: str = ""


class GroupMemory(NamedTuple):
    """Memory of a control group: its file cache, and what may move to swap."""

    file_bytes: int
    swappable_bytes: int


class Refusal(NamedTuple):
    """A process that may not or need not end, and why."""

    candidate: Candidate
    why: str


class Past(Struct, frozen=True):
    """Result of earlier calls of the rules.

    `first_seen` and `last_seen`: when the evidence was first and last seen without a gap. `acted_at`: when the last
    action ended. `tried`: processes that did not end on SIGKILL.
    """

    first_seen: float | None = None
    last_seen: float | None = None
    acted_at: float | None = None
    tried: frozenset[ProcessKey] = frozenset()

    def after_action(self, now: float, remains: ProcessKey | None = None) -> Past:
        """Forget the evidence, so that it has to be seen again. `remains`: the victim, if it did not end."""
        return Past(acted_at=now, tried=self.tried | {remains} if remains else self.tried)


class Decision(Struct, frozen=True):
    """Do nothing, wait for another reading, act on one victim by these steps, or freeze it. `reason` is a clause.

    `refused`: processes that were looked at before the victim, largest cause first.
    """

    kind: Literal["nothing", "wait", "act", "freeze"]
    reason: str
    victim: Candidate | None = None
    steps: tuple[Step, ...] = ()
    refused: tuple[Refusal, ...] = ()
