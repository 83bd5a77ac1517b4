"""Check the laws of the accounting on random machines, and stop at the first violation with a small example.

    PYTHONPATH=tests python -m scripts.machines --count 1000000 [--processes 2] [--first SEED] [--seconds 3600]

Each machine has a number, its seed. Exits with 1 after a violation, and prints the seed, the sentence of the law,
and the smallest machine found that breaks the same law. With `--seconds` it ends before all machines are checked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from msgspec.structs import asdict

from memwatch.core.findings import Findings
from support.generated.campaign import Campaign, main
from support.generated.laws import check_machine
from support.generated.machine import GeneratedMachine, draw_machine


def describe(machine: GeneratedMachine) -> Iterator[str]:
    """Yield the findings of each collector, without empty fields."""
    for name in ("before", "findings"):
        yield f"{name}:"
        for found in getattr(machine, name):
            fields = {key: value for key, value in asdict(found).items() if value != getattr(Findings(), key)}
            yield from (f"  {key} = {value}" for key, value in fields.items())


if __name__ == "__main__":
    sys.exit(main(Campaign("machines", draw_machine, check_machine, describe), __doc__))
