"""Run tests twenty times on half of one core beside four busy loops: python -m scripts.stress [TEST …].

Without tests it takes those of the process lane that are new, or differ from the base of the second look. Each run
appends a line of JSON to out/stress.log; `--resume` goes on after those of the same commit and tests.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import psutil
from msgspec import Struct

from support.change_base import Repository, changed_files, find_base
from support.cpu_cgroup import CpuCgroup, cpu_cgroup
from support.function_changes import changed_tests
from support.host_load import describe_load
from support.paths import environment_of_tests
from support.run_records import Run, read_records, run_of

LOG = Path("out/stress.log")
LANE = "(process or host) and not long"
NO_TESTS = "no test was selected"
TIMES = 20
CORES = 0.5
BUSY_LOOPS = 4
MAX_SECONDS = 1800.0
# More tests than these are counted; those that failed are always listed.
MAX_LISTED = 40
# Ends when its parent does, also if that was killed before the first line ran.
BUSY_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


class Row(Struct, frozen=True):
    """Line of the log: one run of all the tests. `reason`: it did not run to its end."""

    time: str
    commit: str
    tests: list[str]
    seconds: float
    load: str
    passed: list[str]
    failed: dict[str, str]
    reason: str = ""


class Plan(Struct, frozen=True):
    """Options of this program."""

    tests: list[str]
    times: int = TIMES
    limit: float = MAX_SECONDS
    marks: str = LANE
    resume: bool = False


@contextmanager
def busy_loops(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep this many processes busy meanwhile."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        command = [sys.executable, "-S", "-c", BUSY_LOOP, str(os.getpid())]
        loops += (subprocess.Popen(command) for _ in range(count))
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def share_one_core(loops: Sequence[subprocess.Popen[bytes]]) -> Callable[[], None]:
    """Bind half of the loops to one core, and return a function that binds a test run to it, too."""
    core = min(os.sched_getaffinity(0))
    for loop in loops[: len(loops) // 2]:
        os.sched_setaffinity(loop.pid, {core})
    return lambda: os.sched_setaffinity(0, {core})


class Stress:
    """Runs of the same tests in the checkout `root`."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self._root, self._plan = root, plan
        self._log = root / LOG
        self._commit = Repository(root).git("rev-parse", "--short=10", "HEAD")

    def rows(self) -> list[Row]:
        """Return the runs to continue: those of the same commit and tests."""
        if not self._plan.resume or not self._log.exists():
            return []
        rows = [msgspec.json.decode(line, type=Row) for line in self._log.read_text().splitlines()]
        return [row for row in rows if (row.commit, row.tests) == (self._commit, self._plan.tests)]

    def run(self) -> list[Row]:
        """Run the tests until there are enough rows."""
        rows = self.rows()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with busy_loops(BUSY_LOOPS) as loops, cpu_cgroup(CORES) as group:
            bind = None if group else share_one_core(loops)
            print(_place(group), flush=True)
            while len(rows) < self._plan.times and not any(row.reason == NO_TESTS for row in rows):
                row = self.run_once(group, bind)
                rows.append(row)
                with self._log.open("ab") as log:
                    log.write(msgspec.json.encode(row) + b"\n")
                print(_progress(len(rows), self._plan.times, row), flush=True)
        return rows

    def run_once(self, group: CpuCgroup | None, bind: Callable[[], None] | None) -> Row:
        """Run the tests once, in the group or bound by the function."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="stress-") as folder:
            records = Path(folder) / "records"
            code = self._pytest(records, group, bind)
            run = run_of(code, read_records(records))
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        failed = {failure.test: failure.message for failure in run.failures}
        seconds = round(time.monotonic() - began, 1)
        return Row(now, self._commit, self._plan.tests, seconds, describe_load(), run.passed, failed, _reason(run))

    def _pytest(self, records: Path, group: CpuCgroup | None, bind: Callable[[], None] | None) -> int:
        # Tests are several times slower here. One that hangs is named before the run reaches its limit.
        patient = ["-o", f"faulthandler_timeout={self._plan.limit:g}"]
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", self._plan.marks, f"--test-records={records}"]
        command = [*(group.inside if group else ()), sys.executable, "-m", "pytest", *options, *patient]
        with (records.parent / "output").open("wb") as output:
            process = subprocess.Popen(
                [*command, *self._plan.tests],
                cwd=self._root,
                env=environment_of_tests(self._root),
                stdout=output,
                stderr=output,
                preexec_fn=bind,
            )
            try:
                return process.wait(self._plan.limit)
            except subprocess.TimeoutExpired:
                return 124
            finally:
                _end(process, group)


def _end(process: subprocess.Popen[bytes], group: CpuCgroup | None) -> None:
    """Kill a run that is not over, and all its processes."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()
    if group:
        group.kill()


