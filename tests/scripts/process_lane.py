"""Run tests, and failed ones again alone: python -m scripts.process_lane [--folder out/ci/NAME] PYTEST_ARGS…

A test that fails beside others and passes twice alone was disturbed: the run passes, and its end prints an entry
for tests/disturbed.toml. One whose body or fixture has changed since the base has to pass ten times of ten.
Everything else fails: a test that fails alone, more than 3 files or 6 functions, a crashed worker, and an error of
pytest or of a collection. The folder has the records of the run, the CPU seconds of each test file and the second
looks as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from support import disturbed, second_look
from support.change_base import Base, Repository, changed_files, find_base
from support.host_load import describe_load
from support.paths import environment_of_tests
from support.run_records import Run, read_records, run_of
from support.second_look import FAILED, PASSED_ALONE, Attempt, Look, Suspect
from support.waiting import wait_for_quiet_host

FOLDER = Path("out/ci")
MAX_SECONDS_ALONE = 900.0
# Of the output of a run alone that ended without naming a failed test.
MAX_OUTPUT_LINES = 20


class Process(Protocol):
    """Run of pytest: `subprocess.Popen`, or one that a test starts."""

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def start_pytest(command: Sequence[str], root: Path, output: int | None) -> Process:
    """Start a run in the checkout `root`. Its output goes to a file, or to that of this program."""
    return subprocess.Popen(command, cwd=root, env=environment_of_tests(root), stdout=output, stderr=output)


class Report(Struct):
    """Content of out/ci/second-look.json."""

    exit_code: int
    reason: str
    base: str
    looks: list[Look]
    used: int = 0

    @property
    def summary(self) -> str:
        return f"second look: {self.used} of {second_look.MAX_FUNCTIONS} used"


class Lane:
    """One run of the lane in the checkout `root`."""

    def __init__(
        self,
        root: Path,
        folder: Path = FOLDER,
        wait_for_quiet: Callable[[], None] = wait_for_quiet_host,
        start: Callable[[Sequence[str], Path, int | None], Process] = start_pytest,
    ) -> None:
        self._root = root
        self._start = start
        self._folder = root / folder
        self._wait_for_quiet = wait_for_quiet
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, arguments: Sequence[str]) -> Report:
        """Run the lane, and print and write its result."""
        base = find_base(Repository(self._root))  # first, as a wrong CHANGE_BASE is an error
        report = self._judge(self._first_try(arguments), base)
        for line in [*second_look.render(report.looks), *self._entries(report), *_ending(report)]:
            print(line, flush=True)
        written = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (self._folder / "second-look.json").write_bytes(written + b"\n")
        return report

    def _first_try(self, arguments: Sequence[str]) -> Run:
        records, cpu = self._folder / "first-try.jsonl", f"--cpu-seconds={self._folder / 'cpu.json'}"
        command = self._command(records, cpu, *arguments)
        return run_of(self._start(command, self._root, None).wait(), read_records(records))

    def _command(self, records: Path, *arguments: str) -> list[str]:
        records.unlink(missing_ok=True)
        return [sys.executable, "-m", "pytest", f"--test-records={records}", *arguments]

    def _judge(self, first: Run, base: Base) -> Report:
        files = changed_files(Repository(self._root), base) if first.failures else {}
        suspects = second_look.suspects_of(first, files)
        reason = second_look.whole_run_reason(first, suspects)
        if reason:
            refused = [_refused(suspect, reason) for suspect in suspects]
            return Report(first.exit_code or 1, reason, str(base), refused)
        return self._second_looks(suspects, base)

    def _second_looks(self, suspects: Sequence[Suspect], base: Base) -> Report:
        report = Report(0, "", str(base), [])
        for suspect in suspects:
            refusal = second_look.refusal(suspect)
            report.used += not refusal
            report.looks.append(_refused(suspect, refusal) if refusal else self._second_look(suspect))
        report.exit_code = int(any(look.verdict == FAILED for look in report.looks))
        return report

    def _second_look(self, suspect: Suspect) -> Look:
        attempts: list[Attempt] = []
        while not second_look.verdict_of(attempts, suspect.change):
            self._wait_for_quiet()
            attempts.append(self._attempt(suspect))
        return second_look.look_of(suspect, attempts)

    def _attempt(self, suspect: Suspect) -> Attempt:
        """Run the failed parameters of one function, in a process that runs nothing else."""
        records = self._folder / "alone.jsonl"
        command = self._command(records, "-q", "-n", "0", "-p", "no:cacheprovider", *suspect.tests)
        began = time.monotonic()
        code, output = self._run_bounded(command)
        run = run_of(code, read_records(records))
        passed = second_look.is_passed_alone(suspect, run)
        shown = run.failures[0].lines if run.failures else output.splitlines()[-MAX_OUTPUT_LINES:]
        return Attempt(passed, time.monotonic() - began, describe_load(), [] if passed else shown)

    def _run_bounded(self, command: Sequence[str]) -> tuple[int, str]:
        """Return exit code and output. A run that takes too long ends with 124, as in timeout(1)."""
        with tempfile.TemporaryFile() as output:
            process = self._start(command, self._root, output.fileno())
            try:
                code = process.wait(MAX_SECONDS_ALONE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return 124, f"timed out after {MAX_SECONDS_ALONE:g} s"
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def _entries(self, report: Report) -> list[str]:
        """Return entries for tests/disturbed.toml, of the tests that passed alone."""
        passed = [look for look in report.looks if look.verdict == PASSED_ALONE]
        if not passed:
            return []
        today, known = datetime.date.today(), disturbed.read_entries(self._root)
        entries = [disturbed.seen_again(look.name, look.failures[0].message, today, known) for look in passed]
        heading = f"Add to {disturbed.FILE}, in place of older entries of these tests:"
        return ["", heading, *(f"\n{entry}" for entry in entries)]


def _refused(suspect: Suspect, reason: str) -> Look:
    return Look(suspect.name, FAILED, reason, suspect.failures)


def _ending(report: Report) -> list[str]:
    changes = [f"changes since {report.base}"] if report.looks else []
    return ["", *changes, *([report.reason] if report.reason else []), report.summary]


def main() -> None:
    """Exit with 0 if all tests passed, here or alone, and else as pytest did or with 1."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options, arguments = parser.parse_known_args()
    sys.exit(Lane(Path.cwd(), options.folder).run(arguments).exit_code)


if __name__ == "__main__":
    main()
