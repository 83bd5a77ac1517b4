"""Check the laws of the accounting on random machines, and stop at the first violation with a small example.

    PYTHONPATH=tests python -m scripts.machines --count 1000000 [--processes 2] [--first SEED] [--seconds 3600]

Each machine has a number, its seed. Exits with 1 after a violation, and prints the seed, the sentence of the law,
and the smallest machine found that breaks the same law. With `--seconds` it ends before all machines are checked.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from typing import NamedTuple

from msgspec.structs import asdict

from memwatch.findings import Findings
from support.generated.choices import Choices, RandomChoices, ReplayedChoices, shrink
from support.generated.laws import check_machine
from support.generated.machine import GeneratedMachine, draw_machine

# Machines that one task of a process checks: about a second of work.
BATCH = 500
REPORT_SECONDS = 10.0


class Violation(NamedTuple):
    seed: int
    text: str


def violation(choices: Choices) -> str | None:
    """Return the broken law, or the exception, of a machine; None if there is none."""
    try:
        check_machine(draw_machine(choices))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_batch(seeds: range) -> Violation | None:
    found = ((seed, violation(RandomChoices(seed))) for seed in seeds)
    return next((Violation(seed, text) for seed, text in found if text is not None), None)


def law_of(text: str | None) -> str:
    """Return the part of a sentence that names the law: without ids and figures."""
    return re.sub(r"\S*\d\S*|\[.*\]|\{.*\}", "", text or "")[:60]


def smallest(seed: int, text: str) -> tuple[GeneratedMachine, str]:
    """Return a small machine that breaks the same law as the machine with this seed, and the sentence."""
    choices = RandomChoices(seed)
    draw_machine(choices)
    law = law_of(text)
    kept = shrink(choices.taken, lambda one: law_of(violation(ReplayedChoices(one))) == law)
    return draw_machine(ReplayedChoices(kept)), violation(ReplayedChoices(kept)) or text


def describe(machine: GeneratedMachine) -> Iterator[str]:
    """Yield the findings of each collector, without empty fields."""
    for name in ("before", "findings"):
        yield f"{name}:"
        for found in getattr(machine, name):
            fields = {key: value for key, value in asdict(found).items() if value != getattr(Findings(), key)}
            yield from (f"  {key} = {value}" for key, value in fields.items())


def run(count: int, processes: int, first: int, seconds: float = math.inf) -> Violation | None:
    """Check machines and print the progress. Return the first violation that a process finds within `seconds`."""
    batches = [range(at, min(at + BATCH, first + count)) for at in range(first, first + count, BATCH)]
    started = reported = time.monotonic()
    done = 0
    # Processes that end from time to time return memory that the allocator keeps.
    with get_context("spawn").Pool(processes, maxtasksperchild=100) as pool:
        for found in pool.imap_unordered(check_batch, batches):
            if found is not None:
                return found
            done, now = min(count, done + BATCH), time.monotonic()
            is_over = done == count or now - started > seconds
            if now - reported > REPORT_SECONDS or is_over:
                reported = now
                rate = done / (now - started)
                print(f"{done:,} machines, {rate:.0f} a second, no violation", flush=True)
            if is_over:
                return None
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="number of machines")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each CPU")
    parser.add_argument("--first", type=int, default=0, help="seed of the first machine")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after this time")
    given = parser.parse_args(arguments)
    found = run(given.count, given.processes, given.first, given.seconds)
    if found is None:
        return 0
    print(f"VIOLATION, seed {found.seed}: {found.text}\nlooking for a smaller machine …", flush=True)
    machine, text = smallest(found.seed, found.text)
    print("\n".join((text, *describe(machine))))
    return 1


if __name__ == "__main__":
    sys.exit(main())
