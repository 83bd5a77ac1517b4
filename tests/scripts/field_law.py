"""Check the laws of single figures and of failures on the committed machines.

    PYTHONPATH=tests python -m scripts.field_law [--count 20000] [--machines gb10,thor] [--processes 2] [--write]

Each collector fails, and so does each file that it reads: see `support.failing_collectors`.

Then each figure of each kernel file and driver answer is corrupted in each way, until `--count` random cases are
checked, and the number that nothing detects is printed. Exits with 1 if a figure changes that does not depend on
it, or if a corruption is not detected that tests/undetected.toml does not have. `--write` adds those to it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from support.corrupted_machine import ALL_SOURCES, CorruptedMachine
from support.engine_fields import TEXTS, findings
from support.failing_collectors import FailingMachine
from support.field_law import UNDETECTED, Finding, changes, is_known, judge, read_undetected
from support.paths import MACHINES

HEADER = """\
# Corruptions of single figures that nothing detects: the figures that depend on them follow without a mark.
# Written by `python -m scripts.field_law --write`; a new one fails the tests. Remove what a new check detects.
"""


class Checked(NamedTuple):
    """The findings on one machine, and the number of cases by source and field."""

    cases: Counter[tuple[str, str]]
    findings: frozenset[Finding]


def names() -> list[str]:
    """Return the committed machines that have a meminfo."""
    return sorted(folder.name for folder in MACHINES.iterdir() if (folder / "proc/meminfo").is_file())


def check(name: str, part: float) -> Checked:
    """Check a machine. `part`: the fraction of its cases, which its name selects."""
    chance, cases, found = random.Random(name), Counter[tuple[str, str]](), set[Finding]()
    with tempfile.TemporaryDirectory() as scratch:
        machine = CorruptedMachine(name, Path(scratch))
        for source in ALL_SOURCES:
            for case in machine.cases(source):
                if chance.random() >= part:
                    continue
                cases[source, case.field] += 1
                finding = judge(source, case.field, case.how, list(changes(machine.sound, machine.corrupted(case))))
                found |= {finding} if finding else set()
    return Checked(cases, frozenset(found))


def check_failures(name: str) -> tuple[int, list[str]]:
    """Return the number of failures of a machine's collectors and files, and a sentence for each broken law."""
    machine, count, found = FailingMachine(name), 0, list[str]()
    for failure in (*machine.collectors(), *machine.files()):
        count += 1
        found += machine.complaints(failure)
    return count, found


def count_cases(name: str) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        machine = CorruptedMachine(name, Path(scratch))
        return sum(1 for source in ALL_SOURCES for _ in machine.cases(source))


def run(machines: Sequence[str], count: int, processes: int) -> Checked:
    """Check the machines in several processes."""
    cases, found = Counter[tuple[str, str]](), set[Finding]()
    with get_context("spawn").Pool(processes) as pool:
        whole = sum(pool.imap_unordered(count_cases, machines))
        for one in pool.imap_unordered(partial(check, part=min(1.0, count / whole)), machines):
            cases.update(one.cases)
            found |= one.findings
            for finding in one.findings:
                if finding.complaint:
                    print(f"VIOLATION: {finding.complaint}", flush=True)
    return Checked(cases, frozenset(found))


def write(undetected: Mapping[str, Mapping[str, Sequence[str]]], path: Path = UNDETECTED) -> None:
    lines = [HEADER]
    for source, fields in sorted(undetected.items()):
        lines.append(f"[{source}]\n")
        for field, kinds in sorted(fields.items()):
            lines.append(f'"{field}" = [{", ".join(f"{chr(34)}{one}{chr(34)}" for one in sorted(kinds))}]\n')
        lines.append("\n")
    path.write_text("".join(lines).rstrip() + "\n")


def merge(
    known: Mapping[str, Mapping[str, Sequence[str]]], found: Sequence[Finding]
) -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the known undetected corruptions and those that were found."""
    merged = {source: {field: set(kinds) for field, kinds in fields.items()} for source, fields in known.items()}
    for one in found:
        merged.setdefault(one.source, {}).setdefault(one.field, set()).add(one.how)
    return {source: {field: sorted(kinds) for field, kinds in fields.items()} for source, fields in merged.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="number of corrupted figures")
    parser.add_argument("--machines", type=lambda text: text.split(","), help="names, default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each CPU")
    parser.add_argument("--write", action="store_true", help="add undetected corruptions to the table")
    given = parser.parse_args(arguments)
    known = read_undetected()
    machines = given.machines or names()
    of_engines = {one for name in TEXTS for one in findings(name)}
    failures = [check_failures(name) for name in machines]
    print(f"{sum(count for count, _ in failures):,} failures of collectors and files")
    failed = [text for _, texts in failures for text in texts]
    failed += [one.complaint for one in of_engines if one.complaint]
    for text in failed:
        print(f"VIOLATION: {text}", flush=True)
    checked = run(machines, given.count, given.processes)
    undetected = [one for one in (*checked.findings, *of_engines) if not one.complaint]
    new = [one for one in undetected if not is_known(one, known)]
    print(f"{sum(checked.cases.values()):,} corrupted figures of {len(checked.cases)} fields")
    for source, fields in sorted(known.items()):
        kinds = sum(map(len, fields.values()))
        print(f"{source}: {kinds} kinds of corruption of {len(fields)} fields are not detected")
    for one in sorted(set(new)):
        print(f"NOT DETECTED: {one.source}: {one.field} {one.how}")
    if given.write and new:
        write(merge(known, new))
        new = []
    return 1 if failed or new or any(one.complaint for one in checked.findings) else 0


if __name__ == "__main__":
    sys.exit(main())
