"""Records of a run of pytest: outcomes, failures, and the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

# Section of the report of a test that hung.
STACKS = "stacks"


class Outcome(Struct, frozen=True, tag="outcome"):
    """Test that passed or was skipped."""

    test: str
    outcome: str
    seconds: float


class Failure(Struct, frozen=True, tag="failure"):
    """Failed phase of a test: setup, call or teardown; or `crash` of its worker, or `collection` of its file."""

    test: str
    phase: str
    message: str
    lines: list[str]
    load: str
    seconds: float = 0.0
    fixtures: list[tuple[str, str]] = []
    daemons: list[list[str]] = []
    stacks: list[str] = []  # of the threads of a test that hung


class End(Struct, frozen=True, tag="end"):
    """End of a run. `stopped`: not all tests were run."""

    exit_code: int
    stopped: bool


Record = Outcome | Failure | End
_DECODER = msgspec.json.Decoder(Record)


class Run(Struct, frozen=True):
    """Outcome of a run of pytest, with the first failure of each test."""

    exit_code: int
    failures: list[Failure] = []
    passed: list[str] = []
    skipped: list[str] = []
    is_complete: bool = False

    @property
    def failed(self) -> list[str]:
        return [failure.test for failure in self.failures]


def run_of(exit_code: int, records: Iterable[Record]) -> Run:
    """Return the run of these records. One without an end, or that was stopped, is not complete."""
    failures: dict[str, Failure] = {}
    outcomes: dict[str, list[str]] = {"passed": [], "skipped": []}
    is_complete = False
    for record in records:
        if isinstance(record, Failure):
            failures.setdefault(record.test, record)
        elif isinstance(record, Outcome):
            outcomes[record.outcome].append(record.test)
        else:
            is_complete = not record.stopped
    passed = [test for test in outcomes["passed"] if test not in failures]
    return Run(exit_code, list(failures.values()), passed, outcomes["skipped"], is_complete)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file; none where pytest did not get as far as writing it."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield _DECODER.decode(line)
