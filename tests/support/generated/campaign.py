"""Search for a generated example that breaks a law, in several processes, and for a small one that breaks the same.

Each example has a number, its seed.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Generic, NamedTuple, TypeVar

from support.generated.choices import Choices, RandomChoices, ReplayedChoices, shrink

T = TypeVar("T")

# Examples that one task of a process checks: seconds of work.
BATCH = 500
REPORT_SECONDS = 10.0


class Violation(NamedTuple):
    seed: int
    text: str


@dataclass(frozen=True, slots=True)
class Campaign(Generic[T]):
    """One kind of example. Its functions are those of a module, so that other processes find them.

    `check` raises with the sentence of a broken law. `words`: the examples in the plural.
    """

    words: str
    draw: Callable[[Choices], T]
    check: Callable[[T], None]
    describe: Callable[[T], Iterable[str]]


def violation(campaign: Campaign[T], choices: Choices) -> str | None:
    """Return the broken law, or the exception, of an example; None if there is none."""
    try:
        campaign.check(campaign.draw(choices))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_batch(campaign: Campaign[T], seeds: range) -> Violation | None:
    found = ((seed, violation(campaign, RandomChoices(seed))) for seed in seeds)
    return next((Violation(seed, text) for seed, text in found if text is not None), None)


def law_of(text: str | None) -> str:
    """Return the part of a sentence that names the law: without ids and figures."""
    return re.sub(r"\S*\d\S*|\[.*\]|\{.*\}", "", text or "")[:60]


def smallest(campaign: Campaign[T], seed: int, text: str) -> tuple[T, str]:
    """Return a small example that breaks the same law as the one with this seed, and the sentence."""
    choices = RandomChoices(seed)
    campaign.draw(choices)
    law = law_of(text)
    kept = shrink(choices.taken, lambda one: law_of(violation(campaign, ReplayedChoices(one))) == law)
    return campaign.draw(ReplayedChoices(kept)), violation(campaign, ReplayedChoices(kept)) or text


def run(
    campaign: Campaign[T], count: int, processes: int, first: int, seconds: float = math.inf
) -> Violation | None:
    """Check examples and print the progress. Return the first violation that a process finds within `seconds`."""
    batches = [range(at, min(at + BATCH, first + count)) for at in range(first, first + count, BATCH)]
    started = reported = time.monotonic()
    done = 0
    # Processes that end from time to time return memory that the allocator keeps.
    with get_context("spawn").Pool(processes, _freeze, maxtasksperchild=100) as pool:
        for found in pool.imap_unordered(partial(check_batch, campaign), batches):
            if found is not None:
                return found
            done, now = min(count, done + BATCH), time.monotonic()
            is_over = done == count or now - started > seconds
            if now - reported > REPORT_SECONDS or is_over:
                reported = now
                rate = done / (now - started)
                print(f"{done:,} {campaign.words}, {rate:.0f} a second, no violation", flush=True)
            if is_over:
                return None
    return None


def _freeze() -> None:
    """Exclude the modules from garbage collection, which is a sixth of the time otherwise."""
    gc.collect()
    gc.freeze()


def main(campaign: Campaign[T], description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run a campaign from the command line. Return 1 after a violation."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help=f"number of {campaign.words}")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each CPU")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after this time")
    given = parser.parse_args(arguments)
    found = run(campaign, given.count, given.processes, given.first, given.seconds)
    if found is None:
        return 0
    print(f"VIOLATION, seed {found.seed}: {found.text}\nlooking for a smaller example …", flush=True)
    example, text = smallest(campaign, found.seed, found.text)
    print("\n".join((text, *campaign.describe(example))))
    return 1
