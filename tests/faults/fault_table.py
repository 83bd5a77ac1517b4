"""Runs the tests of every fault, with the common oracle at the end of each, and writes docs/faults.md.

python tests/faults/fault_table.py [CASE...]: as `make faults`. With numbers of cases, the other rows stay as they
are. What `make test-system` found last is taken from out/system, or else from the table as it stands.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from fault_cases import CASES, Case
from msgspec import Struct

from support.paths import ROOT

PAGE = ROOT / "docs" / "faults.md"
OUT = ROOT / "out" / "faults"
CHECKS, MACHINE = ROOT / "out/system/checks.xml", ROOT / "out/system/vm.txt"
NOT_RUN = "not run"
HEAD = """# Faults

What is done to a running memwatchd, what must come of it, and what did. `make faults` runs the tests of this table
and writes it; `make test` refuses one with a red row, a missing case or another wording than the tests'.

At the end of each test every daemon still has to satisfy one measure: it is there, or was back within 5 s of a
start; `/metrics` answers within 1 s; samples go on; at most ten complaints a minute in the log and no traceback; at
most 128 MiB resident. `system` marks what needs a systemd or a kernel of its own: `make test-system`, as root.

"""
TITLES = "| case | what is done | what must come of it | tests | outcome | seconds | system |\n"
RULE = "|---:|---|---|---|---|---:|---|\n"


class Outcome(Struct, frozen=True):
    """What became of one test, over all its parameters."""

    passed: bool
    seconds: float


def outcomes_in(file: Path) -> dict[str, Outcome]:
    """By node id without parameters. What was skipped has shown nothing."""
    found: dict[str, Outcome] = {}
    for test in ET.parse(file).iter("testcase"):
        name = f"{test.get('classname', '').replace('.', '/')}.py::{test.get('name', '').partition('[')[0]}"
        before = found.get(name, Outcome(True, 0.0))
        well = not any(child.tag in ("failure", "error", "skipped") for child in test)
        found[name] = Outcome(before.passed and well, before.seconds + float(test.get("time", 0)))
    return found


def run_suite(cases: Sequence[Case]) -> dict[str, Outcome]:
    OUT.mkdir(parents=True, exist_ok=True)
    report = OUT / "suite.xml"
    tests = sorted({test for case in cases for test in case.of_suite})
    path = os.pathsep.join(str(ROOT / folder) for folder in ("tests", "tests/faults"))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "fault_witness"]
    subprocess.run(
        [*command, f"--junitxml={report}", *tests], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    return outcomes_in(report)


def run_of_system() -> dict[str, tuple[bool, str]]:
    """What the last `make test-system` found, and on which day."""
    found: dict[str, tuple[bool, str]] = {}
    if CHECKS.exists():
        for name, outcome in outcomes_in(CHECKS).items():
            found[f"tests/system/{name.rpartition('/')[2]}"] = (outcome.passed, day_of(CHECKS))
    if MACHINE.exists():
        for line in MACHINE.read_text().splitlines():
            mark, word, *_ = line.replace(":", " ").split()
            found[f"tests/system/vm.py::test_{word}"] = (mark == "✓", day_of(MACHINE))
    return found


def day_of(file: Path) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(file.stat().st_mtime))


def row_of(
    case: Case, suite: Mapping[str, Outcome], system: Mapping[str, tuple[bool, str]], before: Mapping[int, str]
) -> str:
    bad = [test for test in case.of_suite if not suite.get(test, Outcome(False, 0.0)).passed]
    outcome = "✗ " + ", ".join(name_of(test) for test in bad) if bad else "✓" if case.of_suite else "–"
    seconds = sum(suite[test].seconds for test in case.of_suite if test in suite)
    spent = f"{seconds:.0f}" if case.of_suite else "–"
    cells = [
        case.number, case.injected, case.expected, shown_by(case), outcome, spent, system_of(case, system, before)
    ]  # fmt: skip
    return line_of([str(cell) for cell in cells])


def line_of(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def system_of(case: Case, system: Mapping[str, tuple[bool, str]], before: Mapping[int, str]) -> str:
    if not case.of_system:
        return "–"
    known = [system[test] for test in case.of_system if test in system]
    if len(known) < len(case.of_system):
        return before.get(case.number, NOT_RUN)
    return f"{'✓' if all(well for well, _ in known) else '✗'} {min(day for _, day in known)}"


def shown_by(case: Case) -> str:
    return ", ".join(f"`{name_of(test)}`" for test in case.tests)


def name_of(test: str) -> str:
    """As short as it stays clear: the file and the promise."""
    path, _, name = test.removeprefix("tests/").partition(".py::test_")
    file = path if path.startswith("system/") else path.rpartition("/")[2].removeprefix("test_")
    return f"{file}: {name.replace('_', ' ')}"


def rows_in(text: str) -> dict[int, list[str]]:
    """The cells of each case of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {int(row[0]): row for row in cells}


def where_of() -> str:
    """The day and the machine."""
    return (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, Linux {platform.release()} on {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, other work beside it."
    )


def main(wanted: Sequence[int]) -> int:
    old = rows_in(PAGE.read_text() if PAGE.exists() else "")
    before = {number: row[-1] for number, row in old.items()}
    chosen = [case for case in CASES if not wanted or case.number in wanted]
    suite, system = run_suite(chosen), run_of_system()
    rows = []
    for case in CASES:
        if case in chosen:
            rows.append(row_of(case, suite, system, before))
        else:
            cells = old.get(case.number, [str(case.number), *[NOT_RUN] * 6])
            rows.append(line_of([*cells[:-1], system_of(case, system, before)]))
    PAGE.write_text(HEAD + where_of() + "\n\n" + TITLES + RULE + "".join(rows))
    red = [row.split(" | ")[0].strip("| ") for row in rows if "✗" in row]
    print(f"{PAGE.relative_to(ROOT)}: {len(rows)} cases, red: {', '.join(red) or 'none'}")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
