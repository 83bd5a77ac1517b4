"""Second look: rules by which a failed test of the process lane is run again alone, and what is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from support.function_changes import Function, Versions, first_change, function_of
from support.run_records import Failure, Run

MAX_FILES = 3
MAX_FUNCTIONS = 6
MAX_ATTEMPTS = 3
NEEDED = 2
PASSED_ALONE, FAILED = "PASSED ALONE", "FAILED"
WITHOUT_SECOND_LOOK = {"crash": "the worker crashed", "collection": "the file cannot be collected"}
NO_TESTS = 5


class Suspect(Struct, frozen=True):
    """Test function that failed, with the first failure of each of its parameters."""

    function: Function
    failures: list[Failure]

    @property
    def name(self) -> str:
        path, name = self.function
        return f"{path}::{name.replace('.', '::')}" if name else path

    @property
    def tests(self) -> list[str]:
        return [failure.test for failure in self.failures]


class Attempt(Struct, frozen=True):
    """Run of one test function alone."""

    passed: bool
    seconds: float
    load: str
    lines: list[str] = []


class Look(Struct, frozen=True):
    """Second look at one test function: its verdict and the reason."""

    name: str
    verdict: str
    reason: str
    failures: list[Failure]
    attempts: list[Attempt] = []


def suspects_of(run: Run) -> list[Suspect]:
    """Return the failed functions. Parameters of one function count as one."""
    failures: dict[Function, list[Failure]] = {}
    for failure in run.failures:
        failures.setdefault(function_of(failure.test), []).append(failure)
    return [Suspect(function, found) for function, found in failures.items()]


def whole_run_reason(run: Run, suspects: Sequence[Suspect]) -> str:
    """Return the reason why a run fails as a whole, without second looks; empty if its failures decide."""
    if run.exit_code == NO_TESTS:
        return "no test was selected"
    if run.exit_code not in (0, 1):
        return f"pytest ended with exit code {run.exit_code}: not all tests were run"
    if not run.is_complete:
        return "pytest was stopped before all tests were run"
    if run.exit_code == 1 and not run.failures:
        return "pytest failed without a failed test"
    return "too many for load" if is_over_budget(suspects) else ""


def is_over_budget(suspects: Sequence[Suspect]) -> bool:
    """Check if too many tests failed for load to be the reason."""
    files = {suspect.function[0] for suspect in suspects}
    return len(files) > MAX_FILES or len(suspects) > MAX_FUNCTIONS


def refusal(suspect: Suspect, files: Mapping[str, Versions]) -> str:
    """Return the reason why a function gets no second look: a crash, or a change. Empty if it gets one."""
    for failure in suspect.failures:
        if failure.phase in WITHOUT_SECOND_LOOK:
            return WITHOUT_SECOND_LOOK[failure.phase]
        change = first_change(failure.test, failure.fixtures, files)
        if change:
            return f"no second look for new tests: {change}"
    return ""


def verdict_of(attempts: Sequence[Attempt]) -> str:
    """Return the verdict: two passes or two failures decide; empty before."""
    passes = sum(attempt.passed for attempt in attempts)
    if passes >= NEEDED:
        return PASSED_ALONE
    return FAILED if len(attempts) - passes >= NEEDED else ""


def look_of(suspect: Suspect, attempts: Sequence[Attempt]) -> Look:
    """Return the result of these attempts."""
    passes = sum(attempt.passed for attempt in attempts)
    reason = f"alone, {passes} of {len(attempts)} runs passed"
    return Look(suspect.name, verdict_of(attempts), reason, suspect.failures, list(attempts))


def is_passed_alone(suspect: Suspect, run: Run) -> bool:
    """Check that each test of the function passed in a run alone; one that was skipped did not."""
    return run.exit_code == 0 and run.is_complete and set(suspect.tests) <= set(run.passed)


def render(looks: Iterable[Look]) -> list[str]:
    """Return the lines for the end of a run, also of one that passed."""
    return [line for look in looks for line in _render(look)]


def _render(look: Look) -> list[str]:
    lines = ["", f"{look.verdict} {look.name}: {look.reason}"]
    lines += [f"  {one.test} failed in {one.phase}, {one.seconds:.1f} s; {one.load}" for one in look.failures]
    first = look.failures[0]
    lines += [f"    | {line}" for line in first.lines]
    for daemon in first.daemons:
        lines += ["  daemon:", *(f"    | {line}" for line in daemon)]
    for attempt in look.attempts:
        word = "passed" if attempt.passed else "failed"
        lines.append(f"  alone: {word}, {attempt.seconds:.1f} s; {attempt.load}")
        lines += [f"    | {line}" for line in attempt.lines]
    return lines
