"""Fuzz targets one after the other, print the outcome of each, and update the table in docs/quality/fuzz.md.

    PYTHONPATH=tests python -m fuzz.run --seconds 600 [--docs docs/quality/fuzz.md] [TARGET...]

Exits with 1 if there is a finding, and prints the path of its input.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from msgspec import Struct

from fuzz.table import Row, rows_in, written
from fuzz.targets import FOLDER, NAMES, Target, target

# Timeout of one input; the slowest seed takes 30 ms with full instrumentation.
MAX_SECONDS = 5
MAX_RSS_MIB = 1024
STATUS = re.compile(r"^#(\d+)\s.*? cov: (\d+) ", re.MULTILINE)
EXECUTED = re.compile(r"^stat::number_of_executed_units: *(\d+)", re.MULTILINE)
FOUND = re.compile(r"Test unit written to (.+)$", re.MULTILINE)


class Outcome(Struct, frozen=True):
    """Outcome of a run. `found` are the inputs that broke a promise."""

    name: str
    seconds: int
    executions: int
    coverage: int
    found: tuple[Path, ...]


def command_of(one: Target, folder: Path, seconds: int) -> list[str]:
    words = folder / "words.dict"
    words.write_text(one.words)
    new = folder / "corpus"
    new.mkdir(exist_ok=True)
    options = {
        "max_total_time": seconds,
        "timeout": MAX_SECONDS,
        "rss_limit_mb": MAX_RSS_MIB,
        "max_len": one.max_bytes,
        "print_final_stats": 1,
        "use_value_profile": 1,
        "artifact_prefix": f"{folder}/",
        "dict": words,
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    return [sys.executable, "-m", "fuzz.child", one.name, str(new), str(one.seeds), *arguments]


def fuzzed(name: str, seconds: int, out: Path) -> Outcome:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
    command, log, started = command_of(target(name), folder, seconds), folder / "log", time.monotonic()
    with log.open("wb") as file:
        done = subprocess.run(
            command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": path}, check=False
        )
    text = log.read_text(errors="replace")
    outcome = outcome_of(name, round(time.monotonic() - started), text)
    if done.returncode and not outcome.found:
        sys.exit(f"{name}: the fuzzer ended with {done.returncode} and found nothing; its log:\n{text[-2000:]}")
    return outcome


def outcome_of(name: str, seconds: int, log: str) -> Outcome:
    """Parse libFuzzer's output: status lines, paths of findings, and the number of executions."""
    lines, executed = STATUS.findall(log), EXECUTED.search(log)
    executions = int(executed[1]) if executed else max((int(count) for count, _ in lines), default=0)
    found = tuple(Path(path) for path in FOUND.findall(log))
    return Outcome(name, seconds, executions, int(lines[-1][1]) if lines else 0, found)


def sentence_of(outcome: Outcome) -> str:
    line = f"{outcome.name:14} {outcome.seconds:5} s  {outcome.executions:>10,} runs  {outcome.coverage:>6,} edges"
    return line + "".join(f"\n  FOUND {path}: its log is {path.parent / 'log'}" for path in outcome.found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="seconds for each target")
    parser.add_argument("--docs", type=Path, help="page with the table to update")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all by default: {', '.join(NAMES)}")
    given = parser.parse_args()
    unknown = set(given.targets) - set(NAMES)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; use some of {', '.join(NAMES)}")
    outcomes = []
    for name in given.targets or NAMES:
        outcomes.append(fuzzed(name, given.seconds, given.out.resolve()))
        print(sentence_of(outcomes[-1]), flush=True)
        if given.docs:
            keep(outcomes[-1], given.docs)
    return int(any(outcome.found for outcome in outcomes))


def keep(outcome: Outcome, page: Path) -> None:
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    row = Row(outcome.name, outcome.seconds, outcome.executions, outcome.coverage, len(outcome.found), today)
    before = page.read_text() if page.exists() else ""
    page.write_text(written([*rows_in(before), row], before))


if __name__ == "__main__":
    sys.exit(main())
