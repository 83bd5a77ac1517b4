"""Data of one frame: a snapshot of the daemon, what came before it, and how it was received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct, field

from memwatch.cli.terminal.trend import Trend
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import LEVEL_WORDS, Pressure
from memwatch.monitor.render import words as wording

Json = dict[str, Any]
LEVELS: Sequence[str] = LEVEL_WORDS
MARKS = {"low": "●", "medium": "◆", "high": "△", "critical": "▲"}
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

    snapshot: Json
    trends: Mapping[str, Trend] = field(default_factory=dict)
    growth: Mapping[int, Json] = field(default_factory=dict)
    events: Sequence[Json] = ()
    charts: Mapping[str, Trend] = field(default_factory=dict)
    chart_span: tuple[float, float] = (0.0, 0.0)
    error: str = ""
    note: str = ""
    has_history: bool = True
    sizes: Mapping[int, Trend] = field(default_factory=dict)
    reading: ProcessReading | None = None

    @property
    def unix(self) -> float:
        return float(self.snapshot["unix"])

    @property
    def levels(self) -> dict[str, str]:
        """Return the levels by target."""
        return {one["target"]: one["level"] for one in self.snapshot["pressure"]}


def worst_of(snapshot: Json) -> Json | None:
    """Return the pressure record with the highest level; at critical the first to be full; then the highest use."""

    def rank(one: Json) -> tuple[int, float, float]:
        left = one.get("seconds_to_full") if one["level"] == LEVELS[-1] else None
        return LEVELS.index(one["level"]), -inf if left is None else -left, one["ratio"]

    return max(snapshot["pressure"], key=rank, default=None)


def labels_of(snapshot: Json) -> dict[str, str]:
    """Return a unique name for each place: a MIG instance with its GPU."""
    names = {pool["id"]: pool["label"] for pool in snapshot["pools"]}
    for share in snapshot["shares"]:
        names[share["id"]] = share_label(share)
    return names


def living_of(snapshot: Json) -> dict[int, float | None]:
    """Return the start times by PID of the listed processes, without those that the OOM killer has killed.

    A driver may list the memory of a process some seconds longer than the process lives.
    """
    killed = {(one["pid"], one["name"]) for one in (snapshot["kernel_log"] or {}).get("kills", ())}
    return {
        one["pid"]: one["start_time"] for one in snapshot["processes"] if (one["pid"], one["name"]) not in killed
    }


def share_label(share: Json) -> str:
    if share["kind"] == "mig_instance" and share["device"] and "GPU" not in share["label"]:
        return f"GPU {share['device'].removeprefix('gpu')} · {mig_label(share)}"
    return str(share["label"])


def mig_label(share: Json) -> str:
    """Return the name of a MIG instance below its GPU: "MIG 11"."""
    return f"MIG {share['id'].rpartition('mig')[2]}"


def level_word(level: str) -> str:
    return wording.level(level).upper()


def outlook(pressure: Pressure) -> str:
    """Return the time left, or when a held level clears: "full in ~17 s", "recovering, clears in 12 s"."""
    left = pressure.clears_in_seconds
    held = ["recovering"] if wording.is_recovering(pressure) else []
    held += [] if isinstance(left, Absent) else [f"clears {wording.clears_in(left)}"]
    return wording.full(pressure) or ", ".join(held)