def _reason(run: Run) -> str:
    if run.exit_code == 124:
        return "timed out"
    if run.exit_code == 5:
        return NO_TESTS
    return "" if run.exit_code in (0, 1) and run.is_complete else f"pytest ended with exit code {run.exit_code}"


def _place(group: CpuCgroup | None) -> str:
    if group:
        return f"{CORES:g} of a core in {group.folder}, beside {BUSY_LOOPS} busy loops"
    return (
        f"no control group can be created here: the tests share one core with {BUSY_LOOPS // 2} of {BUSY_LOOPS} "
        "busy loops instead, a third of it for one process and more for several; run as root for an exact limit"
    )


def _progress(number: int, times: int, row: Row) -> str:
    counts = f"{len(row.passed)} passed, {len(row.failed)} failed"
    return f"run {number} of {times}: {counts}, {row.seconds:.0f} s; {row.reason or row.load}"


def summarize(rows: Sequence[Row]) -> list[str]:
    """Return lines with passes and failures of each test; of many tests, those that failed and a count."""
    passed: Counter[str] = Counter(test for row in rows for test in row.passed)
    failed: Counter[str] = Counter(test for row in rows for test in row.failed)
    endings = {test: f": {message}" for row in rows for test, message in row.failed.items()}
    tests = sorted(passed.keys() | failed.keys())
    listed = tests if len(tests) <= MAX_LISTED else sorted(failed)
    lines = [f"{passed[test]:4} passed {failed[test]:4} failed  {test}{endings.get(test, '')}" for test in listed]
    if len(listed) < len(tests):
        lines.append(f"{len(tests) - len(listed)} other tests never failed")
    broken = sum(bool(row.reason) for row in rows)
    return [*lines, f"{len(rows)} runs, {sum(failed.values())} failures, {broken} runs not completed"]


def is_clean(rows: Iterable[Row]) -> bool:
    """Check that every run ran something to its end, without a failure."""
    return all(row.passed and not row.failed and not row.reason for row in rows)


def _plan(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(prog="stress", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help="files or node ids; all marks then count")
    parser.add_argument("--times", type=int, default=TIMES, help="number of runs (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=MAX_SECONDS, help="seconds for one run (default: %(default)s)"
    )
    parser.add_argument("--marks", default=LANE, help="marks of the lane (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="count earlier runs of this commit and these tests")
    asked = parser.parse_args(arguments)
    plan = Plan(asked.tests, asked.times, asked.limit, asked.marks, asked.resume)
    return msgspec.structs.replace(plan, marks="") if asked.tests else plan


def _with_changed_tests(root: Path, plan: Plan) -> Plan:
    repository = Repository(root)
    base = find_base(repository)
    tests = changed_tests(changed_files(repository, base))
    print(f"{len(tests)} test functions changed since {base}; those of the process lane are run")
    return msgspec.structs.replace(plan, tests=tests)


def _exit_on_sigterm(number: int, _: FrameType | None) -> NoReturn:
    """End through the clean-up: the group and the busy loops must not stay."""
    raise SystemExit(128 + number)


def main() -> None:
    """Exit with 1 if a test failed or a run did not end."""
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    plan, root = _plan(sys.argv[1:]), Path.cwd()
    chosen = plan if plan.tests else _with_changed_tests(root, plan)
    rows = Stress(root, chosen).run() if chosen.tests else []
    print("\n".join(summarize(rows)))
    if not plan.tests and all(row.reason == NO_TESTS for row in rows):
        sys.exit(0)  # the change has no test of this lane
    sys.exit(not is_clean(rows))


if __name__ == "__main__":
    main()
