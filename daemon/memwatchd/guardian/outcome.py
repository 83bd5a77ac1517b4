"""Judgement of a dry run: what happened after a decision on which nothing was done. Pure rules.

- right: the kernel killed a process, and the chosen one ended.
- needed: the kernel killed a process, and the chosen one still runs.
- needless: memory recovered while all processes lived on.
- unknown: all else, with what was seen.

A guardian that does not see the counter of kills, or stopped before the end of the shortage, judges nothing.
"""

from __future__ import annotations

from msgspec import Struct

from memwatch.core import units
from memwatch.core.guardian_report import Verdict

# Memory that is not critical for this long has recovered.
CALM_SECONDS = 10.0
# A shortage that lasts longer is judged as it is then.
WATCH_SECONDS = 120.0


class Outcome(Struct, frozen=True):
    """Judgement of one record. `unix`: when it was made; `of_unix`: that of the record. `evidence` is a clause."""

    unix: float
    of_unix: float
    verdict: Verdict
    evidence: str


class Seen(Struct):
    """Facts since a decision. Times are seconds after it, None if that has not happened.

    `kills`: processes that the kernel killed for lack of memory; None if its counter is not readable. `calm_after`:
    memory is not critical since then.
    """

    seconds: float = 0.0
    calm_after: float | None = None
    ended_after: float | None = None
    kill_after: float | None = None
    kills: int | None = None

    def add(self, seconds: float, is_critical: bool, has_ended: bool, kills: int | None) -> None:
        """Add a reading."""
        self.seconds, self.kills = seconds, kills
        if is_critical:
            self.calm_after = None
        elif self.calm_after is None:
            self.calm_after = seconds
        if has_ended and self.ended_after is None:
            self.ended_after = seconds
        if kills and self.kill_after is None:
            self.kill_after = seconds

    @property
    def is_over(self) -> bool:
        is_calm = self.calm_after is not None and self.seconds - self.calm_after >= CALM_SECONDS
        return is_calm or self.seconds >= WATCH_SECONDS


def judge(seen: Seen, title: str) -> tuple[Verdict, str]:
    """Return the verdict on the end of a process, and the evidence as a clause. `title`: the process."""
    parts = []
    if seen.kill_after is not None:
        count = "a process" if seen.kills == 1 else f"{seen.kills} processes, the first"
        parts.append(f"the kernel killed {count} {after(seen.kill_after)}")
    if seen.ended_after is not None:
        parts.append(f"{title} ended {after(seen.ended_after)}")
    elif seen.kill_after is not None:
        parts.append(f"{title} still runs")
    if seen.calm_after is None:
        parts.append(f"memory was still critical {after(seen.seconds)}")
    elif seen.kill_after is None and seen.ended_after is None:
        parts.append(f"memory recovered by itself {after(seen.calm_after)}")
    else:
        parts.append(f"memory recovered {after(seen.calm_after)}")
    if seen.kills == 0:
        parts.append("the kernel killed no process")
    elif seen.kills is None:
        parts.append("kills by the kernel are not readable")
    return find_verdict(seen), ", ".join(parts[:-1]) + f"{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def find_verdict(seen: Seen) -> Verdict:
    if seen.kill_after is not None:
        return "needed" if seen.ended_after is None else "right"
    if seen.kills == 0 and seen.calm_after is not None and seen.ended_after is None:
        return "needless"
    return "unknown"


def after(seconds: float) -> str:
    return f"{units.duration(seconds)} later"
