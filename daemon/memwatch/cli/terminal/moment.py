"""Data of one frame: a snapshot of the daemon, what came before it, and how it was received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from memwatch.cli.terminal.figures import Trend
from memwatch.core.events import Event
from memwatch.core.model import Absent, Bytes, Share, ShareKind
from memwatch.core.snapshot import LEVEL_WORDS, Level, LevelWord, Pressure, Snapshot
from memwatch.core.wire import Json
from memwatch.reporting.render import words as wording

LEVELS: Sequence[str] = LEVEL_WORDS
MARKS = {"low": "●", "medium": "◆", "high": "▲", "critical": "⬣"}
STYLES = {"low": "ok", "medium": "medium", "high": "high", "critical": "critical"}


class ProcessReading(Struct, frozen=True):
    """Figures of one process that are read on request. `pss_note` and `oom_note` say why one is missing.

    `oom_score`: the kernel's oom_score and oom_score_adj.
    """

    pid: int
    pss_bytes: Bytes = Absent.NOT_AVAILABLE
    pss_note: str = ""
    oom_score: tuple[int, int] | Absent = Absent.NOT_AVAILABLE
    oom_note: str = ""


class Moment(Struct, frozen=True):
    """A snapshot with trends by series name, growth by PID, and events, newest first.

    `error`: why there is no newer snapshot. `note`: what is missing of a past moment. `chart_span`: start and end
    of the charts in Unix seconds. `sizes`: footprints over time by PID. `reading`: of the opened process.
    """

    snapshot: Snapshot
    trends: Mapping[str, Trend] = field(default_factory=dict)
    growth: Mapping[int, Json] = field(default_factory=dict)
    events: Sequence[Event] = ()
    charts: Mapping[str, Trend] = field(default_factory=dict)
    chart_span: tuple[float, float] = (0.0, 0.0)
    error: str = ""
    note: str = ""
    has_history: bool = True
    sizes: Mapping[int, Trend] = field(default_factory=dict)
    reading: ProcessReading | None = None

    @property
    def unix(self) -> float:
        return self.snapshot.unix

    @property
    def has_current_processes(self) -> bool:
        """Return False for a past moment: its processes are those of another time."""
        return not self.note

    @property
    def is_current(self) -> bool:
        """Return False for a past moment, and where there is no newer snapshot: nothing is forecast from it."""
        return not self.note and not self.error

    @property
    def levels(self) -> dict[str, LevelWord]:
        """Return the levels by target."""
        return {one.target: one.level.word for one in self.snapshot.pressure}


def labels_of(snapshot: Snapshot) -> dict[str, str]:
    """Return a unique name for each place: a MIG instance with its GPU."""
    return {pool.id: pool.label for pool in snapshot.pools} | {one.id: share_label(one) for one in snapshot.shares}


def living_of(snapshot: Snapshot) -> dict[int, float | Absent]:
    """Return the start times by PID of the listed processes, without those that the OOM killer has killed.

    A driver may list the memory of a process some seconds longer than the process lives.
    """
    log = snapshot.kernel_log
    killed = set() if isinstance(log, Absent) else {(one.pid, one.name) for one in log.kills}
    return {one.pid: one.start_time for one in snapshot.processes if (one.pid, one.name) not in killed}


def share_label(share: Share) -> str:
    if share.kind is ShareKind.MIG_INSTANCE and share.device and "GPU" not in share.label:
        return f"GPU {share.device.removeprefix('gpu')} · {mig_label(share)}"
    return share.label


def mig_label(share: Share) -> str:
    """Return the name of a MIG instance below its GPU: "MIG 11"."""
    return f"MIG {share.id.rpartition('mig')[2]}"


def level_word(level: str) -> str:
    return wording.level(level).upper()


def outlook(pressure: Pressure, is_now: bool) -> str:
    """Return the time left, or when a held level clears: "full in ~17 s", "recovering, OK in 12 s".

    As in the status line of the pages, there is none at OK. `is_now`: False for a past moment and without newer
    data: its countdowns are over.
    """
    if pressure.level is Level.LOW:
        return ""
    if is_now:
        return wording.full(pressure) or wording.recovery(pressure)
    return "recovering" if wording.is_recovering(pressure) else ""
