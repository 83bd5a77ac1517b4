"""Reports to the daemon about what the guardian did. A thread sends them: a daemon that hangs delays nothing.

What the daemon has not taken is sent again, after a restart of the guardian from its journal.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memwatch.core.guardian_report import (
    ID_LENGTH,
    NAME_LENGTH,
    PATH,
    REASON_LENGTH,
    REPORT_SECONDS,
    STEP_COUNT,
    GuardianReport,
)
from memwatch.core.http import GetError
from memwatch.core.linux.daemon_connection import build_headers, connect_daemon
from memwatch.core.runtime.own_files import open_own
from memwatchd.guardian.journal import Record, read_journal
from memwatchd.guardian.requests import NoAnswerError, exchange

# An idle daemon builds its API at the first request, which takes seconds on a slow board.
SEND_SECONDS, AGAIN_SECONDS = 10.0, 5.0
MAX_PENDING = 64
MAX_ANSWER_BYTES = 64 << 10
# Id of the report that the daemon took last.
TOLD_NAME = "guardian.told"


class Teller:
    """Sender of reports to the daemon at a socket file. `complain` writes a line to the log.

    Over TCP the kernel would not name the guardian's user to the daemon: nothing is sent.
    """

    def __init__(self, url: str, folder: Path, complain: Callable[[str], object]) -> None:
        self._socket_file = url.removeprefix("unix:")
        self._told = folder / TOLD_NAME
        self._complain = complain
        self._pending: deque[GuardianReport] = deque(maxlen=MAX_PENDING)
        self._news, self._stop = threading.Event(), threading.Event()
        self._complaint = ""
        self.is_possible: bool = url.startswith("unix:")
        if self.is_possible:
            self._pending.extend(list_untold(folder, self._told, time.time()))
            self._news.set()
            threading.Thread(target=self._run, name="teller", daemon=True).start()
        else:
            complain(f"decisions are not reported to {url}: the daemon takes them at its socket file only")

    def tell(self, record: Record) -> None:
        """Send a record, or its outcome if it has one, or leave it for the next start if it cannot be sent."""
        if self.is_possible:
            self._pending.append(build_report(record))
            self._news.set()

    def close(self) -> None:
        self._stop.set()
        self._news.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            while self._pending and not self._stop.is_set():
                report = self._pending[0]
                if not self._is_done(report):
                    self._stop.wait(AGAIN_SECONDS)
                elif self._pending and self._pending[0] is report:
                    self._pending.popleft()

    def _is_done(self, report: GuardianReport) -> bool:
        """Send a report. Return False if it must be sent again."""
        if time.time() - report.unix > REPORT_SECONDS:
            return True
        try:
            status, body = send(self._socket_file, report)
        except (GetError, NoAnswerError, OSError) as error:
            self._complain_once(f"the daemon at {self._socket_file} takes no reports yet: {error}")
            return False
        if status >= 500:
            self._complain_once(f"the daemon at {self._socket_file} takes no reports yet: it answered {status}")
            return False
        if status != 200:
            self._complain_once(f"the daemon at {self._socket_file} refused a report: {status} {body[:300]!r}")
            return True
        self._complaint = ""
        # Without this it is sent once more at the next start, and the daemon knows its id.
        with suppress(OSError), open(open_own(self._told, os.O_RDWR), "r+b") as file:
            file.write(report.id.encode("ascii"))
            file.truncate()
        return True

    def _complain_once(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self._complain(text)


def send(socket_file: str, report: GuardianReport, seconds: float = SEND_SECONDS) -> tuple[int, bytes]:
    """Send a report. Return the status and the body. Raises GetError, NoAnswerError and OSError."""
    deadline = time.monotonic() + seconds
    name = build_headers("unix", socket_file, 0)["Host"]
    with connect_daemon("unix", socket_file, 0, seconds) as connected:
        return exchange(connected, "POST", PATH, name, deadline, MAX_ANSWER_BYTES, msgspec.json.encode(report))


def build_report(record: Record) -> GuardianReport:
    """Return what the daemon needs of a record. A guardian makes no two decisions in one millisecond."""
    victim = record.victim
    taken = [one for one in record.steps if not one.result.startswith("not taken")]
    outcome = record.outcome
    return GuardianReport(
        id=build_id(record),
        unix=(outcome or record).unix,
        decision=record.decision,
        dry_run=record.dry_run,
        reason=record.reason[:REASON_LENGTH],
        pid=victim.pid if victim else None,
        name=victim.name[:NAME_LENGTH] if victim else "",
        footprint_bytes=victim.footprint_bytes if victim else None,
        steps=tuple(one.step for one in taken[:STEP_COUNT]),
        ended=any(
            one.step in ("sigterm", "sigkill") and one.result.startswith("sent") and one.result.endswith("it ended")
            for one in taken
        ),
        helped=record.helped,
        verdict=outcome.verdict if outcome else None,
        evidence=outcome.evidence[:REASON_LENGTH] if outcome else "",
    )


def build_id(record: Record) -> str:
    return f"{record.unix:.3f}{'-judged' if record.outcome else ''}"


def list_untold(folder: Path, told: Path, now: float) -> Iterator[GuardianReport]:
    """Yield the reports of the last hour that follow the one that was told last."""
    try:
        with open(open_own(told, os.O_RDONLY), "rb") as file:
            last = file.read(ID_LENGTH).decode("ascii", "replace")
    except OSError:
        last = ""
    untold: list[Record] = []
    with suppress(OSError):
        whole = list(read_journal(folder))
        alone = [replace(one, outcome=None) for one in whole]
        for record in sorted([*alone, *(one for one in whole if one.outcome)], key=build_time):
            if build_id(record) == last:
                untold.clear()
            elif now - build_time(record) <= REPORT_SECONDS:
                untold.append(record)
    yield from map(build_report, untold)


def build_time(record: Record) -> float:
    return (record.outcome or record).unix
