"""Thread that asks the daemon, so that a slow answer does not stop the keys."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from memwatch.cli.http import Address, CommandError, RequestDeclinedError, ask
from memwatch.cli.terminal.figures import Trend
from memwatch.cli.terminal.moment import ProcessReading
from memwatch.cli.terminal.past import RECENT_SECONDS, decode_history, figures_of
from memwatch.core.events import Event
from memwatch.core.model import Absent, Bytes, Process
from memwatch.core.printable import printable_parts
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import RECORDS

if TYPE_CHECKING:
    from memwatch.core.linux.files import Roots

R = TypeVar("R")
# Growth and events change slowly, and each request costs the daemon and this process time.
SLOW_SECONDS = 5.0
MAX_SERIES, MAX_EVENTS, MAX_GROWTH, MAX_TICKS = 20, 200, 200, 500
RECENT_POINTS = 300
STOP_SECONDS = 0.2
OTHER_MACHINE = "readable on the machine itself only"


class Feed:
    """Puts answers into a queue and wakes the reader of `wake_fd`: (kind, answer) with the kinds of `_run`."""

    def __init__(self, address: Address, interval: float, read: Callable[[], Snapshot], is_remote: bool) -> None:
        self.answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.wake_fd: int
        self.wake_fd, self._wake_end = os.pipe()
        os.set_blocking(self._wake_end, False)
        self._address, self._interval = address, interval
        self._read, self._is_remote = read, is_remote
        self._wanted: queue.SimpleQueue[tuple[float, float, int]] = queue.SimpleQueue()
        self._wanted_pids: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="memwatch-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._hurry.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def want_history(self, start: float, end: float, points: int) -> None:
        """Request the history of a time range."""
        self._wanted.put((start, end, points))
        self._hurry.set()

    def want_process(self, pid: int) -> None:
        """Request the figures of one process that are expensive to read."""
        self._wanted_pids.put(pid)
        self._hurry.set()

    def put(self, kind: str, answer: object) -> None:
        self.answers.put((kind, answer))
        with suppress(BlockingIOError):  # the reader has enough to wake up
            os.write(self._wake_end, b".")

    def _run(self) -> None:
        latest: Snapshot | None = None
        slow_at = 0.0
        while not self._is_over:
            began = time.monotonic()
            latest = self._try("snapshot", self._read) or latest
            if latest is not None and self._is_remote:
                if slow_at == 0.0:
                    end = latest.unix
                    self._history(latest, end - RECENT_SECONDS, end, RECENT_POINTS, "recent")
                if began >= slow_at:
                    slow_at = began + SLOW_SECONDS
                    self._try("growth", lambda: self._ask(f"/api/v1/growth?limit={MAX_GROWTH}"))
                    self._try("events", self._ask_events)
            self._wait(latest, began + self._interval)

    def _wait(self, latest: Snapshot | None, until: float) -> None:
        """Wait for the next sample, and answer requests for history meanwhile."""
        while not self._is_over:
            while latest is not None and not self._wanted.empty():
                self._history(latest, *self._wanted.get(), "past")
            while latest is not None and not self._wanted_pids.empty():
                self._process(latest, self._wanted_pids.get())
            left = until - time.monotonic()
            if left <= 0:
                return
            self._hurry.wait(left)
            self._hurry.clear()

    def _history(self, latest: Snapshot, start: float, end: float, points: int, kind: str) -> None:
        found = _read_range(self._address, list(figures_of(latest)), start, end, points)
        self.put(kind, (start, end, found))
        if kind == "past":
            query = urlencode([("from", start), ("to", end), ("limit", MAX_TICKS)])
            self._try("ticks", lambda: self._ask(f"/api/v1/ticks?{query}"))

    def _process(self, latest: Snapshot, pid: int) -> None:
        address = self._address if self._is_remote else None
        self._try("reading", lambda: read_process(address, latest, pid))

    def _ask(self, path: str) -> Any:  # noqa: ANN401  any JSON
        return printable_parts(ask(self._address, path).json)

    def _ask_events(self) -> tuple[Event, ...]:
        found: tuple[Event, ...] = RECORDS.decode(
            tuple[Event, ...], ask(self._address, f"/api/v1/events?limit={MAX_EVENTS}").json
        )
        return found

    def _try(self, kind: str, work: Callable[[], R]) -> R | None:
        """Put what `work` returns, or its error. Return it, None after an error."""
        try:
            answer = work()
        except CommandError as error:
            if kind == "snapshot":
                self.put("error", str(error))
            return None
        except Exception as error:  # noqa: BLE001  the main thread raises it, with the terminal restored
            self.put("failure", error)
            self._is_over = True
            return None
        self.put(kind, answer)
        return answer


def read_history(address: Address, latest: Snapshot) -> dict[str, Trend]:
    """Return the last ten minutes of the series that a snapshot has."""
    end = latest.unix
    return _read_range(address, list(figures_of(latest)), end - RECENT_SECONDS, end, RECENT_POINTS)


def _read_range(address: Address, names: list[str], start: float, end: float, points: int) -> dict[str, Trend]:
    found: dict[str, Trend] = {}
    for first in range(0, len(names), MAX_SERIES):
        query: list[tuple[str, object]] = [("from", start), ("to", end), ("points", points)]
        query += [("series", name) for name in names[first : first + MAX_SERIES]]
        try:
            found.update(decode_history(ask(address, f"/api/v1/history?{urlencode(query)}").json))
        except (CommandError, LookupError, TypeError):  # a series that an older daemon lacks, or none yet
            continue
    return found


def read_process(address: Address | None, snapshot: Snapshot, pid: int) -> ProcessReading | None:
    """Read the PSS of a listed process, from the daemon or without `address` here, and its OOM score from /proc.

    None if it is not listed.
    """
    process = next((one for one in snapshot.processes if one.pid == pid), None)
    if process is None:
        return None
    # Not needed for the first picture: it would take 10 ms of it.
    from memwatch.cli.headroom import is_this_machine
    from memwatch.core.linux.files import Roots
    from memwatch.core.processes.process_folder import read_oom_score
    from memwatch.library.daemon_client import read_roots

    roots = Roots(*read_roots(os.environ))
    pss, pss_note = _pss_here(roots, process) if address is None else _pss_of(address, pid)
    if snapshot.simulated or not is_this_machine(snapshot):
        why = "demo data (simulated process)" if snapshot.simulated else OTHER_MACHINE
        return ProcessReading(pid, pss, pss_note, Absent.NOT_AVAILABLE, why)
    return ProcessReading(pid, pss, pss_note, read_oom_score(roots, process))


def _pss_of(address: Address, pid: int) -> tuple[Bytes, str]:
    try:
        return int(ask(address, f"/api/v1/processes/{pid}/pss").json["pss_bytes"]), ""
    except CommandError as error:
        return Absent.NOT_AVAILABLE, (isinstance(error, RequestDeclinedError) and error.detail) or str(error)


def _pss_here(roots: Roots, process: Process) -> tuple[Bytes, str]:
    from memwatch.core.processes.process_folder import PssError, PssReader

    try:
        return PssReader(roots).read(process).pss_bytes, ""
    except PssError as error:
        return Absent.NOT_AVAILABLE, str(error)
