"""Second look: rules by which a failed test is run again alone, and what is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from support.function_changes import Function, Versions, first_change, function_of
from support.run_records import Failure, Run

MAX_FILES = 3
MAX_FUNCTIONS = 6
# Passes alone that are enough, and failures that are too many.
NEEDED = 2
# A new or changed test has no past that speaks for it: it passes alone as often as this, or for five minutes.
NEEDED_OF_CHANGED = 10
ENOUGH_SECONDS = 300.0
PASSED_ALONE, FAILED = "PASSED ALONE", "FAILED"
WITHOUT_SECOND_LOOK = {"crash": "the worker crashed", "collection": "the file cannot be collected"}
NO_TESTS = 5


class Suspect(Struct, frozen=True):
    """Test function that failed, with the first failure of each of its parameters.

    `change`: part of it that this change concerns, such as "its body changed"; empty for an old test.
    """

    function: Function
    failures: list[Failure]
    change: str = ""

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


def suspects_of(run: Run, files: Mapping[str, Versions] | None = None) -> list[Suspect]:
    """Return the failed functions. Parameters of one function count as one. `files`: those of the change."""
    failures: dict[Function, list[Failure]] = {}
    for failure in run.failures:
        failures.setdefault(function_of(failure.test), []).append(failure)
    return [Suspect(function, found, _change_of(found, files or {})) for function, found in failures.items()]


def _change_of(failures: Iterable[Failure], files: Mapping[str, Versions]) -> str:
    changes = (first_change(failure.test, failure.fixtures, files) for failure in failures)
    return next(filter(None, changes), "")


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


def refusal(suspect: Suspect) -> str:
    """Return the reason why a function gets no second look. Empty if it gets one."""
    phases = (failure.phase for failure in suspect.failures)
    return next((WITHOUT_SECOND_LOOK[phase] for phase in phases if phase in WITHOUT_SECOND_LOOK), "")


def verdict_of(attempts: Sequence[Attempt], change: str = "") -> str:
    """Return the verdict; empty while more attempts are needed.

    Two passes or two failures decide. A changed test fails by one failure, and has to pass ten times, or for five
    minutes: ten runs of a long one had taken the rest of the time that a change has.
    """
    passes = sum(attempt.passed for attempt in attempts)
    failures = len(attempts) - passes
    if failures >= (1 if change else NEEDED):
        return FAILED
    is_enough = passes >= NEEDED_OF_CHANGED or sum(attempt.seconds for attempt in attempts) >= ENOUGH_SECONDS
    return PASSED_ALONE if passes >= NEEDED and (is_enough or not change) else ""


def look_of(suspect: Suspect, attempts: Sequence[Attempt]) -> Look:
    """Return the result of these attempts."""
    passes = sum(attempt.passed for attempt in attempts)
    reason = f"alone, {passes} of {len(attempts)} runs passed" + (f" ({suspect.change})" if suspect.change else "")
    return Look(suspect.name, verdict_of(attempts, suspect.change), reason, suspect.failures, list(attempts))


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
    if first.stacks:
        lines += ["  stacks:", *(f"    | {line}" for line in first.stacks)]
    for daemon in first.daemons:
        lines += ["  daemon:", *(f"    | {line}" for line in daemon)]
    for attempt in look.attempts:
        word = "passed" if attempt.passed else "failed"
        lines.append(f"  alone: {word}, {attempt.seconds:.1f} s; {attempt.load}")
        lines += [f"    | {line}" for line in attempt.lines]
    return lines
