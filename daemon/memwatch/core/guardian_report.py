"""Reports of memwatch-guardian to the daemon: one for each decision, with the words of its event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from memwatch.core import units

PATH = "/api/v1/guardian/decisions"
ACTED, WOULD_HAVE_ACTED, DECLINED = "guardian.acted", "guardian.would_have_acted", "guardian.declined"
JUDGED, FROZE, WOULD_HAVE_FROZEN = "guardian.judged", "guardian.froze", "guardian.would_have_frozen"
GUARDIAN_EVENTS = frozenset({ACTED, WOULD_HAVE_ACTED, DECLINED, JUDGED, FROZE, WOULD_HAVE_FROZEN})
Verdict = Literal["right", "needed", "needless", "unknown"]
# Of the end of a process in a dry run.
VERDICTS: Mapping[Verdict, str] = {
    "right": "that end would have been right",
    "needed": "an end was needed, but it is not known whether that one",
    "needless": "that end would have been needless",
    "unknown": "it is not known whether that end would have been right",
}
GuardianDecision = Literal["act", "nothing", "freeze"]
# An older report is about a shortage that is over: the guardian does not send it, and the daemon refuses it.
REPORT_SECONDS = 3600.0
REASON_LENGTH, NAME_LENGTH, STEP_COUNT, STEP_LENGTH, ID_LENGTH = 1000, 200, 8, 20, 64


class GuardianReport(Struct, frozen=True):
    """One decision. `id`: the same each time that it is sent. `unix`: when it was made, seconds since the epoch.

    `pid`, `name` and `footprint_bytes` are those of the chosen process, None and "" if nothing was chosen. `steps`:
    names of the steps that were taken or, in a dry run, would have been taken. `ended`: a signal ended the process.
    `helped`: memory was no longer critical after the last step; None if none was taken. `verdict`: of a dry run
    that was reported before, with its `evidence` as a clause.
    """

    id: str
    unix: float
    decision: GuardianDecision
    dry_run: bool
    reason: str
    pid: int | None = None
    name: str = ""
    footprint_bytes: int | None = None
    steps: tuple[str, ...] = ()
    ended: bool = False
    helped: bool | None = None
    verdict: Verdict | None = None
    evidence: str = ""

    @property
    def kind(self) -> str:
        """Kind of its event."""
        if self.verdict is not None:
            return JUDGED
        if self.decision == "nothing":
            return DECLINED
        if self.decision == "freeze":
            return WOULD_HAVE_FROZEN if self.dry_run else FROZE
        return WOULD_HAVE_ACTED if self.dry_run else ACTED

    @property
    def text(self) -> str:
        """Text of its event: a clause, such as "killed by memwatch-guardian: train.py (51210), 39.9 GiB"."""
        if self.verdict is not None:
            return (
                f"dry run: memwatch-guardian would have ended {self.name} ({self.pid}), and "
                f"{VERDICTS[self.verdict]}: {self.evidence}"
            )
        if self.decision == "nothing":
            return f"{'dry run: ' if self.dry_run else ''}memwatch-guardian found no process to end: {self.reason}"
        if self.decision == "freeze":
            start = "dry run: memwatch-guardian would have frozen" if self.dry_run else "memwatch-guardian froze"
            return f"{start} {self.name} ({self.pid}) while it loads: {self.reason}"
        held = "" if self.footprint_bytes is None else f", {units.size(self.footprint_bytes)}"
        what = f"{self.name} ({self.pid}){held}; steps: {', '.join(self.steps) or 'none in time'}"
        if self.dry_run:
            return f"dry run: memwatch-guardian would have ended {what}"
        if self.ended:
            return f"killed by memwatch-guardian: {what}"
        return f"memwatch-guardian acted on {what}; memory is {'no longer' if self.helped else 'still'} critical"
