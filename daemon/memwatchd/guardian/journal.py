"""Journal of the guardian: one line of JSON for each decision, in two files of limited size.

A line is written with one call, so that a killed guardian leaves whole lines, or one that is cut and skipped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.guardian_report import GuardianDecision
from memwatch.core.runtime.own_files import open_own
from memwatchd.guardian.acting import StepResult
from memwatchd.guardian.outcome import Outcome
from memwatchd.guardian.records import Candidate, Decision

NAME = "guardian.jsonl"
# The file is renamed at this size, and replaces the one before.
MAX_BYTES = 1 << 20
MAX_REFUSED = 8


class VictimRecord(Struct, frozen=True):
    """The process of a decision. Sizes are bytes, times seconds; None: not known, or it has none."""

    pid: int
    start_time: float
    name: str
    footprint_bytes: int
    device_bytes: int
    device_age_seconds: float | None
    growth_bytes_per_second: float | None
    user: str | None = None
    unit: str | None = None
    container: str | None = None
    slice: str | None = None


class RefusedRecord(Struct, frozen=True):
    """A process that was not chosen, and why."""

    name: str
    pid: int
    footprint_bytes: int
    why: str


class Record(Struct, frozen=True):
    """One decision and what came of it. `unix`: when it was made. `decision`: `act`, `nothing` or `freeze`.

    `refused`: the first processes that were not chosen; `more_refused`: the number of others. `helped`: the memory
    was no longer critical after the last step; None in a dry run, or if nothing was done. `outcome`: judgement of a
    dry run, which has a separate line.
    """

    unix: float
    decision: GuardianDecision
    reason: str
    dry_run: bool
    available_before_bytes: int
    available_after_bytes: int
    seconds_to_full: float | None = None
    victim: VictimRecord | None = None
    steps: tuple[StepResult, ...] = ()
    refused: tuple[RefusedRecord, ...] = ()
    more_refused: int = 0
    helped: bool | None = None
    outcome: Outcome | None = None


def describe_victim(one: Candidate) -> VictimRecord:
    def text(value: object) -> str | None:
        return value if isinstance(value, str) else None

    age = one.device_age_seconds
    return VictimRecord(
        one.pid,
        one.start_time,
        one.name,
        one.footprint_bytes,
        one.device_bytes,
        round(age, 3) if age < float("inf") else None,
        one.growth_bytes_per_second,
        text(one.user),
        text(one.unit),
        text(one.container),
        text(one.slice),
    )


def describe_refused(decision: Decision) -> tuple[RefusedRecord, ...]:
    return tuple(
        RefusedRecord(one.candidate.name, one.candidate.pid, one.candidate.footprint_bytes, one.why)
        for one in decision.refused[:MAX_REFUSED]
    )


class Journal:
    """Writer of the journal. Opening raises OSError."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = folder / NAME
        self._max_bytes = max_bytes
        self._fd = self._open()

    def append(self, record: Record | Outcome) -> None:
        """Add a record, or the outcome of one. Raises OSError.

        A thread moves it to the disk, which takes long while memory is short.
        """
        line = msgspec.json.encode(record) + b"\n"
        if os.fstat(self._fd).st_size + len(line) > self._max_bytes:
            os.rename(self._path, self._path.with_suffix(".jsonl.1"))
            os.close(self._fd)
            self._fd = self._open()
        os.write(self._fd, line)
        threading.Thread(target=_sync, args=(os.dup(self._fd),), daemon=True).start()

    def close(self) -> None:
        os.close(self._fd)

    def _open(self) -> int:
        fd = open_own(self._path, os.O_RDWR | os.O_APPEND)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")
        return fd


def _sync(fd: int) -> None:
    with suppress(OSError):
        os.fdatasync(fd)
    os.close(fd)


def read_journal(folder: Path) -> Iterator[Record]:
    """Yield all whole records, the oldest first, with their outcomes. Raises OSError if it cannot be read."""
    lines = list(_read_lines(folder))
    outcomes = {one.of_unix: one for one in lines if isinstance(one, Outcome)}
    yield from (replace(one, outcome=outcomes.get(one.unix)) for one in lines if isinstance(one, Record))


def _read_lines(folder: Path) -> Iterator[Record | Outcome]:
    for name in (f"{NAME}.1", NAME):
        try:
            fd = open_own(folder / name, os.O_RDONLY) if (folder / name).exists() else None
        except FileNotFoundError:
            continue
        if fd is None:
            continue
        with open(fd, "rb") as file:
            for line in file.read(2 * MAX_BYTES).splitlines():
                with suppress(msgspec.DecodeError):
                    if b'"of_unix"' in line[:64]:
                        yield msgspec.json.decode(line, type=Outcome)
                    else:
                        yield msgspec.json.decode(line, type=Record)


def now() -> float:
    return round(time.time(), 3)
